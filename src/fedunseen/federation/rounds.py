"""The rounds of a run: train, let the task judge, write down, go on from the newest checkpoint after a kill."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fedunseen.core.errors import RunDirectoryError
from fedunseen.core.files import write_tensors
from fedunseen.core.parameters import ClientStates, Params
from fedunseen.core.shelf import write_models
from fedunseen.engines import Distributed, RoundResult
from fedunseen.federation.directory import Checkpoint, RunDirectory, is_whole, load_params, of_clients
from fedunseen.federation.federation import Federation, State
from fedunseen.federation.personal import personal_models

__all__ = ["NOT_MEASURED", "Choice", "Growth", "Judge", "ModelsOf", "Progress", "stalled", "train"]

NOT_MEASURED = (-1.0, -1.0)
"""The merit of a round whose models were not measured: no accuracy is below zero."""


ModelsOf = Callable[[Collection[int]], Iterable[tuple[int, Params]]]
"""Gives those of some clients that have a model of their own, with it, in client order."""


class Progress(Protocol):
    """Called after every round."""

    def __call__(self, stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        """Take note that ``round`` of ``rounds`` of a stage is done; ``line``: its metrics, None at the start."""


@dataclass(frozen=True)
class Choice:
    """The round whose model is reported, and its calibration factor; None: the best by this stage's own numbers."""

    round: int | None
    factor: float | None


class Judge(Protocol):
    """Measures a round's models, and compares rounds: what a task does while a run trains."""

    def measure(
        self, round: int, result: RoundResult, models: Sequence[Params], clients: ClientStates, choice: Choice
    ) -> dict[str, Any]:
        """Return the line of metrics of a round, counted from 0."""

    def unmeasured(self, round: int, result: RoundResult) -> dict[str, Any]:
        """Return the line of a round whose models are not measured."""

    def every(self, choice: Choice) -> int:
        """Return after how many rounds there is a measured one."""

    def observe(self, path: Path, round: int, result: RoundResult, kept: bool) -> None:
        """Write into a run directory what only exists during a round; ``kept``: its model is the best so far."""

    def merit(self, line: Mapping[str, Any]) -> tuple[float, float]:
        """Return a key that sorts rounds: higher is better; (-1, -1) for one that is not measured."""

    def personal(self, merged: Params | None, models: ModelsOf, line: Mapping[str, Any]) -> dict[str, Any]:
        """Measure some clients' own models, beside the merged one if any, with what the chosen round's line says."""

    def numbers(self, lines: Sequence[Mapping[str, Any]], selected: int, model_path: Path) -> dict[str, Any]:
        """Return what a run reports, from its lines, the chosen round (from 1) and the model written for it."""


class Growth(Protocol):
    """A class space that grows while a run trains: each version has a federation and a judge of its own."""

    def at(self, rounds: int) -> tuple[Federation, Judge]:
        """Return those with which the state after ``rounds`` rounds was made."""

    def before(self, state: State) -> tuple[Federation, Judge, State]:
        """Return those of the next round, and the state as one of that version."""

    def line(self) -> dict[str, Any]:
        """Return what a round's metrics say of the class space."""


