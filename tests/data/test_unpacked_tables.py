"""What a table unpacks to in a process of its own, and texts that many rows share."""

import struct
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest

from fedunseen.core.deadline import LateError, due
from fedunseen.core.errors import DataError
from fedunseen.data.io import apart
from fedunseen.data.io.apart import read_apart
from fedunseen.data.io.tables import open_table

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 3000
TEXTS = [None if i % 17 == 0 else f"text {i // 3} {'y' * (i % 50)}" for i in range(ROWS)]
PORTS = [None if i % 13 == 0 else "abc"[i % 3] for i in range(ROWS)]
LONG = "x" * 1_000_000


@pytest.fixture(scope="module")
def table():
    return pa.table(
        {
            "text": pa.array(TEXTS),
            "large": pa.array(TEXTS, pa.large_string()),
            "view": pa.array(TEXTS, pa.string_view()),
            "port": pa.array(PORTS).dictionary_encode(),
            "number": np.random.default_rng(0).normal(size=ROWS),
        }
    )


def write_arrow(path, table, compression, stream=False):
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with new(str(path), table.schema, options=options) as writer:
        writer.write_table(table, 1000)
    return path


def cells(path, names):
    found = {name: [] for name in names}
    for block in open_table(path).blocks(names):
        for name, (distinct, places) in block.cells.items():
            found[name] += [list(distinct)[place] for place in places]
    return found


def viewed(body, rows):
    """Return a column whose rows all show the same bytes."""
    view = struct.pack("<i4sii", len(body), body[:4], 0, 0)
    parts = [None, pa.py_buffer(view * rows), pa.py_buffer(body)]
    return pa.Array.from_buffers(pa.string_view(), rows, parts)


def apart_cells(path):
    """Return the cells of a table that was read by another process."""
    rows, table = read_apart(path, ROWS)
    (block,) = table.blocks(table.names)
    assert block.rows == rows == ROWS
    return {
        name: [list(distinct)[place] for place in places]
        for name, (distinct, places) in block.cells.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("form", ["a.parquet", "a.arrow"])
def test_another_process_reads_what_this_one_reads(tmp_path, table, form):
    days = np.arange(ROWS).astype("M8[D]")
    more = {"day": pa.array(days), "kept": pa.array(days).dictionary_encode()}
    more |= {"right": pa.array([i % 3 > 1 if i % 7 else None for i in range(ROWS)])}
    whole = pa.table({**dict(zip(table.column_names, table.columns, strict=True)), **more})
    path = tmp_path / form
    if form == "a.parquet":
        pq.write_table(whole, path, row_group_size=1000)
    else:
        write_arrow(path, whole, "zstd")
    assert apart_cells(path) == cells(path, whole.column_names)
    assert open_table(path).names == read_apart(path, 1)[1].names
    assert read_apart(path, 1)[0] == ROWS


def test_what_the_other_process_refuses_is_said_here(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(DataError, match=r"a\.parquet is damaged") as refused:
        read_apart(path, 1)
    assert refused.value.code == "damaged-table"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["a.parquet", "a.arrow"])
def test_a_damaged_file_is_read_or_refused(tmp_path, table, form):
    path = tmp_path / form
    few = table.slice(0, 20)
    if form == "a.parquet":
        pq.write_table(few, path)
    else:
        write_arrow(path, few, "lz4")
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 8):
        changed = bytearray(whole)
        changed[place] ^= int(rng.integers(1, 256))
        for content in (bytes(changed), whole[:place]):
            path.write_bytes(content)
            with suppress(DataError):
                assert read_apart(path, 100)[0] >= 0


def long_texts(path, rows):
    """Write a small file whose rows are a million letters each, none of them shared."""
    texts = pa.table({"a": [f"{i} {LONG}" for i in range(rows)]})
    pq.write_table(texts, path, use_dictionary=False, compression="zstd", row_group_size=10)
    return path


@pytest.mark.slow
def test_what_unpacks_to_too_much_is_refused_whatever_its_headers_say(tmp_path):
    assert read_apart(long_texts(tmp_path / "few.parquet", 20), 1000)[0] == 20
    path = long_texts(tmp_path / "many.parquet", 100)  # more than is handed over
    assert path.stat().st_size < 40_000
    with pytest.raises(DataError) as refused:
        read_apart(path, 1000)
    assert refused.value.code == "table-too-large"
    shared = write_arrow(
        tmp_path / "a.arrow", pa.table({"a": viewed(LONG.encode(), 900)}), "zstd"
    )  # each row shows the same bytes
    assert shared.stat().st_size < 2000
    with pytest.raises(DataError) as refused:
        read_apart(shared, 1000)
    assert refused.value.code == "table-too-large"


def test_a_process_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    path = long_texts(tmp_path / "few.parquet", 2)
    with due(0.0), pytest.raises(LateError):
        read_apart(path, 1000)
    monkeypatch.setattr(apart, "SECONDS", 0)
    with pytest.raises(DataError) as refused:
        read_apart(path, 1000)
    assert refused.value.code == "table-too-large"


def test_the_other_process_has_little_memory_and_time():
    program = "; ".join(
        [
            "import resource as r",
            "from fedunseen.data.io import apart",
            "apart._bound()",
            "print(r.getrlimit(r.RLIMIT_CPU)[0], r.getrlimit(r.RLIMIT_FSIZE)[0])",
            "len(bytearray(2**28))",
            "print('quarter')",
            "bytearray(2**29)",
        ]
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    seconds, size, quarter = ended.stdout.split()
    assert quarter == "quarter"
    assert 0 < int(seconds) <= apart.SECONDS + 60
    assert int(size) == apart.MOST_BYTES
    assert ended.stderr.splitlines()[-1] == "MemoryError"


def test_a_text_that_all_rows_of_a_parquet_file_have_is_kept_once(tmp_path):
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), [LONG])
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": column}), path, store_schema=False, compression="zstd")
    assert path.stat().st_size < 2000
    pool, usual = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        (block,) = open_table(path).blocks(["a"])
    finally:
        pa.set_memory_pool(usual)
    assert block.rows == 5000
    assert block.cells["a"].distinct == [LONG, None]
    assert len(LONG) < pool.max_memory() < 20 * len(LONG)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"use_dictionary": False},
        {"use_dictionary": False, "column_encoding": {
            "text": "DELTA_BYTE_ARRAY", "large": "DELTA_LENGTH_BYTE_ARRAY"}},
        {"store_schema": False, "row_group_size": 1000},
        {"dictionary_pagesize_limit": 1000},
    ],
)  # fmt: skip
def test_texts_are_the_same_in_each_encoding_of_parquet(tmp_path, table, how):
    pq.write_table(table, tmp_path / "a.parquet", **how)
    assert cells(tmp_path / "a.parquet", table.column_names) == table.to_pydict()
