"""The training loop of a federation, and the callbacks that act between its rounds.

::

    fit(federation, rounds, callbacks)
    ├── on_start                     of every callback, in the order of the list
    ├── while rounds are left
    │   ├── before_round             of every callback, until one stops the loop
    │   ├── federation.round
    │   │   ├── instruct             the server sends the model
    │   │   ├── local update         each drawn client trains on its own samples
    │   │   └── merge                the server merges the replies
    │   └── after_round              of every callback
    └── on_end                       of every callback
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedunseen.core.parameters import Params
from fedunseen.federation.federation import Federation, State, mean_losses
from fedunseen.federation.server_step import RoundResult

NOT_MEASURED = (-1.0, -1.0)
"""The score of a round whose models were not measured: no accuracy is below zero."""

Score = tuple[float, float]
"""What rounds are compared by: higher is better."""


@dataclass(eq=False)
class Loop:
    """A training in progress: what callbacks read, and :meth:`stop`.

    Attributes:
        federation: what trains. Only ``Grow`` replaces it.
        rounds: how many there are at most.
        state: after the last round.
        history: the metrics of each round so far, as ``metrics.jsonl`` holds them. All that a
            callback must keep belongs here, so that a resumed run behaves as an undisturbed one.
        result: what the last round left behind; None before the first one.
        models: the models that were measured in the last round; empty where none was.
        score: compares rounds by their metrics.
        stoppable: :meth:`stop` ends the loop; False where the number of rounds was chosen before.
        reason: why the loop stopped early, or "".
        started: the clock when the current round began.
    """

    federation: Federation
    rounds: int
    state: State
    history: list[dict[str, Any]] = field(default_factory=list)
    result: RoundResult | None = None
    models: Sequence[Params] = ()
    score: Callable[[Mapping[str, Any]], Score] = lambda line: NOT_MEASURED
    stoppable: bool = True
    reason: str = ""
    started: float = 0.0

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the last round; a callback may add to them in ``after_round``."""
        return self.history[-1] if self.history else {}

    @property
    def scores(self) -> list[Score]:
        """The score of each round so far."""
        return [self.score(line) for line in self.history]

    @property
    def rounds_since_best(self) -> int:
        """How many rounds ago the best score was reached first: an equal score does not count as a
        gain.
        """
        scores = self.scores
        return len(scores) - 1 - scores.index(max(scores)) if scores else 0

    def stop(self, reason: str) -> None:
        """End the loop: before the next round, or after the callbacks of this one."""
        if self.stoppable:
            self.reason = reason


class Callback:
    """Acts between the rounds of :func:`fit`; a subclass overrides what it needs.

    Example:
        >>> class Patience(Callback):
        ...     def after_round(self, loop):
        ...         if loop.rounds_since_best >= 5:
        ...             loop.stop("no gain in 5 rounds")
    """

    def on_start(self, loop: Loop) -> None:
        """Act before the first round, or before the first one after a resume."""

    def before_round(self, loop: Loop) -> None:
        """Act before a round."""

    def after_round(self, loop: Loop) -> None:
        """Act after a round, whose metrics are ``loop.metrics``."""

    def on_end(self, loop: Loop) -> None:
        """Act after the last round."""


def fit(
    federation: Federation,
    rounds: int,
    callbacks: Sequence[Callback] = (),
    *,
    state: State | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    stoppable: bool = True,
) -> Loop:
    """Train a federation, and return the loop with its final state and the metrics of all rounds.

    Args:
        federation: a method, a strategy and clients.
        rounds: how many there are at most, those before ``state`` included.
        callbacks: what happens between rounds, in this order.
        state: where to continue; by default before round 0.
        history: the metrics of the rounds before ``state``.
        stoppable: callbacks can end the loop.

    Raises:
        FedUnseenError: training diverged, or too few parties of a deployment answered.

    Example:
        >>> from fedunseen.data import Benchmark
        >>> from fedunseen.federation.partition import Partition
        >>> from fedunseen.methods import FedZSL
        >>> from fedunseen.strategies import FedAvg
        >>> animals = {"horse": [1, 0, 0], "tiger": [1, 1, 0], "cow": [1, 0.1, 0.3], "zebra": [1, 0.9, 0.2]}
        >>> seen = ["horse", "tiger", "cow"]
        >>> benchmark = Benchmark.from_arrays([animals[name] for name in seen], seen, animals)
        >>> method = FedZSL.on(benchmark, lr=0.1, kl=0.0, consistency=0.0)
        >>> loop = fit(Federation(benchmark, Partition.of([[0], [1, 2]]), method, FedAvg()), rounds=3)
        >>> loop.state.round, [line["participants"] for line in loop.history]
        (3, [[0, 1], [0, 1], [0, 1]])
    """
    loop = Loop(
        federation,
        rounds,
        federation.start() if state is None else state,
        [dict(line) for line in history],
    )
    loop.stoppable = stoppable
    loop.reason = loop.metrics.get("stopped", "") if stoppable else ""
    for callback in callbacks:
        callback.on_start(loop)
    while loop.state.round < loop.rounds and not loop.reason:
        loop.started = time.perf_counter()
        for callback in callbacks:
            callback.before_round(loop)
            if loop.reason:
                break
        else:
            loop.state, loop.result = loop.federation.round(loop.state)
            loop.models = ()
            loop.history.append(round_metrics(loop.federation, loop.state, loop.result))
            for callback in callbacks:
                callback.after_round(loop)
    for callback in callbacks:
        callback.on_end(loop)
    return loop


def round_metrics(federation: Federation, state: State, result: RoundResult) -> dict[str, Any]:
    """Return what every round records: losses, participants, traffic, and what strategy and engine
    note.
    """
    line: dict[str, Any] = {
        "round": state.round,
        "losses": mean_losses(federation.strategy, result),
        "participants": result.participants,
        "bytes_down": result.bytes_down,
        "bytes_up": result.bytes_up,
        **federation.strategy.notes(state.server),
        **federation.method.facts(state.params),
    }
    if result.dropped:
        line["dropped"] = {str(client): why for client, why in result.dropped.items()}
    if result.clock is not None:
        line["clock"] = dict(result.clock)
    if result.seconds:
        line["client_seconds"] = {
            str(client): seconds for client, seconds in result.seconds.items()
        }
    return line
