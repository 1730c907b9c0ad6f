"""Features of any length: what an experiment leaves to the data keeps training stable, what it says stays."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedunseen import Experiment, load_run, run
from fedunseen.core.phases import SGD
from fedunseen.data import Benchmark, ClassSpace
from fedunseen.experiment.assemble import load_data, resolve_defaults
from fedunseen.methods import FedZSL
from same import same

SEEN, UNSEEN = 8, 3


def attributes():
    """Unit rows whose largest variance in any direction is that of SUN's published attributes, 0.2."""
    rows = np.random.default_rng(1).random((SEEN + UNSEEN, 12)) ** 3
    rows[::2, :6] *= 0.2
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def samples(norm, seed=0):
    """Rows, not below zero as behind a ReLU, of a mean length; and their classes."""
    rng, s = np.random.default_rng(seed), attributes()
    labels = np.repeat(np.arange(SEEN + UNSEEN), 24)
    rows = np.maximum(0.3 + s[labels] @ rng.normal(size=(12, 64)) + 0.3 * rng.normal(size=(len(labels), 64)), 0)
    return (rows * norm / np.linalg.norm(rows, axis=1).mean()).astype(np.float32), labels


def write_folder(place, factor):
    place.mkdir()
    rows, labels = samples(1.0)
    split = np.where((np.arange(len(labels)) % 4 > 0) & (labels < SEEN), "train", "test")
    np.savez(place / "features.npz", features=rows * np.float32(factor), labels=labels, split=split)
    names, columns = tuple(f"class {c}" for c in range(SEEN + UNSEEN)), tuple(f"attribute {a}" for a in range(12))
    space = ClassSpace(names, attributes(), columns, range(SEEN), [], range(SEEN, SEEN + UNSEEN))
    space.save(place / "classes.csv")
    return {
        "data": {"name": "folder", "root": str(place)},
        "partition": {"kind": "pccd", "clients": 3},
        "method": {"name": "fedzsl"},
        "strategy": {"name": "fedavg", "rounds": 2},
        "evaluation": {"selection": "last", "embedding": False},
    }


def test_training_is_stable_below_twice_the_rate_and_not_above():
    """One input, one class pair of losses: the limit is known exactly."""
    space = ClassSpace(("a", "b"), np.array([[2.0], [-2.0]]), ("x",), [0, 1], [], [])
    benchmark = Benchmark(
        "line", space, np.full((4, 3), 5.0, dtype=np.float32), np.array([0, 0, 1, 1]), np.array([0, 2]),
        np.array([1, 3]), np.array([], dtype=np.int64), part=True,
    )  # fmt: skip
    given = {"sce": 0.0, "consistency": 0.0, "kl": 2.0, "temperature": 100.0, "weight_decay": 0.0, "batch_size": 2}

    def growth(times):
        method = FedZSL.on(benchmark, **given)
        params = {name: torch.zeros_like(v).double() for name, v in method.init(np.random.default_rng(0)).items()}
        inputs = torch.full((2, 3), 5.0, dtype=torch.float64)
        lr = times * method.rate(params, inputs)
        params["g.bias"] += 1e-3  # a little off the solution, where a steep step leads away from it
        semantics, mask = method.semantics.double(), torch.ones(2, dtype=torch.bool)
        context = {"gamma": torch.zeros(2, 2).double(), "semantics": semantics, "kl_mask": mask}
        batch = {"inputs": inputs, "labels": torch.tensor([0, 1]), "weights": torch.ones(2).double()}
        sgd = SGD(lr, 0.9)
        values, state = list(params.values()), sgd.init(params)
        for step in range(1, 301):
            leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
            loss, _ = method.loss(leaves, batch, context)
            sgd.update(values, list(torch.autograd.grad(loss, list(leaves.values()))), state, step)
        return float(method.attributes(params, inputs).abs().max()) / 1e-3

    assert growth(1.9) < 1e-2
    assert growth(2.1) > 1e2


def test_features_a_thousand_times_as_long_give_the_same_model(tmp_path):
    trees = [write_folder(tmp_path / f"data {factor}", factor) for factor in (1.0, 1024.0)]
    small, large = (run(Experiment.from_dict(tree), tmp_path / f"run {i}") for i, tree in enumerate(trees))
    assert small.experiment.method.lr == large.experiment.method.lr
    assert same(small, large)


