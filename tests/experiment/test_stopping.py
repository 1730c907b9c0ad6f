"""Rounds that are not measured, and early stopping: where it stops, and that the run is the long
one cut short.
"""

import re
from functools import partial

import pytest
import torch

from fedunseen import Experiment, run
from fedunseen.federation.loop import Loop
from fedunseen.federation.run_directory import RunDirectory, load_params
from fedunseen.pages.report import write_report
from pages import without_pictures
from same import same
from small_runs import experiment


def slowly(merits, patience):
    """Return after how many rounds a run stops: the definition, round by round."""
    best, since = None, 0
    for done, score in enumerate(merits, 1):
        since = 0 if best is None or score > best else since + 1
        best = score if best is None else max(best, score)
        if since == patience:
            return done
    return len(merits)


def test_the_rule_is_the_one_that_counts_round_by_round():
    generator = torch.Generator().manual_seed(0)
    stops = set()
    for _ in range(200):
        merits = [(float(v), 0.0) for v in torch.randint(0, 12, (12,), generator=generator)]
        for patience in (1, 2, 3, 5):
            loops = (
                Loop(None, 12, None, merits[:n], score=lambda value: value) for n in range(1, 13)
            )
            done = next(
                (len(loop.history) for loop in loops if loop.rounds_since_best >= patience), 12
            )
            assert done == slowly(merits, patience)
            stops.add(done < 12)
    assert stops == {True, False}


@pytest.mark.slow
def test_it_is_the_long_run_cut_short_and_says_where_and_why(make, tmp_path):
    long_one = {
        "strategy.rounds": 30,
        "method.lr": 0.5,
    }  # learned within a few rounds, so that gains end
    early = run(make({**long_one, "strategy.stop_after": 3}), tmp_path / "early")
    long = run(make(long_one), tmp_path / "long")
    lines, whole = (RunDirectory(one.path / "selection").metrics() for one in (early, long))
    merits = [(line["gzsl_harmonic"], line["gzsl_seen"]) for line in whole]
    assert len(lines) == slowly(merits, 3) < 30
    assert all(
        {**a, "seconds": 0} == {**b, "seconds": 0} for a, b in zip(lines, whole, strict=False)
    )
    best = max(range(len(lines)), key=lambda i: (*merits[i], i)) + 1
    assert early.result["selected_round"] == early.result["rounds"] == len(early.metrics) == best
    why = "no gain on validation classes in 3 rounds"
    assert early.result["stopped"] == {"round": len(lines), "of": 30, "why": why}
    assert "stopped" not in long.result
    assert all(
        a["losses"] == b["losses"] for a, b in zip(early.metrics, long.metrics, strict=False)
    )
    page = write_report(early).read_text("utf-8")
    # beside the numbers, and where the choice is drawn
    assert page.count(f"It stopped after round {len(lines)} of 30: {why}.") == 2
    assert not re.search("more rounds may give more|Train for more rounds", page)
    assert "It stopped" not in write_report(long).read_text("utf-8")


@pytest.mark.slow
def test_few_shot_stops_on_its_validation_episodes(tmp_path):
    """digit-pairs with frozen pixels: rounds are chosen on validation classes, which no client
    trains on.
    """
    settings = {
        "method.name": "protonet", "method.hidden": [8], "method.episodes": 4, "method.queries": 5,
        "partition.kind": "pccd", "partition.clients": 10, "evaluation.episodes": 10,
        "evaluation.validation_episodes": 5, "strategy.rounds": 12, "strategy.stop_after": 1,
    }  # fmt: skip
    done = run(Experiment.load("digit-pairs", settings), tmp_path / "run")
    merits = [(line["few_shot"], 0.0) for line in done.metrics]
    assert done.result["stopped"]["round"] == done.result["rounds"] == slowly(merits, 1) < 12
    assert "It stopped after round" in write_report(done).read_text("utf-8")
    assert {"few_shot_validation", "few_shot_base"} <= done.result.keys()
    counts, space = (
        load_params(done.path / "evaluation.safetensors")["client_counts"].numpy(),
        done.space,
    )
    assert counts[:, space.train].sum() > 0
    assert counts[:, space.validation].sum() == counts[:, space.unseen].sum() == 0


small = partial(experiment, method__kl=0, strategy__rounds=7, strategy__local_epochs=1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run, measured every round and every third."""
    return {
        every: run(small(evaluation__every=every), tmp_path_factory.mktemp("every") / "run")
        for every in (1, 3)
    }


def test_what_is_measured_is_the_same_and_nothing_else_differs(runs):
    often, seldom = runs[1], runs[3]
    assert [line["round"] for line in seldom.metrics] == list(range(1, 8))
    assert [line["round"] for line in seldom.metrics if "zsl" in line] == [1, 3, 6, 7]
    for full, line in zip(often.metrics, seldom.metrics, strict=True):
        kept = full if "zsl" in line else {name: full[name] for name in line}
        assert {**line, "seconds": 0} == {**kept, "seconds": 0}
        assert {"losses", "participants", "bytes_up"} <= line.keys()
    assert same(often, seldom)
    assert seldom.result["zsl"] == often.result["zsl"]


def test_pages_and_tables_have_the_measured_rounds(runs):
    assert not re.search(
        r"\bnan\b", without_pictures(write_report(runs[3]).read_text()), re.IGNORECASE
    )
    rounds = runs[3].tables()["rounds"]
    assert [value is None for value in rounds["zsl"]] == [
        False,
        True,
        False,
        True,
        True,
        False,
        False,
    ]
    assert None not in rounds["losses.loss"]


def test_only_a_measured_round_is_chosen(tmp_path):
    done = run(
        small(evaluation__selection="best-on-test", evaluation__every=2, strategy__rounds=5),
        tmp_path / "run",
    )
    assert done.result["selected_round"] in (1, 2, 4, 5)
    best = max(
        (line for line in done.metrics if "zsl" in line), key=lambda line: line["gzsl_harmonic"]
    )
    assert done.result["gzsl_harmonic"] == best["gzsl_harmonic"]


def test_clients_own_models_are_measured_in_some_rounds_and_in_each_where_asked(runs, tmp_path):
    seldom = runs[1]
    assert [line["round"] for line in seldom.metrics if "clients" in line] == [1, 2, 4, 6, 7]
    asked = run(small(evaluation__clients=True), tmp_path / "asked")
    assert all("clients" in line for line in asked.metrics)
    for one, line in zip(asked.metrics, seldom.metrics, strict=True):
        assert line.get("clients", one["clients"]) == one["clients"]
        assert line["zsl"] == one["zsl"]
