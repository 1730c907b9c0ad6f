"""Pictures in a wrong folder are found by their features, and clean folders are left in peace."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedunseen.evaluation import misplaced as module
from fedunseen.evaluation.misplaced import alike, misplaced, misplaced_files, most_alike, strays


def drawn(seed, moved, apart=1.1, classes=12, each=40, width=60):
    """Return heavy-tailed samples about random means, as real ones are, and the ids of those moved
    from 1 to 0.
    """
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    features = (
        rng.standard_t(5, size=(len(labels), width))
        + apart * rng.normal(size=(classes, width))[labels]
    )
    ids = rng.choice(np.flatnonzero(labels == 1), moved, replace=False)
    labels[ids] = 0
    return features, labels, set(ids.tolist())


@pytest.mark.parametrize("shape", [(30, 5), (12, 40)], ids=["more samples than features", "fewer"])
def test_each_answer_is_that_of_a_regression_without_the_sample(shape):
    rng = np.random.default_rng(0)
    rows, classes = rng.normal(size=shape), np.arange(shape[0]) % 3
    answers, strength = module._left_out(rows)(classes), module.STRENGTH * shape[0]
    for i in range(shape[0]):
        others = np.arange(shape[0]) != i
        x, wanted = rows[others], np.eye(3)[classes[others]]
        weights = np.linalg.solve(x.T @ x + strength * np.eye(shape[1]), x.T @ wanted)
        np.testing.assert_allclose(answers[i], rows[i] @ weights, atol=1e-9)


def test_five_of_forty_are_found_and_clean_folders_are_not_doubted():
    for seed in range(8):
        assert misplaced(*drawn(seed, 0)[:2]) == []
        features, labels, moved = drawn(seed, 5)
        (group,) = misplaced(features, labels)
        assert (group.place, group.like) == (0, 1)
        assert set(group.rows.tolist()) <= moved
        assert len(group.rows) >= 4


def test_two_classes_that_nothing_tells_apart_are_not_doubted():
    features, labels, _ = drawn(0, 0)
    features[labels == 1] = np.random.default_rng(1).permutation(
        features[labels == 0]
    )  # of the same kind
    assert not misplaced(
        features + 0.1 * np.random.default_rng(2).normal(size=features.shape), labels
    )


@pytest.mark.slow
def test_a_group_that_may_be_chance_is_not_doubted(monkeypatch):
    features, labels, _ = drawn(9, 3, apart=0.5)
    assert misplaced(features, labels) == []
    monkeypatch.setattr(module, "LEAD", 0.0)
    (group,) = misplaced(features, labels)
    assert (group.place, group.like) == (0, 1)


def test_few_and_unknown_samples_are_passed_over(monkeypatch):
    features, labels, _ = drawn(0, 5)
    few = np.concatenate([np.flatnonzero(labels == c)[:7] for c in range(12)])
    assert misplaced(features[few], labels[few]) == []
    assert misplaced(features, np.where(labels == 0, -1, labels)) == []
    monkeypatch.setattr(module, "MANY", 100)
    assert misplaced(features, labels) == []


def test_single_samples_of_several_classes_are_named_and_few_others():
    """Nine of 480, each of a class of its own choice; no two make a group."""
    named = right = clean = 0
    for seed in range(5):
        features, labels, _ = drawn(seed, 0, apart=1.0)
        clean += len(strays(features, labels))
        rng = np.random.default_rng(100 + seed)
        ids = rng.choice(len(labels), 9, replace=False)
        true = labels[ids].copy()
        labels[ids] = (true + rng.integers(1, 12, 9)) % 12
        assert misplaced(features, labels) == []
        found = {one.row: one for one in strays(features, labels)}
        named += len(found)
        for row, one in found.items():
            assert one.place == labels[row]
        right += sum(
            found[i].like == c for i, c in zip(ids.tolist(), true, strict=True) if i in found
        )
    assert right >= 36
    assert named - right <= 5
    assert clean <= 5


def test_a_picture_that_cannot_be_read_is_not_listed_for_its_looks():
    """It is black, in a class's folder and in no split."""
    features, labels, _ = drawn(0, 0, apart=1.0)
    features[0] = features[45]

    def found(unread):
        rows = np.setdiff1d(np.arange(len(labels)), unread)
        benchmark = SimpleNamespace(
            files=[f"{i}.png" for i in range(len(labels))],
            pictures=np.full((len(labels), 3, 8, 8), 128, np.uint8),
            features=features,
            labels=labels,
            space=SimpleNamespace(names=[f"c{c}" for c in range(12)]),
            train=rows[::2],
            test_seen=rows[1::2],
            test_unseen=rows[:0],
        )
        return [one["file"] for one in misplaced_files(benchmark).get("strays", ())]

    assert "0.png" in found([])
    assert "0.png" not in found([0])


