"""What the gradients of an experiment give away, before its first round."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import ExperimentError, unknown
from fedunseen.core.parameters import to_device
from fedunseen.core.random import stream
from fedunseen.core.registry import find
from fedunseen.core.sizes import BoundedDraws
from fedunseen.data import Benchmark
from fedunseen.experiment.assemble import assemble, load_data, partition_of
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.partition import Partition
from fedunseen.research.attacks import leakage
from fedunseen.research.attacks.inversion import DLG, Cosine, Inversion
from fedunseen.strategies import Strategy

METHODS = ("dlg", "cosine", "both")
SUMS = (1, 2, 3, 10)
UNMASKED = (
    "under masks the coordinator sees no single gradient, but sums: "
    "single ones are what it would see without masks"
)
Log = Callable[[str], None]


def notes(experiment: Experiment) -> list[str]:
    """Return what a reader has to know of an experiment's attacked gradients."""
    strategy = find("strategy", experiment.strategy.name)
    sentences = []
    if any(
        getattr(strategy, part) is not getattr(Strategy, part) for part in ("correct", "objective")
    ):
        name = experiment.strategy.name
        sentences.append(f"what {name} adds to gradients is not played: they are those of fedavg")
    return [*sentences, UNMASKED] if experiment.privacy.aggregation == "masked" else sentences


