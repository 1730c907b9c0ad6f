"""Classes that are shown after training: their scores beside those of seen classes."""

import numpy as np
import pytest
import torch

from fedunseen import ZeroShotClassifier
from fedunseen.methods.closed_form.gaussian_process import Kernel, squared_distances
from fedunseen.methods.closed_form.incremental import IncrementalModel
from fedunseen.methods.closed_form.shown import NOISE, Correction, mostly_shown, worth

CLASSES = 12
SEEN = 9
WIDTH = 40
EXAMPLES = 3


def rows_of(means, labels, rng):
    """Return samples (n, WIDTH) whose features spread unevenly about the means of their classes."""
    spread = np.linspace(0.2, 2.0, WIDTH)
    return (means[labels] + spread * rng.normal(size=(len(labels), WIDTH))).astype(np.float32)


def fitted(samples, **settings):
    """Return a classifier, and where its classes lie."""
    rng = np.random.default_rng(1)
    described = rng.normal(size=(CLASSES, 6))
    means = described @ rng.normal(size=(6, WIDTH)) * 0.4
    labels = np.repeat(np.arange(SEEN), samples)
    model = ZeroShotClassifier(**settings).fit(
        rows_of(means, labels, rng), labels, classes=dict(enumerate(described))
    )
    return model, means


@pytest.mark.parametrize("samples", [4, 6, 40])
@pytest.mark.parametrize("shrinkage", [0.01, 0.3])
def test_the_distance_of_a_new_sample_is_that_of_samples_that_were_left_out(samples, shrinkage):
    """With fewer samples than features the covariance hardly holds for others."""
    settings = {"shrinkage": shrinkage}
    model, means = fitted(samples, method_params=settings, calibration=0.0)
    params = model._model.params
    labels = np.repeat(np.arange(SEEN), 400)
    others = rows_of(means, labels, np.random.default_rng(2))
    apart = model._model.scaled(others).double().numpy()
    center = np.stack([apart[labels == c].mean(0) for c in range(SEEN)])[labels]
    squared = (((apart - center) @ params["precision"].numpy()) * (apart - center)).sum(1).mean()
    expected = Correction.of(params, model._model.method.semantics, 0.0).distance
    assert expected == pytest.approx(squared, rel=0.35)
    within = squared if samples == 40 else expected / 2  # the limit case of many samples
    assert expected >= 0.65 * within


def test_without_examples_nothing_changes_and_many_leave_what_seen_classes_have():
    correction = Correction(distance=50.0, noise=0.02, offset=7.0)
    count = torch.tensor([0.0, 1e9]).double()
    variance = torch.tensor([0.8, 1e-9]).double()
    nothing, many = correction.raised(count, variance).tolist()
    assert nothing == 0.0
    assert many == pytest.approx(-7.0 - 50.0 * 0.02 / 2)  # seen classes are lowered by the offset


def test_examples_of_unseen_classes_count_as_more_than_training_samples():
    """Against the posterior mean, solved in one piece."""
    model, means = fitted(20)
    known = model._model
    rng = np.random.default_rng(7)
    shown = {9: rows_of(means, np.repeat(9, EXAMPLES), rng), 0: rows_of(means, [0, 0], rng)}
    learned = known.learn(examples={known.space.names[c]: rows for c, rows in shown.items()})
    count = learned.params["count"]
    assert count[9].item() == pytest.approx(EXAMPLES / NOISE)
    assert count[0].item() == 22
    there = torch.nonzero(count > 0)[:, 0]
    semantics = known.method.semantics.double()
    kernel = Kernel.of(known.params)
    distances = squared_distances(semantics, semantics[there])
    k = kernel(distances, torch.arange(CLASSES)[:, None] == there)
    apart = known.method.class_means(known.params)
    samples = {c: known.scaled(rows).double() - known.params["centre"] for c, rows in shown.items()}
    apart[9] = samples[9].mean(0)
    apart[0] = (20 * apart[0] + samples[0].sum(0)) / 22
    noise = torch.tensor([NOISE / EXAMPLES if c == 9 else 1 / count[c] for c in there.tolist()])
    posterior = k @ torch.linalg.solve(k[there] + torch.diag(noise), apart[there])
    found = learned.method.prototypes(learned.params, semantics)
    torch.testing.assert_close(found, posterior)


def test_without_seen_classes_an_example_counts_as_one():
    assert worth({"seen_mask": torch.zeros(3)}) == 1.0


