"""How the sections ``privacy``, ``defence`` and ``screening`` change a federation."""

import numpy as np
import torch
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.core.random import stream
from fedunseen.core.registry import find
from fedunseen.data import Quantization
from fedunseen.experiment.hooks import Hooks, Scene
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.federation import Monitor
from fedunseen.federation.worker import Worker
from fedunseen.methods import Method
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.safety.defences.base import Robust, Scores
from fedunseen.safety.defences.screening import COUNTS, ScreenedTrainer
from fedunseen.safety.privacy.client_level import Private
from fedunseen.safety.privacy.private_sums import PrivateSums, release_of
from fedunseen.safety.screening_monitor import ScreeningMonitor
from fedunseen.strategies import Filter, Strategy
from fedunseen.strategies.summed import Summed


class Privacy(Hooks):
    """Noise on what clients send: client-level while training, sample-level on statistics."""

    drops_non_finite = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.level = scene.experiment.privacy.name
        self.poisson = self.level == "client-level"

    @classmethod
    def applies(cls, experiment: Experiment) -> bool:
        """Return whether there is noise."""
        return bool(experiment.privacy.name != "none")

    @classmethod
    def hides_samples(cls, experiment: Experiment) -> bool:
        """Return True: what follows from samples would be another release."""
        return True

    @classmethod
    def sample_norm(cls, experiment: Experiment) -> float | None:
        """Return ``privacy.clip`` under sample-level privacy."""
        privacy = experiment.privacy
        return privacy.clip if privacy.name == "sample-level" else None

    @classmethod
    def refuses_removal(cls, experiment: Experiment) -> str:
        """Return why noisy statistics cannot be subtracted."""
        return (
            f"privacy.name = {experiment.privacy.name!r} has released noisy sums, from which "
            "nothing can be taken out: run it again without the party"
        )

    @classmethod
    def reads_absent_clients(cls, experiment: Experiment) -> bool:
        """Return whether noise depends on how many classes each client holds."""
        return bool(experiment.privacy.name == "client-level")

    @classmethod
    def prepare_method(
        cls, experiment: Experiment, method: Method, quantization: Quantization | None
    ) -> None:
        """Let a closed form clip its samples, and account for the noise in its statistics."""
        if isinstance(method, ClosedForm) and experiment.privacy.name == "sample-level":
            method.release = release_of(experiment.privacy, quantization)

    def strategy(self, strategy: Strategy, method: Method) -> Strategy:
        """Add noise to statistics under sample-level privacy."""
        if self.level != "sample-level":
            return strategy
        assert isinstance(strategy, Summed)  # a rule's
        scene = self.scene
        release = release_of(scene.experiment.privacy, scene.scaler.quantization)
        return PrivateSums(strategy, scene.experiment.privacy, scene.experiment.run.seed, release)

    def filters(self, method: Method) -> list[Filter]:
        """Clip updates and add noise under client-level privacy."""
        if self.level != "client-level":
            return []
        experiment = self.scene.experiment
        chosen = self.scene.experiment.strategy
        uniform = chosen.weights == "uniform"
        weights = {
            client: 1.0 if uniform else float(len(classes))
            for client, classes in self.scene.held().items()
        }
        private = Private(
            experiment.privacy,
            chosen.fraction,
            chosen.rounds,
            weights,
            experiment.run.seed,
            uniform,
        )
        return [private]


class Defence(Hooks):
    """A rule that judges the clients' updates before they merge."""

    drops_non_finite = True

    @classmethod
    def applies(cls, experiment: Experiment) -> bool:
        """Return whether there is a rule."""
        return bool(experiment.defence.name != "none")

    @classmethod
    def reads_absent_clients(cls, experiment: Experiment) -> bool:
        """Return True: a rule may draw training samples of all clients."""
        return True

    def filters(self, method: Method) -> list[Filter]:
        """Return the rule."""
        settings = self.scene.experiment.defence
        chosen = find("defence", settings.name)
        scores = scores_of(self.scene, method) if chosen.asks_scores else None
        return [Robust(chosen(settings, self.scene.experiment.run.seed, scores))]


class Screening(Hooks):
    """Clients leave out samples of their own that look poisoned."""

    notes = (*COUNTS, "threshold")

    @classmethod
    def applies(cls, experiment: Experiment) -> bool:
        """Return whether clients look for such samples."""
        return bool(experiment.screening.name != "none")

    def worker(self, worker: Worker, method: Method) -> Worker:
        """Let the trainer screen its samples."""
        settings = self.scene.experiment.screening
        screening = find("screening", settings.name)(settings, method.features)
        worker.trainer = ScreenedTrainer.around(worker.trainer, screening)
        return worker

    def monitor(self) -> Monitor:
        """Return what adds up the counts of the clients."""
        return ScreeningMonitor()


def scores_of(scene: Scene, method: Method) -> Scores:
    """Return what a defence may ask of the method."""
    benchmark = scene.benchmark
    inputs = scene.inputs
    device = inputs.device
    images = benchmark.kind == "images"
    shape = tuple(benchmark.features.shape[1:])
    rows = stream(scene.experiment.run.seed, "scale of inputs").permutation(benchmark.train)[:1000]
    sample = inputs[torch.from_numpy(np.sort(rows)).to(device)]
    sample = sample / 255 if sample.dtype == torch.uint8 else sample.float()
    mean = float(sample.mean())
    deviation = float(sample.std())

    def of(params: Params, samples: Tensor) -> Tensor:
        return method.scores(params, samples, method.semantics)

    def random(rng: np.random.Generator, count: int) -> Tensor:
        noise = mean + deviation * torch.from_numpy(
            rng.standard_normal((count, *shape), dtype=np.float32)
        ).to(device)
        return noise.clamp(0, 1) if images else noise

    among = torch.from_numpy(np.union1d(benchmark.space.seen, benchmark.space.unseen)).to(device)
    held = {
        client: torch.from_numpy(classes).to(device) for client, classes in scene.held().items()
    }
    return Scores(of, random, among, held)
