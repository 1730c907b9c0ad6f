"""Where a finished run finds the weights of its encoders, of pictures and texts: by their content, wherever they lie.

The manifest keeps the SHA-256 of the files that a run's features were made with. Small ones travel in the run
directory (``encoder.carry``); all are remembered in the cache folder of the machine that ran. Features of other weights
mean something else, so that weights which have changed are never used in place of those that a run had.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedunseen.core.array_cache import content_digest, usable
from fedunseen.core.errors import DataError, FedUnseenError
from fedunseen.core.files import cache_folder, replacing
from fedunseen.data import DataSettings
from fedunseen.encoders import Encoder, EncoderSettings
from fedunseen.encoders.backbone import CARRIED_MB

CARRIED = "encoder"
"""The folder of a run directory that holds the weights."""
CARRIED_TEXT = "text-encoder"
"""The folder of a run directory that holds the text encoder."""

_MB = 10**6


def remembered(encoder: Encoder | None) -> dict[str, Any]:
    """Return what a manifest says of an encoder's weights, and keep in the cache folder where they are."""
    files = encoder.files() if encoder is not None else []
    if encoder is None or not files:
        return {}
    return {"encoder": {"setting": encoder.setting, **_keep(files)}}


def carry(encoder: Encoder | None, run: Path) -> None:
    """Copy an encoder's weights into a run directory if they are small enough, and not part of every installation."""
    if encoder is not None and not encoder.installed:
        _copy(encoder.files(), run / CARRIED, encoder.settings)


def remembered_text(settings: DataSettings) -> dict[str, Any]:
    """Return what a manifest says of the text encoder that described the classes, and keep where it is."""
    files = _text_files(settings)
    return {"text_encoder": _keep(files)} if files else {}


def carry_text(settings: DataSettings, encoder: EncoderSettings, run: Path) -> None:
    """Copy the text encoder into a run directory if it is small enough; ``encoder.carry`` says what small is."""
    _copy(_text_files(settings), run / CARRIED_TEXT, encoder)


def found_text(entry: Mapping[str, Any] | None, run: Path, settings: DataSettings) -> DataSettings:
    """Return the settings of data with a run's text encoder where it lies now."""
    stated = getattr(settings, "text_encoder", None)
    if entry is None or stated is None:
        return settings
    own, names = _text_files(settings), list(entry["files"])
    if own and content_digest(own) == entry["digest"]:
        return settings
    for place in (run / CARRIED_TEXT, _shelf(entry["digest"])):
        if _is(place, names, entry["digest"]):
            from fedunseen.encoders.text import text_encoder_at

            return settings.model_copy(update={"text_encoder": text_encoder_at(place, stated)})
    return settings  # what then is wrong with it is said where it is used


def _text_files(settings: DataSettings) -> list[Path]:
    """Return the files of the text encoder that are on this machine; none of a package, or where one is missing."""
    encoder = getattr(settings, "text_encoder", None)
    if encoder is None or encoder == "minilm":
        return []
    from fedunseen.encoders.text import text_files  # takes seconds to import

    try:
        files = text_files(encoder)
    except FedUnseenError:
        return []
    return files if all(path.is_file() for path in files) else []


def _copy(files: list[Path], folder: Path, settings: EncoderSettings) -> None:
    """Copy files of which there are some, and which are small enough."""
    if sum(path.stat().st_size for path in files) <= getattr(settings, "carry", CARRIED_MB) * _MB:
        for path in files:
            with replacing(folder / path.name) as temporary:
                shutil.copyfile(path, temporary)


def found(
    entry: Mapping[str, Any] | None, run: Path, stated: Path | None, own: list[Path], given: Path | None = None
) -> dict[str, Any]:
    """Return the settings that have to be replaced so that a run's encoder has the weights that it had."""
    if entry is None:
        if given is not None:
            raise DataError(f"--encoder {given}: this run needs no weights of an encoder: leave it out")
        return {}
    setting, names = str(entry["setting"]), list(entry["files"])
    if given is not None:
        if not _is(given, names, entry["digest"]):
            raise DataError(
                f"--encoder {given} holds other weights than those that this run had ({_told(entry)}): its features "
                "would mean something else"
            )
        return {setting: str(given)}
    if own and content_digest(own) == entry["digest"]:
        return {}
    for place in _places(run, entry["digest"], names):
        if _is(place, names, entry["digest"]):
            return {setting: str(place)}
    if own:
        raise DataError(
            f"{stated or own[0]} has changed since this run, which had other weights ({_told(entry)}): give those with "
            f"--encoder"
        )
    raise DataError(
        f"{run}: the weights of its encoder ({_told(entry)}) are not on this machine: give them with --encoder"
    )


def files_of(make: Any) -> list[Path]:
    """Return the files that an encoder would read; none if it cannot be made here."""
    try:
        encoder = make()
    except FedUnseenError:
        return []
    return [] if encoder is None else [path for path in encoder.files() if path.is_file()]


def _places(run: Path, digest: str, names: list[str]) -> Iterator[Path]:
    """Yield where weights may lie, a file or a folder of several: with the run, then where the cache keeps them."""
    for folder in (run / CARRIED, _shelf(digest)):
        yield folder / names[0] if len(names) == 1 else folder


def _is(place: Path, names: list[str], digest: str) -> bool:
    files = [place] if len(names) == 1 and not place.is_dir() else [place / name for name in names]
    return all(path.is_file() for path in files) and content_digest(files) == digest


def _keep(files: list[Path]) -> dict[str, Any]:
    """Keep in the cache folder where files are, and return what a manifest says of them."""
    digest = content_digest(files)
    shelf = _shelf(digest)
    with usable(shelf):
        shelf.mkdir(parents=True, exist_ok=True)
    for path in files:
        with suppress(OSError):  # a place that cannot hold links: then it is not found again, and asked for
            _link(path.resolve(), shelf / path.name)
    return {"digest": digest, "files": {path.name: path.stat().st_size for path in files}}


def _shelf(digest: str) -> Path:
    return cache_folder() / "encoders" / digest


def _link(target: Path, link: Path) -> None:
    """Make a symbolic link, instead of an earlier one."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    temporary.symlink_to(target)
    os.replace(temporary, link)


def _told(entry: Mapping[str, Any]) -> str:
    size = sum(entry["files"].values()) / _MB
    return f"{', '.join(entry['files'])}, {size:.1f} MB, SHA-256 {entry['digest'][:12]}"
