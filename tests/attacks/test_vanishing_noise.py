"""A coordinator that chooses numbers with which a party's noise would vanish, while its ledger
books a small epsilon.

Each attack reaches the party by file (the command) and over a network; a control with honest
numbers passes the same lines.
"""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from fedunseen import Experiment, __version__
from fedunseen.cli.main import main
from fedunseen.core.errors import RefusedError
from fedunseen.data import Quantization
from fedunseen.deploy.cli.offline import _engine
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.offline import coordinator, files
from fedunseen.deploy.remote.party import Party, Ready
from fedunseen.deploy.remote.refusals import DATA, code_of
from fedunseen.deploy.remote.wire import PROTOCOL, is_failure, pack, unpack
from fedunseen.deploy.secagg.enrolment import coordinator as own_key
from fedunseen.deploy.secagg.enrolment import enrol
from fedunseen.deploy.secagg.ledger import Ledger
from fedunseen.deploy.secagg.ring import PARTIES, Field, Layout
from fedunseen.deploy.site import Owner, Site
from fedunseen.experiment.deal import deal
from fedunseen.methods.closed_form.statistics import packed
from fedunseen.safety.privacy.client_level import (
    _LEAST,
    PrivacySettings,
    Private,
    epsilon,
)
from fedunseen.safety.privacy.private_sums import MASKED_FLOATS, Release
from fedunseen.strategies import Reply
from known_names import accounted

NAMES = ("north", "south", "west")
WIDTH = 128
ASKED = {
    "data.train_per_class": 6, "data.test_per_class": 3, "evaluation.theory": False, "evaluation.embedding": False,
    "evaluation.selection": "last", "data.features": ["l2", "standard"], "partition.clients": 3,
    "strategy.rounds": 1, "engine.name": "offline", "engine.mode": "deployment", "privacy.name": "sample-level",
    "privacy.clip": 1.0, "privacy.epsilon": 1.0, "privacy.noise_from": "system", "privacy.aggregation": "masked",
}  # fmt: skip


# The noise itself


