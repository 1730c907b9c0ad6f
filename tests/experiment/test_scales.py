"""Features of any length: what an experiment leaves to the data keeps training stable, what it says
stays.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedunseen import Benchmark, ClassSpace, Experiment, run
from fedunseen.core.phases import SGD
from fedunseen.experiment.assemble import load_data, resolve_defaults
from fedunseen.methods import FedZSL
from same import same


@pytest.fixture
def make(described, tmp_path):
    """Make an experiment with other settings, on features that are so many times as long."""

    def make(settings, scale=1.0):
        (tmp_path / f"times {scale}").mkdir(exist_ok=True)
        tree = {
            "data": described(
                tmp_path / f"times {scale}", (11, 12, 64), 0.3, 24, unseen=3, scale=scale
            ),
            "partition": {"kind": "pccd", "clients": 3},
            "method": {"name": "fedzsl"},
            "strategy": {"name": "fedavg", "rounds": 2},
            "evaluation": {"selection": "last", "embedding": False},
        }
        return Experiment.from_dict(tree, settings)

    return make


@pytest.mark.slow
def test_training_is_stable_below_twice_the_rate_and_not_above():
    """One input, one class pair of losses: the limit is known exactly."""
    space = ClassSpace(("a", "b"), np.array([[2.0], [-2.0]]), ("x",), [0, 1], [], [])
    benchmark = Benchmark(
        "line", space, np.full((4, 3), 5.0, dtype=np.float32), np.array([0, 0, 1, 1]), np.array([0, 2]),
        np.array([1, 3]), np.array([], dtype=np.int64), part=True,
    )  # fmt: skip
    given = {
        "sce": 0.0,
        "consistency": 0.0,
        "kl": 2.0,
        "temperature": 100.0,
        "weight_decay": 0.0,
        "batch_size": 2,
    }
    method = FedZSL.on(benchmark, **given)
    inputs = torch.full((2, 3), 5.0, dtype=torch.float64)
    context = {
        "gamma": torch.zeros(2, 2),
        "semantics": method.semantics.double(),
        "kl_mask": torch.ones(2).bool(),
    }
    batch = {"inputs": inputs, "labels": torch.tensor([0, 1]), "weights": torch.ones(2).double()}

    def growth(times):
        params = {
            name: torch.zeros_like(v).double()
            for name, v in method.init(np.random.default_rng(0)).items()
        }
        sgd, values = SGD(times * method.rate(params, inputs), 0.9), list(params.values())
        params["g.bias"] += 1e-3  # a little off the solution, where a steep step leads away from it
        state = sgd.init(params)
        for step in range(1, 301):
            leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
            loss, _ = method.loss(leaves, batch, context)
            sgd.update(values, list(torch.autograd.grad(loss, list(leaves.values()))), state, step)
        return float(method.attributes(params, inputs).abs().max()) / 1e-3

    assert growth(1.9) < 1e-2
    assert growth(2.1) > 1e2


def test_features_a_thousand_times_as_long_give_the_same_model(make, tmp_path):
    small, large = (run(make({}, scale), tmp_path / str(scale)) for scale in (1.0, 1024.0))
    assert small.experiment.method.lr == large.experiment.method.lr
    assert same(small, large)


def test_what_the_data_have_said_is_in_the_run_directory(make, tmp_path):
    done = run(make({}, 30.0), tmp_path / "run")
    data, method = (done.manifest["experiment"][section] for section in ("data", "method"))
    assert data["features"] == ["centre", "l2"]
    assert method["lr"] == done.experiment.method.lr > 0.1
    again = run(make({"data.features": data["features"]}, 30.0), tmp_path / "run", resume=True)
    assert again.scaler.steps == ("centre", "l2")
    assert again.result == done.result


def test_the_method_stays_the_one_that_was_named(make, tmp_path):
    distzsl = {
        "method.name": "distzsl",
        "method.bilateral": 0.25,
        "method.decorrelation": 0.0,
    }  # built on another
    method = run(make(distzsl, 30.0), tmp_path / "run").manifest["experiment"]["method"]
    assert (method["name"], method["bilateral"]) == ("distzsl", 0.25)
    assert method["lr"] > 0


def test_a_rate_follows_the_weights_of_losses_that_are_chosen(make, tmp_path):
    chooses = {"evaluation.selection": "validation", "evaluation.choose": {"method.kl": [3.0]}}
    done = run(make({**chooses, "method.kl": 30.0}), tmp_path / "run")
    lr = done.experiment.method.lr
    assert (
        done.result["chosen_on_validation"]["settings"]["method.lr"]
        == lr
        == resolved(make({"method.kl": 3.0}))[1]
    )
    assert lr > 4 * done.manifest["experiment"]["method"]["lr"]


def resolved(experiment, benchmark=None):
    """Return the steps of scaling and the rate, where there is one, that its data or others
    settle.
    """
    now = resolve_defaults(experiment, benchmark or load_data(experiment, 0))
    return now.data.features, getattr(now.method, "lr", None)


def test_what_an_experiment_says_stays(make):
    assert resolved(make({"data.features": [], "method.lr": 0.3})) == ((), 0.3)


@pytest.mark.parametrize(
    ("method", "steps"),
    [
        ("gaussian", ("l2",)),  # so that bounds of quantization need no data
        ("ridge", ("l2",)),
        ("eszsl", ("centre", "l2")),
        ("fedzsl", ("centre", "l2")),
        ("classifier", ("centre", "l2")),
        ("clswgan", ("min-max",)),
        ("free", ("min-max",)),
    ],
)
def test_each_method_has_a_scaling(method, steps, make):
    assert resolved(make({"method.name": method, "strategy.rounds": 1}))[0] == steps


def test_grey_values_are_not_scaled():
    features, lr = resolved(
        Experiment.load("digit-pairs", {"method.lr": "auto", "data.train_per_class": 5})
    )
    assert features == ()
    assert 0.05 < lr < 0.3  # 0.1 was chosen by hand


def test_a_coordinator_without_samples_scales_to_unit_length(make):
    whole, nothing = load_data(make({}), 0), np.array([], dtype=np.int64)
    features, labels = whole.features[whole.test_unseen], whole.labels[whole.test_unseen]
    empty = Benchmark(
        "part", whole.space, features, labels, nothing, nothing, np.arange(len(labels)), part=True
    )
    unit = resolved(make({"data.features": ["l2"]}))[1]
    assert resolved(make({}), empty) == (("l2",), pytest.approx(unit, rel=1e-5))


def test_under_privacy_no_sample_is_asked(make):
    private = make({"privacy.name": "client-level", "privacy.noise": 1.0, "privacy.clip": 1.0})
    benchmark = load_data(private, 0)
    other = replace(benchmark, features=benchmark.features[:, ::-1] * 5 + 1)
    features, lr = resolved(private, benchmark)
    assert (features, lr) == resolved(private, other)
    assert features == ("l2",)
    assert lr > 0.01
