"""Where clients run: parties elsewhere, a federation by file, arrays in memory."""

from __future__ import annotations

from collections.abc import Sequence

from fedunseen.experiment.rules.base import ConfigFacts, Rule, StartFacts

READING: Sequence[Rule[ConfigFacts]] = (
    Rule(
        "not-deployable",
        lambda c: c.experiment.deployed,
        reasons={
            "strategy.name = {strategy.name!r} merges nothing": lambda c: not c.merging,
            "attack.name = {attack.name!r} is a simulated one": lambda c: c.has("attack"),
            "privacy.name = {privacy.name!r} with strategy.weights = {strategy.weights!r} has to know who holds how "
            "many classes": lambda c: (
                c.experiment.privacy.name == "client-level" and c.experiment.strategy.weights != "uniform"
            ),
            "privacy.name = 'sample-level' without privacy.aggregation = 'masked' lets parties tell the coordinator "
            "how much they hold": lambda c: c.experiment.privacy.name == "sample-level" and not c.masked,
            "privacy.noise_from = {privacy.noise_from!r} lets the coordinator take off the noise that parties "
            "add": lambda c: c.masked and c.has("privacy") and c.experiment.privacy.noise_from == "seed",
            "defence.name = {defence.name!r} has to know who holds which classes": lambda c: c.asks_scores,
            "run.seeds = {run.seeds} are as many runs": lambda c: c.experiment.run.seeds > 1,
        },
    ),
)

START: Sequence[Rule[StartFacts]] = (
    Rule("part-of-data", lambda s: not s.deployed_here and s.get("data", "part")),
    Rule("deployment-here", lambda s: not s.deployed_here and s.experiment.deployed),
    Rule("arrays-not-named", lambda s: s.arrays and s.experiment.data.name != "arrays"),
    Rule("arrays-elsewhere", lambda s: s.arrays and s.experiment.engine.name != "in-process"),
)

OFFLINE: Sequence[Rule[StartFacts]] = (
    Rule(
        "offline-several-answers",
        reasons={
            "method.name = {method.name!r} trains in rounds": lambda s: s.method.trained,
            "evaluation.selection = 'validation' asks the parties twice": lambda s: (
                s.experiment.evaluation.selection == "validation"
            ),
            "growth.name = {growth.name!r} changes the classes": lambda s: s.has("growth"),
        },
    ),
)
"""Asked where a federation by file is planned."""
