"""Answers about held-out samples as counts that add up over parties."""

import numpy as np
import pytest
import torch

from fedunseen.confidence import HeldOut, closed_form_folds, fit
from fedunseen.confidence.asking import CountedAnswers
from fedunseen.confidence.counted import (
    SCALES,
    UNIT,
    Scored,
    _place,
    counted,
    fit_counts,
    infeasible,
    no_counts,
    scales_for,
)
from fedunseen.confidence.folds import answered
from fedunseen.confidence.own_folds import _marks, own_counts, question
from fedunseen.core.errors import RefusedError
from fedunseen.core.samples import ScaledSamples
from fedunseen.data import Benchmark, Scaler
from fedunseen.methods import Gaussian
from fedunseen.methods.closed_form.statistics import unpacked
from fedunseen.strategies import FedAvg, Reply

CLASSES, SEEN, WIDTH, EACH = 16, 12, 10, 30
SCALE = scales_for(4.0)


@pytest.fixture(scope="module")
def made():
    """A method, its samples, and the sums over all of them."""
    rng = np.random.default_rng(0)
    described = rng.standard_normal((CLASSES, 5))
    names = [f"class {c:02}" for c in range(CLASSES)]
    ids = np.repeat(np.arange(SEEN), EACH)
    rows = described @ rng.standard_normal((5, WIDTH))
    features = (rows[ids] + rng.standard_normal((len(ids), WIDTH))).astype(np.float32)
    table = dict(zip(names, described.tolist(), strict=True))
    benchmark = Benchmark.from_arrays(features, [names[c] for c in ids], table)
    method = Gaussian.on(benchmark)
    inputs = torch.from_numpy(benchmark.features)
    labels = torch.from_numpy(benchmark.labels)
    return method, inputs, labels, method.statistics(inputs, labels)


def counts_of(made, own, seed=0, asked=None, method=None):
    first, inputs, labels, sums = made
    asked = question(sums, SCALE, 0.5) if asked is None else asked
    return own_counts(method or first, asked, inputs, labels, np.asarray(own, dtype=np.int64), seed)


def parts(count):
    """Deal the samples by class."""
    return [np.flatnonzero(np.repeat(np.arange(SEEN), EACH) % count == k) for k in range(count)]


@pytest.mark.slow
def test_parties_together_say_what_samples_in_one_process_say(made):
    method, inputs, labels, sums = made
    total = {name: value.clone() for name, value in no_counts(CLASSES).items()}
    for own in parts(3):
        total = {name: total[name] + value for name, value in counts_of(made, own).items()}
    assert total["asked"].sum(1).tolist() == [3 * SEEN * EACH, SEEN * EACH]
    sure = fit_counts(total, SCALE, 0.5, WIDTH)
    model = method.of_sums(sums)
    real = fit(
        closed_form_folds(method, model, sums, inputs, labels, np.arange(len(labels)), 0), 0.5
    )
    assert sure.classes == real.classes == SEEN
    assert 0.5 < sure.scale / real.scale < 2
    for coverage in (0.1, 0.5):
        place = int(coverage * len(sure.seen_levels))
        theirs = float(np.quantile(real.seen_levels, coverage))
        assert sure.seen_levels[place] == pytest.approx(theirs, abs=0.5)
    assert np.median(sure.distances) == pytest.approx(np.median(real.distances), rel=0.15)


@pytest.mark.slow
def test_a_partys_models_never_had_its_samples_of_classes_that_play_unseen_ones(made, monkeypatch):
    """Few samples beside the features: a covariance that knows them recognizes their class."""
    method, inputs, labels, _ = made
    asked_of = []

    def noted(quick, fold, samples, *more):
        asked_of.append((fold, samples, more))
        return answered(quick, fold, samples, *more)

    monkeypatch.setattr("fedunseen.confidence.own_folds.answered", noted)
    own = parts(3)[0]
    counts_of(made, own)
    mine = torch.zeros(len(labels), dtype=torch.bool).index_fill(0, torch.from_numpy(own), True)
    for fold, samples, (_, _, out) in asked_of:
        held = (inputs[:, None] == samples[None]).all(2).any(1)
        stays = ~held & ~(mine & torch.isin(labels, torch.from_numpy(out)))
        wanted = method.statistics(inputs[stays], labels[stays])
        assert torch.equal(fold["count"], wanted["count"])
        torch.testing.assert_close(fold["square"], unpacked(wanted["square"], WIDTH))
    assert len(asked_of) == 5 * 4


