"""A run's numbers as tables: what the pages draw, to be read by another program.

A table is a dictionary of columns, as ``pandas.DataFrame`` takes it; what was not measured is None. With several seeds,
every table has all of them, with a column ``seed``. A run without a merged model has no classes and confusions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedunseen import metrics
from fedunseen.core.errors import RunDirectoryError
from fedunseen.core.files import write_text
from fedunseen.core.latex import tabular
from fedunseen.data.io.csv_io import write_csv
from fedunseen.metrics import episode_confusion

if TYPE_CHECKING:
    from fedunseen.data import ClassSpace
    from fedunseen.experiment import Run

Table = dict[str, list[Any]]
"""Name of a column -> its values, all columns of one length."""


def tables(run: Run) -> dict[str, Table]:
    """Return a run's tables by name; see the top of this file."""
    if not run.seeds:
        return _tables(run)
    found: dict[str, Table] = {}
    for one in run.seeds:
        for name, table in _tables(one).items():
            rows = len(next(iter(table.values())))
            found[name] = _stacked(found.get(name), {"seed": [one.manifest["seed"]] * rows, **table})
    return found


def write_tables(run: Run, folder: Path, latex: bool = False) -> list[Path]:
    """Write each table into a folder as ``NAME.csv`` or ``NAME.tex``, and return their paths.

    What was not measured is empty. LaTeX is a ``tabular`` of booktabs, whose numbers have four digits.
    """
    if folder.exists() and not folder.is_dir():
        raise RunDirectoryError(f"{folder} is a file: name a folder for the tables")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, table in tables(run).items():
        rows = list(zip(*table.values(), strict=True))
        paths.append(folder / f"{name}.{'tex' if latex else 'csv'}")
        if latex:
            numbers = [all(v is None or isinstance(v, (int, float)) for v in column) for column in table.values()]
            write_text(paths[-1], tabular(list(table), [[_written(v) for v in row] for row in rows], numbers))
        else:
            write_csv(paths[-1], [list(table), *(["" if v is None else str(v) for v in row] for row in rows)])
    return paths


def _written(value: Any) -> str:
    """Write a cell with at most four digits; what was not measured is empty."""
    if value is None:
        return ""
    return (str(int(value)) if value.is_integer() else f"{value:.4g}") if isinstance(value, float) else str(value)


def _tables(run: Run) -> dict[str, Table]:
    stored = run.evaluation
    found = {"rounds": _rounds(run.metrics)}
    if "zsl_answers" in stored:
        found |= _zero_shot(run.space, *(stored[name] for name in ("labels", "zsl_answers", "gzsl_answers")))
    elif "answers" in stored:
        ways, episodes = run.manifest["experiment"]["method"]["ways"], run.result["test_episodes"]
        found |= _few_shot(run.space, *(stored[name].reshape(episodes, ways, -1) for name in ("labels", "answers")))
    if "client_counts" in stored:
        clients, classes = np.nonzero(stored["client_counts"])
        found["clients"] = {
            "client": clients.tolist(),
            "class": [run.space.names[c] for c in classes.tolist()],
            "samples": stored["client_counts"][clients, classes].astype(np.int64).tolist(),
        }
    return found


def _rounds(lines: list[dict[str, Any]]) -> Table:
    flat = [dict(_numbers(line)) for line in lines]
    columns = dict.fromkeys(name for line in flat for name in line)
    return {name: [line.get(name) for line in flat] for name in columns}


def _numbers(line: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """Return the numbers of a line of metrics, those of a section within it as ``section.name``."""
    found: list[tuple[str, float]] = []
    for name, value in line.items():
        if isinstance(value, Mapping):
            found += _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float)):
            found.append((prefix + name, value))
    return found


def _zero_shot(space: ClassSpace, labels: NDArray[Any], zsl: NDArray[Any], gzsl: NDArray[Any]) -> dict[str, Table]:
    tested, unseen = np.unique(labels), np.intersect1d(space.unseen, labels)
    of_unseen = metrics.per_class(labels, zsl, tested)
    return {
        "classes": {
            "class": [space.names[c] for c in tested],
            "split": ["unseen" if c in unseen else "seen" for c in tested],
            "samples": [int((labels == c).sum()) for c in tested],
            "zsl": [_value(of_unseen[i]) if c in unseen else None for i, c in enumerate(tested)],
            "gzsl": [_value(one) for one in metrics.per_class(labels, gzsl, tested)],
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
            "accuracy": [_value(one) for one in np.diag(table)],
        },
        "confusion": _confusion(space, table, ids),
    }


def _confusion(space: ClassSpace, table: NDArray[np.float64], ids: NDArray[np.int64]) -> Table:
    names = [space.names[c] for c in ids]
    answers = {name: [_value(one) for one in column] for name, column in zip(names, table.T, strict=True)}
    return {"class": names, **answers}


def _value(number: float) -> float | None:
    return None if math.isnan(number) else float(number)


def _stacked(upper: Table | None, lower: Table) -> Table:
    """Put the rows of one table below another's; where only one has a column, the other's values are None."""
    if upper is None:
        return lower
    above, below = (len(next(iter(table.values()))) for table in (upper, lower))
    columns = dict.fromkeys([*upper, *lower])
    return {name: upper.get(name, [None] * above) + lower.get(name, [None] * below) for name in columns}
