"""What the folders beside the core add to a federation while it is assembled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.extensions import added, at
from fedunseen.core.samples import Inputs
from fedunseen.data import Benchmark, Quantization, Scaler
from fedunseen.experiment.encoding import make_encoder
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.engine import Engine, Masking
from fedunseen.federation.federation import Monitor
from fedunseen.federation.partition import Partition
from fedunseen.federation.worker import Worker
from fedunseen.methods import Method
from fedunseen.strategies import Filter, Strategy

Images = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Scene:
    """What a federation is assembled of.

    Attributes:
        experiment: with all that it leaves to the data.
        benchmark, partition: the samples, and who holds which.
        inputs: (N, ...) the samples as the method takes them.
        scaler: how they were scaled.
        selection: validation classes play the unseen ones.
    """

    experiment: Experiment
    benchmark: Benchmark
    partition: Partition
    inputs: Inputs
    scaler: Scaler
    selection: bool = False

    def images(self, rows: NDArray[np.int64]) -> Images | None:
        """Return samples as images in [0, 1]; None where there are only features."""
        images = self.benchmark.images()
        if images is None or images.shape[1] not in (1, 3):
            return None
        scale = np.float32(255 if images.dtype == np.uint8 else 1)
        return np.asarray(images[rows], dtype=np.float32) / scale

    def from_images(self, images: Images) -> Tensor:
        """Turn images in [0, 1] into what the method takes."""
        rows: NDArray[Any] = images
        if self.benchmark.pictures is not None:  # the features were made by a frozen encoder
            encoder = make_encoder(self.experiment, self.benchmark.pictures.shape[1:])
            assert encoder is not None
            rows = np.asarray(encoder.encode(images))
        elif self.benchmark.kind == "vectors":
            rows = images.reshape(len(images), -1)
        if rows.ndim == 2:
            rows = self.scaler(rows)
        return torch.from_numpy(np.ascontiguousarray(rows)).to(self.inputs.device)

    def method_inputs(self, rows: NDArray[np.int64]) -> Tensor:
        """Return samples of the benchmark as the method takes them, bytes as numbers in [0, 1]."""
        samples = self.inputs[torch.from_numpy(rows).to(self.inputs.device)]
        return samples.float() / 255 if samples.dtype == torch.uint8 else samples

    def deviation(self, client: int, noise: float) -> float:
        """Return the noise in units of the inputs: of pixels in [0, 1], or of the client's
        features' deviation.
        """
        pixels = self.benchmark.pictures is None and self.benchmark.image_shape is not None
        if pixels and not self.experiment.data.features:
            return noise
        return noise * float(self.method_inputs(self.partition.clients[client]).float().std())

    def held(self) -> dict[int, NDArray[np.int64]]:
        """Return client -> the ids of the classes that it holds."""
        return {
            k: np.unique(self.benchmark.labels[rows])
            for k, rows in enumerate(self.partition.clients)
        }


class Hooks:
    """What one feature adds to a federation; each default adds nothing.

    Nothing is asked of a feature that the experiment does not choose (:meth:`applies`). One object
    is made for each federation; class methods answer before there is one.

    Args:
        scene: what the federation is assembled of.
    """

    drops_non_finite: bool = False
    """A reply that is not finite is left out: a client may be malicious, or its numbers noisy."""
    poisson: bool = False
    """Clients are drawn by themselves, each with the probability ``strategy.fraction``."""
    notes: Sequence[str] = ()
    """Names of what a client's reply says beside its update."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    @classmethod
    def applies(cls, experiment: Experiment) -> bool:
        """Return whether the experiment chooses the feature."""
        return True

    @classmethod
    def hides_samples(cls, experiment: Experiment) -> bool:
        """Return whether nothing may follow from what samples are like."""
        return False

    @classmethod
    def reads_samples(cls, experiment: Experiment) -> bool:
        """Return whether the clients' samples can be read in this process once sums are merged."""
        return True

    @classmethod
    def sample_norm(cls, experiment: Experiment) -> float | None:
        """Return the length to which samples are clipped; None where they are not."""
        return None

    @classmethod
    def refuses_removal(cls, experiment: Experiment) -> str:
        """Return why no party can be taken out of a finished run; "" where one can."""
        return ""

    @classmethod
    def reads_absent_clients(cls, experiment: Experiment) -> bool:
        """Return whether a round may follow from samples of clients that take no part in it."""
        return False

    @classmethod
    def dealt(
        cls, experiment: Experiment, benchmark: Benchmark
    ) -> tuple[Benchmark, Partition] | None:
        """Return the benchmark as a run uses it, and who holds what of it; None for the ordinary
        way.
        """
        return None

    @classmethod
    def remarks(cls, experiment: Experiment, benchmark: Benchmark) -> list[str]:
        """Return sentences for the result that hold of this experiment."""
        return []

    @classmethod
    def prepare_method(
        cls, experiment: Experiment, method: Method, quantization: Quantization | None
    ) -> None:
        """Change a method before its first parameters are drawn; called again once features are
        quantized.
        """

    def strategy(self, strategy: Strategy, method: Method) -> Strategy:
        """Return what is sent and how it merges, wrapped."""
        return strategy

    def filters(self, method: Method) -> list[Filter]:
        """Return filters around the merge, the outermost last."""
        return []

    def worker(self, worker: Worker, method: Method) -> Worker:
        """Return what does the clients' rounds in this process, wrapped."""
        return worker

    def masks(self) -> Masking | None:
        """Return what adds replies up so that none can be read."""
        return None

    def monitor(self) -> Monitor | None:
        """Return what records its effect after each round."""
        return None

    def engine(
        self, strategy: Strategy, masks: Masking | None, notes: Sequence[str], drops: bool
    ) -> Engine | None:
        """Return what runs the clients elsewhere; None where they are in this process.

        Args:
            strategy: what is sent and how replies merge.
            masks: what adds replies up so that none can be read.
            notes: names of what a reply may say beside its update.
            drops: leave out replies that are not finite.
        """
        return None


def hooks(experiment: Experiment) -> list[type[Hooks]]:
    """Return the hooks that apply, of all folders that are there, in the order in which they are
    asked.
    """
    kinds: list[type[Hooks]] = [at(place) for place in added("HOOKS")]
    return [kind for kind in kinds if kind.applies(experiment)]


def reads_samples(experiment: Experiment) -> bool:
    """Return whether the clients' samples can be read in this process once sums are merged."""
    return all(kind.reads_samples(experiment) for kind in hooks(experiment))


def hides_samples(experiment: Experiment) -> bool:
    """Return whether nothing may follow from what samples are like, as under privacy."""
    return any(kind.hides_samples(experiment) for kind in hooks(experiment))
