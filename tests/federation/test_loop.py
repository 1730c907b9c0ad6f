"""A federation without an experiment file, its loop and callbacks: their order, how they stop it,
and a resume.
"""

from dataclasses import replace
from functools import partialmethod

import numpy as np
import pytest
import torch

from fedunseen import Benchmark, Callback, Experiment, Federation, Partition, fit, run
from fedunseen.core.errors import ArgumentError
from fedunseen.core.random import stream
from fedunseen.core.registry import find
from fedunseen.experiment.assemble import assemble, load_data, partition_of, resolve_defaults
from fedunseen.federation.callbacks import EarlyStop, Evaluate
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.methods import FedZSL
from fedunseen.strategies import Centralised, FedAvg
from fedunseen.tasks.zero_shot import ZeroShotEvaluator
from same import same
from small_runs import LAST

QUICK = {
    "data.train_per_class": 4, "data.test_per_class": 2, "method.kl": 0, "partition.clients": 3,
    "strategy.local_epochs": 1, "strategy.rounds": 6, "evaluation.embedding": False,
}  # fmt: skip
LAST_ROUND = {**QUICK, **LAST}


@pytest.fixture
def federation():
    """Two clients and one unseen class."""
    animals = {"horse": [1, 0, 0], "tiger": [1, 1, 0], "cow": [1, 0.1, 0.3], "zebra": [1, 0.9, 0.2]}
    seen = ["horse", "tiger", "cow"]
    test = (list(animals.values()), list(animals))
    benchmark = Benchmark.from_arrays([animals[name] for name in seen], seen, animals, test=test)
    method = FedZSL.on(benchmark, lr=0.1, kl=0.0, consistency=0.0)
    return Federation(benchmark, Partition.of([[0], [1, 2]]), method, FedAvg())


def test_all_samples_are_put_in_one_place_for_good(federation):
    apart = replace(
        Partition.of([[2], [0, 1], [1]]), first=np.array([1, 0, 2]), last=np.array([3, 1, 5])
    )
    partition = Federation(federation.benchmark, apart, federation.method, Centralised()).partition
    assert [held.tolist() for held in partition.clients] == [[0, 1, 2]]
    assert partition.present(0) == partition.present(1000) == [0]


def test_a_client_that_would_train_on_a_test_sample_is_refused(federation):
    benchmark = federation.benchmark
    wrong = int(benchmark.test_seen[0])
    clients = Partition.of([[0], [1, wrong]])
    with pytest.raises(ArgumentError, match=f"client 1 holds sample {wrong}"):
        Federation(benchmark, clients, federation.method, FedAvg())


class Spy(Callback):
    """Notes what is called, and stops after a round."""

    def __init__(self, name, calls, stop_after=None):
        self.name, self.calls, self.stop_after = name, calls, stop_after

    def note(self, loop, stage):
        self.calls.append((self.name, stage, loop.state.round))
        if (stage, loop.state.round) == ("after", self.stop_after):
            loop.stop("enough")

    on_start, before_round = partialmethod(note, stage="start"), partialmethod(note, stage="before")
    after_round, on_end = partialmethod(note, stage="after"), partialmethod(note, stage="end")


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
    loop = fit(
        federation,
        50,
        [Evaluate(ZeroShotEvaluator(federation, federation.benchmark)), EarlyStop(3)],
    )
    assert len(loop.history) < 50
    assert (loop.metrics["zsl"], loop.rounds_since_best, loop.reason) == (
        100,
        3,
        "no gain in 3 rounds",
    )


class Stop(Callback):
    """Stops after a round, whose metrics it adds a number to; may end the process there, as a kill
    would.
    """

    def __init__(self, after, killed=False):
        self.after, self.killed = after, killed

    def after_round(self, loop):
        loop.metrics["mine"] = 2 * loop.state.round
        if loop.state.round >= self.after:
            loop.stop("I have seen enough")

    def on_end(self, loop):
        if self.killed:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_takes_callbacks_and_reports_the_last_round(tmp_path):
    done = run(Experiment.load("digit-pairs", LAST_ROUND), tmp_path / "run", callbacks=[Stop(3)])
    short = run(
        Experiment.load("digit-pairs", {**LAST_ROUND, "strategy.rounds": 3}), tmp_path / "short"
    )
    assert [line["mine"] for line in done.metrics] == [2, 4, 6]
    assert done.result["stopped"] == {"round": 3, "of": 6, "why": "I have seen enough"}
    assert done.result["selected_round"] == done.result["rounds"] == 3
    assert done.result["zsl"] == short.result["zsl"]
    assert same(done, short)


