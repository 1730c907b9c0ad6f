"""What is measured on a GPU, as far as it can be tried without one: every case is an experiment
that can be read.
"""

from pathlib import Path

import pytest

import gpu
from fedunseen import Experiment


@pytest.mark.parametrize(
    ("cases", "count"),
    [
        (gpu.few_shot(), 2 * 2 * 4 * 2),  # data, shots, methods, partitions
        (gpu.end_to_end(), 4 + len(gpu.STRATEGIES)),
        (gpu.maps(Path("data")), 4 * 3 * 3),  # methods, partitions, seeds
    ],
    ids=["few-shot", "end to end", "maps"],
)
def test_every_case_can_be_read(cases, count):
    assert len(cases) == count
    for name, (folder, settings) in cases.items():
        experiment = Experiment.load(*gpu.based({**settings, "data.root": folder}))
        assert (
            experiment.method.name in ("maml", "maml-mi", "maml-mi-adv", "protonet")
            or "CIFAR-100" in name
        )
        assert experiment.strategy.rounds in (30, 50, 100)


def test_networks_on_maps_have_the_same_number_of_rates_to_choose_from():
    assert {len(rates) for _, rates in gpu.NETWORKS.values()} == {4}
