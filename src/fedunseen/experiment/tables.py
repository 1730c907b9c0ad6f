"""A run's numbers as tables, to be read by another program, and beside those of another run, with
95 % intervals.

A table is a dictionary of columns, as ``pandas.DataFrame`` takes it; what was not measured is None.
With several seeds, every table has all of them, with a column ``seed``. A run without a merged
model has no classes and confusions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen import metrics
from fedunseen.core.errors import ExperimentError, RunDirectoryError
from fedunseen.core.files import write_text
from fedunseen.core.latex import tabular
from fedunseen.data import ClassSpace
from fedunseen.data.io.csv_io import write_table
from fedunseen.evaluation.measures import FEW_SHOT, ZERO_SHOT
from fedunseen.experiment.result.stored import StoredRun
from fedunseen.metrics import (
    class_difference,
    episode_confusion,
    harmonic_difference,
    paired_difference,
)

Table = dict[str, list[Any]]
"""Name of a column -> its values, all columns of one length."""


def tables(run: StoredRun) -> dict[str, Table]:
    """Return a run's tables by name; see the top of this file."""
    if not run.seeds:
        return _tables(run)
    by_name: dict[str, Table] = {}
    for seed_run in run.seeds:
        for name, table in _tables(seed_run).items():
            rows = len(next(iter(table.values())))
            by_name[name] = _stacked(
                by_name.get(name), {"seed": [seed_run.manifest["seed"]] * rows, **table}
            )
    return by_name


def write_tables(run: StoredRun, folder: Path, latex: bool = False) -> list[Path]:
    """Write each table into a folder as ``NAME.csv`` or ``NAME.tex``, and return their paths.

    What was not measured is empty. LaTeX is a ``tabular`` of booktabs, whose numbers have four
    digits.
    """
    if folder.exists() and not folder.is_dir():
        raise RunDirectoryError(f"{folder} is a file: name a folder for the tables")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, table in tables(run).items():
        rows = list(zip(*table.values(), strict=True))
        paths.append(folder / f"{name}.{'tex' if latex else 'csv'}")
        if latex:
            numbers = [
                all(v is None or isinstance(v, (int, float)) for v in column)
                for column in table.values()
            ]
            write_text(
                paths[-1],
                tabular(list(table), [[_written(v) for v in row] for row in rows], numbers),
            )
        else:
            write_table(paths[-1], [list(table), *rows])
    return paths


def _written(value: Any) -> str:
    """Write a cell with at most four digits; what was not measured is empty."""
    if value is None:
        return ""
    return (
        (str(int(value)) if value.is_integer() else f"{value:.4g}")
        if isinstance(value, float)
        else str(value)
    )


def _tables(run: StoredRun) -> dict[str, Table]:
    try:
        return _tables_of(run, run.evaluation)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise RunDirectoryError(
            f"{run.path / 'evaluation.safetensors'} is damaged ({type(error).__name__}): restore "
            "it, or run the experiment again in another --out"
        ) from error


def _tables_of(run: StoredRun, stored: Mapping[str, NDArray[Any]]) -> dict[str, Table]:
    lines = [dict(_numbers(line)) for line in run.metrics]
    columns = dict.fromkeys(name for line in lines for name in line)
    by_name: dict[str, Table] = {
        "rounds": {name: [line.get(name) for line in lines] for name in columns}
    }
    if "zsl_answers" in stored:
        by_name |= _zero_shot(
            run.space, *(stored[name] for name in ("labels", "zsl_answers", "gzsl_answers"))
        )
    elif "answers" in stored:
        ways = run.manifest["experiment"]["method"]["ways"]
        episodes = run.result["test_episodes"]
        by_name |= _few_shot(
            run.space, *(stored[name].reshape(episodes, ways, -1) for name in ("labels", "answers"))
        )
    if "client_counts" in stored:
        clients, classes = np.nonzero(stored["client_counts"])
        by_name["clients"] = {
            "client": clients.tolist(),
            "class": [run.space.names[c] for c in classes.tolist()],
            "samples": stored["client_counts"][clients, classes].astype(np.int64).tolist(),
        }
    return by_name


def _numbers(line: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """Return the numbers of a line of metrics, those of a section within it as ``section.name``."""
    numbers: list[tuple[str, float]] = []
    for name, value in line.items():
        if isinstance(value, Mapping):
            numbers += _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float)):
            numbers.append((prefix + name, value))
    return numbers


