"""What settings make a run allocate is bounded, as a product, before anything is allocated."""

import tracemalloc

import numpy as np
import pytest

from fedunseen import Experiment, run
from fedunseen.core.errors import ExperimentError
from fedunseen.core.phases import epochs_plan
from fedunseen.core.sizes import NETWORK, TOO_LARGE, BoundedDraws

FEW = {
    "data.train_per_class": 20, "data.test_per_class": 20, "partition.clients": 2,
    "strategy.rounds": 1, "evaluation.selection": "last", "run.device": "cpu",
}  # fmt: skip
MILLION = 10**6
SETTINGS = [
    ("digit-pairs", {"method.hidden": [MILLION]}),
    ("digit-pairs", {"method.hidden": [10_000, 10_000]}),
    ("digit-pairs", {"method.batch_size": 100_000, "strategy.local_epochs": 10_000}),
    ("digit-pairs-distzsl", {"method.hidden": [MILLION]}),
    ("digit-pairs-classifier", {"method.hidden": [MILLION]}),
    ("digit-pairs-clswgan", {"method.hidden": 10 * MILLION}),
    ("digit-pairs-clswgan", {"method.noise": MILLION}),
    ("digit-pairs-clswgan", {"method.synthetic": MILLION}),
    ("digit-pairs-clswgan", {"method.synthetic_gzsl": MILLION}),
    ("digit-pairs-clswgan", {"method.critic_steps": MILLION}),
    ("digit-pairs-maml", {"method.inner_steps": 100_000}),
    ("digit-pairs-clswgan", {"method.name": "vaegan", "method.hidden": 10 * MILLION}),
    ("digit-pairs-clswgan", {"method.name": "free", "method.noise": MILLION}),
    ("digit-pairs-conv", {"encoder.widths": [10_000, 10_000]}),
    ("digit-pairs-conv", {"encoder.widths": [MILLION]}),
    ("digit-pairs-conv", {"encoder.outputs": MILLION}),
    ("digit-pairs-maml", {"method.hidden": [MILLION]}),
    ("digit-pairs-maml", {"encoder.widths": [MILLION]}),
    ("digit-pairs-maml", {"method.episodes": 10 * MILLION}),
    ("digit-pairs-maml", {"method.tasks": 10 * MILLION}),
    ("digit-pairs-few-shot", {"evaluation.episodes": 10 * MILLION}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "settings"), SETTINGS, ids=str)
def test_sizes_are_refused_before_they_are_allocated(preset, settings, tmp_path):
    experiment = Experiment.load(preset, {**FEW, **settings})
    tracemalloc.start()
    try:
        with pytest.raises(ExperimentError) as refused:
            run(experiment, tmp_path / "run")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused.value.code == TOO_LARGE
    # the layers before the one that is too large: float32, and float64 while they are drawn
    assert peak < 12 * NETWORK


def test_a_network_has_so_many_layers():
    widths = [1] * 64
    assert Experiment.load("digit-pairs", {"method.hidden": widths}).method.hidden == (1,) * 64
    with pytest.raises(ExperimentError, match=r"method\.hidden"):
        Experiment.load("digit-pairs", {"method.hidden": [*widths, 1]})


@pytest.mark.parametrize("way", ["uniform", "normal", "standard_normal", "random"])
def test_bounded_draws_are_those_of_numpy_up_to_the_bound(way):
    bounded = BoundedDraws(np.random.default_rng(3).bit_generator)
    free = np.random.default_rng(3)
    for size in (None, 5, (2, 3)):
        drawn = getattr(bounded, way)(size=size)
        np.testing.assert_array_equal(drawn, getattr(free, way)(size=size))
    assert bounded.drawn == 12
    with pytest.raises(ExperimentError) as refused:
        getattr(bounded, way)(size=(NETWORK - 11, 1))
    assert refused.value.code == TOO_LARGE


def test_a_plan_of_as_many_places_as_there_may_be_is_made():
    rng = np.random.default_rng(0)
    assert epochs_plan(2**10, 2**10, 2**3, rng).index.shape == (8, 1024)
    with pytest.raises(ExperimentError, match=r"strategy\.local_epochs"):
        epochs_plan(2**10, 2**10, 2**15 + 1, rng)
