"""Read a table that a stranger sent in a process of its own: ``python -m fedunseen.data.io.apart``.

A crafted file unpacks to what it likes, whatever its headers say. Here it cannot take more than
some memory and time, because the system ends the process that reads it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.deadline import check_deadline, deadline
from fedunseen.core.errors import DataError, FedUnseenError, MissingDependencyError
from fedunseen.data.io.parquet_size import TOO_LARGE
from fedunseen.data.io.tables import Block, Cells, Table, open_table

MOST_BYTES = 2**26
"""Bytes that the cells of a table take at most, as they are handed over."""

MEMORY = 2**29
"""Bytes that the process may take to read it."""

SECONDS = 10
"""Seconds of a processor that the process may take to read it."""

_STATE = Path("/proc/self/statm")  # pages of memory that a process has
_IDLE = 3  # as long may it wait, for each of these seconds
_FLOATS = "floats"  # how the cells of a column are handed over
_DATES = "dates"
_VALUES = "values"


def read_apart(path: Path, most: int) -> tuple[int, Table]:
    """Return how many rows a table has, and the table in memory; it has no cells where there are
    more rows than ``most``.

    Raises:
        DataError: what :func:`~fedunseen.data.io.tables.open_table` and reading raise; code
            ``table-too-large``: it takes too much memory or time.
        MissingDependencyError: it needs the extra ``arrow``.
        LateError: no one waits for the answer any more.
    """
    if not _STATE.is_file():
        raise DataError(
            f"{path}: what a Parquet or Arrow file unpacks to is bounded on Linux alone: send a "
            "CSV file",
            "not-linux",
        )
    too_large = DataError(
        f"{path} takes too much memory or time to read: send fewer rows, or a CSV file", TOO_LARGE
    )
    with tempfile.TemporaryFile() as handed:
        if not _ran([str(path), str(most)], handed):
            check_deadline()
            raise too_large
        handed.seek(0)
        with np.load(handed, allow_pickle=False) as arrays:
            said = json.loads(arrays["said"].tobytes())
            if "refused" in said:
                words, code = said["refused"]
                if code == TOO_LARGE:
                    raise too_large
                raise (MissingDependencyError(words) if code is None else DataError(words, code))
            return int(said["rows"]), _table(path, said, arrays)


def _ran(words: Sequence[str], handed: IO[bytes]) -> bool:
    """Say whether the process ended well, in time."""
    command = [sys.executable, "-P", "-m", __name__, *words]
    end = min(deadline(), time.monotonic() + _IDLE * SECONDS)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=handed, stderr=subprocess.DEVNULL
    ) as process:
        try:
            return process.wait(max(0.0, end - time.monotonic())) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            process.kill()


def _table(path: Path, said: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Table:
    """Return what was handed over."""
    cells: dict[str, Cells] = {}
    columns = {kind: iter(arrays[kind]) for kind in (_FLOATS, _DATES, _VALUES)}
    for name, (kind, distinct) in said["columns"].items():
        column = next(columns[kind])
        if kind == _VALUES:
            cells[name] = Cells(distinct, column)
        else:
            cells[name] = Cells.of_array(column.view("M8[us]") if kind == _DATES else column)

    def blocks(wanted: Sequence[str]) -> Iterator[Block]:
        yield Block({name: cells[name] for name in wanted}, said["rows"], "row {}".format)

    return Table(str(path), tuple(said["names"]), blocks, said["other"])


def main(path: str, most: str) -> None:
    """Write the arrays of a table to the standard output, with no more rows than ``most``."""
    _bound()
    arrays: dict[str, Any] = {}
    try:
        said = _read(open_table(Path(path)), int(most), arrays)
    except FedUnseenError as error:
        missing = isinstance(error, MissingDependencyError)
        said = {"refused": [str(error), None if missing else error.code]}
    text = np.frombuffer(json.dumps(said).encode(), np.uint8)
    np.savez(sys.stdout.buffer, said=text, **arrays)


def _bound() -> None:
    """Bound what this process may take beyond what it has by now."""
    import resource

    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.parquet  # libraries are not what a file takes

    pa.set_memory_pool(pa.system_memory_pool())
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    taken = int(_STATE.read_text().split()[0]) * resource.getpagesize()
    used = time.process_time()
    for kind, bound in (
        (resource.RLIMIT_AS, taken + MEMORY),
        (resource.RLIMIT_CPU, int(used) + 1 + SECONDS),
        (resource.RLIMIT_FSIZE, MOST_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (bound, bound))


def _read(table: Table, most: int, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return what is said of a table beside its arrays, which are put into ``arrays``."""
    rows = sum(block.rows for block in table.blocks(()))
    read = [name for name in table.names if name not in table.other] if rows <= most else []
    blocks = list(table.blocks(read)) if read else []
    told = {}
    kept: dict[str, list[NDArray[Any]]] = {_FLOATS: [], _DATES: [], _VALUES: []}
    for name in read:
        kind, distinct, column = _column([block.cells[name] for block in blocks])
        told[name] = kind, distinct
        kept[kind].append(column)
    for kind, columns in kept.items():
        arrays[kind] = np.array(columns)
    return {"names": table.names, "other": dict(table.other), "rows": rows, "columns": told}


def _column(blocks: Sequence[Cells]) -> tuple[str, list[Any], NDArray[Any]]:
    """Return how the cells of a column are handed over, its distinct values, and its array."""
    first = blocks[0].distinct
    if isinstance(first, np.ndarray):
        whole = np.concatenate([np.asarray(block.distinct)[block.places] for block in blocks])
        if first.dtype.kind == "M":
            return _DATES, [], whole.astype("M8[us]").view(np.int64)
        return _FLOATS, [], whole.astype(np.float64)
    distinct: list[Any] = []
    places = []
    for block in blocks:
        places.append(block.places + len(distinct))
        distinct += block.distinct
    return _VALUES, distinct, np.concatenate(places)


if __name__ == "__main__":
    main(*sys.argv[1:])
