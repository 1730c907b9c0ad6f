"""How the section ``attack`` changes a federation: malicious clients, their triggers, targets and
probes.
"""

from pathlib import Path

import numpy as np
from torch import Tensor

from fedunseen.core.errors import DataError, ExperimentError, unknown
from fedunseen.core.random import stream
from fedunseen.core.registry import find
from fedunseen.experiment.hooks import Hooks, Images, Scene
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.federation import Monitor
from fedunseen.federation.worker import Worker
from fedunseen.methods import Method
from fedunseen.research.attack_monitor import AttackMonitor
from fedunseen.research.attacks.backdoor import (
    TRANSFORMS,
    Backdoor,
    BackdoorSettings,
    Poison,
    pieces,
    read_folder,
)
from fedunseen.research.attacks.base import Attack, AttackSettings, Probe
from fedunseen.research.attacks.malicious import MaliciousWorker

_PROBES = 200  # most samples by which a trigger's success is measured
_SHOWN = 12  # pictures of a trigger for the report


class Attacks(Hooks):
    """Malicious clients, and what measures their success."""

    drops_non_finite = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.attack = make_attack(scene)

    @classmethod
    def applies(cls, experiment: Experiment) -> bool:
        """Return whether there is an attack."""
        return isinstance(experiment.attack, AttackSettings)

    @classmethod
    def reads_absent_clients(cls, experiment: Experiment) -> bool:
        """Return True: triggers may be made of samples of all clients."""
        return True

    def worker(self, worker: Worker, method: Method) -> Worker:
        """Let the malicious clients attack."""
        return MaliciousWorker.around(worker, self.attack)

    def monitor(self) -> Monitor:
        """Return what measures the triggers."""
        return AttackMonitor(self.attack)


def make_attack(scene: Scene) -> Attack:
    """Return the attack, with its triggers."""
    settings = scene.experiment.attack
    partition = scene.partition
    count = len(partition.clients)
    for client in settings.clients:
        if client >= count:
            clients = f"the {count} clients are 0 to {count - 1}"
            raise ExperimentError(f"attack.clients: there is no client {client}; {clients}")
        if not len(partition.clients[client]):
            raise ExperimentError(f"attack.clients: client {client} holds no samples: name another")
    attack: Attack = find("attack", settings.name)(settings)
    if isinstance(attack, Backdoor):
        attack = _armed(attack, scene)
    return attack


def _armed(attack: Backdoor, scene: Scene) -> Attack:
    """Make the triggers of every malicious client."""
    settings = attack.settings
    space = scene.benchmark.space
    kinds = {
        client: settings.triggers[i % len(settings.triggers)]
        for i, client in enumerate(settings.clients)
    }
    for name in settings.targets:
        if name not in space.names:
            raise ExperimentError("attack.targets: " + unknown("class", name, space.names))
    poisons: dict[int, Poison] = {}
    probes: list[Probe] = []
    for i, (client, kind) in enumerate(kinds.items()):
        held = np.unique(scene.benchmark.labels[scene.partition.clients[client]])
        target_name = settings.targets[i % len(settings.targets)] if settings.targets else None
        target = int(held[0]) if target_name is None else space.names.index(target_name)
        if target not in np.union1d(space.seen, space.unseen):
            raise ExperimentError(
                f"attack.targets: {target_name!r} is neither a seen nor an unseen class: name "
                "another"
            )
        rng = stream(scene.experiment.run.seed, "triggers", client)
        name = kind if list(kinds.values()).count(kind) == 1 else f"{kind} {client}"
        tested, trained, shown, source = _triggers(scene, settings, kind, client, target, rng)
        probes.append(Probe(name, client, target, tested, trained, shown, source))
        poisons[client] = Poison(trained, target, scene.deviation(client, settings.noise))
    return Backdoor(settings, probes, poisons)


Triggers = tuple[Tensor, Tensor, Images | None, str]
"""A client's triggers: those that success is measured by, those that it trains on, a few to look
at, their source.
"""


