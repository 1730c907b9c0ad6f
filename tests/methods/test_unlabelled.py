"""Unlabelled samples against a slow softmax and a dense posterior, and exactness of soft
statistics.
"""

import sys
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch

from fedunseen import ClassSpace, Experiment, ZeroShotClassifier, register
from fedunseen.core import registry
from fedunseen.core.errors import ExperimentError
from fedunseen.encoders.backbone import Backbone
from fedunseen.evaluation.diagnosis import adapted as signs
from fedunseen.evaluation.summary import pool_advice
from fedunseen.experiment.changed import adaptation_note
from fedunseen.methods import Auto, Gaussian, Ridge
from fedunseen.methods.closed_form.soft_statistics import (
    LEVELS,
    responsibilities,
    scorer,
    soft_statistics,
)
from fedunseen.methods.closed_form.statistics import statistics
from fedunseen.methods.closed_form.unlabelled import (
    Adaptation,
    _ruled_out,
    adapt,
    adaptable,
    stretched,
    update,
)
from refusals import message_of
from same import same

CLASSES, WIDTH, SEEN = 12, 6, 9


def problem(seed=0, noise=12, **settings):
    """Return a method, its labeled model, and a function that draws 8-bit samples of given
    classes.
    """
    rng = np.random.default_rng(seed)
    semantics = rng.standard_normal((CLASSES, 4))
    means = 20 * semantics @ rng.standard_normal((4, WIDTH)) + 8 * rng.standard_normal(
        (CLASSES, WIDTH)
    )

    def draw(labels, seed=1):
        apart = np.random.default_rng(seed).standard_normal((len(labels), WIDTH))
        return torch.from_numpy(np.clip(np.rint(means[labels] + noise * apart), -127, 127))

    space = ClassSpace(
        tuple("abcdefghijkl"),
        semantics,
        tuple("wxyz"),
        np.arange(SEEN),
        [],
        np.arange(SEEN, CLASSES),
    )
    chosen = Gaussian.Settings(shrinkage=0.2, **settings)
    method = Gaussian(chosen, space, torch.from_numpy(semantics), Backbone((WIDTH,)))
    labels = np.repeat(np.arange(SEEN), 30)
    return method, method.solve(statistics(draw(labels), torch.from_numpy(labels), space)), draw


def pool(draw, seed=2, of=range(CLASSES), each=40):
    return draw(np.repeat(list(of), each), seed)


def test_responsibilities_are_the_softmax_of_the_scores_in_255_steps():
    method, model, draw = problem(calibration=True)
    rows = pool(draw)
    grid = scorer(model, offset=1.5)
    assert float(grid.weight.abs().max()) < 2**23
    assert np.log2(float(grid.step)) % 1 == 0
    wanted = LEVELS * torch.softmax(method.known_scores(model, rows) - 1.5 * model["seen_mask"], 1)
    assert (responsibilities(grid, rows) - wanted).abs().max() < 0.5 + LEVELS / 256 / 4
    assert not responsibilities(scorer(model, 1.5, "unseen"), rows)[:, :SEEN].any()


def test_soft_statistics_are_integers_that_do_not_depend_on_batches_order_or_partition():
    _, model, draw = problem()
    rows, grid = pool(draw), scorer(model)
    whole = soft_statistics(grid, rows)
    r = responsibilities(grid, rows)[:, SEEN:]
    by_hand = [
        [sum(int(r[i, u]) * int(rows[i, j]) for i in range(len(rows))) for j in range(WIDTH)]
        for u in range(3)
    ]
    assert whole["total"].tolist() == by_hand
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    parts = [
        soft_statistics(grid, rows[order][a:b]) for a, b in pairwise([0, 1, 7, 100, 101, len(rows)])
    ]
    for name, value in whole.items():
        assert torch.equal(sum(part[name] for part in parts), value)
        # under a mask, modulo 2^64
        mask = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63, value.shape))
        masked = [parts[0][name].long() + mask, *(part[name].long() for part in parts[1:-1])]
        assert torch.equal(sum(masked) + parts[-1][name].long() - mask, value.long())


