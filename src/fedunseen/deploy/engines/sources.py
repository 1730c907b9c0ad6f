"""Samples in blocks: a party's folder, Parquet files, WebDataset archives and folders of pictures,
the last three also in a store that fsspec reads (``s3://``, ``gs://``, ``memory://`` ...).

A block is read by itself, by any worker. Labels are names of classes, or rows of the class table.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import (
    DataError,
    FedUnseenError,
    MissingDependencyError,
    counted,
    shortened,
)
from fedunseen.core.files import check_ordinary, parse_json
from fedunseen.data import ClassSpace
from fedunseen.data.io.images import ImageBytes
from fedunseen.data.io.parquet_size import rows_at_once
from fedunseen.experiment.own_samples import OwnSamples
from fedunseen.experiment.party_statistics import BLOCK

GROUP = 8
"""Blocks of a folder that a worker does at once."""

PICTURES = 256
"""Pictures that are decoded and encoded at once."""

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
_LABELS = ("cls", "txt", "json")
_MOST_BYTES = 2**27  # of a picture: none that is read is larger
_LABEL = "label"  # the column of classes
_DIGITS = 9  # of a row of the class table
_MOST_LABEL = 2**16  # bytes of a label's file
_AT_ONCE = 2**28  # bytes of the files of pictures that are decoded at once, and one file more
_DAMAGE = (
    OSError, EOFError, tarfile.TarError, KeyError, ValueError, MemoryError,
    RecursionError,  # of an archive whose headers follow each other
)  # fmt: skip
_EXTENDED = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip

See = Callable[[Sequence[ImageBytes]], NDArray[Any]]
"""Turns picture files into features (n, d)."""

Piece = tuple[NDArray[Any], list[str], str]
"""Features (n, d), the class name of each, and the mark by which statistics know them; "" where
their content does.
"""


def _store(place: str) -> Any:
    """Return the store of a place, and its path there."""
    try:
        return importlib.import_module("fsspec.core").url_to_fs(place)  # it comes with PyTorch
    except (ImportError, ValueError) as error:
        raise DataError(f"{place} cannot be read ({error}): correct SOURCE") from None


def _is_local(store: Any) -> bool:
    return "file" in np.atleast_1d(store.protocol)


@contextmanager
def _readable(store: Any, place: str) -> Iterator[None]:
    """Turn what a store or a file raises into one sentence."""
    try:
        yield
    except FedUnseenError:
        raise
    except Exception as error:  # of other stores anything: botocore's errors are no OSError
        if _is_local(store) and not isinstance(error, _DAMAGE):
            raise
        why = shortened(str(error).partition("\n")[0]) or type(error).__name__
        raise DataError(
            f"{place} cannot be read ({why}): look at the store and the file, and repeat the "
            "command, which continues behind the blocks that are done"
        ) from None


class Source(Protocol):
    """Samples of one owner."""

    @property
    def stamp(self) -> str:
        """What changes with the samples."""

    @property
    def blocks(self) -> list[Any]:
        """The blocks, as JSON."""

    def read(self, block: Any) -> Iterator[Piece]:
        """Yield the samples of a block."""


@dataclass(frozen=True, eq=False)
class Folder:
    """A party's folder: classes.csv with features, pictures, texts or a table.

    Attributes:
        path: the folder.
        settings: of ``[data]``.
        features: returns the features of some samples of a benchmark.
        every: samples for tests are read too, as for an encoded folder.
    """

    path: Path
    settings: dict[str, Any]
    features: Callable[[Any, NDArray[np.int64]], NDArray[Any]]

    @cached_property
    def _benchmark(self) -> Any:
        return OwnSamples(self.path, settings=self.settings).benchmark

    @cached_property
    def stamp(self) -> str:
        """The fingerprint of the samples."""
        digest: str = self._benchmark.fingerprint()
        return digest

    @property
    def blocks(self) -> list[Any]:
        """The first sample of each block."""
        return list(range(0, len(self._benchmark.train), GROUP * BLOCK))

    def read(self, block: Any) -> Iterator[Piece]:
        """Yield samples with the marks that ``fedunseen statistics`` gives them in a loop."""
        benchmark = self._benchmark
        names = np.array(benchmark.space.names)
        stop = min(len(benchmark.train), block + GROUP * BLOCK)
        for start in range(block, stop, BLOCK):
            rows = benchmark.train[start : min(start + BLOCK, stop)]
            mark = f"{self.stamp[:16]} {start}"
            yield self.features(benchmark, rows), names[benchmark.labels[rows]].tolist(), mark


class _Entry(tarfile.TarInfo):
    """An entry of an archive; names and notes of an entry, which are read whole, are bounded."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: Any, errors: Any) -> Any:
        """Read the header of an entry."""
        entry = super().frombuf(buf, encoding, errors)
        if entry.type in _EXTENDED and entry.size > _MOST_LABEL:
            raise ValueError(f"notes of {entry.size:,} bytes")
        return entry


