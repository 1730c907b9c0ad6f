"""Writing files so that they are whole or absent: beside their place, flushed to disk, then moved
into it.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedunseen.core.errors import DataError, RunDirectoryError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


_SHOWN = 40  # characters of a key in a message

_TENSOR_TYPES = ("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")
_TENSOR_HEADER = 100_000_000  # bytes of names, types and shapes that safetensors reads at most

DEEPEST = 64
"""Levels of tables and lists within each other that an experiment or a manifest may have."""


def cache_folder() -> Path:
    """Return where results that take long are kept between runs: ``$FEDUNSEEN_CACHE``, or the
    user's cache folder.
    """
    if folder := os.environ.get("FEDUNSEEN_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedunseen"


def make_private(folder: Path) -> None:
    """Make a folder and those that it lies in, where they are missing, for this user alone."""
    if not folder.exists():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def existing_folder(folder: Path, remedy: str) -> Path:
    """Return a folder of the user's that is there."""
    if not os.path.isdir(
        folder
    ):  # which is False, not an error, within a folder without permission
        if os.path.exists(folder):
            raise DataError(f"{folder} is a file, where a folder is needed: {remedy}")
        raise DataError(f"the folder {folder} is missing: {remedy}")
    return folder


def is_occupied(path: Path, ours: Callable[[str], bool] = lambda name: False) -> bool:
    """Say whether a file is at ``path``, or a folder that holds more than files whose names are
    ``ours``.
    """
    if path.is_dir():
        return not all(ours(child.name) for child in path.iterdir())
    return os.path.lexists(path)


def free_folder(folder: str | Path, remedy: str = "name another with --out") -> Path:
    """Return the path of a folder that may be written: a new or an empty one."""
    # a folder that is not there yet with .. behind it is the one above
    if is_occupied(Path(folder)) or is_occupied(Path(os.path.realpath(folder))):
        raise RunDirectoryError(f"{folder} is not an empty folder: {remedy}")
    return Path(folder)


def check_ordinary(path: Path) -> None:
    """Refuse pipes, sockets and devices, because reading one may never end; a missing file
    passes.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # a missing file, a loop of links: opening it reports that
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(f"{path} is a pipe or a device, not a file: put a file in its place")


class RepeatedKeyError(ValueError):
    """A JSON table names a key twice: of the two values, other programs may read another one."""


def check_unlinked(folder: Path, without: Collection[str] = ()) -> None:
    """Refuse a run directory, or a sweep's, with links, pipes or devices in it, except files and
    folders of the names ``without``.

    A run directory may be a stranger's. Through a link, writing in it or copying it would reach
    the user's other files.
    """
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in without]
        for path in (Path(place, name) for name in (*folders, *names) if name not in without):
            with suppress(FileNotFoundError):  # another process may remove its temporary files
                mode = path.lstat().st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    raise RunDirectoryError(
                        f"{path} is a link, a pipe or a device, which a run directory must not "
                        "hold: put a file or a folder in its place",
                        "run-link",
                    )


def refuse_link(path: Path) -> None:
    """Refuse a link at a place that a command has chosen: somebody else has made it."""
    if path.is_symlink():
        raise DataError(f"{path} is a link: remove it, or choose another --out", "run-link")


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        RepeatedKeyError: a table, at any depth, names a key twice.
        ValueError: it is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_table)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise RepeatedKeyError(f"it names {key[:_SHOWN]!a} twice")
    return table


class TensorHeaderError(ValueError):
    """Content of safetensors has a header that is not to be read."""


def check_tensor_header(source: bytes | Path) -> None:
    """Refuse safetensors content whose header the library may read otherwise than we do: of what is
    named twice it reads the last, and a table may be a list. Refuse numbers of a type that the
    package never writes, too: torch or NumPy may not know it.

    The library makes all other checks.

    Raises:
        TensorHeaderError: it does.
    """
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        text = file.read(min(int.from_bytes(file.read(8), "little"), _TENSOR_HEADER))
    try:
        header = parse_json(text.decode())
    except RepeatedKeyError as error:
        raise TensorHeaderError(str(error)) from None
    except (ValueError, RecursionError):
        raise TensorHeaderError("its header is damaged") from None
    if not isinstance(header, dict):
        raise TensorHeaderError("its header is damaged")
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise TensorHeaderError("its header is damaged")
        if (kind := entry["dtype"]) not in _TENSOR_TYPES:
            raise TensorHeaderError(f"it has numbers of the type {str(kind)[:_SHOWN]!a}")


def depth(value: Any) -> int:
    """Return how many tables and lists lie within each other, 0 for a plain value; without
    recursion.

    Example:
        >>> depth({"a": [1, {"b": 2}]})
        3
    """
    level = 0
    inner = [value]
    while inner := [item for item in inner if isinstance(item, (dict, list))]:
        level += 1
        inner = [item for box in inner for item in (box.values() if isinstance(box, dict) else box)]
    return level


@contextmanager
def holding(folder: Path, name: str = ".lock") -> Iterator[bool]:
    """Lock a file of a folder against other processes; yield False, without the lock, if another
    process has it.
    """
    from filelock import FileLock, Timeout  # here, because most commands lock nothing

    try:
        lock = FileLock(folder / name).acquire(blocking=False)
    except Timeout:
        yield False
        return
    with lock:
        yield True


@contextmanager
def replacing(path: Path, follow: bool = False, private: bool = False) -> Iterator[Path]:
    """Yield a temporary path; the file written there replaces ``path`` if nothing failed.

    A link is replaced, not what it names: the folder may be a stranger's, and the link lead to the
    user's other files. ``follow`` is for a path that the user has named: there what it links to is
    replaced, and a pipe, a device or this process's own output, which cannot be, receives the
    content. A ``private`` file, as all of the cache folder, is read by this user alone.
    """
    target = Path(os.path.realpath(path)) if follow else path
    receiver = _receiver(path) if follow else None
    if receiver is None and private:
        make_private(target.parent)
    elif receiver is None:
        target.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory()
        if receiver is not None
        else nullcontext(target.parent) as folder
    ):
        temporary = Path(folder, f".{target.name}.{os.getpid()}.tmp")
        try:
            temporary.unlink(missing_ok=True)  # a link of that name would be written through
            if private:
                temporary.touch(0o600, exist_ok=False)
            yield temporary
            if receiver is not None:
                with open(receiver, "wb", closefd=receiver is path) as stream:
                    stream.write(temporary.read_bytes())
                return
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except OSError as error:
            if error.errno and error.filename is None:  # a full disk names no file
                error.filename = str(path)
            raise
        finally:
            temporary.unlink(missing_ok=True)


def _receiver(path: Path) -> Path | int | None:
    """Return what the content of ``path`` must be written to, where replacing it would lose
    something; else None.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    for number in (1, 2):  # opened again, a file that others write too would lose what it holds
        with suppress(OSError):
            if os.path.samestat(status, os.fstat(number)):
                return number
    return None if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) else path


