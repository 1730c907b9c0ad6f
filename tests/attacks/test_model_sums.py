"""What a model's file tells its holder: the sums that it is made of, digit for digit.

The model stores the kernel and the shrinkage with which these made it, so that both can be undone.
"""

import numpy as np
import pytest
import torch

from fedunseen import ZeroShotClassifier, load_model
from fedunseen.methods.closed_form import gaussian_process as gp

CLASSES, FEATURES, ATTRIBUTES, SAMPLES = 12, 20, 6, 30


def sums_in(model):
    """Return counts (O,), class sums (O, d) and second moments (d, d) that made a model."""
    params = model.params
    observed = params["count"] > 0
    count = params["count"][observed]
    k = gp.Kernel.of(params).within(model.method.semantics.double()[observed])
    k.diagonal().add_(1 / count)
    means = params["centre"] + k @ params["dual_coefficients"][observed]
    shrinkage = float(params["kernel"][3])
    shrunk = torch.linalg.inv(params["precision"])
    level = shrinkage * shrunk.diagonal().mean()
    within = (shrunk - level * torch.eye(len(shrunk))) / (1 - shrinkage)
    total = means * count[:, None]
    return count, total, (count.sum() - len(count)) * within + means.T @ total


@pytest.mark.slow
def test_a_model_tells_its_holder_the_sums_and_of_a_class_of_one_sample_the_sample(tmp_path):
    rng = np.random.default_rng(0)
    attributes = rng.random((CLASSES, ATTRIBUTES))
    classes = [*np.repeat(np.arange(9), SAMPLES), 9]
    features = attributes[classes] @ rng.normal(size=(ATTRIBUTES, FEATURES))
    features = (features + 0.5 * rng.normal(size=features.shape)).astype(np.float32)
    names = [f"class {c}" for c in range(CLASSES)]
    fitted = ZeroShotClassifier().fit(
        features, [names[c] for c in classes], dict(zip(names, attributes, strict=True))
    )
    fitted.save(tmp_path / "model.safetensors")
    model = load_model(tmp_path / "model.safetensors")
    codes = model.scaler.codes(features)[0].astype(np.int64)
    step = model.scaler.quantization.step.astype(np.float64)
    count, total, square = (value.numpy() for value in sums_in(model))
    assert count.tolist() == [SAMPLES] * 9 + [1]
    assert np.array_equal(np.rint(total / step)[-1], codes[-1])
    assert np.array_equal(np.rint(square / np.outer(step, step)), codes.T @ codes)