def _zero_shot(
    space: ClassSpace, labels: NDArray[Any], zsl: NDArray[Any], gzsl: NDArray[Any]
) -> dict[str, Table]:
    tested = np.unique(labels)
    unseen = np.intersect1d(space.unseen, labels)
    of_unseen = metrics.per_class(labels, zsl, tested)
    return {
        "classes": {
            "class": [space.names[c] for c in tested],
            "split": ["unseen" if c in unseen else "seen" for c in tested],
            "samples": [int((labels == c).sum()) for c in tested],
            "zsl": [_value(of_unseen[i]) if c in unseen else None for i, c in enumerate(tested)],
            "gzsl": [_value(accuracy) for accuracy in metrics.per_class(labels, gzsl, tested)],
        },
        "confusion_zsl": _confusion(space, metrics.confusion(labels, zsl, unseen), unseen),
        "confusion_gzsl": _confusion(space, metrics.confusion(labels, gzsl, tested), tested),
    }


def _few_shot(space: ClassSpace, labels: NDArray[Any], answers: NDArray[Any]) -> dict[str, Table]:
    ids = np.unique(labels)
    table, together = episode_confusion(labels, answers, ids)
    return {
        "classes": {
            "class": [space.names[c] for c in ids],
            "samples": (np.diag(together) * labels.shape[2]).tolist(),
            "accuracy": [_value(accuracy) for accuracy in np.diag(table)],
        },
        "confusion": _confusion(space, table, ids),
    }


def _confusion(space: ClassSpace, table: NDArray[np.float64], ids: NDArray[np.int64]) -> Table:
    names = [space.names[c] for c in ids]
    answers = {
        name: [_value(share) for share in column]
        for name, column in zip(names, table.T, strict=True)
    }
    return {"class": names, **answers}


def _value(number: float) -> float | None:
    return None if math.isnan(number) else float(number)


def _stacked(upper: Table | None, lower: Table) -> Table:
    """Put the rows of one table below another's; where only one has a column, the other's values
    are None.
    """
    if upper is None:
        return lower
    above, below = (len(next(iter(table.values()))) for table in (upper, lower))
    columns = dict.fromkeys([*upper, *lower])
    return {
        name: upper.get(name, [None] * above) + lower.get(name, [None] * below) for name in columns
    }


_NAMES = (FEW_SHOT[0], *ZERO_SHOT)
_EPISODES = (
    "ways",
    "shots",
    "queries",
    "permute_labels",
)  # runs that agree in these have the same episodes for a seed
# Settings of [data] that leave the test episodes as they are.
_NOT_TESTED = {"root", "features", "semantics", "vectors", "train_per_class"}


