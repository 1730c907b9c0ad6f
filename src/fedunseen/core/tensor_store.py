"""Tensors of thousands of clients on disk: what they reply in a round, and what they keep, one at a
time in memory.

A store is a file without a name, gone with the process. What is put there comes back as a mapping
that reads a tensor when it is asked for; once no one holds the mapping any more, its place is used
again.
"""

import errno
import json
import math
import os
import tempfile
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from fedunseen.core.errors import StorageError
from fedunseen.core.files import parse_json, replacing, write_tensors
from fedunseen.core.parameters import size_in_bytes

_CODES = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16"}
"""What safetensors calls types."""

_LARGE = 2**20  # bytes of a record whose tensors are written one by one

Layout = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
"""Names, types and shapes of the tensors of a record, in the order in which they lie in the
file.
"""


class _Reading:
    """How the tensors of a record are read."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.size = 0
        self.places: dict[str, tuple[int, int, torch.dtype, tuple[int, ...]]] = {}
        self.views: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = []
        types = {dtype for _, dtype, _ in layout}
        self.dtype = next(iter(types)) if len(types) == 1 else None
        for name, dtype, shape in layout:
            size = math.prod(shape) * dtype.itemsize
            strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
            self.places[name] = self.size, size, dtype, shape
            self.views.append((name, shape, strides, self.size // dtype.itemsize))
            self.size += size


class TensorStore:
    """A file of records.

    Args:
        device: where tensors are read to.
        folder: where the file is; None: where temporary files are.
    """

    def __init__(self, device: torch.device | str = "cpu", folder: Path | None = None) -> None:
        self.device = str(device)
        self.folder = folder
        self.free: dict[int, list[int]] = {}
        self.layouts: dict[
            Layout, _Reading
        ] = {}  # records alike share one: of thousands, each its own is a kilobyte
        self.end = 0

    @cached_property
    def file(self) -> IO[bytes]:
        """The file, made with the first record."""
        return tempfile.TemporaryFile(prefix="fedunseen-", dir=self.folder)

    def put(self, params: Mapping[str, Tensor]) -> "StoredTensors":
        """Keep tensors; each is written by itself if they are large."""
        if size_in_bytes(params) < _LARGE:
            return self.put_record(*_record(params))
        return self._put(_layout(params), (_record({n: v})[1] for n, v in params.items()))

    def put_record(self, layout: Layout, record: bytes) -> "StoredTensors":
        """Keep a record as :meth:`StoredTensors.record` returns it."""
        return self._put(layout, [record])

    def _put(self, layout: Layout, parts: Iterable[bytes]) -> "StoredTensors":
        reading = self.layouts.get(layout)
        if reading is None:
            reading = self.layouts[layout] = _Reading(layout)
        free_places = self.free.get(reading.size)
        place = free_places.pop() if free_places else self.end
        try:
            written = 0
            for part in parts:
                if os.pwrite(self.file.fileno(), part, place + written) < len(part):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                written += len(part)
        except OSError as error:
            if free_places is not None:
                free_places.append(place)
            where = self.folder or f"{tempfile.gettempdir()}, the folder that TMPDIR names,"
            raise StorageError(
                f"what clients reply and keep cannot be written to {where} ({error.strerror}): "
                "make room there"
            ) from None
        self.end = max(self.end, place + reading.size)
        return StoredTensors(self, place, reading)


class StoredTensors(Mapping[str, Tensor]):
    """Tensors on a store, each read when it is asked for."""

    def __init__(self, store: TensorStore, place: int, reading: _Reading) -> None:
        self.store = store
        self.place = place
        self.reading = reading
        self.layout = reading.layout
        self.size = reading.size

    def __getitem__(self, name: str) -> Tensor:
        start, size, dtype, shape = self.reading.places[name]
        if not size:
            return torch.empty(shape, dtype=dtype, device=self.store.device)
        return self._read(start, size, dtype).view(shape)

    def items(self) -> ItemsView[str, Tensor]:
        """Read all tensors at once, which for small ones of one type is several times as fast as
        one by one.
        """
        reading = self.reading
        if reading.dtype is None or not reading.size:
            return super().items()
        flat = self._read(0, reading.size, reading.dtype)
        return {
            name: flat.as_strided(shape, strides, before)
            for name, shape, strides, before in reading.views
        }.items()

    def _read(self, start: int, size: int, dtype: torch.dtype) -> Tensor:
        read = bytearray(size)
        os.preadv(self.store.file.fileno(), [read], self.place + start)
        tensor = torch.frombuffer(read, dtype=dtype)
        return tensor if self.store.device == "cpu" else tensor.to(self.store.device)

    def __iter__(self) -> Iterator[str]:
        return iter(self.reading.places)

    def __len__(self) -> int:
        return len(self.reading.places)

    def __del__(self) -> None:
        self.store.free.setdefault(self.size, []).append(self.place)

    def record(self) -> bytes:
        """Return all tensors as they lie in the file."""
        return os.pread(self.store.file.fileno(), self.size, self.place)


def _layout(params: Mapping[str, Tensor]) -> Layout:
    return tuple((name, value.dtype, value.shape) for name, value in params.items())


def _record(params: Mapping[str, Tensor]) -> tuple[Layout, bytes]:
    """Return how tensors are laid out, and their bytes."""
    layout = _layout(params)
    try:
        return layout, b"".join([value.numpy().data for value in params.values()])
    except (
        TypeError,
        RuntimeError,
        BufferError,
    ):  # on a GPU, a transposed one, or of a type that NumPy has not
        host = [value.detach().cpu().reshape(-1).view(torch.uint8) for value in params.values()]
        return layout, b"".join([value.numpy().data for value in host])


def write_records(path: Path, stored: Mapping[int, StoredTensors]) -> None:
    """Write what clients keep to a safetensors file, a client at a time: ``clients``, ``records``,
    and their layout.
    """
    first = next(iter(stored.values()))
    layout = [
        [name, str(dtype).removeprefix("torch."), shape] for name, dtype, shape in first.layout
    ]
    ids = np.array(list(stored), dtype="<i8")
    count = len(ids)
    size = first.size
    header = {
        "__metadata__": {"layout": json.dumps(layout)},
        "clients": {"dtype": "I64", "shape": [count], "data_offsets": [0, ids.nbytes]},
        "records": {
            "dtype": "U8",
            "shape": [count, size],
            "data_offsets": [ids.nbytes, ids.nbytes + count * size],
        },
    }
    _write(path, header, chain([ids.tobytes()], (tensors.record() for tensors in stored.values())))


def write_models(
    path: Path, clients: Sequence[int], models: Sequence[Mapping[str, Tensor]]
) -> None:
    """Write the models of clients to a safetensors file under ``client/K/``, one at a time in
    memory.
    """
    layout, _ = _record(models[0])
    codes = {_CODES.get(dtype) for _, dtype, _ in layout}
    if len(codes) > 1 or None in codes:  # numbers of several widths would not lie in order
        pairs = zip(clients, models, strict=True)
        write_tensors(
            path,
            {f"client/{k}/{name}": value for k, model in pairs for name, value in model.items()},
        )
        return
    (code,), header, start = codes, {}, 0
    for client in clients:
        for name, dtype, shape in layout:
            end = start + math.prod(shape) * dtype.itemsize
            header[f"client/{client}/{name}"] = {
                "dtype": code,
                "shape": list(shape),
                "data_offsets": [start, end],
            }
            start = end
    _write(
        path, header, (_record({name: model[name] for name, *_ in layout})[1] for model in models)
    )


def _write(path: Path, header: Mapping[str, Any], parts: Iterable[bytes]) -> None:
    """Write a safetensors file from its header and its data, part by part."""
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for part in parts:
            file.write(part)


def read_records(path: Path, store: TensorStore) -> dict[int, StoredTensors]:
    """Put what a file of :func:`write_records` holds on a store."""
    with safe_open(path, "pt") as file:
        listed = parse_json((file.metadata() or {}).get("layout", "null")) or ()
        try:
            layout = tuple(
                (str(name), getattr(torch, dtype), tuple(map(int, shape)))
                for name, dtype, shape in listed
            )
        except (AttributeError, TypeError, KeyError) as error:
            raise ValueError(str(error)) from None
        if not layout or not all(isinstance(dtype, torch.dtype) for _, dtype, _ in layout):
            raise ValueError("it says nothing of how its records are laid out")
        clients = file.get_tensor("clients").tolist()
        records = file.get_slice("records")
        if records.get_shape() != [len(clients), _Reading(layout).size]:
            raise ValueError("its records are not as long as it says")
        return {
            client: store.put_record(layout, records[i].numpy().tobytes())
            for i, client in enumerate(clients)
        }