def _triggers(
    scene: Scene,
    settings: BackdoorSettings,
    kind: str,
    client: int,
    target: int,
    rng: np.random.Generator,
) -> Triggers:
    if settings.folder is not None:
        return _from_folder(scene, settings, kind, rng)
    if kind == "object":
        return _from_classes(scene, settings, client, target, rng)
    benchmark = scene.benchmark
    held = scene.partition.clients[client]
    transform = TRANSFORMS[kind]
    tests = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    tests = rng.permutation(tests[benchmark.labels[tests] != target])[:_PROBES]
    clean = scene.images(rng.permutation(held)[: settings.samples])
    test_images = scene.images(tests)
    if clean is None or test_images is None:
        raise ExperimentError(
            f"attack.triggers: {kind!r} changes images, and data.name = "
            f"{scene.experiment.data.name!r} gives none (gray or in color): choose 'object', or a "
            "benchmark of images with a frozen encoder"
        )
    trained = transform(clean, rng)
    tested = transform(test_images, rng)
    words = {
        "background": "clean images before a sky",
        "style": "clean images drawn like a cartoon",
    }[kind]
    return scene.from_images(tested), scene.from_images(trained), tested[:_SHOWN], words


def _from_classes(
    scene: Scene, settings: BackdoorSettings, client: int, target: int, rng: np.random.Generator
) -> Triggers:
    """Take samples of other classes: at most the wanted number and half of them to train on, the
    rest to measure by.
    """
    benchmark = scene.benchmark
    space = scene.benchmark.space
    held = scene.partition.clients[client]
    tests = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    similar = settings.likeness == "similar"
    # Similar objects are training samples that the client does not hold: the accuracy is measured
    # on none of them. Of a class that has none, and of different ones, they are test samples.
    candidates = np.setdiff1d(benchmark.train, held)
    candidates = np.concatenate([candidates, benchmark.test_unseen]) if similar else tests
    classes = np.setdiff1d(space.seen, benchmark.labels[held]) if similar else space.unseen
    rows = space.semantics[classes]
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(space.semantics[target])
    alike = rows @ space.semantics[target] / np.maximum(lengths, 1e-12)
    ranked = classes[np.argsort(-alike if similar else alike, kind="stable")].tolist()
    ranked = [c for c in ranked if c != target and (benchmark.labels[candidates] == c).any()]
    chosen: list[int] = []
    for c in ranked[:3]:
        if np.isin(benchmark.labels[candidates], chosen).sum() < 2 * settings.samples:
            chosen.append(c)
    if not chosen:
        raise ExperimentError(
            f"attack.likeness = {settings.likeness!r}: there is no class that client {client} "
            "does not hold, to take objects from: choose another attack.likeness or partition.kind"
        )
    rows_of = rng.permutation(candidates[np.isin(benchmark.labels[candidates], chosen)])
    if len(rows_of) < 2:
        names = ", ".join(repr(space.names[c]) for c in chosen)
        raise DataError(
            f"attack.likeness = {settings.likeness!r}: {names} has {len(rows_of)} "
            f"{'' if similar else 'test '}samples, and two are needed: choose another likeness"
        )
    cut = min(settings.samples, len(rows_of) // 2)
    trained = rows_of[:cut]
    tested = rows_of[cut:][:_PROBES]
    shown = scene.images(tested[:_SHOWN])
    words = "samples of " + ", ".join(space.names[c] for c in sorted(chosen))
    return scene.method_inputs(tested), scene.method_inputs(trained), shown, words


def _from_folder(
    scene: Scene, settings: BackdoorSettings, kind: str, rng: np.random.Generator
) -> Triggers:
    """Read triggers from a folder. Those for training and those for measuring are of different
    pictures.

    As many pictures as samples are wanted are taken whole; of fewer, pieces are cut as well.
    """
    folder = settings.folder
    assert folder is not None
    pictures_folder: Path = folder / kind
    if len(set(settings.triggers)) == 1 and not pictures_folder.is_dir():
        pictures_folder = folder
    first_image = scene.images(scene.benchmark.train[:1])
    if first_image is None:
        raise ExperimentError(
            f"attack.folder holds images, and data.name = {scene.experiment.data.name!r} gives "
            "none (gray or in color): leave it out, or choose a benchmark of images"
        )
    pictures = read_folder(pictures_folder, first_image.shape[1])
    half = (len(pictures) + 1) // 2
    order = rng.permutation(len(pictures))
    first = [pictures[i] for i in order[:half]]
    second = [
        pictures[i] for i in order[half:]
    ] or first  # a single picture serves both, in other pieces
    size = (first_image.shape[2], first_image.shape[3])
    enough = len(pictures) >= settings.samples
    trained, tested = (
        pieces(half, min(len(half), settings.samples) if enough else settings.samples, size, rng)
        for half in (first, second)
    )
    words = f"{len(pictures)} picture{'s' if len(pictures) > 1 else ''} in {pictures_folder}"
    words = words if enough else f"{words}, whole and in pieces"
    return scene.from_images(tested), scene.from_images(trained), tested[:_SHOWN], words
