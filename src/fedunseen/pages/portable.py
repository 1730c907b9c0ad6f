"""A run's model as a folder that loads without this package: ONNX, the class table, and a script of
one page.

The graph takes samples as the run takes them, the classes' attributes as ``classes.csv`` has them,
and which classes were seen; scalings and calibration are inside. So a class is added by a line in
``classes.csv``.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedunseen.core.errors import ExperimentError
from fedunseen.core.files import free_folder, whole_folder, write_json, write_text
from fedunseen.core.onnx import check_onnx, onnx_graph
from fedunseen.data import Scaler
from fedunseen.data.kernel import bound_of
from fedunseen.experiment.result.run import Run
from fedunseen.model import Model

_INPUTS = ["samples", "semantics", "seen"]
# largest difference between the graph's scores and the run's, as a part of the scores' range
_SAME = 1e-3


class Scaled(nn.Module):
    """Does to a tensor what ``Scaler`` does to an array."""

    def __init__(self, scaler: Scaler) -> None:
        super().__init__()
        self.steps = scaler.steps
        quantization = scaler.quantization
        self.levels = 0 if quantization is None else quantization.levels
        for name, value in scaler.statistics.items():
            self.register_buffer(name.replace(".", "_"), torch.from_numpy(value))

    def forward(self, rows: Tensor) -> Tensor:
        """Return scaled rows (n, d)."""
        for i, step in enumerate(self.steps):
            if step == "l2":
                norms = rows.square().sum(1, keepdim=True).sqrt()
                rows = rows / torch.where(norms > 0, norms, torch.ones_like(norms))
            elif step == "min-max":
                rows = (rows - getattr(self, f"{i}_min")) / getattr(self, f"{i}_range")
            elif step == "x10":
                rows = rows * 10
            elif step == "kernel":
                phases: Tensor = getattr(self, f"{i}_phases")
                angles = rows @ getattr(self, f"{i}_frequencies") + phases
                rows = bound_of(len(phases)) * angles.cos()
            else:
                rows = rows - getattr(self, f"{i}_mean")
                if step == "standard":
                    rows = rows / getattr(self, f"{i}_deviation")
        if not self.levels:
            return rows
        width: Tensor = getattr(self, "quantize_step")  # noqa: B009  # a buffer, unknown to mypy
        offset: Tensor = getattr(self, "quantize_offset")  # noqa: B009
        codes = (rows - offset) / torch.where(width > 0, width, torch.inf)
        return codes.round().clamp(-self.levels, self.levels) * width


class _Scores(nn.Module):
    """A model's scores as one module: scaling, the method, calibration."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.method = model.method
        self.names = list(model.params)
        self.calibration = model.calibration
        self.vectors = len(model.sample_shape) == 1  # nothing scales maps and images
        self.samples = Scaled(model.scaler)
        self.semantics = Scaled(model.semantics_scaler)
        for i, value in enumerate(model.params.values()):
            self.register_buffer(f"p{i}", value.detach().cpu())

    def forward(self, samples: Tensor, semantics: Tensor, seen: Tensor) -> Tensor:
        params = {name: getattr(self, f"p{i}") for i, name in enumerate(self.names)}
        scaled = self.samples(samples) if self.vectors else samples
        scores = self.method.graph_scores(params, scaled, self.semantics(semantics))
        return self.calibration(scores.float(), seen)


def export_model(run: Run, folder: Path, card: str) -> list[Path]:
    """Write ``model.onnx``, ``model.json``, ``classes.csv``, ``predict.py``, ``README.md`` and, for
    a model of a table, ``columns.py`` into a new folder.
    """
    run = run.first
    run.check_one_model("to export", choosable=True)
    method = run.method
    if method.task == "few-shot" or not method.zero_shot or method.generates:
        raise ExperimentError(
            f"method.name = {run.method_name!r} does not score a class by its attributes alone, so "
            "that its model needs this package: export tables with --csv, or serve it with "
            "`fedunseen serve`"
        )
    columns = getattr(run.experiment.data, "columns", ())
    if texts := [column.name for column in columns if column.kind == "text"]:
        raise ExperimentError(
            f"the column {texts[0]!r} holds texts, which need a sentence encoder, and an export "
            "has none: serve the run with `fedunseen serve`",
            "export-texts",
        )
    free_folder(folder)
    program, module = _traced(run.model)
    with whole_folder(folder) as partial:
        program.save(partial / "model.onnx")
        _compare(partial / "model.onnx", module, run.model)
        run.space.save(partial / "classes.csv")
        about = {
            "experiment": run.experiment.name,
            "method": run.method_name,
            "benchmark": run.experiment.data.name,
            "encoder": run.experiment.encoder.name,
            "sample_shape": list(run.manifest["input_shape"]),
            "attributes": list(run.space.attribute_names),
            "undescribed": {
                run.space.names[c]: run.space.semantics[c].tolist() for c in run.space.undescribed
            },
            "inputs": _INPUTS,
            "output": "scores",
            **_columns(run),
        }
        write_json(partial / "model.json", about)
        script = files("fedunseen.pages").joinpath("portable_predict.py.txt").read_text("utf-8")
        write_text(partial / "predict.py", script)
        write_text(partial / "README.md", card)
        names = ["model.onnx", "model.json", "classes.csv", "predict.py", "README.md"]
        if "columns" in about:
            source = files("fedunseen.data.columns").joinpath("treatment.py").read_text("utf-8")
            write_text(partial / "columns.py", source)
            names.append("columns.py")
    return [folder / name for name in names]


def _columns(run: Run) -> dict[str, Any]:
    """Return how the columns of a table become samples; nothing where samples are no table's."""
    data = run.experiment.data.model_dump(mode="json")
    return {key: data[key] for key in ("columns", "missing") if data.get("columns")}


def _traced(model: Model) -> tuple[Any, _Scores]:
    """Return a model's scores as an ONNX program, and as the module that it was made from."""
    check_onnx("exporting")
    samples = torch.rand(3, *model.sample_shape, generator=torch.Generator().manual_seed(0))
    semantics = torch.from_numpy(model.space.semantics[:5].astype(np.float32))
    inputs = (samples, semantics, torch.zeros(len(semantics)))
    module = _Scores(model)
    try:
        program = onnx_graph(module, inputs, _INPUTS, "scores", ["count", "classes", "classes"])
    except (torch.onnx.OnnxExporterError, RuntimeError, TypeError, ValueError):
        raise ExperimentError(
            f"method.name = {model.method_name!r} has scores that ONNX cannot express: serve the run "
            "with `fedunseen serve`"
        ) from None
    return program, module


def _compare(path: Path, module: _Scores, model: Model) -> None:
    """Refuse a graph that does not score as the model does, on more samples and classes than it was
    made with.
    """
    import onnxruntime

    generator = torch.Generator().manual_seed(1)
    samples = torch.rand(7, *model.sample_shape, generator=generator)
    semantics = torch.from_numpy(model.space.semantics.astype(np.float32))
    seen = torch.zeros(len(semantics))
    seen[torch.from_numpy(model.space.seen)] = 1
    with torch.no_grad():
        expected = module(samples, semantics, seen).numpy()
    inputs = dict(zip(_INPUTS, (samples.numpy(), semantics.numpy(), seen.numpy()), strict=True))
    (scores,) = onnxruntime.InferenceSession(path.read_bytes()).run(None, inputs)
    if np.abs(scores - expected).max() > _SAME * max(np.ptp(expected), 1e-6):
        raise ExperimentError(
            f"method.name = {model.method_name!r} scores otherwise under ONNX: serve the run with "
            "`fedunseen serve`"
        )
