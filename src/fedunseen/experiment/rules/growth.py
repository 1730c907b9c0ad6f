"""Classes that arrive while a run trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedunseen.experiment.rules.base import ConfigFacts, Rule


def _fitted(c: ConfigFacts) -> dict[str, Any] | None:
    """Return the scalings of descriptions that are fitted to the seen classes, which change."""
    fitted = [step for step in c.experiment.data.semantics if step in ("centre", "standard", "min-max")]
    return {"fitted": fitted} if c.has("growth") and c.method.trained and fitted else None


READING: Sequence[Rule[ConfigFacts]] = (
    Rule("growth-of-parameters", lambda c: c.has("growth") and not c.method.grows),
    Rule("growth-without-merging", lambda c: c.has("growth") and not c.merging),
    Rule("growth-with-section", lambda c: c.has("growth"), sections=("attack", "screening", "defence", "privacy")),
    Rule("growth-needs-last-round", lambda c: c.has("growth") and c.experiment.evaluation.selection != "last"),
    Rule("growth-of-scaling", _fitted),
    Rule(
        "growth-in-processes",
        lambda c: c.has("growth") and c.experiment.engine.name != "in-process" and not c.experiment.deployed,
    ),
    Rule("growth-of-parties", lambda c: c.has("growth") and c.experiment.deployed and c.experiment.growth.arrive),
)
