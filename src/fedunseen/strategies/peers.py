"""The peer model that a client compares itself with (FedFSL, 4.1.2), for methods that ask for one.

The merged model w^t is what a client is sent anyway. The k-exclusive one (Eq. 11) follows from the
client's last model: w_-k = (w^t - p_k w_k) / (1 - p_k), where p_k and the round of w^t are the two
numbers that are sent more.
"""

from dataclasses import replace

import torch

from fedunseen.core.parameters import Params, under, within
from fedunseen.core.phases import PEER_COUNTS
from fedunseen.core.trainer import LocalResult
from fedunseen.strategies.base import Instruction, Strategy
from fedunseen.strategies.pipeline import Filter, FilterResult, RoundView

# as they travel
_MERGED = "peers_merged"
_WEIGHT = "peers_weight"
_ROUND = "peers_round"  # as a client keeps it


def averages(strategy: Strategy) -> bool:
    """Say whether the strategy's merged model is the plain mean of its clients' models, each
    counting the same.
    """
    kind = type(strategy)
    settings = strategy.settings
    as_base = kind.merge is Strategy.merge and kind.server_step is Strategy.server_step
    return strategy.merges and as_base and settings.weights == "uniform" and settings.server_lr == 1


class Peers(Filter):
    """Gives the clients of a strategy a peer model."""

    name = "peers"

    def __init__(self, exclusive: bool, first: int = 1) -> None:
        self.exclusive = exclusive
        self.first = first

    def init(self, params: Params) -> Params:
        """Return that no client has had a share in the first model."""
        return {"round": torch.tensor(-1.0), "weight": torch.tensor(0.0)} if self.exclusive else {}

    def instruct(self, instruction: Instruction, state: Params) -> Instruction:
        """Add when the model was merged and what each reply counted, which the k-exclusive peer is
        made with.
        """
        sent = {_MERGED: state["round"], _WEIGHT: state["weight"]} if self.exclusive else {}
        return replace(instruction, extras=instruction.extras | sent)

    def recall(self, instruction: Instruction, client_state: Params, round: int) -> Instruction:
        """Add the peer, which is made of what the client is sent and what it keeps."""
        peer = instruction.params or instruction.client_params
        kept = dict(instruction.kept)
        if self.exclusive:
            weight = float(instruction.extras[_WEIGHT])
            last = within("last/", client_state)
            if (
                last
                and float(client_state["round"]) == float(instruction.extras[_MERGED])
                and weight < 1
            ):
                peer = {
                    name: (value - weight * last[name]) / (1 - weight)
                    for name, value in peer.items()
                }
            kept[_ROUND] = torch.tensor(float(round))
        if self.first > 1:
            kept[PEER_COUNTS] = torch.tensor(float(round + 1 >= self.first))
        return replace(instruction, kept=kept | under("peers/", peer))

    def remember(self, instruction: Instruction, result: LocalResult) -> Params:
        """Keep, where the peer is the model of all others, the client's share of the next merged
        model.
        """
        if not self.exclusive:
            return {}
        last = {name: result.params[name].clone() for name in instruction.params}
        return under("last/", last) | {"round": instruction.kept[_ROUND]}

    def filter(self, view: RoundView) -> FilterResult:
        """Keep what each reply counts."""
        if (
            not self.exclusive or not view.replies
        ):  # without replies the model is still the one of an earlier round
            return FilterResult(view.replies, state=view.state)
        weight = torch.tensor(1 / len(view.replies), dtype=torch.float64)
        return FilterResult(
            view.replies, state={"round": torch.tensor(float(view.round)), "weight": weight}
        )
