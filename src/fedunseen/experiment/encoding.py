"""From a benchmark's samples to what a method works on, and where a finished run finds the weights
for it.

Features are made once by a frozen encoder, or by a backbone inside the model. The manifest keeps
the SHA-256 of the files that a run's features were made with. Small ones travel in the run
directory; others are where they were, or where the user says. Features of other
weights mean something else, so weights that have changed are never used in place of those that a
run had.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.array_cache import content_digest
from fedunseen.core.errors import DataError, FedUnseenError
from fedunseen.core.files import replacing
from fedunseen.core.registry import find
from fedunseen.data import Benchmark, DataSettings
from fedunseen.encoders import backbone
from fedunseen.encoders.backbone import CARRIED_MB, Backbone, Encoder, EncoderSettings
from fedunseen.encoders.hub import revision_of
from fedunseen.experiment.rules import EncoderFacts, check
from fedunseen.experiment.schema import Experiment


def make_encoder(
    experiment: Experiment, image_shape: Sequence[int] | None, kind: str = "images"
) -> Encoder | None:
    """Return the encoder that the experiment names, None for ``none``."""
    facts = EncoderFacts(experiment, kind, image_shape)
    check(facts)
    if facts.encoder is None or image_shape is None:
        return None
    shape: Any = (1, *image_shape) if len(image_shape) == 2 else tuple(image_shape)
    return facts.encoder(experiment.encoder, shape, facts.method.takes)


def encode(experiment: Experiment, benchmark: Benchmark) -> Benchmark:
    """Return the benchmark with its images replaced by the features of a frozen encoder; otherwise
    as it is.
    """
    kind = benchmark.kind
    shape = benchmark.features.shape[1:] if kind == "sequences" else benchmark.image_shape
    encoder = make_encoder(experiment, shape, kind)
    if encoder is None or encoder.trained:
        return benchmark
    images = benchmark.images()
    assert images is not None  # make_encoder has seen their shape
    return replace(benchmark, features=encoder.encode(images), image_shape=None, pictures=images)


def make_backbone(
    experiment: Experiment, input_shape: Sequence[int], image_shape: Sequence[int] | None
) -> Backbone:
    """Return what turns a sample, as the benchmark gives it, into the features that the method
    takes.
    """
    if len(input_shape) == 2:
        encoder = make_encoder(experiment, input_shape, "sequences")
    else:
        kind = "vectors" if len(input_shape) == 1 else "images"
        encoder = make_encoder(experiment, image_shape, kind) if image_shape is not None else None
    return backbone.make_backbone(
        encoder, input_shape, find("method", experiment.method.name).takes
    )


def as_images(rows: NDArray[Any], image_shape: Sequence[int]) -> NDArray[Any]:
    """View samples as images (n, channels, height, width)."""
    shape = (1, *image_shape) if len(image_shape) == 2 else tuple(image_shape)
    return np.asarray(rows).reshape(-1, *shape)


_FOLDERS = {
    "encoder": "encoder",
    "text_encoder": "text-encoder",
}  # of a run directory, by the manifest's key
_MB = 10**6


def record_weights(encoder: Encoder | None, settings: DataSettings) -> dict[str, Any]:
    """Return what a manifest says of encoders' weights.

    ``{"encoder": {"setting": ..., "digest": ..., "files": {name: bytes}}, "text_encoder": ...}``,
    without an entry that needs no file; of a hub's weights with the commit (``revision``).
    """
    entries = {}
    if encoder is not None and (files := encoder.files()):
        entries["encoder"] = {"setting": encoder.setting, **_content(files)}
    if files := _text_files(settings):
        entries["text_encoder"] = _content(files)
    return entries


def copy_weights(
    encoder: Encoder | None, data: DataSettings, settings: EncoderSettings, run: Path
) -> None:
    """Copy weights into a run directory that are small enough, and that no extra of this package
    brings.
    """
    files = [] if encoder is None or encoder.installed else encoder.files()
    for folder, paths in zip(_FOLDERS.values(), (files, _text_files(data)), strict=True):
        if paths and sum(path.stat().st_size for path in paths) <= CARRIED_MB * _MB:
            for name, path in _by_name(paths).items():
                with replacing(run / folder / name) as temporary:
                    shutil.copyfile(path, temporary)


def found_text(entry: Mapping[str, Any] | None, run: Path, settings: DataSettings) -> DataSettings:
    """Return the settings of data with a run's text encoder where it lies now."""
    stated = getattr(settings, "text_encoder", None)
    if entry is None or stated is None:
        return settings
    files = _text_files(settings)
    if files and content_digest(files) == entry["digest"]:
        return settings
    if (place := _carried(run, "text_encoder", entry)) is None:
        return settings  # what then is wrong with it is said where it is used
    from fedunseen.encoders.text import text_encoder_at

    return settings.model_copy(update={"text_encoder": text_encoder_at(place, stated)})