def test_what_the_data_have_said_is_in_the_run_directory(tmp_path):
    done = run(Experiment.from_dict(write_folder(tmp_path / "data", 30.0)), tmp_path / "run")
    data, method = (done.manifest["experiment"][section] for section in ("data", "method"))
    assert data["features"] == ["centre", "l2"]
    assert method["lr"] == done.experiment.method.lr > 0.1
    again = load_run(tmp_path / "run")
    assert again.scaler.steps == ("centre", "l2")
    same = Experiment.from_dict(write_folder(tmp_path / "same", 30.0) | {"data": done.manifest["experiment"]["data"]})
    assert run(same, tmp_path / "run", resume=True).result == done.result


def test_the_method_stays_the_one_that_was_named(tmp_path):
    tree = write_folder(tmp_path / "data", 30.0)
    tree["method"] = {"name": "distzsl", "bilateral": 0.25, "decorrelation": 0.0}  # which is built on another
    done = run(Experiment.from_dict(tree), tmp_path / "run")
    method = done.manifest["experiment"]["method"]
    assert (method["name"], method["bilateral"]) == ("distzsl", 0.25)
    assert method["lr"] > 0


def test_a_rate_follows_the_weights_of_losses_that_are_chosen(tmp_path):
    tree = write_folder(tmp_path / "data", 1.0)
    tree["evaluation"] = {"choose": {"method.kl": [3.0]}, "embedding": False}
    tree["method"] |= {"kl": 30.0}
    done = run(Experiment.from_dict(tree), tmp_path / "run")
    assert done.result["chosen_on_validation"]["settings"]["method.lr"] == done.experiment.method.lr
    plain = Experiment.from_dict(tree, {"method.kl": 3.0, "evaluation.choose": {}})
    assert done.experiment.method.lr == resolved(plain)[1]
    assert done.experiment.method.lr > 4 * done.manifest["experiment"]["method"]["lr"]


def resolved(experiment, benchmark=None):
    """Return the steps of scaling and the rate, where there is one, that its data or others settle."""
    now = resolve_defaults(experiment, benchmark or load_data(experiment, 0))
    return now.data.features, getattr(now.method, "lr", None)


def test_what_an_experiment_says_stays(tmp_path):
    tree = write_folder(tmp_path / "data", 1.0)
    experiment = Experiment.from_dict(tree, {"data.features": [], "method.lr": 0.3})
    assert resolved(experiment) == ((), 0.3)


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
def test_each_method_has_a_scaling(method, steps, tmp_path):
    tree = write_folder(tmp_path / "data", 1.0)
    tree |= {"method": {"name": method}, "strategy": {"name": "fedavg", "rounds": 1}}
    assert resolved(Experiment.from_dict(tree))[0] == steps


def test_grey_values_are_not_scaled():
    experiment = Experiment.load("digit-pairs", {"method.lr": "auto", "data.train_per_class": 5})
    features, lr = resolved(experiment)
    assert features == ()
    assert 0.05 < lr < 0.3  # 0.1 was chosen by hand


def test_a_coordinator_without_samples_scales_to_unit_length(tmp_path):
    experiment = Experiment.from_dict(write_folder(tmp_path / "data", 1.0))
    whole, nothing = load_data(experiment, 0), np.array([], dtype=np.int64)
    features, labels = whole.features[whole.test_unseen], whole.labels[whole.test_unseen]
    empty = Benchmark("part", whole.space, features, labels, nothing, nothing, np.arange(len(labels)), part=True)
    steps, lr = resolved(experiment, empty)
    assert steps == ("l2",)
    unit = experiment.with_overrides({"data.features": ["l2"]})
    assert lr == pytest.approx(resolved(unit)[1], rel=1e-5)


def test_under_privacy_no_sample_is_asked(tmp_path):
    tree = write_folder(tmp_path / "data", 1.0)
    private = Experiment.from_dict(tree, {"privacy.name": "client-level", "privacy.noise": 1.0, "privacy.clip": 1.0})
    benchmark = load_data(private, 0)
    other = replace(benchmark, features=benchmark.features[:, ::-1] * 5 + 1)
    features, lr = resolved(private, benchmark)
    assert (features, lr) == resolved(private, other)
    assert features == ("l2",)
    assert lr > 0.01
