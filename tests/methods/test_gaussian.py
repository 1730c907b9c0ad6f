"""Gaussian classes against dense processes over classes times features, finite differences and real
samples.
"""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
import torch.nn.functional as F
from on_space import on
from scipy.spatial.distance import cdist, pdist
from sklearn.covariance import oas
from sklearn.datasets import load_digits

from fedunseen.core.errors import ExperimentError
from fedunseen.data import ClassSpace
from fedunseen.methods import Gaussian
from fedunseen.methods.closed_form import gaussian_process as gp
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.left_out import SHOTS, estimates, left_out_accuracy
from fedunseen.methods.closed_form.statistics import scatter, statistics
from refusals import message_of

WIDTH = 5


def problem(space, wide=WIDTH, **settings):
    """Give a method and samples of the classes 0, 1, 3 and 4, few of some, around means that
    descriptions tell of.
    """
    rng = np.random.default_rng(0)
    labels = torch.tensor([0] * 9 + [1] * 2 + [3] * 12 + [4] * 5)
    means = 0.3 * space.semantics @ rng.normal(size=(30, wide))
    x = means[labels] + rng.normal(size=(len(labels), wide)) @ rng.normal(size=(wide, wide)) / 3
    return on(Gaussian, space, (wide,), **settings), torch.from_numpy(x), labels


FIXED = {"shrinkage": 0.2, "variance": 3.0, "nugget": 0.1, "width": 0.7}


def solved(space, **settings):
    method, x, labels = problem(space, **settings)
    return method, method.solve(method.statistics(x, labels)), x, labels


def by_hand(method, x, labels, settings):
    """Condition all prototypes' joint Gaussian, classes times features, on the class means: nothing
    is whitened.
    """
    x, s = x.numpy(), method.semantics.double().numpy()
    ids = sorted(set(labels.tolist()))
    groups = [x[labels == c] for c in ids]
    count, means = (
        np.array([len(rows) for rows in groups]),
        np.stack([rows.mean(0) for rows in groups]),
    )
    sigma = sum((rows - rows.mean(0)).T @ (rows - rows.mean(0)) for rows in groups) / (
        len(x) - len(ids)
    )
    shrunk = 0.8 * sigma + 0.2 * np.trace(sigma) / len(sigma) * np.eye(len(sigma))
    median = np.percentile(pdist(s[ids], "sqeuclidean"), 50, method="lower")
    similarity = np.exp(-cdist(s, s, "sqeuclidean") / (2 * settings["width"] * median))
    k = settings["variance"] * (similarity + settings["nugget"] * np.eye(len(s)))
    gain = np.kron(k[:, ids], shrunk) @ np.linalg.inv(
        np.kron(k[np.ix_(ids, ids)] + np.diag(1 / count), shrunk)
    )
    m = means.mean(0)
    covariance = np.kron(k, shrunk) - gain @ np.kron(k[ids], shrunk)
    return m + (gain @ (means - m).ravel()).reshape(len(s), WIDTH), covariance, shrunk


