"""Runs with malicious clients, screening, a defence or private merging."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from fedunseen import Experiment, FedUnseenError, run
from fedunseen.experiment.assemble import assemble, load_data, partition_of
from fedunseen.federation import in_process
from fedunseen.federation.run_directory import load_params
from fedunseen.pages.report import write_report
from known_names import accounted
from pages import without_pictures
from refusals import message_of
from same import same
from small_runs import LAST

BACKDOOR = {
    **LAST,
    "attack.name": "backdoor",
    "attack.triggers": ["object"],
    "attack.rounds": "2-3",
    "attack.scale": 3,
}
FMD = {**LAST, "screening.name": "magnitude"}
DIGITS = {
    **LAST,
    "strategy.rounds": 3,
    "data.train_per_class": 10,
    "data.test_per_class": 4,
    "method.kl": 0,
}


def federation(experiment):
    benchmark = load_data(experiment, 0)
    return assemble(experiment, benchmark, partition_of(experiment, benchmark, 0))


def digits(settings):
    return Experiment.load("digit-pairs", {**DIGITS, **settings})


def after(experiment, rounds, mode="auto"):
    """Return the result of the last of some rounds of an experiment's federation."""
    made = federation(experiment)
    made.engine.worker.mode, state = mode, made.start()
    for _ in range(rounds):
        state, result = made.round(state)
    return result


@pytest.mark.slow
def test_what_poisons_or_drops_nothing_changes_no_bit(ran):
    honest = ran(LAST, "honest")
    assert same(
        ran({**BACKDOOR, "attack.scale": 1, "attack.probability": 0}, "poisons nothing"), honest
    )
    assert same(ran({**FMD, "screening.threshold": -1e9}, "drops nothing"), honest)


def test_what_a_run_says_of_an_attack(ran):
    done = ran(BACKDOOR)
    said, result, attack = done.metrics, done.result, done.result["attack"]
    assert [line["attackers"] for line in said] == [[], [0], [0], []]
    assert all(0 <= line["backdoor"] == line["backdoor_of"]["object"] <= 100 for line in said)
    assert (attack["rounds"], attack["clients"]) == ([2, 3], [0])
    (trigger,) = attack["triggers"]
    assert trigger["source"].startswith("samples of ")
    # of thirty training samples of classes that it does not hold
    assert (trigger["client"], trigger["trained"], trigger["tested"]) == (0, 15, 15)
    backdoors = [line["backdoor"] for line in said]
    names = ("backdoor_before", "backdoor_attacked", "backdoor", "backdoor_highest")
    assert [result[name] for name in names] == [*backdoors[:2], backdoors[3], max(backdoors[1:])]
    assert attack["main"]["attacked"]["zsl"] == said[1]["zsl"]
    magnitudes = {
        path.name: set(load_params(path)) for path in (done.path / "magnitudes").iterdir()
    }
    assert magnitudes == {f"round-{r}.safetensors": {"clean", "object"} for r in (1, 2, 4)}


def test_the_malicious_client_sends_beta_times_what_it_has_learned(make):
    once, thrice = (
        after(make({**BACKDOOR, "attack.scale": scale}), 2).replies[0] for scale in (1, 3)
    )
    for name, value in once.update.items():
        torch.testing.assert_close(thrice.update[name], 3 * value)


@pytest.mark.slow
def test_an_update_of_nan_is_left_out_and_a_last_round_of_nothing_else_ends(ran):
    nan = {**LAST, "attack.name": "nan", "attack.rounds": "2"}
    done = ran(nan)
    assert [line.get("dropped") for line in done.metrics] == [
        None,
        {"0": "the update is not finite"},
        None,
        None,
    ]
    assert done.metrics[1]["participants"] == [1, 2]
    done = ran({**nan, "strategy.rounds": 2, "attack.clients": [0, 1, 2]}, "all")
    assert done.metrics[1]["participants"] == []
    assert write_report(done).exists()
    assert same(done, after(done.experiment, 1).params)


def test_an_ordinary_run_says_nothing_of_threats(finished):
    result = json.dumps([finished.manifest["experiment"], finished.result, finished.metrics])
    assert not any(word in result for word in ("attack", "backdoor", "screening", "dropped"))
    assert not (finished.path / "magnitudes").exists()


def test_batched_and_one_at_a_time_agree_under_attack_and_screening(make):
    experiment = make({**BACKDOOR, **FMD, "method.kl": 1.0})
    batched, single = (after(experiment, 3, mode) for mode in ("batched", "one-at-a-time"))
    torch.testing.assert_close(batched.params, single.params, rtol=1e-4, atol=1e-5)
    for one, other in zip(batched.replies, single.replies, strict=True):
        assert one.notes == pytest.approx(other.notes, rel=1e-4)


