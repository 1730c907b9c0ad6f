"""A total that consists of one sample, asked for by a coordinator that lies: by file and over the
network.

With ``min_samples = 1`` each attack reaches its line and reads single samples, as it did before.
"""

import shutil
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from fedunseen import Experiment, load_run, run
from fedunseen.core.errors import FedUnseenError
from fedunseen.deploy.by_file import Adapting
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.offline import coordinator
from fedunseen.deploy.offline.files import read, write
from fedunseen.deploy.offline.party import Answering
from fedunseen.deploy.remote.party import Party
from fedunseen.deploy.secagg.enrolment import Credentials, enrol
from fedunseen.deploy.secagg.enrolment import coordinator as own
from fedunseen.deploy.secagg.ledger import Ledger
from fedunseen.deploy.site import Owner, Site
from fedunseen.experiment.deal import deal
from fedunseen.federation.engine import PartyStatus, Session
from fedunseen.methods.closed_form.soft_statistics import (
    LEVELS,
    received_scorer,
    soft_statistics,
    without_small,
)
from fedunseen.methods.closed_form.statistics import packed
from fedunseen.methods.closed_form.unlabelled import SoftSums
from fedunseen.strategies import Instruction
from fedunseen.strategies.summed import Summed
from links import answered

NAMES = ("north", "south", "west")
POOL = 20
ROWS = ("features", "labels", "split")  # arrays of features.npz with a line a sample
SETTINGS = {
    "evaluation.selection": "last", "partition.clients": 3, "data.train_per_class": 12, "data.test_per_class": 4,
    "method.calibration": True,
}  # fmt: skip


def code_of(call, *args):
    """Return the code of the refusal that the call must raise."""
    with pytest.raises(FedUnseenError) as caught:
        call(*args)
    return caught.value.code


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Three parties, 20 of whose samples lack their labels; their credentials; a labeled run."""
    folder = tmp_path_factory.mktemp("single")
    experiment = Experiment.load("digit-pairs-gaussian", SETTINGS)
    deal(experiment, folder / "data", NAMES)
    for name in NAMES:
        file = folder / "data" / name / "features.npz"
        arrays = dict(np.load(file))
        train = np.flatnonzero(arrays["split"] == "train")
        hidden = np.random.default_rng(len(name)).choice(train, POOL, replace=False)
        arrays["labels"][hidden] = ""
        np.savez(file, **arrays)
    enrol(folder / "kits", NAMES)
    run(experiment, folder / "run")
    return folder


def trap(method, rows, seed=0):
    """Return a linear model that cuts a random projection of whole-number features into narrow
    buckets.
    """
    classes = len(method.space.names)
    direction = np.random.default_rng(seed).integers(-6, 7, rows.shape[1])
    cuts = np.quantile(rows @ direction, (np.arange(classes) + 0.5) / classes)
    return buckets(cuts, direction, method.quantization.step)


def buckets(cuts, direction, step):
    """Return a linear model whose winning class is the nearest of some places along a direction:
    hard buckets.
    """
    apart = cuts - cuts[len(cuts) // 2]
    weight = 64 * 2 * np.outer(apart, direction) / step
    bias = -64 * (apart**2 + 2 * apart * cuts[len(cuts) // 2])
    return {"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)}


def codes(method_run, folder):
    """Return the whole-number features of a party's unlabelled samples."""
    arrays = np.load(folder / "features.npz")
    rows = arrays["features"][arrays["labels"] == ""]
    return method_run.scaler.codes(rows.reshape(len(rows), -1))[0].astype(np.int64)


def singles(place, sums):
    """Return how many classes' totals are a private sample bit for bit, and check that they claim
    to be one.
    """
    done = load_run(place / "run")
    private = np.concatenate([codes(done, place / "data" / name) for name in NAMES])
    known = {row.tobytes() for row in private}
    alone = sums["count"].numpy() == LEVELS
    read_ = sums["total"].numpy()[alone] // LEVELS
    return sum(row.astype(np.int64).tobytes() in known for row in read_)


def lying(asking):
    """Return what a coordinator that lies sends, guessing projections from samples of its own."""
    width = asking.federation.method.width
    rows = asking.federation.benchmark.features.reshape(-1, width)
    guess = load_run(asking.run.path).scaler.codes(rows)[0].astype(np.int64)
    return Instruction(trap(asking.federation.method, guess))


