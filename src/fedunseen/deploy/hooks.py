"""How a federation reaches clients that are in other processes, and how it masks what they send."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedunseen.core.extensions import kept_sections
from fedunseen.core.registry import find
from fedunseen.data import Benchmark
from fedunseen.deploy.deployed import notes, tested
from fedunseen.deploy.remote.clients import (
    Clients,
    Deployment,
    MaskedParties,
    Parties,
    Workers,
)
from fedunseen.deploy.remote.coordinator import (
    AddedUp,
    Buffered,
    Carrier,
    Distributed,
    DistributedSettings,
    Synchronous,
)
from fedunseen.experiment.hooks import Hooks, Scene
from fedunseen.experiment.parsing import in_closed_form
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.engine import Engine, Masking
from fedunseen.federation.partition import Partition, elsewhere
from fedunseen.strategies import Strategy


class Deployments(Hooks):
    """Clients elsewhere, and masks over what they send."""

    @classmethod
    def applies(cls, experiment: Experiment) -> bool:
        """Return whether clients are in other processes, or mask what they send."""
        return bool(experiment.engine.distributed) or _masked(experiment)

    @classmethod
    def dealt(
        cls, experiment: Experiment, benchmark: Benchmark
    ) -> tuple[Benchmark, Partition] | None:
        """Return a coordinator's benchmark, whose parties have the training samples."""
        if not experiment.deployed:
            return None
        return tested(experiment, benchmark), elsewhere(experiment.partition)

    @classmethod
    def reads_samples(cls, experiment: Experiment) -> bool:
        """Return whether parties send their statistics in clear, from this process."""
        return not (experiment.deployed or _masked(experiment))

    @classmethod
    def remarks(cls, experiment: Experiment, benchmark: Benchmark) -> list[str]:
        """Return what the user of a deployment must know of its calibration and tests."""
        return notes(experiment, benchmark) if experiment.deployed else []

    def masks(self) -> Masking | None:
        """Return how parties mask what they send, if they do."""
        if not _masked(self.scene.experiment):
            return None
        privacy = self.scene.experiment.privacy
        from fedunseen.deploy.secagg.masks import (
            Masks,  # needs the libraries of the extra ``masked``
        )

        return Masks(
            privacy.range,
            len(self.scene.partition.clients),
            privacy.name != "none",
            privacy.dropouts == "allow",
            classes=len(self.scene.benchmark.space.names),
        )

    def engine(
        self, strategy: Strategy, masks: Masking | None, notes: Sequence[str], drops: bool
    ) -> Engine | None:
        """Return the engine whose clients are in other processes."""
        scene = self.scene
        settings = scene.experiment.engine
        if not isinstance(settings, DistributedSettings):
            return None
        clients = clients_of(scene, settings.patience, masks, drops)
        kind: type[Distributed] = find("engine", settings.name)
        if issubclass(kind, Carrier):
            kind = over_link(settings, clients)
        return kind(strategy, settings, len(scene.benchmark.space.names), clients, notes)


def _masked(experiment: Experiment) -> bool:
    """Return whether parties mask what they send; without the folder ``safety`` none does."""
    privacy = getattr(experiment, "privacy", None)
    return privacy is not None and bool(privacy.aggregation == "masked")


def clients_of(scene: Scene, patience: float, masks: Any, drops: bool) -> Clients:
    """Return who is at the other end of the link: worker processes, or parties to greet."""
    if not scene.partition.remote:
        return Workers(patience, scene.experiment.to_dict(), scene.selection, masks, drops)
    if masks is None:
        return Parties(patience, greeting(scene))
    return MaskedParties(patience, greeting(scene), masks)


def over_link(settings: DistributedSettings, clients: Clients) -> type[Distributed]:
    """Return the engine that runs the rounds over a link."""
    if isinstance(clients, MaskedParties):
        # needs the libraries of the extra ``masked``
        from fedunseen.deploy.remote.masked import Masked

        return Masked
    if settings.buffer is not None:
        return Buffered
    return Synchronous if clients.masks is None else AddedUp


def party_sections(experiment: Experiment) -> dict[str, Any]:
    """Return the part of an experiment that parties receive: nothing of the coordinator's files,
    defences and engine.

    For private merging, it masks what it sends and adds its noise before.
    """
    tree = experiment.to_dict()
    paths = (
        "name",
        "root",
        "part",
        *(key for key, value in experiment.data if isinstance(value, Path)),
    )
    tree["data"] = {key: value for key, value in tree["data"].items() if key not in paths}
    tree["run"] = {"seed": experiment.run.seed}  # on which device is the party's affair
    tree["engine"] = {"memory": experiment.engine.memory}
    if in_closed_form(tree):
        tree["strategy"]["rounds"] = 1  # how often sums are asked for is the coordinator's affair
    masked = experiment.privacy.aggregation == "masked"
    omitted = (*kept_sections(), *(() if masked else ("privacy",)))
    return {key: value for key, value in tree.items() if key not in omitted}


def greeting(scene: Scene) -> Deployment:
    """Return what the parties of a deployment receive; under ``selection`` validation classes play
    the unseen ones.
    """
    benchmark = scene.benchmark
    statistics = {name: torch.from_numpy(value) for name, value in scene.scaler.statistics.items()}
    validation = benchmark.space.unseen.tolist() if scene.selection else None
    # Parties take the coordinator's numbers where a text encoder made them: their processors may
    # round otherwise.
    semantics = torch.from_numpy(benchmark.space.semantics) if benchmark.space.from_texts else None
    return Deployment(
        party_sections(scene.experiment),
        benchmark.space.hashes(),
        benchmark.features.shape[1:],
        statistics,
        validation,
        semantics=semantics,
        classes=benchmark.space.names,
    )
