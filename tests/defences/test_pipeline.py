"""Pipelines: each filter does its part in its turn, and nothing that a strategy says is lost."""

import pytest
import torch

from fedunseen.core.trainer import LocalResult
from fedunseen.safety.defences.base import Defence, Robust
from fedunseen.safety.defences.rules import NormClip
from fedunseen.safety.privacy import client_level as privacy
from fedunseen.strategies import (
    FedAvg,
    FedNova,
    Filter,
    FilterResult,
    Instruction,
    Pipeline,
    Reply,
    Scaffold,
    Strategy,
)
from fedunseen.strategies.base import FLAGS
from fedunseen.strategies.compression import Codec, CompressionSettings
from fedunseen.strategies.peers import Peers
from fedunseen.strategies.pipeline import SAME
from fedunseen.strategies.selective import Selective
from same import same


@pytest.fixture(autouse=True)
def free(monkeypatch):
    """Cost no privacy: what is tested is not the accountant."""
    monkeypatch.setattr(privacy, "epsilon", lambda *_: 0.0)


def private(clip=2.0, noise=1e-6, clients=3):
    settings = privacy.PrivacySettings(name="client-level", clip=clip, noise=noise)
    return privacy.Private(settings, 1.0, 3, dict.fromkeys(range(clients), 1.0), 7, uniform=True)


def clipping(bound=1.0):
    return Robust(NormClip(NormClip.Settings(bound=bound), 0))


def selective():
    return Selective({"own": torch.zeros(1)})


FILTERS = {
    "nothing": lambda: [],
    "third party": lambda: [type("Third", (Filter,), {"name": "third"})()],
    "selective": lambda: [selective()],
    "peers": lambda: [Peers(exclusive=False)],
    "exclusive peers": lambda: [Peers(exclusive=True)],
    "private": lambda: [private()],
    "robust": lambda: [Robust(Defence(Defence.Settings()))],
    "all": lambda: [Peers(exclusive=False), selective(), private(), clipping()],
}


class Talkative(Strategy):
    """Says of everything something that no other strategy says."""

    lengths = "memory"
    merges_by_mean = True
    merges = False
    one_model = False
    pools = True
    needs_exact_update = True
    adds = True

    def init(self, params, clients):
        return {"counted": torch.tensor(0.0), "clients": torch.tensor(float(clients))}

    def count_clients(self, state, present, new):
        return {**state, "clients": torch.tensor(10.0 * present + new)}

    def instruct(self, state, params, round):
        return Instruction(params, {"told": state["counted"] + round})

    def recall(self, instruction, client_state, round):
        return Instruction(
            instruction.params, instruction.extras, {"recalled": torch.tensor(round + 0.5)}
        )

    def objective(self, loss, represent):
        return lambda *given: ("objective", loss(*given), represent(*given))

    def correct(self, gradient):
        return lambda params, step: (
            {name: 10 * value for name, value in gradient(params, step)[0].items()},
            {},
        )

    def finish(self, instruction, result, client_state):
        return {"w": result.params["w"] + 100}, {"remembered": torch.ones(1)}

    def local_model(self, start, update):
        return {"w": start["w"] + 3 * update["w"]}

    def decode(self, update, settings):
        return {"w": update["w"] + 7}

    def expects(self, settings):
        return {"w": settings.params["w"].half()}

    def merge(self, state, params, replies, round):
        changed = {"w": params["w"] + sum(reply.update["w"] for reply in replies)}
        return {**state, "counted": torch.tensor(5.0 + round)}, changed

    def expand_classes(self, state, expand):
        return expand(state)

    def check(self, reply):
        return f"client {reply.client}"

    def restrict(self, allowed, names):
        self.restricted = allowed, names

    def notes(self, state):
        return {"counted": float(state["counted"])}

    def reply_weights(self, replies):
        return [(reply.client + 1) / 6 for reply in replies]

    def add_local_noise(self, reply, parties, round):
        return Reply(
            reply.client, {"w": reply.update["w"] + parties + round}, reply.classes, reply.samples
        )

    def spent(self, parties):
        return 3.0 + parties, 1e-6

    def released(self, reply, round):
        return Reply(
            reply.client, {"w": reply.update["w"] - 3 * round}, reply.classes, reply.samples
        )


def replies(*values):
    return [Reply(k, {"w": torch.tensor([value])}, 1, 1) for k, value in enumerate(values)]


