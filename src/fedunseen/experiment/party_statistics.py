"""The statistics of one party's samples, block by block: what was done before a kill stays done."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.files import refuse_link
from fedunseen.experiment.own_samples import OwnSamples
from fedunseen.experiment.result.stored import StoredRun
from fedunseen.statistics import Statistics

BLOCK = 1024  # samples encoded and added before they are kept

Tell = Callable[[int, int], None]
"""Is called with how many samples are done, and of how many."""


def merge_files(files: Sequence[Path], out: Path) -> Statistics:
    """Write the sum of statistics files; none is written where two hold the same samples.

    Raises:
        DataError: a file is damaged, of another plan, or there twice.
    """
    _check_free(out)
    total = Statistics.load(files[0])
    for path in files[1:]:
        total = total + Statistics.load(path)
    total.save(out)
    return total


def write_statistics(
    run: StoredRun, folder: Path, out: Path, tell: Tell = lambda done, total: None
) -> Statistics:
    """Write the statistics of the samples in a folder, as a run's model takes them.

    Each block of samples is encoded, added and kept in ``OUT.partial``, so that a call that was
    killed continues behind its last block.

    Args:
        run: a finished run, whose classes, encoder and scaling are taken.
        folder: of samples, as a party has it: ``classes.csv`` with features, pictures, texts or a
            table.
        out: the new file.
        tell: shows progress.

    Raises:
        DataError: the folder is damaged, has a class that the run lacks, or has changed since an
            earlier call was killed (code ``"other-samples"``).
        ExperimentError: ``out`` exists, or the run's statistics are not whole numbers that add up.
    """
    _check_free(out)
    total = Statistics.plan(run.model)
    settings = run.experiment.data.model_dump(exclude_none=True)
    benchmark = OwnSamples(folder, settings=settings).benchmark
    partial = out.with_name(f"{out.name}.partial")
    names = np.array(benchmark.space.names)
    whose = benchmark.fingerprint()[:16]
    rows = benchmark.train
    refuse_link(partial)
    if partial.exists():
        before = Statistics.load(partial)
        total.check_same_plan(before)
        if any(not mark.startswith(f"{whose} ") for mark in before.marks):
            raise DataError(
                f"{partial} has samples of {folder} as it was before: delete it to begin again",
                "other-samples",
            )
        total = before
    for start in range(0, len(rows), BLOCK):
        some = rows[start : start + BLOCK]
        mark = f"{whose} {start}"
        if mark not in total.marks:
            total.add(run.features_of(benchmark, some), names[benchmark.labels[some]], mark)
            total.save(partial)
        tell(min(start + BLOCK, len(rows)), len(rows))
    total.save(out)
    partial.unlink(missing_ok=True)
    return total


def _check_free(out: Path) -> None:
    if out.exists():
        raise ExperimentError(f"{out} exists already: name another file with --out")