def train(
    federation: Federation,
    judge: Judge,
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
) -> dict[str, Any]:
    """Run the rounds, from the newest checkpoint on, and return the final numbers.

    Args:
        federation: what trains; a distributed one has met its parties.
        judge: measures each round.
        directory: where checkpoints, lines of metrics and the model go.
        rounds: how many there are.
        choice: which round's model is kept.
        on_round: called after every round.
        stage: what the rounds are for, in words.
        observed: let the judge write what only exists during a round, for the report.
        stop_after: end after so many rounds in a row without gain; None: run all of them.
        growth: how the class space grows; it then says which federation and judge each round has.
        forgettable: keep the state before each round in which a client takes part for the first time.
        personal_epochs: let every client train the model that is reported for so many epochs on, and measure it then.

    Raises:
        FedUnseenError: training diverged, or the checkpoint is of another model.
    """
    checkpoint = directory.newest_checkpoint(federation.device)
    if checkpoint and (choice.round or 1) <= checkpoint.rounds and not is_whole(directory.model_path):
        checkpoint = None  # the model of the chosen round is lost: only training again makes it
    if growth is not None:
        federation, judge = growth.at(checkpoint.rounds if checkpoint else 0)
    state = federation.start()
    order = list(state.params)
    if checkpoint:
        _check_shapes(directory, checkpoint, state.params)
        params = {name: checkpoint.params[name] for name in order}
        state = State(checkpoint.rounds, checkpoint.state, params, checkpoint.client_states)
    directory.rewind(state.round)
    lines = directory.metrics()
    merits = [judge.merit(line) for line in lines]
    if personal_epochs is not None and lines and _kept(merits, choice):  # a kill may have come in between
        directory.keep_reported(len(lines))
    on_round(stage, state.round, rounds, lines[-1] if lines else None)
    for current in range(state.round, rounds):
        if merits and merits[-1] != NOT_MEASURED and stalled(merits, stop_after):
            break
        started = time.perf_counter()
        if growth is not None:
            federation, judge, state = growth.before(state)
        state, result = federation.round(state)
        if is_measured(current + 1, rounds, choice, judge.every(choice)):
            models = federation.models(state)
            line = judge.measure(current, result, models, state.clients, choice)
        else:
            models, line = [], judge.unmeasured(current, result)
        line |= federation.strategy.notes(state.server)
        if growth is not None:
            line |= growth.line()
        if result.dropped:
            line["dropped"] = {str(client): why for client, why in result.dropped.items()}
        if result.clock is not None:
            line["clock"] = dict(result.clock)
        if result.seconds:
            line["client_seconds"] = {str(client): seconds for client, seconds in result.seconds.items()}
        line["seconds"] = round(time.perf_counter() - started, 4)
        if forgettable and set(line["participants"]) - {k for old in lines for k in old["participants"]}:
            directory.keep_checkpoint(current)
        lines.append(line)
        merits.append(judge.merit(line))
        directory.add_metrics(line)
        if federation.partition.remote and isinstance(federation.engine, Distributed):
            directory.note_parties(federation.engine.parties)
        kept = _kept(merits, choice)
        if observed:
            judge.observe(directory.path, current, result, kept)
        if kept:
            if federation.strategy.one_model:
                write_tensors(directory.model_path, models[0])
            else:
                write_models(directory.model_path, sorted(state.clients), models)
        directory.save_checkpoint(Checkpoint(state.round, state.params, state.server, dict(state.clients)))
        if kept and personal_epochs is not None:
            directory.keep_reported(state.round)
        on_round(stage, state.round, rounds, line)
    selected = choice.round
    if selected is None:  # the last of equally good rounds, which is trained most
        selected = 1 + max(range(len(merits)), key=lambda i: (*merits[i], i))
    own = {}
    if personal_epochs is not None:
        merged = load_params(directory.model_path, federation.device)
        then = replace(state, clients=directory.reported(federation.device))
        begun = {name: merged[name] for name in order if name in merged}

        def trained(clients: Collection[int]) -> Iterable[tuple[int, Params]]:
            owned = dict(personal_models(federation, begun, then, personal_epochs, clients))
            if owned:
                write_models(directory.personal_path, list(owned), list(owned.values()))
            return owned.items()

        own = {"personal": {"epochs": personal_epochs, **judge.personal(merged, trained, lines[selected - 1])}}
    elif not federation.strategy.one_model:
        kept_models = partial(of_clients, directory.model_path, federation.device)
        measured = judge.personal(None, kept_models, lines[selected - 1])
        own = {"personal": measured} if measured else {}
    why = {"round": len(lines), "of": rounds, "why": f"no gain on validation classes in {stop_after} rounds"}
    return {
        **judge.numbers(lines, selected, directory.model_path),
        **({"epsilon": lines[-1]["privacy"]["epsilon"]} if "privacy" in lines[-1] else {}),
        **_traffic(federation, lines),
        **own,
        "rounds": len(lines),
        "selected_round": selected,
        **({"stopped": why} if len(lines) < rounds else {}),
    }


def is_measured(round: int, rounds: int, choice: Choice, every: int) -> bool:
    """Say whether a round, counted from 1, of so many is measured: every so many, the first, the chosen, the last."""
    return round in (1, choice.round, rounds) or round % every == 0


def _kept(merits: Sequence[tuple[float, float]], choice: Choice) -> bool:
    """Say whether the model of the last round so far is the one that is kept."""
    return merits[-1] >= max(merits) if choice.round is None else choice.round == len(merits)


def stalled(merits: Sequence[tuple[float, float]], patience: int | None) -> bool:
    """Say whether none of the last rounds was better than the best one before them.

    A round that is only as good as the best so far is no gain.

    Args:
        merits: of each round so far; higher is better.
        patience: how many rounds without gain are too many; None: no number is.

    Example:
        >>> stalled([(10.0, 0.0), (30.0, 0.0), (30.0, 0.0), (20.0, 0.0)], 2), stalled([(10.0, 0.0), (30.0, 0.0)], 1)
        (True, False)
    """
    if patience is None or len(merits) <= patience:
        return False
    return max(merits[-patience:]) <= max(merits[:-patience])


def _check_shapes(directory: RunDirectory, checkpoint: Checkpoint, params: Params) -> None:
    """Refuse a checkpoint of another model: a text encoder, say, that has changed since."""
    for name, value in params.items():
        found = checkpoint.params.get(name)
        if found is None or found.shape != value.shape:
            shape = "none" if found is None else f"one of shape {tuple(found.shape)}"
            raise RunDirectoryError(
                f"{directory.checkpoints}: the parameter {name!r} has the shape {tuple(value.shape)} now, but the "
                f"checkpoint holds {shape}: restore the encoder or the files that the run was started with"
            )


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