def test_which_samples_are_the_same_does_not_depend_on_a_scaling(made):
    """A coordinator chooses it, and could make all samples but one the same."""
    rows = made[1].numpy()[:8].copy()
    rows[7] = rows[0]
    same = Scaler(("standard",), {"0.mean": rows[0] * 0, "0.deviation": rows[0] * 0 + np.inf})
    alike = ScaledSamples(rows, torch.device("cpu"), same)
    plain = ScaledSamples(rows, torch.device("cpu"), Scaler((), {}))
    marks = list(_marks(alike, np.arange(8)))
    assert marks == list(_marks(plain, np.arange(8)))
    assert len(set(marks)) == 7


@pytest.mark.slow
def test_a_class_with_few_different_samples_is_not_asked_about(made):
    method, inputs, labels, _ = made
    rows = inputs.clone()
    rows[4:EACH] = rows[0]
    strict = Gaussian(
        method.settings.model_copy(update={"min_samples": 5}),
        method.space,
        method.semantics,
        method.backbone,
    )
    asked = question(strict.statistics(rows, labels), SCALE, 0.5)
    found = own_counts(strict, asked, rows, labels, np.arange(len(labels)), 0)
    assert found["asked"][:, 0].tolist() == [0, 0]
    assert (found["asked"][:, 1:SEEN] >= 5).all()


@pytest.mark.slow
def test_counts_depend_on_the_samples_alone_and_not_on_their_order(made):
    own = parts(3)[0]
    here = counts_of(made, own)
    there = counts_of(made, own[::-1].copy())
    assert all(torch.equal(value, there[name]) for name, value in here.items())


def test_a_party_with_no_sample_or_one_of_each_class_counts_nothing(made):
    for own in ([], [0, EACH]):
        assert all(not value.any() for value in counts_of(made, own).values())


@pytest.mark.slow
def test_a_sample_that_is_there_twice_is_asked_about_once_and_taken_out_twice(made):
    method, inputs, labels, _ = made
    inputs = torch.cat([inputs, inputs[:EACH]])
    labels = torch.cat([labels, labels[:EACH]])
    sums = method.statistics(inputs, labels)
    found = own_counts(
        method, question(sums, SCALE, 0.0), inputs, labels, np.arange(len(labels)), 0
    )
    once = counts_of(made, np.arange(SEEN * EACH))
    assert torch.equal(found["asked"], once["asked"])


@pytest.mark.parametrize("least", [1, 5])
def test_so_many_neighbors_are_counted_together(least, made):
    rng = np.random.default_rng(1)
    scores = rng.standard_normal((23, 4))
    labels = rng.integers(0, 4, 23)
    lengths = rng.standard_normal(23)
    fold = HeldOut(
        scores, labels, np.arange(4) > 1, rng.random(23) * WIDTH, lengths=np.exp(lengths)
    )
    scored = Scored.of(fold, labels, np.ones(23, dtype=np.int64), SCALE, 0.0, WIDTH)
    found = counted([scored], CLASSES, least)
    for name in ("levels", "distances", "lengths"):
        counts = found[name][found[name] > 0]
        assert int(counts.min()) >= least
    assert int(found["levels"][0, :2].sum()) == 23
    cells = found["right"].sum(3)  # whether an answer is right is a sum over its neighbors
    assert int(cells[cells > 0].min()) >= least


@pytest.mark.parametrize(
    ("group", "place"),
    [
        ([-30.0, 2.0, 2.1, 2.2, 2.3], 2),
        ([-30.0, -20.0, -10.0, 2.1, 2.2], 2),
        ([0.0, 1.0, 2.0, 3.0, 4.0], 2),
        ([0.0, 1.0, 2.0, 3.0, 90.0], 1),
        ([-90.0, 0.0, 1.0, 2.0, 3.0], 1),
        ([0.0, 1.0, 80.0, 90.0, 99.0], 94),
        ([0.0, 1.0, 50.0, 51.0], 0),
        ([7.0], 7),
    ],
)
def test_neighbors_are_counted_where_no_single_one_can_be_read(group, place):
    edges = np.arange(-100.0, 101.0)
    assert edges[_place(np.array(group), edges)] == place