def test_scores_of_right_classes_are_alike_on_average():
    """Against draws: with few examples of new classes no kind of class has an advantage.

    Descriptions say nothing here, so that the examples' noise is all that a new class lacks.
    """
    settings = {"variance": 50.0, "nugget": 0.0, "width": 1e-3}
    model, means = fitted(30, calibration=0.0, method_params=settings)
    rng = np.random.default_rng(3)
    new = np.arange(SEEN, CLASSES)
    plain = []
    fair = []
    for _ in range(20):
        examples = {int(c): rows_of(means, np.repeat(c, EXAMPLES), rng) for c in new}
        learned = model.learn(examples=examples)
        raised = learned._model.params["raised"].numpy()
        labels = np.tile(np.arange(CLASSES), 20)
        rows = rows_of(means, labels, rng)
        scores = learned.scores(rows)
        own = np.arange(len(rows)), labels
        exact = _scores_of(model, means, rows)[own]
        missing = exact - scores[own]
        unseen = labels >= SEEN
        fair.append(missing[unseen].mean() - missing[~unseen].mean())
        missing += raised[labels]
        plain.append(missing[unseen].mean() - missing[~unseen].mean())
    # what a shown class lacks, beside seen ones, before and after
    assert np.mean(plain) > 1.0
    assert abs(np.mean(fair)) < 0.2 * np.mean(plain)


def _scores_of(model, means, rows):
    """Return scores by the true means, under the model's covariance."""
    params = model._model.params
    scaler = model._model.scaled
    precision = params["precision"].numpy()
    centre = params["centre"].numpy()
    many = [
        scaler(rows_of(means, np.repeat(c, 2000), np.random.default_rng(c))).double().numpy()
        for c in range(CLASSES)
    ]
    apart = np.stack([own.mean(0) for own in many]) - centre
    features = scaler(rows).double().numpy() - centre
    return features @ precision @ apart.T - ((apart @ precision) * apart).sum(1) / 2


@pytest.mark.parametrize("equalize", [0.0, 0.75])
def test_classes_one_after_the_other_are_as_if_they_were_shown_at_once(equalize):
    model, means = fitted(10, calibration=3.0, method_params={"equalize": equalize})
    known = model._model
    method = known.method
    rng = np.random.default_rng(4)
    shown = {c: rows_of(means, np.repeat(0, c + 1), rng) for c in range(3)}
    grown = IncrementalModel.of(known.params, method.semantics, 3.0)
    for rows in shown.values():
        total = known.scaled(rows).double().sum(0)
        grown = grown.add(None, len(rows), total)
    once = known.learn(examples={f"new {c}": rows for c, rows in shown.items()})
    for name in ("weight", "bias", "variance", "raised"):
        torch.testing.assert_close(grown.params[name], once.params[name])
    assert (once.params["raised"] != 0).tolist() == [False] * CLASSES + [True] * 3
    later = known
    for c, rows in shown.items():
        later = later.learn(examples={f"new {c}": rows})
    torch.testing.assert_close(later.params["bias"], once.params["bias"])
    again = once.learn(classes={"new 0": np.ones(6).tolist()})
    assert float(again.params["raised"][CLASSES]) != float(once.params["raised"][CLASSES])


def test_a_class_counts_as_seen_once_examples_say_most_of_it():
    model, means = fitted(20)
    few = model.learn(examples={9: means[9:10].astype(np.float32)})
    many = model.learn(examples={9: np.repeat(means[9:10], 50, 0).astype(np.float32)})
    share = (few._model.params["count"] * few._model.params["variance"])[9]
    assert bool(mostly_shown(few._model.params)[9]) == bool(share >= 0.5)
    assert many._model.shown_mask.tolist() == [True] * 10 + [False] * 2
    assert model._model.shown_mask.tolist() == [True] * SEEN + [False] * 3


def test_explanations_still_add_up_and_distances_stay():
    model, means = fitted(20)
    rng = np.random.default_rng(5)
    learned = model.learn(examples={9: rows_of(means, np.repeat(9, 2), rng)})
    rows = rows_of(means, np.repeat(9, 5), rng)
    scores = learned.scores(rows)
    for explanation, row in zip(learned.explain(rows, top=None), scores, strict=True):
        assert explanation.score == pytest.approx(row.max(), rel=1e-6)
    plain = learned._model.params | {"raised": torch.zeros(CLASSES).double()}
    plain["bias"] = plain["bias"] - learned._model.params["raised"]
    samples = learned._model.scaled(rows)
    method = learned._model.method
    torch.testing.assert_close(
        method.distances(learned._model.params, samples, method.semantics),
        method.distances(plain, samples, method.semantics),
    )
