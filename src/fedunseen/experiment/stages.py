"""The stages of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedunseen.experiment.growth import Growth
from fedunseen.federation import Callback, Federation, fit
from fedunseen.federation.callbacks import (
    Checkpoint,
    Choice,
    EarlyStop,
    Evaluate,
    Grow,
    KeepBest,
    KeepForForgetting,
    Observe,
    Personalize,
    Progress,
    Record,
    RecordParties,
    ShowProgress,
)
from fedunseen.federation.directory import RunDirectory
from fedunseen.tasks import Task

__all__ = ["train"]


def train(
    federation: Federation,
    task: Task,
    directory: RunDirectory,
    rounds: int,
    choice: Choice,
    on_round: Progress,
    stage: str = "training",
    observed: bool = False,
    stop_after: int | None = None,
    growth: Growth | None = None,
    forgettable: bool = False,
    personal_epochs: int | None = None,
    callbacks: Sequence[Callback] = (),
    stoppable: bool = True,
) -> dict[str, Any]:
    """Run the rounds, from the newest checkpoint on, and return the final numbers."""
    checkpoint = directory.resumable(federation.device, choice.round)
    if growth is not None:
        federation, task = growth.at(checkpoint.round if checkpoint else 0)
    state = federation.start()
    if checkpoint is not None:
        state = directory.restored(checkpoint, state.params)
    directory.rewind(state.round)
    evaluate = Evaluate(task, choice, every=1 if callbacks else None)
    personalize = Personalize(directory, evaluate, personal_epochs)
    chain = [
        *([EarlyStop(stop_after, "on validation classes")] if stop_after is not None else []),
        *([Grow(growth, evaluate)] if growth is not None else []),
        evaluate,
        *callbacks,
        *([KeepForForgetting(directory)] if forgettable else []),
        Record(directory),
        RecordParties(directory),
        *([Observe(directory, evaluate)] if observed else []),
        KeepBest(directory, choice),
        Checkpoint(directory),
        personalize,
        ShowProgress(on_round, stage),
    ]
    loop = fit(federation, rounds, chain, state=state, history=directory.metrics(), stoppable=stoppable)
    federation, lines, selected = loop.federation, loop.history, choice.selected(loop)
    return {
        **evaluate.task.numbers(lines, selected, directory.model_path),
        **({"epsilon": lines[-1]["privacy"]["epsilon"]} if "privacy" in lines[-1] else {}),
        **_traffic(federation, lines),
        **({"personal": personalize.measured} if personalize.measured else {}),
        "rounds": len(lines),
        "selected_round": selected,
        **({"stopped": {"round": len(lines), "of": rounds, "why": loop.reason}} if len(lines) < rounds else {}),
    }


def _traffic(federation: Federation, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean bytes of a client in a round, each module's number of parameters, and how many travel."""
    parts = sum(len(line["participants"]) + len(line.get("dropped", ())) for line in lines)
    found: dict[str, Any] = {
        way: round(sum(line[way] for line in lines) / max(parts, 1), 1) for way in ("bytes_down", "bytes_up")
    }
    modules: dict[str, int] = {}
    for name, count in federation.sizes.items():
        modules[name.split(".")[0]] = modules.get(name.split(".")[0], 0) + count
    found["parameters"] = modules
    strategy = federation.strategy
    travel = federation.first if strategy.merges and not strategy.pools else {}
    found["parameters_shared"] = sum(value.numel() for value in travel.values())
    return found
