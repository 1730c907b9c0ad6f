"""What a run reports of its unlabelled samples: accuracies before and after, and what each class got."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.parameters import Params
from fedunseen.data import Benchmark, ClassSpace
from fedunseen.federation import Federation
from fedunseen.methods.closed_form.unlabelled import Adapted
from fedunseen.metrics import Answers, accuracies, per_class


def adaptation_note(adapted: Adapted, names: Sequence[str], **accuracy: tuple[Answers, float]) -> dict[str, Any]:
    """Return what each class got of the samples."""
    ids, seen = np.arange(len(names)), adapted.params["seen_mask"] > 0
    table: dict[str, list[Any]] = {
        "class": list(names),
        "seen": seen.tolist(),
        "samples": [round(count, 2) for count in adapted.samples.tolist()],
    }
    for key, (answers, offset) in accuracy.items():
        right = per_class(answers.labels, answers.generalised(offset), ids)
        table[key] = [None if np.isnan(value) else round(float(value), 2) for value in right]
    refused = [names[c] for c in torch.nonzero(adapted.refused)[:, 0].tolist()]
    return {"samples": adapted.pool, "refused": refused, "measured": bool(accuracy), "classes": table}


def adapted_numbers(
    federation: Federation,
    space: ClassSpace,
    before: Params,
    adapted: Adapted,
    offset: float,
    names: Sequence[str],
    rows: NDArray[Any] | None,
) -> dict[str, Any]:
    """Return the numbers of an adapted run, among them ``adapted``, its report."""
    after = offset * adapted.offset_share
    old, new = federation.answers(before), federation.answers(adapted.params)
    first, numbers = asdict(accuracies(old, offset)), asdict(accuracies(new, after))
    plain = asdict(accuracies(new, -federation.method.own_offset(adapted.params)))
    note = adaptation_note(adapted, space.names, before=(old, offset), after=(new, after))
    note |= {"before": {name: first[name] for name in names}}
    note |= {} if rows is None else {"test_share": test_share(rows, federation.benchmark)}
    uncalibrated = {f"uncalibrated_{name}": plain[name] for name in names if name != "zsl"}
    return {name: numbers[name] for name in names} | uncalibrated | {"calibration_factor": after, "adapted": note}


def test_share(rows: NDArray[Any], benchmark: Benchmark) -> float:
    """Return which share of samples (n, ...) are test samples of a benchmark, by content."""
    tests = benchmark.features[np.concatenate([benchmark.test_unseen, benchmark.test_seen])]
    known = set(_digests(tests)) if tests.shape[1:] == rows.shape[1:] else set()
    return float(np.mean([digest in known for digest in _digests(rows)]))


def _digests(rows: NDArray[Any]) -> list[bytes]:
    whole = rows if rows.dtype == np.uint8 else rows.astype(np.float32)
    return [hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).digest() for row in whole]
