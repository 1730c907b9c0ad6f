"""Accuracy class by class, and which unseen classes are taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen import metrics
from fedunseen.report import statistics
from fedunseen.report.charts import histogram
from fedunseen.report.maps import confusion_map
from fedunseen.report.parts import LISTED, Facts, passages


def most_confused(table: NDArray[np.float64], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the classes most often called another, from percentages (m, m) of true classes and answers."""
    wrong = np.where(np.eye(len(table), dtype=bool), 0.0, np.nan_to_num(table))
    worst = [divmod(int(i), len(table)) for i in np.argsort(-wrong, axis=None, kind="stable")[:6]]
    return [{"true": names[i], "answer": names[j], "share": float(wrong[i, j])} for i, j in worst if wrong[i, j] >= 0.5]


def classes(facts: Facts) -> dict[str, Any]:
    """Rank classes by accuracy, and say which unseen classes are taken for which."""
    if "labels" not in facts.tensors:
        return {"classes": None}
    tensors, count, unseen = facts.tensors, len(facts.names), facts.unseen
    labels, zsl_answers, gzsl_answers = (
        tensors[name].astype(np.int64) for name in ("labels", "zsl_answers", "gzsl_answers")
    )
    zsl = metrics.per_class(labels, zsl_answers, range(count))
    gzsl = metrics.per_class(labels, gzsl_answers, range(count))
    samples = np.bincount(labels, minlength=count)
    ranked = unseen[np.lexsort((gzsl[unseen], np.nan_to_num(zsl[unseen], nan=-1.0)))[::-1]]
    bars = [
        {
            "name": facts.names[c],
            "zsl": None if np.isnan(zsl[c]) else float(zsl[c]),
            "gzsl": None if np.isnan(gzsl[c]) else float(gzsl[c]),
            "samples": int(samples[c]),
        }
        for c in ranked.tolist()
    ]
    of_unseen = np.isin(labels, unseen)
    lost = float(100 * (~np.isin(gzsl_answers[of_unseen], unseen)).mean()) if of_unseen.any() else 0.0
    seen = np.setdiff1d(np.flatnonzero(samples), unseen)
    seen = seen[np.argsort(gzsl[seen], kind="stable")]
    scored = [{"name": facts.names[c], "gzsl": float(gzsl[c])} for c in seen.tolist()]
    tested = unseen[samples[unseen] > 0]
    order = tested[statistics.leaf_order(tensors["similarity"][np.ix_(tested, tested)])]
    table = metrics.confusion(labels, zsl_answers, order)
    words = passages("classes", {"lost": lost})
    content = {
        "bars": bars[:LISTED],
        "more_bars": bars[LISTED:],
        "kinds": ("zsl", "gzsl"),
        "of": "test samples",
        "unseen": True,
        "together": False,
        "words": words["ranked"],
        "seen": scored,
        "histogram": histogram(gzsl[seen], "Seen classes by their accuracy", "accuracy %"),
        "confusion": confusion_map(table, facts.of_classes(order)) if len(order) else None,
        "confusion_words": words["confused"],
        "confused": most_confused(table, facts.of_classes(order)),
    }
    return {"classes": content}
