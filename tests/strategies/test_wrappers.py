"""Wrappers: nothing that a strategy says is lost under one, and each link of a chain does its part in its turn."""

import inspect

import pytest
import torch

from fedunseen.core.trainer import LocalResult
from fedunseen.strategies import FedAvg, FedNova, Instruction, Local, Reply, Scaffold, Strategy, Wrapper
from fedunseen.strategies.base import StrategySettings
from fedunseen.strategies.compression import Compressed, CompressionSettings
from fedunseen.strategies.peers import Peers
from fedunseen.strategies.selective import Selective
from fedunseen.threats import privacy
from fedunseen.threats.defences import Defence, Robust
from fedunseen.threats.defences.base import NoDefenceSettings
from fedunseen.threats.defences.clipping import NormClip, NormClipSettings
from fedunseen.threats.privacy import PrivacySettings, Private

PUBLIC = sorted(name for name in vars(Strategy) if not name.startswith("_")) + sorted(
    name for name in vars(Strategy(StrategySettings(name="x"))) if name not in vars(Strategy)
)
HOOKS = [name for name in PUBLIC if callable(getattr(Strategy, name, None)) and name != "Settings"]
SAYS = [name for name in PUBLIC if name not in HOOKS and name != "Settings"]  # a wrapper is not chosen by its settings


@pytest.fixture(autouse=True)
def free(monkeypatch):
    """Cost no privacy: what is tested is not the accountant."""
    monkeypatch.setattr(privacy, "epsilon", lambda *_: 0.0)


def private(inner, clip=2.0, noise=1e-6, clients=3):
    told = PrivacySettings(name="client-level", clip=clip, noise=noise)
    return Private(inner, told, 1.0, 3, dict.fromkeys(range(clients), 1.0), 7)


def clipping(inner, bound=1.0):
    return Robust(inner, NormClip(NormClipSettings(bound=bound), 0))


WRAPPERS = {
    "plain": Wrapper,
    "selective": lambda inner: Selective(inner, {"own": torch.zeros(1)}),
    "peers": lambda inner: Peers(inner, exclusive=False),
    "exclusive peers": lambda inner: Peers(inner, exclusive=True),
    "private": private,
    "robust": lambda inner: Robust(inner, Defence(NoDefenceSettings())),
    "compressed": lambda inner: Compressed(inner, CompressionSettings(name="8-bit")),
    "all": lambda inner: clipping(private(Selective(Peers(inner, exclusive=False), {"own": torch.zeros(1)}))),
}


class Talkative(Strategy):
    """Says of everything something that no other strategy says."""

    lengths = "memory"
    merges_by_mean = True
    merges = False
    one_model = False
    pools = True
    mirrors = True
    adds = True

    def init(self, params, clients):
        return {"counted": torch.tensor(0.0), "clients": torch.tensor(float(clients))}

    def instruct(self, state, params, round):
        return Instruction(params, {"told": state["counted"] + round})

    def recall(self, instruction, client_state, round):
        return Instruction(instruction.params, instruction.extras, {"recalled": torch.tensor(round + 0.5)})

    def objective(self, loss, represent):
        return lambda *given: ("objective", loss(*given), represent(*given))

    def correct(self, gradient):
        return lambda params, step: ({name: 10 * value for name, value in gradient(params, step)[0].items()}, {})

    def finish(self, instruction, result, client_state):
        return {"w": result.params["w"] + 100}, {"remembered": torch.ones(1)}

    def local_model(self, start, update):
        return {"w": start["w"] + 3 * update["w"]}

    def decode(self, update, told):
        return {"w": update["w"] + 7}

    def expects(self, told):
        return {"w": told.params["w"].half()}

    def merge(self, state, params, replies, round):
        changed = {"w": params["w"] + sum(reply.update["w"] for reply in replies)}
        return {**state, "counted": torch.tensor(5.0 + round)}, changed

    def expand_classes(self, state, expand):
        return expand(state)

    def check(self, reply):
        return f"client {reply.client}"

    def notes(self, state):
        return {"counted": float(state["counted"])}

    def merged_statistics(self, params, replies):
        return {"statistic": torch.tensor(float(len(replies)))}

    def server_step(self, round):
        return 0.125 + round

    def reply_weights(self, replies):
        return [(reply.client + 1) / 6 for reply in replies]

    def blurred(self, reply, parties, round):
        return Reply(reply.client, {"w": reply.update["w"] + parties + round}, reply.classes, reply.samples)

    def released(self, reply, round):
        return Reply(reply.client, {"w": reply.update["w"] - 3 * round}, reply.classes, reply.samples)


