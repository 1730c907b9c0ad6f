"""The loop and its callbacks: what they see, in which order, that they can stop it, and that a resume continues."""

import json

import pytest

from fedunseen import Benchmark, Callback, Experiment, Federation, Partition, fit, run
from fedunseen.federation.callbacks import EarlyStop, Evaluate
from fedunseen.methods import FedZSL
from fedunseen.strategies import FedAvg
from fedunseen.tasks.zero_shot import ZeroShotEvaluator
from same import same

QUICK = {
    "data.train_per_class": 4, "data.test_per_class": 2, "method.kl": 0, "partition.clients": 3,
    "strategy.local_epochs": 1, "strategy.rounds": 6, "evaluation.embedding": False,
}  # fmt: skip
LAST = {**QUICK, "evaluation.selection": "last"}


@pytest.fixture
def federation():
    """Two clients and one unseen class."""
    animals = {"horse": [1, 0, 0], "tiger": [1, 1, 0], "cow": [1, 0.1, 0.3], "zebra": [1, 0.9, 0.2]}
    seen = ["horse", "tiger", "cow"]
    test = (list(animals.values()), list(animals))
    benchmark = Benchmark.from_arrays([animals[name] for name in seen], seen, animals, test=test)
    method = FedZSL.on(benchmark, lr=0.1, kl=0.0, consistency=0.0)
    return Federation(benchmark, Partition.of([[0], [1, 2]]), method, FedAvg())


class Spy(Callback):
    """Notes what is called, and stops after a round."""

    def __init__(self, name, calls, stop_after=None):
        self.name, self.calls, self.stop_after = name, calls, stop_after

    def on_start(self, loop):
        self.calls.append((self.name, "start", loop.state.round))

    def before_round(self, loop):
        self.calls.append((self.name, "before", loop.state.round))

    def after_round(self, loop):
        self.calls.append((self.name, "after", loop.state.round))
        if loop.state.round == self.stop_after:
            loop.stop("enough")

    def on_end(self, loop):
        self.calls.append((self.name, "end", loop.state.round))


def test_callbacks_are_called_in_the_order_of_the_list(federation):
    calls = []
    loop = fit(federation, 2, [Spy("a", calls), Spy("b", calls)])
    stages = [("start", 0), ("before", 0), ("after", 1), ("before", 1), ("after", 2), ("end", 2)]
    assert calls == [(name, *stage) for stage in stages for name in "ab"]
    assert [line["round"] for line in loop.history] == [1, 2]
    assert loop.metrics["participants"] == [0, 1]


def test_the_loop_is_the_loop_by_hand_also_when_it_goes_on(federation):
    state = federation.start()
    for _ in range(4):
        state, _ = federation.round(state)
    half = fit(federation, 2)
    whole = fit(federation, 4, state=half.state, history=half.history)
    assert [line["round"] for line in whole.history] == [1, 2, 3, 4]
    assert same(whole.state.params, state.params)


@pytest.mark.parametrize(("stoppable", "rounds"), [(True, 2), (False, 3)])
def test_a_callback_stops_the_loop_unless_the_rounds_are_fixed(federation, stoppable, rounds):
    calls = []
    loop = fit(federation, 3, [Spy("a", calls, stop_after=2), Spy("b", calls)], stoppable=stoppable)
    assert len(loop.history) == rounds
    assert loop.reason == ("enough" if stoppable else "")
    assert calls[-3:] == [("b", "after", rounds), ("a", "end", rounds), ("b", "end", rounds)]


def test_evaluate_measures_and_early_stop_stops(federation):
    loop = fit(federation, 50, [Evaluate(ZeroShotEvaluator(federation, federation.benchmark)), EarlyStop(3)])
    assert loop.metrics["zsl"] == 100
    assert len(loop.history) < 50
    assert loop.rounds_since_best == 3
    assert loop.reason == "no gain in 3 rounds"


class Stop(Callback):
    """Stops after a round, and adds a number to its metrics."""

    def __init__(self, after):
        self.after = after

    def after_round(self, loop):
        loop.metrics["mine"] = 2 * loop.state.round
        if loop.state.round >= self.after:
            loop.stop("I have seen enough")


def test_a_run_takes_callbacks_and_reports_the_last_round(tmp_path):
    done = run(Experiment.load("digit-pairs", LAST), tmp_path / "run", callbacks=[Stop(3)])
    short = run(Experiment.load("digit-pairs", {**LAST, "strategy.rounds": 3}), tmp_path / "short")
    assert [line["mine"] for line in done.metrics] == [2, 4, 6]
    assert done.result["stopped"] == {"round": 3, "of": 6, "why": "I have seen enough"}
    assert done.result["selected_round"] == done.result["rounds"] == 3
    assert done.result["zsl"] == short.result["zsl"]
    assert same(done, short)


def test_where_the_round_is_chosen_a_callback_stops_the_choice_alone(tmp_path):
    done = run(Experiment.load("digit-pairs", QUICK), tmp_path / "run", callbacks=[Stop(2)])
    lines = (tmp_path / "run" / "selection" / "metrics.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["mine"] for line in lines] == [2, 4]
    assert done.result["rounds"] == done.result["selected_round"] <= 2
    assert done.result["stopped"]["why"] == "I have seen enough"


class Interrupt(Callback):
    """Ends the process, as a kill would, once the round is recorded."""

    def on_end(self, loop):
        raise KeyboardInterrupt


def test_a_run_that_was_stopped_and_killed_does_not_go_on(tmp_path):
    experiment = Experiment.load("digit-pairs", LAST)
    with pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path / "run", callbacks=[Stop(2), Interrupt()])
    assert not (tmp_path / "run" / "model.safetensors").exists()
    done = run(experiment, tmp_path / "run", resume=True, callbacks=[Callback()])  # derives nothing itself
    assert done.result["rounds"] == 2
    assert done.result["stopped"]["why"] == "I have seen enough"
    assert same(done, run(experiment, tmp_path / "other", callbacks=[Stop(2)]))
