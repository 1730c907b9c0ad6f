"""How many bytes an Arrow file unpacks to, by its own headers: nothing is unpacked.

pyarrow does not say so, and a compressed file of a few bytes may unpack to gigabytes. Layouts:
https://arrow.apache.org/docs/format/Columnar.html, with ``Message.fbs`` and ``File.fbs``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

BATCH = 2**14
"""Bytes that a batch counts for, at least: reading one takes time."""

_MAGIC = b"ARROW1"
_CONTINUES = -1  # before a length, since version 0.15
_DICTIONARY = 2  # kinds of messages
_RECORDS = 3
_STATES = 4  # the version of messages from which a batch states that it is compressed
_BLOCK = np.dtype([("at", "<i8"), ("header", "<i4"), ("", "<i4"), ("body", "<i8")])
_BUFFER = np.dtype([("at", "<i8"), ("size", "<i8")])


def unpacked_size(content: bytes) -> int:
    """Return how many bytes the batches of an Arrow file or stream unpack to.

    Raises:
        ValueError: a header points outside of the content.
    """
    read = _Reader(content)
    starts = read.blocks() if content.startswith(_MAGIC) else read.stream()
    return sum(max(size, BATCH) for size in map(read.batch, starts))


class _Reader:
    """Reads the fields of FlatBuffers that are asked for, and checks each place."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def number(self, form: str, place: int) -> int:
        """Return a number, in a form of ``struct``."""
        if not 0 <= place <= len(self.content) - struct.calcsize(form):
            raise ValueError("outside of the file")
        return int(struct.unpack_from(f"<{form}", self.content, place)[0])

    def follow(self, place: int) -> int:
        """Return where an offset points to; 0 for 0."""
        return place and place + self.number("I", place)

    def field(self, table: int, slot: int) -> int:
        """Return where a field of a table is; 0: it is not there."""
        fields = table - self.number("i", table)
        if 4 + 2 * slot >= self.number("H", fields):
            return 0
        offset = self.number("H", fields + 4 + 2 * slot)
        return offset and table + offset

    def vector(self, place: int, kind: np.dtype[np.void]) -> NDArray[np.void]:
        """Return the structs (n,) of a vector."""
        count = self.number("I", place) if place else 0
        if place + 4 + count * kind.itemsize > len(self.content):
            raise ValueError("outside of the file")
        return np.frombuffer(self.content, kind, count, place + 4 if count else 0)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield the header and the body of each batch that a file's footer lists."""
        end = len(self.content) - 10
        footer = self.follow(end - self.number("i", end))
        for slot in (_DICTIONARY, _RECORDS):  # the same numbers as those of messages
            for block in self.vector(self.follow(self.field(footer, slot)), _BLOCK):
                start = int(block["at"])
                yield self._header(start), start + int(block["header"])

    def stream(self) -> Iterator[tuple[int, int]]:
        """Yield the header and the body of each message of a stream."""
        place = 0
        while place + 8 <= len(self.content):
            header = self._header(place)
            if not (length := self.number("i", header - 4)):
                return
            message = self.follow(header)
            body = header + length
            yield header, body
            stated = self.field(message, 3)
            size = self.number("q", stated) if stated else 0
            if length < 0 or size < 0:
                raise ValueError("a negative length")
            place = body + size

    def _header(self, place: int) -> int:
        """Return where a message's header begins, behind its length."""
        return place + (8 if self.number("i", place) == _CONTINUES else 4)

    def batch(self, places: tuple[int, int]) -> int:
        """Return how many bytes the buffers of a message unpack to."""
        header, body = places
        message = self.follow(header)
        version = self.field(message, 0)
        stated = self.field(message, 1)
        kind = self.number("B", stated) if stated else 0
        if kind not in (_DICTIONARY, _RECORDS):
            return 0
        records = self.follow(self.field(message, 2))
        if kind == _DICTIONARY:
            records = self.follow(self.field(records, 1))
        buffers = self.vector(self.follow(self.field(records, 2)), _BUFFER)
        if self.field(records, 3):
            return self._unpacked(body + buffers["at"], buffers["size"])
        if self.field(message, 4) and (not version or self.number("h", version) < _STATES):
            raise ValueError("an old file may be compressed without a field that states it")
        return int(buffers["size"].sum())

    def _unpacked(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> int:
        """Return the sizes that compressed buffers begin with; -1: the buffer is as it is."""
        starts = starts[sizes > 0]
        sizes = sizes[sizes > 0]
        if len(starts) and not 0 <= starts.min() <= starts.max() <= len(self.content) - 8:
            raise ValueError("outside of the file")
        raw = np.frombuffer(self.content, np.uint8)
        stated = raw[starts[:, None] + np.arange(8)].reshape(-1).view("<i8")
        unpacked = np.where(stated == -1, sizes, stated)
        if (unpacked < 0).any():
            raise ValueError("a negative size")
        return sum(unpacked.tolist())
