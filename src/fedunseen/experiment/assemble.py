"""From an experiment to a federation: the data, who holds what, and the objects that the experiment names."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.attacks.base import Attack
from fedunseen.attacks.malicious import MaliciousWorker
from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params, to_device
from fedunseen.core.random import stream
from fedunseen.core.registry import find
from fedunseen.core.samples import Inputs, Samples, ScaledSamples, slice_of
from fedunseen.data import Benchmark, Quantization, Scaler, Scaling, fit_semantics
from fedunseen.data.scaling import FITTED
from fedunseen.defences.base import Defence, Robust, Scores
from fedunseen.defences.screening import COUNTS, ScreenedTrainer
from fedunseen.engines.local.buffered import Buffered, BufferedSettings
from fedunseen.engines.local.in_process import InProcess
from fedunseen.engines.local.worker import Execution, SoftWorker, Worker
from fedunseen.engines.remote.coordinator import Deployment, Distributed, DistributedSettings, Simulation
from fedunseen.experiment import rules
from fedunseen.experiment.dataset_checks import foreign_names
from fedunseen.experiment.encoding import encode, make_backbone
from fedunseen.experiment.parsing import in_closed_form
from fedunseen.experiment.rules import DataFacts, ModelFacts, PresenceFacts
from fedunseen.experiment.schema import Experiment
from fedunseen.experiment.threats import Scene, make_attack, make_screening
from fedunseen.federation.federation import Federation, Parts, Sampling, one_place, suited
from fedunseen.federation.partition import Partition, make_partition
from fedunseen.methods import LEFT_TO_DATA, Method
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.unlabelled import SoftSums
from fedunseen.privacy.client_level import Private
from fedunseen.privacy.private_sums import PrivateSums, release_of
from fedunseen.strategies import Pipeline, Strategy
from fedunseen.strategies.compression import Codec
from fedunseen.strategies.summed import Summed

if TYPE_CHECKING:
    from fedunseen.secagg.masks import Masks

COORDINATORS = ("partition", "growth", "attack", "defence")
"""Sections that parties are not sent, and refuse."""
_BOUNDS = 2048  # training samples that bounds of features are fitted to


def load_data(experiment: Experiment, seed: int) -> Benchmark:
    """Return the benchmark, with features instead of images where the encoder is frozen."""
    benchmark: Benchmark = find("data", experiment.data.name).load(experiment.data, seed)
    if benchmark.space.from_texts and (strange := foreign_names(benchmark.space.names)):
        warnings.warn(
            f"{len(strange)} of {len(benchmark.space.names)} class names say little to the text encoder, which was "
            f"trained on English, such as {strange[0]!r}: give English names, or describe them by attributes",
            stacklevel=2,
        )
    return encode(experiment, benchmark)


def partition_of(experiment: Experiment, benchmark: Benchmark, seed: int) -> Partition:
    """Deal what clients may hold of the training samples."""
    return make_partition(experiment.partition, experiment.task.client_data(benchmark), seed)


def prepared(experiment: Experiment, selection: bool) -> tuple[Benchmark, Partition]:
    """Return the benchmark and the partition that a run trains on, as a simulation's worker process needs them."""
    seed = experiment.run.seed
    benchmark = load_data(experiment, seed)
    partition = partition_of(experiment, benchmark, seed)
    if not selection:
        return experiment.task.client_data(benchmark), partition
    chosen = benchmark.for_selection(seed)
    return chosen, partition.restricted_to(chosen.train)


def in_process(experiment: Experiment) -> Experiment:
    """Return the experiment on the default engine, one client at a time: what stands behind every other engine."""
    if experiment.engine.name != "in-process":
        keep = {f"engine.{key}": getattr(experiment.engine, key) for key in ("memory", "precision")}
        experiment = experiment.with_overrides({"engine.name": "in-process", **keep})
    return experiment.with_overrides({"engine.mode": "one-at-a-time"})


