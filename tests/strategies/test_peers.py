"""The peer model of FedFSL by its formula."""

import torch

from fedunseen.core.parameters import under, within
from fedunseen.strategies.base import Instruction
from fedunseen.strategies.peers import Peers


def test_the_exclusive_peer_takes_the_clients_share_out_of_the_mean():
    """Eq. 11: w_-k = (w - p_k w_k) / (1 - p_k), of three clients that count alike."""
    models = [{"w": torch.tensor([value, -value])} for value in (1.0, 4.0, 7.0)]
    merged = {"w": sum(model["w"] for model in models) / 3}
    peers = Peers(exclusive=True)
    state = {"round": torch.tensor(5.0), "weight": torch.tensor(1 / 3)}
    sent = peers.instruct(Instruction(params=merged), state)
    kept = under("last/", models[0]) | {"round": torch.tensor(5.0)}
    peer = within("peers/", peers.recall(sent, kept, 6).kept)
    others = (models[1]["w"] + models[2]["w"]) / 2
    torch.testing.assert_close(peer["w"], others)
    for late in ({}, kept | {"round": torch.tensor(4.0)}):  # had no share in the merged model
        assert torch.equal(within("peers/", peers.recall(sent, late, 6).kept)["w"], merged["w"])
