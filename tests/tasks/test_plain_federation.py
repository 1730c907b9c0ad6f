"""A federation without an experiment file does what the same choices in a file do."""

import numpy as np
import pytest
import torch

from fedunseen import Experiment
from fedunseen.core.random import stream
from fedunseen.data.benchmark import Benchmark
from fedunseen.experiment.assemble import assemble, load_data, partition_of, resolve_defaults
from fedunseen.federation import Federation
from fedunseen.federation.partition import Partition
from fedunseen.methods.fedzsl import FedZSL
from fedunseen.strategies import Centralised, FedAvg, Local, Scaffold

FEW = {"data.train_per_class": 4, "data.test_per_class": 2, "strategy.rounds": 2, "evaluation.selection": "last"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "strategy", "settings"),
    [
        ("digit-pairs", FedAvg, {}),
        ("digit-pairs", Scaffold, {"strategy.name": "scaffold"}),
        ("digit-pairs", Centralised, {"strategy.name": "centralised"}),
        ("digit-pairs", Local, {"strategy.name": "local"}),
        ("digit-pairs-clswgan", FedAvg, {"method.hidden": 16}),  # whose seen-class softmax never travels
        ("digit-pairs-gaussian", FedAvg, {"strategy.rounds": 1}),  # whose clients send sums
    ],
)
def test_plain_and_assembled_agree_bit_for_bit(preset, strategy, settings):
    experiment = Experiment.load(preset, {**FEW, **settings})
    benchmark = load_data(experiment, 0)
    partition = partition_of(experiment, benchmark, 0)
    made = assemble(experiment, benchmark, partition)
    own = strategy(experiment.strategy) if strategy is not FedAvg else FedAvg(experiment.strategy)
    plain = Federation(benchmark, partition, made.method, own, inputs=made.inputs)
    assert plain.first.keys() == made.first.keys()
    states = []
    for federation in (plain, made):
        state = federation.start()
        for _ in range(experiment.strategy.rounds):
            state, result = federation.round(state)
        assert not result.dropped
        states.append(state)
    one, other = states
    assert one.round == experiment.strategy.rounds
    for name, value in other.params.items():
        assert torch.equal(one.params[name], value), name
    assert one.clients.keys() == other.clients.keys()
    ours, theirs = (f.answers(f.models(s)[0]) for f, s in zip((plain, made), states, strict=True))
    assert np.array_equal(ours.zsl, theirs.zsl)


def test_a_rate_left_to_the_data_is_the_same_with_and_without_a_file():
    """Samples sorted by class whose later classes are longer: the first thousand alone would say another length."""
    random = np.random.default_rng(0)
    classes = {name: random.uniform(size=4) for name in "abcdef"}
    labels = np.repeat(list("abcde"), 400)
    samples = random.normal(size=(2000, 6)).astype(np.float32) * np.repeat([1.0, 1, 1, 9, 9], 400)[:, None]
    experiment = Experiment.load("digit-pairs", {"data.features": [], "method.hidden": [], "method.lr": None, **FEW})
    benchmark = Benchmark.from_arrays(samples.astype(np.float32), labels, classes)
    rate = resolve_defaults(experiment, benchmark).method.lr
    choices = experiment.method.model_dump(exclude={"name"})
    method = FedZSL.on(benchmark, **choices)
    Federation(benchmark, Partition.of([[0, 1], [2, 3, 4]]), method, FedAvg())
    assert method.settings.lr == rate
    first = FedZSL.on(benchmark, **choices)
    first.resolve_defaults(first.init(stream(0, "initialisation")), torch.from_numpy(benchmark.features[:1000]))
    assert first.settings.lr > 1.5 * rate
