"""Methods that are solved from sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedunseen.experiment.rules.base import ConfigFacts, ModelFacts, Rule


def _kept_out(c: ConfigFacts) -> dict[str, Any] | None:
    """Return what a start in closed form has no place for."""
    kept = ["method.hidden"] if c.get("method", "hidden") else []
    kept += ["strategy.shared"] if tuple(c.experiment.strategy.shared) != ("*",) else []
    if not c.starts_closed or not (kept or not c.strategy.merges):
        return None
    return {"what": " and ".join(kept) or f"strategy.name = {c.experiment.strategy.name!r}, which merges nothing,"}


READING: Sequence[Rule[ConfigFacts]] = (
    Rule("client-privacy-of-sums", lambda c: not c.method.trained and c.experiment.privacy.name == "client-level"),
    Rule("updates-of-sums", lambda c: not c.method.trained, sections=("attack", "screening", "defence", "compression")),
    Rule("sample-privacy-of-training", lambda c: c.experiment.privacy.name == "sample-level" and c.method.trained),
    Rule(
        "two-bounds-on-samples",
        lambda c: c.experiment.privacy.name == "sample-level" and c.get("method", "clip_norm") is not None,
    ),
    Rule(
        "sample-privacy-of-rounds",
        lambda c: c.experiment.privacy.name == "sample-level" and c.experiment.strategy.rounds > 1,
    ),
    Rule(
        "rounds-of-sums",
        lambda c: (
            not c.method.trained
            and c.experiment.strategy.rounds > 1
            and not (c.experiment.partition.join or c.experiment.partition.leave or c.has("growth"))
        ),
    ),
    Rule("rounds-of-totals", lambda c: c.get("method", "retention") == "total" and c.experiment.strategy.rounds > 1),
    Rule(
        "start-with-section",
        lambda c: c.starts_closed,
        sections=("attack", "screening", "defence", "privacy", "growth"),
    ),
    Rule("start-not-linear", _kept_out),
)

MODEL: Sequence[Rule[ModelFacts]] = (
    Rule("start-trained-encoder", lambda m: m.starts_closed and m.model.backbone.trained),
)
