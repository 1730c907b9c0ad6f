"""Where clients run: parties elsewhere, a federation by file, arrays in memory."""

from __future__ import annotations

from collections.abc import Sequence

from fedunseen.experiment.rules.base import ConfigFacts, Rule, StartFacts

LAST = {"evaluation.selection": "last"}

READING: Sequence[Rule[ConfigFacts]] = (
    Rule(
        code="not-deployable",
        when=lambda c: c.deployed,
        problem="engine.mode = 'deployment' is not for this experiment: {reason}",
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
        remedy="change that",
        example={"engine.name": "flower", "engine.mode": "deployment", "run.seeds": 2},
    ),
)

START: Sequence[Rule[StartFacts]] = (
    Rule(
        code="part-of-data",
        when=lambda s: not s.deployed_here and s.get("data", "part"),
        problem="data.part = true is for one party's folder, or the coordinator's, which `fedunseen join` and "
        "`fedunseen host` read",
        remedy="leave it out",
        example={"data.name": "folder", "data.root": "party", "data.part": True},
    ),
    Rule(
        code="deployment-here",
        when=lambda s: not s.deployed_here and s.deployed,
        problem="engine.mode = 'deployment' waits for parties elsewhere, which `fedunseen host` does",
        remedy="use that, or set engine.mode to 'simulation'",
        example={"engine.name": "flower", "engine.mode": "deployment"},
    ),
    Rule(
        code="arrays-not-named",
        when=lambda s: s.arrays and s.experiment.data.name != "arrays",
        problem="a benchmark is given, but data.name = {data.name!r} names other data",
        remedy="set it to 'arrays'",
        given="arrays",
        example={},
    ),
    Rule(
        code="arrays-elsewhere",
        when=lambda s: s.arrays and s.experiment.engine.name != "in-process",
        problem="engine.name = {engine.name!r} works in processes of its own, which have no arrays of this one",
        remedy="set it to 'in-process'",
        given="arrays",
        example={"data.name": "arrays", "engine.name": "flower"},
    ),
)

OFFLINE: Sequence[Rule[StartFacts]] = (
    Rule(
        code="offline-several-answers",
        problem="by file each party answers once, but {reason}",
        reasons={
            "method.name = {method.name!r} trains in rounds": lambda s: s.method.trained,
            "evaluation.selection = 'validation' asks the parties twice": lambda s: (
                s.experiment.evaluation.selection == "validation"
            ),
            "growth.name = {growth.name!r} changes the classes": lambda s: s.has("growth"),
        },
        remedy="change that, or use `fedunseen host`",
        given="offline",
        example={"engine.name": "offline", "engine.mode": "deployment"},
    ),
)
"""Asked where a federation by file is planned."""
