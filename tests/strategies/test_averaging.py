from dataclasses import replace

import pytest
import torch

from fedunseen import strategies
from fedunseen.core.phases import Step
from fedunseen.core.registry import find
from fedunseen.core.trainer import LocalResult
from fedunseen.strategies import STRATEGIES, FedAvg, FedAvgDecay, Instruction, Reply
from refusals import message_of
from same import same

LENGTHS = {"w": 0.5, "v": 0.5}


def replies():
    """Three clients' updates of a parameter: 1, 2 and 4, from 1, 1 and 2 classes and 10, 30 and 60
    samples.
    """
    numbers = [(1.0, 1, 10), (2.0, 1, 30), (4.0, 2, 60)]
    return [Reply(k, {"w": torch.tensor([u])}, c, n) for k, (u, c, n) in enumerate(numbers)]


def merged(strategy, round=0):
    _, params = strategy.merge({}, {"w": torch.tensor([10.0])}, replies(), round)
    return params["w"].item()


@pytest.mark.parametrize(("weights", "change"), [
    ("classes", 1 / 4 + 2 / 4 + 4 * 2 / 4), ("samples", 0.1 + 2 * 0.3 + 4 * 0.6), ("uniform", (1 + 2 + 4) / 3),
])  # fmt: skip
@pytest.mark.parametrize("eta", [1.0, 0.5, 2.0])
def test_the_merge_is_equation_2(weights, change, eta):
    strategy = FedAvg(weights=weights, server_lr=eta)
    assert merged(strategy) == pytest.approx(10 + eta * change)
    assert sum(strategy.reply_weights(replies())) == pytest.approx(1)


def test_the_server_of_fedavg_decay_takes_smaller_and_smaller_steps():
    strategy = FedAvgDecay(server_lr=2.0, decay=0.5)
    change = 1 / 4 + 2 / 4 + 4 * 2 / 4
    assert [merged(strategy, round) for round in range(3)] == pytest.approx(
        [10 + s * change for s in (2, 1, 0.5)]
    )


def test_an_update_is_what_training_changed():
    strategy = FedAvg()
    result = LocalResult({"w": torch.tensor([5.0])}, {}, 1)
    update, state = strategy.finish(
        Instruction({"w": torch.tensor([3.0])}), result, {"kept": torch.ones(1)}
    )
    assert update["w"].item() == 2
    assert set(state) == {"kept"}


def test_merging_goes_by_the_order_given_and_changes_no_argument():
    generator = torch.Generator().manual_seed(0)
    many = [Reply(k, {"w": torch.randn(1000, generator=generator)}, k + 1, 1) for k in range(7)]
    before = [reply.update["w"].clone() for reply in many]
    params = {"w": torch.randn(1000, generator=generator)}
    strategy = FedAvg()
    first, again = (strategy.merge({}, params, many, 0)[1]["w"] for _ in range(2))
    assert torch.equal(first, again)
    expected = sum((reply.update["w"] * (reply.classes / 28) for reply in many), params["w"])
    torch.testing.assert_close(first, expected, rtol=1e-6, atol=1e-6)
    assert all(torch.equal(reply.update["w"], w) for reply, w in zip(many, before, strict=True))
    assert params["w"] is not first


def test_fedprox_pulls_what_a_phase_trains_towards_the_model_that_was_sent():
    params, centre = ({n: torch.randn(3, dtype=torch.float64) for n in "ab"} for _ in range(2))
    instruction = strategies.FedProx(mu=0.7).instruct({}, centre, 5)
    assert instruction.params is centre
    slopes = {n: torch.randn(3, dtype=torch.float64) for n in "ab"}
    corrected = strategies.FedProx(mu=0.7).correct(
        lambda group, step: ({n: slopes[n] for n in group}, {"loss": 1})
    )
    for group in ("ab", "b"):
        grads, terms = corrected(
            {n: params[n] for n in group}, Step({}, {}, instruction.extras, params)
        )
        expected = {
            n: slopes[n] + 0.7 * (params[n] - centre[n]) for n in group
        }  # of mu / 2 |w - w_t|^2
        torch.testing.assert_close(grads, expected)
        assert terms == {"loss": 1}


# What holds for every strategy

PARAMS = {"w": torch.zeros(2), "v": torch.zeros(3), "n.running_var": torch.ones(1)}


@pytest.fixture(params=sorted(STRATEGIES))
def kind(request):
    return find("strategy", request.param)


def test_what_a_client_remembers_joins_at_the_client_and_what_it_sends_is_merged(kind):
    """The server's half is one for all, and names what travels alone; the client's half changes no
    part of it.
    """
    strategy, params = kind(server_lr=0.5), PARAMS
    state, own = strategy.init(params, 3), {}
    for round in range(2):
        sent = strategy.instruct(state, params, round)
        assert (sent.kept, sent.client_params) == ({}, {})
        before = {n: v.clone() for n, v in (sent.params | sent.extras).items()}
        answer = strategy.recall(sent, own, round)
        assert same(sent.params | sent.extras, before)
        if strategy.merges:
            assert answer.params is sent.params
            assert answer.extras is sent.extras
        elif round:
            assert answer.client_params is own
        result = LocalResult(
            {n: v + 1 for n, v in (answer.params | answer.client_params).items()}, {}, 1, LENGTHS
        )
        update, own = strategy.finish(answer, result, own)
        replies = [Reply(0, update, 1, 1, {}, LENGTHS)]
        if strategy.merges:
            torch.testing.assert_close(strategy.local_model(answer.params, update), result.params)
            replies.append(
                replace(
                    replies[0], update=update | {"n.running_var": torch.tensor([5.0])}, classes=3
                )
            )
        state, merged = strategy.merge(state, params, replies, round)
        assert set(merged) == set(PARAMS)
        assert strategy.merges is (merged["w"].sum().item() != params["w"].sum().item())
        if strategy.merges:
            assert (
                merged["n.running_var"] == params["n.running_var"] + (1 + 3 * 5) / 4
            )  # neither scaled nor a step
        params = merged
    assert not any("running" in key for key in state)
    assert strategy.merges or own["w"].tolist() == [2, 2]


def test_a_round_without_a_reply_changes_neither_model_nor_state(kind):
    state = kind().init(PARAMS, 3)
    new, after = kind().merge(state, PARAMS, [], 4)
    assert same(new, state)
    assert same(after, PARAMS)


def test_settings_know_the_name_and_are_given_as_one_object_or_by_keyword(kind):
    assert find("strategy", kind.Settings().name) is kind
    assert kind().settings == kind.Settings()
    assert (
        kind(server_lr=0.5).settings
        == kind.Settings(server_lr=0.5)
        == kind(kind.Settings(server_lr=0.5)).settings
    )
    assert getattr(strategies, kind.__name__) is kind
    assert kind.__name__ in dir(strategies)


def test_settings_that_make_no_sense_are_refused():
    for wrong in ({"mu": -1.0}, {"nu": 1.0}):
        assert next(iter(wrong)) in message_of(strategies.FedProx, error=ValueError, **wrong)
    refusal = message_of(FedAvg, FedAvg.Settings(), error=TypeError, rounds=3)
    assert refusal == "FedAvg takes settings or single ones by keyword, not both"
    refusal = message_of(getattr, strategies, "FedProxx", error=AttributeError)
    assert refusal == "module 'fedunseen.strategies' has no attribute 'FedProxx'"
