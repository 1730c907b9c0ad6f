"""The top of a page, for people who decide: what seems to be wrong, what it is, how good, weak at what, what next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedunseen import metrics
from fedunseen.report.parts import Facts, Section, rounds_tried

__all__ = ["SHORT_TEMPLATE", "WARNINGS", "Weak", "advice", "weak_classes", "weak_words"]

LISTED = 6  # weak classes that are named
ADVICE = 3  # things to do next

WARNINGS_TEMPLATE = """\
<section class="choice warning" id="warnings" role="alert">
<h2>⚠ Something seems to be wrong</h2>
<ul>
{% for one in warnings %}<li><b>{{ one.what }}</b> {{ one.why }} <b>What to do:</b> {{ one.remedy }}</li>
{% endfor %}
</ul>
</section>
"""
SHORT_TEMPLATE = """\
<section class="short" id="short">
<h2>In short</h2>
<dl>
<dt>What it is</dt><dd>{{ what }}</dd>
<dt>How good</dt><dd>{{ good }}</dd>
{% if weak %}<dt>Weak at</dt><dd>{{ weak }}</dd>{% endif %}

<dt>What next</dt><dd><ul>{% for one in next %}<li>{{ one }}</li>{% endfor %}</ul></dd>
</dl>
</section>
"""

WARNINGS = Section(
    WARNINGS_TEMPLATE,
    lambda facts: {"warnings": facts.whole.result["warnings"]} if facts.whole.result.get("warnings") else None,
)


class Weak(NamedTuple):
    """A class with less than half of its test samples right: its name, percent, and what is said most often instead."""

    name: str
    accuracy: float
    instead: str


def weak_classes(facts: Facts, true: NDArray[np.int64], said: NDArray[np.int64]) -> list[Weak]:
    """Return the weak classes, the weakest first.

    Args:
        facts: of the run.
        true: (n,) the classes of test samples.
        said: (n,) the answers.
    """
    classes = np.unique(true)
    accuracies = metrics.per_class(true, said, classes.tolist())
    found = []
    for c, accuracy in zip(classes.tolist(), accuracies.tolist(), strict=True):
        if accuracy < 50:
            wrong = said[(true == c) & (said != c)]
            found.append(Weak(facts.names[c], accuracy, facts.names[int(np.bincount(wrong).argmax())]))
    return sorted(found, key=lambda one: (one.accuracy, one.name))


def weak_words(weak: Sequence[Weak], of: int, kind: str) -> str:
    """Name the weak classes in a sentence.

    Example:
        >>> weak_words([Weak("leopard", 12.5, "lion")], 10, "unseen classes")
        '1 of 10 unseen classes has less than half of its samples right: leopard (12 %; most often it said lion).'
        >>> weak_words([], 10, "unseen classes")
        'None of the 10 unseen classes: each has at least half of its samples right.'
    """
    if not weak:
        return f"None of the {of} {kind}: each has at least half of its samples right."
    listed = [f"{one.name} ({one.accuracy:.0f} %; most often it said {one.instead})" for one in weak[:LISTED]]
    more = f" and {len(weak) - LISTED} more" if len(weak) > LISTED else ""
    verb, whose = ("has", "its") if len(weak) == 1 else ("have", "their")
    return f"{len(weak)} of {of} {kind} {verb} less than half of {whose} samples right: {', '.join(listed)}{more}."


def advice(facts: Facts, weak: Sequence[Any], remedy: str, usage: str) -> list[str]:
    """Say what to do next, the most urgent first.

    Args:
        facts: of the run.
        weak: the weak classes.
        remedy: what helps them.
        usage: how the model is used.
    """
    run, result = facts.whole, facts.run.result
    found = ["Do what the box above says, and run it again."] if run.result.get("warnings") else []
    if not facts.one_model:
        merged = "Let all parameters travel (strategy.shared = ['*'])"
        alone = 'Let a strategy merge (strategy.name = "fedavg")'
        found.append(f"{merged if facts.merges else alone} if all clients are to have one model.")
    if result["selection"] == "best-on-test":
        found.append('Choose on validation classes (evaluation.selection = "validation"): these numbers flatter.')
    elif result["selection"] == "validation" and 1 < rounds_tried(result) == result["selected_round"]:
        found.append("Train for more rounds (strategy.rounds): the last round was the best one.")
    if weak:
        found.append(remedy)
    if not run.seeds:
        found.append("Run a few seeds (run.seeds = 5) before you rely on a difference of a point or two.")
    found.append(usage if facts.one_model else usage.replace(" RUN INPUT", " RUN INPUT --client K", 1))
    return found[:ADVICE]
