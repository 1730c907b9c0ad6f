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
from fedunseen.methods.closed_form import ClosedForm
from fedunseen.methods.closed_form.gaussian import Gaussian, GaussianSettings
from fedunseen.methods.closed_form.statistics import add
from fedunseen.metrics import accuracies

QUICK = {"evaluation.embedding": False}
LAST = {**QUICK, "evaluation.selection": "last"}


@pytest.mark.slow
def test_pairs_of_digits_are_read_from_raw_pixels_in_one_round(tmp_path):
    done = run(Experiment.load("digit-pairs-gaussian", QUICK), tmp_path / "run")
    result = json.loads((done.path / "result.json").read_text())
    assert (result["rounds"], result["bytes_down"]) == (1, 0)
    assert result["zsl"] >= 97
    assert result["gzsl_harmonic"] >= 88
    (best, *_), *_ = done.predict(np.zeros(128, dtype=np.float32), among="unseen")
    assert best.name in done.space.names


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