def resolve_defaults(experiment: Experiment, benchmark: Benchmark) -> Experiment:
    """Return the experiment with what it leaves to the data: how features are scaled, learning rate, unit of maps.

    Under ``[privacy]``, which hides what samples are like, and without training samples, which a coordinator may lack,
    nothing is asked of samples: features are brought to unit length at most.
    """
    chosen = find("method", experiment.method.name)
    asked = len(benchmark.train) > 0 and experiment.privacy.name == "none"
    data = experiment.data
    if not chosen.trained and data.quantization is None:
        data = data.model_copy(update={"quantization": 8 if benchmark.kind == "vectors" else "none"})
    if data.features is None:
        steps: tuple[Scaling, ...] = ()
        if benchmark.kind == "vectors" and benchmark.image_shape is None:  # others are in [0, 1], or stay what they are
            steps = tuple(step for step in chosen.scaling if asked or step in ("l2", "x10"))
            one_unit = not find("data", data.name).mixed_units or not asked
            if _bits(data.quantization, chosen) and one_unit and steps[-1:] != ("l2",):
                steps = (*steps, "l2")
        data = data.model_copy(update={"features": steps})
    experiment = experiment.model_copy(update={"data": data})
    left = [key for key in LEFT_TO_DATA if getattr(experiment.method, key, 0.0) is None]
    if left:
        rules.check(DataFacts(experiment, benchmark))  # what cannot be built has no rate
        inputs = _some_inputs(benchmark, experiment.data.features or (), asked)
        method = _method(experiment, benchmark, inputs)
        first = method.init(stream(experiment.run.seed, "initialisation")) if "lr" in left else {}
        method.resolve_defaults(first, inputs)
        found = {key: getattr(method.settings, key) for key in left}
        experiment = experiment.model_copy(update={"method": experiment.method.model_copy(update=found)})
    return experiment


def _bits(quantization: int | str | None, method: type[Method]) -> int:
    """Return how many bits a feature is quantized to; 0 for none."""
    return quantization if isinstance(quantization, int) and not method.trained else 0


def _quantization(experiment: Experiment, benchmark: Benchmark, scaler: Scaler) -> Quantization | None:
    """Return how scaled features become whole numbers, if they do.

    The range is that of unit length or of gray values, which no data say; other features have bounds for each, fitted
    to training samples. Under sample-level privacy it is that of samples of the length ``privacy.clip`` instead.
    """
    method, reach = find("method", experiment.method.name), experiment.data.quantization_range
    bits = _bits(experiment.data.quantization, method)
    if not bits:
        return None
    if scaler.steps[-1:] == ("l2",):
        return Quantization.of_unit_length(bits, reach, benchmark.features.shape[1])
    clip = experiment.privacy.clip if experiment.privacy.name == "sample-level" else None
    if not scaler.steps and benchmark.image_shape is not None:
        found = Quantization.of_grey_values(bits)
    elif clip is not None:
        found = Quantization.of_unit_length(bits, clip * reach, benchmark.features.shape[1])
    else:
        places = np.linspace(0, len(benchmark.train) - 1, min(len(benchmark.train), _BOUNDS)).astype(np.int64)
        found = Quantization.of_rows(bits, reach, benchmark.features[benchmark.train[places]], scaler)
    keeps_offset = clip is None and getattr(method, "shift_invariant", True)  # clip is about samples as they are
    return found if keeps_offset else found.around_zero()


def _some_inputs(benchmark: Benchmark, steps: tuple[Scaling, ...], asked: bool) -> Tensor:
    """Return some of the training samples as a method takes them; unasked, one as long as the scaling makes them."""
    vectors, train = benchmark.kind == "vectors", benchmark.train
    if not asked:
        known = vectors and steps[-1:] == ("l2",)
        return torch.eye(int(known), int(np.prod(benchmark.features.shape[1:]))).view(-1, *benchmark.features.shape[1:])
    rows = benchmark.features[benchmark.sketch()]
    return torch.from_numpy(Scaler.fit(benchmark.features[slice_of(train)], steps)(rows) if vectors else np.array(rows))


def find_device(choice: str) -> torch.device:
    """Return the device that ``run.device`` names."""
    available = torch.cuda.is_available()
    torch.backends.cudnn.allow_tf32 = False  # by default convolutions keep 10 bits of a float32
    if choice == "cuda" and not available:
        raise ExperimentError("run.device = 'cuda', but no CUDA device is there: set it to 'auto' or 'cpu'")
    return torch.device("cuda" if available and choice != "cpu" else "cpu")