def test_where_the_round_is_chosen_a_callback_stops_the_choice_alone(tmp_path):
    done = run(Experiment.load("digit-pairs", QUICK), tmp_path / "run", callbacks=[Stop(2)])
    assert [line["mine"] for line in RunDirectory(done.path / "selection").metrics()] == [2, 4]
    assert done.result["rounds"] == done.result["selected_round"] <= 2
    assert done.result["stopped"]["why"] == "I have seen enough"


@pytest.mark.slow
def test_a_run_that_was_stopped_and_killed_does_not_go_on(tmp_path):
    experiment = Experiment.load("digit-pairs", LAST_ROUND)
    with pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path / "run", callbacks=[Stop(2, killed=True)])
    assert not (tmp_path / "run" / "model.safetensors").exists()
    done = run(
        experiment, tmp_path / "run", resume=True, callbacks=[Callback()]
    )  # derives nothing itself
    assert (done.result["rounds"], done.result["stopped"]["why"]) == (2, "I have seen enough")
    assert same(done, run(experiment, tmp_path / "other", callbacks=[Stop(2)]))


FEW = {
    "data.train_per_class": 4,
    "data.test_per_class": 2,
    "strategy.rounds": 2,
    "evaluation.selection": "last",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        *(
            ("digit-pairs", {"strategy.name": name})
            for name in ("fedavg", "scaffold", "centralised", "local")
        ),
        ("digit-pairs-clswgan", {"method.hidden": 16}),  # whose seen-class softmax never travels
        ("digit-pairs-gaussian", {"strategy.rounds": 1}),  # whose clients send sums
    ],
)
def test_plain_and_assembled_agree_bit_for_bit(preset, settings):
    """A federation without an experiment file does what the same choices in a file do."""
    experiment = Experiment.load(preset, {**FEW, **settings})
    benchmark = load_data(experiment, 0)
    partition = partition_of(experiment, benchmark, 0)
    made = assemble(experiment, benchmark, partition)
    own = find("strategy", experiment.strategy.name)(experiment.strategy)
    plain = Federation(benchmark, partition, made.method, own, inputs=made.inputs)
    assert plain.first.keys() == made.first.keys()
    loops = [fit(federation, experiment.strategy.rounds) for federation in (plain, made)]
    one, other = (loop.state for loop in loops)
    assert (one.round, "dropped" in loops[0].metrics) == (experiment.strategy.rounds, False)
    assert same(one.params, other.params)
    assert one.clients.keys() == other.clients.keys()
    ours, theirs = (f.answers(f.models(s)[0]) for f, s in ((plain, one), (made, other)))
    assert np.array_equal(ours.zsl, theirs.zsl)


def test_a_rate_left_to_the_data_is_the_same_with_and_without_a_file():
    """Samples sorted by class whose later classes are longer: the first thousand alone would say
    another length.
    """
    random = np.random.default_rng(0)
    classes = {name: random.uniform(size=4) for name in "abcdef"}
    samples = (random.normal(size=(2000, 6)) * np.repeat([1.0, 1, 1, 9, 9], 400)[:, None]).astype(
        np.float32
    )
    experiment = Experiment.load(
        "digit-pairs", {"data.features": [], "method.hidden": [], "method.lr": None, **FEW}
    )
    benchmark = Benchmark.from_arrays(samples, np.repeat(list("abcde"), 400), classes)
    rate = resolve_defaults(experiment, benchmark).method.lr
    method, first = (
        FedZSL.on(benchmark, **experiment.method.model_dump(exclude={"name"})) for _ in range(2)
    )
    Federation(benchmark, Partition.of([[0, 1], [2, 3, 4]]), method, FedAvg())
    assert method.settings.lr == rate
    first.resolve_defaults(
        first.init(stream(0, "initialisation")), torch.from_numpy(benchmark.features[:1000])
    )
    assert first.settings.lr > 1.5 * rate
