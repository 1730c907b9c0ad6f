"""A run that is cut short and resumed leaves what an undisturbed one leaves: what is kept, numbers,
their curves.
"""

import pytest

from fedunseen import Experiment, run
from fedunseen.federation import in_process
from fedunseen.pages.tracking import tracked
from fedunseen.safety.defences import DEFENCES
from fedunseen.tasks import zero_shot_summary
from known_names import DIGITS_MAML, accounted, refuses
from same import content, same
from small_runs import LAST, KilledError, experiment

GENERATIVE = {
    "method.name": "clswgan", "method.hidden": 16, "method.output": "linear", "method.synthetic": 5,
    "method.head_epochs": 1, "method.batch_size": 8, "method.critic_steps": 2,
    "strategy.name": "moon", "strategy.shared": ["generator.*"],
}  # fmt: skip
BACKDOOR = {
    "attack.name": "backdoor",
    "attack.triggers": ["object"],
    "attack.rounds": "2-3",
    "attack.scale": 3,
}
GROWS = {"growth.name": "unknown", "partition.join": {"2": 2}, "data.features": ["l2"]}
DEFENDED = {name: {} for name in DEFENCES if name != "none"}
DEFENDED |= {name: {"defence.malicious": 0} for name in ("krum", "multi-krum", "bulyan")}
DEFENDED |= {
    "trimmed-mean": {"defence.malicious": 1},
    "robust-learning-rate": {"defence.threshold": 2},
}
PRIVATE = {"privacy.name": "client-level", "privacy.clip": 1.0, "privacy.noise": 0.5}
KEPT = {
    "a choice": {"evaluation.selection": "validation"},
    **{
        name: {"strategy.name": name, "strategy.fraction": 0.7}
        for name in ("local", "scaffold", "moon", "fedgloss")
    },
    "critics": GENERATIVE,
    "heads": {"strategy.shared": ["f.*"], "strategy.head_epochs": 2},
    "trained on": {"strategy.personal_epochs": 1},
    "checkpoints": {"run.forgettable": True, "partition.join": {"2": 2}},
    "triggers": BACKDOOR,
    "thresholds": {**BACKDOOR, "screening.name": "magnitude", "attack.ignore_defence": True},
    "sums before growth": {
        **GROWS,
        "method.name": "gaussian",
        "method.shrinkage": 0.1,
        "strategy.rounds": 4,
    },
    "corrections before growth": {**GROWS, "strategy.name": "scaffold"},
    **{f"a rule: {name}": {"defence.name": name, **more} for name, more in DEFENDED.items()},
    "privacy spent": {**PRIVATE, "strategy.fraction": 0.5},
}
CUTS = [(name, 2) for name in KEPT] + [(name, 3) for name in KEPT if "growth" in name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kept", "after"),
    [pytest.param(*cut, marks=[accounted] if cut[0] == "privacy spent" else []) for cut in CUTS],
)
def test_what_is_kept_survives(kept, after, make, tmp_path, cut_short):
    check(make({**LAST, **KEPT[kept]}), tmp_path, cut_short, after)


def check(experiment, folder, cut_short, after):
    whole = run(experiment, folder / "whole")
    cut_short(experiment, folder / "cut", after=after)
    rest = run(experiment, folder / "cut", resume=True)
    assert content(rest.path) == content(whole.path)
    return whole, rest


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedavg", "scaffold", "fedgloss", "moon"])
def test_running_statistics_survive(strategy, tmp_path, cut_short):
    few = {
        "data.train_per_class": 2,
        "data.test_per_class": 1,
        "strategy.rounds": 2,
        "encoder.norm": "batch",
    }
    check(
        Experiment.load("digit-pairs-conv", {**LAST, **few, "strategy.name": strategy}),
        tmp_path,
        cut_short,
        1,
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["maml-mi", "maml-mi-adv"])
def test_shares_in_the_last_model_and_drawn_classifiers_survive(method, tmp_path, cut_short):
    check(
        experiment(DIGITS_MAML, method__name=method, method__exclusive=True), tmp_path, cut_short, 2
    )


@pytest.mark.slow
def test_states_on_disk_survive_and_are_those_in_memory(make, tmp_path, monkeypatch, cut_short):
    """With many clients replies and states are on disk, a checkpoint writes what changed, some
    clients are measured.
    """
    experiment = make({**LAST, "strategy.name": "scaffold", "strategy.fraction": 0.6})
    few = run(experiment, tmp_path / "few")
    monkeypatch.setattr(in_process, "_MANY", 1)
    monkeypatch.setattr(zero_shot_summary, "_MEASURED", 1)
    many, _ = check(experiment, tmp_path, cut_short, 3)
    assert list((many.path / "checkpoints").glob("*.clients"))
    assert same(many, few)
    for ours, theirs in zip(many.metrics, few.metrics, strict=True):
        assert ours.pop("measured") == theirs["participants"][:1]
        assert ours.pop("clients") == {
            name: values[:1] for name, values in theirs.pop("clients").items()
        }
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}


TRACKED = {**LAST, "strategy.rounds": 4, "method.hidden": [8]}


def interrupted_and_resumed(kind, out):
    """Track a run that breaks off when the third round is done but not yet heard of, and then
    continues.
    """
    experiment = Experiment.load("digit-pairs", TRACKED)

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
    for name, value in (
        ("zsl", lambda line: line["zsl"]),
        ("losses/loss", lambda line: line["losses"]["loss"]),
    ):
        shown = [(event.step, event.value) for event in events.Scalars(name)]
        assert shown == [
            (line["round"], pytest.approx(value(line), rel=1e-6)) for line in done.metrics
        ]


@pytest.mark.slow
def test_mlflow_goes_on_in_the_same_run(tmp_path, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    done = interrupted_and_resumed("mlflow", tmp_path / "run")
    client = tracking.MlflowClient(tracking_uri=(tmp_path / "run" / "mlruns").as_uri())
    (found,) = client.search_runs([client.get_experiment_by_name("digit-pairs").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["strategy.rounds"] == "4"
    shown = {m.step: m.value for m in client.get_metric_history(found.info.run_id, "zsl")}
    assert shown == {line["round"]: pytest.approx(line["zsl"]) for line in done.metrics}


def test_an_unknown_tracker_is_refused(tmp_path):
    sentence = (
        "--track: unknown tracker 'mlfow': did you mean 'mlflow'? (known: mlflow, tensorboard)"
    )
    with (
        refuses(sentence),
        tracked(None, ["mlfow"], tmp_path, Experiment.load("digit-pairs", TRACKED)),
    ):
        pass
