"""Samples that stay in main memory: what goes to the device, and that training cannot tell."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedunseen import Experiment
from fedunseen.core.samples import Samples, ScaledSamples
from fedunseen.data import Quantization, Scaler
from fedunseen.experiment.assemble import _inputs, assemble, load_data, partition_of
from fedunseen.federation.federation import Federation, Parts
from fedunseen.federation.in_process import InProcess
from fedunseen.federation.worker import Execution, Worker
from same import same

META, CPU = torch.device("meta"), torch.device("cpu")


class Counted(Samples):
    """Samples that note how many numbers they send at once."""

    sent = ()

    def __getitem__(self, rows):
        found = super().__getitem__(rows)
        object.__setattr__(self, "sent", (*self.sent, found.numel()))
        return found


@pytest.fixture(scope="module")
def images():
    """An experiment on images, its benchmark and its partition."""
    settings = {
        "encoder.name": "conv",
        "method.batch_size": 8,
        "evaluation.selection": "last",
        "run.device": "cpu",
    }
    settings |= {"data.train_per_class": 10, "data.test_per_class": 4}
    experiment = Experiment.load("digit-pairs", settings)
    benchmark = load_data(experiment, 0)  # its images are flat
    benchmark = replace(
        benchmark, features=np.ascontiguousarray(benchmark.images()), image_shape=(1, 8, 16)
    )
    return experiment, benchmark, partition_of(experiment, benchmark, 0)


def test_only_what_is_asked_for_is_sent():
    rows = torch.arange(12.0).reshape(6, 2)
    samples = Samples(rows, META)
    assert samples[torch.tensor([[1, 2], [3, 5]])].shape == (2, 2, 2)
    assert (samples[torch.tensor([1])].device, samples.host.device) == (META, CPU)
    assert samples.shape == (6, 2)
    on_cpu = Samples(rows, CPU)
    for places in (torch.tensor([[5, 0]]), slice(2, 4)):
        assert torch.equal(on_cpu[places], rows[places])


def test_images_stay_where_they_are_and_vectors_go_to_the_device(images):
    experiment, benchmark, _ = images
    for given in (benchmark, benchmark.for_selection(0)):
        _, inputs = _inputs(experiment, given, None, META)
        assert (type(inputs), inputs.device) == (Samples, META)
        assert np.shares_memory(
            inputs.host.numpy(), benchmark.features
        )  # not copied: a memory map stays on disk
    vectors = Experiment.load("digit-pairs")
    _, inputs = _inputs(vectors, load_data(vectors, 0), None, META)
    assert (type(inputs), inputs.device) == (torch.Tensor, META)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["one-at-a-time", "batched"])
def test_a_federation_sends_batches_and_ends_with_the_same_bits(images, mode):
    experiment, benchmark, partition = images
    made = assemble(experiment.with_overrides({"engine.mode": mode}), benchmark, partition)
    samples = Counted(torch.from_numpy(benchmark.features), CPU)
    labels = torch.from_numpy(benchmark.labels)
    worker = Worker(
        made.method, made.strategy, samples, labels, partition.clients, 0, Execution(mode)
    )
    parts = Parts(InProcess(made.strategy, worker), made.first, made.sizes)
    other = Federation(
        benchmark, partition, made.method, made.strategy, inputs=samples, parts=parts
    )
    (expected, _), (found, _) = (one.round(one.start()) for one in (made, other))
    assert same(found.params, expected.params)
    sample = benchmark.features[0].size
    at_once = 8 * sample * (len(partition.clients) if mode == "batched" else 1)
    assert max(samples.sent) <= at_once < samples.host.numel()
    assert sum(samples.sent) == experiment.strategy.local_epochs * sample * sum(
        map(len, partition.clients)
    )
    assert made.answers(expected.params).zsl.tolist() == other.answers(expected.params).zsl.tolist()


@pytest.mark.parametrize("steps", [("l2",), ()])
def test_whole_numbers_of_rows_in_any_order_are_those_of_single_rows(tmp_path, steps):
    rows = np.random.default_rng(0).standard_normal((700, 5)).astype(np.float32)
    rows[600] = 100  # is clipped
    np.save(tmp_path / "rows.npy", rows)
    scaler = Scaler.fit(rows, steps).quantized(
        Quantization.of_rows(8, 3.0, rows[:600], Scaler(steps, {}))
    )
    on_disk = np.asarray(
        np.load(tmp_path / "rows.npy", mmap_mode="r")
    )  # a view, as scikit-learn makes it
    samples = ScaledSamples(on_disk, CPU, scaler)
    single = [scaler.codes(row[None]) for row in rows]
    for places in (
        torch.arange(700),
        torch.randperm(700, generator=torch.Generator().manual_seed(0)),
        torch.arange(0),
    ):
        codes, clipped = samples.codes(places)
        assert codes.dtype == torch.int8
        assert np.array_equal(codes, [single[i][0][0] for i in places] or np.empty((0, 5)))
        assert clipped == sum(single[i][1] for i in places)
