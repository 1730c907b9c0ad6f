import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist
from scipy.special import rel_entr, softmax

from fedunseen import Experiment, run
from fedunseen.core.errors import ExperimentError
from fedunseen.research.papers.distzsl import theory
from fedunseen.research.papers.distzsl.theory import Client, measure

SEEDS = st.integers(0, 2**32 - 1)


def federation(seed, tau=10.0, clients=4, n=30, classes=6, spread=5.0):
    """Logits of clients that hold different numbers of samples of different classes."""
    rng = np.random.default_rng(seed)
    gamma = np.corrcoef(rng.normal(size=(classes, 4)))
    labels = rng.integers(0, classes, n)
    made = []
    for k in range(clients):
        samples, own_logits = int(rng.integers(1, 50)), spread * rng.normal(size=(7, classes))
        own_labels, logits = rng.integers(0, classes, 7), spread * rng.normal(size=(n, classes))
        made.append(Client(k, samples, own_logits, own_labels, logits + rng.normal(size=classes)))
    merged = np.mean([one.logits for one in made], axis=0) + rng.normal(size=(n, classes))
    return made, merged, labels, gamma, tau


def test_alignment_agrees_with_scipy():
    clients, merged, labels, gamma, tau = federation(0, tau=2.0)
    found = theory.alignment(clients, merged, labels, gamma, tau)
    p, single, target = (
        softmax(np.array(z) / tau, axis=-1) for z in ([c.logits for c in clients], merged, gamma)
    )
    common = target[labels]

    def kl(rows, of):
        return rel_entr(rows, of).sum(-1)

    def apart(rows, others, bound):
        away = np.abs(rows - others).sum(-1)
        return {"bound": bound, "observed": away.mean(), "over": (away > bound).mean()}

    own = [
        tau**2 * kl(target[c.own_labels], softmax(c.own_logits / tau, axis=1)).mean()
        for c in clients
    ]
    errors = [tau**2 * kl(common, rows).mean() for rows in p]
    for k, row in enumerate(found["clients"]):
        expected = {
            "epsilon_own": own[k],
            "epsilon_common": errors[k],
            "samples": clients[k].samples,
            "client": k,
        }
        assert row == pytest.approx(expected | apart(p[k], common, np.sqrt(2 * errors[k]) / tau))
    for pair, (j, k) in zip(
        found["pairs"], ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)), strict=True
    ):
        assert pair.pop("clients") == [j, k]
        bound, of_own = ((np.sqrt(2 * of[j]) + np.sqrt(2 * of[k])) / tau for of in (errors, own))
        assert pair == pytest.approx({"bound_own": of_own, **apart(p[j], p[k], bound)})
    weights = np.array([c.samples for c in clients]) / sum(c.samples for c in clients)
    mixed = np.tensordot(weights, p, axes=1)
    clients_kl, xi = weights @ kl(p, common[None]).mean(1), np.abs(single - mixed).sum(-1).mean()
    server = [kl(mixed, common).mean(), clients_kl, kl(single, common).mean(), xi]
    assert [
        found["server"][name] for name in ("mixture", "clients", "merged", "xi")
    ] == pytest.approx(server)
    assert found["server"]["bound"] == pytest.approx(clients_kl + found["server"]["constant"] * xi)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from([0.5, 1.0, 3.0, 10.0]), st.floats(0.01, 20))
def test_what_is_proven_of_clients_and_server_always_holds(seed, tau, spread):
    found = theory.alignment(*federation(seed, tau, spread=spread))
    assert all(one["observed"] <= one["bound"] * (1 + 1e-9) for one in found["clients"])  # Eq. 29
    assert all(
        pair["observed"] <= pair["bound"] * (1 + 1e-9) for pair in found["pairs"]
    )  # Eq. 14, in the mean
    server = found["server"]
    assert server["holds_15"] == server["holds_16"] == 1.0
    assert server["mixture"] <= server["clients"] * (1 + 1e-9)
    assert server["merged"] <= server["bound"] + 1e-9


def test_the_constant_of_eq_38_as_printed_is_no_bound():
    r, s, q = (np.log([row]) for row in ([0.9, 0.1], [0.8, 0.2], [0.1, 0.9]))
    printed, proven = theory.lipschitz_of_divergence(r, s, q)
    assert (printed, proven) == pytest.approx((1, 1 + math.log(9)))
    change = float(theory.divergence(r, q)[0] - theory.divergence(s, q)[0])
    apart = float(theory.distance(np.exp(r), np.exp(s))[0])
    assert change > printed * apart
    assert change <= proven * apart


def test_distributions_far_beyond_the_smallest_number_stay_finite():
    found = theory.alignment(*federation(3, tau=0.5, spread=3000.0))
    assert all(np.isfinite(value) for value in found["server"].values())
    assert found["server"]["holds_15"] == 1.0


def problem(seed, n=40, classes=5, a=4, d=7, kind="linear", noise=0.3):
    rng = np.random.default_rng(seed)
    prototypes = rng.normal(size=(classes, a))
    prototypes /= np.linalg.norm(prototypes, axis=1, keepdims=True)
    labels = rng.integers(0, classes, n)
    predicted = prototypes[labels] + noise * rng.normal(size=(n, a))
    matrix, shift = rng.normal(size=(d, a)), rng.normal(size=d)

    def decode(rows):
        out = rows @ matrix.T + shift
        return out if kind == "linear" else np.tanh(out)

    visual = decode(predicted) + noise * rng.normal(size=(n, d))
    return decode, predicted, visual, prototypes, labels


