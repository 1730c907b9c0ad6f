"""The search of a bench's trained rows: where it goes, when its runs end, which values it marks."""

import math
from types import SimpleNamespace

import pytest

from fedunseen import Experiment
from fedunseen.core.errors import FedUnseenError
from fedunseen.core.phases import SGD, Adam
from fedunseen.data.benchmarks.digit_pairs import DigitPairs
from fedunseen.federation.loop import NOT_MEASURED
from fedunseen.methods import FedZSL
from fedunseen.pages.report.bench_page import EDGE, write_bench_report
from fedunseen.research.papers import tuning
from fedunseen.research.papers.bench import lines, read_bench, run_bench
from fedunseen.research.papers.tuning import QuarterWithoutGain, at_edges, search
from fedunseen.research.sweep.schema import Step

SMALL = {
    "data.name": "digit-pairs",
    "data.train_per_class": 6,
    "data.test_per_class": 6,
    "partition.kind": "pccd",
    "partition.clients": 4,
    "method.name": "fedzsl",
    "method.kl": 0.0,
    "method.consistency": 0.0,
    "strategy.name": "fedavg",
    "strategy.rounds": 3,
    "strategy.local_epochs": 1,
}
STEPS = [
    {"key": "method.lr", "start": 1.0},
    {"key": "method.lr", "start": 0.01, "set": {"method.optimiser": "adam"}},
    {"key": "strategy.server_lr", "start": 1.0, "set": {"strategy.name": "fedavgm"}},
    {"key": "method.lr"},
]


def bowl(point):
    """Return an accuracy that is best with Adam at 0.09 and server momentum at 0.333."""
    if point["method.lr"] > 20:
        return None
    adam = "method.optimiser" in point
    h = 60.0 + 10 * adam - 3 * abs(math.log(point["method.lr"] / (0.09 if adam else 3.0)))
    if "strategy.name" in point:
        h += 5 - abs(math.log(point["strategy.server_lr"] / 0.333))
    return h


@pytest.fixture
def measured(monkeypatch):
    """The points that a search runs, each measured by ``bowl`` in place of training."""
    points = []

    def measure(self, name, point):
        points.append(dict(point))
        h = bowl(point)
        if h is None:
            return {"problem": "training diverged"}
        numbers = {"zsl": h, "gzsl_harmonic": h, "gzsl_seen": h, "rounds": 9}
        return numbers | {"selected_round": 7, "calibration_factor": 0.5}

    monkeypatch.setattr(tuning._Trials, "_measured", measure)
    return points


def steps(*tables):
    return [Step.model_validate(table) for table in tables]


def find(path, runs=50, of=STEPS):
    return search(Experiment.from_dict({}, SMALL), steps(*of), runs, path, lambda words: None)


def test_a_climb_ends_between_two_worse_values_and_a_better_optimizer_stays(measured, tmp_path):
    found = find(tmp_path)
    expected = {"method.lr": 0.09, "method.optimiser": "adam", "strategy.name": "fedavgm"}
    assert found.settings == expected | {"strategy.server_lr": 0.333}
    assert (found.round, found.factor) == (7, 0.5)
    assert at_edges(found.settings, found.tried, None) == []
    assert len(measured) == len(found.tried) == len({str(point) for point in measured})


def test_the_budget_is_kept_and_what_it_cuts_off_is_at_an_edge(measured, tmp_path):
    found = find(tmp_path, runs=2)
    assert len(measured) == 2
    assert found.settings == {"method.lr": 3.0}
    assert at_edges(found.settings, found.tried, None) == ["method.lr"]


def test_a_step_goes_on_beyond_the_budget_by_the_runs_that_it_adds(measured, tmp_path):
    hidden = {"key": "method.hidden", "start": 513, "factor": 2.0, "runs": 2}
    found = find(tmp_path, runs=2, of=[*STEPS[:3], hidden])
    assert [point.get("method.hidden") for point in measured] == [None, None, 513, 1026]
    assert [type(point["method.hidden"]) for point in measured[2:]] == [int, int]
    assert found.settings == {"method.lr": 3.0}  # another size gained nothing


def test_a_climb_along_a_whole_number_ends_at_one(measured, tmp_path):
    find(tmp_path, of=[STEPS[0], {"key": "method.critic_steps", "start": 2, "factor": 2.0}])
    assert [point.get("method.critic_steps") for point in measured[-3:]] == [2, 4, 1]


def test_a_second_search_runs_only_what_is_missing(measured, tmp_path):
    find(tmp_path, runs=3)
    first = list(measured)
    find(tmp_path)
    assert measured[:3] == first
    assert len({str(point) for point in measured}) == len(measured)


