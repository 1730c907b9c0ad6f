"""How far parties move the means of each other's classes: against means computed one by one."""

import numpy as np
import pytest
import torch

from fedunseen.methods.closed_form.influence import influence
from fedunseen.methods.closed_form.statistics import packed

CLASSES, WIDTH = 4, 16


def sums(rows, labels):
    """Return the statistics of samples, without quantization."""
    count = np.bincount(labels, minlength=CLASSES).astype(np.float64)
    total = np.zeros((CLASSES, WIDTH))
    np.add.at(total, labels, rows)
    square = packed(torch.from_numpy(rows.T @ rows))
    return {"count": torch.from_numpy(count), "total": torch.from_numpy(total), "square": square}


def party(rng, counts, shift=0.0):
    """Return a party's samples; the class means are one-hot times 3, moved by ``shift``."""
    labels = np.repeat(np.arange(CLASSES), counts)
    means = 3 * np.eye(CLASSES, WIDTH)
    return means[labels] + shift + rng.standard_normal((len(labels), WIDTH)), labels


def test_means_move_by_what_they_are_with_and_without_a_party():
    rng = np.random.default_rng(0)
    given = {
        0: party(rng, [30, 20, 0, 5]),
        3: party(rng, [3, 20, 9, 0]),
        5: party(rng, [9, 0, 0, 0]),
    }
    found = influence({k: sums(*one) for k, one in given.items()}, None)
    own = []
    for rows, labels in given.values():
        means = np.stack([rows[labels == c].mean(0) if (labels == c).any() else 0 * rows[0]
                          for c in range(CLASSES)])  # fmt: skip
        own.append(((rows - means[labels]) ** 2).sum() / (len(rows) - len(np.unique(labels))))
    deviation = np.median(own) ** 0.5
    assert found["deviation"] == pytest.approx(deviation, rel=1e-3)
    together = [np.concatenate(some) for some in zip(*given.values(), strict=True)]
    assert [one["client"] for one in found["clients"]] == [0, 3, 5]
    for one in found["clients"]:
        left = [k for k in given if k != one["client"]]
        rows, labels = (np.concatenate([given[k][i] for k in left]) for i in (0, 1))
        assert one["share"] == pytest.approx(
            len(given[one["client"]][1]) / len(together[1]), rel=1e-3
        )
        for c, moved in zip(one["classes"], one["moved"], strict=True):
            whole = together[0][together[1] == c].mean(0)
            assert moved == pytest.approx(
                np.linalg.norm(whole - rows[labels == c].mean(0)) / deviation, rel=1e-3
            )
    assert {one["client"]: sorted(one["classes"]) for one in found["clients"]} == {
        0: [0, 1], 3: [0, 1], 5: [0],
    }  # fmt: skip
    assert found["conspicuous"] == []


def test_chance_moves_means_about_as_far_as_it_should():
    rng = np.random.default_rng(1)
    ratios = []
    for _ in range(20):
        given = {k: sums(*party(rng, [40, 10, 3, 1])) for k in range(5)}
        ratios += [r for one in influence(given, None)["clients"] for r in one["ratio"]]
    assert np.mean(np.square(ratios)) == pytest.approx(1, abs=0.06)
    assert max(ratios) < 2


@pytest.mark.parametrize("others", [1, 4])
def test_who_differs_from_the_others_is_conspicuous_however_few_its_samples_are(others):
    rng = np.random.default_rng(2)
    honest = {k: party(rng, [60 * (c == k) for c in range(CLASSES)]) for k in range(others)}
    honest = honest if others > 1 else {0: party(rng, [60] * CLASSES)}
    liar = {7: party(rng, [15] * CLASSES, shift=2.0)}
    found = influence({k: sums(*one) for k, one in {**honest, **liar}.items()}, None)
    conspicuous = {one["client"]: one["count"] for one in found["conspicuous"]}
    # of two that differ in every class that both hold, nothing shows which one is wrong
    assert conspicuous == ({0: CLASSES, 7: CLASSES} if others == 1 else {7: CLASSES})


def test_a_party_that_inflates_its_second_moments_hides_nothing():
    rng = np.random.default_rng(3)
    parts = {k: sums(*party(rng, [30] * CLASSES)) for k in range(3)}
    parts[3] = sums(*party(rng, [30] * CLASSES, shift=2.0))
    honest = influence(parts, None)["deviation"]
    parts[3]["square"] = parts[3]["square"] * 1e6
    found = influence(parts, None)
    assert found["deviation"] == pytest.approx(honest, rel=0.1)
    assert [one["client"] for one in found["conspicuous"]] == [3]


def test_of_a_total_nothing_is_said():
    rng = np.random.default_rng(4)
    assert influence({-1: sums(*party(rng, [5] * CLASSES))}, None) == {}
    assert influence({}, None) == {}
    alone = influence({0: sums(*party(rng, [5] * CLASSES))}, None)
    assert (alone["clients"], alone["conspicuous"]) == ([], [])