def assemble(
    experiment: Experiment,
    benchmark: Benchmark,
    partition: Partition,
    selection: bool = False,
    scaler: Scaler | None = None,
    whole: bool = True,
) -> Federation:
    """Build the federation that the experiment names."""
    experiment = resolve_defaults(experiment, benchmark)
    device, seed = find_device(experiment.run.device), experiment.run.seed
    strategy: Strategy = find("strategy", experiment.strategy.name)(experiment.strategy)
    partition = _eligible(experiment, benchmark, partition, scaler is None, whole)
    scaler, inputs = _inputs(experiment, benchmark, scaler, device)
    scene = Scene(experiment, benchmark, partition, inputs, scaler)
    method = _method(experiment, benchmark, inputs)
    if isinstance(method, ClosedForm):
        method.quantization = scaler.quantization
        if method.release is not None:
            method.release = release_of(experiment.privacy, scaler.quantization)
    first = to_device(method.init(stream(seed, "initialisation")), device)
    sizes = {name: value.numel() for name, value in first.items()}
    rules.check(ModelFacts(experiment, method, first))
    strategy, filters, first = suited(strategy, method, first)
    if getattr(experiment.data, "unlabelled", False) == "summed":
        strategy = SoftSums(strategy, method)
    if experiment.privacy.name == "sample-level":
        assert isinstance(strategy, Summed)  # a rule's
        strategy = PrivateSums(strategy, experiment.privacy, seed, release_of(experiment.privacy, scaler.quantization))
    if experiment.privacy.name == "client-level":
        filters.append(_private(scene))
    if experiment.defence.name != "none":
        chosen: type[Defence] = find("defence", experiment.defence.name)
        scores = _scores(scene, method) if chosen.asks_scores else None
        filters.append(Robust(chosen(experiment.defence, seed, scores)))
    codec = Codec(experiment.compression, seed) if experiment.compression.name != "none" else None
    strategy = Pipeline.around(strategy, filters, codec)
    attack = make_attack(scene)
    engine: InProcess | Distributed
    if isinstance(experiment.engine, DistributedSettings):
        engine = _distributed(scene, strategy, selection, attack)
    else:
        engine = _local(scene, method, strategy, attack)
    sampling = Sampling(seed, experiment.strategy.fraction, poisson=experiment.privacy.name == "client-level")
    parts = Parts(engine, first, sizes, scaler, attack)
    return Federation(benchmark, partition, method, strategy, inputs=inputs, sampling=sampling, parts=parts)


def _eligible(
    experiment: Experiment, benchmark: Benchmark, partition: Partition, fits_scaling: bool = True, whole: bool = True
) -> Partition:
    """Return who trains on what; refuse data and clients that do not suit the experiment."""
    if find("strategy", experiment.strategy.name).pools:
        partition = one_place(partition)
    partition = experiment.task.eligible_clients(partition, benchmark, experiment.method)
    rules.check(DataFacts(experiment, benchmark, fits_scaling=fits_scaling))
    if whole:
        rules.check(PresenceFacts(experiment, partition))
    return partition


def _drops_non_finite(experiment: Experiment, attack: Attack | None) -> bool:
    """Say whether a reply that is not finite is left out: a client may be malicious, or its numbers noisy."""
    return experiment.defence.name != "none" or experiment.privacy.name != "none" or attack is not None


def _distributed(scene: Scene, strategy: Strategy, selection: bool, attack: Attack | None) -> Distributed:
    """Return the engine whose clients are in other processes."""
    experiment = scene.experiment
    assert isinstance(experiment.engine, DistributedSettings)
    job: Simulation | Deployment = Simulation(experiment.to_dict(), selection)
    if scene.partition.remote:
        job = _deployment(experiment, scene.benchmark, scene.scaler, selection)
    notes = (*COUNTS, "threshold") if experiment.screening.name != "none" else ()
    classes, masks = len(scene.benchmark.space.names), _masks(scene)
    kind: type[Distributed] = find("engine", experiment.engine.name)
    return kind(strategy, experiment.engine, classes, job, _drops_non_finite(experiment, attack), notes, masks)