def test_prototypes_and_scores_are_those_of_a_dense_gaussian_process_over_classes_and_features(
    space,
):
    method, model, x, labels = solved(space, **FIXED)
    mean, covariance, sigma = by_hand(method, x, labels, FIXED)
    np.testing.assert_allclose(
        model["weight"].numpy() @ sigma + model["centre"].numpy(), mean, rtol=1e-9
    )
    blocks = np.einsum("cicj->cij", covariance.reshape(8, WIDTH, 8, WIDTH))
    np.testing.assert_allclose(
        np.multiply.outer(model["variance"].numpy(), sigma), blocks, rtol=1e-6, atol=1e-12
    )
    # and scores are the log-densities of the classes
    scores = method.scores(model, x, method.semantics).numpy()
    densities = np.stack(
        [scipy.stats.multivariate_normal(m, sigma).logpdf(x.numpy()) for m in mean], 1
    )
    np.testing.assert_allclose(
        scores - scores[:, :1], densities - densities[:, :1], rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize("power", [0.75, 1.0])
def test_prototypes_are_brought_to_one_length_under_sigma(space, power):
    """Against distances to the dense process's prototypes, each stretched on its own."""
    settings = {**FIXED, "equalize": power}
    method, model, x, labels = solved(space, **settings)
    mean, _, sigma = by_hand(method, x, labels, settings)
    centre = model["centre"].numpy()
    lengths = np.array([np.sqrt(m @ np.linalg.solve(sigma, m)) for m in mean - centre])
    usual = np.mean([lengths[c] for c in (0, 1, 3, 4)])  # of classes with samples
    stretched = [
        centre + (usual / own) ** power * (m - centre) for m, own in zip(mean, lengths, strict=True)
    ]
    found = method.prototypes(model, method.semantics.double()).numpy() + centre
    np.testing.assert_allclose(found, stretched, rtol=1e-8, atol=1e-10)
    densities = np.stack(
        [scipy.stats.multivariate_normal(m, sigma).logpdf(x.numpy()) for m in stretched], 1
    )
    for scores in (
        method.scores(model, x, method.semantics),
        method.graph_scores(model, x, method.semantics.double()),
        method.answers_of_sums(
            method.statistics(x, labels), x, torch.arange(8), torch.zeros(0).long()
        )[0],
    ):
        scores = scores.numpy()
        np.testing.assert_allclose(
            scores - scores[:, :1], densities - densities[:, :1], rtol=1e-7, atol=1e-7
        )
    if power == 1.0:  # cosines order classes
        whitened = np.linalg.cholesky(np.linalg.inv(sigma))
        rows, ways = (x.numpy() - centre) @ whitened, (mean - centre) @ whitened
        cosines = rows @ (ways / np.linalg.norm(ways, axis=1, keepdims=True)).T
        np.testing.assert_array_equal(scores.argmax(1), cosines.argmax(1))


def test_a_model_without_a_length_keeps_its_own(space):
    """One that an earlier version has saved."""
    _, old, *_ = solved(space, **FIXED)
    method = on(Gaussian, space, (WIDTH,), **{**FIXED, "equalize": 0.75})
    rows = torch.from_numpy(np.random.default_rng(2).normal(size=(4, WIDTH)))
    learned = method.extend(old, method.semantics, *added(8, [5], [rows]))
    plain = on(Gaussian, space, (WIDTH,), **FIXED)
    torch.testing.assert_close(learned, plain.extend(old, method.semantics, *added(8, [5], [rows])))


def test_the_evidence_is_the_density_of_the_class_means_and_its_gradient_that_of_finite_differences(
    space,
):
    method, x, labels = problem(space, **FIXED)
    found = gp.moments(method.statistics(x, labels))
    s = method.semantics.double()[torch.from_numpy(found.classes)]

    def at(shrinkage, *kernel):
        white = gp.whitened(found, shrinkage)
        return gp.evidence(
            gp.Kernel(*kernel),
            white.gram,
            gp.squared_distances(s, s),
            found.count,
            WIDTH,
            white.logdet,
        )

    sigma = 0.6 * found.covariance + 0.4 * found.covariance.trace() / WIDTH * torch.eye(
        WIDTH, dtype=torch.float64
    )
    a = gp.Kernel(2.0, 0.3, 20.0).within(s) + torch.diag(1 / found.count)
    dense = scipy.stats.multivariate_normal(cov=torch.kron(a, sigma).numpy())
    centred = (found.means - found.means.mean(0)).ravel()
    assert at(0.4, 2.0, 0.3, 20.0)[0] == pytest.approx(dense.logpdf(centred.numpy()), rel=1e-10)

    logs = np.log([0.8, 0.2, 30.0])
    _, slopes, curvature = at(0.3, *np.exp(logs))
    for slope, row, step in zip(slopes, curvature, np.eye(3) * 1e-5, strict=True):
        above, below = (at(0.3, *np.exp(moved)) for moved in (logs + step, logs - step))
        assert slope == pytest.approx((above[0] - below[0]) / 2e-5, rel=1e-5)
        np.testing.assert_allclose(row, (above[1] - below[1]) / 2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "fixed", [(None, None, None), (None, 0.1, None), (2.0, None, None), (None, None, 0.2)]
)
def test_another_optimizer_finds_no_kernel_with_more_evidence(space, fixed):
    method, x, labels = problem(space, **FIXED)
    found = gp.moments(method.statistics(x, labels))
    white, s = gp.whitened(found, 0.3), method.semantics.double()[torch.from_numpy(found.classes)]
    median, distances = gp.median_distance(s), gp.squared_distances(s, s)
    free = [i for i, value in enumerate(fixed) if value is None]
    values = np.array([value or 0.5 for value in fixed])

    def lacking(logs):
        values[free] = np.exp(logs)
        kernel = gp.Kernel(*values[:2], values[2] * median)
        value, slope, _ = gp.evidence(
            kernel, white.gram, distances, found.count, WIDTH, white.logdet
        )
        return -value, -slope[free]

    bounds, tight = np.array([(-20, 12), (-12, 3), (-4, 3)])[free], {"ftol": 1e-15, "gtol": 1e-9}
    best = scipy.optimize.minimize(
        lacking, np.log(values[free]), jac=True, bounds=bounds, options=tight
    )
    kernel = gp.fit_kernel(white, s, found.count, fixed)
    logs = np.log([kernel.variance, kernel.nugget, kernel.width / median])
    assert lacking(logs[free])[0] <= best.fun + 1e-6


def test_evidence_finds_what_noise_on_class_means_hides():
    """Means as far apart as 1 / n and v say; a first step from the spread alone ends where v is
    nothing.
    """
    rng, width = np.random.default_rng(0), 1280
    semantics = torch.from_numpy(rng.normal(size=(80, 30)))
    count = torch.from_numpy(rng.uniform(0.6, 0.8, 80))
    real = gp.Kernel(0.3, 1e-4, 0.1 * gp.median_distance(semantics))
    gram = width * (real.within(semantics) + torch.diag(1 / count))
    white = gp.Whitened(0.1, torch.eye(1), 0.0, gram, gram, width)
    best = gp.fit_kernel(white, semantics, count, (None, None, None))
    distances = gp.squared_distances(semantics, semantics)
    found, wanted = (
        gp.evidence(kernel, gram, distances, count, width)[0] for kernel in (best, real)
    )
    assert found == pytest.approx(wanted, abs=1.0)
    assert best.variance * (1 + best.nugget) == pytest.approx(0.3, rel=0.05)


def test_what_is_expected_of_left_out_classes_is_what_samples_of_them_show():
    """Real digits: classes left out, predicted, and tried on samples drawn one by one in all 64
    dimensions.
    """
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    s = torch.from_numpy(
        np.stack([images[labels == c].mean(0) for c in range(10)]) @ rng.normal(size=(64, 6))
    )
    space = ClassSpace(tuple("0123456789"), s.numpy(), tuple("abcdef"), range(10), [], [])
    found = gp.moments(statistics(torch.from_numpy(images), torch.from_numpy(labels), space))
    white = gp.whitened(found, 0.5)
    kernel = gp.fit_kernel(white, s, found.count, (None, None, None))
    expected = gp.leave_class_out(white, s, found.count, kernel, 3, 0.0)
    # slow: sigma, prototypes and samples as they are
    sigma0 = found.covariance.numpy()
    sigma = 0.5 * sigma0 + 0.5 * np.trace(sigma0) / 64 * np.eye(64)
    k, count, mean = kernel.within(s).numpy(), found.count.numpy(), found.means.numpy()
    full = mean.mean(0) + k @ np.linalg.solve(k + np.diag(1 / count), mean - mean.mean(0))
    accuracies = []
    for out in (classes.numpy() for classes, _ in gp._left_out(10, 3)):
        kept = np.setdiff1d(np.arange(10), out)
        m = mean[kept].mean(0)
        p = m + k[:, kept] @ np.linalg.solve(
            k[np.ix_(kept, kept)] + np.diag(1 / count[kept]), mean[kept] - m
        )
        w = np.linalg.solve(sigma, p.T)
        among_out, among_all = np.zeros((2, 10))
        for c in range(10):
            scores = rng.multivariate_normal(full[c], sigma0, size=120) @ w - (p * w.T).sum(1) / 2
            among_out[c] = (out[scores[:, out].argmax(1)] == c).mean()
            scores[:, kept] -= expected.offset
            among_all[c] = (scores.argmax(1) == c).mean()
        accuracies.append((among_out[out].mean(), among_all[out].mean(), among_all[kept].mean()))
    zsl, u, v = 100 * np.mean(accuracies, 0)
    assert (expected.zsl, expected.harmonic) == pytest.approx((zsl, 2 * u * v / (u + v)), abs=1)


def test_scores_of_left_out_classes_are_those_of_prototypes_of_one_length():
    """Real digits: the mean and the covariance of scores, against prototypes as they are."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    s = torch.from_numpy(rng.normal(size=(10, 6)))
    space = ClassSpace(tuple("0123456789"), s.numpy(), tuple("abcdef"), range(10), [], [])
    found = gp.moments(statistics(torch.from_numpy(images), torch.from_numpy(labels), space))
    white = gp.whitened(found, 0.5)
    kernel = gp.Kernel(0.5, 0.1, 20.0)
    cross = kernel.within(s)
    full = gp.posterior(cross, cross, cross.diagonal(), found.count)
    length = gp._usual_length(white, full.weights, 0.75)
    out = torch.tensor([2, 5, 8])
    kept = torch.tensor([0, 1, 3, 4, 6, 7, 9])
    everyone = torch.arange(10)
    mean, factor = gp._scores_of(
        white, cross, found.count, kept, out, full.weights, everyone, length
    )
    sigma0 = found.covariance.numpy()
    inverse = np.linalg.inv(0.5 * sigma0 + 0.5 * np.trace(sigma0) / 64 * np.eye(64))
    k, count, means = cross.numpy(), found.count.numpy(), found.means.numpy()

    def prototypes(ids):
        apart = means[ids] - means[ids].mean(0)
        inner = k[np.ix_(ids, ids)] + np.diag(1 / count[ids])
        return means[ids].mean(0), k[:, ids] @ np.linalg.solve(inner, apart)

    def length_of(rows):
        return np.sqrt(np.einsum("cd,de,ce->c", rows, inverse, rows))[:, None]

    middle, whole = prototypes(np.arange(10))
    usual = length_of(whole).mean()
    centre, apart = prototypes(kept.numpy())
    apart = ((usual / length_of(apart)) ** 0.75 * apart)[out.numpy()]
    weights = apart @ inverse
    wanted = (middle + whole - centre) @ weights.T - (weights * apart).sum(1) / 2
    np.testing.assert_allclose(mean, wanted, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(factor @ factor.T, weights @ sigma0 @ weights.T, rtol=1e-6)


@pytest.mark.parametrize("shrinkage", [0.03, 0.1, 0.5, 1.0])
def test_scores_of_new_samples_spread_as_those_of_samples_that_leave_the_covariance(
    space, shrinkage
):
    """Few samples: those that Sigma_0 follows from lie nearer to their means, by its measure, than
    any others.
    """
    rng, wide, labels = np.random.default_rng(3), 40, np.repeat([0, 1, 3, 4], 15)
    mixing = rng.normal(size=(wide, wide)) / np.sqrt(wide)
    samples = rng.normal(size=(8, wide))[labels] + rng.normal(size=(60, wide)) @ mixing
    found = gp.moments(statistics(torch.from_numpy(samples), torch.from_numpy(labels), space))
    white = gp.whitened(found, shrinkage)
    old, new = (
        one.spread.diagonal().mean().item() for one in (white, gp.with_new_samples(white, found))
    )
    # slow: every sample leaves the covariance, all else as it is
    sigma0, apart = found.covariance.numpy(), (found.means - found.means.mean(0)).numpy()
    level = shrinkage * np.trace(sigma0) / wide * np.eye(wide)
    alone = []
    for row, c in zip(samples, np.searchsorted([0, 1, 3, 4], labels), strict=True):
        residual = row - found.means[c].numpy()
        less = (1 - shrinkage) * (sigma0 - np.outer(residual, residual) / found.freedom) + level
        alone.append(apart @ np.linalg.solve(less, residual))
    assert new == pytest.approx(np.square(alone).sum(0).mean() / found.freedom, rel=0.15)
    # and so do samples that are new
    drawn = rng.normal(size=(4000, wide)) @ mixing
    truth = np.square(np.linalg.solve((1 - shrinkage) * sigma0 + level, apart.T).T @ drawn.T).mean()
    assert abs(new / truth - 1) < 0.35
    assert shrinkage > 0.1 or old < 0.35 * truth


def test_many_samples_are_as_good_as_new_ones(space):
    method, x, labels = problem(space)
    found = gp.moments(method.statistics(x.repeat(3, 1), labels.repeat(3)))
    assert found.freedom > 10 * WIDTH
    white = gp.whitened(found, 0.3)
    assert gp.with_new_samples(white, found) is white


@pytest.mark.parametrize(("lead", "chosen"), [(1.5, 0.3), (2.5, 0.7)])
def test_with_few_samples_the_usual_shrinkage_gives_way_to_a_clearly_better_one_alone(
    space, monkeypatch, lead, chosen
):
    monkeypatch.setattr(
        gp, "zsl_of_left_out", lambda white, *_: 50.0 + lead * (white.shrinkage == 0.7)
    )
    _, model, *_ = solved(space)
    assert model["kernel"][3] == chosen


def test_classes_that_nothing_is_said_of_have_the_shrinkage_of_oracle_approximation():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 25)
    x = rng.standard_normal((100, WIDTH)) @ rng.standard_normal((WIDTH, WIDTH))
    space = ClassSpace(tuple("abcd"), np.eye(4), tuple("abcd"), range(4), [], [])
    method = on(Gaussian, space, (WIDTH,))
    model = method.solve(method.statistics(torch.from_numpy(x), torch.from_numpy(labels)))
    within = x - np.stack([x[labels == c].mean(0) for c in range(4)])[labels]
    _, wanted = oas(within, assume_centered=True)  # takes the samples for the degrees of freedom
    assert float(model["kernel"][3]) == pytest.approx(wanted * 101 / 97)


@pytest.mark.parametrize("change", ["shifted", "scaled", "rotated", "semantics scaled"])
def test_units_change_no_answer(space, change):
    method, model, x, labels = solved(space)
    expected = method.scores(model, x, method.semantics)
    turn = torch.linalg.qr(torch.from_numpy(np.random.default_rng(3).normal(size=(WIDTH, WIDTH))))[
        0
    ]
    y = {"shifted": x + 1000.0, "scaled": x * 255.0, "rotated": x @ turn, "semantics scaled": x}[
        change
    ]
    if change == "semantics scaled":
        method.semantics = method.semantics * 16
    scores = method.scores(method.solve(method.statistics(y, labels)), y, method.semantics)
    apart, wanted = scores - scores[:, :1], expected - expected[:, :1]
    torch.testing.assert_close(apart, wanted, rtol=1e-3, atol=1e-3)


def added(classes, at, rows):
    count, total = (
        torch.zeros(classes, dtype=torch.float64),
        torch.zeros(classes, WIDTH, dtype=torch.float64),
    )
    for c, x in zip(at, rows, strict=True):
        count[c], total[c] = len(x), x.sum(0)
    return count, total


def test_classes_learnt_later_are_as_if_they_had_been_there_at_once_and_learning_nothing_changes_nothing(
    space,
):
    """Against the dense process of all class means, under the covariance and the middle that the
    model has.
    """
    method, model, x, _ = solved(space, **FIXED)
    rng = np.random.default_rng(5)
    new, shown, more = (
        torch.from_numpy(rng.normal(size=size)) for size in ((1, 30), (3, WIDTH), (2, WIDTH))
    )
    semantics = torch.cat([method.semantics, new.float()])  # a description that no one knew
    larger = method.extend(model, semantics, *added(9, [8, 0], [shown, more]))
    s, count = semantics.double().numpy(), np.array([11, 2, 12, 5, 3])
    ids, (first, *others) = [0, 1, 3, 4, 8], x.split([9, 2, 12, 5])
    means = np.stack([rows.mean(0) for rows in (torch.cat([first, more]), *others, shown)])
    k = gp.Kernel(*model["kernel"][:3].tolist()).within(torch.from_numpy(s)).numpy()
    gain = k[:, ids] @ np.linalg.inv(k[np.ix_(ids, ids)] + np.diag(1 / count))
    wanted = gain @ (means - model["centre"].numpy())
    np.testing.assert_allclose(
        larger["weight"] @ torch.linalg.inv(larger["precision"]), wanted, rtol=1e-8, atol=1e-10
    )
    np.testing.assert_allclose(
        larger["variance"], np.diag(k - gain @ k[ids]), rtol=1e-8, atol=1e-12
    )
    np.testing.assert_allclose(method.support(larger | {}, semantics), gain, rtol=1e-8, atol=1e-12)
    once = method.extend(model, method.semantics, *added(8, [5, 6], [shown, more]))
    first = method.extend(model, method.semantics, *added(8, [5], [shown]))
    torch.testing.assert_close(method.extend(first, method.semantics, *added(8, [6], [more])), once)
    torch.testing.assert_close(method.extend(model, method.semantics, *added(8, [], [])), model)
    count, total = added(8, [5, 6], [shown, more])
    draws = method.extend(model, method.semantics, count, torch.stack([total, 3 * total]))
    torch.testing.assert_close(draws["weight"][0], once["weight"])
    torch.testing.assert_close(
        draws["bias"][1], method.extend(model, method.semantics, count, 3 * total)["bias"]
    )


def test_a_class_without_a_description_is_its_examples_drawn_to_the_middle(space):
    method, model, *_ = solved(space, **FIXED)
    rows = torch.from_numpy(np.random.default_rng(2).normal(size=(4, WIDTH)))
    semantics = torch.cat([method.semantics, torch.full((1, 30), torch.nan)])
    larger = method.extend(model, semantics, *added(9, [8], [rows]), np.array([True] * 8 + [False]))
    wanted = (
        3.3 / (3.3 + 1 / 4) * (rows.mean(0) - model["centre"])
    )  # variance * (1 + nugget), and 4 examples
    torch.testing.assert_close(larger["weight"][8] @ torch.linalg.inv(model["precision"]), wanted)
    torch.testing.assert_close(larger["weight"][:8], model["weight"])
    even = model | {"length": torch.tensor([2.0, 1.0]).double()}
    larger = method.extend(even, semantics, *added(9, [8], [rows]), np.array([True] * 8 + [False]))
    squared = wanted @ model["precision"] @ wanted
    torch.testing.assert_close(
        larger["weight"][8] @ torch.linalg.inv(model["precision"]), 2 * wanted / squared.sqrt()
    )
    torch.testing.assert_close(larger["bias"][8], torch.tensor(-2.0).double())


def test_a_class_told_in_scores_is_the_class_of_that_description(space):
    method, model, x, _ = solved(space, equalize=0.75)
    scores = method.scores(model, x, method.semantics)
    longer = torch.cat([method.semantics, method.semantics[5:6], method.semantics[6:7] * 0.5])
    extended = method.scores(model, x, longer)
    torch.testing.assert_close(extended[:, :8], scores)
    torch.testing.assert_close(extended[:, 8], scores[:, 5])
    assert not torch.allclose(extended[:, 9], scores[:, 6])
    torch.testing.assert_close(method.graph_scores(model, x, longer), extended)


def test_seen_classes_are_lowered_by_the_factor_alone(space):
    (_, model, *_), (_, plain, *_) = solved(space, calibration=True), solved(space)
    penalty = plain["bias"] - model["bias"]
    torch.testing.assert_close(penalty[[0, 1, 3, 4]], model["offset"].expand(4))
    assert not penalty[[2, 5, 6, 7]].any()
    assert plain["offset"] == 0


@pytest.mark.parametrize(
    "what", ["few samples", "one each", "constant", "alike", "one class", "equal", "zero", "wide"]
)
def test_poor_data_make_a_model_of_finite_numbers(space, what):
    method, x, labels = problem(space, wide=40 if what == "few samples" else WIDTH)
    if what in ("one each", "one class"):
        rows = [0, 9, 11, 23] if what == "one each" else labels == 3
        x, labels = x[rows], labels[rows]
    elif what == "constant":
        x = torch.cat([x[:, :2], torch.ones(len(x), 3, dtype=x.dtype)], 1)
    elif what == "alike":
        x = torch.stack([x[labels == c][0] for c in labels])
    elif what == "wide":
        x = x * torch.tensor([1e-6, 1.0, 1e6, 1.0, 1.0])
    if what in ("equal", "zero"):
        method.semantics[:] = method.semantics[0].clone() if what == "equal" else 0.0
    model = method.solve(method.statistics(x, labels))
    scores = method.scores(model, x, method.semantics)
    assert all(bool(torch.isfinite(value).all()) for value in (*model.values(), scores))
    if what != "one class":
        seen = sorted(set(labels.tolist()))
        assert (torch.tensor(seen)[scores[:, seen].argmax(1)] == labels).double().mean() > 0.7


def test_what_cannot_be_is_refused_in_one_sentence(space):
    method, model, *_ = solved(space)
    nothing = method.init(np.random.default_rng(0))
    assert (
        message_of(method.solve, nothing)
        == "the sums are of no sample at all: at least one party needs samples"
    )
    refusal = message_of(
        method.extend, model, method.semantics[:3], torch.zeros(3), torch.zeros(3, WIDTH)
    )
    assert refusal.startswith(
        "3 descriptions, 3 counts and sums of shape (3, 5) do not fit a model of 8 classes"
    )
    refusal = message_of(
        method.extend, model, method.semantics, torch.ones(8), torch.full((8, WIDTH), torch.inf)
    )
    assert refusal == "the examples hold numbers that are not finite: leave those out"
    assert message_of(problem, space, error=ExperimentError, prior="semantics") == (
        "method.prior = 'semantics' expects a class's samples at its description, but descriptions "
        "have 30 numbers and samples 5: take both from one model of images and texts, such as "
        "CLIP, or leave method.prior out"
    )


def aligned(classes=30, wide=24):
    """Give classes whose unit-length descriptions lie in the space of their samples, and samples
    (n, d) of each.
    """
    rng = np.random.default_rng(0)
    texts = rng.normal(size=(classes, wide))
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    names, attributes = (
        tuple(f"{what} {i}" for i in range(n)) for what, n in (("class", classes), ("number", wide))
    )
    seen = classes * 2 // 3
    space = ClassSpace(names, texts, attributes, range(seen), [], range(seen, classes))
    labels = np.repeat(np.arange(classes), 40)
    means = 1.0 + texts + 0.2 * rng.normal(size=(classes, wide))
    noise = rng.normal(size=(len(labels), wide)) * np.geomspace(0.05, 1.5, wide)
    x = means[labels] + noise @ np.linalg.qr(rng.normal(size=(wide, wide)))[0]
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return (
        on(Gaussian, space, (wide,), prior="semantics"),
        torch.from_numpy(x),
        torch.from_numpy(labels),
    )


def zero_shot(method, model, x, labels):
    """Return the share of samples of unseen classes that are recognized among those."""
    of = torch.from_numpy(method.space.unseen)
    rows = torch.isin(labels, of)
    answers = of[method.scores(model, x[rows], method.semantics)[:, of].argmax(1)]
    return float((answers == labels[rows]).double().mean())


def test_without_any_sample_the_nearest_text_wins_and_samples_improve_it():
    method, x, labels = aligned()
    nothing = method.solve(method.init(np.random.default_rng(0)))
    cosines = F.normalize(x, dim=1) @ torch.from_numpy(method.space.semantics).T
    assert torch.equal(method.scores(nothing, x, method.semantics).argmax(1), cosines.argmax(1))
    before = zero_shot(method, nothing, x, labels)
    seen = torch.isin(labels, torch.from_numpy(method.space.seen))
    sums = method.statistics(x[seen], labels[seen])
    after = zero_shot(method, method.solve(sums), x, labels)
    plain = on(Gaussian, method.space, backbone=method.backbone)
    assert after > before + 0.1
    assert after > zero_shot(plain, plain.solve(sums), x, labels) + 0.1
    few = seen & (torch.arange(len(x)) % 40 < 2)
    assert (
        zero_shot(method, method.solve(method.statistics(x[few], labels[few])), x, labels) > before
    )


def test_accuracies_of_left_out_classes_do_not_depend_on_what_is_tested_beside():
    method, x, labels = aligned(classes=12)
    sums = method.statistics(x, labels)
    model = method.solve(sums)
    none, few = ((method.quick(model), model, shots) for shots in (0, SHOTS))
    both = left_out_accuracy([few, none, none], sums)
    alone = np.concatenate([left_out_accuracy([one], sums) for one in (few, none, none)])
    np.testing.assert_allclose(
        both, alone, atol=1.3
    )  # an answer of 80, where products round by their shape
    assert both[0].mean() > both[1].mean() + 3
    assert estimates(method, sums, model)["left_out_accuracy"].keys() == {"0", str(SHOTS)}


def test_prototypes_from_texts_are_those_of_a_dense_process_around_them():
    """Prior means by a slope that numpy's least squares finds; the rest conditioned class by class,
    not whitened.
    """
    method, x, labels = aligned(classes=12)
    method.settings = Gaussian.Settings(prior="semantics", **FIXED)
    shown = torch.isin(labels, torch.tensor([0, 1, 4, 7, 9]))
    model = method.solve(method.statistics(x[shown], labels[shown]))
    ids, s = [0, 1, 4, 7, 9], method.semantics.double().numpy()
    means = np.stack([x[labels == c].mean(0).numpy() for c in ids])
    centred, apart = s[ids] - s[ids].mean(0), means - means.mean(0)
    slope = np.linalg.lstsq(centred.reshape(-1, 1), apart.reshape(-1), rcond=None)[0].item()
    assert float(model["slope"]) == pytest.approx(slope, rel=1e-9)
    prior = means.mean(0) + slope * (s - s[ids].mean(0))
    k = gp.Kernel(*model["kernel"][:3].tolist()).within(torch.from_numpy(s)).numpy()
    wanted = prior + k[:, ids] @ np.linalg.solve(
        k[np.ix_(ids, ids)] + np.eye(5) / 40, means - prior[ids]
    )
    found = model["weight"] @ torch.linalg.inv(model["precision"]) + model["centre"]
    np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-10)
    extended = method.scores(model, x[:5], torch.cat([method.semantics, method.semantics[2:3] + 0]))
    torch.testing.assert_close(extended[:, 12], extended[:, 2])


@pytest.mark.parametrize(("texts", "equalize"), [(False, 0.0), (False, 0.75), (True, 0.0)])
def test_left_out_classes_are_scored_as_if_sums_were_solved_without_them(texts, equalize):
    """But for a factor: Sigma is taken over."""
    method, x, labels = aligned()
    if not texts:
        method = on(Gaussian, method.space, backbone=method.backbone, equalize=equalize)
    sums = method.statistics(x, labels)
    model = method.solve(sums)
    quick, out = method.quick(model), torch.tensor([3, 7, 8])
    count = sums["count"].clone()
    count[out] = 0.0
    spread, means = scatter(sums), sums["total"] / sums["count"][:, None]
    less = {**sums, "count": count, "total": means * count[:, None]}
    less["square"] = 0.9 * spread + less["total"].T @ means
    fast, slow = (
        kind.left_out_scores(quick, model, less, x.float(), out) for kind in (Gaussian, ClosedForm)
    )
    factor = 0.9 * (len(x) - len(sums["count"])) / (float(count.sum()) - len(count) + len(out))
    torch.testing.assert_close(
        fast - fast.mean(1, keepdim=True), factor * (slow - slow.mean(1, keepdim=True))
    )
    few = torch.cat([torch.nonzero(labels == c)[: 5 if c in out else None, 0] for c in range(12)])
    shown = method.statistics(x[few], labels[few])
    fast, slow = (
        kind.left_out_scores(quick, model, shown, x.float(), out) for kind in (Gaussian, ClosedForm)
    )
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10 * float(slow.abs().max()))


@pytest.mark.parametrize(("texts", "equalize"), [(False, 0.0), (False, 0.75), (True, 0.0)])
def test_a_score_is_the_sum_of_what_each_observed_class_speaks_for_it(texts, equalize):
    method, x, labels = aligned()
    if not texts:
        method = on(
            Gaussian, method.space, backbone=method.backbone, equalize=equalize, calibration=True
        )
    seen = torch.isin(labels, torch.from_numpy(method.space.seen))
    model = method.solve(method.statistics(x[seen], labels[seen]))
    asked = torch.arange(len(x)) % len(method.space.names)
    parts, own = method.evidence(model, x, method.semantics, asked)
    assert parts.shape == (len(x), len(method.space.seen))
    scores = method.scores(model, x, method.semantics) + model["offset"] * model["seen_mask"]
    torch.testing.assert_close(
        parts.sum(1) + own, scores[torch.arange(len(x)), asked], rtol=1e-9, atol=1e-9
    )
    assert (float(own.abs().max()) > 1e-6) == texts


def test_distances_are_those_to_the_nearest_prototype_under_sigma(space):
    method, model, x, _ = solved(space, **FIXED, calibration=True)
    sigma = torch.linalg.inv(model["precision"])
    prototypes = model["weight"] @ sigma + model["centre"]
    apart = x[:, None] - prototypes[None]
    wanted = torch.einsum("ncd,de,nce->nc", apart, model["precision"], apart).amin(1)
    found = method.distances(model, x, method.semantics)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)


def alone(classes=7, **settings):
    """Return a method whose classes are described by themselves alone, and sums of all but one."""
    rng = np.random.default_rng(3)
    names = tuple(f"c{c}" for c in range(classes))
    seen = np.arange(classes - 1)
    space = ClassSpace(names, np.eye(classes), names, seen, [], [classes - 1])
    labels = torch.from_numpy(np.repeat(seen, 2 + seen))
    x = 2 * rng.normal(size=(classes, WIDTH))[labels] + rng.normal(size=(len(labels), WIDTH))
    method = on(Gaussian, space, (WIDTH,), **settings)
    return method, method.statistics(torch.from_numpy(x), labels)


def densely(method, sums):
    """Solve as if descriptions said something."""
    method.__dict__["says_nothing"] = False
    return method.solve(sums)


@pytest.mark.parametrize("width", [0.02, 0.7, 30.0])
def test_classes_that_say_nothing_of_each_other_are_solved_one_by_one(width):
    settings = {**FIXED, "width": width}
    quick = alone(**settings)
    model, dense = quick[0].solve(quick[1]), densely(*alone(**settings))
    assert "length" not in model
    assert model.keys() == dense.keys()
    for name, value in dense.items():
        torch.testing.assert_close(model[name], value, rtol=1e-7, atol=1e-10, msg=name)


def test_the_variance_of_classes_that_say_nothing_has_the_greatest_evidence():
    method, sums = alone(shrinkage=0.2)
    kernel = gp.Kernel.of(method.solve(sums))
    found = gp.moments(sums)
    white = gp.whitened(found, 0.2)
    distances = 2.0 - 2.0 * torch.eye(len(found.count), dtype=torch.float64)

    def height(v):
        part = gp.Kernel(v, 0.0, kernel.width)
        return gp.evidence(part, white.gram, distances, found.count, WIDTH)[0]

    tried = [height(kernel.variance * factor) for factor in np.geomspace(0.1, 10, 41)]
    assert height(kernel.variance) >= max(tried)


def test_many_classes_are_solved_as_few_are(monkeypatch):
    table = np.random.default_rng(0).normal(size=(60, 3))
    names = tuple(f"c{c}" for c in range(60))
    space = ClassSpace(names, table, tuple("abc"), np.arange(40), [], np.arange(40, 60))
    labels = torch.arange(200) % 40
    drawn = np.random.default_rng(1).normal(size=(203, WIDTH))
    x = torch.from_numpy(table[labels] @ drawn[:3] + 0.3 * drawn[3:])
    method = on(Gaussian, space, (WIDTH,), **FIXED)
    sums = method.statistics(x, labels)
    few = method.solve(sums)
    asked = torch.from_numpy(np.random.default_rng(2).normal(size=(50, 3)))
    described = method.describe(few, asked)
    monkeypatch.setattr(gp, "MANY", 45)
    monkeypatch.setattr("fedunseen.methods.closed_form.gaussian._ROWS", 7)
    for part, whole in zip(method.describe(few, asked), described, strict=True):
        torch.testing.assert_close(part, whole)
    monkeypatch.setattr(gp, "MANY", 30)
    # settings are relative to the median distance, here of all classes too
    monkeypatch.setattr(gp, "spread_over", torch.arange)
    many = method.solve(sums)
    for name, value in few.items():
        if name != "variance":
            torch.testing.assert_close(many[name], value, msg=name)
    torch.testing.assert_close(many["variance"][40:], few["variance"][40:])
    assert (many["variance"][:40] >= few["variance"][:40]).all()
    assert (many["variance"][:40] < 0.2).all()  # five samples say more


def test_what_is_left_out_of_many_classes_is_a_spread_of_them(monkeypatch):
    method, model, sums = left_out_problem()
    whole = estimates(method, sums, model)["left_out_accuracy"]["0"]
    monkeypatch.setattr("fedunseen.methods.closed_form.left_out.MANY", 20)
    monkeypatch.setattr(
        "fedunseen.methods.closed_form.left_out.spread_over", lambda n: torch.arange(0, n, 2)
    )
    part = estimates(method, sums, model)["left_out_accuracy"]["0"]
    assert part != whole
    assert abs(part - whole) < 15


def left_out_problem():
    x, labels, space = aligned_samples()
    method = on(Gaussian, space, (24,))
    sums = method.statistics(x, labels)
    return method, method.solve(sums), sums


def aligned_samples():
    """Return samples (n, 24) of 30 seen classes whose descriptions tell where they lie."""
    rng = np.random.default_rng(5)
    table = rng.normal(size=(34, 6))
    names = tuple(f"c{c}" for c in range(34))
    space = ClassSpace(names, table, tuple("abcdef"), np.arange(30), [], np.arange(30, 34))
    labels = torch.arange(600) % 30
    x = table[labels] @ rng.normal(size=(6, 24)) + 6 * rng.normal(size=(600, 24))
    return torch.from_numpy(x), labels, space
