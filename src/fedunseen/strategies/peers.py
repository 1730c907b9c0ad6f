"""The peer model that a client compares itself with (FedFSL, 4.1.2), for methods that ask for one.

It wraps any strategy and costs next to no communication. The merged model w^t is what a client is sent anyway. The
k-exclusive one, w_-k of Eq. 11, is what remains of it without the client's own share,
w_-k = (w^t - p_k w_k) / (1 - p_k), so a client that remembers its last model finds it by itself: the server sends two
numbers more, the round that w^t was merged in and the weight that each reply had in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedunseen.core.parameters import Params, under, within
from fedunseen.core.phases import GradientFunction, Loss, Represent
from fedunseen.core.trainer import LocalResult
from fedunseen.strategies.base import Instruction, Reply, Strategy

__all__ = ["Peers"]

_ROUND, _WEIGHT = "peers_round", "peers_weight"
_MERGED = "peers_merged"  # the round of the last merge, as it travels; a client remembers its own under _ROUND


class Peers(Strategy):
    """Another strategy, whose clients know a peer model too.

    Args:
        inner: the strategy.
        exclusive: the peer is the model of all other clients (Eq. 11); otherwise the merged one. Only where a merged
            model is the plain mean of its clients': ``weights = "uniform"`` and ``server_lr = 1``.
    """

    def __init__(self, inner: Strategy, exclusive: bool) -> None:
        super().__init__(inner.settings)
        self.inner, self.exclusive = inner, exclusive
        self.merges, self.pools = inner.merges, inner.pools
        self.needs_sgd, self.needs_lengths = inner.needs_sgd, inner.needs_lengths
        self.merges_by_mean, self.merges_nobody = inner.merges_by_mean, inner.merges_nobody

    def init(self, params: Params, clients: int) -> Params:
        """Return the inner strategy's state; nobody has had a share in the first model."""
        state = under("inner/", self.inner.init(params, clients))
        if self.exclusive:
            state |= {_ROUND: torch.tensor(-1.0), _WEIGHT: torch.tensor(0.0)}
        return state

    def instruct(self, state: Params, params: Params, round: int) -> Instruction:
        """Add when the model was merged and what each reply counted, which the k-exclusive peer is made with."""
        told = self.inner.instruct(within("inner/", state), params, round)
        if not self.exclusive:
            return told
        return replace(told, extras=told.extras | {_MERGED: state[_ROUND], _WEIGHT: state[_WEIGHT]})

    def recall(self, instruction: Instruction, client_state: Params, round: int) -> Instruction:
        """Add the peer, which is made of what the client is sent and what it remembers."""
        told = self.inner.recall(instruction, self._own(client_state), round)
        peer = told.params or told.own
        if not self.exclusive:
            return replace(told, kept=told.kept | under("peers/", peer))
        last = within("last/", client_state)
        weight = float(instruction.extras[_WEIGHT])
        if last and float(client_state[_ROUND]) == float(instruction.extras[_MERGED]) and weight < 1:
            peer = {name: (value - weight * last[name]) / (1 - weight) for name, value in peer.items()}
        kept = told.kept | under("peers/", peer) | {_ROUND: torch.tensor(float(round))}
        return replace(told, kept=kept)

    def objective(self, loss: Loss, represent: Represent) -> Loss:
        """As the inner strategy."""
        return self.inner.objective(loss, represent)

    def correct(self, gradient: GradientFunction) -> GradientFunction:
        """As the inner strategy."""
        return self.inner.correct(gradient)

    def finish(self, instruction: Instruction, result: LocalResult, client_state: Params) -> tuple[Params, Params]:
        """Remember the model that goes into the next merged one."""
        update, inner = self.inner.finish(instruction, result, self._own(client_state))
        state = under("inner/", inner) if self.merges else inner
        if self.exclusive:
            last = {name: value.clone() for name, value in result.params.items()}
            state |= under("last/", last) | {_ROUND: instruction.kept[_ROUND]}
        return update, state

    def _own(self, client_state: Params) -> Params:
        """Return the inner strategy's part; where every client keeps its model, the state is that and nothing else."""
        return within("inner/", client_state) if self.merges else client_state

    def local_model(self, start: Params, update: Mapping[str, Tensor]) -> Params:
        """As the inner strategy."""
        return self.inner.local_model(start, update)

    def merge(self, state: Params, params: Params, replies: Sequence[Reply], round: int) -> tuple[Params, Params]:
        """Merge as the inner strategy does; remember what each reply counted."""
        inner, params = self.inner.merge(within("inner/", state), params, replies, round)
        state = under("inner/", inner)
        if self.exclusive:
            weight = torch.tensor(1 / len(replies), dtype=torch.float64)
            state |= {_ROUND: torch.tensor(float(round)), _WEIGHT: weight}
        return state, params

    def server_step(self, round: int) -> float:
        """As the inner strategy."""
        return self.inner.server_step(round)
