"""The features or the statistics of many samples, each block done once.

What a worker makes of a block is a file in ``OUT.blocks``, whole or absent, so that a call that was
killed continues behind the blocks that are done. On a cluster all nodes must reach that folder.
Statistics are added up by a tree of groups of :data:`FAN` files: whole numbers, whose sum has the
same bits by any tree.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.arrays import load_arrays
from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.files import (
    check_unlinked,
    free_folder,
    parse_json,
    refuse_link,
    replacing,
    whole_folder,
    write_json,
)
from fedunseen.deploy.engines.engine import Engine, Loop
from fedunseen.deploy.engines.planned import Planned, absolute, planned
from fedunseen.deploy.engines.sources import Source, open_source
from fedunseen.experiment.party_statistics import Tell
from fedunseen.statistics import Statistics

FAN = 8
"""Files that are added up at once."""

OTHER_SAMPLES = "other-samples"

_PLAN = "plan"  # the file of the empty statistics, among those of blocks


def _quiet(done: int, total: int) -> None:
    """Show nothing."""


def statistics(
    plan: str | Path, source: str, out: Path, engine: Engine, tell: Tell = _quiet
) -> Statistics:
    """Write the statistics of all samples of a source, as a plan's model takes them.

    Args:
        plan: a run, an experiment or a model's file, whose classes, encoder and scaling are taken:
            see :func:`.planned.planned`.
        source: a party's folder, or what :mod:`.sources` reads.
        out: the new file.
        engine: where blocks are counted.
        tell: shows progress: how many blocks are done, and of how many.

    Raises:
        DataError: samples cannot be read, or have changed since an earlier call was killed.
        ExperimentError: ``out`` exists, or the plan's statistics are not whole numbers that add up.
    """
    if out.exists():
        raise ExperimentError(f"{out} exists already: name another file with --out")
    what = planned(plan)
    empty = what.empty()
    opened = source_of(what, source)
    parts = _parts(out, [opened.stamp, empty.planned.digest])
    empty.save(parts / _PLAN)
    make = partial(Counting, absolute(plan), _absolute(source), str(parts))
    files = _done(engine, make, opened.blocks, parts, ".statistics", tell)
    total = _added(engine, files, parts)
    empty.check_same_plan(total)
    total.save(out)
    shutil.rmtree(parts)
    return total


def encode(plan: str | Path, source: str, out: Path, engine: Engine, tell: Tell = _quiet) -> int:
    """Write the features that a plan's encoder makes of a source, as a party's folder; return how
    many samples it has.

    Args:
        plan: a run or an experiment, whose encoder and classes are taken.
        source: pictures: a party's folder, or what :mod:`.sources` reads.
        out: the new folder: ``features.npz`` and ``classes.csv``.
        engine: where blocks are encoded.
        tell: shows progress: how many blocks are done, and of how many.

    Raises:
        DataError: samples cannot be read, or have changed since an earlier call was killed.
        RunDirectoryError: ``out`` is not free.
    """
    free_folder(out)
    what = planned(plan)
    opened = source_of(what, source)
    parts = _parts(out, [opened.stamp, what.features_from])
    make = partial(Encoding, absolute(plan), _absolute(source), str(parts))
    files = _done(engine, make, opened.blocks, parts, ".npz", tell)
    with whole_folder(out) as folder:
        samples = _joined(files, folder / "features.npz")
        what.space.save(folder / "classes.csv")
    shutil.rmtree(parts)
    return samples


def source_of(what: Planned, place: str) -> Source:
    """Return the samples of a place, read and encoded as a plan's model takes them."""
    return open_source(place, dict(what.settings), what.space, what.features, what.see)


class Counting:
    """Adds up the samples of a block in a worker."""

    def __init__(self, plan: str, source: str, parts: str) -> None:
        self.parts = Path(parts)
        self.empty = Statistics.load(self.parts / _PLAN)
        self.source = source_of(planned(plan), source)

    def __call__(self, item: list[Any]) -> str:
        """Write the statistics of a block, unless another worker has; return the file's name."""
        name, block = item
        path = self.parts / name
        if not path.exists():
            total = Statistics.plan(self.empty)
            for rows, labels, mark in self.source.read(block):
                total.add(rows, labels, mark)
            total.save(path)
        return str(name)


class Encoding:
    """Encodes the samples of a block in a worker."""

    def __init__(self, plan: str, source: str, parts: str) -> None:
        self.source = source_of(planned(plan), source)
        self.parts = Path(parts)

    def __call__(self, item: list[Any]) -> str:
        """Write the features of a block, unless another worker has; return the file's name."""
        name, block = item
        path = self.parts / name
        if not path.exists():
            pieces = [(rows, labels) for rows, labels, _ in self.source.read(block)]
            features = np.concatenate([rows for rows, _ in pieces])
            labels = np.array([label for _, some in pieces for label in some])
            with replacing(path) as temporary, temporary.open("wb") as file:
                np.savez(file, allow_pickle=False, features=features, labels=labels)
        return str(name)


