import numpy as np
import pytest
import scipy.io
from sklearn.covariance import graphical_lasso

from fedunseen.core import class_similarity as module
from fedunseen.core.class_similarity import class_similarity, correlation, duality_gap

pytestmark = pytest.mark.filterwarnings("error::UserWarning", "error::RuntimeWarning")
NOT_CONVERGED = (
    "the graphical lasso did not converge for these 12 classes: their similarities may be off by "
    "up to method.alpha = 0.05 from those of the paper; set a larger one"
)


@pytest.fixture(autouse=True)
def nothing_shared(own_cache):
    (own_cache / "class-similarity").unlink()


def semantics(classes=6, attributes=40, seed=0):
    return np.random.default_rng(seed).normal(size=(classes, attributes))


def test_correlation_is_the_cosine_of_centred_rows_and_0_of_constant_ones():
    rows = semantics()
    centred = rows - rows.mean(1, keepdims=True)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    np.testing.assert_allclose(correlation(rows), unit @ unit.T, atol=1e-12)
    assert (np.diag(correlation(rows)) == 1).all()
    rows[3] = 0.7
    others = np.arange(6) != 3
    expected = np.eye(6)
    expected[np.ix_(others, others)] = (unit @ unit.T)[np.ix_(others, others)]
    np.testing.assert_allclose(correlation(rows), expected, atol=1e-12)
    np.testing.assert_array_equal(correlation(np.ones((3, 4))), np.eye(3))
    gamma = class_similarity(rows, 0.01)
    np.testing.assert_allclose(gamma[3], expected[3], atol=1e-12)  # alone, whatever the others are


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("attributes", [40, 4])  # of 4, the correlation of 12 classes is singular
def test_gamma_solves_equation_4(alpha, attributes):
    """Its subgradient vanishes: Gamma - S is alpha times the sign of Theta, or below alpha where
    Theta is 0.
    """
    rows = semantics(12, attributes)
    gamma, s = class_similarity(rows, alpha), correlation(rows)
    assert (class_similarity(rows, alpha) == gamma).all()  # from the cache
    np.testing.assert_allclose(gamma, gamma.T, atol=1e-10)
    np.testing.assert_allclose(np.diag(gamma), 1)
    assert np.linalg.eigvalsh(gamma).min() > 0
    theta, off = np.linalg.inv(gamma), ~np.eye(len(s), dtype=bool)
    assert (np.abs(gamma - s)[off] <= alpha * (1 + 1e-9)).all()
    linked = off & (np.abs(theta) > 1e-3 * np.abs(theta).max())
    assert linked.any()
    np.testing.assert_allclose((gamma - s)[linked], alpha * np.sign(theta[linked]), rtol=1e-3)
    assert 0 <= duality_gap(gamma, s, alpha) < 1e-3


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_gamma_is_that_of_scikit_learn_where_it_converges(alpha):
    rows = semantics(12)
    theirs, _ = graphical_lasso(correlation(rows), alpha=alpha, tol=1e-8, enet_tol=1e-10)
    np.testing.assert_allclose(class_similarity(rows, alpha), theirs, atol=1e-5)


def test_the_gap_is_that_of_the_objective_and_tells_the_optimum_from_s():
    """By a slow reference: the objective at an answer minus the objective at the optimum."""
    alpha, s = 0.1, correlation(semantics(6))
    off = ~np.eye(6, dtype=bool)

    def objective(gamma):
        theta = np.linalg.inv(gamma)
        return (s * theta).sum() - np.linalg.slogdet(theta)[1] + alpha * np.abs(theta[off]).sum()

    best = class_similarity(semantics(6), alpha)
    assert duality_gap(best, s, alpha) < 1e-4
    gap = duality_gap(s, s, alpha)  # S keeps to the bounds, and is not the optimum
    assert 0.1 < objective(s) - objective(best) <= gap
    assert gap == pytest.approx(alpha * np.abs(np.linalg.inv(s)[off]).sum())


@pytest.mark.parametrize(
    ("place", "difference"),
    [((0, 1), 0.011), ((0, 1), -0.011), ((2, 2), 0.001), ((0, 1), np.nan), ((2, 2), np.inf)],
)
def test_an_answer_that_leaves_the_bounds_is_none(place, difference):
    s = correlation(semantics())
    gamma = s.copy()
    gamma[place] += difference
    assert duality_gap(gamma, s, 0.01) == np.inf
    assert (s == correlation(semantics())).all()  # neither argument is changed


def test_the_second_call_reads_the_cache_and_a_damaged_one_is_made_again(monkeypatch, own_cache):
    first = class_similarity(semantics())
    with monkeypatch.context() as patch:
        patch.setattr(module, "_by_multipliers", lambda s, alpha: pytest.fail("solved again"))
        assert (class_similarity(semantics()) == first).all()
    (path,) = own_cache.rglob("*.safetensors")
    assert path.parent == own_cache / "class-similarity"
    whole = path.read_bytes()
    # at last the cache is no folder: it cannot be written, which does no harm
    for content, cache in (
        (b"", own_cache),
        (b"not safetensors", own_cache),
        (whole[:-7], own_cache),
        (whole, path),
    ):
        path.write_bytes(content)
        monkeypatch.setenv("FEDUNSEEN_CACHE", str(cache))
        assert (class_similarity(semantics()) == first).all()
        assert path.read_bytes() == whole


def test_an_answer_that_did_not_converge_is_warned_of_at_each_call(monkeypatch):
    monkeypatch.setattr(module, "_STEPS", 2)
    for _ in range(2):  # the second time from the cache
        with pytest.warns(UserWarning, match="graphical lasso") as caught:
            class_similarity(semantics(12, 4), 0.05)
        assert [str(w.message) for w in caught] == [NOT_CONVERGED]


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["AWA2", "APY", "CUB"])
def test_real_class_spaces(real_data, dataset):
    """At the papers' alpha of 0.01, where S itself would keep to the bounds as well."""
    rows = scipy.io.loadmat(real_data / "xlsa17_splits_only" / dataset / "att_splits.mat")["att"].T
    s, gamma = np.corrcoef(rows), class_similarity(rows)
    assert duality_gap(gamma, s, 0.01) < 1e-4 * len(s)
    assert duality_gap(s + 1e-9 * np.eye(len(s)), s, 0.01) > 0.1 * len(s)