def settings():
    return StrategySettings(name="talkative", rounds=17)


def replies(*values):
    return [Reply(k, {"w": torch.tensor([value])}, 1, 1) for k, value in enumerate(values)]


def test_every_hook_and_flag_of_a_strategy_is_delegated():
    """A new one has to be: in ``Wrapper`` itself, and in what this file checks."""
    assert set(HOOKS) <= set(vars(Wrapper)), "wrappers.py does not hand these on"
    assert set(HOOKS) <= set(vars(Talkative)), "this file does not check these"
    assert {"merges", "one_model", "pools", "mirrors", "adds", "lengths", "merges_by_mean", "settings"} == set(SAYS)


def test_a_wrapper_calls_the_inner_hook_with_what_it_is_given_and_returns_what_comes_back():
    """Every hook, by its signature: state passes under ``inner/``, everything else as the same object."""
    called = []

    class Recording(Strategy):
        pass

    def recording(name):
        def hook(self, *given):
            called.append((name, given))
            return ({"w": 1}, name) if name == "merge" else {"w": 1} if name in ("init", "expand_classes") else name

        return hook

    for name in HOOKS:
        setattr(Recording, name, recording(name))
    wrapper = Wrapper(Recording(settings()))
    for name in HOOKS:
        parameters = list(inspect.signature(getattr(Strategy, name)).parameters)[1:]
        given = [{"inner/s": 1, "mine": 2} if parameter == "state" else object() for parameter in parameters]
        back = getattr(wrapper, name)(*given)
        arrived = called.pop()
        assert arrived[0] == name
        assert not called
        for parameter, sent, got in zip(parameters, given, arrived[1], strict=True):
            assert got == {"s": 1} if parameter == "state" else got is sent
        assert back == {
            "merge": ({"inner/w": 1}, "merge"),
            "init": {"inner/w": 1},
            "expand_classes": {"inner/w": 1},
        }.get(name, name)


@pytest.mark.parametrize("name", WRAPPERS)
def test_what_a_strategy_says_is_not_lost(name):
    """``notes`` and ``reply_weights`` above all: two wrappers once had lost them."""
    inner = Talkative(settings())
    wrapper = WRAPPERS[name](inner)
    for said in SAYS:
        assert getattr(wrapper, said) == getattr(inner, said)
    assert wrapper.reply_weights(replies(1.0, 2.0, 3.0)) == [1 / 6, 2 / 6, 3 / 6]
    assert wrapper.server_step(2) == 2.125
    assert wrapper.check(replies(1.0)[0]) == "client 0"
    assert wrapper.local_model({"w": torch.ones(1)}, {"w": torch.ones(1)})["w"] == 4
    assert wrapper.expects(Instruction({"w": torch.ones(1)}))["w"].dtype == torch.float16
    assert wrapper.decode({"w": torch.ones(1)}, Instruction({"w": torch.ones(1)}))["w"] == 8
    assert wrapper.merged_statistics({}, replies(1.0, 2.0))["statistic"] == 2
    assert wrapper.objective(lambda x: x, lambda x: -x)(7) == ("objective", 7, -7)
    gradient = wrapper.correct(lambda params, step: ({name: torch.ones(1) for name in params}, {}))
    assert gradient({"w": torch.ones(1)}, None)[0]["w"] == 10

    params = {"w": torch.zeros(1)}
    state = wrapper.init(params, 3)
    told = wrapper.recall(wrapper.instruct(state, params, 4), {}, 4)
    assert told.extras["told"] == 4
    assert told.kept["recalled"] == 4.5
    trained = {"w": torch.ones(1)} | {own: torch.ones(1) for own in told.own}
    update, own = wrapper.finish(told, LocalResult(trained), {})
    assert update["w"] == 101
    assert any(key.endswith("remembered") for key in own)
    state, _ = wrapper.merge(state, params, replies(0.25, 0.5), 4)
    assert wrapper.notes(state)["counted"] == 9
    assert wrapper.instruct(state, params, 0).extras["told"] == 9


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("kind", [FedNova, Scaffold, FedAvg, Local])
def test_flags_of_real_strategies(kind, name):
    wrapper = WRAPPERS[name](kind())
    assert (wrapper.lengths, wrapper.merges) == (kind.lengths, kind.merges)