def test_every_hook_of_a_strategy_has_its_place_in_a_pipeline():
    """A new hook needs one; ``merge`` alone calls ``merged_statistics`` and ``server_step``."""
    hooks = {
        name
        for name in vars(Strategy)
        if callable(getattr(Strategy, name)) and not name.startswith("_")
    }
    hooks -= {"Settings", "merged_statistics", "server_step"}
    assert hooks <= {*vars(Pipeline), *SAME}
    assert hooks <= set(vars(Talkative))
    flags = {name for name in vars(Strategy) if not name.startswith("_")} - hooks - {"rounds"}
    assert flags == {*FLAGS, "Settings", "merged_statistics", "server_step"}


@pytest.mark.parametrize("name", FILTERS)
def test_what_a_strategy_says_is_not_lost(name):
    inner = Talkative(Strategy.Settings(name="talkative", rounds=17))
    pipeline = Pipeline(inner, FILTERS[name]())
    assert pipeline.settings is inner.settings
    assert pipeline.rounds == 17
    assert all(getattr(pipeline, flag) == getattr(inner, flag) for flag in FLAGS)
    assert pipeline.reply_weights(replies(1.0, 2.0, 3.0)) == [1 / 6, 2 / 6, 3 / 6]
    assert pipeline.check(replies(1.0)[0]) == "client 0"
    pipeline.restrict({0: {1}}, "ab")
    assert inner.restricted == ({0: {1}}, "ab")
    assert pipeline.local_model({"w": torch.ones(1)}, {"w": torch.ones(1)})["w"] == 4
    assert pipeline.expects(Instruction({"w": torch.ones(1)}))["w"].dtype == torch.float16
    assert pipeline.decode({"w": torch.ones(1)}, Instruction({"w": torch.ones(1)}))["w"] == 8
    assert pipeline.objective(lambda x: x, lambda x: -x)(7) == ("objective", 7, -7)
    assert pipeline.released(replies(1.0)[0], 2).update["w"] == -5
    state = pipeline.expand_classes({"strategy/w": 1}, lambda state: {**state, "new": 2})
    assert state == {"strategy/w": 1, "strategy/new": 2}
    if name not in ("private", "all"):
        assert pipeline.add_local_noise(replies(1.0)[0], 3, 4).update["w"] == 8
        assert pipeline.spent(3) == (6.0, 1e-6)
    gradient = pipeline.correct(lambda params, step: ({name: torch.ones(1) for name in params}, {}))
    assert gradient({"w": torch.ones(1)}, None)[0]["w"] == 10

    params = {"w": torch.zeros(1)}
    state = pipeline.count_clients(pipeline.init(params, 3), 5, 2)
    assert state["strategy/clients"] == 52
    instruction = pipeline.recall(pipeline.instruct(state, params, 4), {}, 4)
    assert instruction.extras["told"] == 4
    assert instruction.kept["recalled"] == 4.5
    trained = {"w": torch.ones(1)} | {own: torch.ones(1) for own in instruction.client_params}
    update, client_state = pipeline.finish(instruction, LocalResult(trained), {})
    assert update["w"] == 101
    assert client_state["strategy/remembered"] == 1
    state, _ = pipeline.merge(state, params, replies(0.25, 0.5), 4)
    assert pipeline.notes(state)["counted"] == 9
    assert pipeline.instruct(state, params, 0).extras["told"] == 9


def test_what_scoring_needs_at_the_clients_makes_a_model_of_each():
    assert Pipeline(FedAvg(), [selective()]).one_model
    assert not Pipeline(FedAvg(), [Selective({"own": torch.zeros(1)}, scores=True)]).one_model


def test_a_strategy_that_overrides_the_merge_is_not_taken_for_a_mean_unless_it_says_so():
    class Silent(Strategy):
        def merge(self, state, params, replies, round):
            return state, params

    class Vouched(Silent):
        merges_by_mean = True

    class Further(Vouched):
        def merge(self, state, params, replies, round):
            return state, {}

    assert [kind.merges_by_mean for kind in (FedAvg, Silent, Vouched, Further)] == [
        True,
        False,
        True,
        False,
    ]


def test_the_last_filter_sees_the_replies_first():
    """Clipping single replies before the private mean is another thing than clipping the mean."""
    start, after = {"w": torch.zeros(1)}, []
    for filters in ([private(clip=50.0), clipping(3.0)], [clipping(3.0), private(clip=50.0)]):
        pipeline = Pipeline(FedAvg(), filters)
        after.append(
            pipeline.merge(pipeline.init(start, 3), start, replies(30.0, 0.0, 0.0), 0)[1][
                "w"
            ].item()
        )
    # the reply is 3 long, and one of three; or the mean, 10, is shortened to 3
    assert after == pytest.approx([3.0 / 3, 3.0], abs=1e-3)


