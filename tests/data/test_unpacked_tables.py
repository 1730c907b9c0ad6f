"""What a table says that it unpacks to, and texts that many rows share."""

import struct
from contextlib import suppress

import numpy as np
import pytest

from fedunseen.core.errors import DataError
from fedunseen.data.io.arrow_size import BATCH
from fedunseen.data.io.parquet_pages import pages_of
from fedunseen.data.io.tables import declared_size, open_table

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


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_a_compressed_arrow_file_says_what_it_unpacks_to(tmp_path, table, stream):
    sizes = []
    for compression in (None, "lz4", "zstd"):
        path = write_arrow(tmp_path / "a.arrow", table, compression, stream)
        sizes.append(declared_size(path))
        assert cells(path, table.column_names) == table.to_pydict()
    assert len({size // 1000 for size in sizes}) == 1
    assert table.nbytes < sizes[0] < 2 * table.nbytes + 10 * BATCH
    assert path.stat().st_size < sizes[0] / 4


@pytest.mark.parametrize("stream", [False, True])
def test_a_damaged_arrow_file_says_nothing_or_is_refused(tmp_path, table, stream):
    whole = write_arrow(tmp_path / "a.arrow", table.slice(0, 20), "lz4", stream).read_bytes()
    rng = np.random.default_rng(0)
    path = tmp_path / "b.arrow"
    for place in rng.integers(0, len(whole), 60):
        changed = bytearray(whole)
        changed[place] ^= int(rng.integers(1, 256))
        for content in (bytes(changed), whole[:place]):
            path.write_bytes(content)
            with suppress(DataError):
                assert declared_size(path) >= 0


def test_what_rows_share_is_counted_for_each(tmp_path):
    column = viewed(LONG.encode(), 900)
    path = write_arrow(tmp_path / "a.arrow", pa.table({"a": column}), "zstd")
    assert path.stat().st_size < 2000
    assert declared_size(path) > 900 * len(LONG)
    twice = pa.DictionaryArray.from_arrays(pa.array([0, 1]), viewed(LONG.encode(), 2))
    path = write_arrow(tmp_path / "a.arrow", pa.table({"a": twice}), "zstd")
    assert declared_size(path) > 2 * len(LONG)
    near = pa.table({"a": [LONG] * 10})
    pq.write_table(
        near, tmp_path / "a.parquet", use_dictionary=False, compression="zstd",
        column_encoding={"a": "DELTA_BYTE_ARRAY"},
    )  # fmt: skip
    assert declared_size(tmp_path / "a.parquet") > 10 * len(LONG)


def number(value, width=0):
    """Return a number as Parquet's footer has it, in so many bytes at least."""
    groups = []
    value *= 2
    while value or not groups or len(groups) < width:
        groups.append(value & 127)
        value >>= 7
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])


@pytest.mark.parametrize("compression", ["zstd", "snappy"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_footer_that_states_too_little_is_not_believed(tmp_path, compression, version):
    path = tmp_path / "a.parquet"
    texts = [f"{i} {LONG}" for i in range(5)]
    how = {"use_dictionary": False, "write_statistics": False}
    how |= {"compression": compression, "data_page_version": version}
    pq.write_table(pa.table({"a": texts}), path, **how)
    stated = pq.read_metadata(path).row_group(0).total_byte_size
    content = path.read_bytes()
    size = number(stated)
    path.write_bytes(content.replace(size, number(100, len(size))))
    assert pq.read_metadata(path).row_group(0).total_byte_size == 100
    assert len(LONG) * 5 < declared_size(path) < len(LONG) * 5 + 1000
    assert cells(path, ["a"])["a"] == texts


@pytest.mark.parametrize("how", [{}, {"use_dictionary": False}, {"data_page_version": "2.0"}])
@pytest.mark.parametrize("page", [100, 2**20])
def test_pages_say_what_an_honest_footer_says(tmp_path, table, how, page):
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=1000, data_page_size=page, **how)
    content = path.read_bytes()
    about = pq.read_metadata(path)
    for group in (about.row_group(i) for i in range(about.num_row_groups)):
        for column in (group.column(i) for i in range(group.num_columns)):
            first = column.data_page_offset
            if column.has_dictionary_page:
                first = min(first, column.dictionary_page_offset)
            pages = pages_of(content, first, column.total_compressed_size)
            assert 0.7 * column.total_uncompressed_size < pages.size
            assert pages.size <= column.total_uncompressed_size + 200
            assert pages.values == column.num_values
            assert pages.dictionary == column.has_dictionary_page


def test_damaged_pages_are_refused_or_read(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": TEXTS[:20], "b": list(range(20))}), path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 300):
        changed = bytearray(whole)
        changed[place] ^= int(rng.integers(1, 256))
        path.write_bytes(bytes(changed))
        with suppress(DataError):
            assert declared_size(path) >= 0
    endless = b"\x19" + b"\xf7" + b"\xff" * 9 + b"\x01"  # a list of 2^63 numbers
    nested = b"\x19" * 5000  # lists within each other
    for header in (endless, nested):
        with pytest.raises(ValueError, match="damaged"):
            pages_of(header, 0, len(header))


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