def test_a_point_that_diverges_is_the_worst_and_nothing_else_is_refused(measured, tmp_path):
    found = find(tmp_path, of=[{"key": "method.lr", "start": 18.0}])
    assert found.settings == {"method.lr": 2.0}
    with pytest.raises(FedUnseenError, match="could be trained"):
        find(tmp_path / "other", of=[{"key": "method.lr", "start": 1e9}], runs=2)


def test_a_strategy_takes_none_of_the_settings_of_the_one_before(measured, tmp_path):
    adam = {"key": "strategy.server_lr", "start": 1.0, "set": {"strategy.name": "fedadam"}}
    find(tmp_path, of=[*STEPS[:3], adam])
    assert {point["strategy.server_lr"] for point in measured[-3:]} != {0.333}
    assert {point["strategy.name"] for point in measured[-2:]} == {"fedadam"}


@pytest.mark.parametrize(
    ("run", "since", "stops"), [(20, 7, False), (20, 8, True), (60, 14, False), (60, 15, True)]
)
def test_a_run_ends_after_a_quarter_without_gain(run, since, stops):
    reasons = []
    loop = SimpleNamespace(
        history=[{}] * run, rounds_since_best=since, scores=[(1.0, 1.0)], stop=reasons.append
    )
    QuarterWithoutGain().before_round(loop)
    loop.scores = [NOT_MEASURED]
    QuarterWithoutGain().before_round(loop)
    assert len(reasons) == stops


def test_edges_are_those_of_what_was_tried_with_the_same_optimizer():
    tried = [{"settings": {"lr": value}} for value in (0.1, 0.3, 1.0)]
    adam = [{"settings": {"lr": value, "optimiser": "adam"}} for value in (0.01, 0.1)]
    rounds = {"strategy.rounds": 30}
    assert at_edges({"lr": 0.3} | rounds, tried + adam, 31) == []
    assert at_edges({"lr": 1.0} | rounds, tried + adam, 30) == ["lr", "strategy.rounds"]
    assert at_edges({"lr": 0.1, "optimiser": "adam"}, tried[1:] + adam, None) == []
    assert at_edges({"lr": 0.1, "optimiser": "adam"}, adam, None) == ["lr"]
    assert at_edges({"factor": 2.0} | rounds, [], None) == []


def test_clients_may_have_adam():
    benchmark = DigitPairs.load(DigitPairs.Settings(train_per_class=2, test_per_class=2), 0)
    sgd, adam, fast = (
        FedZSL.on(benchmark, kl=0.0, consistency=0.0, **settings)
        for settings in ({}, {"optimiser": "adam"}, {"optimiser": "adam", "lr": 0.03})
    )
    assert isinstance(sgd.phases()[0].optimiser, SGD)
    assert adam.phases()[0].optimiser == Adam(0.001, weight_decay=1e-5)
    assert fast.phases()[0].optimiser.lr == 0.03


@pytest.mark.slow
def test_a_bench_searches_and_marks_values_at_an_edge(tmp_path):
    text = """
title = "A search"
[bench]
validation_runs = 2
seeds = 2
examples = [0]
pool = false
[[bench.steps]]
key = "method.lr"
start = 0.1
[experiment]
data = { name = "digit-pairs", train_per_class = 6, test_per_class = 6 }
partition = { kind = "pccd", clients = 4 }
strategy = { name = "fedavg", rounds = 2, local_epochs = 1 }
evaluation = { clients = false, embedding = false }
[axes.method.fedzsl]
method = { name = "fedzsl", kl = 0.0, consistency = 0.0 }
[axes.method.gaussian]
method = { name = "gaussian" }
evaluation.choose = { "method.shrinkage" = [0.1, 0.5] }
"""
    (tmp_path / "searched.toml").write_text(text, "utf-8")
    sweep, bench = read_bench(tmp_path / "searched.toml")
    out = tmp_path / "out"
    assert not run_bench(sweep, bench, out, sweep.cells)
    found = lines(sweep, bench, out)
    assert [line.status for line in found] == ["done", "done"]
    assert "method.lr" in found[0].edges  # two runs cannot have a worse value on both sides
    assert found[1].edges == ("method.shrinkage",)
    assert len(list((out / "searched" / "fedzsl").glob("*.json"))) == 2
    write_bench_report(sweep, bench, found, out)
    rows = (out / "leaderboard.md").read_text("utf-8").splitlines()[-2:]
    assert all(EDGE in row for row in rows)
