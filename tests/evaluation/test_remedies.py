"""What a warning advises is applied, and the warning is gone."""

import numpy as np
import pytest

from fedunseen import Experiment, run

SMALL = {
    "data.train_per_class": 6, "data.test_per_class": 6, "method.hidden": [16], "strategy.rounds": 4,
    "partition.clients": 3, "evaluation.selection": "last", "evaluation.embedding": False, "evaluation.theory": False,
}  # fmt: skip

STEEP = {"method.hidden": [], "method.lr": 3.0, "method.batch_size": 1000, "strategy.local_epochs": 1}


@pytest.mark.parametrize(
    ("settings", "warning", "remedy"),
    [
        (STEEP, "training loss grew", {"method.lr": 0.3}),
        (
            {"method.hidden": [], "method.lr": 1.06, "data.features": ["l2"], "strategy.rounds": 1, "run.seed": 20}
            | {"evaluation.selection": "validation"},
            "Calibration empties the seen classes",
            {"evaluation.calibration": "none"},
        ),
        (STEEP, "training loss grew", {"data.features": ["centre", "l2"]}),
        ({"method.lr": 1.0}, "no better than guessing", {"data.features": ["centre", "l2"]}),
        ({"method.lr": 1.0}, "no better than guessing", {"method.lr": 0.1}),
        (
            {"method.lr": 3.0, "data.features": ["centre", "l2"]},
            "taken for a seen one",
            {"evaluation.selection": "validation"},
        ),
        (
            {"method.lr": 0.3, "data.features": ["x10"], "method.kl": 0.0},
            "guessing",
            {"data.features": ["centre", "l2"]},
        ),
        ({"method.hidden": [2], "evaluation.embedding": "pca"}, "less apart", {"method.hidden": [64]}),
    ],
)
def test_a_remedy_removes_its_warning(settings, warning, remedy, tmp_path):
    def told(changes, out):
        done = run(Experiment.load("digit-pairs", {**SMALL, **settings, **changes}), tmp_path / out)
        return [item["remedy"] for item in done.result["warnings"] if warning in item["what"]]

    (text,) = told({}, "before")
    assert all(key in text for key in remedy)
    assert told(remedy, "after") == []


def test_an_attribute_that_tells_two_classes_apart_removes_the_warning_of_one_never_answered(tmp_path):
    """The classes 5 and 13 differ in the attribute d alone."""
    rng, labels, unseen = np.random.default_rng(0), np.repeat(np.arange(16), 16), (5, 10, 13)
    codes = np.array([[*map(int, f"{c:04b}"[::-1]), 1] for c in range(16)], dtype=np.float64)
    rows = codes[labels] @ rng.normal(size=(5, 24)) + 0.4 * rng.normal(size=(256, 24))
    split = np.where(~np.isin(labels, unseen) & (np.arange(256) % 4 > 0), "train", "test")
    np.savez(tmp_path / "features.npz", features=rows.astype(np.float32), labels=labels, split=split)
    tree = {
        "data": {"name": "folder", "root": str(tmp_path), "features": ["l2"]}, "method": {"name": "ridge"},
        "partition": {"kind": "pccd", "clients": 2}, "evaluation": {"selection": "last", "embedding": False},
    }  # fmt: skip

    def warned(attributes):
        table = ["name,split," + ",".join(attributes)]
        for c in range(16):
            told = ",".join(str(codes[c]["abcde".index(item)]) for item in attributes)
            table.append(f"{c},{'unseen' if c in unseen else 'seen'},{told}")
        (tmp_path / "classes.csv").write_text("\n".join(table) + "\n", "utf-8")
        done = run(Experiment.from_dict(tree), tmp_path / attributes)
        warnings = done.result["warnings"]
        return [(item["what"], item["remedy"]) for item in warnings if "never the answer" in item["what"]]

    ((what, remedy),) = warned("abce")
    assert what.endswith("never the answer: 13.")
    assert "add attributes that tell them apart" in remedy
    assert warned("abcde") == []


@pytest.mark.slow
def test_another_few_shot_method_removes_the_warning_of_one_that_has_diverged(tmp_path):
    short = {"data.train_per_class": 10, "partition.clients": 3, "strategy.rounds": 2, "method.episodes": 10}
    short |= {"evaluation.embedding": False, "evaluation.selection": "last"}

    def warned(preset, **settings):
        done = run(Experiment.load(preset, {**short, **settings}), tmp_path / preset)
        return [item["remedy"] for item in done.result["warnings"] if "The model is worse than" in item["what"]]

    (remedy,) = warned("digit-pairs-maml", **{"method.lr": 1.0})
    assert "method.name = 'protonet'" in remedy
    assert warned("digit-pairs-few-shot") == []