def features_from(name: str, weights: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a model says of the frozen encoder that made its features: its name, and the
    digest of its ``weights`` as a manifest records them, if it has any.
    """
    recorded = weights or {}
    return {"name": name, **{key: recorded[key] for key in ("digest", "files") if key in recorded}}


def locate_weights(
    entry: Mapping[str, Any] | None,
    run: Path,
    make: Callable[[], Encoder | None],
    weights: Path | None,
) -> dict[str, Any]:
    """Return the settings that have to be replaced so that a run's encoder has the weights that it
    had.

    Args:
        entry: what :func:`record_weights` returned under ``encoder``; None for runs that need no
            file.
        run: the run directory.
        make: makes the encoder from the experiment's settings as they are.
        weights: where the user says that the weights are, a file or a folder.
    """
    if entry is None:
        if weights is not None:
            raise DataError(
                f"--encoder {weights}: this run needs no weights of an encoder: leave it out"
            )
        return {}
    setting = str(entry["setting"])
    names = list(entry["files"])
    size = sum(entry["files"].values()) / _MB
    had = f"{', '.join(names)}, {size:.1f} MB, SHA-256 {entry['digest'][:12]}"
    if weights is not None:
        if not _is(weights, names, entry["digest"]):
            raise DataError(
                f"--encoder {weights} holds other weights than those that this run had ({had}): "
                "its features would mean something else"
            )
        return {setting: str(weights)}
    files: list[Path] = []  # that the settings lead to on this machine
    with suppress(FedUnseenError):
        encoder = make()
        files = [path for path in encoder.files() if path.is_file()] if encoder is not None else []
    if files and content_digest(files) == entry["digest"]:
        return {}
    if (place := _carried(run, "encoder", entry)) is not None:
        return {setting: str(place / names[0] if len(names) == 1 else place)}
    if files and (place := _pinned(files[0].parent, entry)) is not None:
        return {setting: str(place)}
    if files:
        raise DataError(
            f"{files[0]} has changed since this run, which had other weights ({had}): give those "
            "with --encoder"
        )
    raise DataError(
        f"{run}: the weights of its encoder ({had}) are not on this machine: give them with "
        "--encoder"
    )


def _text_files(settings: DataSettings) -> list[Path]:
    """Return the files of the text encoder that are on this machine; none of a package, or where
    one is missing.
    """
    encoder = getattr(settings, "text_encoder", None)
    if encoder is None or encoder == "minilm":
        return []
    from fedunseen.encoders.text import text_files  # takes seconds to import

    try:
        files = text_files(encoder)
    except FedUnseenError:
        return []
    return files if all(path.is_file() for path in files) else []


def _carried(run: Path, key: str, entry: Mapping[str, Any]) -> Path | None:
    """Return the folder of a run directory with the weights, if they are there."""
    folder = run / _FOLDERS[key]
    return folder if _is(folder, list(entry["files"]), entry["digest"]) else None


def _pinned(current: Path, entry: Mapping[str, Any]) -> Path | None:
    """Return the commit of a hub's weights that a run had, where this machine has it beside the
    current one.
    """
    place = current.parent / str(entry.get("revision") or "none")
    return place if _is(place, list(entry["files"]), entry["digest"]) else None


def _is(place: Path, names: list[str], digest: str) -> bool:
    files = [place] if len(names) == 1 and not place.is_dir() else [place / name for name in names]
    return all(path.is_file() for path in files) and content_digest(files) == digest


def _root(files: list[Path]) -> Path:
    """Return the folder that files lie in, or in folders of it."""
    return min((path.parent for path in files), key=lambda folder: len(folder.parts))


def _by_name(files: list[Path]) -> dict[str, Path]:
    """Return files by their names in the folder that they share."""
    return {path.relative_to(_root(files)).as_posix(): path for path in files}


def _content(files: list[Path]) -> dict[str, Any]:
    """Return what a manifest says of files."""
    revision = revision_of(_root(files))
    return {
        "digest": content_digest(files),
        "files": {name: path.stat().st_size for name, path in _by_name(files).items()},
        **({"revision": revision} if revision else {}),
    }
