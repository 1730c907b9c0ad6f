import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedunseen.core.phases import SGD, Adam, Phase, epochs_plan

OPTIMISERS = [
    *(
        (SGD(0.1, **options), torch.optim.SGD, options)
        for options in (
            {},
            {"weight_decay": 0.03},
            {"momentum": 0.9},
            {"momentum": 0.9, "weight_decay": 0.03},
        )
    ),
    (Adam(0.1), torch.optim.Adam, {}),
    (
        Adam(0.1, (0.5, 0.99), 1e-4, 0.03),
        torch.optim.Adam,
        {"betas": (0.5, 0.99), "eps": 1e-4, "weight_decay": 0.03},
    ),
]
SHAPES = [(3, 2), (4,), (2, 16), ()]  # SGD updates rows of 16 in one pass


def draw(seed, *lead):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*lead, *shape, generator=generator) for shape in SHAPES]


def torchs(kind, options, params, gradients):
    """Give ``params`` after steps with ``gradients`` by the optimiser of torch."""
    params = [value.clone().requires_grad_() for value in params]
    optimiser = kind(params, lr=0.1, **options)
    for grads in gradients:
        for value, grad in zip(params, grads, strict=True):
            value.grad = grad.clone()
        optimiser.step()
    return [value.detach() for value in params]


@pytest.mark.parametrize(("optimiser", "kind", "options"), OPTIMISERS)
def test_a_stack_of_clients_takes_each_ones_own_steps_and_gradients_are_only_read(
    optimiser, kind, options
):
    params, gradients = draw(0, 3), [draw(seed, 3) for seed in range(1, 6)]
    steps = [5, 4, 2]  # the clients at the back rest early
    expected = [
        torchs(
            kind,
            options,
            [v[k] for v in params],
            [[g[k] for g in grads] for grads in gradients[: steps[k]]],
        )
        for k in range(3)
    ]
    alone = [v[0].clone() for v in params]
    state, of_alone = (
        optimiser.init(dict(enumerate(params))),
        optimiser.init(dict(enumerate(alone))),
    )
    for step, grads in enumerate(gradients, 1):
        optimiser.update(alone, [g[0] for g in grads], of_alone, step)
        active = slice(0, sum(s >= step for s in steps))
        own = [[v[active] for v in k] for k in state]
        optimiser.update([v[active] for v in params], [g[active] for g in grads], own, step)
    torch.testing.assert_close([[v[k] for v in params] for k in range(3)], expected)
    assert kind is torch.optim.Adam or all(
        torch.equal(v[0], own) for v, own in zip(params, alone, strict=True)
    )
    # Autograd may return one tensor for two parameters (those of a sum), and one that a scalar was
    # expanded to.
    item = torch.ones(1).expand(16)
    params = [torch.zeros(16), torch.full((16,), 2.0)]
    expected = torchs(kind, options, params, [[item, item]] * 2)
    state = optimiser.init(dict(enumerate(params)))
    for step in (1, 2):
        optimiser.update(params, [item, item], state, step)
    assert item.tolist() == [1.0] * 16
    torch.testing.assert_close(params, expected)


@given(
    samples=st.integers(1, 40),
    batch=st.integers(1, 12),
    epochs=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_every_epoch_sees_every_sample_once(samples, batch, epochs, seed):
    plan = epochs_plan(samples, batch, epochs, np.random.default_rng(seed))
    assert plan.index.shape == plan.weight.shape == (plan.steps, batch)
    assert plan.steps == epochs * int(np.ceil(samples / batch))
    for index, weight in zip(
        np.split(plan.index, epochs), np.split(plan.weight, epochs), strict=True
    ):
        assert sorted(index[weight > 0].tolist()) == list(range(samples))
        # Only the last batch of an epoch is short, and its places are filled from the front.
        assert weight.ravel().tolist() == [1.0] * samples + [0.0] * (weight.size - samples)
    assert ((plan.index >= 0) & (plan.index < samples)).all()
    assert epochs_plan(0, batch, epochs, np.random.default_rng(seed)).steps == 0


def test_a_phase_owns_the_parameters_that_its_patterns_name():
    phase = Phase(
        "critic",
        lambda params, batch, context: (params["w"].sum(), {}),
        SGD(0.1),
        ("critic.*", "scale"),
    )
    names = ["critic.0.weight", "critic", "scale", "scales", "Critic.0", "generator.critic.0"]
    assert [name for name in names if phase.owns(name)] == ["critic.0.weight", "scale"]


@pytest.mark.parametrize("optimiser", [SGD(0.1), SGD(0.1, 0.9), Adam(0.1)])
def test_the_length_of_steps_is_how_far_a_constant_gradient_moves_a_parameter(optimiser):
    params, state = [torch.zeros(2)], optimiser.init({"w": torch.zeros(2)})
    for step in range(1, 8):
        optimiser.update(params, [torch.ones(2)], state, step)
        torch.testing.assert_close(params[0], torch.full((2,), -optimiser.step_length(step)))
