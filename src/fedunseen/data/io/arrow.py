"""Parquet and Arrow files, a batch of rows at a time, by pyarrow (extra ``arrow``)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, MissingDependencyError
from fedunseen.data.io.parquet_size import TOO_LARGE

Column = tuple[Any, NDArray[np.int64] | None]
"""Distinct values and the place of each row's among them; or an array of floats or dates, and
None.
"""

_PARQUET = b"PAR1"
_ENCRYPTED = b"PARE"
_DELTA = "DELTA"  # encodings of texts begin so that pyarrow does not read as a dictionary


def columns_of(path: Path) -> tuple[list[str], dict[str, str], dict[str, list[str]]]:
    """Return a file's columns; those of types that are not read, with their types; and the names
    of classes where ``datasets`` stores their numbers.
    """
    with _readable(path) as pa, _source(path, pa) as file:
        schema = file.schema_arrow if _is_parquet(path) else file.schema
        names = [str(name).strip() for name in schema.names]
        other = {
            name: str(schema.field(i).type)
            for i, name in enumerate(names)
            if not _is_read(pa.types, schema.field(i).type)
        }
        return names, other, _class_labels(schema.metadata or {})


def _chunks(about: Any) -> Iterator[Any]:
    """Yield what Parquet's metadata says of each column of each row group."""
    for i in range(about.num_row_groups):
        group = about.row_group(i)
        yield from (group.column(j) for j in range(group.num_columns))


def batches(
    path: Path, wanted: Sequence[str], rows: int
) -> Iterator[tuple[int, Mapping[str, Column]]]:
    """Yield how many rows a batch has, at most ``rows``, and its wanted columns.

    A Parquet file is read by its row groups; an Arrow file is mapped into memory.
    """
    with _readable(path) as pa, _source(path, pa) as file:
        count = 0
        for batch in _batches(path, file, wanted, rows):
            names = [name.strip() for name in batch.schema.names]
            columns = {name: _column(pa, batch.column(names.index(name))) for name in wanted}
            count += batch.num_rows
            if batch.num_rows:
                yield batch.num_rows, columns
        if not count:
            raise DataError(f"{path} has no row: give one for each sample", "empty-table")


def class_names(path: Path, column: str, numbers: Any, names: Sequence[str]) -> list[str | None]:
    """Return the names that numbers of classes stand for; -1 and NaN: none."""
    texts: list[str | None] = []
    for number in numbers:
        if number is None or number != number or number == -1:
            texts.append(None)
        elif 0 <= number < len(names) and number == int(number):
            texts.append(names[int(number)])
        else:
            raise DataError(
                f"{path}, column {column!r}: {number:g} is none of its {len(names)} classes: save "
                "the data set again",
                "wrong-type",
            )
    return texts


def _is_delta(column: Any) -> bool:
    return any(encoding.startswith(_DELTA) for encoding in column.encodings)


@contextmanager
def _readable(path: Path) -> Iterator[Any]:
    """Yield the library; turn what a damaged file raises into one sentence."""
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingDependencyError(
            f"reading {path} needs pyarrow: pip install 'fedunseen[arrow]', or give a CSV file"
        ) from None
    try:
        yield pa
    except MemoryError:
        raise DataError(
            f"{path} does not fit into memory: write it in smaller row groups", TOO_LARGE
        ) from None
    except (
        pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError, OverflowError,
        NotImplementedError, RuntimeError,
    ) as error:  # fmt: skip
        if "decrypt" in str(error).lower():
            raise _encrypted(path) from None
        raise DataError(
            f"{path} is damaged, or no {_format(path)} file: write it again", "damaged-table"
        ) from None


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def _format(path: Path) -> str:
    return "Parquet" if _is_parquet(path) else "Arrow"


def _encrypted(path: Path) -> DataError:
    return DataError(
        f"{path} is encrypted: decrypt it, and write it without encryption", "encrypted-table"
    )