def answers(place, tmp_path, lie, min_samples):
    """Let all parties answer the plan of a lie; return the plan, its asking run and the answers'
    paths.
    """
    asking = Adapting(load_run(place / "run"), 3, True)
    enrolment, key = own(place / "kits/coordinator")
    plan = tmp_path / "plan.fedunseen"
    write(plan, coordinator.make_plan(asking.engine, enrolment, key, NAMES, [], lie(asking)))
    asked, paths, said = read(plan, "plan"), [], []
    for client, name in enumerate(NAMES):
        data = place / "data" / name
        credentials = Credentials.load(place / "kits" / name)
        ledger = Ledger(tmp_path / name / "ledger", str(data))
        site = Site(tmp_path / name, Owner(data), said.append)
        answering = Answering(asked, credentials, ledger, site)
        held = PartyData(data, masked=True, min_samples=min_samples)
        ready = held.prepare({**asked["hello"], "client": client}, asked.greeting)
        paths.append(tmp_path / f"{name}.fedunseen")
        write(paths[-1], answering.answer(ready))
    return asking, asked, paths, said


@pytest.mark.slow
@pytest.mark.parametrize("min_samples", [1, 5])
def test_a_crafted_model_reads_single_samples_of_files_only_where_the_owner_allows(
    min_samples, place, tmp_path
):
    asking, asked, paths, said = answers(place, tmp_path, lying, min_samples)
    brought = asking.engine.read(asked, coordinator.gather(asked, paths))
    sums = dict(brought.replies[0].update)
    if min_samples == 1:  # the positive control
        assert int(sums["samples"]) == 3 * POOL
        assert singles(place, sums) > 10
        assert not said
        return
    assert singles(place, sums) == 0
    count = sums["count"]
    assert bool(((count == 0) | (count >= 5 * LEVELS)).all())
    assert not sums["total"][count == 0].any()
    assert len(said) == 3
    assert all(
        "fewer than 5 samples" in one and "--min-samples 1 sends them" in one for one in said
    )


SHARED = 88, 167  # responsibilities of two classes in the ratio 1 to 1.9


def wall(rows, one, classes, step):
    """Return a linear model in which two classes share all samples below a wall in one ratio, but
    the one on the wall, which a third class has a part of.
    """
    direction = np.random.default_rng(3).integers(-6, 7, rows.shape[1])
    places = rows @ direction
    one = int(np.argsort(places)[one])
    gaps = np.abs(np.delete(places, one) - places[one])
    sharp = 30 / gaps.min()
    weight = torch.zeros(classes, rows.shape[1]).double()
    weight[2] = torch.from_numpy(sharp * direction / step)
    bias = torch.full((classes,), -1e5).double()
    bias[:3] = torch.tensor([-np.log(1.9), 0.0, -sharp * places[one]])
    return {"weight": weight, "bias": bias}, one


@pytest.mark.slow
@pytest.mark.parametrize("min_samples", [1, 5])
def test_no_difference_of_two_classes_of_a_round_is_one_sample(min_samples, place, tmp_path):
    done = load_run(place / "run")
    private = np.concatenate([codes(done, place / "data" / name) for name in NAMES])
    found = []

    def lie(asking):
        method = asking.federation.method
        params, one = wall(private, 54, len(method.space.names), method.quantization.step)
        found.append(one)
        return Instruction(params)

    asking, asked, paths, _ = answers(place, tmp_path, lie, min_samples)
    brought = asking.engine.read(asked, coordinator.gather(asked, paths))
    sums = dict(brought.replies[0].update)
    if min_samples == 1:
        assert bool((sums["count"][:2] > 2 * 5 * LEVELS).all())
        less, more = SHARED
        shown, weighs = (sums[name][0] * more - sums[name][1] * less for name in ("total", "count"))
        assert int(weighs)
        assert shown.tolist() == (int(weighs) * private[found[0]]).tolist()
    else:  # each sample is in one class alone
        assert sums["count"][0] == 0
        assert sums["count"][1] > 2 * 5 * LEVELS
        assert not bool((sums["count"] % LEVELS).any())


