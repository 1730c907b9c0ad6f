"""From an experiment to a federation: the data, who holds what, and the objects that the experiment
names.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.confidence.asking import CountedAnswers
from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import to_device
from fedunseen.core.random import stream
from fedunseen.core.registry import find
from fedunseen.core.samples import Inputs, Samples, ScaledSamples, slice_of
from fedunseen.core.sizes import BoundedDraws
from fedunseen.data import Benchmark, ClassSpace, Scaler, Scaling, fit_semantics
from fedunseen.experiment import rules
from fedunseen.experiment.dataset_checks import foreign_names
from fedunseen.experiment.encoding import encode, make_backbone
from fedunseen.experiment.hooks import Hooks, Scene, hides_samples, hooks
from fedunseen.experiment.names_as_read import strange_names, strange_words
from fedunseen.experiment.rules import DataFacts, ModelFacts, PresenceFacts
from fedunseen.experiment.scales import bits_of, fit_scalings, scaler_of
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.buffered import Buffered, BufferedSettings
from fedunseen.federation.engine import Engine
from fedunseen.federation.federation import Federation, Parts, Sampling, one_place, suited
from fedunseen.federation.in_process import InProcess, InProcessSettings
from fedunseen.federation.partition import Partition, make_partition, never_taking_part
from fedunseen.federation.worker import AnsweringWorker, Execution, SoftWorker, Worker
from fedunseen.methods import LEFT_TO_DATA, Method
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.statistics import in_large_classes
from fedunseen.methods.closed_form.unlabelled import SoftSums
from fedunseen.strategies import Pipeline, Strategy
from fedunseen.strategies.compression import Codec


def load_data(experiment: Experiment, seed: int) -> Benchmark:
    """Return the benchmark, with features instead of images where the encoder is frozen."""
    benchmark: Benchmark = find("data", experiment.data.name).load(experiment.data, seed)
    if benchmark.space.from_texts and (strange := _strange(experiment, benchmark.space)):
        warnings.warn(
            f"{strange_words(benchmark.space.names, strange)}: it was trained on English. Give "
            "English names, or describe the classes by attributes in classes.csv",
            stacklevel=2,
        )
    if said := twins(benchmark.space, find("method", experiment.method.name)):
        warnings.warn(said, stacklevel=2)
    return encode(experiment, benchmark)


def _strange(experiment: Experiment, space: ClassSpace) -> list[str]:
    """Return the names of classes that a text encoder described and does not know, as ``init``
    counts them.
    """
    if getattr(experiment.data, "text_encoder", None) is None:
        return foreign_names(space.names)
    return strange_names(space.names, experiment.data, space.semantics)


def twins(space: ClassSpace, method: type[Method]) -> str:
    """Say which two classes have the same description and nothing else that tells them apart:
    samples of both, where the method keeps their means; "" where there are none.
    """
    if not method.zero_shot:
        return ""
    first: dict[bytes, int] = {}
    unseen = set(space.unseen.tolist())
    if method.task == "any-shot" and not unseen:
        return ""
    for c, row in enumerate(space.semantics + 0.0):  # -0 is 0
        twin = first.setdefault(row.tobytes(), c)
        if twin != c and (method.task != "any-shot" or {c, twin} & unseen):
            return (
                f"The classes {space.names[twin]!r} and {space.names[c]!r} have the same "
                "description, so that nothing tells them apart: describe them differently, or "
                "leave one out."
            )
    return ""


def partition_of(experiment: Experiment, benchmark: Benchmark, seed: int) -> Partition:
    """Deal what clients may hold of the training samples."""
    return make_partition(experiment.partition, experiment.task.client_data(benchmark), seed)


def dealt(experiment: Experiment, benchmark: Benchmark) -> tuple[Benchmark, Partition]:
    """Return the benchmark as a run uses it, and who holds what of it."""
    for kind in hooks(experiment):
        if (elsewhere := kind.dealt(experiment, benchmark)) is not None:
            return elsewhere
    return deal(experiment, benchmark)


def deal(experiment: Experiment, benchmark: Benchmark) -> tuple[Benchmark, Partition]:
    """Return the benchmark that a simulation trains on, and who holds what of it.

    Samples that clients were dealt and that never take part are in neither, so that nothing is
    fitted to them.
    """
    seed = experiment.run.seed
    held = experiment.task.client_data(benchmark)
    never_present = never_taking_part(experiment.partition, held, seed)
    partition = make_partition(experiment.partition, held, seed)
    return (benchmark.without(never_present) if len(never_present) else benchmark), partition


def prepared(experiment: Experiment, selection: bool) -> tuple[Benchmark, Partition]:
    """Return the benchmark and the partition that a run trains on, as a simulation's worker process
    needs them.
    """
    seed = experiment.run.seed
    benchmark, partition = deal(experiment, load_data(experiment, seed))
    if not selection:
        return experiment.task.client_data(benchmark), partition
    chosen = benchmark.for_selection(seed)
    return chosen, partition.restricted_to(chosen.train)


def in_process(experiment: Experiment) -> Experiment:
    """Return the experiment on the default engine, one client at a time: what stands behind every
    other engine.
    """
    if experiment.engine.name != "in-process":
        keep = {"engine.name": "in-process", "engine.memory": experiment.engine.memory}
        experiment = experiment.with_overrides(keep)
    return experiment.with_overrides({"engine.mode": "one-at-a-time"})


def resolve_defaults(experiment: Experiment, benchmark: Benchmark) -> Experiment:
    """Return the experiment with what it leaves to the data: how features are scaled, learning
    rate, unit of maps.

    Under ``[privacy]``, which hides what samples are like, and without training samples, which a
    coordinator may lack, nothing is asked of samples: features are brought to unit length at most.
    """
    chosen = find("method", experiment.method.name)
    reads_samples = len(benchmark.train) > 0 and not hides_samples(experiment)
    data = experiment.data
    if not chosen.trained and data.quantization is None:
        data = data.model_copy(
            update={"quantization": 8 if benchmark.kind == "vectors" else "none"}
        )
    if data.features is None:
        steps: tuple[Scaling, ...] = ()
        if (
            benchmark.kind == "vectors" and benchmark.image_shape is None
        ):  # others are in [0, 1], or stay what they are
            steps = tuple(step for step in chosen.scaling if reads_samples or step in ("l2", "x10"))
            one_unit = (
                not find("data", data.name).mixed_units or not reads_samples
            ) and not data.bounds
            rounded = bits_of(experiment.model_copy(update={"data": data}))
            if rounded and one_unit and steps[-1:] != ("l2",):
                steps = (*steps, "l2")
        data = data.model_copy(update={"features": steps})
    experiment = experiment.model_copy(update={"data": data})
    unresolved = [key for key in LEFT_TO_DATA if getattr(experiment.method, key, 0.0) is None]
    if unresolved:
        rules.check(DataFacts(experiment, benchmark))  # what cannot be built has no rate
        inputs = _some_inputs(experiment, benchmark, reads_samples)
        method = _method(experiment, benchmark, inputs)
        first = (
            method.init(BoundedDraws(stream(experiment.run.seed, "initialisation").bit_generator))
            if "lr" in unresolved
            else {}
        )
        method.resolve_defaults(first, inputs)
        resolved = {key: getattr(method.settings, key) for key in unresolved}
        experiment = experiment.model_copy(
            update={"method": experiment.method.model_copy(update=resolved)}
        )
    return experiment


def _some_inputs(experiment: Experiment, benchmark: Benchmark, reads_samples: bool) -> Tensor:
    """Return some of the training samples as a method takes them; one as long as the scaling
    makes them if ``reads_samples`` is false.
    """
    vectors = benchmark.kind == "vectors"
    steps = experiment.data.features or ()
    if not reads_samples:
        unit_length = vectors and steps[-1:] == ("l2",)
        return torch.eye(int(unit_length), int(np.prod(benchmark.features.shape[1:]))).view(
            -1, *benchmark.features.shape[1:]
        )
    rows = benchmark.features[benchmark.sketch()]
    return torch.from_numpy(
        fit_scalings(experiment, benchmark)(rows) if vectors else np.array(rows)
    )


def find_device(choice: str) -> torch.device:
    """Return the device that ``run.device`` names."""
    available = torch.cuda.is_available()
    torch.backends.cudnn.allow_tf32 = False  # by default convolutions keep 10 bits of a float32
    if choice == "cuda" and not available:
        raise ExperimentError(
            "run.device = 'cuda', but no CUDA device is there: set it to 'auto' or 'cpu'"
        )
    return torch.device("cuda" if available and choice != "cpu" else "cpu")


def assemble(
    experiment: Experiment,
    benchmark: Benchmark,
    partition: Partition,
    selection: bool = False,
    scaler: Scaler | None = None,
    whole: bool = True,
) -> Federation:
    """Resolve what the experiment leaves to the data, and build the federation that it names."""
    experiment = resolve_defaults(experiment, benchmark)
    return build_federation(experiment, benchmark, partition, selection, scaler, whole)


def build_federation(
    experiment: Experiment,
    benchmark: Benchmark,
    partition: Partition,
    selection: bool = False,
    scaler: Scaler | None = None,
    whole: bool = True,
) -> Federation:
    """Build the federation of an experiment that leaves nothing to the data."""
    device = find_device(experiment.run.device)
    seed = experiment.run.seed
    strategy: Strategy = find("strategy", experiment.strategy.name)(experiment.strategy)
    partition = _eligible(experiment, benchmark, partition, scaler is None, whole)
    scaler, inputs = _inputs(experiment, benchmark, scaler, device)
    method = _method(experiment, benchmark, inputs)
    if isinstance(method, ClosedForm):
        method.quantization = scaler.quantization
        for kind in hooks(experiment):
            kind.prepare_method(experiment, method, scaler.quantization)
    first = to_device(
        method.init(BoundedDraws(stream(seed, "initialisation").bit_generator)), device
    )
    sizes = {name: value.numel() for name, value in first.items()}
    rules.check(ModelFacts(experiment, method, first))
    scene = Scene(experiment, benchmark, partition, inputs, scaler, selection)
    added = [kind(scene) for kind in hooks(experiment)]
    strategy, filters, first = suited(strategy, method, first)
    if getattr(experiment.data, "unlabelled", False) == "summed":
        strategy = SoftSums(strategy, method)
    elif experiment.evaluation.confidence == "asking":
        strategy = CountedAnswers(strategy, len(benchmark.space.names))
    for hook in added:
        strategy = hook.strategy(strategy, method)
        filters += hook.filters(method)
    codec = Codec(experiment.compression, seed) if experiment.compression.name != "none" else None
    strategy = Pipeline.around(strategy, filters, codec)
    engine = _engine(added, scene, method, strategy)
    fraction = experiment.strategy.fraction
    sampling = Sampling(seed, fraction, poisson=any(hook.poisson for hook in added))
    monitors = [monitor for hook in added if (monitor := hook.monitor()) is not None]
    parts = Parts(engine, first, sizes, scaler, monitors)
    return Federation(
        benchmark, partition, method, strategy, inputs=inputs, sampling=sampling, parts=parts
    )


def _eligible(
    experiment: Experiment,
    benchmark: Benchmark,
    partition: Partition,
    fits_scaling: bool = True,
    whole: bool = True,
) -> Partition:
    """Return who trains on what; refuse data and clients that do not suit the experiment."""
    if find("strategy", experiment.strategy.name).pools:
        partition = one_place(partition)
    partition = experiment.task.eligible_clients(partition, benchmark, experiment.method)
    partition = _in_large_classes(experiment, benchmark, partition)
    rules.check(DataFacts(experiment, benchmark, fits_scaling=fits_scaling))
    if whole:
        rules.check(PresenceFacts(experiment, partition))
    return partition


def _in_large_classes(
    experiment: Experiment, benchmark: Benchmark, partition: Partition
) -> Partition:
    """Leave each client only samples of classes of which it has enough (``method.min_samples``)."""
    minimum = getattr(experiment.method, "min_samples", 1)
    if minimum == 1 or getattr(experiment.data, "unlabelled", False) == "summed":
        return partition
    kept = (rows[in_large_classes(benchmark, rows, minimum)[0]] for rows in partition.clients)
    return replace(partition, clients=tuple(kept))


def _engine(added: Sequence[Hooks], scene: Scene, method: Method, strategy: Strategy) -> Engine:
    """Return what runs the clients: the first engine that a hook has, or one in this process."""
    masks = next((hook_masks for hook in added if (hook_masks := hook.masks()) is not None), None)
    notes = [note for hook in added for note in hook.notes]
    drops = any(hook.drops_non_finite for hook in added)
    for hook in added:
        if (elsewhere := hook.engine(strategy, masks, notes, drops)) is not None:
            return elsewhere
    experiment = scene.experiment
    benchmark = scene.benchmark
    partition = scene.partition
    labels = torch.from_numpy(benchmark.labels).to(scene.inputs.device)
    seed = experiment.run.seed
    settings = experiment.engine
    assert isinstance(settings, InProcessSettings)
    execution = Execution(
        settings.mode,
        settings.memory * 2**20,
        experiment.encoder.augment,
    )
    worker_arguments = (method, strategy, scene.inputs, labels, partition.clients, seed, execution)
    if isinstance(strategy, SoftSums):
        worker: Worker = SoftWorker(_pools(benchmark, partition), *worker_arguments)
    elif isinstance(strategy, CountedAnswers):
        worker = AnsweringWorker(*worker_arguments)
    else:
        worker = Worker(*worker_arguments)
    for hook in added:
        worker = hook.worker(worker, method)
    if isinstance(settings, BufferedSettings):
        return Buffered(strategy, worker, settings, seed)
    return InProcess(strategy, worker, drops, masks)


def _pools(benchmark: Benchmark, partition: Partition) -> list[NDArray[np.int64]]:
    """Deal the unlabelled samples in turn to the clients whose samples are here: a party's are all
    its own.
    """
    present = [k for k, rows in enumerate(partition.clients) if len(rows)]
    pools = {k: benchmark.unlabelled[i :: len(present)] for i, k in enumerate(present)}
    return [pools.get(k, benchmark.unlabelled[:0]) for k in range(len(partition.clients))]


def check(experiment: Experiment, benchmark: Benchmark) -> None:
    """Refuse what :func:`assemble` would refuse of an experiment, without its first parameters,
    threats and engine.
    """
    benchmark, partition = deal(experiment, benchmark)
    experiment = resolve_defaults(experiment, benchmark)
    benchmark = experiment.task.client_data(benchmark)
    _eligible(experiment, benchmark, partition)
    _, inputs = _inputs(experiment, benchmark, None, torch.device("cpu"))
    rules.check(ModelFacts(experiment, _method(experiment, benchmark, inputs)))


def _inputs(
    experiment: Experiment, benchmark: Benchmark, scaler: Scaler | None, device: torch.device
) -> tuple[Scaler, Inputs]:
    """Return the samples as the method takes them, and how they were scaled to be that."""
    if benchmark.kind != "vectors":
        # Bytes or half precision stay what they are, on disk where they are a memory map: batches
        # are widened, and only they go to another device.
        rows = torch.from_numpy(benchmark.features)
        return Scaler((), {}), rows if device.type == "cpu" else Samples(rows, device)
    if scaler is None:
        scaler = scaler_of(experiment, benchmark)
    if scaler.quantization is not None:
        known = benchmark.originals, benchmark.repeats
        return scaler, ScaledSamples(benchmark.features, device, scaler, *known)
    return scaler, torch.from_numpy(scaler(benchmark.features)).to(device)


def _method(experiment: Experiment, benchmark: Benchmark, inputs: Inputs) -> Method:
    space = benchmark.space
    device = inputs.device
    semantics = torch.from_numpy(
        fit_semantics(space, experiment.data.semantics)(space.semantics)
    ).to(device)
    backbone = make_backbone(experiment, inputs.shape[1:], benchmark.image_shape)
    method: Method = find("method", experiment.method.name)(
        experiment.method, space, semantics, backbone
    )
    if method.trained:
        method.check_step()
    for kind in hooks(experiment):
        kind.prepare_method(experiment, method, None)
    experiment.task.prepare(method, benchmark)
    if method.frozen and method.trained and len(benchmark.train):
        rows = inputs.host if isinstance(inputs, Samples) else inputs
        train = slice_of(benchmark.train)
        method.check_inputs(
            rows[train if isinstance(train, slice) else torch.from_numpy(train).to(rows.device)]
        )
    return method