@contextmanager
def _source(path: Path, pa: Any) -> Iterator[Any]:
    """Open a file: Parquet, the file format of Arrow, or its stream format."""
    with path.open("rb") as file:
        begins = file.read(6)
        file.seek(-4, 2)
        ends = file.read(4)
    if _is_parquet(path):
        import pyarrow.parquet as pq

        if _ENCRYPTED in (begins[:4], ends):
            raise _encrypted(path)
        if (begins[:4], ends) != (_PARQUET, _PARQUET):
            raise ValueError("no Parquet file")
        with pq.ParquetFile(path) as opened:
            schema = opened.schema_arrow
            about = opened.metadata
        # A dictionary keeps a text once, however many rows have it.
        delta = {column.path_in_schema for column in _chunks(about) if _is_delta(column)}
        texts = {str(field.name) for field in schema if _is_text(pa.types, field.type)} - delta
        with pq.ParquetFile(path, metadata=about, read_dictionary=sorted(texts)) as opened:
            yield opened
        return
    with pa.memory_map(str(path)) as mapped:
        if begins == b"ARROW1":
            with pa.ipc.open_file(mapped) as opened:
                yield opened
        else:
            with pa.ipc.open_stream(mapped) as opened:
                yield opened


def _batches(path: Path, file: Any, wanted: Sequence[str], rows: int) -> Iterator[Any]:
    """Yield batches of at most so many rows; those of an Arrow file are checked: a crafted one
    points outside of itself.
    """
    if _is_parquet(path):
        stored = {name.strip(): name for name in file.schema_arrow.names}
        yield from file.iter_batches(batch_size=rows, columns=[stored[name] for name in wanted])
        return
    for batch in _whole(file):
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _whole(file: Any) -> Iterator[Any]:
    """Yield the batches of an Arrow file, checked."""
    batches = (
        (file.get_batch(i) for i in range(file.num_record_batches))
        if hasattr(file, "num_record_batches")
        else file
    )
    for batch in batches:
        batch.validate(full=True)
        yield batch


def _is_read(types: Any, kind: Any) -> bool:
    """Return whether cells of a type are numbers, texts, booleans or dates."""
    if types.is_dictionary(kind):
        kind = kind.value_type
    asked = (
        types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_null,
        types.is_date, types.is_timestamp,
    )  # fmt: skip
    return any(ask(kind) for ask in asked) or _is_text(types, kind)


def _is_text(types: Any, kind: Any) -> bool:
    return types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view"


def _is_cast(types: Any, kind: Any) -> bool:
    return any(ask(kind) for ask in (types.is_decimal, types.is_date, types.is_timestamp))


def _column(pa: Any, array: Any) -> Column:
    """Return the cells of a column."""
    import pyarrow.compute as pc

    types = pa.types
    kind = array.type
    if types.is_dictionary(kind) and _is_cast(types, kind.value_type):
        array = array.dictionary_decode()
        kind = array.type
    if types.is_decimal(kind):
        array = array.cast(pa.float64())
        kind = array.type
    if types.is_integer(kind) or types.is_floating(kind):
        return array.to_numpy(zero_copy_only=False).astype(np.float64), None
    if types.is_date(kind) or types.is_timestamp(kind):
        return array.to_numpy(zero_copy_only=False), None
    if types.is_null(kind):
        return [None], np.zeros(len(array), dtype=np.int64)
    if not types.is_dictionary(kind):
        array = (
            array.cast(pa.string()) if str(kind) == "string_view" else array
        ).dictionary_encode()
    indices = array.indices
    values = array.dictionary
    if len(values) > len(array):  # of all rows of a row group
        used = indices.drop_null().unique()
        indices = pc.index_in(indices, used)
        values = values.take(used)
    distinct = [*values.to_pylist(), None]
    places = indices.fill_null(len(distinct) - 1) if indices.null_count else indices
    return distinct, places.to_numpy(zero_copy_only=False).astype(np.int64)


def _class_labels(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return column -> names of its classes, as ``datasets`` writes them into a schema."""
    if b"huggingface" not in metadata:
        return {}
    features = json.loads(metadata[b"huggingface"])["info"]["features"]
    return {
        str(name): [str(value) for value in about["names"]]
        for name, about in features.items()
        if isinstance(about, dict) and about.get("_type") == "ClassLabel"
    }