def test_about_a_percentile_of_clean_samples_is_dropped(ran):
    done = ran({**FMD, "screening.percentile": 20})
    for result in (line["screening"] for line in done.metrics):
        assert result["clean"] == sum(one["clean"] for one in result["clients"]) == 80
        assert result["poisoned"] == result["poisoned_dropped"] == 0
        assert result["clean_dropped"] / result["clean"] == pytest.approx(0.2, abs=0.03)
    assert done.result["screened"]["clean"] == 4 * 80
    assert not any("screening" in name for name in done.metrics[0]["losses"])


def test_a_threshold_that_drops_every_sample_keeps_the_old_model_and_says_so(make, tmp_path):
    experiment = make(
        {**FMD, "screening.threshold": 1e9, "strategy.rounds": 2, "method.weight_decay": 0.1}
    )
    sentence = "every sample of every client was below the threshold of [screening]: the model stays as it was"
    with pytest.warns(match=f"^round 1: {re.escape(sentence)}$"):
        done = run(experiment, tmp_path / "run")
    assert [line["screening"]["empty"] for line in done.metrics] == [[0, 1, 2], [0, 1, 2]]
    assert same(done, federation(experiment).first)


def test_a_malicious_client_may_leave_its_screening_out(make):
    everything = {**BACKDOOR, **FMD, "screening.threshold": 1e9}
    kept, ignored = (
        after(make(everything | more), 2).replies for more in ({}, {"attack.ignore_defence": True})
    )
    sent = [
        any(value.any() for value in reply.update.values())
        for reply in (kept[0], ignored[0], ignored[1])
    ]
    assert sent == [False, True, False]
    assert ignored[0].notes == {}


@pytest.mark.slow
def test_several_attackers_have_triggers_and_targets_of_their_own(tmp_path):
    settings = {"attack.name": "backdoor", "attack.rounds": "3", "attack.clients": [4, 1, 7]}
    settings |= {
        "attack.triggers": ["background", "style", "object"],
        "attack.targets": ["13", "02", "45"],
    }
    done = run(digits(settings), tmp_path / "run")
    assert set(done.metrics[0]["backdoor_of"]) == {"background", "style", "object"}
    assert [(t["client"], t["target"]) for t in done.result["attack"]["triggers"]] == [
        (4, "13"),
        (1, "02"),
        (7, "45"),
    ]
    assert done.metrics[2]["attackers"] == [1, 4, 7]
    shown = load_params(done.path / "magnitudes" / "triggers.safetensors")
    assert {tuple(value.shape[1:]) for value in shown.values()} == {(1, 8, 16)}
    made = federation(digits({**settings, "attack.triggers": ["style"]}))
    assert [probe.name for probe in made.monitors[0].attack.probes] == [
        "style 4",
        "style 1",
        "style 7",
    ]


@pytest.mark.slow
def test_model_replacement_replaces_the_model(tmp_path):
    settings = {
        "strategy.rounds": 8,
        "attack.name": "backdoor",
        "attack.rounds": "8",
        "attack.samples": 20,
    }
    result = run(digits(settings), tmp_path / "run").result
    assert result["backdoor_before"] < 20
    assert result["backdoor_attacked"] >= 80


def test_triggers_from_a_folder(tmp_path):
    for kind, colour in (("style", 250), ("background", 120)):
        (tmp_path / kind).mkdir()
        for i in range(2):
            Image.new("L", (32, 20), colour + i).save(tmp_path / kind / f"{i}.png")
    settings = {
        "attack.triggers": ["style", "background"],
        "attack.folder": str(tmp_path),
        "attack.samples": 5,
    }
    settings |= {"attack.name": "backdoor", "attack.rounds": "2", "attack.clients": [0, 1]}
    probes = federation(digits(settings)).monitors[0].attack.probes
    sources = [
        f"2 pictures in {tmp_path / kind}, whole and in pieces"
        for kind in settings["attack.triggers"]
    ]
    assert [probe.source for probe in probes] == sources
    values = [
        set((255 * one).round().flatten().tolist())
        for one in (probes[0].inputs, probes[0].magnitudes)
    ]
    assert sorted(map(tuple, values)) == [(250.0,), (251.0,)]  # one picture each