@contextmanager
def whole_folder(
    folder: Path, like: Path | None = None, without: tuple[str, ...] = ()
) -> Iterator[Path]:
    """Yield a temporary folder beside ``folder``, a new or an empty one; it takes its place if
    nothing failed.

    It starts as a copy of the run directory ``like``, where that is given, except files and folders
    of the names ``without``.

    Raises:
        RunDirectoryError: ``like`` holds links, pipes or devices.
    """
    if like is not None:
        check_unlinked(like, without)
    temporary = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        if like is None:
            temporary.mkdir(parents=True)
        else:
            ignored = shutil.ignore_patterns(*without)
            shutil.copytree(like, temporary, symlinks=True, ignore=ignored)
        yield temporary
        if folder.exists():
            folder.rmdir()
        temporary.rename(folder)
    except OSError as error:
        if error.errno:
            error.filename = str(error.filename or folder).replace(str(temporary), str(folder))
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str, follow: bool = False, private: bool = False) -> None:
    """Write a text file whole; see :func:`replacing`.

    Names of files may hold bytes that are no text: each becomes an escape.
    """
    with replacing(path, follow, private) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, value: Any, private: bool = False) -> None:
    """Write a JSON file whole."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_text(path, text, private=private)


def write_tensors(
    path: Path,
    tensors: Mapping[str, NDArray[Any]] | Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    follow: bool = False,
    private: bool = False,
) -> None:
    """Write a safetensors file whole, from NumPy arrays or torch tensors; see
    :func:`replacing`.
    """
    import numpy as np  # here, because who writes a text does not wait for it
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    apart: dict[str, torch.Tensor] = {}
    places: set[int] = set()
    for name, value in tensors.items():
        if isinstance(value, torch.Tensor):
            kept = value.detach().cpu().contiguous()
            place = kept.untyped_storage().data_ptr()
            # A copy, because safetensors refuses two names for one tensor (a server state that
            # keeps the parameters, say); a copy of all would need the memory twice.
            apart[name] = kept.clone() if place in places else kept
            places.add(place)
        else:
            apart[name] = torch.from_numpy(np.array(value, order="C"))
    with replacing(path, follow, private) as temporary:
        # safetensors moves a file of its own here, which only the owner may read: restore the usual
        # rights.
        temporary.touch()
        rights = temporary.stat().st_mode
        try:
            save_file(apart, temporary, dict(metadata or {}))
        except SafetensorError as error:
            raise OSError(f"{path} cannot be written: {error}") from None
        temporary.chmod(rights)