def test_fewer_answers_are_not_counted(made):
    fold = HeldOut(np.eye(4), np.arange(4), np.zeros(4, dtype=bool))
    scored = Scored.of(fold, np.arange(4), np.ones(4, dtype=np.int64), SCALE, 0.0, WIDTH)
    assert all(not value.any() for value in counted([scored], CLASSES, 5).values())


@pytest.mark.parametrize(
    ("answers", "lists"),
    [  # of 20 samples: how many answers are (an unseen class, right)
        ({(0, 1): 16, (0, 0): 4}, {(0, 1): 20}),
        ({(0, 1): 15, (0, 0): 5}, {(0, 1): 15, (0, 0): 5}),
        ({(0, 1): 12, (0, 0): 6, (1, 0): 2}, {(0, 1): 12, (0, 0): 8}),
        ({(0, 1): 13, (0, 0): 4, (1, 0): 3}, {(0, 1): 13, (0, 0): 7}),
        ({(0, 1): 16, (0, 0): 3, (1, 0): 1}, {(0, 1): 20}),
        ({(1, 0): 18, (1, 1): 2}, {(1, 0): 20}),
    ],
)
def test_all_counts_are_of_the_same_samples(answers, lists):
    """The attack: the difference of two counts shows a list that was too short to be counted."""
    chosen, right = np.repeat(list(answers), list(answers.values()), axis=0).T.astype(bool)
    flat = np.tile(np.linspace(-1.0, 1.0, 20), (SCALES, 1))
    ids, ones = np.arange(20) % 4, np.ones(20, dtype=np.int64)
    unseen = np.zeros(20, dtype=bool)
    scored = Scored(ids, ones, unseen, chosen, right, flat, flat * np.nan, flat, *[np.empty(0)] * 2)
    found = counted([scored], CLASSES, 5)
    cells = found["right"][:, 0].sum(3)
    for k in range(SCALES):
        there = {tuple(place): int(cells[k][tuple(place)]) for place in cells[k].nonzero().tolist()}
        assert there == lists
    assert found["levels"][:, 0].sum(1).tolist() == [20] * SCALES
    assert int(found["asked"].sum()) == 20
    alone = counted([scored], CLASSES, 1)["right"][0, 0].sum(2)  # the positive control
    assert {place: int(alone[place]) for place in answers} == answers


def with_lengths(lengths, distance, least=5):
    """Return the confidence of made-up answers, whose samples have these lengths."""
    samples = len(lengths)
    flat = np.tile(np.linspace(-1.0, 1.0, samples), (SCALES, 1))
    none = np.zeros(samples, dtype=bool)
    labels = np.arange(samples) % 4
    ones = np.ones(samples, dtype=np.int64)
    folds = [
        Scored(labels, ones, unseen, none, ~none, flat, flat * np.nan, flat, distance, lengths)
        for unseen in (labels < 2, labels >= 2)
    ]
    found = counted(folds, CLASSES, least)
    assert infeasible(found, CLASSES) == ""
    return found, fit_counts(found, SCALE, 0.5, WIDTH)


@pytest.mark.slow
def test_lengths_are_counted_once_a_sample_and_raise_an_alarm_at_no_more_false_ones():
    rng = np.random.default_rng(3)
    lengths = 2.0 + 0.1 * rng.standard_normal(20_000)
    distance = rng.chisquare(5, 20_000)
    found, sure = with_lengths(lengths, distance / WIDTH)
    assert int(found["lengths"].sum()) == 20_000
    np.testing.assert_allclose(sure.lengths, np.quantile(lengths, [0.005, 0.995]), atol=1 / 32)
    others = 2.0 + 0.1 * rng.standard_normal(50_000)
    values = sure.unfamiliar(sure.farther(rng.chisquare(5, 50_000), others))
    for level in (0.01, 0.05):
        assert (values <= level).mean() == pytest.approx(level, rel=0.15)
    short = sure.farther(np.full(3, 5.0), np.array([0.0, -3.0, 9.0]))
    assert (sure.unfamiliar(short) <= 0.01).all()


@pytest.mark.parametrize("far", [1.0, 300.0, 1e5])
def test_with_few_samples_beside_the_features_distances_are_large_and_no_alarm_is_false(far):
    """Each held-out sample lies far away then: here 300 times the number of features."""
    _, sure = with_lengths(np.zeros(400), np.linspace(0.5, 1.5, 400) * far)
    alarms = sure.unfamiliar(np.linspace(0.5, 1.5, 1000) * far * WIDTH) <= 0.01
    assert alarms.mean() <= 0.02
    assert bool(len(sure.distances)) == (far < 1e5)