def released(clip, noise, quantization, width=25):
    """Return what a release with noise adds to sums of zeros."""
    sums = {
        "count": torch.zeros(3, dtype=torch.int64),
        "total": torch.zeros(3, width, dtype=torch.int64),
        "square": torch.zeros(width * (width + 1) // 2, dtype=torch.int64),
        "noise": torch.zeros(1, dtype=torch.float64),
    }
    return Release(clip, noise, quantization).noisy(sums, 3)


UNIT = Quantization.of_unit_length(8, 5.0, 25)


def test_honest_numbers_draw_the_noise_that_they_say():
    found, deviations = (
        released(1.0, 4.0, UNIT),
        Release(1.0, 4.0, UNIT).whole_deviations(25, 3, 3),
    )
    for name in ("total", "square"):
        measured = (found[name] / deviations[name]).double()
        assert float(measured.std()) == pytest.approx(1.0, abs=6 / math.sqrt(2 * measured.numel()))


@pytest.mark.parametrize(
    ("clip", "noise", "step"),
    [
        (1e12, 4.0, None),
        (1e17, 4.0, None),
        (1e20, 4.0, None),
        (1e30, 4.0, None),
        (1.0, 1e30, None),
        (1.0, math.inf, None),
        (math.nan, 4.0, None),
        (1.0, 4.0, 1e-30),
        (1.0, 4.0, 1e-12),
    ],
)
def test_noise_that_64_bits_do_not_hold_is_refused(clip, noise, step):
    quantization = UNIT
    if step is not None:
        steps = np.array([step, *[1e-3] * 24], dtype=np.float32)  # one feature of tiny steps
        quantization = Quantization(8, steps, np.zeros(1, np.float32))
    with pytest.raises(RefusedError) as caught:
        released(clip, noise, quantization)
    assert caught.value.code == "noise-too-large"


@pytest.mark.parametrize("power", range(25))
def test_at_every_clip_the_noise_is_whole_or_refused(power):
    release = Release(10.0**power, 4.05, Quantization.of_unit_length(8, 5.0, 128))
    if power > 4:
        with pytest.raises(RefusedError) as caught:
            release.whole_deviations(128, 3, 3)
        assert caught.value.code == "noise-too-large"
        return
    deviations = release.whole_deviations(128, 3, 3)
    assert all(int(value.min()) >= 2 for value in deviations.values())
    assert release.multiplier(deviations, 3) >= release.noise


def in_deviations(codes, deviations):
    """Return what a sample changes, in deviations of the noise."""
    square = packed(torch.outer(codes, codes))
    values = {"count": torch.full((1,), 1024), "total": codes[None], "square": square}
    parts = [
        torch.where(sigma > 0, values[name] / sigma, values[name]).double()
        for name, sigma in deviations.items()
    ]
    return math.hypot(*(float(part.norm()) for part in parts))


@pytest.mark.parametrize("parties", [1, 3])
@pytest.mark.parametrize("steps", [[1.0], [0.3, 1e-5, 1e3, 0.0]], ids=["one", "each"])
def test_the_charge_follows_from_the_noise_that_is_drawn(steps, parties):
    """No sample as long as the code allows changes more than the multiplier that is charged
    says.
    """
    quantization = Quantization(8, np.array(steps, np.float32), np.zeros(1, np.float32))
    release, rng = Release(100.0, 0.7, quantization), np.random.default_rng(0)
    deviations = release.whole_deviations(4, 1, parties)
    multiplier = release.multiplier(deviations, parties)
    step = torch.from_numpy(quantization.step).double().expand(4)
    changes = []
    for _ in range(200):
        natural = torch.from_numpy(rng.normal(size=4) ** 3) * (step > 0)
        codes = natural / natural.norm() * 100.0 / torch.where(step > 0, step, 1.0)
        changes.append(in_deviations(codes, deviations) / math.sqrt(parties))
    assert 0.5 / multiplier < max(changes) <= 1 / multiplier
    less = {**deviations, "total": deviations["total"] // 2}
    assert release.multiplier(less, parties) < 0.7 < multiplier
    none = {**deviations, "square": torch.zeros_like(deviations["square"])}
    assert release.multiplier(none, parties) == 0.0


@pytest.mark.parametrize("part", [0.0, 0.9])
@pytest.mark.parametrize("name", ["count", "total", "square"])
def test_a_release_with_less_noise_than_it_is_charged_for_never_leaves(name, part, monkeypatch):
    whole = Release.whole_deviations

    def lessened(self, *given):
        found = whole(self, *given)
        return {**found, name: (found[name] * part).to(torch.int64)}

    monkeypatch.setattr(Release, "whole_deviations", lessened)
    with pytest.raises(RefusedError) as caught:
        released(1.0, 4.0, UNIT)
    assert caught.value.code == "noise-too-small"


def test_a_feature_without_noise_is_zero_in_what_leaves():
    steps = np.array([0.0, *[1e-2] * 24], dtype=np.float32)
    release = Release(1.0, 4.0, Quantization(8, steps, np.zeros(1, np.float32)))
    sums = {
        "count": torch.ones(1, dtype=torch.int64),
        "total": torch.zeros(1, 25, dtype=torch.int64),
        "square": torch.zeros(325, dtype=torch.int64),
        "noise": torch.zeros(1, dtype=torch.float64),
    }
    release.noisy(sums, 1)
    sums["total"][0, 0] = 1
    with pytest.raises(RefusedError) as caught:
        release.noisy(sums, 1)
    assert caught.value.code == "noise-missing"
    assert code_of(caught.value) == DATA  # it depends on a sample


@accounted
@pytest.mark.parametrize(
    ("clip", "range", "code"),
    [
        (1.0, 64.0, ""),
        (1e-6, 64.0, ""),
        (1e-6, 2.0**20, "noise-too-small"),
        (1.0, 2.0, "noise-too-large"),
        (1.0, 1 + 8 / math.sqrt(3) - 1e-6, "noise-too-large"),  # the clip and eight deviations
        (1.0, 1 + 8 / math.sqrt(3) + 1e-6, ""),
        (1e6, 64.0, "noise-too-large"),
    ],
)
def test_noise_on_updates_is_refused_where_masks_would_round_it_away(clip, range, code):
    chosen = {"clip": clip, "range": range, "noise": 1.0, "aggregation": "masked"}
    settings = PrivacySettings(name="client-level", **chosen)
    private = Private(settings, 1.0, 2, {0: 1.0, 1: 0.0, 2: 0.0}, 0, uniform=True)
    if not code:
        assert private.spent(3) == (epsilon(1.0, 1.0, 2, 1e-5), 1e-5)
        return
    with pytest.raises(RefusedError) as caught:
        private.spent(3)
    assert caught.value.code == code


@accounted
@pytest.mark.parametrize(
    ("clip", "noise", "code"),
    [(1.0, 1.0, ""), (1e-6, 0.01, "noise-too-small"), (1e6, 100.0, "noise-too-large")],
)
def test_noise_on_float_sums_is_refused_where_masks_cannot_carry_it(clip, noise, code):
    release = Release(clip, noise)
    if not code:
        assert release.spent(4, 2, 3, 1e-5) == epsilon(1.0, 1.0, 1, 1e-5, "pld")
        return
    with pytest.raises(RefusedError) as caught:
        release.spent(4, 2, 3, 1e-5)
    assert caught.value.code == code


def test_noise_under_masks_is_many_steps_of_a_ring_element():
    numbers = Layout((), PARTIES)
    step = numbers.step(Field("sum", (), "sum"))
    assert (16 * step, 2.0**47 / 16) == MASKED_FLOATS  # a ring element's whole part is below 2^47
    most = 64.0 * 2**16  # range times the largest weight
    assert 16 * numbers.step(Field("update", (), "number", most)) <= _LEAST * 64.0


# At a party


@pytest.fixture(scope="module")
def dealt(tmp_path_factory):
    """Folders of three parties and their credentials."""
    folder = tmp_path_factory.mktemp("noise")
    deal(Experiment.load("digit-pairs-gaussian", ASKED), folder / "data", NAMES)
    enrol(folder / "kits", NAMES)
    return folder


@pytest.fixture
def command(monkeypatch, capsys):
    """Call the command in this process; return its exit code and what it writes on standard
    error.
    """

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedunseen", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
        except SystemExit as error:
            return error.code or 0, capsys.readouterr().err
        return 0, capsys.readouterr().err

    return call


def tiny_steps(step, deviation):
    """Return statistics that a coordinator makes up: with these, all features would be +-127."""
    return {
        "1.mean": torch.zeros(WIDTH),
        "1.deviation": torch.full((WIDTH,), deviation),
        "quantize.step": torch.full((1,), step),
        "quantize.offset": torch.zeros(1),
    }


LIES = {
    "clip 1e20": ({"clip": 1e20}, {}, "out-of-bounds"),
    "clip 1e6": ({"clip": 1e6}, {}, "noise-too-large"),
    "clip as text": ({"clip": "1e20"}, {}, "malformed"),
    "clip NaN": ({"clip": math.nan}, {}, "not-finite"),
    "noise 1e30": ({"noise": 1e30, "epsilon": None}, {}, "out-of-bounds"),
    "noise infinite": ({"noise": math.inf, "epsilon": None}, {}, "not-finite"),
    "epsilon infinite": ({"epsilon": math.inf}, {}, "not-finite"),
    "delta 1": ({"delta": 1.0}, {}, "out-of-bounds"),
    "step 1e-27": ({}, tiny_steps(1e-27, 1e25), "out-of-bounds"),
    "step 1e-18": ({}, tiny_steps(1e-18, 1e15), "noise-too-large"),
    "step NaN": ({}, tiny_steps(math.nan, 1.0), "not-finite"),
    "deviation NaN": ({}, tiny_steps(1e-3, math.nan), "not-finite"),
    "deviation 0": ({}, tiny_steps(1e-3, 0.0), "out-of-bounds"),
    "mean infinite": ({}, {"1.mean": torch.full((WIDTH,), math.inf)}, "not-finite"),
}


def planned(dealt, privacy, statistics):
    """Return a signed plan of a coordinator that lies in these numbers."""
    experiment = Experiment.load("digit-pairs-gaussian", ASKED)
    engine = _engine(experiment, Path("x"))
    clients = engine.clients
    tree = clients.job.experiment
    told = {
        key: value for key, value in {**tree["privacy"], **privacy}.items() if value is not None
    }
    clients.job = replace(
        clients.job,
        experiment={**tree, "privacy": told},
        statistics={**clients.job.statistics, **statistics},
    )
    enrolment, key = own_key(dealt / "kits" / "coordinator")
    return coordinator.make_plan(engine, enrolment, key, list(NAMES))


def answer_by_file(dealt, folder, call):
    """Let north answer the plan in a folder."""
    return call(
        "offline", "answer", folder / "plan.fedunseen", "--data", dealt / "data/north", "--credentials",
        dealt / "kits/north", "--out", folder / "north.fedunseen", "--state", folder / "state", "--epsilon-limit", "1",
    )  # fmt: skip


@pytest.mark.slow
@accounted
@pytest.mark.parametrize("lie", LIES)
def test_by_file_nothing_is_sent_and_nothing_charged(lie, dealt, tmp_path, command):
    *told, code = LIES[lie]
    (tmp_path / "plan.fedunseen").write_bytes(planned(dealt, *told))
    status, text = answer_by_file(dealt, tmp_path, command)
    assert (status, text.count("\n")) == (2, 1)
    assert text.endswith(f" [{code}]\n")
    assert not (tmp_path / "north.fedunseen").exists()
    assert not (tmp_path / "state/releases.jsonl").exists()
    assert not [*(tmp_path / "state/ledger").glob("released-*")]
    assert Ledger(tmp_path / "state/ledger", str((dealt / "data/north").resolve())).plans == {}


@accounted
def test_by_file_an_honest_plan_is_answered_and_its_noise_is_what_is_charged(
    dealt, tmp_path, command
):
    (tmp_path / "plan.fedunseen").write_bytes(planned(dealt, {}, {}))
    assert answer_by_file(dealt, tmp_path, command)[0] == 0
    assert files.read(tmp_path / "north.fedunseen").kind == "answer"
    lines = [json.loads(line) for line in (tmp_path / "state/releases.jsonl").open()]
    assert [line["kind"] for line in lines] == ["budget", "file"]
    assert epsilon(100.0, 1.0, 1, 1e-5, "rdp") < 0.9 < lines[0]["epsilon"] <= 1.0


def greeting(dealt, folder, privacy, statistics):
    """Return north's greeting by a coordinator that lies in these numbers."""
    path = folder / "plan.fedunseen"
    path.write_bytes(planned(dealt, {}, {}))
    plan = files.read(path, "plan")
    tree = plan["hello"]["experiment"]
    told = {
        key: value for key, value in {**tree["privacy"], **privacy}.items() if value is not None
    }
    lie = {"experiment": {**tree, "privacy": told}, "client": 0, "names": list(NAMES)}
    return pack({**plan["hello"], **lie}, {**plan.greeting, **statistics})


def site(dealt, folder):
    """Return north with a limit of 1, as ``join`` makes it."""
    data = dealt / "data/north"
    kit = dealt / "kits/north"
    return Party(PartyData(data).prepare, Site(folder, Owner(data, kit, epsilon_limit=1.0)))


@accounted
@pytest.mark.parametrize("lie", LIES)
def test_over_a_network_nothing_is_joined_and_nothing_charged(lie, dealt, tmp_path):
    *told, code = LIES[lie]
    north = site(dealt, tmp_path / "state")
    answer = north.answer(greeting(dealt, tmp_path, *told))
    assert unpack(answer) == ({"error": "refused-number"}, {})
    assert (north.error.code, north.done.is_set()) == (code, True)
    assert [line for line in north.site.releases.lines if line["kind"] != "refusal"] == []
    assert north.spent is None
    assert Ledger(tmp_path / "state/ledger", str((dealt / "data/north").resolve())).plans == {}


@accounted
def test_over_a_network_the_charge_is_that_of_the_noise(dealt, tmp_path):
    north = site(dealt, tmp_path / "state")
    header, _ = unpack(north.answer(greeting(dealt, tmp_path, {}, {})))
    assert header == {"masked": True, "weight": 1.0}
    session = north.joined.session
    release = session.engine.strategy.release
    deviations = release.whole_deviations(WIDTH, 100, session.masks.least)
    charged = epsilon(release.multiplier(deviations, session.masks.least), 1.0, 1, 1e-5, "rdp")
    assert north.spent == (charged, 1e-5)
    north.answer(pack({"kind": "round", "plan": "ab" * 32}))
    assert north.site.releases.spent() == (0, 0)  # of a plan that the party has not accepted
    session._plan = SimpleNamespace(digest="ab" * 32)
    north.answer(pack({"kind": "round", "plan": "ab" * 32}))
    assert [line["epsilon"] for line in north.site.releases.lines if line["kind"] == "budget"] == [
        charged
    ]
    assert 0.9 < charged <= 1.0


@accounted
@pytest.mark.parametrize("value", [math.nan, math.inf, 2e15])
def test_a_round_that_is_not_trained_costs_nothing(value, dealt, tmp_path):
    north = site(dealt, tmp_path / "state")
    north.answer(greeting(dealt, tmp_path, {}, {}))
    north.joined.session._plan = SimpleNamespace(digest="ab" * 32)
    answer = north.answer(pack({**ROUND, "plan": "ab" * 32}, {"params/w": torch.tensor([value])}))
    assert unpack(answer)[0] == {"error": "refused-number"}
    assert [line["kind"] for line in north.site.releases.lines if line["kind"] == "budget"] == []


@pytest.fixture
def taking_part(tmp_path, monkeypatch):
    """A party that has joined, as behind the Flower app and the NVFlare job, and what it has
    trained on.
    """
    trained = []

    def train(engine, client, sent, before, round):
        trained.append((client, round, dict(sent.params)))
        return Reply(client, {}, 1, 3), {}, 0.0

    monkeypatch.setattr("fedunseen.deploy.remote.party._timed_update", train)
    engine = Mock(masks=None)
    engine.worker.device = torch.device("cpu")
    engine.worker.left_out_of.return_value = ""
    party = Party(lambda header, statistics: Ready(engine, 1, 3), Site(tmp_path))
    hello = {"kind": "hello", "protocol": PROTOCOL, "version": __version__, "run": "a" * 16}
    hello["experiment"] = {}
    assert not is_failure(party.answer(pack({**hello, "client": 0, "clients": 3})))
    return party, trained


ROUND = {"kind": "round", "client": 0, "round": 0, "after": -1}
MODEL = {"params/w": torch.tensor([0.5, -2.0])}


def test_an_honest_round_is_answered(taking_part):
    party, trained = taking_part
    assert not is_failure(party.answer(pack(ROUND, MODEL)))
    assert [(client, round) for client, round, _ in trained] == [(0, 0)]


@pytest.mark.parametrize(
    ("header", "model"),
    [
        *(({"round": value}, {}) for value in (1_000_000, -1, math.nan, math.inf, "0", True)),
        *(({"after": value}, {}) for value in (1_000_000, -2, -math.inf, 0.5)),
        *(({"client": value}, {}) for value in (100_000, -1, math.nan)),
        ({"k": math.nan}, {}),
        ({"more": [1e13]}, {}),
        *(
            ({}, {"params/w": torch.tensor([0.5, value])})
            for value in (math.nan, math.inf, -math.inf, 2e15)
        ),
        ({}, {"extras/control": torch.tensor([math.nan])}),
    ],
    ids=str,
)
def test_a_round_with_a_number_beyond_its_bounds_is_not_trained(header, model, taking_part):
    party, trained = taking_part
    answer = party.answer(pack({**ROUND, **header}, MODEL | model))
    assert unpack(answer)[0]["error"] == "refused-number"
    assert trained == []
