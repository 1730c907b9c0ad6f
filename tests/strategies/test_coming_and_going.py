"""What SCAFFOLD and FedGLOSS add up over all clients, while clients come and go."""

import pytest
import torch

from fedunseen.core.parameters import within
from fedunseen.experiment.assemble import assemble, load_data, partition_of
from small_runs import experiment

PREFIX = {"scaffold": "c/", "fedgloss": "sigma/"}


def states(name, rounds=4, **partition):
    """Yield who is present in each round of a small federation, and the state after it."""
    chosen = experiment(
        strategy__name=name, strategy__weights="uniform", partition__clients=4, **partition
    )
    benchmark = load_data(chosen, 0)
    federation = assemble(chosen, benchmark, partition_of(chosen, benchmark, 0))
    state = federation.start()
    for round in range(rounds):
        state, _ = federation.round(state)
        yield federation.partition.present(round), state


def mean(state, clients):
    kept = [state.clients[client] for client in clients]
    return {key: torch.stack([one[key] for one in kept]).mean(0) for key in kept[0]}


def close(one, other):
    return one.keys() == other.keys() and all(
        torch.allclose(one[key], other[key], rtol=1e-4, atol=1e-6) for key in one
    )


@pytest.mark.parametrize("name", PREFIX)
@pytest.mark.parametrize("join", [{}, {"partition__join": {"3": 2}}], ids=["all", "join"])
def test_the_server_s_variable_is_the_mean_of_those_of_the_present_clients(name, join):
    prefix = PREFIX[name]
    for present, state in states(name, **join):
        assert float(state.server["clients"]) == len(present)
        assert close(within(prefix, state.server), mean(state, present))


@pytest.mark.parametrize("name", PREFIX)
def test_changes_are_divided_by_those_that_are_left(name):
    """What one keeps that has left is not known to the server: the mean of the others moves by
    what they say.
    """
    prefix = PREFIX[name]
    before = None
    for present, state in states(name, partition__leave={"0": 2}):
        server = within(prefix, state.server)
        if before is not None and len(present) == 3:
            moved = {key: value - before[0][key] for key, value in server.items()}
            own, then = mean(state, present), mean(before[1], present)
            assert close(moved, {key: value - then[key] for key, value in own.items()})
            assert float(state.server["clients"]) == 3
        before = server, state