def test_a_strategy_that_overrides_the_merge_is_not_taken_for_a_mean_unless_it_says_so():
    class Silent(Strategy):
        def merge(self, state, params, replies, round):
            return state, params

    class Vouched(Silent):
        merges_by_mean = True

    class Further(Vouched):
        def merge(self, state, params, replies, round):
            return state, {}

    assert (FedAvg.merges_by_mean, Silent.merges_by_mean) == (True, False)
    assert (Vouched.merges_by_mean, Further.merges_by_mean) == (True, False)


def test_the_outermost_wrapper_sees_the_replies_first():
    """Clipping single replies before the private mean is another thing than clipping the mean."""
    start, long = {"w": torch.zeros(1)}, replies(30.0, 0.0, 0.0)
    single = clipping(private(FedAvg(), clip=50.0), bound=3.0)
    _, after = single.merge(single.init(start, 3), start, long, 0)
    assert float(after["w"]) == pytest.approx(3.0 / 3, abs=1e-3)  # the reply is 3 long, and one of three
    mean = private(clipping(FedAvg(), bound=3.0), clip=50.0)
    _, after = mean.merge(mean.init(start, 3), start, long, 0)
    assert float(after["w"]) == pytest.approx(3.0, abs=1e-3)  # the mean, 10, is shortened to 3


def test_what_a_chain_remembers_is_kept_apart_and_survives_rounds():
    inner = Selective(Peers(Scaffold(weights="uniform"), exclusive=False), {"own": torch.zeros(1)})
    chain = clipping(inner, bound=1.0)
    params, lengths = {"w": torch.zeros(2)}, {"w": 2.0}
    state = chain.init(params, 2)
    for round in range(2):
        some = [Reply(k, {"w": torch.tensor([0.6, 0.8])}, 1, 1, {}, lengths) for k in range(2)]
        state, params = chain.merge(state, params, some, round)
    torch.testing.assert_close(params["w"], torch.tensor([1.2, 1.6]))
    c = chain.instruct(state, params, 2).extras["c/w"]
    torch.testing.assert_close(c, -torch.tensor([0.6, 0.8]) / 2)  # c_k+ of both clients: minus update over length
    assert chain.notes(state)["defence"]["clients"] == [0, 1]


@pytest.mark.parametrize("name", [name for name in WRAPPERS if name not in ("private", "all")])
def test_a_round_without_a_reply_changes_nothing(name):
    for kind in (FedAvg, FedNova, Scaffold):
        wrapper = WRAPPERS[name](kind())
        params = {"w": torch.ones(2)}
        before = wrapper.init(params, 3)
        state, after = wrapper.merge(before, params, [], 1)
        assert torch.equal(after["w"], params["w"])
        for key, value in before.items():
            assert torch.equal(state[key], value)