def objects(**own):
    """Return the federation of an attack with objects, their rows, their classes, and the likeness
    of all classes.
    """
    made = federation(digits({**BACKDOOR, "attack.clients": [0], "attack.samples": 20, **own}))
    place = {row.numpy().tobytes(): i for i, row in enumerate(made.inputs)}
    probe, space = made.monitors[0].attack.probes[0], made.benchmark.space
    rows = [place[row.numpy().tobytes()] for row in torch.cat([probe.magnitudes, probe.inputs])]
    a = space.semantics / np.linalg.norm(space.semantics, axis=1, keepdims=True)
    return made, rows, set(made.benchmark.labels[rows].tolist()), (a @ a[probe.target]).tolist()


def test_objects_are_the_classes_most_like_the_target_no_test_samples_and_measured_on_others_than_trained_on():
    made, rows, taken, likeness = objects()
    measured, trained = (
        made.monitors[0].attack.probes[0].inputs,
        made.monitors[0].attack.poisons[0].inputs,
    )
    assert not (measured[:, None] == trained[None]).all(-1).any()
    benchmark, own = made.benchmark, made.partition.clients[0]
    assert not np.isin(
        rows, np.concatenate([benchmark.test_seen, benchmark.test_unseen, own])
    ).any()
    others = np.setdiff1d(benchmark.space.seen, benchmark.labels[own]).tolist()
    assert taken == set(sorted(others, key=likeness.__getitem__, reverse=True)[: len(taken)])


def test_different_objects_are_the_unseen_classes_least_like_the_target():
    made, rows, taken, likeness = objects(**{"attack.likeness": "different"})
    assert np.isin(rows, made.benchmark.test_unseen).all()
    assert taken <= set(sorted(made.benchmark.space.unseen.tolist(), key=likeness.__getitem__)[:3])


PRIVATE = {**LAST, "privacy.name": "client-level", "privacy.clip": 1.0, "privacy.noise": 0.5}


def break_client(monkeypatch, wrong):
    """Let clients send what is not finite; ``wrong``: round (from 0) -> clients."""
    honest = in_process.Worker.round

    def worse(self, works, round):
        done = list(honest(self, works, round))
        for reply, _ in done:
            if reply.client in wrong.get(round, ()):
                next(iter(reply.update.values())).fill_(float("nan"))
        return done

    monkeypatch.setattr(in_process.Worker, "round", worse)


def test_a_reply_that_is_not_finite_is_left_out_and_named(ran, monkeypatch):
    break_client(monkeypatch, {1: [1]})
    sentence = "training diverged: the update of client 1 in round 2 is not finite"
    assert sentence in message_of(ran, LAST, "plain", error=FedUnseenError)
    done = ran({**LAST, "defence.name": "median"}, "defended")
    assert [line.get("dropped") for line in done.metrics] == [
        None,
        {"1": "the update is not finite"},
        None,
        None,
    ]
    assert done.metrics[1]["participants"] == done.metrics[1]["defence"]["clients"] == [0, 2]


def test_a_round_that_drops_everybody_keeps_the_old_model_and_says_so(ran, monkeypatch):
    break_client(monkeypatch, {3: [0, 1, 2]})
    clipped = {**LAST, "defence.name": "norm-clip"}
    done = ran(clipped, "lost")
    assert done.metrics[3]["defence"]["merged"] is False
    assert done.metrics[3]["zsl"] == done.metrics[2]["zsl"]
    assert same(done, ran({**clipped, "strategy.rounds": 3}, "three"))


@pytest.mark.slow
@accounted
def test_private_runs_say_what_they_cost(ran):
    whole = ran(
        {**PRIVATE, "strategy.fraction": 0.5, "strategy.rounds": 6, "privacy.epsilon": 100.0}
    )
    spent = [line["privacy"]["epsilon"] for line in whole.metrics]
    assert spent == sorted(spent)
    assert 0 < spent[0] < spent[-1] == whole.result["epsilon"] <= 100
    assert (
        len({len(line["participants"]) for line in whole.metrics}) > 1
    )  # each client is drawn by itself


@pytest.mark.slow
@accounted
def test_a_private_round_may_have_nobody_in_it(ran):
    done = ran({**PRIVATE, "strategy.fraction": 0.05, "strategy.rounds": 5})
    assert any(not line["participants"] for line in done.metrics)
    assert done.result["bytes_up"] >= 0
    assert "epsilon" in without_pictures(write_report(done).read_text("utf-8"))


@pytest.mark.slow
@accounted
def test_a_defence_and_private_merging_together(ran):
    done = ran({**PRIVATE, "defence.name": "norm-clip", "defence.bound": 0.2})
    assert {"defence", "privacy"} <= set(done.metrics[0])
    assert max(done.metrics[0]["defence"]["norms"]) > 0.2
    assert done.metrics[0]["privacy"]["clipped"] == 0  # the defence has shortened them before
