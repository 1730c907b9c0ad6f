"""What a run reports of its unlabelled samples: accuracies before and after, and what each class got."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.parameters import Params
from fedunseen.data import Benchmark, ClassSpace
from fedunseen.federation import Federation
from fedunseen.methods.closed_form.unlabelled import Adapted, remarks
from fedunseen.metrics import Answers, accuracies, per_class

__all__ = ["adaptation_note", "adapted_numbers", "class_rows", "test_share"]


def adaptation_note(found: Adapted, space: ClassSpace) -> dict[str, Any]:
    """Return what each class got of the samples, and warn where that is odd."""
    for remark in remarks(found, space.names):
        warnings.warn(remark, stacklevel=3)
    refused = [space.names[c] for c in torch.nonzero(found.refused)[:, 0].tolist()]
    return {"samples": found.pool, "refused": refused, "measured": False, "classes": class_rows(space, found)}


def adapted_numbers(
    federation: Federation,
    space: ClassSpace,
    before: Params,
    found: Adapted,
    factor: float,
    names: Sequence[str],
    rows: NDArray[Any] | None,
) -> dict[str, Any]:
    """Return the numbers of an adapted run, among them ``adapted``, its report.

    Args:
        federation: with the test samples.
        space: of the model, which may have learned classes since.
        before: the labelled model.
        found: the adapted one.
        factor: the calibration offset before.
        names: of the accuracies that a run reports.
        rows: (n, ...) the unlabelled samples, as the benchmark's; None: they are elsewhere.
    """
    now = factor * found.offset_share
    share = None if rows is None else test_share(rows, federation.benchmark)
    if share:
        warnings.warn(
            f"{100 * share:.0f} % of the unlabelled samples are test samples: accuracies are transductive", stacklevel=3
        )
    old, new = federation.answers(before), federation.answers(found.params)
    then, numbers, plain = asdict(accuracies(old, factor)), asdict(accuracies(new, now)), asdict(accuracies(new))
    note = adaptation_note(found, space) | {
        "measured": True,
        "test_share": share,
        "before": {name: then[name] for name in names},
        "classes": class_rows(space, found, (old, factor), (new, now)),
    }
    uncalibrated = {f"uncalibrated_{name}": plain[name] for name in names if name != "zsl"}
    return {name: numbers[name] for name in names} | uncalibrated | {"calibration_factor": now, "adapted": note}


def class_rows(
    space: ClassSpace,
    found: Adapted,
    before: tuple[Answers, float] | None = None,
    after: tuple[Answers, float] | None = None,
) -> dict[str, list[Any]]:
    """Return a table of classes: the unlabelled samples that each got, and accuracies among all classes in percent."""
    ids = np.arange(len(space.names))
    table: dict[str, list[Any]] = {
        "class": list(space.names),
        "seen": np.isin(ids, space.seen).tolist(),
        "samples": [round(count, 2) for count in found.samples.tolist()],
    }
    for name, measured in (("before", before), ("after", after)):
        if measured is not None:
            right = per_class(measured[0].labels, measured[0].generalised(measured[1]), ids)
            table[name] = [None if np.isnan(value) else round(float(value), 2) for value in right]
    return table


def test_share(rows: NDArray[Any], benchmark: Benchmark) -> float:
    """Return which share of samples (n, ...) are test samples of a benchmark, by content."""
    tests = benchmark.features[np.concatenate([benchmark.test_unseen, benchmark.test_seen])]
    if tests.shape[1:] != rows.shape[1:]:
        return 0.0
    known = set(_digests(tests))
    return float(np.mean([one in known for one in _digests(rows)]))


def _digests(rows: NDArray[Any]) -> list[bytes]:
    whole = rows if rows.dtype == np.uint8 else rows.astype(np.float32)
    return [hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).digest() for row in whole]