@pytest.mark.parametrize("unit", [-40.0, 40.0])
def test_lengths_beyond_all_bins_are_not_known(unit):
    _, sure = with_lengths(np.full(200, unit), np.linspace(0.1, 1.0, 200))
    assert not len(sure.lengths)
    assert len(sure.distances)


def reply(changes, client=0, classes=4):
    return Reply(client, changes, classes, 120)


@pytest.fixture(scope="module")
def honest(made):
    return counts_of(made, parts(3)[0])


def test_honest_counts_are_taken(honest):
    strategy = CountedAnswers(FedAvg(), CLASSES)
    assert strategy.check(reply(honest)) == ""
    assert strategy.check(reply(honest, -1)) == ""


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("distances", lambda value: value - 1, "negative"),
        ("levels", lambda value: value * 50, "weigh more"),
        ("right", lambda value: value * 50, "weigh more"),
        ("levels", lambda value: value + 2**62, "weigh more"),
        ("right", lambda value: value.index_fill(0, torch.tensor([0]), 0), "scales"),
        ("distances", lambda value: value + 100, "more distances"),
        ("lengths", lambda value: value - 1, "negative"),
        ("lengths", lambda value: value + 1, "more lengths"),
    ],
)
def test_counts_that_no_answers_have_are_refused(name, change, why, honest):
    bad = {**honest, name: change(honest[name])}
    assert why in infeasible(bad, 4)
    assert why in CountedAnswers(FedAvg(), CLASSES).check(reply(bad))


def test_nothing_is_counted_for_sums_that_lack_the_partys_samples(made):
    """A refusal would tell a coordinator that lies how far its guess of the samples is."""
    *_, sums = made
    inputs, labels = made[1], made[2]
    others = made[0].statistics(inputs[EACH:], labels[EACH:])
    crafted = {**sums, "square": sums["square"] / 4}
    for lie in (others, crafted):
        with pytest.warns(UserWarning, match="lack this party's samples"):
            found = counts_of(made, parts(3)[0], asked=question(lie, SCALE, 0.0))
        assert all(not value.any() for value in found.values())


@pytest.mark.parametrize(
    "change",
    [
        lambda asked: {**asked, "scales": asked["scales"][1:]},
        lambda asked: {**asked, "scales": -asked["scales"]},
        lambda asked: {**asked, "more": asked["offset"]},
        lambda asked: {**asked, "total": asked["total"][:, 1:]},
        lambda asked: {**asked, "space": asked["space"] + 1},
        lambda asked: {"weight": asked["total"], "bias": asked["count"]},
    ],
)
def test_what_is_no_question_is_refused_by_its_code(change, made):
    with pytest.raises(RefusedError) as found:
        counts_of(made, parts(3)[0], asked=change(question(made[3], SCALE, 0.0)))
    assert found.value.code == "refused-sums"


def test_no_answers_give_no_confidence_and_one_kind_alone_its_own():
    assert fit_counts(no_counts(CLASSES), SCALE, 0.5, WIDTH) is None
    sums = no_counts(CLASSES)
    sums["asked"][0, 0] = 4
    sums["levels"][:, 0, 120] = UNIT
    sums["right"][:, 0, 0, 1, 30] = UNIT
    found = fit_counts(sums, SCALE, 0.5, WIDTH)
    assert (found.samples, found.classes, len(found.unseen_levels)) == (4, 0, 0)
    assert found.only_seen


def test_scales_have_no_last_bit_that_rounding_could_change():
    assert len(SCALE) == SCALES
    assert np.array_equal(scales_for(4.0), scales_for(4.0 * (1 + 1e-12)))
    assert scales_for(0.0)[SCALES // 2] == 1.0


def test_the_settings_of_samples_decide_how_many_are_counted_together(made):
    method = made[0]
    few = Gaussian(
        method.settings.model_copy(update={"min_samples": 5}),
        method.space,
        method.semantics,
        method.backbone,
    )
    found = counts_of(made, parts(3)[0], method=few)
    assert int(found["distances"][found["distances"] > 0].min()) >= 5
