"""Strategies around strategies: a chain in which every link changes one thing and hands on everything else.

A wrapper is a strategy, so wrappers wrap wrappers. At the server the outermost one sees the clients' replies first;
what it hands to the next one inside is all that the next one knows of them. At the client the innermost strategy makes
the update first, and every wrapper around it sees what the one inside has made. The experiment builds its chain from
the inside out, in this order:

1. a strategy (:class:`~fedunseen.strategies.fedavg.FedAvg`, ...);
2. :class:`~fedunseen.strategies.peers.Peers`: clients know a peer model;
3. :class:`~fedunseen.strategies.selective.Selective`: some parameters stay with their client;
4. :class:`~fedunseen.threats.privacy.Private`: one noisy mean takes the place of all replies;
5. :class:`~fedunseen.threats.defences.Robust`: a defence leaves out or shortens replies, while they still are single;
6. :class:`~fedunseen.strategies.compression.Compressed`: updates take fewer bytes on their way: its ``finish`` writes
   what all others have made in a short form, its ``decode`` reads that before any of them looks at a reply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedunseen.core.parameters import Params, under, within
from fedunseen.core.phases import GradientFunction, Loss, Represent
from fedunseen.core.trainer import LocalResult
from fedunseen.strategies.base import Instruction, Reply, Strategy

__all__ = ["Wrapper"]


class Wrapper(Strategy):
    """Another strategy, unchanged; a subclass overrides what it changes, and calls ``super()`` for the rest.

    The inner strategy's server state is kept under ``inner/``, so a wrapper may put what it remembers itself beside it:
    ``init`` and ``merge`` return ``super().init(...) | own`` and ``super().merge(...)[0] | own``. A client's state is
    the inner strategy's, as it is; a wrapper with something to remember at the client divides it up itself.

    Args:
        inner: the strategy, or another wrapper.
    """

    def __init__(self, inner: Strategy) -> None:
        super().__init__(inner.settings)
        self.inner = inner
        self.merges, self.pools, self.adds = inner.merges, inner.pools, inner.adds
        self.one_model = inner.one_model
        self.mirrors = inner.mirrors
        self.lengths, self.merges_by_mean = inner.lengths, inner.merges_by_mean

    def init(self, params: Params, clients: int) -> Params:
        """Return the inner strategy's state."""
        return under("inner/", self.inner.init(params, clients))

    def instruct(self, state: Params, params: Params, round: int) -> Instruction:
        """As the inner strategy."""
        return self.inner.instruct(within("inner/", state), params, round)

    def recall(self, instruction: Instruction, client_state: Params, round: int) -> Instruction:
        """As the inner strategy."""
        return self.inner.recall(instruction, client_state, round)

    def objective(self, loss: Loss, represent: Represent) -> Loss:
        """As the inner strategy."""
        return self.inner.objective(loss, represent)

    def correct(self, gradient: GradientFunction) -> GradientFunction:
        """As the inner strategy."""
        return self.inner.correct(gradient)

    def finish(self, instruction: Instruction, result: LocalResult, client_state: Params) -> tuple[Params, Params]:
        """As the inner strategy."""
        return self.inner.finish(instruction, result, client_state)

    def local_model(self, start: Params, update: Mapping[str, Tensor]) -> Params:
        """As the inner strategy."""
        return self.inner.local_model(start, update)

    def expects(self, told: Instruction) -> Params:
        """As the inner strategy."""
        return self.inner.expects(told)

    def decode(self, update: Mapping[str, Tensor], told: Instruction) -> Mapping[str, Tensor]:
        """As the inner strategy."""
        return self.inner.decode(update, told)

    def merge(self, state: Params, params: Params, replies: Sequence[Reply], round: int) -> tuple[Params, Params]:
        """As the inner strategy; the state returned is the inner strategy's alone."""
        inner, merged = self.inner.merge(within("inner/", state), params, replies, round)
        return under("inner/", inner), merged

    def blurred(self, reply: Reply, parties: int, round: int) -> Reply:
        """As the inner strategy."""
        return self.inner.blurred(reply, parties, round)

    def released(self, reply: Reply, round: int) -> Reply:
        """As the inner strategy."""
        return self.inner.released(reply, round)

    def expand_classes(self, state: Params, expand: Callable[[Params], Params]) -> Params:
        """As the inner strategy; the state returned is the inner strategy's alone."""
        return under("inner/", self.inner.expand_classes(within("inner/", state), expand))

    def check(self, reply: Reply) -> str:
        """As the inner strategy."""
        return self.inner.check(reply)

    def notes(self, state: Params) -> dict[str, Any]:
        """As the inner strategy."""
        return self.inner.notes(within("inner/", state))

    def merged_statistics(self, params: Params, replies: Sequence[Reply]) -> Params:
        """As the inner strategy."""
        return self.inner.merged_statistics(params, replies)

    def server_step(self, round: int) -> float:
        """As the inner strategy."""
        return self.inner.server_step(round)

    def reply_weights(self, replies: Sequence[Reply]) -> list[float]:
        """As the inner strategy."""
        return self.inner.reply_weights(replies)
