"""Server optimizers against Algorithm 2 of Reddi et al. 2021, one number at a time in plain
Python.
"""

import math

import numpy as np
import pytest
import torch

from fedunseen.strategies import FedAdagrad, FedAdam, FedAvgM, FedYogi, Reply

ETA, BETA1, BETA2, TAU, ROUNDS = 0.3, 0.8, 0.7, 0.05, 5
HELD = [1, 3, 4]  # classes of three clients
MADE = {
    "fedavgm": FedAvgM(server_lr=ETA, momentum=BETA1),
    "fedadagrad": FedAdagrad(server_lr=ETA, beta1=BETA1, tau=TAU),
    "fedyogi": FedYogi(server_lr=ETA, beta1=BETA1, beta2=BETA2, tau=TAU),
    "fedadam": FedAdam(server_lr=ETA, beta1=BETA1, beta2=BETA2, tau=TAU),
}


def by_hand(name, start, updates):
    """Give one number after each round; ``updates`` (rounds, clients)."""
    x, m, v, result = start, 0.0, TAU**2, []
    for of_clients in updates:
        delta = sum(held * update for held, update in zip(HELD, of_clients, strict=True)) / sum(
            HELD
        )
        if name == "fedavgm":
            m = BETA1 * m + delta
            x = x + ETA * m
        else:
            m = BETA1 * m + (1 - BETA1) * delta
            if name == "fedadagrad":
                v = v + delta**2
            elif name == "fedyogi":
                v = v - (1 - BETA2) * delta**2 * math.copysign(1.0, v - delta**2)
            else:
                v = BETA2 * v + (1 - BETA2) * delta**2
            x = x + ETA * m / (math.sqrt(v) + TAU)
        result.append(x)
    return result


@pytest.mark.parametrize("name", MADE)
def test_rounds_are_those_of_the_papers_algorithm(name):
    rng = np.random.default_rng(3)
    start, updates = rng.normal(size=(2, 3)), rng.normal(scale=0.2, size=(ROUNDS, len(HELD), 2, 3))
    strategy, params = MADE[name], {"w": torch.from_numpy(start)}
    state = strategy.init(params, 3)
    assert strategy.merges_by_mean  # the server takes nothing but the mean: private merging fits
    expected = np.empty((ROUNDS, *start.shape))
    for place in np.ndindex(*start.shape):
        expected[(slice(None), *place)] = by_hand(
            name, start[place], updates[(slice(None), slice(None), *place)]
        )
    for round in range(ROUNDS):
        replies = [
            Reply(k, {"w": torch.from_numpy(updates[round, k])}, held, 1)
            for k, held in enumerate(HELD)
        ]
        state, params = strategy.merge(state, params, replies, round)
        np.testing.assert_allclose(params["w"].numpy(), expected[round], rtol=1e-12)


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
def test_parameters_that_hardly_move_are_given_longer_steps_and_large_tau_is_fedavg(name):
    params = {"w": torch.zeros(2, dtype=torch.float64)}
    given = [Reply(0, {"w": torch.tensor([1.0, 0.01], dtype=torch.float64)}, 1, 1)]

    def after(tau, lr):
        strategy = type(MADE[name])(server_lr=lr, beta1=0.0, tau=tau)
        return strategy.merge(strategy.init(params, 1), params, given, 0)[1]["w"]

    small = after(1e-6, 0.1)
    assert float(small[0] / small[1]) == pytest.approx(
        1, rel=2e-3
    )  # of updates a hundred times as large
    forgotten = (
        math.sqrt(0.99) if name == "fedadam" else 1.0
    )  # of tau^2, where v begins, FedAdam forgets a part
    large = after(1e6, 1e6 * (forgotten + 1))  # the update over tau sqrt(forgotten) + tau
    torch.testing.assert_close(large, given[0].update["w"], rtol=1e-5, atol=0)
