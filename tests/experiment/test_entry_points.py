"""Classes of other packages, found by name; tests/test_documents.py runs methods, a strategy and a
task of one.
"""

from typing import Literal

import pytest

from fedunseen import run
from fedunseen.cli.settings import reference
from fedunseen.core.registry import find
from fedunseen.safety.defences.base import Defence, DefenceSettings
from fedunseen.strategies import FilterResult
from known_names import refuses


class FirstSettings(DefenceSettings):
    name: Literal["first"] = "first"


class First(Defence):
    """Keeps the first reply alone."""

    Settings = FirstSettings

    def filter(self, view):
        rest = len(view.replies) - 1
        return FilterResult(view.replies[:1], [1.0] + rest * [0.0], [0] + rest * [2])


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    """An installed package that declares a defence, a method of our name, and one that cannot be
    imported.
    """
    info = tmp_path / "site" / "my_package-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[fedunseen.methods]\nbroken = my_missing_module:Broken\nother = {__name__}:First\nfedzsl "
        f"= {__name__}:First\n[fedunseen.defences]\nfirst = {__name__}:First\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")


def test_a_defence_of_another_package_runs_by_name(make, tmp_path):
    done = run(
        make({"strategy.rounds": 2, "evaluation.selection": "last", "defence.name": "first"}),
        tmp_path / "run",
    )
    assert [line["defence"]["kept"] for line in done.metrics] == [[1.0, 0.0, 0.0]] * 2
    assert done.metrics[0]["defence"]["dropped"]["2"] == "it is too far from the others"


def test_our_own_names_come_first_and_a_method_that_cannot_be_loaded_is_one_sentence(make):
    assert find("method", "fedzsl").__module__ == "fedunseen.methods.fedzsl"
    with refuses(
        "method.name: 'broken' of my-package cannot be loaded (ModuleNotFoundError: No module "
        "named 'my_missing_module'): fix or update that package"
    ):
        make({"method.name": "broken"})
    with refuses(
        "method.name: 'other' of my-package cannot be loaded (TypeError: First is not a Method): "
        "fix or update that package"
    ):
        make({"method.name": "other"})


@pytest.mark.slow
def test_settings_lists_all_but_what_cannot_be_loaded_and_names_that(capsys):
    shown, said = reference(), capsys.readouterr().err.splitlines()
    assert "`first`" in shown
    assert "`fedzsl`" in shown
    assert "`broken`" not in shown
    assert [line.partition(" (")[0] for line in said] == [
        f"warning: method.name: '{name}' of my-package cannot be loaded"
        for name in ("broken", "other")
    ]
