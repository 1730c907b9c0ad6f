"""Methods, strategies, defences and benchmarks of other packages, found by name."""

import textwrap

import pytest

from fedunseen import run
from fedunseen.core.registry import find, names
from known_names import refuses

MODULE = """
from typing import Literal

from fedunseen.methods.fedzsl import FedZSL, FedZSLSettings
from fedunseen.strategies import FilterResult
from fedunseen.strategies.fedavg import FedAvg, FedAvgSettings
from fedunseen.defences import Defence, DefenceSettings


class MineSettings(FedZSLSettings):
    name: Literal["mine"] = "mine"
    boost: float = 2.0


class Mine(FedZSL):
    Settings = MineSettings

    def scores(self, params, inputs, semantics):
        return self.settings.boost * super().scores(params, inputs, semantics)


class FirstSettings(DefenceSettings):
    name: Literal["first"] = "first"


class First(Defence):
    Settings = FirstSettings

    def filter(self, view):
        rest = len(view.replies) - 1
        return FilterResult(view.replies[:1], [1.0] + rest * [0.0], [0] + rest * [2])


class HalfSettings(FedAvgSettings):
    name: Literal["half"] = "half"


class Half(FedAvg):
    Settings = HalfSettings

    def server_step(self, round):
        return 0.5
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package that declares a method, a strategy, and a method that cannot be imported."""
    folder = tmp_path / "site"
    info = folder / "my_package-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "my_fedunseen_package.py").write_text(textwrap.dedent(MODULE))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[fedunseen.methods]\nmine = my_fedunseen_package:Mine\nbroken = my_missing_module:Broken\n"
        "fedzsl = my_fedunseen_package:Mine\n"
        "[fedunseen.strategies]\nhalf = my_fedunseen_package:Half\n"
        "[fedunseen.defences]\nfirst = my_fedunseen_package:First\n"
    )
    monkeypatch.syspath_prepend(folder)


@pytest.mark.slow
@pytest.mark.usefixtures("package")
def test_a_method_and_a_strategy_of_another_package_run_by_name(make, tmp_path):
    assert {"mine", "broken", "fedzsl"} <= set(names("method"))
    settings = {"strategy.rounds": 2, "evaluation.selection": "last", "strategy.name": "half", "method.lr": 0.05}
    mine = run(make({**settings, "method.name": "mine", "method.boost": 3.0}), tmp_path / "mine")
    plain = run(make({**settings, "strategy.name": "fedavg", "strategy.server_lr": 0.5}), tmp_path / "b")
    assert (mine.path / "model.safetensors").read_bytes() == (plain.path / "model.safetensors").read_bytes()
    rows = [[0.5] * 9]
    for one, other in zip(mine.predict(rows)[0], plain.predict(rows)[0], strict=True):
        assert one.name == other.name
        assert one.score == pytest.approx(3 * other.score, rel=1e-5)


@pytest.mark.usefixtures("package")
def test_a_defence_of_another_package_runs_by_name(make, tmp_path):
    settings = {"strategy.rounds": 2, "evaluation.selection": "last", "defence.name": "first"}
    done = run(make(settings), tmp_path / "first")
    assert [line["defence"]["kept"] for line in done.metrics] == [[1.0, 0.0, 0.0]] * 2
    assert done.metrics[0]["defence"]["dropped"]["2"] == "it is too far from the others"


@pytest.mark.usefixtures("package")
def test_our_own_names_come_first():
    assert find("method", "fedzsl").__module__ == "fedunseen.methods.fedzsl"


@pytest.mark.usefixtures("package")
def test_a_method_of_another_package_that_cannot_be_loaded_is_one_sentence(make):
    with refuses(
        "method.name: 'broken' of my-package cannot be loaded (ModuleNotFoundError: No module named "
        "'my_missing_module'): fix or update that package"
    ):
        make({"method.name": "broken"})
