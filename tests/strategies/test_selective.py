"""Selective sharing: what travels, what stays, and the strategies that it wraps."""

import pytest
import torch

from fedunseen.core.errors import ExperimentError
from fedunseen.core.phases import Step
from fedunseen.core.trainer import LocalResult
from fedunseen.strategies import FedAvg, FedGloSS, FedProx, Pipeline
from fedunseen.strategies.selective import Selective, travelling
from refusals import message_of

NAMES = ["generator.0.weight", "generator.0.bias", "critic.0.weight", "softmax.weight"]


def test_patterns_choose_what_travels():
    assert travelling(NAMES, ["generator.*"]) == set(NAMES[:2])
    assert travelling(NAMES, ["*.weight"], ["softmax.*"]) == {NAMES[0], NAMES[2]}
    assert travelling(NAMES, ["*"], ["softmax.*"]) == set(NAMES[:3])
    assert travelling(NAMES, ["*"]) == set(NAMES)


@pytest.mark.parametrize(
    ("shared", "private", "sentence"),
    [
        (["generater.*"], [], "strategy.shared: 'generater.*' matches no parameter that could "
         "travel: write a module and a star, for example 'generator.*' (there are: critic, "
         "generator, softmax)"),
        (["generator.*", "softmax.*"], ["softmax.*"], "strategy.shared: 'softmax.*' matches no "
         "parameter that could travel: write a module and a star, for example 'generator.*' (there "
         "are: critic, generator)"),
        (["generator.*", "critic.*"], ["softmax.*"], "strategy.shared: ['generator.*', 'critic.*'] "
         "matches every parameter, and the clients keep none: leave it out, or name fewer modules "
         "(there are: critic, generator)"),
    ],
)  # fmt: skip
def test_patterns_that_choose_nothing_or_everything_are_refused(shared, private, sentence):
    assert message_of(travelling, NAMES, shared, private, error=ExperimentError) == sentence


def test_what_stays_starts_from_the_seed_and_then_from_itself():
    own = {"critic.w": torch.tensor([3.0])}
    strategy = Pipeline(FedAvg(), [Selective(own)])
    sent = {"generator.w": torch.tensor([1.0])}
    first = strategy.recall(strategy.instruct({}, sent, 0), {}, 0)
    assert first.params is sent
    assert first.client_params == own
    trained = {"generator.w": torch.tensor([1.5]), "critic.w": torch.tensor([7.0])}
    update, state = strategy.finish(first, LocalResult(trained, {}, 1), {})
    assert update == {"generator.w": torch.tensor([0.5])}
    trained["critic.w"] += 1  # what is kept is a copy: results may be views of a whole round
    assert strategy.recall(strategy.instruct({}, sent, 1), state, 1).client_params == {
        "critic.w": torch.tensor([7.0])
    }


def gradients(seen):
    def gradient(params, step):
        seen.append(dict(params))
        return {name: torch.full_like(value, len(seen)) for name, value in params.items()}, {}

    return gradient


def test_the_inner_strategy_corrects_what_travels_alone():
    strategy = Pipeline(FedProx(mu=2.0), [Selective({"critic.w": torch.zeros(2)})])
    params = {"generator.w": torch.tensor([1.0, 4.0]), "critic.w": torch.tensor([5.0, 5.0])}
    step = Step({}, {}, {"global/generator.w": torch.zeros(2)}, {})
    grads, _ = strategy.correct(gradients([]))(params, step)
    assert grads["generator.w"].tolist() == [1 + 2 * 1, 1 + 2 * 4]
    assert grads["critic.w"].tolist() == [1, 1]
    only = {"critic.w": params["critic.w"]}  # a phase of its own
    assert strategy.correct(gradients([]))(only, step)[0]["critic.w"].tolist() == [1, 1]


def test_where_gradients_are_asked_for_twice_the_rest_follows_the_last():
    strategy = Pipeline(FedGloSS(rho=0.5, dual=False), [Selective({"critic.w": torch.zeros(2)})])
    params = {"generator.w": torch.tensor([3.0, 4.0]), "critic.w": torch.tensor([5.0, 5.0])}
    state = strategy.init({"generator.w": torch.zeros(2)}, 2)
    instruction = strategy.recall(strategy.instruct(state, params, 0), {}, 0)
    seen = []
    grads, _ = strategy.correct(gradients(seen))(
        params, Step({}, {}, instruction.extras | instruction.kept, {})
    )
    assert len(seen) == 2
    assert grads["critic.w"].tolist() == [2, 2]
    assert not torch.equal(seen[1]["generator.w"], params["generator.w"])  # the sharpness step
    assert torch.equal(seen[1]["critic.w"], params["critic.w"])
