"""Classes that arrive while a run trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedunseen.experiment.rules.base import ConfigFacts, Rule

GROWS = {"evaluation.selection": "last", "growth.name": "unknown"}
DEPLOYED = {"engine.name": "flower", "engine.mode": "deployment"}


def _fitted(c: ConfigFacts) -> dict[str, Any] | None:
    """Return the scalings of descriptions that are fitted to the seen classes, which change."""
    fitted = [step for step in c.experiment.data.semantics if step in ("centre", "standard", "min-max")]
    return {"fitted": fitted} if c.has("growth") and c.method.trained and fitted else None


READING: Sequence[Rule[ConfigFacts]] = (
    Rule(
        code="growth-of-parameters",
        when=lambda c: c.has("growth") and not c.method.grows,
        problem="growth.name = {growth.name!r} adds classes while the run trains, and method.name = {method.name!r} "
        "has parameters for each class or learns without descriptions",
        remedy="choose a method that scores classes by their descriptions alone, for example gaussian or fedzsl",
        example={**GROWS, "method.name": "classifier"},
    ),
    Rule(
        code="growth-without-merging",
        when=lambda c: c.has("growth") and not c.merging,
        problem="growth.name = {growth.name!r} is about classes that reach the merged model, and strategy.name = "
        "{strategy.name!r} merges nothing",
        remedy="choose another, for example fedavg",
        example={**GROWS, "strategy.name": "centralised"},
    ),
    Rule(
        code="growth-with-section",
        sections=("attack", "screening", "defence", "privacy"),
        when=lambda c: c.has("growth"),
        problem="{section}.name = {name!r} is set up once, for classes that do not change, and growth.name = "
        "{growth.name!r} changes them",
        remedy="leave [{section}] or [growth] out",
        example={**GROWS, "growth.name": "described", "defence.name": "median"},
    ),
    Rule(
        code="growth-needs-last-round",
        when=lambda c: c.has("growth") and c.experiment.evaluation.selection != "last",
        problem="growth.name = {growth.name!r} asks other questions in later rounds, so that no round can be chosen by "
        "evaluation.selection = {evaluation.selection!r}",
        remedy="set it to 'last'",
        example={"growth.name": "unknown"},
    ),
    Rule(
        code="growth-of-scaling",
        when=_fitted,
        problem="data.semantics = {fitted} is fitted to the seen classes, which growth.name = {growth.name!r} changes "
        "while method.name = {method.name!r} trains",
        remedy="use l2 or nothing, or scale the descriptions beforehand",
        example={**GROWS, "data.semantics": ["centre", "l2"]},
    ),
    Rule(
        code="growth-in-processes",
        when=lambda c: c.has("growth") and c.experiment.engine.name != "in-process" and not c.deployed,
        problem="growth.name = {growth.name!r} is not available for engine.name = {engine.name!r}, whose worker "
        "processes have the classes of the first round alone",
        remedy="set engine.name = 'in-process', or host a deployment",
        example={**GROWS, "engine.name": "flower"},
    ),
    Rule(
        code="growth-of-parties",
        when=lambda c: c.has("growth") and c.deployed and c.experiment.growth.arrive,
        problem="growth.arrive is for simulations",
        remedy="in a deployment a class arrives with the party that brings it, which partition.join lets in later",
        example={**GROWS, **DEPLOYED, "growth.arrive": {"digit-1-2": 3}},
    ),
)
