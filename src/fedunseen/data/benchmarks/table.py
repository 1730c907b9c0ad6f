"""The benchmark ``table``: a table of your own, whose columns the experiment states.

The folder ``root`` has ``classes.csv``, which describes the classes. The table has a column with
the class of each row, and perhaps ``split`` with ``train`` or ``test``. Without it, all rows of
unseen classes and every fifth row of a seen one are for tests; of a ``part``, no row of a seen one.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.array_cache import joined_rows
from fedunseen.core.errors import DataError, unknown
from fedunseen.core.files import existing_folder
from fedunseen.core.originals import Originals
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, check_unlabelled, split_ids
from fedunseen.data.class_space import ClassSpace
from fedunseen.data.class_table import OwnData, class_names, own_class_space
from fedunseen.data.columns import Column, Treatment
from fedunseen.data.columns.first_look import look
from fedunseen.data.columns.texts import ENCODER
from fedunseen.data.columns.treatment import MISSING
from fedunseen.data.io.features import FEATURE_SUFFIXES
from fedunseen.data.io.tables import (
    SPLIT,
    Table,
    find_table,
    is_frame,
    is_table,
    of_frame,
    of_rows,
    open_table,
)
from fedunseen.data.names import composed, did_you_mean

_EVERY = 5  # rows of a seen class: one of them is for tests, the third first
_THIRD = 2


class TableBenchmark(BenchmarkLoader, name="table"):
    """Rows of a table with columns of several kinds."""

    title = "your own table"
    page = "yours"
    layout = "classes.csv, a CSV, Parquet or Arrow table"
    sample = "row"
    reads_tables = True

    class Settings(OwnData):
        """Settings of ``table``."""

        root: Path
        """The folder of the data set, or of several for `xlsa17`, with the files that `fedunseen
        data list` names."""
        table: Path | None = None
        """A CSV, Parquet or Arrow file, a folder of parts, or what `datasets` has saved. Unset:
        the one in `root`."""
        label: str = "label"
        """The column with the class of each row."""
        columns: tuple[Column, ...] = ()
        """The columns that become features, each with `name`, `kind` (`number`, `category`,
        `boolean`, `date`, or `text`, which `text_encoder` or else `minilm` reads), `values` of a
        category, `bounds` of a number or date, `fill` for a missing cell, and `indicator`, which
        marks one. `fedunseen init` writes them."""
        missing: tuple[str, ...] = MISSING
        """Texts that stand for a missing cell."""

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Read the table once; without validation classes ``seed`` draws a fifth of the seen
        classes (not of a part).
        """
        root = existing_folder(settings.root.expanduser(), "correct data.root")
        table = open_table(_place(settings, root))
        space = own_class_space(settings, root, seed)
        rows = _Rows(table, settings, space)
        features = joined_rows(rows.blocks())
        labels = np.concatenate(rows.labels)
        test = np.concatenate(rows.tests)
        if settings.unlabelled and not settings.part:
            check_unlabelled(int((labels < 0).sum()), table.source)
        return Benchmark(
            name=f"table/{root.resolve().name}",
            space=space,
            features=features,
            labels=labels,
            part=settings.part,
            unlabelled=np.flatnonzero(labels < 0),
            originals=Originals.joined(rows.originals) if settings.part else None,
            **split_ids(space, labels, test),
        )

    @classmethod
    def glance(cls, settings: Settings) -> None:
        """Read the class table's names; see :meth:`BenchmarkLoader.glance`."""
        root = existing_folder(settings.root.expanduser(), "correct data.root")
        class_names(root / "classes.csv", settings.text_encoder)
        _place(settings, root)

    @classmethod
    def holds(cls, folder: Path) -> bool:
        """Return whether a folder has a class table and one other table."""
        return (folder / "classes.csv").is_file() and find_table(folder) is not None

    @classmethod
    def section(cls, root: Path) -> dict[str, Any]:
        """Return the root, and the columns as ``init`` would write them."""
        return {"root": str(root), **cls.first_settings(root, {})}

    @classmethod
    def first_settings(cls, root: Path, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a first look suggests; see :meth:`BenchmarkLoader.first_settings`."""
        place = find_table(root)
        if place is None:
            return {}
        names = class_names(root / "classes.csv", "minilm")
        table_facts = look(open_table(place), own.get("label", ""), known=names)
        columns = [
            column.model_dump(exclude_defaults=True, mode="json") for column in table_facts.columns
        ]
        return {"label": table_facts.label, "columns": columns}

    @classmethod
    def tabular(cls, source: Any, settings: Settings) -> Iterator[NDArray[Any]] | None:
        """Return the samples of a table; see :meth:`BenchmarkLoader.tabular`."""
        table = _table_of(source)
        if table is None:
            return None
        treatment = _treatment(settings)
        return _without_labels(table, treatment, settings.label)

    @classmethod
    def examples(cls, source: Any, settings: Settings) -> dict[str, NDArray[Any]] | None:
        """Return the rows of each class of a table; see :meth:`BenchmarkLoader.examples`."""
        table = _table_of(source)
        if table is None:
            return None
        treatment = _treatment(settings)
        rows: dict[str, list[NDArray[Any]]] = defaultdict(list)
        for features, labels, *_ in treatment.read(table, settings.label):
            assert labels is not None
            for name in np.unique(labels[labels != ""]).tolist():
                rows[name].append(features[labels == name])
        if not rows:
            raise DataError(
                f"{table.source}: the column {settings.label!r} names no class: write the class of "
                "each example there",
                "no-labels",
            )
        return {name: np.concatenate(parts) for name, parts in rows.items()}


def _treatment(settings: TableBenchmark.Settings) -> Treatment:
    return Treatment(settings.columns, settings.missing, settings.text_encoder or ENCODER)


def _without_labels(
    table: Table, treatment: Treatment, label: str
) -> Iterator[NDArray[np.float32]]:
    """Yield the features of a table, and say that its classes are ignored."""
    for part in treatment.read(table, asked=True):
        yield part.features
    if label in table.names:
        warnings.warn(
            f"{table.source}: the column {label!r} has the classes, and is ignored", stacklevel=2
        )


class _Rows:
    """The rows of a table, read once.

    Attributes:
        labels: the class ids of each block; -1 for none.
        tests: which rows of each block are for tests.
        originals: the rows as the table holds them, of a part of the data alone.
    """

    def __init__(self, table: Table, settings: TableBenchmark.Settings, space: ClassSpace) -> None:
        self.labels: list[NDArray[np.int64]] = []
        self.tests: list[NDArray[np.bool_]] = []
        self.originals: list[Originals] = []
        self._table = table
        self._label = settings.label
        self._treatment = _treatment(settings)
        self._split = SPLIT if SPLIT in table.names else ""
        self._space = space
        self._missing = settings.missing
        self._part = settings.part
        self._ids = {composed(name): i for i, name in enumerate(space.names)}
        self._so_far: dict[int, int] = defaultdict(int)

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Yield the features of each block, and keep its labels and which rows are for tests."""
        for features, labels, split, block, originals in self._treatment.read(
            self._table, self._label, self._split, whole=self._part
        ):
            assert labels is not None
            ids = self._class_ids(labels, block.where)
            unseen = np.isin(ids, self._space.unseen)
            test = unseen if self._part else self._drawn(ids, unseen)
            if split is not None:
                test = self._stated(split, unseen, block.where)
            self.labels.append(ids)
            self.tests.append(test)
            self.originals += [] if originals is None else [originals]
            yield features

    def _class_ids(self, labels: NDArray[np.str_], where: Any) -> NDArray[np.int64]:
        names, places = np.unique(labels, return_inverse=True)
        ids = []
        for i, name in enumerate(names.tolist()):
            known = self._ids.get(composed(name))
            if known is None and name not in self._missing:
                row = int(np.argmax(places == i))
                place = f"{self._table.source}, {where(row)}, column {self._label!r}"
                raise DataError(
                    f"{place}: {name!r} is not a class of "
                    f"classes.csv{did_you_mean(name, self._space.names)}: add the class there, or "
                    "correct the cell",
                    "unknown-label",
                )
            ids.append(-1 if known is None else known)
        return np.array(ids, dtype=np.int64)[places]

    def _drawn(self, ids: NDArray[np.int64], unseen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which rows are for tests: every fifth of a seen class, from the third on."""
        test = unseen.copy()
        for c in np.unique(ids[~unseen]).tolist():
            mine = np.flatnonzero(ids == c)
            test[mine] = (self._so_far[c] + np.arange(len(mine))) % _EVERY == _THIRD
            self._so_far[c] += len(mine)
        return test

    def _stated(
        self, split: NDArray[np.str_], unseen: NDArray[np.bool_], where: Any
    ) -> NDArray[np.bool_]:
        """Return which rows are for tests, as the column says."""
        wrong = ~np.isin(split, ("train", "test"))
        early = unseen & (split == "train")
        if not (wrong | early).any():
            return np.asarray(split == "test")
        row = int(np.argmax(wrong | early))
        place = f"{self._table.source}, {where(row)}, column {SPLIT!r}"
        if wrong[row]:
            raise DataError(f"{place}: {unknown('split', str(split[row]), ('train', 'test'))}")
        raise DataError(f"{place}: 'train', but its class is unseen: write 'test'")


def _place(settings: TableBenchmark.Settings, root: Path) -> Path:
    """Return where the table is."""
    place = find_table(root) if settings.table is None else settings.table.expanduser()
    if place is None:
        raise DataError(
            f"{root} has no table beside classes.csv, or several: put one there, or name it in "
            "data.table",
            "missing-table",
        )
    return place


def _table_of(source: Any) -> Table | None:
    """Return a file, a folder, a data frame or rows as a table; None of anything else."""
    if isinstance(source, Table):
        return source
    if isinstance(source, (str, Path)):
        path = Path(source)
        other = path.is_file() and path.suffix.lower() not in FEATURE_SUFFIXES
        return open_table(path) if other or is_table(path) else None  # other files are refused
    if is_frame(source):
        return of_frame(source)
    if isinstance(source, list) and source and all(isinstance(row, dict) for row in source):
        return of_rows(source)
    return None