def _local(scene: Scene, method: Method, strategy: Strategy, attack: Attack | None) -> InProcess:
    """Return the engine whose clients are in this process."""
    experiment, benchmark, partition = scene.experiment, scene.benchmark, scene.partition
    labels, seed = torch.from_numpy(benchmark.labels).to(scene.inputs.device), experiment.run.seed
    engine = experiment.engine
    execution = Execution(engine.mode, engine.memory * 2**20, engine.precision == "bf16", experiment.encoder.augment)
    given = (method, strategy, scene.inputs, labels, partition.clients, seed, execution)
    if isinstance(strategy, SoftSums):
        worker: Worker = SoftWorker(_pools(benchmark, partition), *given)
    else:
        worker = Worker(*given) if attack is None else MaliciousWorker(attack, *given)
    if (screening := make_screening(experiment, method)) is not None:
        worker.trainer = ScreenedTrainer.around(worker.trainer, screening)
    if isinstance(experiment.engine, BufferedSettings):
        return Buffered(strategy, worker, experiment.engine, seed)
    return InProcess(strategy, worker, _drops_non_finite(experiment, attack), _masks(scene))


def _pools(benchmark: Benchmark, partition: Partition) -> list[NDArray[np.int64]]:
    """Deal the unlabelled samples in turn to the clients whose samples are here: a party's are all its own."""
    here = [k for k, own in enumerate(partition.clients) if len(own)]
    pools = {k: benchmark.unlabelled[i :: len(here)] for i, k in enumerate(here)}
    return [pools.get(k, benchmark.unlabelled[:0]) for k in range(len(partition.clients))]


def check(experiment: Experiment, benchmark: Benchmark) -> None:
    """Refuse what :func:`assemble` would refuse of an experiment, without its first parameters, threats and engine."""
    experiment = resolve_defaults(experiment, benchmark)
    partition = partition_of(experiment, benchmark, experiment.run.seed)
    benchmark = experiment.task.client_data(benchmark)
    _eligible(experiment, benchmark, partition)
    _, inputs = _inputs(experiment, benchmark, None, torch.device("cpu"))
    rules.check(ModelFacts(experiment, _method(experiment, benchmark, inputs)))


def _inputs(
    experiment: Experiment, benchmark: Benchmark, scaler: Scaler | None, device: torch.device
) -> tuple[Scaler, Inputs]:
    """Return the samples as the method takes them, and how they were scaled to be that."""
    if benchmark.kind != "vectors":
        # Bytes or half precision stay what they are, on disk where they are a memory map: batches are widened, and
        # only they go to another device.
        rows = torch.from_numpy(benchmark.features)
        return Scaler((), {}), rows if device.type == "cpu" else Samples(rows, device)
    if scaler is None:
        steps = experiment.data.features or ()
        fits = any(step in FITTED for step in steps)
        scaler = Scaler.fit(benchmark.features[slice_of(benchmark.train)] if fits else benchmark.features[:1], steps)
        quantization = _quantization(experiment, benchmark, scaler)
        scaler = scaler if quantization is None else scaler.quantized(quantization)
    if scaler.quantization is not None:
        return scaler, ScaledSamples(benchmark.features, device, scaler, scaler.codes)
    return scaler, torch.from_numpy(scaler(benchmark.features)).to(device)


def _method(experiment: Experiment, benchmark: Benchmark, inputs: Inputs) -> Method:
    space, device = benchmark.space, inputs.device
    semantics = torch.from_numpy(fit_semantics(space, experiment.data.semantics)(space.semantics)).to(device)
    backbone = make_backbone(experiment, inputs.shape[1:], benchmark.image_shape)
    method: Method = find("method", experiment.method.name)(experiment.method, space, semantics, backbone)
    if isinstance(method, ClosedForm) and experiment.privacy.name == "sample-level":
        method.release = release_of(experiment.privacy)
    experiment.task.prepare(method, benchmark)
    if method.frozen and method.trained and len(benchmark.train):
        rows, train = inputs.host if isinstance(inputs, Samples) else inputs, slice_of(benchmark.train)
        method.check_inputs(rows[train if isinstance(train, slice) else torch.from_numpy(train).to(rows.device)])
    return method