@pytest.mark.slow
def test_more_classes_to_resemble_do_not_mean_more_odd_pictures():
    """Of folders in order the share that is named stays below four in a thousand."""
    for classes in (12, 60):
        features, labels, _ = drawn(0, 0, apart=0.5, classes=classes, each=40)
        assert len(strays(features, labels)) <= 0.004 * len(labels)


def two(seed, apart, moved, width=40):
    """Return rows of two classes of 75, ``moved`` of the second added to the first, and the place
    of these.
    """
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(150 + moved, width)) / np.sqrt(width)
    rows[75:, 0] += apart
    order = np.concatenate([np.arange(75), np.arange(150, 150 + moved), np.arange(75, 150)])
    return rows[order], np.arange(75 + moved), np.arange(75 + moved, 150 + moved)


@pytest.mark.slow
def test_a_quarter_of_a_class_is_found_and_two_classes_that_mix_are_not_doubted():
    for seed in range(2):
        lead, posterior = module._confident(*two(seed, apart=0.9, moved=25))
        found = np.flatnonzero(posterior)
        assert lead == np.inf
        assert (found >= 75).sum() >= 12
        assert (found >= 75).mean() >= 0.9
        for apart in (0.05, 0.3, 0.9):
            assert module._confident(*two(seed, apart, moved=0))[0] == 0


def test_what_the_spread_hides_is_looked_for_again(monkeypatch):
    monkeypatch.setattr(module, "_mixture", lambda *_: (0.0, np.zeros(len(_[1]))))
    features, labels, moved = drawn(0, 13, each=39)
    (group,) = misplaced(features, labels)
    assert (group.place, group.like) == (0, 1)
    assert len(group.rows) >= 5
    assert set(group.rows.tolist()) <= moved
    monkeypatch.setattr(module, "LARGE", 50)
    assert misplaced(features, labels) == []


def test_what_looks_most_like_another_class_is_found_where_no_group_is_clear():
    """Fifteen of forty of two classes alike: of the first three of each draw, most are moved."""
    named = right = 0
    for seed in range(6):
        features, labels, moved = drawn(seed, 15, apart=0.5)
        for group in most_alike(features, labels):
            assert 1 <= len(group.rows) <= module.FIRST
            assert (labels[group.rows] == group.place).all()
            if (group.place, group.like) == (0, 1):
                named += len(group.rows)
                right += len(moved & set(group.rows.tolist()))
    assert named >= 15
    assert right >= 0.8 * named
    few = np.concatenate([np.flatnonzero(labels == c)[:7] for c in range(12)])
    assert most_alike(features[few], labels[few]) == []


def test_classes_alike_stray_both_ways_and_wrong_labels_one_way():
    """Twelve classes; the first two lie near each other, or samples of one have the other's label."""
    for seed in range(6):
        features, labels, _ = drawn(seed, 0)
        assert alike(features, labels) == []
        apart = features[labels == 0].mean(0) - features[labels == 1].mean(0)
        features[labels == 1] += 0.8 * apart
        (pair,) = alike(features, labels)
        assert (pair.first, pair.second) == (0, 1)
        assert min(pair.taken) >= module.BOTH_WAYS
        assert alike(*drawn(seed, 10)[:2]) == []
    few = np.concatenate([np.flatnonzero(labels == c)[:7] for c in range(12)])
    assert alike(features[few], labels[few]) == []


def test_two_classes_that_look_like_a_third_one_are_not_blamed_on_each_other(monkeypatch):
    """Of 40 maples 18 look like oaks, and of 46 willows 15; they look like each other less."""
    maple, oak, willow, palm = range(4)
    looks = {
        maple: [11, 18, 7, 4],
        oak: [1, 39, 2, 1],
        willow: [7, 15, 22, 2],
        palm: [0, 4, 3, 66],
    }
    labels = np.repeat(np.arange(4), [sum(row) for row in looks.values()])
    nearest = np.concatenate([np.repeat(np.arange(4), row) for row in looks.values()])
    monkeypatch.setattr(module, "_left_out", lambda _: lambda _: np.eye(4)[nearest])
    pairs = alike(np.zeros((len(labels), 2)), labels)
    assert [(pair.first, pair.second) for pair in pairs] == [(maple, oak), (oak, willow)]
    assert pairs[0].taken == pytest.approx((45.0, 100 / 43))