@dataclass(frozen=True)
class Comparison:
    """How much better a run is than another.

    ``left_out`` counts test samples that only one of them was measured on: the other was shown
    them as examples.
    """

    run: StoredRun
    other: StoredRun
    over: str
    count: int
    differences: Mapping[str, tuple[float, float]]
    left_out: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON; null for an interval that is not finite."""
        differences = {
            name: {"difference": mean, "ci95": half if np.isfinite(half) else None}
            for name, (mean, half) in self.differences.items()
        }
        paths = {"run": str(self.run.path), "other": str(self.other.path)}
        counts = {"over": self.over, "count": self.count, "left_out": self.left_out}
        return {**paths, **counts, "differences": differences}


def compare(run: StoredRun, other: StoredRun) -> Comparison:
    """Compare two runs seed by seed or, of one seed, question by question.

    An interval over seeds says how the difference varies from training to training. One over test
    episodes or samples only says how it varies from question to question, for these two models. Of
    two runs that were shown some test samples as examples, those that both were measured on count.
    """
    names: list[str] = [name for name in _NAMES if name in run.result and name in other.result]
    least = min(len(run.space.names), len(other.space.names))  # one may have learned more
    data, other_data = (
        (r.manifest["benchmark"], r.space.names[:least], [c for c in r.space.unseen if c < least])
        for r in (run, other)
    )
    if not names or data != other_data:
        raise _apart(run, other, "their data or classes are not the same")
    if _seeds(run) != _seeds(other):
        raise _apart(run, other, "their seeds are not the same")
    if (run.result["selection"] == "best-on-test") != (other.result["selection"] == "best-on-test"):
        raise _apart(
            run,
            other,
            "one chose its round on the test samples (evaluation.selection = 'best-on-test')",
        )
    few = names == ["few_shot"]
    if few and _episodes(run) != _episodes(other):
        raise _apart(
            run,
            other,
            f"their episodes are not the same (method.{', '.join(_EPISODES)}, how many, or [data])",
        )
    pairs = list(zip(run.seeds or [run], other.seeds or [other], strict=True))
    both = [_measured_on_both(*pair) for pair in pairs]
    if run.seeds:
        each = {
            name: [[seed.result[name] for seed in compared.seeds] for compared in (run, other)]
            for name in names
        }
        differences = {name: paired_difference(*np.array(values)) for name, values in each.items()}
        return Comparison(run, other, "seeds", len(run.seeds), differences)
    if few:
        ours, theirs = (_needed(compared, "episode_accuracies") for compared in (run, other))
        return Comparison(
            run, other, "episodes", len(ours), {"few_shot": paired_difference(ours, theirs)}
        )
    return _over_samples(run, other, names, *both[0])


def _over_samples(
    run: StoredRun,
    other: StoredRun,
    names: Sequence[str],
    ours: NDArray[np.bool_],
    theirs: NDArray[np.bool_],
) -> Comparison:
    """Compare two runs test sample by test sample, on those that ``ours`` and ``theirs`` mark."""
    first, _ = (_needed(compared, "labels") for compared in (run, other))
    labels = first[ours]
    zsl, gzsl = (
        [_needed(compared, name)[on] == labels for compared, on in ((run, ours), (other, theirs))]
        for name in ("zsl_answers", "gzsl_answers")
    )
    unseen = np.isin(labels, run.space.unseen)
    differences = {
        "zsl": class_difference(labels[unseen], *(right[unseen] for right in zsl)),
        "gzsl_unseen": class_difference(labels[unseen], *(right[unseen] for right in gzsl)),
        "gzsl_seen": class_difference(labels[~unseen], *(right[~unseen] for right in gzsl)),
        "gzsl_harmonic": harmonic_difference(labels, ~unseen, *gzsl),
    }
    chosen = {name: differences[name] for name in names}
    alone = int((~ours).sum() + (~theirs).sum())
    return Comparison(run, other, "samples", len(labels), chosen, alone)


def _measured_on_both(
    run: StoredRun, other: StoredRun
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which test samples of each of two runs the other was measured on too, (n,) and (m,)
    bool.

    Raises:
        ExperimentError: these are not the same, or of one kind of class there are none.
    """
    compared = (run, other)
    labels = [each.evaluation.get("labels", np.zeros(0, np.int64)) for each in compared]
    left_out = [each.evaluation.get("left_out_tests", labels[0][:0]) for each in compared]
    sizes = [len(a) + len(b) for a, b in zip(labels, left_out, strict=True)]
    places = [np.setdiff1d(np.arange(n), gone) for n, gone in zip(sizes, left_out, strict=True)]
    ours = np.isin(places[0], places[1])
    theirs = np.isin(places[1], places[0])
    if all(map(len, labels)) and (
        sizes[0] != sizes[1] or not np.array_equal(labels[0][ours], labels[1][theirs])
    ):
        raise _apart(run, other, "their test samples are not the same")
    if any(map(len, left_out)):
        unseen = np.isin(labels[0][ours], run.space.unseen)
        if unseen.all() or not unseen.any():
            why = "no test samples of seen or of unseen classes are left that neither was shown"
            raise _apart(run, other, why)
    return ours, theirs


def _seeds(run: StoredRun) -> list[int]:
    return [seed.manifest["seed"] for seed in run.seeds or [run]]


def _episodes(run: StoredRun) -> tuple[object, ...]:
    experiment = run.manifest["experiment"]
    count = (run.seeds or [run])[0].result["test_episodes"]
    data = {name: value for name, value in experiment["data"].items() if name not in _NOT_TESTED}
    return count, data, *(experiment["method"][name] for name in _EPISODES)


def _needed(run: StoredRun, name: str) -> NDArray[Any]:
    """Return a tensor of the answers that a run recorded."""
    if (tensor := run.evaluation.get(name)) is None:
        raise ExperimentError(
            f"{run.path} keeps no answers (every client's model has its own): compare runs of "
            "several seeds"
        )
    return tensor


def _apart(run: StoredRun, other: StoredRun, why: str) -> ExperimentError:
    return ExperimentError(f"{run.path} and {other.path} cannot be compared: {why}")
