"""How many rows of a Parquet file fit into some bytes, by its own footer: nothing is unpacked.

A column of equal numbers takes a few bytes whatever its length, so that a number of rows bounds no
memory.
"""

from __future__ import annotations

from typing import Any

from fedunseen.core.errors import DataError

BATCH = 2**27
"""Bytes that a batch of rows unpacks to, at most."""

GROUP = 2**30
"""Bytes that a row group unpacks to, of which the file may have any small share."""

DENSEST = 1000
"""Of larger groups: how many times as many bytes as the file has. Rows of very different lengths
come in one batch."""

TOO_LARGE = "table-too-large"
"""Code of what is refused."""

_WIDTHS = {
    "BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8,
}  # fmt: skip
_SAME = ("PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY")
"""Encodings in which texts share bytes."""


def rows_at_once(about: Any, group: int, most: int, where: str, kept: tuple[str, ...] = ()) -> int:
    """Return how many rows of a row group may be read at once, ``most`` at most.

    Args:
        about: the metadata of the file, as pyarrow reads them.
        group: the number of the row group.
        most: rows.
        where: names the file in messages.
        kept: columns that are read as dictionaries, of which each text is there once.

    Raises:
        DataError: code ``table-too-large``: a row is larger than a batch, or the group unpacks to
            far more than the file has.
    """
    facts = about.row_group(group)
    rows = max(1, facts.num_rows)
    row = whole = stored = 0
    for column in (facts.column(i) for i in range(facts.num_columns)):
        size = int(column.total_uncompressed_size)
        stored += int(column.total_compressed_size)
        width = _WIDTHS.get(column.physical_type)
        if width is not None or column.path_in_schema in kept:
            size = max(size, (width or 4) * int(column.num_values))
            row += -(-size // rows)
        elif any(encoding in _SAME for encoding in column.encodings):
            row += size  # each row may have the longest text
        else:
            row += -(-size // rows)
        whole += size
    if row > BATCH and (rows == 1 or whole // rows > BATCH):
        raise _refused(where, f"a row unpacks to {row:,} bytes, and {BATCH:,} are the most")
    if whole > max(GROUP, DENSEST * stored):
        raise _refused(where, f"row group {group} unpacks from {stored:,} bytes to {whole:,}")
    return min(most, max(1, BATCH // max(1, row)))


def _refused(where: str, why: str) -> DataError:
    return DataError(f"{where}: {why}: write it in smaller row groups", TOO_LARGE)