def test_decoder_agrees_with_scipy():
    decode, predicted, visual, prototypes, labels = problem(0, n=12)
    found, epsilon = theory.decoder(decode, predicted, visual, prototypes, labels)
    points = np.concatenate([predicted, prototypes])
    ratios = pdist(decode(points)) / pdist(points)
    rebuilt, anchors = (
        np.linalg.norm(decode(rows) - visual, axis=1) for rows in (predicted, prototypes[labels])
    )
    expected = (ratios.min(), ratios.max(), rebuilt.max())
    assert (found["c_h"], found["L_h"], found["delta"]) == pytest.approx(expected)
    np.testing.assert_allclose(epsilon, anchors)
    assert found["lemma_3_says_something"] == pytest.approx(
        (pdist(visual) > 2 * found["delta"]).mean()
    )


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from(["linear", "curved"]), st.floats(0, 3), st.integers(1, 9))
@example(7, "linear", 5e-19, 1)  # samples that differ from their prototypes by rounding alone
def test_lemmas_3_and_4_hold_with_the_measured_uniform_constants(seed, kind, noise, d):
    found, _ = theory.decoder(*problem(seed, kind=kind, noise=noise, d=d))
    assert found["lemma_3_holds"] == found["lemma_4_holds"] == 1.0


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.floats(0, 0.6), st.integers(2, 8), st.integers(2, 8))
def test_whenever_a_condition_holds_the_answer_is_right(seed, noise, classes, a):
    drawn = problem(seed, noise=noise, classes=classes, a=a, d=a + 1)
    _, predicted, _, prototypes, labels = drawn
    answers, found = (predicted @ prototypes.T).argmax(axis=1), theory.decoder(*drawn)
    names = [f"class {c}" for c in range(classes)]
    records = theory.class_margins(
        predicted, labels, prototypes, np.arange(classes), names, answers, found
    )
    room = theory.margins(np.linalg.norm(prototypes[:, None] - prototypes[None], axis=2))[2][labels]
    right, near = answers == labels, np.linalg.norm(predicted - prototypes[labels], axis=1) < room
    margin = found[0]["delta"] + found[1] < found[0]["c_h"] * room
    assert right[margin].all()  # Theorem 5
    assert right[near].all()  # Eq. 61
    assert near[margin].all()  # Lemma 4: Eq. 20 is the stronger demand
    for record in records:
        mine = labels == record["class"]
        expected = (100 * right[mine].mean(), margin[mine].mean(), near[mine].mean())
        assert (record["accuracy"], record["eq_20"], record["eq_61"]) == pytest.approx(expected)
    assert [r["accuracy"] for r in records] == sorted(r["accuracy"] for r in records)


def test_classes_that_may_not_be_answered_do_not_count():
    prototypes, names = (
        np.array([[1.0, 0.0], [0.0, 1.0], [0.98, math.sqrt(1 - 0.98**2)]]),
        ["a", "b", "c"],
    )
    two, three = (
        theory.class_margins(
            prototypes[:2], np.arange(2), prototypes, np.arange(count), names, np.arange(2)
        )[0]
        for count in (2, 3)
    )
    assert (two["nearest"], three["nearest"]) == ("b", "c")
    assert three["room"] < two["room"] == pytest.approx(math.sqrt(2) / 2)


def test_prototypes_of_one_length_stay_as_they_are():
    unit = np.array([[1.0, 0.0], [0.6, 0.8]])
    for scale in (1.0, math.sqrt(2)):
        same, already = theory.common_length(scale * unit)
        assert already
        np.testing.assert_array_equal(same, scale * unit)
    made, already = theory.common_length(np.array([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]]))
    assert not already
    lengths = np.linalg.norm(made, axis=1)
    assert lengths[:2] == pytest.approx([math.sqrt(25 / 3)] * 2)
    assert lengths[2] == 0


@pytest.mark.slow
def test_the_class_accuracies_of_a_run_are_its_own_and_what_is_proven_holds(tmp_path):
    few = {
        "data.train_per_class": 10,
        "data.test_per_class": 6,
        "method.hidden": [32],
        "strategy.rounds": 2,
    }
    few |= {
        "evaluation.selection": "last",
        "evaluation.embedding": False,
        "evaluation.calibration": "none",
    }
    done = run(
        Experiment.load("digit-pairs", {**few, "method.kl": 0.0, "method.consistency": 0.1}),
        tmp_path / "run",
    )
    found = measure(done)
    assert found == measure(done)
    assert found["decoder"]["lemma_3_holds"] == found["decoder"]["lemma_4_holds"] == 1.0
    assert found["alignment"]["server"]["holds_15"] == 1.0
    assert len(found["alignment"]["pairs"]) == 45
    unseen = found["unseen"]["classes"]
    assert np.mean([one["accuracy"] for one in unseen]) == pytest.approx(done.result["zsl"])
    of_all = {one["name"]: one["accuracy"] for one in found["all"]["classes"]}
    assert np.mean([of_all[one["name"]] for one in unseen]) == pytest.approx(
        done.result["gzsl_unseen"]
    )


@pytest.mark.slow
def test_a_method_without_predicted_attributes_has_no_theory(tmp_path):
    few = {"data.train_per_class": 4, "data.test_per_class": 2, "evaluation.selection": "last"}
    done = run(Experiment.load("digit-pairs-gaussian", few), tmp_path / "run")
    with pytest.raises(ExperimentError, match="gaussian"):
        measure(done)