class _Files:
    """Files of a store that fsspec reads."""

    suffixes: tuple[str, ...] = ()

    def __init__(self, place: str, space: ClassSpace, see: See) -> None:
        self.place = place
        self.space = space
        self.see = see
        self.store, self.root = _store(place)

    @cached_property
    def files(self) -> dict[str, str]:
        """File -> what changes with its content."""
        with _readable(self.store, self.place):
            entries = self.store.find(self.root, detail=True)
            if not entries and self.store.exists(self.root):
                entries = {self.root: self.store.info(self.root)}
        chosen = {}
        for name, facts in sorted(entries.items()):
            if PurePosixPath(name).suffix.lower() in self.suffixes:
                stamps = (facts.get(key) for key in ("size", "ETag", "etag", "mtime", "created"))
                chosen[name] = json.dumps([str(stamp) for stamp in stamps])
        if not chosen:
            raise DataError(
                f"{self.place} has no file that ends in {' or '.join(self.suffixes)}: correct "
                "SOURCE"
            )
        return chosen

    @cached_property
    def stamp(self) -> str:
        """The digest of names, sizes and times of all files."""
        return hashlib.sha256(json.dumps(sorted(self.files.items())).encode()).hexdigest()

    def _named(self, label: Any, where: str) -> str:
        """Return a class name; a number is a row of the class table."""
        text = label.decode(errors="replace") if isinstance(label, bytes) else str(label)
        text = text.strip()
        if text in self.space.names:
            return text
        is_row = text.isascii() and text.isdecimal() and len(text) <= _DIGITS
        if is_row and int(text) < len(self.space.names):
            return self.space.names[int(text)]
        raise DataError(f"{where}: {shortened(text)!r} is no class of the plan: correct the label")

    @contextmanager
    def _opened(self, name: str) -> Iterator[Any]:
        """Open a file; refuse what may never end, and turn what it raises into one sentence."""
        with _readable(self.store, name):
            if _is_local(self.store):
                check_ordinary(Path(name))
            with self.store.open(name, "rb") as file:
                yield file

    def _seen(self, samples: Iterator[tuple[ImageBytes, str]]) -> Iterator[Piece]:
        """Yield the features of pictures, as many at a time as fit into :data:`_AT_ONCE`."""
        some: list[ImageBytes] = []
        labels: list[str] = []
        size = 0
        for picture, label in samples:
            some.append(picture)
            labels.append(label)
            size += picture.getbuffer().nbytes
            if len(some) == PICTURES or size > _AT_ONCE:
                yield self.see(some), labels, ""
                some = []
                labels = []
                size = 0
        if some:
            yield self.see(some), labels, ""


class Pictures(_Files):
    """Folders of pictures, each named by its class."""

    suffixes = _IMAGES

    @property
    def blocks(self) -> list[Any]:
        """Some files each."""
        names = list(self.files)
        step = GROUP * PICTURES
        return [names[start : start + step] for start in range(0, len(names), step)]

    def read(self, block: Any) -> Iterator[Piece]:
        """Yield the pictures of a block, some at a time."""
        yield from self._seen(map(self._picture, block))

    def _picture(self, name: str) -> tuple[ImageBytes, str]:
        label = self._named(PurePosixPath(name).parent.name, name)
        with self._opened(name) as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise _oversized(name)
        return ImageBytes(content, name), label


