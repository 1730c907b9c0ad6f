"""Where a finished run finds the weights of its encoder: by their content, wherever they lie now.

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

from fedunseen.core.errors import DataError, FedUnseenError
from fedunseen.core.files import cache_folder, replacing
from fedunseen.encoders import Encoder
from fedunseen.encoders.cache import content_digest, usable

__all__ = ["CARRIED", "carry", "found", "remembered"]

CARRIED = "encoder"
"""The folder of a run directory that holds the weights."""

_MB = 10**6


def remembered(encoder: Encoder | None) -> dict[str, Any]:
    """Return what a manifest says of an encoder's weights, and remember in the cache folder where they are.

    Args:
        encoder: of the run, None if there is none.

    Returns:
        ``{"encoder": {"setting": ..., "digest": ..., "files": {name: bytes}}}``; nothing if no file is needed.
    """
    files = encoder.files() if encoder is not None else []
    if encoder is None or not files:
        return {}
    digest = content_digest(files)
    shelf = _shelf(digest)
    with usable(shelf):
        shelf.mkdir(parents=True, exist_ok=True)
    for path in files:
        with suppress(OSError):  # a place that cannot hold links: then it is not found again, and asked for
            _link(path.resolve(), shelf / path.name)
    return {
        "encoder": {
            "setting": encoder.setting,
            "digest": digest,
            "files": {path.name: path.stat().st_size for path in files},
        }
    }


def carry(encoder: Encoder | None, run: Path) -> None:
    """Copy an encoder's weights into a run directory if they are small enough, and not part of every installation."""
    if encoder is None or encoder.installed:
        return
    files = encoder.files()
    if not files or sum(path.stat().st_size for path in files) > encoder.settings.carry * _MB:  # type: ignore[attr-defined]
        return
    for path in files:
        with replacing(run / CARRIED / path.name) as temporary:
            shutil.copyfile(path, temporary)


def found(
    entry: Mapping[str, Any] | None, run: Path, stated: Path | None, own: list[Path], given: Path | None = None
) -> dict[str, Any]:
    """Return the settings that have to be replaced so that a run's encoder has the weights that it had.

    Args:
        entry: what :func:`remembered` returned under ``encoder``; None for runs that need no file.
        run: the run directory.
        stated: the file or folder that the experiment names, None if it names none.
        own: the files that the experiment's settings lead to on this machine; none if they lead nowhere.
        given: where the user says that the weights are, a file or a folder.

    Returns:
        ``{"encoder.weights": path}``, or nothing where the settings are right as they are.

    Raises:
        DataError: the weights are nowhere, or those that were given or are there are others.
    """
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
    """Return the files that an encoder would read; none if it cannot be made here.

    Args:
        make: makes the encoder, or None where there is none.
    """
    try:
        encoder = make()
    except FedUnseenError:
        return []
    return [] if encoder is None else [path for path in encoder.files() if path.is_file()]


def _places(run: Path, digest: str, names: list[str]) -> Iterator[Path]:
    """Yield where weights may lie, a file or a folder of several: with the run, then where the cache remembers them."""
    for folder in (run / CARRIED, _shelf(digest)):
        yield folder / names[0] if len(names) == 1 else folder


def _is(place: Path, names: list[str], digest: str) -> bool:
    files = [place] if len(names) == 1 and not place.is_dir() else [place / name for name in names]
    return all(path.is_file() for path in files) and content_digest(files) == digest


def _shelf(digest: str) -> Path:
    return cache_folder() / "encoders" / digest


def _link(target: Path, link: Path) -> None:
    """Make a symbolic link, in the place of an earlier one."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    temporary.symlink_to(target)
    os.replace(temporary, link)


def _told(entry: Mapping[str, Any]) -> str:
    size = sum(entry["files"].values()) / _MB
    return f"{', '.join(entry['files'])}, {size:.1f} MB, SHA-256 {entry['digest'][:12]}"
