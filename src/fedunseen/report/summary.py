"""The top of a page, for people who decide: what seems to be wrong, what it is, how good, weak at what, what next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedunseen.report.parts import Facts, Section, rounds_tried

ADVICE = 3  # things to do next

WARNINGS = Section(
    "warnings",
    lambda facts: {"warnings": facts.whole.result["warnings"]} if facts.whole.result.get("warnings") else None,
)


def advice(facts: Facts, weak: Sequence[Any], remedy: str, usage: str) -> list[str]:
    """Say what to do next, the most urgent first."""
    run, result = facts.whole, facts.run.result
    steps = ["Do what the box above says, and run it again."] if run.result.get("warnings") else []
    if not facts.one_model:
        merged = "Let all parameters travel (strategy.shared = ['*'])"
        alone = 'Let a strategy merge (strategy.name = "fedavg")'
        steps.append(f"{merged if facts.merges else alone} if all clients are to have one model.")
    if result["selection"] == "best-on-test":
        steps.append('Choose on validation classes (evaluation.selection = "validation"): these numbers flatter.')
    elif result["selection"] == "validation" and 1 < rounds_tried(result) == result["selected_round"]:
        steps.append("Train for more rounds (strategy.rounds): the last round was the best one.")
    if weak:
        steps.append(remedy)
    if not run.seeds:
        steps.append("Run a few seeds (run.seeds = 5) before you rely on a difference of a point or two.")
    steps.append(usage if facts.one_model else usage.replace(" RUN INPUT", " RUN INPUT --client K", 1))
    return steps[:ADVICE]
