"""Runs that do not measure every round (``evaluation.every``)."""

import re

import pytest

from fedunseen import Experiment, run
from fedunseen.report import write_report
from pages import without_pictures

SMALL = {
    "data.train_per_class": 4, "data.test_per_class": 2, "method.kl": 0, "strategy.rounds": 7,
    "evaluation.selection": "last", "evaluation.embedding": False,
    "partition.clients": 3, "strategy.local_epochs": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run, measured every round and every third."""
    folder = tmp_path_factory.mktemp("every")
    return {
        every: run(Experiment.load("digit-pairs", {**SMALL, "evaluation.every": every}), folder / str(every))
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
    assert all((often.params[name] == value).all() for name, value in seldom.params.items())
    assert seldom.result["zsl"] == often.result["zsl"]


def test_pages_and_tables_have_the_measured_rounds(runs):
    page = write_report(runs[3]).read_text()
    assert not re.search(r"\bnan\b", without_pictures(page), re.IGNORECASE)
    rounds = runs[3].tables()["rounds"]
    assert [value is None for value in rounds["zsl"]] == [False, True, False, True, True, False, False]
    assert None not in rounds["losses.loss"]


def test_only_a_measured_round_is_chosen(tmp_path):
    settings = {**SMALL, "evaluation.selection": "best-on-test", "evaluation.every": 2, "strategy.rounds": 5}
    done = run(Experiment.load("digit-pairs", settings), tmp_path / "run")
    assert done.result["selected_round"] in (1, 2, 4, 5)
    best = max((line for line in done.metrics if "zsl" in line), key=lambda line: line["gzsl_harmonic"])
    assert done.result["gzsl_harmonic"] == best["gzsl_harmonic"]


def test_clients_own_models_are_measured_in_some_rounds_and_in_each_where_asked(runs, tmp_path):
    seldom = runs[1]
    assert [line["round"] for line in seldom.metrics if "clients" in line] == [1, 2, 4, 6, 7]
    asked = run(Experiment.load("digit-pairs", {**SMALL, "evaluation.clients": True}), tmp_path / "asked")
    assert all("clients" in line for line in asked.metrics)
    for one, line in zip(asked.metrics, seldom.metrics, strict=True):
        assert line.get("clients", one["clients"]) == one["clients"]
        assert line["zsl"] == one["zsl"]