def test_an_update_is_the_dense_posterior_with_discounted_samples():
    method, model, draw = problem(variance=2.0, nugget=0.1, width=0.8)
    sums = soft_statistics(scorer(model), pool(draw))
    found = update(method, model, sums, Adaptation(weight=0.3, floor=0.1, guard=False))
    soft = sums["count"] / LEVELS
    worth = [
        float(1 / (1 / (Fraction(3, 10) * Fraction(n)) + Fraction(2, 10))) for n in soft.tolist()
    ]
    count = torch.tensor([30.0] * SEEN + worth, dtype=torch.float64)
    labeled = draw(np.repeat(np.arange(SEEN), 30)).reshape(SEEN, 30, WIDTH)
    means = torch.cat([labeled.mean(1), sums["total"] / sums["count"][:, None]])
    variance, nugget, width, _ = model["kernel"].tolist()
    s = method.semantics.double()
    k = variance * torch.exp(
        -(s[:, None] - s).square().sum(2) / (2 * width)
    ) + variance * nugget * torch.eye(CLASSES)
    prototypes = k @ torch.linalg.inv(k + torch.diag(1 / count)) @ (means - model["centre"])
    assert torch.allclose(found.params["weight"], prototypes @ model["precision"], rtol=1e-8)
    assert 0 < found.offset_share < 1


def test_unseen_classes_gain_and_seen_ones_lose_little():
    method, model, draw = problem()
    labels = np.repeat(np.arange(CLASSES), 100)
    x, unseen = draw(labels, 9), labels >= SEEN
    models = model, adapt(method, model, [pool(draw)]).params
    before, after = (
        method.known_scores(params, x).argmax(1).numpy() == labels for params in models
    )
    assert after[unseen].mean() > before[unseen].mean() + 0.1
    assert after[~unseen].mean() > before[~unseen].mean() - 0.1


@pytest.mark.parametrize(("scale", "wanted"), [(1e-4, 1.0), (0.0, 0.0), (9.0, None)])
def test_prototypes_that_nearly_coincide_are_stretched_and_others_are_not(scale, wanted):
    method, model, draw = problem()
    apart = method.prototypes(model, method.semantics)
    assert torch.allclose(apart @ model["precision"], model["weight"])
    middle = apart[SEEN:].mean(0)
    apart[SEEN:] = middle + scale * (apart[SEEN:] - middle)
    method.prototypes = lambda *_: apart
    weight = apart @ model["precision"]
    before = model | {"weight": weight, "bias": (weight * apart).sum(1) / -2}
    after = stretched(method, before)
    assert (after is before) == (wanted != 1.0)
    assert torch.equal(after["weight"][:SEEN], weight[:SEEN])
    if wanted:
        placed = after["weight"][SEEN:] @ torch.linalg.cholesky(
            torch.linalg.inv(model["precision"])
        )
        nearest = (torch.cdist(placed, placed) + torch.diag(torch.full((3,), 99.0))).min(1).values
        assert float(nearest.median()) == pytest.approx(wanted)
        rows = draw(np.arange(CLASSES)) - model["centre"]
        one, other = (
            (rows @ m["weight"].T + m["bias"])[:, SEEN:].argsort() for m in (before, after)
        )
        assert torch.equal(one, other)


def test_samples_of_something_else_are_refused():
    method, model, draw = problem()
    elsewhere = torch.from_numpy(
        np.random.default_rng(0).integers(90, 128, (100, WIDTH)) * np.array([1, -1] * 3)
    )
    found = adapt(method, model, [elsewhere.double()])
    assert torch.equal(found.params["weight"], model["weight"])
    assert found.offset_share == 1
    assert found.refused.nonzero()[:, 0].tolist() == list(range(SEEN, CLASSES))
    assert "'j', 'k', 'l'." in next(signs(adaptation_note(found, method.space.names))).what
    assert not adapt(method, model, [pool(draw)]).refused.any()


@pytest.mark.parametrize(("of", "refused"), [(range(SEEN), True), (range(CLASSES), False)])
def test_a_pool_that_shows_nothing_new_is_refused_as_a_whole(of, refused, monkeypatch):
    """A slow reference: how far soft means leave the span of the prototypes, times their counts."""
    monkeypatch.setattr(sys.modules[__name__], "WIDTH", 40)
    method, model, draw = problem(noise=50)
    rows = pool(draw, of=of)
    sums = soft_statistics(scorer(model, every=True), rows)
    soft = sums["count"].double().numpy() / LEVELS
    root = np.linalg.cholesky(model["precision"].numpy())
    apart = (sums["total"].numpy() / LEVELS / soft[:, None] - model["centre"].numpy()) @ root
    span = (method.prototypes(model, method.semantics) @ torch.from_numpy(root)).numpy().T
    left = apart.T - span @ np.linalg.lstsq(span, apart.T, rcond=None)[0]
    beyond = soft * np.square(left).sum(0)
    assert (beyond[SEEN:].max() < 1.2 * np.median(beyond[:SEEN])) == refused
    found = adapt(method, model, rows.chunk(3))
    assert found.refused.tolist() == [False] * SEEN + [refused] * (CLASSES - SEEN)
    assert torch.equal(found.params["weight"], model["weight"]) == refused
    assert same(found.params, adapt(method, model, [rows]).params)
    assert not adapt(method, model, [rows], settings=Adaptation(guard=False)).refused.any()
    assert not adapt(method, model, [rows], among="unseen").refused.all()


