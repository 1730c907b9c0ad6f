"""The base of the benchmarks: a class for each, which finds its files, reads them and says what it
is.

A new benchmark is one file with such a class, and one line in ``fedunseen.data.BENCHMARKS`` or an
entry point of another package. The command needs no change: it asks the benchmark's class.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError
from fedunseen.core.files import existing_folder
from fedunseen.core.settings import Named
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.class_space import ClassSpace
from fedunseen.data.io.features import read_features
from fedunseen.data.scaling import fit_semantics


class BenchmarkLoader(Named):
    """Finds a benchmark's files, loads them, and reads single inputs as the benchmark's own samples
    are read.

    A benchmark says what it is with class attributes, and defines ``Settings``, :meth:`load` and,
    unless its samples are plain vectors, :meth:`read`. One in files also says how it is found: with
    ``needs``, or with :meth:`holds`. The class argument ``name`` is its name in ``[data]``:
    ``class Omniglot(BenchmarkLoader, name="omniglot")``.

    Example:
        >>> from fedunseen.data.benchmarks.digit_pairs import DigitPairs
        >>> DigitPairs.describe()
        'two handwritten digits side by side (part of this package: nothing to download)'
        >>> DigitPairs.find(Path("."))
        []
    """

    Settings: ClassVar[type[DataSettings]] = DataSettings
    """What ``[data]`` may say. A benchmark in files has the setting ``root``."""
    title: ClassVar[str]
    """What it is, or the data set's own name."""
    page: ClassVar[str] = "part of this package"
    """Where its authors publish it."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Files and folders of the layout, relative to the root; ``a|b`` means either, ``*`` any name.
    The first identifies the layout."""
    folders: ClassVar[tuple[str, ...]] = ()
    """Names that the data set's folder commonly has: it is found too if the root is one folder too
    high.
    """
    mixed_units: ClassVar[bool] = False
    """Its features need not be in one unit, as those of an encoder are: bringing samples to unit
    length may hide some.
    """
    layout: ClassVar[str] = ""
    """The layout for people, where ``needs`` does not say it."""
    sample: ClassVar[str] = "sample"
    """What one sample is, in a sentence."""
    reads_tables: ClassVar[bool] = False
    """Its settings state columns: :meth:`tabular` and :meth:`examples` read tables by them."""

    @classmethod
    def load(cls, settings: Any, seed: int) -> Benchmark:
        """Read the benchmark.

        Args:
            settings: an instance of ``Settings``.
            seed: the run's; matters only where something has to be drawn, such as validation
                classes.

        Raises:
            DataError: if a file is missing, damaged or inconsistent.
        """
        raise TypeError(f"{cls.__name__} must say how it is loaded")

    @classmethod
    def read(cls, path: Path, settings: Any) -> NDArray[Any]:
        """Read one file of inputs as the benchmark's own samples are read: an image, a text, or
        vectors.

        Args:
            path: the file.
            settings: an instance of ``Settings``.

        Returns:
            Shape (n, ...): samples as ``Benchmark.features`` has them.

        A picture may come in memory, as :class:`~fedunseen.data.io.images.ImageBytes`, which Pillow
        opens.

        Raises:
            DataError: if the file is missing, damaged or of another kind.
        """
        return read_features(Path(path))

    @classmethod
    def tabular(cls, source: Any, settings: Any) -> Iterator[NDArray[Any]] | None:
        """Return the samples (n, d) of a table block by block, by the columns that the settings
        state.

        Args:
            source: a file, a folder of parts, a data frame, or a list of rows, each a mapping of
                column -> cell.
            settings: an instance of ``Settings``.

        Returns:
            None where ``source`` is no table.

        Raises:
            DataError: the table is damaged, lacks a column, or has a cell of another kind.
        """
        raise TypeError(f"{cls.__name__} has no columns")

    @classmethod
    def examples(cls, source: Any, settings: Any) -> dict[str, NDArray[Any]] | None:
        """Return class name -> samples (n, d) of a table with a column of classes; otherwise as
        :meth:`tabular`.
        """
        raise TypeError(f"{cls.__name__} has no columns")

    @classmethod
    def first_settings(cls, root: Path, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return what ``[data]`` needs beside the root and a party's ``own`` settings to look at
        its folder, before a coordinator has said what it asks for.
        """
        return {}

    @classmethod
    def holds(cls, folder: Path) -> bool:
        """Say whether a folder is the root of this benchmark."""
        return bool(cls.needs) and part_of_layout(folder, cls.needs[0]) is not None

    @classmethod
    def glance(cls, settings: Any) -> None:
        """Refuse what is seen at once to be wrong with the files: :meth:`load` would refuse it too,
        seconds later.
        """

    @classmethod
    def find(cls, folder: Path) -> list[Path]:
        """Return the roots of this benchmark in a folder: itself, or one of the usual names in it;
        often none.
        """
        candidates = (folder, *(folder / name for name in cls.folders))
        return next(([candidate] for candidate in candidates if cls.holds(candidate)), [])

    @classmethod
    def search(cls, folder: Path) -> list[Path]:
        """Return the roots of this benchmark in a folder with data sets and in its sub-folders,
        sorted.
        """
        folders = (
            [folder, *(path for path in folder.iterdir() if path.is_dir())]
            if folder.is_dir()
            else []
        )
        return sorted({place for inside in folders for place in cls.find(inside)})

    @classmethod
    def home(cls, root: Path) -> Path:
        """Return the root that :meth:`find` finds first, otherwise ``root`` itself."""
        return next(iter(cls.find(root.expanduser())), root.expanduser())

    @classmethod
    def missing(cls, root: Path, settings: Mapping[str, Any]) -> list[str]:
        """Return what of ``needs`` a root lacks; ``settings`` are settings beside the root."""
        return [
            part.replace("|", " or ") for part in cls.needs if part_of_layout(root, part) is None
        ]

    @classmethod
    def parts(cls, root: Path) -> tuple[Path, list[Path]]:
        """Return the root and the places of all that the layout needs."""
        get = f"get {re.split('[,:]', cls.title)[0]} ({cls.page})"
        root = cls.home(existing_folder(root.expanduser(), f"{get}, or correct data.root"))
        if missing := cls.missing(root, {}):
            raise DataError(
                f"{root} has no {missing[0]}: {get} and unpack it there, or correct data.root"
            )
        return root, [
            place for part in cls.needs if (place := part_of_layout(root, part)) is not None
        ]

    @classmethod
    def damaged(cls, where: object, problem: str) -> DataError:
        """Return the error that says what is wrong with a file of the benchmark."""
        return DataError(f"{where} {problem}: get it again ({cls.page})")

    @classmethod
    def resembles(cls, folder: Path) -> float:
        """Return the share of the layout that a folder has; 0 where that is too little to tell."""
        present = sum(part_of_layout(folder, part, outside=False) is not None for part in cls.needs)
        enough = present > 1 or len(cls.needs) < 3  # a folder `images` alone may be anybody's
        return present / len(cls.needs) if present and enough else 0.0

    @classmethod
    def section(cls, root: Path) -> dict[str, Any]:
        """Return what ``[data]`` says, besides the name, to use what :meth:`find` found."""
        return {"root": str(root)}

    @classmethod
    def describe(cls) -> str:
        """Say in one line what the benchmark is, who publishes it and which files it needs."""
        return f"{cls.title} ({cls.page}: {cls.files()})"

    @classmethod
    def files(cls) -> str:
        """Name the files of the layout for people."""
        return (
            cls.layout
            or ", ".join(part.partition("|")[0] for part in cls.needs)
            or "nothing to download"
        )

    @classmethod
    def inspect(cls, settings: Any, everything: bool = False) -> dict[str, Any]:
        """Count what there is, for ``fedunseen data check``.

        Args:
            settings: an instance of ``Settings``.
            everything: look at every sample too, where counting does not need it.

        Returns:
            JSON values: those of :func:`count`, and perhaps ``problems``, a list of sentences.

        Raises:
            DataError: as :meth:`load`.
        """
        benchmark = cls.load(settings, seed=0)
        splits = {
            split: getattr(benchmark, split) for split in ("train", "test_seen", "test_unseen")
        }
        return count(benchmark.space, benchmark.labels, splits, benchmark.kind)


def can_be_centered(space: ClassSpace) -> bool:
    """Return whether descriptions can be centered and brought to unit length: none is exactly their
    mean.
    """
    try:
        fit_semantics(space, ("centre", "l2"))(space.semantics)
    except DataError:
        return False
    return space.attributes > 0


def to_spare(space: ClassSpace, labels: NDArray[Any]) -> bool:
    """Say whether half of the seen classes have two training samples and more, so that some can be
    held out.
    """
    samples = np.bincount(labels[labels >= 0], minlength=len(space.names))[space.seen]
    return bool(len(samples) and 2 * np.count_nonzero(samples >= 2) >= len(samples))


def count(
    space: ClassSpace, labels: NDArray[Any], splits: Mapping[str, NDArray[Any]], kind: str
) -> dict[str, Any]:
    """Return the numbers of samples, classes and attributes as JSON values, and what a class lacks
    to be used.
    """
    trained = {int(c) for c in labels[splits["train"]]}
    each = np.bincount(labels[np.concatenate(list(splits.values()))])
    return {
        "kind": kind,
        "samples": sum(map(len, splits.values())),
        **{split: len(ids) for split, ids in splits.items()},
        "classes": len(space.names),
        "attributes": space.attributes,
        "groups": len(space.attribute_groups),
        "grouped": sum(map(len, space.attribute_groups.values())),
        "seen": len(space.seen),
        "validation": len(space.validation),
        "unseen": len(space.unseen),
        "centred": can_be_centered(space),
        "spare": to_spare(space, labels[splits["train"]]),
        "smallest": int(min(each[each > 0], default=0)),
        "untrained": [space.names[c] for c in space.seen.tolist() if c not in trained],
    }


def part_of_layout(root: Path, part: str, outside: bool = True) -> Path | None:
    """Return the first of the alternatives ``a|b`` that is there; without ``outside`` none beside
    the root counts.
    """
    for alternative in part.split("|"):
        if alternative.startswith("..") and not outside:
            continue
        for path in sorted(root.glob(alternative)) if "*" in alternative else [root / alternative]:
            if path.exists():
                return path
    return None
