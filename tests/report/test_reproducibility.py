import shlex
import tomllib

import pytest

from fedunseen import Experiment
from fedunseen.core.toml import toml_text
from fedunseen.experiment.parsing import parse_override
from fedunseen.report.reproducibility import command

CASES = {
    "as it is": {},
    "another method": {"method.name": "classifier", "evaluation.calibration": "none"},
    "another strategy": {"strategy.name": "fedprox", "strategy.rounds": 3},
    "tables": {"evaluation.choose": {"method.lr": [0.1, 0.2]}, "partition.join": {"3-4": 2}},
    "numbers and lists": {"method.hidden": [], "method.lr": 1e-05, "run.seed": 7},
    "data elsewhere": {
        "data.name": "xlsa17", "data.root": '/someone\'s data/"x"', "data.dataset": "AWA2",
        "data.features": ["centre", "l2"],
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_command_makes_the_same_experiment(case):
    tree = Experiment.load("digit-pairs", CASES[case]).to_dict()
    text, whole = command(tree)
    assert whole
    words = shlex.split(text.replace("\\\n", ""))
    assert words[:3] == ["fedunseen", "run", "digit-pairs"]
    assert words[3::2] == ["--set"] * len(words[4::2])
    overrides = dict(parse_override(word) for word in words[4::2])
    assert Experiment.load("digit-pairs", overrides).to_dict() == tree
    assert set(overrides) == set(CASES[case])  # nothing that need not be said
    assert tomllib.loads(toml_text(tree)) == tree


def test_an_experiment_of_an_own_file_or_a_preset_that_no_longer_says_the_same_is_saved_first():
    tree = {**Experiment.load("digit-pairs").to_dict(), "name": "my own"}
    assert command(tree) == ("fedunseen run 'my own.toml'", False)
    again, _ = command(tree, ["my loss.py"], "runs/a b")
    assert shlex.split(again.replace("\\\n", ""))[3:] == ["--plugin", "my loss.py", "--out", "runs/a b"]
    yore = {**tree, "name": "digit-pairs", "method": {"name": "fedzsl", "a_setting_of_yore": 1}}
    assert command(yore) == ("fedunseen run digit-pairs.toml", False)
