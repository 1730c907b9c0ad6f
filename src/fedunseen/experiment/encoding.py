"""From a benchmark's samples to what a method works on: frozen features made once, or a backbone inside the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.core.registry import find
from fedunseen.data import Benchmark
from fedunseen.encoders import Backbone, Encoder
from fedunseen.experiment.rules import EncoderFacts, check
from fedunseen.experiment.schema import Experiment


def make_encoder(experiment: Experiment, image_shape: Sequence[int] | None, kind: str = "images") -> Encoder | None:
    """Return the encoder that the experiment names, None for ``none``."""
    facts = EncoderFacts(experiment, kind, image_shape)
    check(facts)
    if facts.encoder is None or image_shape is None:
        return None
    shape: Any = (1, *image_shape) if len(image_shape) == 2 else tuple(image_shape)
    return facts.encoder(experiment.encoder, shape, facts.method.takes)


def encode(experiment: Experiment, benchmark: Benchmark) -> Benchmark:
    """Return the benchmark with its images replaced by the features of a frozen encoder; otherwise as it is."""
    kind = benchmark.kind
    shape = benchmark.features.shape[1:] if kind == "sequences" else benchmark.image_shape
    encoder = make_encoder(experiment, shape, kind)
    if encoder is None or encoder.trained:
        return benchmark
    images = benchmark.images()
    assert images is not None  # make_encoder has seen their shape
    return replace(benchmark, features=encoder.encode(images), image_shape=None, pictures=images)


def make_backbone(experiment: Experiment, input_shape: Sequence[int], image_shape: Sequence[int] | None) -> Backbone:
    """Return what turns a sample, as the benchmark gives it, into the features that the method takes."""
    if len(input_shape) == 2:
        encoder = make_encoder(experiment, input_shape, "sequences")
    else:
        kind = "vectors" if len(input_shape) == 1 else "images"
        encoder = make_encoder(experiment, image_shape, kind) if image_shape is not None else None
    if encoder is not None and encoder.trained:
        return encoder.backbone()
    if find("method", experiment.method.name).takes == "vectors" and len(input_shape) > 1:
        return AveragedMaps(tuple(input_shape[:1]))
    return Backbone(tuple(input_shape))


class AveragedMaps(Backbone):
    """Frozen maps for a method that takes vectors: the mean over cells."""

    def __call__(self, params: Params, inputs: Tensor, training: bool = False) -> Tensor:
        """Average (n, channels, height, width) to (n, channels)."""
        return super().__call__(params, inputs).mean((-2, -1))


def as_images(rows: NDArray[Any], image_shape: Sequence[int]) -> NDArray[Any]:
    """View samples as images (n, channels, height, width)."""
    shape = (1, *image_shape) if len(image_shape) == 2 else tuple(image_shape)
    return np.asarray(rows).reshape(-1, *shape)
