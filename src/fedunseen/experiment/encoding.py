"""From a benchmark's samples to what a method works on: frozen features made once, or a backbone inside the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params
from fedunseen.data import Benchmark
from fedunseen.encoders import Backbone, Encoder
from fedunseen.experiment.registry import find
from fedunseen.experiment.schema import Experiment

__all__ = ["encode", "make_backbone", "make_encoder"]


def make_encoder(experiment: Experiment, image_shape: Sequence[int] | None, reads: str = "images") -> Encoder | None:
    """Return the encoder that the experiment names, None for ``none``.

    Args:
        experiment: says which encoder, and by its method which features.
        image_shape: (height, width) or (channels, height, width) of the benchmark's images, (steps, width) of its
            sequences; None if it has neither.
        reads: ``images`` or ``sequences``, what that is the shape of.

    Raises:
        ExperimentError: there are no images to encode.
    """
    name = experiment.encoder.name
    if name == "none":
        return None
    if image_shape is None:
        raise ExperimentError(
            f"encoder.name = {name!r} needs images, but data.name = {experiment.data.name!r} gives features: "
            "set encoder.name = 'none'"
        )
    shape = (1, *image_shape) if len(image_shape) == 2 else tuple(image_shape)
    kind = find("encoder", name)
    if kind.reads != reads:
        example = "gru" if reads == "sequences" else "conv4"
        raise ExperimentError(
            f"encoder.name = {name!r} reads {kind.reads}, but data.name = {experiment.data.name!r} gives {reads}: "
            f"name another, for example {example}"
        )
    encoder: Encoder = kind(experiment.encoder, shape, find("method", experiment.method.name).takes)
    if experiment.encoder.augment and not encoder.trained:
        raise ExperimentError(
            f"encoder.augment changes images while encoder.name = {name!r} trains, but here it is frozen: leave it out"
        )
    if experiment.encoder.augment and len(image_shape) == 2:
        raise ExperimentError(
            f"encoder.augment needs images, and data.name = {experiment.data.name!r} gives vectors: leave it out"
        )
    if experiment.data.features and encoder.trained:
        raise ExperimentError(f"data.features scales vectors, but encoder.name = {name!r} takes images: leave it out")
    return encoder


def encode(experiment: Experiment, benchmark: Benchmark) -> Benchmark:
    """Return the benchmark with its images replaced by the features of a frozen encoder; otherwise as it is.

    Raises:
        FedUnseenError: benchmark and encoder do not fit together, or the encoder cannot be had.
    """
    encoder = make_encoder(experiment, *_shape(benchmark))
    if encoder is None:
        if benchmark.kind == "images":
            raise ExperimentError(
                f"data.name = {experiment.data.name!r} gives images, and encoder.name = 'none' makes no features of "
                "them: name an encoder, for example conv (trained) or tflite (frozen)"
            )
        if benchmark.kind == "sequences":
            raise ExperimentError(
                f"data.name = {experiment.data.name!r} gives sequences, and encoder.name = 'none' makes no features of "
                "them: name an encoder that reads them, for example gru"
            )
        return benchmark
    if encoder.trained:
        return benchmark
    images = benchmark.images()
    assert images is not None  # make_encoder has seen their shape
    return replace(benchmark, features=encoder.encode(images), image_shape=None, pictures=images)


def _shape(benchmark: Benchmark) -> tuple[tuple[int, ...] | None, str]:
    """Return the shape of a sample as an encoder takes it, and what it is."""
    if benchmark.kind == "sequences":
        return benchmark.features.shape[1:], "sequences"
    return benchmark.image_shape, "images"


def make_backbone(experiment: Experiment, input_shape: Sequence[int], image_shape: Sequence[int] | None) -> Backbone:
    """Return what turns a sample, as the benchmark gives it, into the features that the method takes.

    Args:
        experiment: says which method and which encoder.
        input_shape: of one sample of the (encoded) benchmark; of two numbers, it is a sequence's.
        image_shape: of the benchmark's images, None if there are none or they are encoded already.

    Raises:
        ExperimentError: the method needs maps and there are only vectors.
    """
    if len(input_shape) == 2:
        encoder = make_encoder(experiment, input_shape, "sequences")
    else:
        encoder = make_encoder(experiment, image_shape) if image_shape is not None else None
    if encoder is not None and encoder.trained:
        return encoder.backbone()
    name = experiment.method.name
    if find("method", name).takes == "vectors":
        return Backbone(tuple(input_shape)) if len(input_shape) == 1 else AveragedMaps(tuple(input_shape[:1]))
    if len(input_shape) == 1:
        raise ExperimentError(
            f"method.name = {name!r} needs feature maps, but data.name = {experiment.data.name!r} gives vectors: "
            "name an encoder that makes maps of images (conv, resnet, vit, tflite), or a method on vectors, "
            "for example distzsl"
        )
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
