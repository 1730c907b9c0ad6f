"""What a run does between rounds: measure, record, keep the best model, checkpoint, stop early,
grow, personalize.

The order of the list is the order in which a round becomes durable: its metrics, its model if it is
the chosen one, its checkpoint. A resume starts from the newest checkpoint and drops the metrics of
later rounds, so what a kill left in between is done again with the same result.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from fedunseen.core.errors import FedUnseenError
from fedunseen.core.files import write_tensors
from fedunseen.core.parameters import Params, finite
from fedunseen.core.tensor_store import write_models
from fedunseen.federation.evaluator import Choice, Evaluator, is_measured
from fedunseen.federation.federation import Federation
from fedunseen.federation.in_process import InProcess
from fedunseen.federation.loop import NOT_MEASURED, Callback, Loop
from fedunseen.federation.run_directory import RunDirectory, load_params, of_clients
from fedunseen.federation.worker import Execution, Work, Worker
from fedunseen.strategies import Instruction
from fedunseen.strategies.fedavg import FedAvg


class Progress(Protocol):
    """Called after every round."""

    def __call__(self, stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        """Show that ``round`` of ``rounds`` of a stage is done; ``line``: its metrics, None at the
        start.
        """


def scalars(line: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a line of metrics under flat names; lists and numbers of single clients
    are left out.
    """
    numbers: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, Mapping) and key not in ("client_seconds", "dropped"):
            numbers |= scalars(value, f"{prefix}{key}/")
        elif type(value) in (int, float) and key != "round":
            numbers[f"{prefix}{key}"] = float(value)
    return numbers


class EarlyStop(Callback):
    """Stops when no round was better than the best one for some rounds.

    Args:
        patience: how many rounds without gain are too many.
        among: what the gain is measured on, in words.
    """

    def __init__(self, patience: int, among: str = "") -> None:
        self.patience = patience
        self.reason = " ".join(filter(None, ["no gain", among, f"in {patience} rounds"]))

    def before_round(self, loop: Loop) -> None:
        """Stop by what ``loop.history`` says, after a resume too."""
        if loop.rounds_since_best >= self.patience and loop.scores[-1] != NOT_MEASURED:
            loop.stop(self.reason)


class Evaluate(Callback):
    """Measures the models of a round: every so many rounds, the first, the chosen and the last.

    Args:
        task: measures.
        choice: which round is reported.
        every: measure so often; by default as ``task`` says.
    """

    def __init__(
        self, task: Evaluator, choice: Choice | None = None, every: int | None = None
    ) -> None:
        self.task = task
        self.choice = choice or Choice()
        self.every = every

    def on_start(self, loop: Loop) -> None:
        """Let rounds be compared as the task compares them."""
        loop.score = lambda line: self.task.score(line)

    def after_round(self, loop: Loop) -> None:
        """Add what was measured to the metrics."""
        every = self.every or self.task.every(self.choice)
        if is_measured(loop.state.round, loop.rounds, self.choice, every):
            loop.models = loop.federation.models(loop.state)
            measures = self.task.measure(loop, loop.models, self.choice)
        else:
            measures = self.task.unmeasured(loop)
        loop.history[-1] = {**loop.metrics, **measures}


@dataclass
class KeepForForgetting(Callback):
    """Keeps the checkpoint before each round in which a client joins."""

    directory: RunDirectory

    def after_round(self, loop: Loop) -> None:
        """Keep the checkpoint before this round."""
        round = loop.state.round - 1
        if (loop.federation.partition.first == round).any():
            self.directory.keep_checkpoint(round)


@dataclass
class Record(Callback):
    """Appends each round's metrics to ``metrics.jsonl``; writes who the parties are, and what only
    exists meanwhile.
    """

    directory: RunDirectory
    observer: Evaluate | None = None

    def after_round(self, loop: Loop) -> None:
        """Append a line, flushed to disk; then let the task of the observer write into the run
        directory.
        """
        loop.metrics["seconds"] = round(time.perf_counter() - loop.started, 4)
        if loop.reason:
            loop.metrics["stopped"] = loop.reason
        self.directory.add_metrics(loop.metrics)
        if loop.federation.partition.remote:
            self.directory.note_parties(loop.federation.engine.parties)
        if self.observer is not None:
            self.observer.task.observe(loop, self.directory.path)


