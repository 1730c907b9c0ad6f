"""What is expected of a class before anything is answered, beside what then happens."""

import numpy as np
import pytest

from fedunseen import ZeroShotClassifier, load_model
from fedunseen.evaluation.new_class import can_expect, expected_of

CLASSES = 16
WIDTH = 12


@pytest.fixture
def drawn(tmp_path):
    """A model of classes whose means are linear in their descriptions, and how samples are drawn."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(CLASSES, 4))
    mixing = 2 * rng.normal(size=(4, WIDTH))
    names = np.array([f"class {c}" for c in range(CLASSES)])
    trained = np.repeat(np.arange(CLASSES - 3), 40)
    features = table[trained] @ mixing + rng.normal(size=(len(trained), WIDTH))
    classes = dict(zip(names.tolist(), table.tolist(), strict=True))
    fitted = ZeroShotClassifier(random_state=0).fit(features, names[trained], classes=classes)
    fitted.save(tmp_path / "model.safetensors")
    return load_model(tmp_path / "model.safetensors"), table, mixing


def test_a_class_beside_another_one_is_harder(drawn):
    model, table, mixing = drawn
    assert can_expect(model)
    rng = np.random.default_rng(1)
    apart = 1.5 * rng.normal(size=4)
    near = table[0] + 0.05 * rng.normal(size=4)
    easy, hard = expected_of(model, np.stack([apart, near]), None)
    assert easy.right > hard.right + 20
    for semantics, expected in ((apart, easy), (near, hard)):
        grown = model.learn({"new": semantics.tolist()})
        samples = semantics @ mixing + rng.normal(size=(400, WIDTH))
        right = 100 * np.mean(grown.scores(samples.astype(np.float32)).argmax(1) == CLASSES)
        assert abs(right - expected.right) < 20


def test_left_out_classes_correct_the_odds(drawn):
    model, table, _ = drawn
    semantics = table.mean(0, keepdims=True) + 0.7
    likely = [expected_of(model, semantics, share)[0] for share in (95.0, 50.0, 10.0)]
    for name in ("right", "low", "high"):
        values = [getattr(one, name) for one in likely]
        assert (np.diff(values) < 1e-9).all()
    assert likely[0].right > likely[-1].right + 10
    assert all(one.low <= one.right <= one.high for one in likely)


@pytest.mark.slow
def test_most_classes_lie_in_their_interval(drawn):
    model, _, mixing = drawn
    rng = np.random.default_rng(2)
    classes = rng.normal(size=(60, 4))
    inside = 0
    gaps = []
    for semantics, one in zip(classes, expected_of(model, classes, None), strict=True):
        grown = model.learn({"new": semantics.tolist()})
        samples = semantics @ mixing + rng.normal(size=(50, WIDTH))
        right = 100 * np.mean(grown.scores(samples.astype(np.float32)).argmax(1) == CLASSES)
        inside += one.low - 5 <= right <= one.high + 5  # of fifty samples
        gaps.append(one.right - right)
    assert inside >= 0.7 * len(classes)
    assert abs(np.mean(gaps)) < 8


@pytest.mark.slow
def test_samples_of_unseen_classes_do_not_raise_what_a_description_alone_promises(tmp_path):
    rng = np.random.default_rng(3)
    table = rng.normal(size=(CLASSES, 4))
    means = table @ rng.normal(size=(4, WIDTH)) + 3 * rng.normal(size=(CLASSES, WIDTH))
    names = [f"class {c}" for c in range(CLASSES)]
    known = dict(zip(names, table.tolist(), strict=True))
    rows = means[:, None] + rng.normal(size=(CLASSES, 40, WIDTH))
    trained = rows[: CLASSES - 3].reshape(-1, WIDTH)
    fitted = ZeroShotClassifier(random_state=0)
    fitted.fit(trained, np.repeat(names[: CLASSES - 3], 40), classes=known)
    fitted.save(tmp_path / "model.safetensors")
    model = load_model(tmp_path / "model.safetensors")
    samples = dict(zip(names[-3:], rows[-3:].astype(np.float32), strict=True))
    new = rng.normal(size=(6, 4))
    before = expected_of(model, new, 40.0)
    one = {names[-1]: samples[names[-1]]}
    learned = model.learn(examples=samples)
    adapted = model.adapt(rows[-3:].reshape(-1, WIDTH).astype(np.float32), "unseen")
    for changed in (learned, model.learn(examples=one), adapted):
        assert changed.params["count"].sum() > model.params["count"].sum()
        for after, earlier in zip(expected_of(changed, new, 40.0), before, strict=True):
            if changed is adapted:  # its seen classes may be lowered less
                assert after.right < earlier.right + 1
            else:
                assert after == pytest.approx(earlier, abs=1e-6)
