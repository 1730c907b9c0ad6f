"""Train round by round, from the newest checkpoint on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedunseen.experiment.growth import Growth
from fedunseen.experiment.setup import Setup
from fedunseen.experiment.stages.meet import connect
from fedunseen.federation import Callback, Federation, Loop, fit
from fedunseen.federation.callbacks import (
    Checkpoint,
    EarlyStop,
    Evaluate,
    KeepBest,
    KeepForForgetting,
    Personalize,
    Record,
    ShowProgress,
)  # fmt: skip

QUIET = {"evaluation.selection": "last", "evaluation.clients": False, "evaluation.choose": {}}
"""Settings of a nested run: it chooses nothing and measures no client."""


class Grow(Callback):
    """Lets the class space grow: before a round it replaces the federation, the state and who measures."""

    def __init__(self, growth: Growth, evaluate: Evaluate) -> None:
        self.growth, self.evaluate = growth, evaluate

    def before_round(self, loop: Loop) -> None:
        """Go to the version of the next round."""
        loop.federation, loop.state = self.growth.before(loop.state)
        self.evaluate.task = self.growth.task

    def after_round(self, loop: Loop) -> None:
        """Add the version to the metrics."""
        loop.metrics.update(self.growth.line())


def train(setup: Setup) -> Setup:
    """Run the rounds, and return the setup with the final numbers."""
    connect(setup)
    directory, choice, growth = setup.directory, setup.choice, setup.growth
    checkpoint = directory.resumable(setup.federation.device, choice.round)
    federation, task = setup.federation, setup.evaluator
    if growth is not None:
        federation, task = growth.at(checkpoint.round if checkpoint else 0)
    state = federation.start()
    if checkpoint is not None:
        state = directory.restored(checkpoint, state.params)
    directory.rewind(state.round)
    rounds, patience = setup.rounds, setup.experiment.strategy.stop_after
    if choice.round is not None and (setup.callbacks or patience is not None):
        rounds, patience = choice.round, None  # no later round can be the one that is reported
    evaluate = Evaluate(task, choice, every=1 if setup.callbacks else None)
    epochs = None if setup.nested else setup.experiment.strategy.personal_epochs
    personalize = Personalize(directory, evaluate, epochs)
    stopping = [EarlyStop(patience, "on validation classes")] if patience is not None else []
    callbacks = [*stopping, *_callbacks(setup, evaluate), personalize, ShowProgress(setup.progress, setup.label)]
    history, stoppable = directory.metrics(), not setup.chosen
    loop = fit(federation, rounds, callbacks, state=state, history=history, stoppable=stoppable)
    personal = {"personal": personalize.measured} if personalize.measured else {}
    setup = replace(setup, result={**setup.result, **_numbers(setup, loop, evaluate), **personal})
    if growth is not None:
        setup = replace(setup, federation=growth.federation, evaluator=growth.task)
        setup = replace(setup, benchmark=growth.federation.benchmark)
    return setup


def _callbacks(setup: Setup, evaluate: Evaluate) -> list[Callback]:
    """Return what a run does after a round, in the order in which the round becomes durable."""
    directory, growth, main = setup.directory, setup.growth, not setup.nested
    return [
        *([Grow(growth, evaluate)] if growth is not None else []),
        evaluate,
        *setup.callbacks,
        *([KeepForForgetting(directory)] if main and setup.experiment.run.forgettable else []),
        Record(directory, evaluate if main else None),
        KeepBest(directory, setup.choice),
        Checkpoint(directory),
    ]


def _numbers(setup: Setup, loop: Loop, evaluate: Evaluate) -> dict[str, Any]:
    """Return what a run reports of its rounds."""
    lines, selected = loop.history, setup.choice.selected(loop)
    stopped = {"round": len(lines), "of": loop.rounds, "why": loop.reason}
    return {
        **evaluate.task.numbers(lines, selected, setup.directory.model_path),
        **{name: lines[selected - 1][name] for name in ("sums_sha256", "clipped") if name in lines[selected - 1]},
        **({"epsilon": lines[-1]["privacy"]["epsilon"]} if "privacy" in lines[-1] else {}),
        **_traffic(loop.federation, lines),
        "rounds": len(lines),
        "selected_round": selected,
        **({"stopped": stopped} if len(lines) < loop.rounds else {}),
    }


def _traffic(federation: Federation, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean bytes of a client in a round, each module's number of parameters, and how many travel."""
    parts = sum(len(line["participants"]) + len(line.get("dropped", ())) for line in lines)
    modules = Counter[str]()
    for name, count in federation.sizes.items():
        modules[name.split(".")[0]] += count
    strategy = federation.strategy
    travel = federation.first if strategy.merges and not strategy.pools else {}
    return {
        **{way: round(sum(line[way] for line in lines) / max(parts, 1), 1) for way in ("bytes_down", "bytes_up")},
        "parameters": dict(modules),
        "parameters_shared": sum(value.numel() for value in travel.values()),
    }