@dataclass
class KeepBest(Callback):
    """Writes the models of the round that is reported so far."""

    directory: RunDirectory
    choice: Choice

    def after_round(self, loop: Loop) -> None:
        """Write them if they are of the best round so far, or of the chosen one."""
        if self.choice.is_kept(loop):
            self._write(loop)

    def on_end(self, loop: Loop) -> None:
        """Write the last ones where the loop stopped before the chosen round."""
        if self.choice.round is not None and loop.state.round < self.choice.round:
            loop.models = loop.federation.models(loop.state)
            self._write(loop)

    def _write(self, loop: Loop) -> None:
        if loop.federation.strategy.one_model:
            write_tensors(self.directory.model_path, loop.models[0])
        else:
            write_models(self.directory.model_path, sorted(loop.state.clients), loop.models)


@dataclass
class Checkpoint(Callback):
    """Writes the state after each round."""

    directory: RunDirectory

    def after_round(self, loop: Loop) -> None:
        """Write the state; the oldest is dropped."""
        self.directory.save_checkpoint(loop.state)


def personal_models(
    federation: Federation,
    merged: Params,
    rounds: int,
    epochs: int,
    clients: Collection[int] | None = None,
) -> Iterator[tuple[int, Params]]:
    """Give each client that holds a sample its own model, one after another, in client order.

    The merged model is trained further on the client's own samples (Wang et al. 2019, "Federated
    evaluation of on-device personalization"). ``rounds``: how many there were.
    """
    engine = federation.engine
    assert isinstance(engine, InProcess)
    worker = engine.worker
    longer = FedAvg(local_epochs=epochs)
    plain = Worker(
        worker.method, longer, worker.trainer.inputs, worker.trainer.labels, worker.samples,
        worker.seed, Execution("one-at-a-time"),
    )  # fmt: skip
    for client, rows in enumerate(worker.samples):
        if not len(rows) or (clients is not None and client not in clients):
            continue
        # A round that never comes: its batches are drawn for this purpose alone.
        ((reply, _),) = plain.round([Work(client, Instruction(merged), {})], rounds)
        model = plain.strategy.local_model(merged, reply.update)
        if not finite(model):
            raise FedUnseenError(
                f"training the own model of client {client} diverged: lower method.lr or "
                "strategy.personal_epochs"
            )
        yield client, model


@dataclass
class Personalize(Callback):
    """Measures clients' own models at the end: the merged one trained further, or those that never
    merged.
    """

    directory: RunDirectory
    evaluate: Evaluate
    epochs: int | None
    measured: dict[str, Any] = field(default_factory=dict)

    def on_end(self, loop: Loop) -> None:
        """Train and measure clients' own models."""
        federation = loop.federation
        task = self.evaluate.task
        line = loop.history[self.evaluate.choice.selected(loop) - 1]
        if self.epochs is None:
            if not federation.strategy.one_model:
                stored = partial(of_clients, self.directory.model_path, federation.device)
                self.measured = task.personal(None, stored, line)
            return
        merged = load_params(self.directory.model_path, federation.device)
        start = {name: merged[name] for name in loop.state.params if name in merged}
        epochs = self.epochs

        def trained(clients: Collection[int]) -> Iterable[tuple[int, Params]]:
            personal = dict(personal_models(federation, start, loop.state.round, epochs, clients))
            if personal:
                write_models(self.directory.personal_path, list(personal), list(personal.values()))
            return personal.items()

        self.measured = {"epochs": epochs, **task.personal(merged, trained, line)}


@dataclass
class ShowProgress(Callback):
    """Calls a function at the start and after every round."""

    show: Progress
    stage: str

    def on_start(self, loop: Loop) -> None:
        """Show where the loop continues."""
        self.show(self.stage, loop.state.round, loop.rounds, loop.metrics or None)

    def after_round(self, loop: Loop) -> None:
        """Show the round."""
        self.show(self.stage, loop.state.round, loop.rounds, loop.metrics)