def remainder(rows, classes, step):
    """Return a linear model that sorts all samples into one class, but one of which that class has
    a part of 1 / 255 units, and which sample this is.
    """
    direction = np.random.default_rng(3).integers(-6, 7, rows.shape[1])
    places = rows @ direction
    order = np.argsort(places)
    sharp = 30 / (places[order[-1]] - places[order[-2]])
    weight = torch.zeros(classes, rows.shape[1]).double()
    weight[1] = torch.from_numpy(sharp * direction / step)
    bias = torch.full((classes,), -1e5).double()
    bias[:2] = torch.tensor([0.0, -sharp * places[order[-1]] - 0.39])
    return {"weight": weight, "bias": bias}, order[-1]


@pytest.mark.slow
@pytest.mark.parametrize("min_samples", [1, 5])
def test_no_remainder_of_a_class_is_one_sample(min_samples, place, tmp_path):
    done = load_run(place / "run")
    private = np.concatenate([codes(done, place / "data" / name) for name in NAMES])
    found = []

    def lie(asking):
        method = asking.federation.method
        params, one = remainder(private, len(method.space.names), method.quantization.step)
        found.append(one)
        return Instruction(params)

    asking, asked, paths, _ = answers(place, tmp_path, lie, min_samples)
    sums = dict(asking.engine.read(asked, coordinator.gather(asked, paths)).replies[0].update)
    part = int(sums["count"][0]) % LEVELS
    assert int(sums["count"][0]) > 2 * POOL * LEVELS
    if min_samples == 1:  # the positive control
        shown = sums["total"][0].numpy() * pow(part, -1, LEVELS) % LEVELS
        assert (shown == private[found[0]] % LEVELS).all()
    else:
        assert not part
        assert not (sums["total"][0] % LEVELS).any()
        assert not bool((sums["count"] % LEVELS).any())


def test_scores_that_the_party_has_not_derived_are_refused(place, tmp_path):
    def scores(asking):
        linear = lying(asking).params
        grid = {
            "weight": linear["weight"].int(),
            "bias": linear["bias"],
            "step": torch.tensor(1.0).double(),
        }
        shape = torch.arange(len(linear["bias"]))
        return Instruction({**grid, "classes": shape, "unit": torch.ones(1).double()})

    with pytest.MonkeyPatch.context() as patch:  # a coordinator of one's own
        patch.setattr(SoftSums, "expects", lambda self, _: received_scorer(
            lying_params, len(self.method.space.names), self.method.width, self.method.quantization
        ).no_samples())  # fmt: skip
        asking = Adapting(load_run(place / "run"), 3, True)
        lying_params = lying(asking).params
        enrolment, key = own(place / "kits/coordinator")
        plan = tmp_path / "plan.fedunseen"
        write(plan, coordinator.make_plan(asking.engine, enrolment, key, NAMES, [], scores(asking)))
    asked, data = read(plan, "plan"), place / "data/north"
    ledger = Ledger(tmp_path / "north/ledger", str(data))
    site = Site(tmp_path / "north", Owner(data))
    answering = Answering(asked, Credentials.load(place / "kits/north"), ledger, site)
    ready = PartyData(data, masked=True).prepare({**asked["hello"], "client": 0}, asked.greeting)
    assert code_of(answering.answer, ready) == "refused-scores"
    assert not ledger.plans


class Link:
    """Parties in this process at the other end of a network."""

    def __init__(self, place, folder, min_samples):
        self.said = []
        self.parties = {}
        for name in NAMES:
            data = place / "data" / name
            held = PartyData(data, masked=True, min_samples=min_samples)
            held.consent = ("moments",)  # what is left out of these has tests of its own
            owner = Owner(data, place / "kits" / name)
            self.parties[name] = Party(held.prepare, Site(folder / name, owner, self.said.append))

    def present(self):
        return dict.fromkeys(NAMES, "token")

    def ask(self, name, message):
        return answered(self.parties[name].answer(message))


