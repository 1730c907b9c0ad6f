"""What a warning advises is applied, and the warning is gone."""

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
        ({"method.hidden": [], "method.lr": 1.06, "data.features": ["l2"], "strategy.rounds": 1, "run.seed": 20,
          "evaluation.selection": "validation"},
         "Calibration empties the seen classes", {"evaluation.calibration": "none"}),
        (STEEP, "training loss grew", {"data.features": ["centre", "l2"]}),
        ({"method.lr": 1.0}, "does not beat guessing", {"method.lr": 0.1}),
        ({"method.lr": 3.0, "data.features": ["centre", "l2"]},
         "taken for a seen one", {"evaluation.selection": "validation"}),
        ({"method.hidden": [2], "evaluation.embedding": "pca"}, "less apart", {"method.hidden": [64]}),
    ],
)  # fmt: skip
def test_a_remedy_removes_its_warning(settings, warning, remedy, tmp_path):
    def warned(changes, out):
        done = run(Experiment.load("digit-pairs", {**SMALL, **settings, **changes}), tmp_path / out)
        return [item["remedy"] for item in done.result["warnings"] if warning in item["what"]]

    (text,) = warned({}, "before")
    assert all(key in text for key in remedy)
    assert warned(remedy, "after") == []
