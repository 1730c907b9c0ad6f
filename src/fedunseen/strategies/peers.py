"""The peer model that a client compares itself with (FedFSL, 4.1.2), for methods that ask for one.

It wraps any strategy and costs next to no communication. The merged model w^t is what a client is sent anyway. The
k-exclusive one, w_-k of Eq. 11, is what remains of it without the client's own share,
w_-k = (w^t - p_k w_k) / (1 - p_k), so a client that remembers its last model finds it by itself: the server sends two
numbers more, the round that w^t was merged in and the weight that each reply had in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fedunseen.core.parameters import Params, under, within
from fedunseen.core.phases import PEER_COUNTS
from fedunseen.core.trainer import LocalResult
from fedunseen.strategies.base import Instruction, Reply, Strategy
from fedunseen.strategies.wrappers import Wrapper

__all__ = ["Peers", "averages"]

_ROUND, _WEIGHT = "peers_round", "peers_weight"
_MERGED = "peers_merged"  # the round of the last merge, as it travels; a client remembers its own under _ROUND


def averages(strategy: Strategy) -> bool:
    """Say whether the strategy's merged model is the plain mean of its clients' models, each counting the same.

    Example:
        >>> from fedunseen.strategies import FedAvg, FedAvgDecay, FedProx
        >>> averages(FedProx(weights="uniform")), averages(FedAvg(weights="classes"))
        (True, False)
        >>> averages(FedAvgDecay(weights="uniform"))  # the server takes shorter and shorter steps
        False
    """
    kind, own = type(strategy), strategy.settings
    as_base = kind.merge is Strategy.merge and kind.server_step is Strategy.server_step
    return strategy.merges and as_base and own.weights == "uniform" and own.server_lr == own.update_scale == 1


class Peers(Wrapper):
    """Another strategy, whose clients know a peer model too.

    Args:
        inner: the strategy.
        exclusive: the peer is the model of all other clients (Eq. 11), which takes an inner strategy that
            :func:`averages`; otherwise it is the merged model.
        first: the first round in which the peer counts, counted from 1.
    """

    def __init__(self, inner: Strategy, exclusive: bool, first: int = 1) -> None:
        super().__init__(inner)
        self.exclusive, self.first = exclusive, first

    def init(self, params: Params, clients: int) -> Params:
        """Return the inner strategy's state; nobody has had a share in the first model."""
        state = super().init(params, clients)
        if self.exclusive:
            state |= {_ROUND: torch.tensor(-1.0), _WEIGHT: torch.tensor(0.0)}
        return state

    def instruct(self, state: Params, params: Params, round: int) -> Instruction:
        """Add when the model was merged and what each reply counted, which the k-exclusive peer is made with."""
        told = super().instruct(state, params, round)
        if not self.exclusive:
            return told
        return replace(told, extras=told.extras | {_MERGED: state[_ROUND], _WEIGHT: state[_WEIGHT]})

    def recall(self, instruction: Instruction, client_state: Params, round: int) -> Instruction:
        """Add the peer, which is made of what the client is sent and what it remembers."""
        if not self.exclusive:
            told = super().recall(instruction, client_state, round)
            return replace(told, kept=told.kept | under("peers/", told.params or told.own) | self._counts(round))
        told = super().recall(instruction, within("inner/", client_state), round)
        peer, last = told.params, within("last/", client_state)
        weight = float(instruction.extras[_WEIGHT])
        if last and float(client_state[_ROUND]) == float(instruction.extras[_MERGED]) and weight < 1:
            peer = {name: (value - weight * last[name]) / (1 - weight) for name, value in peer.items()}
        kept = told.kept | under("peers/", peer) | {_ROUND: torch.tensor(float(round))}
        return replace(told, kept=kept | self._counts(round))

    def _counts(self, round: int) -> Params:
        return {PEER_COUNTS: torch.tensor(float(round + 1 >= self.first))} if self.first > 1 else {}

    def finish(self, instruction: Instruction, result: LocalResult, client_state: Params) -> tuple[Params, Params]:
        """Remember, where the peer is the model of all others, the client's share of the next merged model."""
        if not self.exclusive:
            return super().finish(instruction, result, client_state)
        update, inner = super().finish(instruction, result, within("inner/", client_state))
        last = {name: value.clone() for name, value in result.params.items()}
        return update, under("inner/", inner) | under("last/", last) | {_ROUND: instruction.kept[_ROUND]}

    def merge(self, state: Params, params: Params, replies: Sequence[Reply], round: int) -> tuple[Params, Params]:
        """Merge as the inner strategy does; remember what each reply counted."""
        new, merged = super().merge(state, params, replies, round)
        if not self.exclusive:
            return new, merged
        if not replies:  # the model is still the one of an earlier round
            return new | {_ROUND: state[_ROUND], _WEIGHT: state[_WEIGHT]}, merged
        weight = torch.tensor(1 / len(replies), dtype=torch.float64)
        return new | {_ROUND: torch.tensor(float(round)), _WEIGHT: weight}, merged