class Merging:
    """Adds up files of statistics in a worker."""

    def __init__(self, parts: str) -> None:
        self.parts = Path(parts)

    def __call__(self, item: list[Any]) -> str:
        """Write the sum of some files, unless it is there; return the file's name."""
        name, files = item
        path = self.parts / name
        if not path.exists():
            total = _read(self.parts / files[0])
            for file in files[1:]:
                total = total + _read(self.parts / file)
            total.save(path)
        return str(name)


def _read(path: Path) -> Statistics:
    """Read the statistics of a block; what a worker has damaged is removed, to be made again."""
    try:
        return Statistics.load(path)
    except DataError as error:
        path.unlink(missing_ok=True)
        raise error.reworded(
            f"{error}; or repeat the command, which makes this block again"
        ) from None


def _absolute(source: str) -> str:
    return source if "://" in source else str(Path(source).resolve())


def _parts(out: Path, what: list[Any]) -> Path:
    """Return the folder of the blocks, once it is known to be of the same samples and plan."""
    parts = out.with_name(f"{out.name}.blocks")
    record = parts / "source.json"
    refuse_link(parts)
    check_unlinked(parts)
    try:
        same = not record.exists() or parse_json(record.read_bytes()) == what
    except ValueError:
        same = False
    if not same:
        raise DataError(
            f"{parts} has blocks of other samples or of another plan: delete it to begin again",
            OTHER_SAMPLES,
        )
    parts.mkdir(parents=True, exist_ok=True)
    write_json(record, what)
    return parts


def _done(
    engine: Engine,
    make: Callable[[], Any],
    blocks: Sequence[Any],
    parts: Path,
    suffix: str,
    tell: Tell,
) -> list[Path]:
    """Return the file of each block, once all are done."""
    if not blocks:
        raise DataError("there is no sample: correct SOURCE", "no-samples")
    names = [f"{number:06d}{suffix}" for number in range(len(blocks))]
    waiting = [
        [name, block]
        for name, block in zip(names, blocks, strict=True)
        if not (parts / name).exists()
    ]
    done = len(names) - len(waiting)
    for _ in engine.map(make, waiting):
        done += 1
        tell(done, len(names))
    return [parts / name for name in names]


def _added(engine: Engine, files: Sequence[Path], parts: Path) -> Statistics:
    """Return the sum of files, by a tree."""
    names = [path.name for path in files]
    level = 0
    while len(names) > 1:
        level += 1
        items = [
            [f"sum-{level}-{start:06d}", names[start : start + FAN]]
            for start in range(0, len(names), FAN)
        ]
        where = engine if len(items) > FAN else Loop()  # a few are quicker than workers start
        names = sorted(where.map(partial(Merging, str(parts)), items))
    return _read(parts / names[0])


def _joined(files: Sequence[Path], out: Path) -> int:
    """Write the features of all blocks as one file, a block in memory at a time."""
    labels: list[NDArray[Any]] = []
    shapes = []
    for path in files:
        arrays = _block(path)
        labels.append(arrays["labels"])
        shapes.append((arrays["features"].shape, arrays["features"].dtype))
    kinds = {(shape[1:], dtype.str) for shape, dtype in shapes}
    if len(kinds) > 1:
        raise DataError("samples have different shapes or types: keep those of one kind in SOURCE")
    rows = sum(int(shape[0]) for shape, _ in shapes)
    names = np.concatenate(labels)
    header = {
        "descr": np.lib.format.dtype_to_descr(shapes[0][1]),
        "fortran_order": False,
        "shape": (rows, *shapes[0][0][1:]),
    }
    with (
        replacing(out, follow=True) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as file,
    ):
        with file.open("features.npy", "w", force_zip64=True) as array:
            np.lib.format.write_array_header_1_0(array, header)
            for path in files:
                array.write(np.ascontiguousarray(_block(path)["features"]).data)
        for name, value in (("labels", names), ("split", np.full(rows, "train"))):
            with file.open(f"{name}.npy", "w") as array:
                np.lib.format.write_array(array, value, allow_pickle=False)
    return rows


def _block(path: Path) -> dict[str, NDArray[Any]]:
    try:
        return load_arrays(path, ("features", "labels"))
    except DataError as error:
        path.unlink(missing_ok=True)
        raise error.reworded(f"{error}; repeat the command, which makes this block again") from None
