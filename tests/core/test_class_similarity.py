import numpy as np
import pytest
import scipy.io

from fedunseen.core import class_similarity as module
from fedunseen.core.class_similarity import class_similarity, correlation, is_optimal_covariance
from refusals import message_of

pytestmark = pytest.mark.filterwarnings("error::UserWarning", "error::RuntimeWarning")
FALLS_BACK = (
    "the graphical lasso found no optimum for these 5 classes: their correlation is used instead, "
    "no entry of it off by more than method.alpha = 0.005; only an alpha above 0.01 changes that"
)


@pytest.fixture(autouse=True)
def nothing_shared(own_cache):
    (own_cache / "class-similarity").unlink()


def semantics(classes=6, attributes=40, seed=0):
    return np.random.default_rng(seed).normal(size=(classes, attributes))


def test_correlation_is_the_cosine_of_centred_rows_and_constant_ones_are_refused():
    rows = semantics()
    centred = rows - rows.mean(1, keepdims=True)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    np.testing.assert_allclose(correlation(rows), unit @ unit.T, atol=1e-12)
    assert (np.diag(correlation(rows)) == 1).all()
    rows[3] = 0.7
    assert message_of(class_similarity, rows) == (
        "class number 3 has the same value for every attribute, so that it is similar to no class: "
        "give it semantics that differ, or switch off the loss that compares classes with "
        "method.kl = 0"
    )


@pytest.mark.parametrize(
    ("alpha", "solver_fails"), [(0.01, False), (0.1, False), (0.05, True), (0.2, True)]
)
def test_gamma_solves_equation_4_even_if_the_solver_fails(monkeypatch, alpha, solver_fails):
    """Its subgradient vanishes: Gamma - S is alpha times the sign of Theta, or below alpha where
    Theta is 0.
    """
    rows = semantics()
    if solver_fails:
        rows = semantics(12, 4)  # a singular correlation
        monkeypatch.setattr(module, "_solve", lambda s, alpha: None)
    gamma, s = class_similarity(rows, alpha), correlation(rows)
    assert (class_similarity(rows, alpha) == gamma).all()  # from the cache
    np.testing.assert_allclose(gamma, gamma.T, atol=1e-10)
    np.testing.assert_allclose(np.diag(gamma), 1)
    assert np.linalg.eigvalsh(gamma).min() > 0
    theta, off = np.linalg.inv(gamma), ~np.eye(len(s), dtype=bool)
    near, most = (1e-3, 1e-9) if solver_fails else (0.05, 0.05)
    assert (np.abs(gamma - s)[off] <= alpha * (1 + most)).all()
    linked = off & (np.abs(theta) > 1e-3 * np.abs(theta).max())
    assert linked.any()
    np.testing.assert_allclose((gamma - s)[linked], alpha * np.sign(theta[linked]), rtol=near)


@pytest.mark.parametrize(
    ("place", "difference", "answer"),
    [
        ((0, 1), 0, True), ((0, 1), 0.0099, True), ((0, 1), -0.0099, True), ((0, 1), 0.011, False),
        ((0, 1), -0.011, False), ((2, 2), 0.001, False), ((0, 1), np.nan, False), ((2, 2), np.inf, False),
    ],
)  # fmt: skip
def test_an_answer_is_accepted_within_alpha_of_s_and_with_its_diagonal(place, difference, answer):
    s = correlation(semantics())
    gamma = s.copy()
    gamma[place] += difference
    assert is_optimal_covariance(gamma, s, 0.01) is answer
    assert (s == correlation(semantics())).all()  # neither argument is changed


def test_the_second_call_reads_the_cache_and_a_damaged_one_is_made_again(monkeypatch, own_cache):
    first = class_similarity(semantics())
    with monkeypatch.context() as patch:
        patch.setattr(
            "sklearn.covariance.graphical_lasso",
            lambda *args, **settings: pytest.fail("solved again"),
        )
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


@pytest.mark.parametrize("answer", ["far", "nan", "error"])
def test_where_the_solver_fails_s_is_taken_and_a_smaller_alpha_warned_of_at_each_call(
    monkeypatch, answer
):
    calls = []

    def solver(s, alpha, **settings):
        calls.append(settings)
        if answer == "error":
            raise FloatingPointError("Non SPD result")
        return s + (np.nan if answer == "nan" else 0.5), np.linalg.inv(s)

    monkeypatch.setattr("sklearn.covariance.graphical_lasso", solver)
    rows = semantics(5)
    for _ in range(2):  # the second time from the cache
        with pytest.warns(UserWarning, match="graphical lasso") as caught:
            gamma = class_similarity(rows, 0.005)
        assert [str(w.message) for w in caught] == [FALLS_BACK]
        assert (gamma == correlation(rows)).all()
    assert calls == [{}, {"enet_tol": 1e-8, "max_iter": 200}]
    # 0.01 is the papers', and as close as S is: nothing was lost, and nothing is warned of
    assert (class_similarity(rows, 0.01) == correlation(rows)).all()


@pytest.mark.slow
@pytest.mark.parametrize(("dataset", "solved"), [("AWA2", True), ("APY", False), ("CUB", False)])
def test_real_class_spaces(real_data, dataset, solved):
    rows = scipy.io.loadmat(real_data / "xlsa17_splits_only" / dataset / "att_splits.mat")["att"].T
    s, gamma = (
        np.corrcoef(rows),
        class_similarity(rows),
    )  # without a warning: S is as near as was asked
    assert np.abs(np.diag(gamma) - 1).max() < 1e-6
    assert np.abs(gamma - s).max() <= 0.0101 + 1e-6
    if solved:
        assert np.abs(gamma - s).max() > 0.005  # it is the lasso's answer, not S itself
        assert np.corrcoef(gamma.ravel(), s.ravel())[0, 1] > 0.999
    else:
        np.testing.assert_allclose(gamma, s, atol=1e-12)
