"""A federation ready to run: the experiment's choices made into objects, on one benchmark with one partition."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params, is_statistic, to_device
from fedunseen.core.phases import SGD
from fedunseen.core.random import stream
from fedunseen.data import Benchmark, Partition, Scaler, fit_semantics
from fedunseen.data.episodes import too_few
from fedunseen.data.partition import NEVER
from fedunseen.engines import Distributed, DistributedSettings, EngineSettings, InProcess, Worker
from fedunseen.engines.remote.coordinator import Deployment, Simulation
from fedunseen.evaluation import Answers, answer
from fedunseen.experiment.encoding import make_backbone
from fedunseen.experiment.registry import find
from fedunseen.experiment.schema import Experiment
from fedunseen.experiment.threats import make_attack, make_screening
from fedunseen.methods import Candidates, Method
from fedunseen.methods.episodic import Episodic
from fedunseen.strategies import Reply, Strategy
from fedunseen.strategies.peers import Peers, averages
from fedunseen.strategies.selective import Selective, matches, travelling
from fedunseen.threats.attacks import Attack
from fedunseen.threats.defences import Defence, Robust, Scores
from fedunseen.threats.malicious import MaliciousWorker
from fedunseen.threats.privacy import Private
from fedunseen.threats.screening import COUNTS, ScreenedTrainer

__all__ = ["Federation", "check_participants", "check_presence", "find_device", "mean_terms"]

_SCALE = 1000  # samples from which a defence's random inputs have their scale
_NUMBERS = 2**24  # of the samples scored at once: bounds memory


def find_device(choice: str) -> torch.device:
    """Return the device that ``run.device`` names.

    Raises:
        ExperimentError: ``cuda`` is asked for and not there.
    """
    there = torch.cuda.is_available()
    torch.backends.cudnn.allow_tf32 = False  # by default convolutions keep 10 bits of a float32
    if choice == "cuda" and not there:
        raise ExperimentError("run.device = 'cuda', but no CUDA device is there: set it to 'auto' or 'cpu'")
    return torch.device("cuda" if there and choice != "cpu" else "cpu")


def check_presence(partition: Partition, rounds: int) -> None:
    """Refuse a partition that leaves a round without clients.

    Raises:
        ExperimentError: nobody is present in some round.
    """
    changes = np.unique(np.concatenate([[0], partition.first, partition.last]))  # between two nobody comes or goes
    for round in changes[changes < rounds].tolist():
        if not partition.present(round):
            raise ExperimentError(
                f"no client with samples is present in round {round} (counted from 0): "
                "change partition.join or partition.leave"
            )


def drawn_clients(fraction: float, present: int) -> int:
    """Return how many clients take part in a round: at least one.

    Example:
        >>> drawn_clients(0.3, 10), drawn_clients(0.01, 10)
        (3, 1)
    """
    return max(1, round_half_up(fraction * present))


def check_participants(experiment: Experiment, partition: Partition) -> None:
    """Refuse a defence that some round has too few clients for.

    Raises:
        ExperimentError: says how many it needs.
    """
    if experiment.defence.name == "none" or experiment.privacy.name != "none":  # which judges every reply by itself
        return
    defence = find("defence", experiment.defence.name)(experiment.defence)
    changes = np.unique(np.concatenate([[0], partition.first, partition.last]))
    for round in changes[changes < experiment.strategy.rounds].tolist():
        defence.check(drawn_clients(experiment.strategy.fraction, len(partition.present(round))), round)


@dataclass(eq=False)
class Federation:
    """Everything that a run's rounds need. Made by :meth:`make`, which checks all that can be wrong before round 0."""

    experiment: Experiment
    benchmark: Benchmark
    partition: Partition
    method: Method
    engine: InProcess | Distributed
    feature_scaler: Scaler
    semantics: Tensor  # (C, attributes), scaled
    inputs: Tensor  # (N, d) scaled vectors, or (N, channels, height, width) maps or images; on the device
    labels: Tensor  # (N,)
    first: Params  # the parameters before round 0, of them those that travel
    sizes: dict[str, int]  # how many numbers each parameter has, those that stay with the clients included
    attack: Attack | None = None

    @staticmethod
    def make(
        experiment: Experiment,
        benchmark: Benchmark,
        partition: Partition,
        selection: bool = False,
        scaler: Scaler | None = None,
    ) -> Federation:
        """Build the objects that the experiment names.

        Args:
            experiment: settings.
            benchmark: samples, encoded; the given one, or its version for selection.
            partition: who holds which of its training samples.
            selection: the benchmark is its version for selection.
            scaler: of features, where it is not to be fitted to the training samples: a party's is the coordinator's.

        Raises:
            ExperimentError, DataError: something does not fit together.
        """
        device = find_device(experiment.run.device)
        space, data = benchmark.space, experiment.data
        strategy = find("strategy", experiment.strategy.name)(experiment.strategy)
        if strategy.pools:
            everything = np.unique(np.concatenate(partition.clients))
            partition = Partition((everything,), np.zeros(1, dtype=np.int64), np.full(1, NEVER))
        settings = experiment.method
        chosen = find("method", settings.name)
        if chosen.episodic:
            partition = partition if partition.remote else _able(partition, benchmark, settings)
        elif not space.attributes:
            raise ExperimentError(
                f"data.name = {data.name!r} has no descriptions of its classes, which method.name = {settings.name!r} "
                "needs: name a few-shot method, for example maml or protonet"
            )
        check_presence(partition, experiment.strategy.rounds)
        if benchmark.kind == "vectors":
            feature_scaler = scaler or _fit_scaler(benchmark, experiment)
            inputs = torch.from_numpy(feature_scaler(benchmark.features)).to(device)
        elif data.features:
            kind = benchmark.kind
            raise ExperimentError(f"data.features scales vectors, but {benchmark.name} has {kind}: leave it out")
        else:  # bytes or half precision stay what they are, on disk where they are a memory map: batches are widened
            feature_scaler = Scaler((), {})
            inputs = torch.from_numpy(benchmark.features).to(device)
        labels = torch.from_numpy(benchmark.labels).to(device)
        semantics = torch.from_numpy(fit_semantics(space, data.semantics)(space.semantics)).to(device)
        backbone = make_backbone(experiment, inputs.shape[1:], benchmark.image_shape)
        if chosen.frozen and backbone.trained:
            raise ExperimentError(
                f"method.name = {settings.name!r} learns from features that stay what they are, but encoder.name = "
                f"{experiment.encoder.name!r} is trained: name a frozen one, for example tflite, or none"
            )
        method: Method = chosen(settings, space, semantics, backbone)
        if isinstance(method, Episodic):
            method.set_answers(benchmark.answers)
        if method.frozen and len(benchmark.train):
            method.check_inputs(inputs[torch.from_numpy(benchmark.train).to(device)])
        settings_of_engine = experiment.engine
        mode = settings_of_engine.mode if isinstance(settings_of_engine, EngineSettings) else "one-at-a-time"
        if mode == "batched" and not method.batched:
            raise ExperimentError(
                f"method.name = {settings.name!r} with encoder.name = {experiment.encoder.name!r} cannot train clients "
                "as one batch: set engine.mode to 'auto'"
            )
        if strategy.lengths == "memory" and not all(isinstance(phase.optimiser, SGD) for phase in method.phases()):
            other = "choose another strategy, for example fedavg"
            remedy = "set method.optimiser = 'sgd'" if hasattr(settings, "optimiser") else other
            raise ExperimentError(
                f"strategy.name = {experiment.strategy.name!r} needs clients that use SGD, and method.name = "
                f"{settings.name!r} does not: {remedy}"
            )
        initial = to_device(method.init(stream(experiment.run.seed, "initialisation")), device)
        sizes = {name: value.numel() for name, value in initial.items()}
        if method.compares:
            strategy = _with_peers(strategy, method, experiment)
        strategy, initial = _select(strategy, method, settings.name, initial)
        check_participants(experiment, partition)
        strategy = _guard(experiment, strategy, method, benchmark, partition, semantics, inputs, initial)
        attack = make_attack(experiment, benchmark, partition, inputs, feature_scaler)
        guarded = experiment.defence.name != "none" or experiment.privacy.name != "none"
        forgiving = guarded or attack is not None
        engine: InProcess | Distributed
        if isinstance(settings_of_engine, DistributedSettings):
            job: Simulation | Deployment = Simulation(experiment.to_dict(), selection)
            if partition.remote:
                job = _deployment(experiment, benchmark, feature_scaler)
            told = (*COUNTS, "threshold") if experiment.screening.name != "none" else ()
            sizes_of = len(partition.clients), len(space.names)
            engine = Distributed(strategy, settings_of_engine, *sizes_of, job, forgiving, told)
        else:
            memory, bf16 = settings_of_engine.memory * 2**20, settings_of_engine.precision == "bf16"
            seed, augment = experiment.run.seed, experiment.encoder.augment
            given = (method, strategy, inputs, labels, partition.clients, seed, mode, memory, bf16, augment)
            worker = Worker(*given) if attack is None else MaliciousWorker(attack, *given)
            if (screening := make_screening(experiment, method)) is not None:
                worker.trainer = ScreenedTrainer.around(worker.trainer, screening)
            engine = InProcess(strategy, worker, forgiving)
        return Federation(
            experiment,
            benchmark,
            partition,
            method,
            engine,
            feature_scaler,
            semantics,
            inputs,
            labels,
            initial,
            sizes,
            attack,
        )

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return self.inputs.device

    def initial(self) -> tuple[Params, Params]:
        """Return the server's state and parameters before round 0."""
        return self.engine.strategy.init(self.first, len(self.partition.clients)), self.first

    def participants(self, round: int) -> list[int]:
        """Draw the clients of ``round`` (counted from 0) from those present, in ascending order.

        As many in each round; under private merging each by itself, so that now and then it is nobody.
        """
        present = self.partition.present(round)
        fraction = self.experiment.strategy.fraction
        rng = stream(self.experiment.run.seed, "participants", round)
        if self.experiment.privacy.name != "none":
            return [
                int(client) for client, drawn in zip(present, rng.random(len(present)), strict=True) if drawn < fraction
            ]
        count = drawn_clients(fraction, len(present))
        return sorted(int(client) for client in rng.choice(present, count, replace=False))

    def complete(self, params: Params) -> Params:
        """Add what the method's scores need to merged parameters: a generative method's classifiers.

        Real training samples take part only where one place has all of them.
        """
        space = self.benchmark.space
        real = None
        if self.engine.strategy.pools and self.method.generates:
            rows = torch.from_numpy(self.partition.clients[0]).to(self.device)
            real = self.inputs[rows], self.labels[rows]
        among = Candidates(space.names, self.semantics, space.seen, space.unseen)
        return self.method.complete(params, among, self.experiment.run.seed, real)

    def answers(self, params: Params) -> Answers:
        """Ask a complete model for the classes of the benchmark's test samples."""
        rows = np.concatenate([self.benchmark.test_unseen, self.benchmark.test_seen])
        with torch.no_grad():
            scores = (self.method.scores(params, inputs, self.semantics) for inputs in self.batches(rows))
            among_unseen = self._unseen_scores(params, rows) if self.method.generates else None
            return answer(scores, self.benchmark.labels[rows], self.benchmark.space, among_unseen)

    def _unseen_scores(self, params: Params, rows: NDArray[np.int64]) -> Iterator[Tensor]:
        for inputs in self.batches(rows):
            yield self.method.unseen_scores(params, inputs, self.semantics)

    def backdoor(self, params: Params, factor: float) -> dict[str, float]:
        """Return, for each trigger, the share in percent of its samples that a complete model takes for its target.

        It answers among all classes, with calibration ``factor``, as for the generalised accuracies.
        """
        found = {}
        for probe in self.attack.probes if self.attack is not None else ():
            with torch.no_grad():
                scores = (self.method.scores(params, part, self.semantics) for part in torch.split(probe.inputs, 256))
                answers = answer(scores, np.full(len(probe.inputs), probe.target), self.benchmark.space)
            found[probe.name] = float(100 * (answers.generalised(factor) == probe.target).mean())
        return found

    def batches(self, rows: NDArray[np.int64]) -> Iterator[Tensor]:
        """Give the inputs of samples, as many at once as memory well bears."""
        # A layer of a backbone has about a hundredth as many numbers as it takes multiplications to make them.
        numbers = max(1, self.inputs[0].numel(), self.method.backbone.multiply_adds() // 100)
        step = max(1, min(4096, _NUMBERS // numbers))
        for start in range(0, len(rows), step):
            yield self.inputs[torch.from_numpy(rows[start : start + step]).to(self.device)]

    def models(self, params: Params, client_states: dict[int, Params]) -> Sequence[Params]:
        """Return the models whose mean accuracy is the run's, complete: the merged one, or every client's own."""
        if self.engine.strategy.merges:
            return [self.complete(params)]
        return [self.complete(client_states[client]) for client in sorted(client_states)]


def party_sections(experiment: Experiment) -> dict[str, Any]:
    """Return what a party is told of an experiment: nothing of the coordinator's files, defences and engine."""
    tree = experiment.to_dict()
    paths = ("root", "part", *(key for key, value in experiment.data if isinstance(value, Path)))
    data = {key: value for key, value in tree["data"].items() if key not in ("name", *paths)}
    left = ("data", "partition", "engine", "attack", "defence", "privacy")
    tree["run"] = {"seed": experiment.run.seed}  # on which device is the party's affair
    engine = {"memory": experiment.engine.memory, "precision": experiment.engine.precision}
    return {key: value for key, value in tree.items() if key not in left} | {"data": data, "engine": engine}


def _deployment(experiment: Experiment, benchmark: Benchmark, scaler: Scaler) -> Deployment:
    """Return what the parties of a deployment are told."""
    statistics = {name: torch.from_numpy(value) for name, value in scaler.statistics.items()}
    shape = benchmark.features.shape[1:]
    return Deployment(party_sections(experiment), benchmark.space.hashes(), shape, statistics)


def _fit_scaler(benchmark: Benchmark, experiment: Experiment) -> Scaler:
    """Fit the scaling of features to the training samples.

    Raises:
        ExperimentError: there is none, as at a coordinator, and the scaling has something to fit.
    """
    steps = experiment.data.features
    if not len(benchmark.train) and {"min-max", "centre", "standard"} & set(steps):
        raise ExperimentError(
            f"data.features = {list(steps)} is fitted to training samples, and {benchmark.name} has none: use l2 or "
            "x10, or give the coordinator some training samples of its own"
        )
    return Scaler.fit(benchmark.features[benchmark.train], steps)


def _able(partition: Partition, benchmark: Benchmark, settings: Any) -> Partition:
    """Leave out the clients whose samples make no episode, and say so, as of classes with too few samples.

    Raises:
        ExperimentError: no client is left.
    """
    kept, reasons = list(partition.clients), []
    scarce: list[int] = []
    for k, own in enumerate(partition.clients):
        few, reason = too_few(
            benchmark.labels[own], settings.ways, settings.shots, settings.queries, settings.rotations
        )
        if reason is not None and len(own):
            kept[k] = own[:0]
            reasons.append(f"client {k}: {reason}")
        scarce += [k] if len(few) else []
    if not any(map(len, kept)):
        raise ExperimentError(
            f"no client can make an episode ({reasons[0] if reasons else 'nobody has a sample'}): lower method.ways, "
            "method.shots, method.queries or partition.clients"
        )
    if reasons:
        warnings.warn(f"{len(reasons)} of {len(kept)} clients are left out ({reasons[0]})", stacklevel=2)
    left = [k for k in scarce if len(kept[k])]
    if left:
        warnings.warn(
            f"{len(left)} of {len(kept)} clients, the first of them client {left[0]}, make no episodes of classes of "
            f"which they hold fewer than {settings.shots + settings.queries} samples",
            stacklevel=2,
        )
    return replace(partition, clients=tuple(kept))


def _with_peers(strategy: Strategy, method: Method, experiment: Experiment) -> Strategy:
    """Let clients compare themselves with a peer model.

    Raises:
        ExperimentError: the model of all others cannot be had from what a client is sent.
    """
    exclusive = method.settings.exclusive
    plain = averages(strategy) and experiment.defence.name == experiment.privacy.name == "none"
    if exclusive and not plain:
        raise ExperimentError(
            "method.exclusive needs merged models that are plain means of the clients': set strategy.name to fedavg, "
            "fedprox or moon, strategy.weights = 'uniform', strategy.server_lr = 1 and strategy.update_scale = 1, "
            "without [defence] and [privacy]"
        )
    return Peers(strategy, exclusive)


def _select(strategy: Strategy, method: Method, name: str, params: Params) -> tuple[Strategy, Params]:
    """Wrap a strategy of which not all parameters travel; return it and those that do.

    Raises:
        ExperimentError: ``strategy.shared`` does not fit the method.
    """
    shared = strategy.settings.shared
    if not strategy.merges:
        if shared != ("*",):
            raise ExperimentError(
                f"strategy.shared has no effect with strategy.name = {strategy.settings.name!r}, where nothing "
                "travels: set it to ['*']"
            )
        return strategy, params
    chosen = travelling(list(params), shared, method.private)
    stays = {key: value for key, value in params.items() if key not in chosen}
    needed = [key for key in stays if not matches(key, (*method.private, *method.training_only))]
    if needed:
        module = needed[0].split(".")[0]
        raise ExperimentError(
            f"strategy.shared keeps {needed[0]!r} with the clients, but the merged model of method.name = "
            f"{name!r} cannot score without it: add '{module}.*'"
        )
    if not stays:
        return strategy, params
    return Selective(strategy, stays), {key: params[key] for key in params if key in chosen}


def mean_terms(weights: Sequence[float], replies: Sequence[Reply]) -> dict[str, float]:
    """Return the mean of each loss over the clients that have it: some phases run in a client's first round alone."""
    found = {}
    for term in dict.fromkeys(term for reply in replies for term in reply.terms):
        pairs = zip(weights, replies, strict=True)
        having = [(weight, reply.terms[term]) for weight, reply in pairs if term in reply.terms]
        found[term] = sum(weight * value for weight, value in having) / sum(weight for weight, _ in having)
    return found


def _guard(
    experiment: Experiment,
    strategy: Strategy,
    method: Method,
    benchmark: Benchmark,
    partition: Partition,
    semantics: Tensor,
    inputs: Tensor,
    initial: Params,
) -> Strategy:
    """Wrap a strategy by the defence and the private merging that the experiment names.

    Raises:
        ExperimentError: they do not fit the method or each other; a budget does not pay for the rounds.
    """
    seed, privacy = experiment.run.seed, experiment.privacy
    held = {k: np.unique(benchmark.labels[own]) for k, own in enumerate(partition.clients)}
    defence: Defence | None = None
    if experiment.defence.name != "none":
        chosen: type[Defence] = find("defence", experiment.defence.name)
        scores = None
        if chosen.asks_scores:
            scores = _scores(experiment, method, benchmark, held, semantics, inputs)
        defence = chosen(experiment.defence, seed, scores)
    if privacy.name != "none":
        if defence is not None and not defence.each_alone:
            raise ExperimentError(
                f"privacy.name = {privacy.name!r} needs a defence that judges every update by itself, which "
                f"defence.name = {experiment.defence.name!r} does not as it is set: choose 'norm-clip' with a "
                "defence.bound, or 'none'"
            )
        if statistics := [name for name in initial if is_statistic(name)]:
            raise ExperimentError(
                f"privacy.name = {privacy.name!r} cannot protect running statistics ({statistics[0]!r}), which noise "
                "may turn negative: choose an encoder without BatchNorm, for example encoder.norm = 'group'"
            )
        uniform = experiment.strategy.weights == "uniform"
        weights = {k: 1.0 if uniform else float(len(classes)) for k, classes in held.items()}
        own = experiment.strategy
        strategy = Private(strategy, privacy, own.fraction, own.rounds, weights, seed)
    return strategy if defence is None else Robust(strategy, defence)


def _scores(
    experiment: Experiment,
    method: Method,
    benchmark: Benchmark,
    held: dict[int, NDArray[np.int64]],
    semantics: Tensor,
    inputs: Tensor,
) -> Scores:
    """Return what a defence may ask of the method.

    Raises:
        ExperimentError: the method has no scores of its merged parameters, or none that change with the inputs.
    """
    name = experiment.defence.name
    if method.generates or method.episodic:
        first = "training classifiers" if method.generates else "learning them from examples"
        raise ExperimentError(
            f"defence.name = {name!r} asks the merged model for scores of classes, which method.name = "
            f"{experiment.method.name!r} has only after {first}: choose another defence"
        )
    device, images = semantics.device, benchmark.kind == "images"
    shape = tuple(benchmark.features.shape[1:])
    rows = stream(experiment.run.seed, "scale of inputs").permutation(benchmark.train)[:_SCALE]
    sample = inputs[torch.from_numpy(np.sort(rows)).to(device)]
    sample = sample / 255 if sample.dtype == torch.uint8 else sample.float()
    mean, deviation = float(sample.mean()), float(sample.std())

    def of(params: Params, given: Tensor) -> Tensor:
        return method.scores(params, given, semantics)

    def random(rng: np.random.Generator, count: int) -> Tensor:
        noise = mean + deviation * torch.from_numpy(rng.standard_normal((count, *shape), dtype=np.float32)).to(device)
        return noise.clamp(0, 1) if images else noise

    return Scores(
        of,
        random,
        torch.from_numpy(np.union1d(benchmark.space.seen, benchmark.space.unseen)).to(device),
        {k: torch.from_numpy(classes).to(device) for k, classes in held.items()},
    )


def round_half_up(value: float) -> int:
    """Round to the nearest whole number, halves up (Python rounds them to even).

    Example:
        >>> round_half_up(2.5), round_half_up(0.3 * 10)
        (3, 3)
    """
    return int(np.floor(value + 0.5))
