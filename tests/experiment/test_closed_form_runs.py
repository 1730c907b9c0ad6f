"""Methods in closed form through whole runs, and what they reach on real data."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedunseen import Experiment, run
from fedunseen.core.errors import ExperimentError
from fedunseen.data.benchmarks.xlsa17 import Xlsa17
from fedunseen.encoders import Backbone
from fedunseen.evaluation.answers import answer
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.methods.closed_form import ClosedForm
from fedunseen.methods.closed_form.gaussian import Gaussian, GaussianSettings
from fedunseen.methods.closed_form.statistics import add
from fedunseen.metrics import accuracies
from fedunseen.strategies.summed import kept_sums

QUICK = {"evaluation.embedding": False}
LAST = {**QUICK, "evaluation.selection": "last"}


def relative(one, other):
    return max(
        float((one[name] - other[name]).norm() / other[name].norm()) for name in ("weight", "bias", "dual_coefficients")
    )


@pytest.mark.slow
def test_pairs_of_digits_are_read_from_raw_pixels_in_one_round(tmp_path):
    done = run(Experiment.load("digit-pairs-gaussian", QUICK), tmp_path / "run")
    result = json.loads((done.path / "result.json").read_text())
    assert (result["rounds"], result["bytes_down"]) == (1, 0)
    assert result["zsl"] >= 97
    assert result["gzsl_harmonic"] >= 88
    (best, *_), *_ = done.predict(np.zeros(128, dtype=np.float32), among="unseen")
    assert best.name in done.space.names


@pytest.mark.slow
def test_the_partition_is_no_matter(tmp_path):
    """Neither who holds what, nor that someone comes late, nor whether all is in one place."""
    chosen = {**LAST, "method.shrinkage": 0.1}
    kinds = {
        "disjoint": {},
        "dirichlet": {"partition.kind": "dirichlet", "partition.alpha": 0.3},
        "iid": {"partition.kind": "iid"},
        "one place": {"strategy.name": "centralised"},
        "late": {"strategy.rounds": 2, "partition.join": {"3-4": 1}},
    }
    models = {
        name: run(Experiment.load("digit-pairs-gaussian", {**chosen, **result}), tmp_path / name).params
        for name, result in kinds.items()
    }
    for name, model in models.items():
        assert relative(model, models["one place"]) < 1e-10, name
    assert all(torch.equal(models["late"][name], models["disjoint"][name]) for name in models["late"])


def test_every_client_alone_has_a_model_of_its_own_classes(tmp_path):
    settings = {**LAST, "method.shrinkage": 0.1, "strategy.name": "local"}
    done = run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "run")
    assert done.result["zsl"] > 5  # of twenty unseen classes
    with pytest.raises(ExperimentError, match="every client keeps its own model"):
        done.predict(np.zeros(128, dtype=np.float32))


@pytest.fixture(scope="module")
def awa1():
    root = Path(os.environ.get("FEDUNSEEN_DATA", "../shared/data")) / "xlsa17"
    if not (root / "AWA1_LAMPERT").is_dir():
        pytest.skip(f"{root}/AWA1_LAMPERT is not there: name the data's folder by FEDUNSEEN_DATA")
    benchmark = Xlsa17.load(Xlsa17.Settings(root=root, dataset="AWA1_LAMPERT"), 0)
    semantics = torch.from_numpy(benchmark.space.semantics).float()
    method = Gaussian(GaussianSettings(shrinkage=0.3, calibration=True), benchmark.space, semantics, Backbone((512,)))
    labels = benchmark.labels[benchmark.train]
    inputs = torch.from_numpy(benchmark.features[benchmark.train])
    groups = np.array_split(benchmark.space.seen, 10)
    parts = [
        method.statistics(inputs[rows], torch.from_numpy(labels[rows])) for rows in (np.isin(labels, g) for g in groups)
    ]
    return benchmark, method, method.solve(add(parts, benchmark.space))


def judged(benchmark, method, model):
    rows = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    scores = method.scores(model, torch.from_numpy(benchmark.features[rows]), method.semantics)
    return accuracies(answer([scores], benchmark.labels[rows], benchmark.space))


@pytest.mark.slow
def test_animals_that_nobody_has_are_recognised_from_raw_features(awa1):
    found = judged(*awa1)
    assert found.zsl >= 34.5
    assert found.gzsl_harmonic >= 22.5  # without a validation class: with them 25
    assert abs(float(awa1[2]["expected"][0]) - found.zsl) < 6  # what left-out classes have promised


def test_a_description_and_examples_are_better_than_either(awa1):
    benchmark, method, model = awa1
    unseen, labels = benchmark.space.unseen, benchmark.labels
    rng, classes = np.random.default_rng(0), len(benchmark.space.names)
    chosen = {c: rng.permutation(benchmark.test_unseen[labels[benchmark.test_unseen] == c])[:5] for c in unseen}
    count, total = torch.zeros(classes, dtype=torch.float64), torch.zeros(classes, 512, dtype=torch.float64)
    for c, rows in chosen.items():
        count[c], total[c] = len(rows), torch.from_numpy(benchmark.features[rows]).double().sum(0)
    left = np.setdiff1d(benchmark.test_unseen, np.concatenate(list(chosen.values())))
    inputs = torch.from_numpy(benchmark.features[left])

    def zsl(model):
        scores = method.scores(model, inputs, method.semantics)[:, unseen]
        right = unseen[scores.argmax(1).numpy()] == labels[left]
        return 100 * np.mean([right[labels[left] == c].mean() for c in unseen])

    without = ~np.isin(np.arange(classes), unseen)
    undescribed = model | {"described": torch.from_numpy(without).double()}
    alone = zsl(method.extend(undescribed, method.semantics, count, total, without))
    both = zsl(method.extend(model, method.semantics, count, total))
    assert both > zsl(model) + 1
    assert both > alone + 5


def test_what_a_run_keeps_of_each_party_adds_up_to_its_model(tmp_path):
    settings = {**LAST, "method.shrinkage": 0.1}
    done = run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "run")
    checkpoint = RunDirectory(done.path).newest_checkpoint(torch.device("cpu"))
    parts = kept_sums(checkpoint.server)
    assert list(parts) == list(range(10))
    total = add(parts.values(), done.space, done.method.quantization)
    assert all(torch.equal(total[name], checkpoint.params[name]) for name in total)


def test_samples_are_summed_once_though_validation_classes_choose_first(tmp_path, monkeypatch):
    """The final statistics are those of the run on validation classes and of the rest."""
    settings = {
        "evaluation.embedding": False, "partition.clients": 3, "data.train_per_class": 6, "data.test_per_class": 2,
        "method.shrinkage": 0.3, "data.quantization_range": 4.0,
    }  # fmt: skip
    summed, original = [], ClosedForm.statistics

    def counted(self, inputs, labels):
        summed.append(len(labels))
        return original(self, inputs, labels)

    monkeypatch.setattr(ClosedForm, "statistics", counted)
    done = run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "chosen")
    assert done.result["selection"] == "validation"
    assert 0 < sum(summed[3:]) < sum(summed[:3])
    last = run(Experiment.load("digit-pairs-gaussian", {**settings, **LAST}), tmp_path / "last")
    assert sum(summed[6:]) == sum(summed[:6])
    assert done.result["sums_sha256"] == last.result["sums_sha256"]