@pytest.mark.parametrize(("after", "warns"), [(59.0, False), (40.0, True)])
def test_a_lower_accuracy_is_said(after, warns):
    table = {"class": ["a", "b"], "seen": [True, False], "samples": [0, 20]}
    table |= {"before": [80.0, 60.0], "after": [80.0, after]}
    found = [
        sign.what
        for sign in signs({"samples": 20, "refused": [], "measured": True, "classes": table})
    ]
    assert found == (["Adapting lowered the harmonic mean from 68.6 to 53.3 %."] if warns else [])


def test_a_class_that_gets_almost_all_is_named():
    method, model, draw = problem()
    found = adapt(method, model, [pool(draw, of=[10])])
    assert "'k' got" in list(signs(adaptation_note(found, method.space.names)))[-1].what


def test_models_that_cannot_adapt_are_refused():
    method, model, draw = problem()
    all_seen = model | {"seen_mask": torch.ones(CLASSES)}
    assert "every class" in message_of(scorer, all_seen, among="unseen")
    assert "no labeled sample" in message_of(scorer, model | {"count": torch.zeros(CLASSES)})
    ridge = Ridge(Ridge.Settings(), method.space, method.semantics, method.backbone)
    assert "ridge" in message_of(adapt, ridge, {}, [pool(draw)], error=ExperimentError)


def test_every_method_that_can_adapt_is_named_and_only_such_models_adapt(monkeypatch):
    """Whose flag says so: a further method needs no other change."""
    monkeypatch.setattr(registry, "_REGISTERED", defaultdict(dict))
    register("method", "means")(type("Means", (Ridge,), {"adapts": True}))
    settings = {"data.name": "folder", "data.root": "mine", "data.unlabelled": True}
    said = message_of(Experiment.load, "digit-pairs", settings, error=ExperimentError)
    assert said.endswith("set method.name = 'gaussian' or 'means', or data.unlabelled = false")
    for name in ("means", "gaussian"):
        assert pool_advice({}, name)
        assert Experiment.load("digit-pairs-gaussian", {**settings, "method.name": name})
    gaussian, model, draw = problem()
    auto = Auto(Auto.Settings(), gaussian.space, gaussian.semantics, gaussian.backbone)
    assert adaptable(auto) is adaptable(auto, model) is auto
    assert pool_advice({"form": "gaussian"}, "auto")
    assert not pool_advice({"form": "ridge"}, "auto")
    without = {name: value for name, value in model.items() if name != "seen_mask"}
    said = message_of(adapt, auto, without, [pool(draw)], error=ExperimentError)
    assert said.startswith("method.name = 'auto' keeps no class means")
    assert "run method.name = 'gaussian' or 'means', on" in said


def test_of_seen_classes_samples_count_as_far_as_their_labeled_ones_leave_doubt():
    method, model, draw = problem()
    all_seen = model | {"seen_mask": torch.ones(CLASSES, dtype=torch.float64)}
    sums = soft_statistics(scorer(all_seen), pool(draw))
    found = update(method, all_seen, sums, Adaptation(weight=0.3, floor=0.1, guard=False))
    soft = (sums["count"] / LEVELS).double()
    worth = 1 / (1 / (0.3 * soft) + 0.1 * model["variance"])
    assert torch.allclose(found.params["count"], model["count"] + worth)
    assert (found.params["variance"] < model["variance"]).all()


@pytest.fixture(scope="module")
def table():
    method, _, draw = problem()
    classes = dict(zip(method.space.names, method.space.semantics, strict=True))
    labels = np.repeat(np.arange(SEEN), 30)
    return draw(labels).numpy(), np.array(method.space.names)[labels], classes, pool(draw).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["argument", "none", "minus one"])
