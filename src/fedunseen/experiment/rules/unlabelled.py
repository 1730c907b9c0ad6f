"""Unlabelled samples that adapt a model during a run."""

from __future__ import annotations

from collections.abc import Sequence

from fedunseen.experiment.rules.base import ConfigFacts, Rule

UNLABELLED = {"data.name": "folder", "data.root": "somewhere", "data.unlabelled": True}

READING: Sequence[Rule[ConfigFacts]] = (
    Rule(
        code="unlabelled-without-means",
        when=lambda c: c.get("data", "unlabelled") and c.experiment.method.name != "gaussian",
        problem="method.name = {method.name!r} keeps no class means that data.unlabelled = true could adapt",
        remedy="set method.name = 'gaussian', or data.unlabelled = false",
        example=UNLABELLED,
    ),
    Rule(
        code="unlabelled-several-models",
        when=lambda c: c.get("data", "unlabelled") and (not c.merging or c.has("growth") or c.has("privacy")),
        problem="data.unlabelled = true adapts one merged model, without [growth] and [privacy] noise",
        remedy="set data.unlabelled = false, and call fedunseen adapt on the finished run",
        preset="digit-pairs-gaussian",
        example={**UNLABELLED, "strategy.name": "local"},
    ),
    Rule(
        code="unlabelled-by-file",
        when=lambda c: c.get("data", "unlabelled") and c.experiment.engine.name == "offline",
        problem="data.unlabelled = true takes several messages from each party, and by file there is one",
        remedy="set data.unlabelled = false, and call fedunseen adapt on the finished run",
        preset="digit-pairs-gaussian",
        example={**UNLABELLED, "engine.name": "offline"},
    ),
)
