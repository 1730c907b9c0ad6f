"""Whole runs with a defence or private merging: what is written, what a kill changes (nothing), what is refused."""

import pytest

from fedunseen import run
from fedunseen.core.errors import FedUnseenError
from fedunseen.engines.local import in_process
from pages import without_pictures

SHORT = {"evaluation.selection": "last", "evaluation.embedding": False}
PRIVATE = {**SHORT, "privacy.name": "client-level", "privacy.clip": 1.0, "privacy.noise": 0.5}
accounted = pytest.mark.skipif(
    __import__("importlib").util.find_spec("dp_accounting") is None, reason="needs the extra privacy: dp-accounting"
)


def model(done):
    return (done.path / "model.safetensors").read_bytes()


def break_client(monkeypatch, wrong):
    """Let clients named in ``wrong(round)`` send what is not finite."""
    honest = in_process.Worker.round

    def worse(self, works, round):
        done = list(honest(self, works, round))
        for reply, _ in done:
            if reply.client in wrong(round):
                next(iter(reply.update.values())).fill_(float("nan"))
        return done

    monkeypatch.setattr(in_process.Worker, "round", worse)


def test_a_reply_that_is_not_finite_is_left_out_and_named(make, tmp_path, monkeypatch):
    break_client(monkeypatch, lambda round: [1] if round == 1 else [])
    with pytest.raises(FedUnseenError, match="training diverged: the update of client 1 in round 2 is not finite"):
        run(make(SHORT), tmp_path / "plain")
    done = run(make({**SHORT, "defence.name": "median"}), tmp_path / "defended")
    assert [line.get("dropped") for line in done.metrics] == [None, {"1": "the update is not finite"}, None, None]
    assert done.metrics[1]["participants"] == [0, 2]
    assert done.metrics[1]["defence"]["clients"] == [0, 2]


def test_a_round_that_drops_everybody_keeps_the_old_model_and_says_so(make, tmp_path, monkeypatch):
    break_client(monkeypatch, lambda round: [0, 1, 2] if round == 3 else [])
    short = {**SHORT, "defence.name": "norm-clip", "strategy.rounds": 4}
    done = run(make(short), tmp_path / "lost")
    assert done.metrics[3]["defence"]["merged"] is False
    assert done.metrics[3]["zsl"] == done.metrics[2]["zsl"]
    monkeypatch.undo()
    three = run(make({**short, "strategy.rounds": 3}), tmp_path / "three")
    assert model(done) == model(three)


@pytest.mark.slow
@accounted
def test_private_runs_say_what_they_cost(make, tmp_path):
    experiment = make({**PRIVATE, "strategy.fraction": 0.5, "strategy.rounds": 6, "privacy.epsilon": 100.0})
    whole = run(experiment, tmp_path / "whole")
    spent = [line["privacy"]["epsilon"] for line in whole.metrics]
    assert spent == sorted(spent)
    assert 0 < spent[0] < spent[-1] <= 100
    counts = [len(line["participants"]) for line in whole.metrics]
    assert len(set(counts)) > 1  # each client is drawn by itself
    assert whole.result["epsilon"] == spent[-1]


@pytest.mark.slow
@accounted
def test_a_private_round_may_have_nobody_in_it(make, tmp_path):
    done = run(make({**PRIVATE, "strategy.fraction": 0.05, "strategy.rounds": 5}), tmp_path / "run")
    assert any(not line["participants"] for line in done.metrics)
    assert done.result["bytes_up"] >= 0
    from fedunseen.report import write_report

    page = write_report(done).read_text("utf-8")
    assert "epsilon" in without_pictures(page)


@accounted
def test_a_defence_and_private_merging_together(make, tmp_path):
    both = {**PRIVATE, "defence.name": "norm-clip", "defence.bound": 0.2}
    done = run(make(both), tmp_path / "both")
    assert {"defence", "privacy"} <= set(done.metrics[0])
    assert max(done.metrics[0]["defence"]["norms"]) > 0.2
    assert done.metrics[0]["privacy"]["clipped"] == 0  # the defence has shortened them before