def test_the_estimator_takes_unlabelled_samples_in_three_ways(table, way):
    x, y, classes, rows = table
    both, groups = np.concatenate([rows, x]), np.arange(len(rows) + len(x)) % 2
    own = groups[len(rows) :] if way == "none" else None
    adapted = ZeroShotClassifier().fit(x, y, classes=classes, groups=own).adapt(rows)
    if way == "argument":
        model = ZeroShotClassifier().fit(x, y, classes=classes, unlabelled=rows)
    elif way == "none":
        model = ZeroShotClassifier().fit(
            both, [None] * len(rows) + y.tolist(), classes=classes, groups=groups
        )
    else:
        labels = [-1] * len(rows) + [list(classes).index(name) for name in y]
        model = ZeroShotClassifier().fit(
            both, labels, classes=dict(enumerate(classes.values())), groups=groups
        )
    assert np.allclose(model.scores(rows), adapted.scores(rows), rtol=1e-6, atol=1e-6)
    assert np.allclose(model.soft_counts_, adapted.soft_counts_)


def test_adapting_an_estimator_leaves_it_as_it_is(table, tmp_path):
    x, y, classes, rows = table
    model = ZeroShotClassifier().fit(x, y, classes=classes)
    before = model.scores(rows)
    adapted = model.adapt(rows)
    assert np.array_equal(model.scores(rows), before)
    assert not np.array_equal(adapted.scores(rows), before)
    adapted.save(tmp_path / "model.safetensors")
    assert np.array_equal(
        ZeroShotClassifier.load(tmp_path / "model.safetensors").scores(rows), adapted.scores(rows)
    )


def test_classes_shown_by_examples_alone_stay_undescribed(table):
    x, y, classes, _ = table
    _, _, draw = problem()
    model = ZeroShotClassifier().fit(x, y, classes={name: classes[name] for name in sorted(set(y))})
    learned = model.learn(
        examples={f"new {c}": draw(np.full(2, c), 7).numpy() for c in range(SEEN, CLASSES)}
    )
    adapted = learned.adapt(pool(draw, 3, range(SEEN, CLASSES)).numpy(), among="unseen")
    assert adapted._model.params["described"][-3:].tolist() == [0, 0, 0]
    truth = np.repeat(range(3), 100)
    tests = draw(truth + SEEN, 11).numpy()
    before, after = (
        (one.scores(tests)[:, -3:].argmax(1) == truth).mean() for one in (learned, adapted)
    )
    assert after >= before


WIDE = 8  # whose limit is 2 + 5 sqrt(2 / 8) = 4.5


@pytest.mark.parametrize(
    ("rhos", "ruled_out"),
    [
        ((4.45, 4.55, 0.0, 0.0, 0.0), (False, True, False, False, False)),
        ((2.24, 2.24, 2.24), (False, False, False)),
        ((2.26, 2.26, 2.26), (True, True, True)),  # above half of the limit, in the mean
    ],
)
def test_soft_means_are_ruled_out_by_equation_3(rhos, ruled_out):
    """rho is the squared distance of the mean from its prototype over d (v + 1 / n), here with the
    prototypes at 0, no covariance and v + 1 / n = 1 / 2 + 1 / 2.
    """
    params = {
        "centre": torch.zeros(WIDE).double(),
        "precision": torch.eye(WIDE).double(),
        "weight": torch.zeros(len(rhos), WIDE).double(),
        "bias": torch.zeros(len(rhos)).double(),
        "variance": torch.full((len(rhos),), 0.5).double(),
    }
    mean = torch.zeros(len(rhos), WIDE).double()
    mean[:, 0] = (WIDE * torch.tensor(rhos).double()).sqrt()
    soft = torch.full((len(rhos),), 2.0).double()
    assert _ruled_out(params, torch.arange(len(rhos)), soft, mean).tolist() == list(ruled_out)


def test_the_offset_shrinks_by_the_power_0_4_of_the_variance_that_is_left():
    method, model, draw = problem(variance=2.0, nugget=0.1, width=0.8)
    sums = soft_statistics(scorer(model), pool(draw))
    found = update(method, model, sums, Adaptation(guard=False))
    before, after = (one["variance"][SEEN:].mean() for one in (model, found.params))
    assert after < 0.9 * before
    assert found.offset_share == pytest.approx(float(after / before) ** 0.4)
