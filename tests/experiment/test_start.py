"""A trained method that begins with the closed form: the parties' sums come first, on every engine."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedunseen import Experiment, run
from links import elsewhere
from same import same

SEEN, UNSEEN = 10, 3
STILL = {"method.lr": 1e-12, "method.weight_decay": 0.0}  # a step that changes nothing


@pytest.fixture(scope="module")
def tree(described, tmp_path_factory):
    """More attributes than classes, so that a linear g can score the classes as any linear model does."""
    shape = (SEEN + UNSEEN, 16, 30)
    return {
        "data": described(tmp_path_factory.mktemp("start"), shape, 0.8, 20, UNSEEN, validation=2, seed=2),
        "partition": {"kind": "pccd", "clients": 3},
        "method": {"name": "fedzsl", "start": "closed-form"},
        "strategy": {"name": "fedavg", "rounds": 2, "local_epochs": 1},
        "evaluation": {"selection": "last", "embedding": False, "clients": False},
    }


@pytest.mark.parametrize(
    ("method", "strategy"), [("fedzsl", "fedavg"), ("distzsl", "scaffold"), ("fedzsl", "centralised")]
)
def test_it_scores_as_the_closed_form_does_before_it_trains(method, strategy, tree, tmp_path):
    change = {"method.name": method, "strategy.name": strategy, **STILL}
    change |= {"method.decorrelation": 0.0} if method == "distzsl" else {}
    trained = run(Experiment.from_dict(tree, change), tmp_path / "trained")
    alike = {"method.name": "gaussian", "data.features": ["centre", "l2"], "data.quantization": "none"}
    closed = run(Experiment.from_dict(tree, alike), tmp_path / "closed")
    rows = torch.from_numpy(trained.scaler(np.load(f"{tree['data']['root']}/features.npz")["features"]))
    one = trained.method.scores(trained.params, rows, trained.method.semantics)
    two = closed.method.scores(closed.params, rows, closed.method.semantics).float()
    apart = (one - one.mean(1, keepdim=True)) - (two - two.mean(1, keepdim=True))
    assert apart.abs().max() < 1e-3 * two.std()
    assert trained.result["start"]["zsl"] == closed.result["zsl"] == trained.result["zsl"]
    assert trained.result["start"]["bytes_up"] == closed.result["bytes_up"] > 0


def test_it_trains_on_from_there(tree, tmp_path):
    changes = {"started": {}, "drawn": {"method.start": "random"}, "still": STILL}
    started, drawn, still = (run(Experiment.from_dict(tree, more), tmp_path / name) for name, more in changes.items())
    assert started.metrics[0]["losses"]["sce"] < drawn.metrics[0]["losses"]["sce"]
    assert not torch.equal(started.params["g.weight"], still.params["g.weight"])
    assert "start" not in drawn.result


def test_the_run_that_chooses_begins_without_the_validation_classes(tree, tmp_path):
    experiment = Experiment.from_dict(tree, {"evaluation.selection": "validation"})
    done = run(experiment, tmp_path / "run")
    count = load_file(done.path / "selection" / "start" / "model.safetensors")["count"]
    assert (count > 0).tolist() == [True] * (SEEN - 2) + [False] * (2 + UNSEEN)
    assert (load_file(done.path / "start" / "model.safetensors")["count"] > 0).sum() == SEEN


def test_a_resumed_run_does_not_ask_for_sums_again(tree, tmp_path, monkeypatch, cut_short):
    experiment = Experiment.from_dict(tree)
    whole = run(experiment, tmp_path / "whole")
    cut_short(experiment, tmp_path / "cut", after=1, stage="training")
    monkeypatch.setattr("fedunseen.methods.closed_form.gaussian.Gaussian.statistics", None)
    assert same(whole, run(experiment, tmp_path / "cut", resume=True))


def test_parties_elsewhere_send_their_sums_too(tree, tmp_path):
    here = run(Experiment.from_dict(tree, {"engine.mode": "one-at-a-time"}), tmp_path / "here")
    away = elsewhere(Experiment.from_dict(tree), tmp_path / "away")
    assert away.result["start"] == here.result["start"]
    for name, value in here.params.items():
        assert torch.allclose(value, away.params[name], atol=1e-6)
