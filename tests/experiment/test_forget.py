"""A trained run forgets a client: it is trained again from the last state that the client had no share in."""

import json

import pytest
import torch

from fedunseen import run
from fedunseen.core.errors import ExperimentError
from fedunseen.experiment.forget import forget

LATE = {
    "evaluation.selection": "last",
    "evaluation.embedding": False,
    "evaluation.theory": False,
    "data.features": ["l2"],
    "partition.join": {"2": 2},
}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def late(make, tmp_path_factory):
    """A run in which client 2 comes in the third of four rounds."""
    return run(make({**LATE, "run.forgettable": True}), tmp_path_factory.mktemp("late") / "run")


def test_a_client_that_came_late_is_forgotten_from_there_on(late, make, tmp_path):
    left = forget(late, "2", tmp_path / "left")
    anew = run(make({**LATE, "partition.without": [2]}), tmp_path / "anew")
    assert same(dict(left.params), dict(anew.params))
    assert not same(dict(left.params), dict(late.params))
    assert left.result["rounds_trained_again"] == 2
    assert [line["participants"] for line in left.metrics] == [[0, 1]] * 4
    assert left.result["forgotten"] == ["2"] == left.manifest["forgotten"]
    assert left.metrics[0]["seconds"] == late.metrics[0]["seconds"]  # the first two rounds are those of the run


def test_a_client_of_the_first_round_is_forgotten_from_the_start(late, make, tmp_path):
    left = forget(late, "0", tmp_path / "left")
    assert left.result["rounds_trained_again"] == 4
    assert same(dict(left.params), dict(run(make({**LATE, "partition.without": [0]}), tmp_path / "anew").params))
    again = forget(left, "2", tmp_path / "less")
    assert again.result["forgotten"] == ["0", "2"]


def test_states_are_kept_before_somebody_comes_and_only_if_asked_for(late, make, tmp_path):
    assert [path.name for path in sorted((late.path / "checkpoints").glob("before-*"))] == ["before-000003.safetensors"]
    plain = run(make(LATE), tmp_path / "plain")
    assert not list((plain.path / "checkpoints").glob("before-*"))
    assert same(dict(plain.params), dict(late.params))


def test_what_cannot_be_forgotten_is_one_sentence(late, make, tmp_path):
    with pytest.raises(ExperimentError) as error:
        make({**LATE, "partition.without": [7]})
    assert str(error.value) == "partition.without: there is no client 7: the 3 clients are numbered from 0 to 2"
    alone = run(
        make({**LATE, "strategy.name": "local", "strategy.rounds": 1, "partition.join": {}}), tmp_path / "local"
    )
    with pytest.raises(ExperimentError) as error:
        forget(alone, "0", tmp_path / "left")
    assert str(error.value) == (
        "under strategy.name = 'local' no party's updates are merged: run with a strategy that merges, for example "
        "fedavg"
    )
    told = json.loads((alone.path / "manifest.json").read_text())
    told["experiment"] |= {"strategy": {"name": "fedavg"}, "engine": {"name": "flower", "mode": "deployment"}}
    (alone.path / "manifest.json").write_text(json.dumps(told))
    with pytest.raises(ExperimentError) as error:
        forget(type(alone)(alone.path, told, alone.result), "0", tmp_path / "left")
    assert str(error.value) == (
        "method.name = 'fedzsl' is trained, so that every party is in every parameter, and the parties' data are not "
        "here: host the run again without the party, or a method in closed form"
    )
    assert not (tmp_path / "left").exists()
