"""Curves for TensorBoard and MLflow: the same numbers as metrics.jsonl, also of a run that was interrupted."""

from pathlib import Path

import pytest

from fedunseen.experiment import Experiment, run
from fedunseen.experiment.tracking import tracked
from known_names import refuses
from links import KilledError

SMALL = {"strategy.rounds": 4, "method.hidden": [8], "evaluation.selection": "last", "evaluation.embedding": False}


def interrupted_and_resumed(kind: str, out: Path):
    """Track a run that breaks off when the third round is done but not yet heard of, and then continues."""
    experiment = Experiment.load("digit-pairs", SMALL)

    def stop(stage, round, rounds, line):
        if round == 3:
            raise KilledError

    with pytest.raises(KilledError), tracked(stop, [kind], out, experiment) as hear:
        run(experiment, out, progress=hear)
    with tracked(None, [kind], out, experiment) as hear:
        return run(experiment, out, resume=True, progress=hear)


@pytest.mark.slow
def test_tensorboard_shows_what_metrics_say(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    done = interrupted_and_resumed("tensorboard", tmp_path / "run")
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard" / "training"))
    events.Reload()
    for name, value in (("zsl", lambda line: line["zsl"]), ("losses/loss", lambda line: line["losses"]["loss"])):
        shown = [(event.step, event.value) for event in events.Scalars(name)]
        assert shown == [(line["round"], pytest.approx(value(line), rel=1e-6)) for line in done.metrics]


@pytest.mark.slow
def test_mlflow_goes_on_in_the_same_run(tmp_path, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    done = interrupted_and_resumed("mlflow", tmp_path / "run")
    client = tracking.MlflowClient(tracking_uri=(tmp_path / "run" / "mlruns").as_uri())
    place = client.get_experiment_by_name("digit-pairs")
    (found,) = client.search_runs([place.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["strategy.rounds"] == "4"
    shown = {m.step: m.value for m in client.get_metric_history(found.info.run_id, "zsl")}
    assert shown == {line["round"]: pytest.approx(line["zsl"]) for line in done.metrics}


def test_an_unknown_tracker_is_refused(tmp_path):
    experiment = Experiment.load("digit-pairs", SMALL)
    sentence = "--track: unknown tracker 'mlfow': did you mean 'mlflow'? (known: mlflow, tensorboard)"
    with refuses(sentence), tracked(None, ["mlfow"], tmp_path, experiment):
        pass
