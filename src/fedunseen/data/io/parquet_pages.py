"""What the pages of a Parquet file say of themselves: a footer may state less, and is not checked.

A page's header is a struct of Thrift's compact protocol (``PageHeader`` of ``parquet.thrift``).
pyarrow reads it and shows it to no one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

DELTA_BYTE_ARRAY = 7
"""Number of the encoding in which a text shares the beginning of the one before."""

_DICTIONARY = 2  # type of a page
_TYPE = 1  # fields of a header
_UNPACKED = 2
_PACKED = 3
_DATA = 5
_DATA_2 = 8
_VALUES = 1  # fields of a data page's own header
_ENCODING = 2
_ENCODING_2 = 4
_OLD = "parquet-mr"  # of whose files pyarrow reads so many bytes beyond a chunk
_PADDING = 100
_DEEPEST = 8  # structs and lists within each other
_BOOLEANS = (1, 2)  # kinds of values
_BYTE = 3
_DOUBLE = 7
_BINARY = 8
_STRUCT = 12
_LISTS = (9, 10)
_WHOLE = (4, 5, 6)  # numbers of 16, 32 and 64 bits


class Pages(NamedTuple):
    """The pages of a column chunk.

    Attributes:
        size: bytes that they unpack to.
        values: how many they have.
        encodings: their numbers.
        dictionary: whether one of them is a dictionary.
    """

    size: int
    values: int
    encodings: frozenset[int]
    dictionary: bool


def pages_of(content: bytes, start: int, length: int, writer: str = "") -> Pages:
    """Return what the headers of a column chunk's pages say.

    Args:
        content: the file.
        start: where the chunk begins.
        length: its bytes.
        writer: the program that the footer names.

    Raises:
        ValueError: a header is damaged.
    """
    pages: list[Pages] = []
    place = start
    beyond = _PADDING if _OLD in writer.lower() else 0
    while place < min(start + length + beyond, len(content)):
        try:
            page, place = _page(content, place)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            if place >= start + length:
                break  # no page, but what follows the chunk
            raise ValueError("a page is damaged") from None
        pages.append(page)
    return Pages(
        sum(page.size for page in pages),
        sum(page.values for page in pages),
        frozenset().union(*(page.encodings for page in pages)),
        any(page.dictionary for page in pages),
    )


def _page(content: bytes, place: int) -> tuple[Pages, int]:
    """Return what a page's header says, and where the next page begins."""
    header, place = _struct(content, place)
    sizes = [header[_UNPACKED], header[_PACKED]]
    values = 0
    encodings = set[int]()
    for field, encoding in ((_DATA, _ENCODING), (_DATA_2, _ENCODING_2)):
        if field in header:
            values += int(header[field].get(_VALUES, 0))
            encodings.add(int(header[field].get(encoding, 0)))
    if min(*sizes, values) < 0:
        raise ValueError("negative")
    dictionary = header.get(_TYPE) == _DICTIONARY
    return Pages(sizes[0], values, frozenset(encodings), dictionary), place + sizes[1]


def _struct(content: bytes, place: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Return the fields of a struct, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while kind := content[place]:
        place += 1
        if kind >> 4:
            number += kind >> 4
        else:
            number, place = _signed(content, place)
        fields[number], place = _value(content, place, kind & 15, depth, alone=True)
    return fields, place + 1


def _value(
    content: bytes, place: int, kind: int, depth: int, alone: bool = False
) -> tuple[Any, int]:
    """Return a value, and where it ends; a boolean that is ``alone`` is in its field's kind."""
    if depth > _DEEPEST:
        raise ValueError("too deep")
    if kind in _BOOLEANS:
        return None, place + (not alone)
    if kind == _BYTE:
        return content[place], place + 1
    if kind in _WHOLE:
        return _signed(content, place)
    if kind == _DOUBLE:
        return None, place + 8
    if kind == _BINARY:
        length, place = _unsigned(content, place)
        return None, place + length
    if kind in _LISTS:
        count = content[place] >> 4
        kind = content[place] & 15
        place += 1
        if count == 15:
            count, place = _unsigned(content, place)
        for _ in range(count):
            _, place = _value(content, place, kind, depth + 1)
            if place > len(content):
                raise ValueError("beyond the end")
        return None, place
    if kind == _STRUCT:
        return _struct(content, place, depth + 1)
    raise ValueError("of another kind")


def _unsigned(content: bytes, place: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        byte = content[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
    raise ValueError("too long")


def _signed(content: bytes, place: int) -> tuple[int, int]:
    number, place = _unsigned(content, place)
    return (number >> 1) ^ -(number & 1), place
