import torch

from fedunseen.core.phases import Step
from fedunseen.strategies.fedprox import FedProx, FedProxSettings

MU = 0.7


def loss(params):
    return (params["a"].square().sum() * params["b"]).sin() + params["b"].exp()


def gradient(params, step):
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    value = loss({**step.fixed, **leaves})
    return dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True)), {"loss": value.detach()}


def params_at(seed):
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(4, generator=generator, dtype=torch.float64)
    return {"a": draw[:3], "b": draw[3]}


def corrected(group, mu=MU):
    strategy = FedProx(FedProxSettings(mu=mu))
    everything, centre = params_at(0), params_at(1)
    extras = strategy.instruct({}, centre, 5).extras
    fixed = {name: value for name, value in everything.items() if name not in group}
    return strategy.correct(gradient)({name: everything[name] for name in group}, Step({}, {}, extras, fixed))


def proximal(params):
    """Loss + mu/2 |w - w_t|^2, over all parameters."""
    centre = params_at(1)
    return loss(params) + MU / 2 * sum((params[name] - centre[name]).square().sum() for name in params)


def test_the_gradient_is_that_of_the_loss_with_the_proximal_term_by_finite_differences():
    grads, _ = corrected(["a", "b"])
    h = 1e-6
    for name, grad in grads.items():
        flat = grad.reshape(-1)
        for i in range(flat.numel()):
            up, down = params_at(0), params_at(0)
            up[name].view(-1)[i] += h
            down[name].view(-1)[i] -= h
            torch.testing.assert_close(flat[i], (proximal(up) - proximal(down)) / (2 * h), rtol=1e-6, atol=1e-8)


def test_only_the_parameters_of_the_phase_are_pulled():
    grads, terms = corrected(["b"])
    both, _ = corrected(["a", "b"])
    assert set(grads) == {"b"}
    assert torch.equal(grads["b"], both["b"])
    assert set(terms) == {"loss"}


def test_the_centre_of_the_pull_is_the_model_that_is_sent():
    params = params_at(0)
    instruction = FedProx(FedProxSettings()).instruct({}, params, 0)
    assert instruction.params is params
    assert {name: id(value) for name, value in instruction.extras.items()} == {
        "global/a": id(params["a"]),
        "global/b": id(params["b"]),
    }
