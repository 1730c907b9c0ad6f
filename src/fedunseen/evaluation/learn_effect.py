"""What examples or descriptions of some classes change for them and for the others, on test
samples.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.evaluation.diagnosis import lost_to_learning
from fedunseen.evaluation.summary import listed
from fedunseen.metrics import per_class

Ids = NDArray[np.int64]

NAMED = 3  # classes learned that are named one by one


def learn_effect(
    taught: Mapping[str, int], names: Sequence[str], labels: Ids, before: Ids, after: Ids
) -> dict[str, Any]:
    """Return the accuracies of classes before and after a run has learned, and what they say
    (``text``), as ``result.json`` keeps them.

    Args:
        taught: class -> its new examples; 0: a description alone.
        names: of all classes.
        labels: (n,) classes of the test samples, none of which is an example.
        before: (n,) the answers to them, with all classes to choose from.
        after: (n,) the answers since.
    """
    ids, counts = np.unique(labels, return_counts=True)
    note: dict[str, Any] = {
        "taught": dict(taught),
        "classes": {
            "class": [names[c] for c in ids],
            "tests": counts.tolist(),
            "before": np.round(per_class(labels, before, ids), 2).tolist(),
            "after": np.round(per_class(labels, after, ids), 2).tolist(),
            "taken_by": [_taker(names, labels == c, labels, before, after) for c in ids],
        },
    }
    return note | {"lost": list(lost_to_learning(note)), "text": _words(note)}


def _taker(names: Sequence[str], own: Any, labels: Ids, before: Ids, after: Ids) -> str:
    """Return the class that most of a class's lost samples are now taken for; "" without any."""
    lost = after[own & (before == labels) & (after != labels)]
    return names[int(np.bincount(lost).argmax())] if len(lost) else ""


def _words(note: Mapping[str, Any]) -> str:
    """Say what a run has learned changes: for these classes, for the others together, and for the
    one that loses most.
    """
    table = note["classes"]
    rows = list(zip(*(table[key] for key in ("class", "tests", "before", "after")), strict=True))
    taught = [row for row in rows if row[0] in note["taught"]]
    others = [row for row in rows if row[0] not in note["taught"]]
    parts = [f"{name} from {old:.1f} to {new:.1f} %" for name, _, old, new in taught[:NAMED]]
    if len(taught) > NAMED:
        parts = [f"the {len(taught)} classes learned {_on_average(taught)}"]
    if len(others) == 1:
        parts.append("{0} from {2:.1f} to {3:.1f} %".format(*others[0]))
    elif others:
        parts.append(f"the {len(others)} others {_on_average(others)}")
        name, tests, old, new = max(others, key=lambda row: row[2] - row[3])
        parts.append(
            f"{name} loses most, from {old:.1f} to {new:.1f} % of its {tests}"
            if new < old
            else "none of these loses"
        )
    untested = [name for name in note["taught"] if name not in table["class"]]
    none = f" (none is of {listed(untested)})" if untested else ""
    tests = f"{sum(table['tests']):,} test samples{none}"
    return f"accuracy on {tests}, with all classes to choose from: {'; '.join(parts)}"


def _on_average(rows: Sequence[Sequence[Any]]) -> str:
    """Say how the mean accuracy of classes changes."""
    before, after = (float(np.mean([row[place] for row in rows])) for place in (2, 3))
    return f"on average from {before:.1f} to {after:.1f} %"