class Archives(_Files):
    """WebDataset archives: of each sample a picture, and its label as .cls, .txt or .json."""

    suffixes = (".tar",)

    @property
    def blocks(self) -> list[Any]:
        """An archive each."""
        return list(self.files)

    def read(self, block: Any) -> Iterator[Piece]:
        """Yield the samples of an archive, some at a time."""
        yield from self._seen(self._samples(block))

    def _samples(self, block: str) -> Iterator[tuple[ImageBytes, str]]:
        """Yield pictures and their classes; the files of a sample are neighbors."""
        key = ""
        parts: dict[str, bytes] = {}
        with (
            self._opened(block) as file,
            tarfile.open(fileobj=file, mode="r|", tarinfo=_Entry) as archive,
        ):
            for member in archive:
                # of which a million take half a gigabyte
                archive.members = []  # type: ignore[attr-defined]
                if not member.isfile():
                    continue
                name = PurePosixPath(member.name)
                stem, _, suffix = name.name.partition(".")
                if str(name.parent / stem) != key:
                    if parts:
                        yield self._sample(parts, f"{block}: {key}")
                    parts = {}
                key = str(name.parent / stem)
                self._keep(parts, suffix.lower(), member, archive, block)
        if parts:
            yield self._sample(parts, f"{block}: {key}")

    def _keep(
        self, parts: dict[str, bytes], suffix: str, member: Any, archive: Any, block: str
    ) -> None:
        """Read a member into the parts of its sample, if these lack it."""
        is_label = suffix in _LABELS
        is_picture = f".{suffix}" in _IMAGES
        if suffix in parts or not (is_label or is_picture):
            return
        if is_picture and any(f".{name}" in _IMAGES for name in parts):
            return
        if member.size > (_MOST_LABEL if is_label else _MOST_BYTES):
            raise _oversized(f"{block}: {shortened(member.name)}", is_label)
        content = archive.extractfile(member)
        assert content is not None
        parts[suffix] = content.read()

    def _sample(self, parts: dict[str, bytes], where: str) -> tuple[ImageBytes, str]:
        picture = next((name for name in parts if f".{name}" in _IMAGES), "")
        label = next((name for name in _LABELS if name in parts), "")
        if not picture or not label:
            raise DataError(
                f"{where} lacks {'a label (.cls, .txt or .json)' if picture else 'a picture'}: "
                "write the archive again"
            )
        said: Any = parts[label]
        if label == "json":
            with _readable(self.store, where):
                tree = parse_json(said)
                said = tree["label"] if isinstance(tree, dict) else tree
        return ImageBytes(parts[picture], where), self._named(said, where)


