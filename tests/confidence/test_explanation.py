"""Explanations of answers: splits of a score over classes, attributes and places."""

import numpy as np
import pytest
import torch

from fedunseen import ZeroShotClassifier
from fedunseen.confidence.explanation import Explanation, Part
from fedunseen.confidence.places import Places
from fedunseen.core.errors import DataError, ExperimentError

EXACT = 1e-6
SEEN, ALL, WIDTH = 10, 14, 16


@pytest.fixture(scope="module")
def samples():
    """Return descriptions, training samples with labels, and new samples of all classes."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(ALL, 4))
    to_features = rng.normal(size=(4, WIDTH))
    described = {f"c{i}": row.tolist() for i, row in enumerate(rows)}
    which = np.repeat(np.arange(SEEN), 40)
    x = rows[which] @ to_features + 0.3 * rng.normal(size=(len(which), WIDTH))
    new = rows[np.repeat(np.arange(ALL), 5)] @ to_features
    new += 0.3 * rng.normal(size=new.shape)
    return described, x, [f"c{i}" for i in which], new.astype(np.float32)


@pytest.fixture(scope="module")
def models(samples):
    """Return a model of each closed form."""
    described, x, y, _ = samples
    names = ("stripes", "legs", "fins", "horns")

    def made(method, **settings):
        fitted = ZeroShotClassifier(
            method, calibration=0.5, prior="balanced", method_params=settings
        )
        model = fitted.fit(x, y, classes=described)._model
        object.__setattr__(model.space, "attribute_names", names)
        return model

    found = {method: made(method) for method in ("gaussian", "ridge", "eszsl", "sae")}
    return found | {"of one length": made("gaussian", equalize=0.75)}


@pytest.mark.slow
@pytest.mark.parametrize("top", [None, 2, 0])
@pytest.mark.parametrize("which", ["gaussian", "of one length"])
def test_classes_sum_to_the_score(models, samples, top, which):
    model = models[which]
    scores = model.scores(samples[3]).max(1)
    found = model.explain(samples[3], top)
    assert {one.answer for one in found} & {f"c{i}" for i in range(SEEN, ALL)}
    for one, score in zip(found, scores, strict=True):
        assert one.score == score
        whole = sum(part.value for part in one.parts) + one.others + one.description
        assert whole - one.offset == pytest.approx(score, abs=EXACT)
        assert len(one.parts) == (SEEN if top is None else top)


@pytest.mark.parametrize("method", ["ridge", "eszsl", "sae"])
def test_attributes_of_a_linear_method_sum_to_the_score(models, samples, method):
    model = models[method]
    scores = model.scores(samples[3]).max(1)
    for one, score in zip(model.explain(samples[3], top=2), scores, strict=True):
        whole = sum(part.value for part in one.attributes) + one.other_attributes
        assert whole - one.offset == pytest.approx(score, abs=EXACT)
        assert one.parts == ()
        assert one.sentence().startswith(f"{one.answer}: ")
        assert one.attributes[0].name in one.sentence()


@pytest.mark.parametrize("which", ["gaussian", "of one length"])
def test_attributes_of_a_gaussian_sum_to_its_lead_over_the_mean_description(models, samples, which):
    model = models[which]
    method = model.method
    rows = torch.from_numpy(model.scaler(samples[3]))
    mean = method.semantics.double().mean(0, keepdim=True)
    weight, bias = method.describe(model.params, mean)
    baseline = (rows.double() - model.params["centre"]) @ weight.T + bias
    explained = 0
    for one, base in zip(model.explain(samples[3], top=None), baseline[:, 0].tolist(), strict=True):
        lead = one.score + one.offset - base
        if int(one.answer[1:]) >= SEEN:
            assert sum(part.value for part in one.attributes) == pytest.approx(lead, rel=EXACT)
            explained += 1
        else:
            assert one.attributes == ()
            assert one.attribute_sentence() == ""
    assert explained > 5


def test_attributes_without_names_are_not_named(models, samples):
    model = models["ridge"]
    names = tuple(f"text {i}" for i in range(4))
    before = model.space.attribute_names
    object.__setattr__(model.space, "attribute_names", names)
    try:
        (one,) = model.explain(samples[3][:1])
    finally:
        object.__setattr__(model.space, "attribute_names", before)
    assert one.attributes == ()
    assert one.sentence() == f"{one.answer}: its description"


def spread_out(rows, height, width):
    """Return maps whose means over places are rows."""
    noise = np.random.default_rng(1).normal(size=(*rows.shape, height, width))
    noise -= noise.mean((2, 3), keepdims=True)
    return (rows[..., None, None] + noise).astype(np.float32)


@pytest.mark.parametrize("method", ["gaussian", "ridge", "eszsl"])
@pytest.mark.parametrize("shape", [(WIDTH, 3, 5), (1, 4, 4), (2, 2, 4)])
def test_places_sum_to_the_score_and_rounding_is_small(models, samples, method, shape):
    """Feature maps whose means are the samples, and samples that list pixels."""
    model = models[method]
    rows = samples[3][: 5 * SEEN]  # others are clipped
    pooled = shape[0] == WIDTH
    maps = spread_out(rows, *shape[1:]) if pooled else rows.reshape(len(rows), *shape)
    found = model.explain(rows, maps=maps)
    scores = model.scores(rows)
    for one, score in zip(found, scores, strict=True):
        assert one.places.values.shape == shape[1:]
        assert one.places.score == pytest.approx(score.max(), abs=EXACT)
        assert abs(one.places.rounding) < (0.02 * np.ptp(scores) if pooled else EXACT)


def test_what_a_place_adds_is_what_the_score_loses_without_it(models):
    model = models["eszsl"]
    pixels = np.random.default_rng(2).normal(size=(1, 1, 4, 4)).astype(np.float32)
    (one,) = model.explain(pixels.reshape(1, -1), maps=pixels)
    weight = (model.method.semantics @ model.params["v"].T).double().numpy()
    scaled = model.scaler(pixels.reshape(1, -1))[0]
    wanted = scaled * weight[model.space.names.index(one.answer)]
    np.testing.assert_allclose(one.places.values.ravel(), wanted, rtol=1e-5, atol=1e-7)


def test_a_class_can_be_asked_for(models, samples):
    model = models["gaussian"]
    score = float(model.scores(samples[3][:1])[0, model.space.names.index("c3")])
    (one,) = model.explain(samples[3][:1], classes=["c3"])
    assert one.answer == "c3"
    assert one.score == pytest.approx(score, abs=EXACT)
    with pytest.raises(DataError, match="c33"):
        model.explain(samples[3][:1], classes=["c33"])


def test_a_method_that_is_not_linear_is_refused_by_name(samples):
    described, x, y, new = samples
    model = ZeroShotClassifier("fedzsl", rounds=1).fit(x, y, classes=described)._model
    with pytest.raises(
        ExperimentError, match=r"'fedzsl'.*gaussian, ridge, eszsl or sae"
    ) as refused:
        model.explain(new)
    assert refused.value.code == "no-explanation"


def test_sentences():
    parts = (Part("horse", 6.0), Part("eel", -3.0), Part("seal", 0.001))
    one = Explanation("zebra", 9.0, parts, (), 1.0, 0.0, 0.0)
    assert one.sentence() == "zebra: horse 60 %; against it: eel 30 %"
    assert Explanation("zebra", 0.0, (), (), 0.0, 0.0, 0.0).sentence() == (
        "zebra: nothing speaks for it or against it"
    )


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ((0, 0), "upper left"),
        ((6, 6), "lower right"),
        ((3, 3), "center"),
        ((3, 0), "middle left"),
        ((0, 3), "upper center"),
    ],
)
def test_the_place_that_says_most_is_named(place, words):
    values = np.full((7, 7), -0.1)
    values[place] = 3.0
    places = Places(values, 0.0, 0.0)
    assert places.sentence() == f"100 % of what speaks for it is at the {words}"
    assert places.hottest()[place]
    assert places.hottest().sum() == 13


def test_where_no_place_speaks_for_an_answer():
    assert Places(np.full((2, 2), -1.0), 0.0, 0.0).sentence() == "no place speaks for it"
    assert Places(np.ones((1, 4)), 0.0, 0.0).sentence() == (
        "50 % of what speaks for it is at the center"
    )


def test_heat_is_orange_where_a_place_speaks_for_the_answer_and_blue_against_it():
    values = np.zeros((3, 3))
    values[0, 0], values[2, 2] = 1.0, -1.0
    picture = np.full((3, 60, 90), 0.5, np.float32)
    heat = np.asarray(Places(values, 0.0, 0.0).over(picture)).astype(int)
    assert heat.shape == (120, 180, 3)  # twice as large
    red, _, blue = heat[5, 5]
    assert red > blue + 100
    red, _, blue = heat[-5, -5]
    assert blue > red + 100
    assert np.ptp(heat[60, 90]) <= 1  # gray where nothing is said
