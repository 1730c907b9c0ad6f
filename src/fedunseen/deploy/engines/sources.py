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

from fedunseen.core.errors import DataError, MissingDependencyError, counted
from fedunseen.data import ClassSpace
from fedunseen.data.io.images import ImageBytes
from fedunseen.experiment.own_samples import OwnSamples
from fedunseen.experiment.party_statistics import BLOCK

GROUP = 8
"""Blocks of a folder that a worker does at once."""

PICTURES = 256
"""Pictures that are decoded and encoded at once."""

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
_LABELS = ("cls", "txt", "json")
_MOST_BYTES = 2**27  # of a member of an archive: no picture that is read is larger

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


class _Files:
    """Files of a store that fsspec reads."""

    suffixes: tuple[str, ...] = ()

    def __init__(self, place: str, space: ClassSpace, see: See) -> None:
        self.place = place
        self.space = space
        self.see = see
        self.store, self.root = _store(place)

    @contextmanager
    def _readable(self, place: str) -> Iterator[None]:
        """Turn what a store or a file raises into one sentence."""
        try:
            yield
        except (OSError, EOFError, tarfile.TarError, KeyError, ValueError) as error:
            why = str(error).partition("\n")[0] or type(error).__name__
            raise DataError(
                f"{place} cannot be read ({why}): look at the store and the file, and repeat the "
                "command, which continues behind the blocks that are done"
            ) from None

    @cached_property
    def files(self) -> dict[str, str]:
        """File -> what changes with its content."""
        with self._readable(self.place):
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
        text = label.decode() if isinstance(label, bytes) else str(label)
        text = text.strip()
        if text in self.space.names:
            return text
        if text.isascii() and text.isdecimal() and int(text) < len(self.space.names):
            return self.space.names[int(text)]
        raise DataError(f"{where}: {text!r} is no class of the plan: correct the label")


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
        for start in range(0, len(block), PICTURES):
            some = block[start : start + PICTURES]
            labels = [self._named(PurePosixPath(name).parent.name, name) for name in some]
            with self._readable(self.place):
                pictures = [ImageBytes(self.store.cat_file(name), name) for name in some]
            yield self.see(pictures), labels, ""


class Archives(_Files):
    """WebDataset archives: of each sample a picture, and its label as .cls, .txt or .json."""

    suffixes = (".tar",)

    @property
    def blocks(self) -> list[Any]:
        """An archive each."""
        return list(self.files)

    def read(self, block: Any) -> Iterator[Piece]:
        """Yield the samples of an archive, some at a time."""
        some: list[ImageBytes] = []
        labels: list[str] = []
        for picture, label in self._samples(block):
            some.append(picture)
            labels.append(label)
            if len(some) == PICTURES:
                yield self.see(some), labels, ""
                some = []
                labels = []
        if some:
            yield self.see(some), labels, ""

    def _samples(self, block: str) -> Iterator[tuple[ImageBytes, str]]:
        """Yield pictures and their classes; the files of a sample are neighbors."""
        key = ""
        parts: dict[str, bytes] = {}
        with (
            self._readable(block),
            self.store.open(block, "rb") as file,
            tarfile.open(fileobj=file, mode="r|") as archive,
        ):
            for member in archive:
                if not member.isfile():
                    continue
                if member.size > _MOST_BYTES:
                    raise DataError(
                        f"{block}: {member.name} has {member.size:,} bytes: give pictures of at "
                        f"most {_MOST_BYTES:,}"
                    )
                name = PurePosixPath(member.name)
                stem, _, suffix = name.name.partition(".")
                if str(name.parent / stem) != key:
                    if parts:
                        yield self._sample(parts, f"{block}: {key}")
                    parts = {}
                key = str(name.parent / stem)
                content = archive.extractfile(member)
                assert content is not None
                parts[suffix.lower()] = content.read()
        if parts:
            yield self._sample(parts, f"{block}: {key}")

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
            with self._readable(where):
                tree = json.loads(said)
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
            with self._readable(name), self.store.open(name, "rb") as file:
                groups = self._parquet.ParquetFile(file).metadata.num_row_groups
            blocks += [[name, group] for group in range(groups)]
        return blocks

    def read(self, block: Any) -> Iterator[Piece]:
        """Yield the rows of a row group, some at a time."""
        name, group = block
        with self._readable(name), self.store.open(name, "rb") as file:
            opened = self._parquet.ParquetFile(file, pre_buffer=False)
            for batch in opened.iter_batches(GROUP * BLOCK, row_groups=[group]):
                yield self._piece(batch, name)

    def _piece(self, batch: Any, name: str) -> Piece:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if "label" not in columns:
            raise DataError(f"{name} has no column 'label': add one of class names")
        labels = [self._named(label, name) for label in columns.pop("label").to_pylist()]
        kinds = {key: str(column.type) for key, column in columns.items()}
        lists = [key for key, kind in kinds.items() if "list" in kind]
        pictures = [key for key, kind in kinds.items() if "binary" in kind]
        if len(lists) == 1:
            flat = columns[lists[0]].flatten().to_numpy(zero_copy_only=False)
            if len(flat) % len(labels):
                raise DataError(f"{name}: vectors in {lists[0]!r} have different lengths")
            return flat.reshape(len(labels), -1), labels, ""
        if len(pictures) == 1:
            content = columns[pictures[0]].to_pylist()
            read = [cell["bytes"] if isinstance(cell, dict) else cell for cell in content]
            seen = self.see([ImageBytes(cell, f"{name}: {i}") for i, cell in enumerate(read)])
            return seen, labels, ""
        numbers = [
            column.to_numpy(zero_copy_only=False)
            for key, column in columns.items()
            if kinds[key].startswith(("float", "double", "int", "uint", "half"))
        ]
        if not numbers or lists or pictures:
            raise DataError(
                f"{name} has {counted(len(lists) + len(pictures), 'column')} of lists or "
                "pictures and none of numbers alone: keep one column of vectors or pictures "
                "beside 'label'"
            )
        return np.stack(numbers, 1), labels, ""


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
        suffixes |= {PurePosixPath(name).suffix.lower() for name in store.find(root)[:1000]}
    kinds: tuple[type[Any], ...] = (Parquet, Archives, Pictures)
    kind = next((kind for kind in kinds if suffixes & set(kind.suffixes)), Pictures)
    source: Source = kind(place, space, see)
    return source