def _held(scene: Scene) -> dict[int, NDArray[np.int64]]:
    """Return the classes that each client holds."""
    return {k: np.unique(scene.benchmark.labels[own]) for k, own in enumerate(scene.partition.clients)}


def _scores(scene: Scene, method: Method) -> Scores:
    """Return what a defence may ask of the method."""
    benchmark, inputs = scene.benchmark, scene.inputs
    device, images = inputs.device, benchmark.kind == "images"
    shape = tuple(benchmark.features.shape[1:])
    rows = stream(scene.experiment.run.seed, "scale of inputs").permutation(benchmark.train)[:1000]
    sample = inputs[torch.from_numpy(np.sort(rows)).to(device)]
    sample = sample / 255 if sample.dtype == torch.uint8 else sample.float()
    mean, deviation = float(sample.mean()), float(sample.std())

    def of(params: Params, given: Tensor) -> Tensor:
        return method.scores(params, given, method.semantics)

    def random(rng: np.random.Generator, count: int) -> Tensor:
        noise = mean + deviation * torch.from_numpy(rng.standard_normal((count, *shape), dtype=np.float32)).to(device)
        return noise.clamp(0, 1) if images else noise

    among = torch.from_numpy(np.union1d(benchmark.space.seen, benchmark.space.unseen)).to(device)
    return Scores(of, random, among, {k: torch.from_numpy(own).to(device) for k, own in _held(scene).items()})


def _private(scene: Scene) -> Private:
    """Return the private merging that the experiment names."""
    experiment, strategy = scene.experiment, scene.experiment.strategy
    uniform = strategy.weights == "uniform"
    weights = {k: 1.0 if uniform else float(len(classes)) for k, classes in _held(scene).items()}
    return Private(experiment.privacy, strategy.fraction, strategy.rounds, weights, experiment.run.seed, uniform)


def _masks(scene: Scene) -> Masks | None:
    """Return how parties mask what they send, if they do."""
    privacy, clients = scene.experiment.privacy, len(scene.partition.clients)
    if privacy.aggregation == "plain":
        return None
    from fedunseen.secagg.masks import Masks

    allow, classes = privacy.dropouts == "allow", len(scene.benchmark.space.names)
    return Masks(privacy.range, clients, privacy.name != "none", allow, classes=classes)


def party_sections(experiment: Experiment) -> dict[str, Any]:
    """Return the part of an experiment that parties receive: nothing of the coordinator's files, defences and engine.

    For private merging, it masks what it sends and adds its noise before.
    """
    tree = experiment.to_dict()
    paths = ("name", "root", "part", *(key for key, value in experiment.data if isinstance(value, Path)))
    tree["data"] = {key: value for key, value in tree["data"].items() if key not in paths}
    tree["run"] = {"seed": experiment.run.seed}  # on which device is the party's affair
    tree["engine"] = {"memory": experiment.engine.memory, "precision": experiment.engine.precision}
    if in_closed_form(tree):
        tree["strategy"]["rounds"] = 1  # how often sums are asked for is the coordinator's affair
    masked = experiment.privacy.aggregation == "masked"
    left = (*COORDINATORS, *(() if masked else ("privacy",)))
    return {key: value for key, value in tree.items() if key not in left}


def _deployment(experiment: Experiment, benchmark: Benchmark, scaler: Scaler, selection: bool) -> Deployment:
    """Return what the parties of a deployment receive; ``selection``: validation classes play the unseen ones."""
    statistics = {name: torch.from_numpy(value) for name, value in scaler.statistics.items()}
    shape = benchmark.features.shape[1:]
    validation = benchmark.space.unseen.tolist() if selection else None
    # Parties take the coordinator's numbers where a text encoder made them: their processors may round otherwise.
    semantics = torch.from_numpy(benchmark.space.semantics) if benchmark.space.from_texts else None
    sections, hashes = party_sections(experiment), benchmark.space.hashes()
    return Deployment(sections, hashes, shape, statistics, validation, semantics=semantics)
