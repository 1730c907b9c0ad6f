"""A federation ready to run: a method, a strategy, and clients with their samples."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import ArgumentError
from fedunseen.core.parameters import ClientStates, Params, to_device
from fedunseen.core.random import stream
from fedunseen.core.samples import Inputs
from fedunseen.core.sizes import BoundedDraws
from fedunseen.data import Benchmark, Scaler
from fedunseen.evaluation.answers import answer
from fedunseen.federation.engine import Engine
from fedunseen.federation.in_process import InProcess
from fedunseen.federation.partition import NEVER, Partition
from fedunseen.federation.server_step import RoundResult
from fedunseen.federation.worker import Worker
from fedunseen.methods import LEFT_TO_DATA, Candidates, Method
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.metrics import Answers
from fedunseen.strategies import Filter, Pipeline, Strategy
from fedunseen.strategies.peers import Peers
from fedunseen.strategies.selective import selective
from fedunseen.strategies.summed import Summed

_NUMBERS = 2**24  # numbers of the samples scored at once, to bound memory


@dataclass(frozen=True, eq=False)
class State:
    """Where a federation stands between two rounds: all that the next one needs, and all that a
    checkpoint keeps.

    Attributes:
        round: how many rounds are done.
        server: what the strategy keeps at the server.
        params: the merged parameters.
        clients: client -> what it keeps; those that keep nothing are left out.
    """

    round: int
    server: Params
    params: Params
    clients: ClientStates


@dataclass(frozen=True)
class Sampling:
    """Which of the present clients take part in a round.

    Attributes:
        seed: what every random choice of a federation depends on.
        fraction: share of the present clients.
        poisson: draw each client by itself with that probability, as private merging needs, so that
            now and then no one takes part. Otherwise as many take part in each round.
    """

    seed: int = 0
    fraction: float = 1.0
    poisson: bool = False

    def draw(self, present: Sequence[int], round: int) -> list[int]:
        """Draw the clients of ``round`` (counted from 0) from those present, in ascending order."""
        rng = stream(self.seed, "participants", round)
        if self.poisson:
            draws = zip(present, rng.random(len(present)), strict=True)
            return [int(client) for client, drawn in draws if drawn < self.fraction]
        count = drawn_clients(self.fraction, len(present))
        return sorted(int(client) for client in rng.choice(present, count, replace=False))


@dataclass(frozen=True, eq=False)
class Parts:
    """What runs a federation's clients, and what they start from.

    Attributes:
        engine: where clients run.
        first: the parameters that travel, before round 0.
        sizes: how many numbers each parameter has, those that stay with the clients included.
        scaler: how the features were scaled to make the inputs.
        monitors: record what threats and defences do in each round.
    """

    engine: Engine
    first: Params
    sizes: Mapping[str, int]
    scaler: Scaler = field(default_factory=lambda: Scaler((), {}))
    monitors: Sequence["Monitor"] = ()


class Federation:
    """A method, a strategy and clients; :meth:`start` and :meth:`round` train them.

    Args:
        benchmark: the samples, and which of them are for training and tests.
        partition: who holds which training samples, and in which rounds a client takes part.
        method: what the clients learn.
        strategy: what is shared and how updates merge.
        inputs: (N, ...) the benchmark's samples as the method takes them, on the device that trains
            or to be sent there; by default its features as they are.
        sampling: which clients take part in a round; by default all.
        parts: by default clients in this process, which start from what ``method.init`` draws.

    Raises:
        ArgumentError: a client holds a sample that is not one of ``benchmark.train``.

    Example:
        A whole federated training is a loop over :meth:`round`.

        >>> from fedunseen.methods import FedZSL
        >>> from fedunseen.strategies import FedAvg
        >>> animals = {"horse": [1, 0, 0], "tiger": [1, 1, 0], "cow": [1, 0.1, 0.3], "zebra": [1, 0.9, 0.2]}
        >>> seen = ["horse", "tiger", "cow"]
        >>> samples = [animals[name] for name in seen]
        >>> benchmark = Benchmark.from_arrays(samples, seen, animals, test=(list(animals.values()), list(animals)))
        >>> method = FedZSL.on(benchmark, lr=0.1, kl=0.0, consistency=0.0)
        >>> federation = Federation(benchmark, Partition.of([[0], [1, 2]]), method, FedAvg())
        >>> state = federation.start()
        >>> for _ in range(3):
        ...     state, result = federation.round(state)
        >>> [reply.client for reply in result.replies]
        [0, 1]
        >>> federation.answers(state.params).zsl.tolist()  # there is one unseen class
        [3, 3, 3, 3]
    """

    def __init__(
        self,
        benchmark: Benchmark,
        partition: Partition,
        method: Method,
        strategy: Strategy,
        *,
        inputs: Inputs | None = None,
        sampling: Sampling = Sampling(),
        parts: Parts | None = None,
    ) -> None:
        _check_trains(partition, benchmark)
        self.benchmark = benchmark
        self.partition = partition
        self.method = method
        self.sampling = sampling
        self.seed = sampling.seed
        self.inputs: Inputs = torch.from_numpy(benchmark.features) if inputs is None else inputs
        self.labels = torch.from_numpy(benchmark.labels).to(self.inputs.device)
        parts = parts or self._in_process(strategy)
        self.engine = parts.engine
        self.first = parts.first
        self.sizes = parts.sizes
        self.scaler = parts.scaler
        self.monitors = parts.monitors

    def _in_process(self, strategy: Strategy) -> Parts:
        """Return clients in this process, once the method has taken from the samples what was left
        to them.
        """
        method = self.method
        first = to_device(
            method.init(BoundedDraws(stream(self.seed, "initialisation").bit_generator)),
            self.device,
        )
        if any(getattr(method.settings, key, 0.0) is None for key in LEFT_TO_DATA):
            few = torch.from_numpy(self.benchmark.sketch()).to(self.device)
            method.resolve_defaults(first, self.inputs[few])
        sizes = {name: value.numel() for name, value in first.items()}
        strategy, filters, first = suited(strategy, method, first)
        strategy = Pipeline.around(strategy, filters)
        self.partition = one_place(self.partition) if strategy.pools else self.partition
        worker = Worker(
            method, strategy, self.inputs, self.labels, self.partition.clients, self.seed
        )
        return Parts(InProcess(strategy, worker), first, sizes)

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return self.inputs.device

    @property
    def strategy(self) -> Strategy:
        """What is shared and how updates merge, with everything that wraps it."""
        return self.engine.strategy

    @property
    def semantics(self) -> Tensor:
        """The scaled semantics of the classes (C, attributes)."""
        return self.method.semantics

    def start(self) -> State:
        """Return the state before round 0."""
        return State(0, self.strategy.init(self.first, len(self.partition.clients)), self.first, {})

    def round(self, state: State) -> tuple[State, RoundResult]:
        """Run the next round; return the state after it and what the clients replied.

        Raises:
            FedUnseenError: training diverged, or too few parties of a deployment answered.
        """
        present = self.engine.expected(self.partition.present(state.round))
        drawn = self.sampling.draw(present, state.round)
        new = [client for client in present if 0 < self.partition.first[client] == state.round]
        server = self.strategy.count_clients(state.server, len(present), len(new))
        result = self.engine.round(state.round, server, state.params, state.clients, drawn)
        clients = {**state.clients, **result.client_states}
        return State(state.round + 1, result.state, result.params, clients), result

    def models(self, state: State) -> Sequence[Params]:
        """Return the complete models whose mean accuracy is reported: the merged one, or every
        client's own.

        Clients' own models are made when they are asked for: there may be thousands.
        """
        return [self.fit_heads(state.params)] if self.strategy.one_model else OwnModels(self, state)

    def client_params(self, state: State, client: int) -> Params:
        """Return the parameters that stay with a client: none, some (``strategy.shared``) or all
        (``local``).
        """
        instruction = self.strategy.instruct(state.server, state.params, state.round)
        return self.strategy.recall(
            instruction, dict(state.clients.get(client, {}).items()), state.round
        ).client_params

    def fit_heads(self, params: Params) -> Params:
        """Add what the method's scores need to merged parameters: a generative method's
        classifiers.

        Its classifiers also see real training samples, but only if the strategy pools all of them
        in one place.
        """
        space = self.benchmark.space
        real = None
        if self.strategy.pools and self.method.generates:
            rows = torch.from_numpy(self.partition.clients[0]).to(self.device)
            real = self.inputs[rows], self.labels[rows]
        among = Candidates(space.names, self.semantics, space.seen, space.unseen)
        return self.method.fit_heads(params, among, self.seed, real)

    def answers(self, params: Params, rows: NDArray[np.int64] | None = None) -> Answers:
        """Ask a complete model for the classes of the benchmark's test samples, or of some of its
        samples.
        """
        rows = (
            np.concatenate([self.benchmark.test_unseen, self.benchmark.test_seen])
            if rows is None
            else rows
        )
        with torch.no_grad():
            scores = (
                self.method.scores(params, inputs, self.semantics) for inputs in self.batches(rows)
            )
            unseen = (
                self.method.unseen_scores(params, inputs, self.semantics)
                for inputs in self.batches(rows)
            )
            among = unseen if self.method.generates else None
            return answer(scores, self.benchmark.labels[rows], self.benchmark.space, among)

    def batches(self, rows: NDArray[np.int64]) -> Iterator[Tensor]:
        """Yield the inputs of samples in batches of bounded memory."""
        # A layer of a backbone has about a hundredth as many numbers as it takes multiplications to
        # make them.
        numbers = max(1, self.inputs.shape[1:].numel(), self.method.backbone.multiply_adds() // 100)
        step = max(1, min(4096, _NUMBERS // numbers))
        for start in range(0, len(rows), step):
            yield self.inputs[torch.from_numpy(rows[start : start + step]).to(self.inputs.device)]


class Monitor:
    """Base of what watches the rounds of a run: what an attack reached, say; each default records
    nothing.

    Attributes:
        every_round: its numbers are needed after every round, so that every round is measured.
    """

    every_round = False

    def line(
        self,
        federation: Federation,
        round: int,
        result: RoundResult,
        models: Sequence[Params],
        offset: float,
    ) -> dict[str, Any]:
        """Return what ``metrics.jsonl`` records of ``round``, counted from 0.

        Args:
            federation: that has run the round.
            round: counted from 0.
            result: what the round left behind.
            models: the complete models that are measured; none where the round is not measured.
            offset: the calibration offset.
        """
        return {}

    def result(
        self, federation: Federation, lines: Sequence[Mapping[str, Any]], selected: int
    ) -> dict[str, Any]:
        """Return what ``result.json`` records; ``selected``: the reported round, counted from 1."""
        return {}

    def observe(
        self, federation: Federation, rounds: int, path: Path, round: int, params: Params
    ) -> None:
        """Write into the run directory ``path`` what only exists during ``round``, counted from
        0.
        """


class OwnModels(Sequence[Params]):
    """The complete models of the clients that keep something, in ascending order; each is made when
    asked for.
    """

    def __init__(self, federation: Federation, state: State) -> None:
        self.federation = federation
        self.state = state
        self.clients = sorted(state.clients)

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[k] for k in range(*place.indices(len(self)))]
        client_params = self.federation.client_params(self.state, self.clients[place])
        return self.federation.fit_heads({**self.state.params, **client_params})


def suited(
    strategy: Strategy, method: Method, params: Params
) -> tuple[Strategy, list[Filter], Params]:
    """Return what a method needs of any strategy: a peer model, parameters that stay with clients,
    sums.
    """
    filters: list[Filter] = []
    if method.compares:
        filters = [Peers(method.settings.exclusive, method.settings.mi_from)]
    keeps, params = selective(strategy, method.private, params, method.training_only)
    if isinstance(method, ClosedForm) and strategy.merges:
        strategy = Summed(
            strategy,
            params,
            getattr(method.settings, "retention", "each") == "each",
            method.validate_statistics,
            method.influence,
        )
    return strategy, [*filters, *keeps], params


def one_place(partition: Partition) -> Partition:
    """Give one client all samples."""
    everything = np.unique(np.concatenate(partition.clients))
    return Partition((everything,), np.zeros(1, dtype=np.int64), np.full(1, NEVER))


def drawn_clients(fraction: float, present: int) -> int:
    """Return how many clients take part in a round: at least one."""
    return max(1, int(np.floor(fraction * present + 0.5)))


def mean_losses(strategy: Strategy, result: RoundResult) -> dict[str, float]:
    """Return the mean of each loss over the clients that have it: some phases run in a client's
    first round alone.
    """
    if result.masked is not None:
        return dict(result.masked.reply.terms)
    means = {}
    weights = strategy.reply_weights(result.replies)
    for term in dict.fromkeys(term for reply in result.replies for term in reply.terms):
        pairs = zip(weights, result.replies, strict=True)
        having = [(weight, reply.terms[term]) for weight, reply in pairs if term in reply.terms]
        means[term] = sum(weight * value for weight, value in having) / sum(
            weight for weight, _ in having
        )
    return means


def _check_trains(partition: Partition, benchmark: Benchmark) -> None:
    """Refuse clients that would train on test samples: accuracies would then say nothing."""
    for client, ids in enumerate(partition.clients):
        if len(wrong := np.setdiff1d(ids, benchmark.train)):
            raise ArgumentError(
                f"client {client} holds sample {wrong[0]}, which is not a training sample: give "
                "positions in the benchmark, for example benchmark.train[0], not in its train"
            )
