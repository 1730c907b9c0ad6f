"""Products of lists are counted before they are made: a line for each list is enough for 10^11."""

import copy

import pytest

from fedunseen import Experiment
from fedunseen.core.errors import ExperimentError, RefusedError
from fedunseen.deploy.client_data import PartyData
from fedunseen.research.sweep import schema
from fedunseen.research.sweep.schema import read_sweep
from small_federation import experiment, greeting, write_all

CHOOSE = {f"method.{key}": [i / 10 for i in range(1, 12)] for key in ("lr", "kl", "sce")}
WORDS = r"evaluation\.choose has 1,331 combinations, and 1,000 are the most: list fewer values"


def test_settings_are_chosen_from_a_thousand_combinations_at_most():
    fewer = {**CHOOSE, "method.lr": [0.1]}
    assert (
        Experiment.load("digit-pairs", {"evaluation.choose": fewer}).evaluation.combinations == 121
    )
    with pytest.raises(ExperimentError, match=WORDS):
        Experiment.load("digit-pairs", {"evaluation.choose": CHOOSE})


def test_a_party_computes_nothing_with_a_greeting_of_many_combinations(tmp_path):
    """It went on after the coordinator was gone."""
    write_all(tmp_path)
    chosen = experiment(tmp_path, privacy__aggregation="plain", evaluation__confidence="none")
    header, tensors = greeting(chosen, tmp_path / "run")
    party = PartyData(tmp_path / "north")
    party.prepare(copy.deepcopy(header), tensors)
    header["experiment"]["evaluation"] |= {"selection": "validation", "choose": CHOOSE}
    with pytest.raises(RefusedError, match=WORDS):
        party.prepare(header, tensors)


def test_a_grid_and_all_that_its_cells_choose_from_are_bounded(tmp_path, monkeypatch):
    path = tmp_path / "wide.toml"
    path.write_text(
        'title = "x"\nbase = "digit-pairs"\n[axes]\n"method.lr" = [0.1, 0.2]\n'
        '"method.kl" = [0.1, 0.2]\n[experiment.evaluation]\n'
        'choose = { "method.sce" = [0.1, 0.2, 0.3] }\n'
    )
    assert len(read_sweep(path).cells) == 4
    monkeypatch.setattr(schema, "_TRAININGS", 11)
    with pytest.raises(ExperimentError, match=r"the cells make over 11 trainings"):
        read_sweep(path)
    monkeypatch.setattr(schema, "_MOST", 3)
    with pytest.raises(ExperimentError, match="axes: the grid has 4 cells, and 3 are the most"):
        read_sweep(path)