def examine(
    experiment: Experiment,
    images: int,
    attacks: Mapping[str, Inversion],
    log: Log,
    sums: Sequence[int] | None = None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the contents of ``leakage.json`` and ``leakage.safetensors``: attacks before the first
    round.
    """
    _check(experiment)
    benchmark = load_data(experiment, seed := experiment.run.seed)
    partition = partition_of(experiment, benchmark, seed)
    parties = [rows for rows in partition.clients if len(rows)]
    held = np.unique(np.concatenate(parties))
    if images > len(held):
        raise ExperimentError(
            f"--images {images}: the clients hold only {len(held)} training samples"
        )
    if sums is None:
        sums = sorted({min(count, len(parties)) for count in SUMS})
    elif max(sums, default=0) > len(parties):
        raise ExperimentError(
            f"--sums {max(sums)}: only {len(parties)} clients hold training samples, name fewer"
        )
    victims = np.sort(stream(seed, "leakage samples").choice(held, images, replace=False))
    subject, device = _subject(experiment, benchmark, partition, victims)
    names = benchmark.space.names
    labels = benchmark.labels
    pictures = benchmark.images()
    facts: dict[str, Any] = {
        "experiment": experiment.to_dict(), "benchmark": benchmark.name, "seed": seed,
        "classes": [names[c] for c in np.unique(labels[benchmark.train])],
        "samples": _samples(benchmark, victims), "shared": list(experiment.strategy.shared),
    }  # fmt: skip
    tensors: dict[str, Tensor] = {}
    if pictures is None:
        facts["classifier"] = {
            "left_out": f"{benchmark.name} gives features, no images that a classifier could see"
        }
    else:
        network = leakage.Network(pictures, labels, len(names), benchmark.train, seed, device)
        facts["classifier"], measured = leakage.measure_classifier(
            network, pictures, labels, victims, attacks, log
        )
        tensors |= {f"classifier.{name}": value for name, value in measured.items()}
    facts["method"], measured = leakage.measure_method(subject, attacks, seed, log)
    tensors |= {f"method.{name}": value for name, value in measured.items()}
    if sums:
        subject = _of_parties(subject, parties, max(sums), seed)
        facts["sums"] = {"samples": _samples(benchmark, subject.victims)}
        if pictures is not None:
            seen = network.sums(pictures, labels, subject.victims, sums)
            judges = {"inputs": network.judge}
            facts["sums"]["classifier"] = leakage.measure_sums(
                seen, judges, attacks, "classifier", log
            )
        facts["sums"]["phases"] = leakage.measure_method_sums(subject, sums, attacks, seed, log)
    return facts, tensors


def _check(experiment: Experiment) -> None:
    """Refuse an experiment that sends no gradient that could be attacked."""
    strategy = find("strategy", experiment.strategy.name)
    method = f"method.name = {experiment.method.name!r}"
    if not experiment.task.attackable:
        raise ExperimentError(
            f"{method} learns from episodes, whose gradients no attack here inverts: choose a "
            "zero-shot method or a classifier, for example fedzsl"
        )
    if not find("method", experiment.method.name).trained:
        raise ExperimentError(
            f"{method} is solved in closed form and sends no gradient that could be attacked: "
            "choose a method that is trained, for example fedzsl"
        )
    if strategy.pools or not strategy.merges:
        raise ExperimentError(
            f"strategy.name = {experiment.strategy.name!r} sends no gradients: choose one that "
            "merges updates, for example fedavg"
        )


def _samples(benchmark: Benchmark, ids: NDArray[Any]) -> list[dict[str, Any]]:
    return [{"id": int(i), "class": benchmark.space.names[benchmark.labels[i]]} for i in ids]


def _subject(
    experiment: Experiment, benchmark: Benchmark, partition: Partition, victims: NDArray[Any]
) -> tuple[leakage.Subject, Any]:
    """Return what is attacked, and the device."""
    federation = assemble(experiment, benchmark, partition)
    holders = [next(rows for rows in partition.clients if victim in rows) for victim in victims]
    drawn = to_device(
        federation.method.init(
            BoundedDraws(stream(experiment.run.seed, "initialisation").bit_generator)
        ),
        federation.device,
    )
    shape = (
        benchmark.image_shape if not experiment.data.features else None
    )  # scaled, they are pixels no more
    subject = leakage.Subject(
        federation.method,
        drawn,
        frozenset(federation.first),
        federation.inputs,
        benchmark.labels,
        benchmark.train,
        victims,
        [np.unique(benchmark.labels[rows]) for rows in holders],
        None if shape is None else (1, *shape) if len(shape) == 2 else shape,
    )
    return subject, federation.device


def _of_parties(
    subject: leakage.Subject, parties: Sequence[NDArray[Any]], most: int, seed: int
) -> leakage.Subject:
    """Return the subject with one sample of each party; the first is the first that was attacked by
    itself.
    """
    first = next(k for k, rows in enumerate(parties) if subject.victims[0] in rows)
    order = [first, *(k for k in range(len(parties)) if k != first)][:most]
    ids = [
        subject.victims[0],
        *(stream(seed, "leakage sums", k).choice(parties[k]) for k in order[1:]),
    ]
    return replace(
        subject, victims=np.array(ids), held=[np.unique(subject.labels[parties[k]]) for k in order]
    )


def searches(method: str, steps: int | None) -> dict[str, Inversion]:
    """Return the searches of the command line."""
    if method not in METHODS:
        raise ExperimentError("--method: " + unknown("attack", method, METHODS))
    if steps is not None and steps < 1:
        raise ExperimentError(f"--steps {steps}: a search takes at least one step")
    arguments = () if steps is None else (steps,)
    by_name: dict[str, Inversion] = {"dlg": DLG(*arguments), "cosine": Cosine(*arguments)}
    return by_name if method == "both" else {method: by_name[method]}


_DETAILS = {"settings", "iterations", "images", "searches", "search", "samples"}


def summary(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the means of ``leakage.json`` without the single samples."""

    def means(value: Any) -> Any:
        if isinstance(value, list):
            return [means(item) for item in value]
        if not isinstance(value, Mapping):
            return value
        return {key: means(item) for key, item in value.items() if key not in _DETAILS}

    classifier = facts["classifier"]
    phases = facts["method"]["phases"]
    shown = {key: facts[key] for key in ("seed", "samples", "note") if key in facts}
    shown["classifier"] = classifier if "left_out" in classifier else means(classifier["attacks"])
    shown["phases"] = {
        n: {"depends": phase.get("depends"), **means(phase["attacks"])}
        for n, phase in phases.items()
    }
    if "sums" in facts:
        shown["sums"] = {"samples": facts["sums"]["samples"], **means(facts["sums"])}
    return shown
