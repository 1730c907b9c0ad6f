"""Tensors of a run directory that another has written: each may be missing, or of any shape or
type.
"""

import itertools
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from fedunseen import Experiment, load_run, run
from fedunseen.cli.main import app
from fedunseen.core.errors import FedUnseenError
from fedunseen.core.model_file import DAMAGED
from fedunseen.pages.portable import export_model
from fedunseen.pages.serve.model import Recognizer

FEW = {
    "data.train_per_class": 6, "data.test_per_class": 4, "partition.clients": 3,
    "evaluation.selection": "last", "run.device": "cpu",
}  # fmt: skip
METHODS = ("gaussian", "ridge", "fedzsl")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a function that gives a copy of the run directory of a method."""
    whole = tmp_path_factory.mktemp("whole")

    def of(method, out):
        settings = {**FEW, "method.name": method, "data.features": ["standard"]}
        if method == "fedzsl":
            settings |= {"strategy.rounds": 1, "method.kl": 0.0}
        preset = "digit-pairs" if method == "fedzsl" else "digit-pairs-gaussian"
        if not (whole / method).exists():
            run(Experiment.load(preset, settings), whole / method)
        return shutil.copytree(whole / method, out)

    return of


def of_other_form(value):
    """Yield other tensors in place of one; None: it is missing."""
    yield None
    yield torch.ones((), dtype=value.dtype)
    yield torch.zeros(0, dtype=value.dtype)
    yield value[None].clone()
    if value.ndim:
        yield value[:-1].clone()
        yield torch.cat([value, value[:1]])
    for kind in (torch.bfloat16, torch.int64, torch.bool, torch.float32, torch.complex64):
        yield value.to(kind)
    if value.is_floating_point():
        yield torch.full_like(value, torch.nan)
        yield -value.abs() - 1


def uses(folder, width):
    """Yield what a reader does with the run, each from its files."""
    samples = np.random.default_rng(0).random((15, width), dtype=np.float32)
    description = load_run(folder).space.semantics[0].tolist()
    yield lambda: load_run(folder).predict(samples)
    yield lambda: load_run(folder).explain(samples)
    yield lambda: load_run(folder).predict(samples, {"new": description})
    yield lambda: load_run(folder).learn({"new": description}, {"new": samples})
    yield lambda: load_run(folder).adapt(samples)
    yield lambda: load_run(folder).model.predict_set(samples)
    yield lambda: load_run(folder).model.unfamiliar(samples)
    yield lambda: Recognizer(load_run(folder)).warm()


def content_of(path):
    """Return the tensors of a model's file, and its table, without which they are none."""
    with safe_open(path, "pt") as file:
        return load_file(path), file.metadata()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("every", [71, pytest.param(1, marks=pytest.mark.slow)])
def test_a_tensor_of_any_form_is_read_or_refused_in_one_sentence(method, every, runs, tmp_path):
    """Of all pairs of a form and a use, every so many: 71 and the 8 uses have no factor in common."""
    folder = runs(method, tmp_path / "run")
    width = json.loads((folder / "manifest.json").read_text())["input_shape"][0]
    path = folder / "model.safetensors"
    whole, table = content_of(path)
    lines = set()
    pair = itertools.count()
    for name, value in whole.items():
        for other in of_other_form(value):
            changed = {key: kept for key, kept in whole.items() if key != name}
            save_file(changed if other is None else {**changed, name: other}, path, table)
            for use in uses(folder, width):
                if next(pair) % every:
                    continue
                try:
                    use()
                except FedUnseenError as error:
                    lines.add(str(error).count("\n"))
                except Exception as error:
                    form = other if other is None else (other.dtype, other.shape)
                    raise AssertionError(f"{name}, {form}: {error!r}") from error
    assert lines == {0}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        *(f"params/{name}" for name in ("bias", "centre", "weight", "count")),
        *(f"scaling/{name}" for name in ("quantize.offset", "quantize.step", "0.mean")),
    ],
)
@pytest.mark.parametrize("missing", [True, False])
def test_each_command_refuses_a_damaged_tensor(name, missing, runs, tmp_path):
    folder = runs("gaussian", tmp_path / "run")
    path = folder / "model.safetensors"
    tensors, table = content_of(path)
    tensors[name] = torch.ones(3, dtype=tensors[name].dtype)
    if missing:
        del tensors[name]
    save_file(tensors, path, table)
    np.save(tmp_path / "samples.npy", np.zeros((2, 128), np.float32))
    for use in (lambda: Recognizer(load_run(folder)), lambda: export_model(
        load_run(folder), tmp_path / "exported", "")):  # fmt: skip
        with pytest.raises(FedUnseenError, match=r"\.safetensors") as refused:
            use()
        assert refused.value.code == DAMAGED
    for more in ([], ["--why"]):
        words = ["predict", str(folder), str(tmp_path / "samples.npy"), *more]
        result = CliRunner().invoke(app, words)
        assert isinstance(result.exception, FedUnseenError), result.output
        assert result.exception.code == DAMAGED