class Parquet(_Files):
    """Parquet files with a column ``label`` and a list of numbers, columns of numbers, or
    pictures.
    """

    suffixes = (".parquet",)

    @cached_property
    def _parquet(self) -> Any:
        try:
            return importlib.import_module("pyarrow.parquet")
        except ImportError:
            raise MissingDependencyError(
                "Parquet files need pyarrow: pip install 'fedunseen[arrow]'"
            ) from None

    @cached_property
    def blocks(self) -> list[Any]:
        """A row group each: the file and its number."""
        blocks: list[Any] = []
        for name in self.files:
            with self._opened(name) as file:
                groups = self._parquet.ParquetFile(file).metadata.num_row_groups
            blocks += [[name, group] for group in range(groups)]
        return blocks

    def read(self, block: Any) -> Iterator[Piece]:
        """Yield the rows of a row group, some at a time."""
        name, group = block
        with self._opened(name) as file:
            about = self._parquet.ParquetFile(file, pre_buffer=False).metadata
            kept = self._kept(about)
            rows = rows_at_once(about, group, GROUP * BLOCK, name, kept)
            opened = self._parquet.ParquetFile(
                file, metadata=about, pre_buffer=False, read_dictionary=list(kept)
            )
            batches = opened.iter_batches(rows, row_groups=[group])
            kinds = {str(field.name): str(field.type) for field in opened.schema_arrow}
            lists = [key for key, kind in kinds.items() if "list" in kind and key != _LABEL]
            pictures = [key for key, kind in kinds.items() if "binary" in kind and key != _LABEL]
            if _LABEL not in kinds:
                raise DataError(f"{name} has no column 'label': add one of class names")
            if len(pictures) == 1 and not lists:
                yield from self._seen(self._pictures(batches, pictures[0], name))
            else:
                for batch in batches:
                    yield self._vectors(batch, name, lists, pictures)

    @staticmethod
    def _kept(about: Any) -> tuple[str, ...]:
        """Return the column of labels where it is of texts that pyarrow keeps once each."""
        columns = map(about.row_group(0).column, range(about.num_columns))
        texts = [
            column.path_in_schema
            for column in columns
            if column.physical_type == "BYTE_ARRAY"
            and not any(encoding.startswith("DELTA") for encoding in column.encodings)
        ]
        return tuple(text for text in texts if text == _LABEL)

    def _labels(self, batch: Any, name: str) -> list[str]:
        labels = batch.column(batch.schema.names.index(_LABEL))
        if not hasattr(labels, "dictionary"):
            return [self._named(label, name) for label in labels.to_pylist()]
        places = labels.indices.to_pylist()
        known = labels.dictionary.to_pylist()
        named = {place: self._named(known[place], name) for place in {*places} if place is not None}
        return [self._named(None, name) if place is None else named[place] for place in places]

    def _pictures(
        self, batches: Iterator[Any], column: str, name: str
    ) -> Iterator[tuple[ImageBytes, str]]:
        """Yield pictures and their classes."""
        place = 0
        for batch in batches:
            cells = batch.column(batch.schema.names.index(column)).to_pylist()
            for cell, label in zip(cells, self._labels(batch, name), strict=True):
                content = cell["bytes"] if isinstance(cell, dict) else cell
                if len(content or b"") > _MOST_BYTES:
                    raise _oversized(f"{name}: {place}")
                yield ImageBytes(content, f"{name}: {place}"), label
                place += 1

    def _vectors(
        self, batch: Any, name: str, lists: Sequence[str], pictures: Sequence[str]
    ) -> Piece:
        """Return the features of some rows."""
        labels = self._labels(batch, name)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        del columns[_LABEL]
        if len(lists) == 1:
            flat = columns[lists[0]].flatten().to_numpy(zero_copy_only=False)
            if len(flat) % len(labels):
                raise DataError(f"{name}: vectors in {lists[0]!r} have different lengths")
            return flat.reshape(len(labels), -1), labels, ""
        numbers = [
            column.to_numpy(zero_copy_only=False)
            for column in columns.values()
            if str(column.type).startswith(("float", "double", "int", "uint", "half"))
        ]
        if not numbers or lists or pictures:
            raise DataError(
                f"{name} has {counted(len(lists) + len(pictures), 'column')} of lists or "
                "pictures and none of numbers alone: keep one column of vectors or pictures "
                "beside 'label'"
            )
        return np.stack(numbers, 1), labels, ""


def _oversized(where: str, is_label: bool = False) -> DataError:
    what, most = ("labels", _MOST_LABEL) if is_label else ("pictures", _MOST_BYTES)
    return DataError(f"{where} is too large: give {what} of at most {most:,} bytes", "too-large")


def open_source(
    place: str,
    settings: dict[str, Any],
    space: ClassSpace,
    features: Callable[[Any, NDArray[np.int64]], NDArray[Any]],
    see: See,
) -> Source:
    """Return a source by what it is: a folder with ``classes.csv``, or files in a store.

    Raises:
        DataError: there is nothing that can be read.
    """
    folder = Path(place)
    if "://" not in place and (folder / "classes.csv").exists():
        return Folder(folder, settings, features)
    if "://" not in place and not folder.exists():
        raise DataError(f"{place} does not exist: correct SOURCE")
    suffixes = {PurePosixPath(place).suffix.lower()}
    if suffixes == {""} or folder.is_dir() or "://" in place:
        store, root = _store(place)
        with _readable(store, place):
            suffixes |= {PurePosixPath(name).suffix.lower() for name in store.find(root)[:1000]}
    kinds: tuple[type[Any], ...] = (Parquet, Archives, Pictures)
    kind = next((kind for kind in kinds if suffixes & set(kind.suffixes)), Pictures)
    source: Source = kind(place, space, see)
    return source