def hosted(place, tmp_path, link, monkeypatch, kind, **settings):
    """Host a masked run with a link, and return the totals that a strategy of a kind has merged."""
    merged, merge = [], kind.merge

    def kept(self, state, params, replies, round):
        merged.append(dict(replies[0].update))
        return merge(self, state, params, replies, round)

    monkeypatch.setattr(kind, "merge", kept)
    here = {
        "engine.name": "websocket", "engine.mode": "deployment", "privacy.aggregation": "masked",
        "data.name": "folder", "data.root": str(place / "data/coordinator"), "data.part": True,
        "partition.clients": 3, "evaluation.selection": "last", "evaluation.theory": False,
        "method.name": "gaussian",
    }  # fmt: skip
    members = [PartyStatus(name) for name in NAMES]
    session = Session(link, members, kit=place / "kits/coordinator")
    experiment = Experiment.from_dict({}, {**here, **settings})
    run(experiment, tmp_path / "hosted", meeting=lambda: nullcontext(session))
    return merged


@pytest.mark.parametrize("min_samples", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_a_crafted_model_reads_single_samples_over_a_network_only_where_the_owner_allows(
    min_samples, place, tmp_path, monkeypatch
):
    asking = Adapting(load_run(place / "run"), 3, True)
    lie = lying(asking)
    monkeypatch.setattr(SoftSums, "instruct", lambda *given: lie)
    link = Link(place, tmp_path, min_samples)
    settings = {"data.unlabelled": True}
    (first, *_) = hosted(place, tmp_path, link, monkeypatch, SoftSums, **settings)
    assert (singles(place, first) > 10) == (min_samples == 1)
    assert (
        bool(((first["count"] == 0) | (first["count"] >= min_samples * LEVELS)).all())
        or min_samples == 1
    )
    told = [one for one in link.said if "left out of all sums" in one]
    assert bool(told) == (min_samples > 1)


@pytest.fixture
def rare(place, tmp_path):
    """The parties, of which north has one sample of one of its classes."""
    shutil.copytree(place / "data", tmp_path / "parties/data")
    (tmp_path / "parties/kits").symlink_to(place / "kits")
    file = tmp_path / "parties/data/north/features.npz"
    arrays = dict(np.load(file))
    train = (arrays["split"] == "train") & (arrays["labels"] != "")
    name = arrays["labels"][train][0]
    of_class = np.flatnonzero(train & (arrays["labels"] == name))
    kept = np.setdiff1d(np.arange(len(train)), of_class[1:])
    np.savez(file, **{**arrays, **{key: arrays[key][kept] for key in ROWS}})
    return tmp_path / "parties", str(name)


@pytest.mark.parametrize("min_samples", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_a_class_with_one_training_sample_is_in_no_sum(min_samples, rare, tmp_path, monkeypatch):
    place, name = rare
    link = Link(place, tmp_path, min_samples)
    (sums,) = hosted(place, tmp_path, link, monkeypatch, Summed)
    done = load_run(tmp_path / "hosted")
    arrays = np.load(place / "data/north/features.npz")
    sample = arrays["features"][arrays["labels"] == name].reshape(1, -1)
    code = torch.from_numpy(done.scaler.codes(sample)[0].astype(np.int64))[0]
    c = done.space.names.index(name)
    told = [
        one
        for one in link.said
        if f"left out of all sums, since fewer than 5 samples are here: {name} (1)" in one
    ]
    if min_samples == 1:  # the positive control
        assert torch.equal(sums["total"][c], code)
        assert not told
        return
    assert int(sums["count"][c]) == 0
    assert not sums["total"][c].any()
    assert len(told) == 1
    # Slow and obvious: the second moments of all samples of all parties but that one.
    rows = []
    for party in NAMES:
        held = np.load(place / "data" / party / "features.npz")
        some = (held["split"] == "train") & (held["labels"] != "") & (held["labels"] != name)
        rows.append(done.scaler.codes(held["features"][some].reshape(some.sum(), -1))[0])
    whole = torch.from_numpy(np.concatenate(rows).astype(np.int64))
    assert torch.equal(sums["square"], packed(whole.T @ whole))
    assert int(sums["count"].sum()) == len(whole)


def sorted_pool(n=30, width=8, seed=0):
    """Return whole-number samples (n, d) with a direction along which no two agree, in its
    order.
    """
    rng = np.random.default_rng(seed)
    rows, direction = rng.integers(-127, 128, (n, width)), rng.integers(-6, 7, width)
    order = np.argsort(rows @ direction, kind="stable")
    rows = rows[order]
    assert len(np.unique(rows @ direction)) == n
    return rows, direction


def cut(rows, direction, ends, minimum):
    """Return what a party sends for a crafted model whose buckets end before the places ``ends`` of
    sorted rows.
    """
    places = rows @ direction
    walls = [(places[end - 1] + places[end]) / 2 for end in ends]
    scores = np.outer(np.arange(len(walls) + 1), direction).astype(float) * 1e3
    bias = -1e3 * np.concatenate([[0.0], np.cumsum(walls)])
    linear = {"weight": torch.from_numpy(scores), "bias": torch.from_numpy(bias)}

    class One:
        step = np.ones(1)

    scorer = received_scorer(linear, len(walls) + 1, rows.shape[1], One())
    return without_small(soft_statistics(scorer, torch.from_numpy(rows).double()), minimum)


def test_buckets_of_fewer_samples_yield_nothing_and_buckets_of_as_many_yield_their_mean():
    rows, direction = sorted_pool()
    sums, left = cut(rows, direction, [4, 9, 10, 16], 5)
    assert sums["count"].tolist() == [0, 5 * LEVELS, 0, 6 * LEVELS, 14 * LEVELS]
    assert left == {0: 4.0, 2: 1.0}
    assert int(sums["samples"]) == 25  # 30 would give the five that are left out


@pytest.mark.parametrize(("minimum", "alike"), [(1, False), (5, True)])
def test_the_number_of_samples_does_not_show_whether_a_class_is_left_out(minimum, alike):
    """A sample in a bucket of its own, or no such sample: all that is sent is the same."""
    rows, direction = sorted_pool()
    place = float(rows[0] @ direction + rows[1] @ direction) / 2
    weight = torch.from_numpy(np.outer([0, 1e3], direction))
    bias = torch.tensor([0.0, -1e3 * place]).double()

    class One:
        step = np.ones(1)

    scorer = received_scorer({"weight": weight, "bias": bias}, 2, rows.shape[1], One())

    def sent(some):
        sums = soft_statistics(scorer, torch.from_numpy(some).double())
        return {name: value.tolist() for name, value in without_small(sums, minimum)[0].items()}

    assert (sent(rows) == sent(rows[1:])) == alike


def test_the_difference_of_two_rounds_can_be_one_sample_which_is_not_promised_to_be_hidden():
    """A limitation that docs/privacy.md states: small cells are suppressed in each sum, not in
    differences of sums.
    """
    rows, direction = sorted_pool()
    (first, _), (second, _) = cut(rows, direction, [6, 12], 5), cut(rows, direction, [7, 12], 5)
    assert (second["total"] - first["total"])[0].tolist() == (LEVELS * rows[6]).tolist()
    (four, _), (five, _) = cut(rows, direction, [4, 12], 5), cut(rows, direction, [5, 12], 5)
    assert not four["total"][0].any()  # at the threshold a class appears whole
    assert five["total"][0].tolist() == (LEVELS * rows[:5].sum(0)).tolist()


def test_a_party_with_few_samples_of_every_class_sends_nothing(place, tmp_path):
    data = place / "data/north"
    asking = Adapting(load_run(place / "run"), 3, True)
    hello, tensors = asking.engine.greeting(NAMES, "0" * 16)
    hello["experiment"]["data"].pop("unlabelled")
    held = PartyData(data, masked=True, min_samples=13)
    assert code_of(held.prepare, {**hello, "client": 0}, tensors) == "too-few-samples"


def test_the_coordinator_raises_the_number_and_cannot_lower_it(place):
    asking = Adapting(load_run(place / "run"), 3, True)
    hello, tensors = asking.engine.greeting(NAMES, "0" * 16)
    for mine, theirs, wanted in ((5, 1, 5), (5, 7, 7), (1, 3, 3), (1, 1, 1)):
        method = {**hello["experiment"]["method"], "min_samples": theirs}
        experiment = {**hello["experiment"], "method": method}
        held = PartyData(place / "data/north", masked=True, min_samples=mine)
        ready = held.prepare({**hello, "experiment": experiment, "client": 0}, tensors)
        assert ready.engine.worker.method.min_samples == wanted
    own_settings = {"method.min_samples": 1}
    assert code_of(PartyData, place / "data/north", own_settings) == "experiment"