def test_the_last_filter_narrows_first_what_was_trained():
    def narrowing(name, change):
        def narrow(self, instruction, result):
            return LocalResult({"w": change(result.params["w"])})

        return type("Narrowing", (Filter,), {"name": name, "narrow": narrow})()

    pipeline = Pipeline(
        FedAvg(), [narrowing("doubling", lambda w: 2 * w), narrowing("adding", lambda w: w + 1)]
    )
    update, _ = pipeline.finish(
        Instruction({"w": torch.zeros(1)}), LocalResult({"w": torch.ones(1)}), {}
    )
    assert update["w"] == 4  # 2 * (1 + 1)


def test_a_filter_of_another_package_is_a_class_with_the_hooks_that_it_needs():
    class Halved(Filter):
        """Hands on the first reply alone, and halves the merged model every second round."""

        name = "halved"

        def init(self, params):
            return {"seen": torch.tensor(0)}

        def filter(self, view):
            assert view.weights == [0.5, 0.5]
            assert view.norms == [1.0, 3.0]
            return FilterResult(view.replies[:1], state={"seen": view.state["seen"] + 1})

        def after_merge(self, result, params, round):
            return (
                {name: value / 2 for name, value in params.items()}
                if result.state["seen"] % 2
                else params
            )

        def notes(self, state):
            return {"seen": int(state["seen"])}

    pipeline = Pipeline(FedAvg(), [Halved()])
    params = {"w": torch.zeros(1)}
    state = pipeline.init(params, 2)
    for round, merged in enumerate((0.5, 1.5)):
        state, params = pipeline.merge(state, params, replies(1.0, 3.0), round)
        assert params["w"].item() == merged
    assert pipeline.notes(state) == {"seen": 2}


def test_what_the_parts_remember_is_kept_apart_and_survives_rounds():
    pipeline = Pipeline(
        Scaffold(weights="uniform"), [Peers(exclusive=False), selective(), clipping()]
    )
    params, lengths = {"w": torch.zeros(2)}, {"w": 2.0}
    state = pipeline.init(params, 2)
    for round in range(2):
        some = [Reply(k, {"w": torch.tensor([0.6, 0.8])}, 1, 1, {}, lengths) for k in range(2)]
        state, params = pipeline.merge(state, params, some, round)
    torch.testing.assert_close(params["w"], torch.tensor([1.2, 1.6]))
    c = pipeline.instruct(state, params, 2).extras["c/w"]
    torch.testing.assert_close(
        c, -torch.tensor([0.6, 0.8]) / 2
    )  # c_k+ of both clients: minus update over length
    assert pipeline.notes(state)["defence"]["clients"] == [0, 1]


def test_the_codec_writes_what_all_others_have_made():
    pipeline = Pipeline(FedAvg(), [selective()], Codec(CompressionSettings(name="8-bit")))
    instruction = pipeline.recall(pipeline.instruct({}, {"w": torch.zeros(4)}, 0), {}, 0)
    trained = {"w": torch.tensor([1.0, -3.0, 0.5, 2.0]), "own": torch.ones(1)}
    sent, state = pipeline.finish(instruction, LocalResult(trained), {})
    shapes, expected = (
        {n: v.shape for n, v in form.items()} for form in (sent, pipeline.expects(instruction))
    )
    assert shapes == expected
    step = 3 / 127
    assert pipeline.decode(sent, instruction)["w"].tolist() == pytest.approx(
        [42 * step, -3.0, 21 * step, 85 * step]
    )
    sent, _ = pipeline.finish(
        instruction, LocalResult(trained), state
    )  # what was rounded off is added
    assert pipeline.decode(sent, instruction)["w"].tolist() == pytest.approx(
        [43 * step, -3.0, 21 * step, 84 * step]
    )
    assert state["own/own"] == 1


@pytest.mark.parametrize("name", [name for name in FILTERS if name not in ("private", "all")])
@pytest.mark.parametrize("kind", [FedAvg, FedNova, Scaffold])
def test_a_round_without_a_reply_changes_nothing(name, kind):
    pipeline, params = Pipeline(kind(), FILTERS[name]()), {"w": torch.ones(2)}
    before = pipeline.init(params, 3)
    state, after = pipeline.merge(before, params, [], 1)
    assert same(after, params)
    assert all(torch.equal(state[key], value) for key, value in before.items())
