"""How much of a sample its gradient gives away (FZSL, section 4.2 and Fig. 4), to a server that
keeps to the protocol.

The attacker sees the gradient of one sample, as after one step of plain SGD, or the mean of several
parties' gradients of one sample each. It knows every parameter, and of a sum the number of parties
and their classes: the worst case. High-level knowledge is a classifier that sees images, mid-level
knowledge the experiment's own method, phase by phase. Whose sample was found in a sum is unknown,
so each is compared with what matches it best.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import DataError
from fedunseen.core.parameters import Params, is_statistic, to_device, under, within
from fedunseen.core.phases import Batch, Context, Phase
from fedunseen.core.random import stream
from fedunseen.core.samples import Inputs
from fedunseen.methods import Method
from fedunseen.research.attacks import inversion
from fedunseen.research.attacks.inversion import Inversion, Recovery
from fedunseen.research.attacks.lenet import KERNEL, lenet, lenet_init

RECOVERED = 0.1
"""A sample counts as recovered if its error is at most this share of the error of guessing the
average.
"""

Facts = dict[str, Any]
Log = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Judge:
    """What recovered values are compared with."""

    average: Tensor
    means: Tensor
    classes: NDArray[np.int64]
    unit: bool

    def __call__(self, recovered: Tensor, true: Tensor, label: int) -> Facts:
        """Compare one recovered thing with the true one."""
        recovered, true, average = (
            value.detach().double().flatten().cpu() for value in (recovered, true, self.average)
        )
        mse = float((recovered - true).square().mean())
        blind = float((average - true).square().mean())
        nearest = int((self.means.double().cpu() - recovered).square().sum(1).argmin())
        facts: Facts = {
            "mse": mse,
            "relative": mse / max(blind, 1e-12),
            "cosine": float(F.cosine_similarity(recovered, true, dim=0)),
            "class": int(self.classes[nearest]),
            "match": int(self.classes[nearest]) == label,
        }
        if self.unit:
            facts["psnr"] = 10 * math.log10(1 / max(mse, 1e-12))
        return facts

    def summary(self, samples: Sequence[Facts]) -> Facts:
        """Return the means over samples, and how many match and are recovered."""
        names = ("mse", "relative", "cosine", *(["psnr"] if self.unit else []))
        return {
            **{name: float(np.mean([sample[name] for sample in samples])) for name in names},
            "matches": sum(sample["match"] for sample in samples),
            "recovered": sum(sample["relative"] <= RECOVERED for sample in samples),
        }


@dataclass(frozen=True, eq=False)
class Subject:
    """The experiment's method as the attacker meets it, before its first round."""

    method: Method
    params: Params
    travels: frozenset[str]
    inputs: Inputs
    labels: NDArray[np.int64]
    train: NDArray[np.int64]
    victims: NDArray[np.int64]
    held: Sequence[NDArray[np.int64]]
    pixels: tuple[int, ...] | None

    def sample(self, victim: int) -> Tensor:
        """Return (1, ...) a sample's inputs, as floats."""
        return _floats(self.inputs[victim : victim + 1])


def class_means(
    rows: NDArray[Any] | Inputs, ids: NDArray[np.int64], labels: NDArray[np.int64]
) -> Tensor:
    """Return (K, d) the mean of the samples ``ids`` of each of their K classes, in ascending order;
    bytes in [0, 1].
    """
    means = []
    for c in np.unique(labels[ids]).tolist():
        members = ids[labels[ids] == c]
        block = (
            torch.from_numpy(rows[members])
            if isinstance(rows, np.ndarray)
            else rows[torch.from_numpy(members)]
        )
        means.append(_floats(block).double().mean(0).flatten().cpu())
    return torch.stack(means)


def _judge_of(
    rows: NDArray[Any] | Inputs, ids: NDArray[np.int64], labels: NDArray[np.int64], unit: bool
) -> Judge:
    """Return what recovered inputs are compared with: the samples ``ids``."""
    classes, each = np.unique(labels[ids], return_counts=True)
    means = class_means(rows, ids, labels)
    counts = torch.from_numpy(each).double()
    return Judge((means * counts[:, None]).sum(0) / counts.sum(), means, classes, unit)


class Network:
    """A freshly drawn classifier of images (:mod:`fedunseen.research.attacks.lenet`), as the
    attacker meets it.
    """

    def __init__(
        self, images: NDArray[Any], labels: NDArray[np.int64], classes: int, train: NDArray[np.int64], seed: int,
        device: torch.device | None = None,
    ) -> None:  # fmt: skip
        self.shape = shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
        if min(shape[1:]) < KERNEL:
            raise DataError(
                f"the images have {shape[1]} x {shape[2]} pixels, too few for the classifier that "
                f"is attacked, whose first layer looks at {KERNEL} x {KERNEL}: use a benchmark "
                "with larger images, or one of features"
            )
        self.device = device or torch.device("cpu")
        self.classes = classes
        self.seed = seed
        drawn = to_device(
            lenet_init(shape, classes, stream(seed, "leakage classifier")), self.device
        )
        self.params: Params = {name: value.requires_grad_() for name, value in drawn.items()}
        self.judge = _judge_of(images, train, labels, unit=True)

    def sample(self, images: NDArray[Any], ids: NDArray[np.int64]) -> Tensor:
        """Return (n, channels, height, width) some of the images, as floats."""
        return _floats(torch.from_numpy(np.ascontiguousarray(images[ids]))).to(self.device)

    def one_hot(self, labels: Sequence[int]) -> Tensor:
        """Return (n, K) labels as certain soft ones."""
        return F.one_hot(torch.tensor(labels), self.classes).float().to(self.device)

    def updates(self, source: Tensor, labels: Sequence[int]) -> list[Params]:
        """Return the gradient of each image (n, ...) by itself."""
        soft = self.one_hot(labels)
        each = [self.gradient(source[i : i + 1], soft[i : i + 1]) for i in range(len(source))]
        return [{name: value.detach() for name, value in update.items()} for update in each]

    def sums(
        self,
        images: NDArray[Any],
        labels: NDArray[np.int64],
        ids: NDArray[np.int64],
        parties: Sequence[int],
    ) -> list[Observation]:
        """Return sums of the gradients of one image of each party: see :func:`observations`."""
        source = self.sample(images, ids)
        true = [int(label) for label in labels[ids]]
        return observations(
            self.updates(source, true),
            lambda count: ImageBatch(self, source[:count], true[:count], 0, true[:count]),
            parties,
        )

    def gradient(self, images: Tensor, soft: Tensor) -> Params:
        """Return the gradient of images (n, ...) and soft labels (n, K): the mean of those of the
        single images.
        """
        loss = -(soft * torch.log_softmax(lenet(self.params, images), -1)).sum() / len(images)
        grads = torch.autograd.grad(loss, list(self.params.values()), create_graph=True)
        return dict(zip(self.params, grads, strict=True))


class Observation(NamedTuple):
    """What an attacker has of a round: an "update" or a "sum", and the samples it is taken for."""

    seen: str
    parties: int
    batch: ImageBatch | PhaseBatch
    target: Params


class Attacked(NamedTuple):
    """What an attack made of an observation; ``judged``: kind -> for each sample how good its best
    match is.
    """

    observation: Observation
    values: Sequence[Params]
    label: int | None
    search: Recovery | None
    judged: Mapping[str, Sequence[Facts]]


def observations(
    updates: Sequence[Params],
    batch: Callable[[int], ImageBatch | PhaseBatch],
    parties: Sequence[int],
) -> list[Observation]:
    """Return what a coordinator has of rounds of the first so many parties: the mean of their
    updates.
    """
    rounds: list[Observation] = []
    for count in parties:
        mean = {
            name: torch.stack([update[name] for update in updates[:count]]).mean(0)
            for name in updates[0]
        }
        rounds.append(Observation("update" if count == 1 else "sum", count, batch(count), mean))
    return rounds


def attack_all(
    seen: Sequence[Observation],
    attacks: Mapping[str, Inversion | None],
    judges: Mapping[str, Judge],
    model: str,
    log: Log = lambda words: None,
) -> dict[str, list[Attacked]]:
    """Attack observations one after the other; ``model`` names the model in the log, None is the
    closed form.
    """
    results: dict[str, list[Attacked]] = {name: [] for name in attacks}
    for name, attack in attacks.items():
        for i, observation in enumerate(seen):
            batch = observation.batch
            target = observation.target
            search = None
            if attack is None:
                values, label = batch.closed_form(target)
                result = [values]
            else:  # every step of a sum's search costs as many gradients
                fewer = replace(attack, restarts=max(1, attack.restarts // observation.parties))
                search = inversion.invert(fewer, batch.gradient, target, batch.start, batch.images)
                result = batch.read(search.values)
                label = batch.read_label(search.values)
            judged = {
                kind: [
                    min(
                        (judge(v[kind], true[kind], c) for v in result),
                        key=lambda facts: float(facts["mse"]),
                    )
                    for true, c in zip(batch.true, batch.labels, strict=True)
                ]
                for kind, judge in judges.items()
                if all(kind in values for values in result)
            }
            results[name].append(Attacked(observation, result, label, search, judged))
            means = {kind: judges[kind].summary(each) for kind, each in judged.items()}
            count = len(batch.labels)
            words = [
                f"{m['recovered']} of {count} {kind} (MSE {m['mse']:.2g})"
                for kind, m in means.items()
            ]
            seen_as = f"update {i + 1}" if observation.seen == "update" else f"the sum of {count}"
            log(f"{model}, {name}, {seen_as}: recovered {', '.join(words) or 'nothing'}")
    return results


def measure_sums(
    seen: Sequence[Observation],
    judges: Mapping[str, Judge],
    attacks: Mapping[str, Inversion | None],
    model: str,
    log: Log = lambda words: None,
) -> dict[str, list[Facts]]:
    """Attack sums of several parties' gradients; what is unknown is what is unknown of an update,
    but for the class.
    """

    def row(result: Attacked) -> Facts:
        kinds = {
            kind: {**judges[kind].summary(each), "samples": each}
            for kind, each in result.judged.items()
        }
        search = {} if result.search is None else {"search": _search_facts(result.search)}
        return {
            "parties": result.observation.parties,
            "seen": result.observation.seen,
            **kinds,
            **search,
        }

    results = attack_all(seen, attacks, judges, model, log)
    return {name: [row(result) for result in rows] for name, rows in results.items()}


class ImageBatch:
    """Images (n, ...) that a :class:`Network` sees."""

    images = ("image",)

    def __init__(
        self,
        network: Network,
        source: Tensor,
        labels: Sequence[int],
        first: int,
        known_labels: Sequence[int] | None,
    ) -> None:
        self.network = network
        self.labels = labels
        self.first = first
        self.true = [{"inputs": image} for image in source]
        self.soft = None if known_labels is None else network.one_hot(known_labels)

    def start(self, restart: int) -> Params:
        """Draw images and, where they are searched, soft labels."""
        places = range(self.first, self.first + len(self.labels))
        device = self.network.device
        rngs = [stream(self.network.seed, "leakage start", i, restart) for i in places]
        image = torch.cat([_normal(rng, (1, *self.network.shape), device) for rng in rngs])
        if self.soft is not None:
            return {"image": image}
        return {
            "image": image,
            "label": torch.cat([_normal(rng, (1, self.network.classes), device) for rng in rngs]),
        }

    def gradient(self, dummy: Params) -> Params:
        """Return the mean gradient of images and soft labels."""
        return self.network.gradient(
            dummy["image"], dummy["label"].softmax(-1) if self.soft is None else self.soft
        )

    def read(self, dummy: Params) -> list[Params]:
        """Return the images, their pixels where pixels can be, which the attacker knows."""
        return [{"inputs": image} for image in torch.split(dummy["image"].clamp(0, 1), 1)]

    def read_label(self, dummy: Params) -> int:
        """Return the first image's class."""
        return int((dummy["label"] if self.soft is None else self.soft)[0].argmax())

    def closed_form(self, target: Params) -> tuple[Params, int | None]:
        """Return nothing: no convolution is read without a search."""
        return {}, None


def measure_classifier(
    network: Network,
    images: NDArray[Any],
    labels: NDArray[np.int64],
    samples: NDArray[np.int64],
    attacks: Mapping[str, Inversion],
    log: Log = lambda words: None,
) -> tuple[Facts, dict[str, Tensor]]:
    """Attack the gradients of single images by a freshly drawn classifier
    (:mod:`fedunseen.research.attacks.lenet`).

    DLG searches image and soft label together; the cosine attack is given the label that iDLG's
    rule infers.
    """
    judge = network.judge
    source = network.sample(images, samples)
    true = [int(label) for label in labels[samples]]
    updates = network.updates(source, true)
    tensors = {"source": source}
    attacked = {}
    for name, attack in attacks.items():
        seen = []
        for i, target in enumerate(updates):
            known_labels = (
                [inversion.inferred_label(target["head.weight"])]
                if isinstance(attack, inversion.Cosine)
                else None
            )
            batch = ImageBatch(network, source[i : i + 1], true[i : i + 1], i, known_labels)
            seen.append(Observation("update", 1, batch, target))
        results = attack_all(seen, {name: attack}, {"inputs": judge}, "classifier", log)[name]
        facts = [
            {
                **result.judged["inputs"][0],
                "label": result.label == label,
                **_search_facts(result.search),
            }
            for result, label in zip(results, true, strict=True)
            if result.search is not None
        ]
        shown = [r.search.shown for r in results if r.search is not None]
        pictures = [torch.cat([each[at]["image"] for at in sorted(each)]) for each in shown]
        tensors[name] = torch.stack(pictures).clamp(0, 1)
        tensors[f"{name}.recovered"] = torch.cat([result.values[0]["inputs"] for result in results])
        attacked[name] = {
            "settings": vars(attack),
            "iterations": list(inversion.shown_iterations(attack.steps)),
            **judge.summary(facts),
            "labels": sum(sample["label"] for sample in facts),
            "images": facts,
        }
    report = {
        "network": "LeNet: 3 convolutions of 12 channels, 5 x 5, sigmoids, 1 linear layer; weights "
        "from U(-0.5, 0.5)",
        "pixels": list(network.shape),
        "guesses": _guesses(judge, source, true, judge.classes, network.seed),
        "attacks": attacked,
    }
    return report, tensors


def judges_of(subject: Subject) -> dict[str, Judge]:
    """Return what recovered ``inputs`` and ``attributes`` of a method are compared with."""
    train = torch.from_numpy(subject.train).to(subject.inputs.device)
    unit = subject.pixels is not None or (
        len(subject.inputs.shape) == 2 and _within_unit(subject.inputs[train])
    )
    inputs = _judge_of(subject.inputs, subject.train, subject.labels, unit)
    semantics = subject.method.semantics.double().cpu()[torch.from_numpy(inputs.classes)]
    return {
        "inputs": inputs,
        "attributes": Judge(semantics.mean(0), semantics, inputs.classes, _within_unit(semantics)),
    }


def measure_method(
    subject: Subject, attacks: Mapping[str, Inversion], seed: int, log: Log = lambda words: None
) -> tuple[Facts, dict[str, Tensor]]:
    """Attack the method's own gradients, those of each phase by what travels of its parameters.

    The attacker does not know the sample, what was drawn at random, and the class. For a generative
    method it searches the class's description (and text embedding); for others its number among the
    seen classes, whose descriptions are public. The closed form (:func:`layer_inputs`) is tried
    beside the searches.
    """
    method = subject.method
    judges = judges_of(subject)
    classes = np.unique(subject.labels[subject.train])
    true = [int(label) for label in subject.labels[subject.victims]]
    source = torch.cat([subject.sample(int(victim)) for victim in subject.victims])
    tensors = {"inputs": source, "attributes": method.semantics[torch.tensor(true)]}
    phases: dict[str, Facts] = {}
    for phase, victims in phase_victims(subject, seed):
        if not victims:
            phases[phase.name] = {"travels": [], "attacks": {}}
            continue
        depends = victims[0].sensitivity()
        tried = {"analytic": None, **(attacks if any(depends.values()) else {})}
        seen = [
            Observation("update", 1, PhaseBatch([victim], labels=True), victim.target)
            for victim in victims
        ]
        results = attack_all(seen, tried, judges, f"{method.settings.name}, {phase.name}", log)
        for name, each in results.items():
            for kind in judges:
                if all(kind in result.judged for result in each):
                    stacked = torch.cat([result.values[0][kind].detach() for result in each])
                    tensors[f"{phase.name}.{name}.{kind}"] = stacked
        phases[phase.name] = {
            "travels": list(victims[0].leaves),
            "optimiser": type(phase.optimiser).__name__,
            "depends": depends,
            "attacks": {
                name: _update_facts(each, judges, tried[name]) for name, each in results.items()
            },
        }
    facts = {
        "method": method.settings.name,
        "generates": method.generates,
        "unit": {name: judge.unit for name, judge in judges.items()},
        "pixels": list(subject.pixels) if subject.pixels else None,
        "guesses": {
            name: _guesses(judges[name], tensors[name], true, classes, seed) for name in judges
        },
        "phases": phases,
    }
    return facts, tensors


def _update_facts(
    results: Sequence[Attacked], judges: Mapping[str, Judge], attack: Inversion | None
) -> Facts:
    """Return what an attack gave of all updates."""
    facts: Facts = {"settings": vars(attack) if attack else {}}
    for kind, judge in judges.items():
        if all(kind in result.judged for result in results):
            samples = [result.judged[kind][0] for result in results]
            facts[kind] = {**judge.summary(samples), "samples": samples}
    if all(result.label is not None for result in results):
        facts["labels"] = sum(
            result.label == result.observation.batch.labels[0] for result in results
        )
    facts["searches"] = [_search_facts(result.search) for result in results if result.search]
    return facts


def measure_method_sums(
    subject: Subject,
    parties: Sequence[int],
    attacks: Mapping[str, Inversion],
    seed: int,
    log: Log = lambda words: None,
) -> dict[str, dict[str, list[Facts]]]:
    """Attack sums of the method's own gradients; the victims are one sample of each party."""
    judges = judges_of(subject)
    name = subject.method.settings.name
    facts = {}
    for phase, victims in phase_victims(subject, seed):
        if victims:
            tried = {
                "analytic": None,
                **(attacks if any(victims[0].sensitivity().values()) else {}),
            }
            targets = [victim.target for victim in victims]

            def first(count: int, victims: Sequence[PhaseVictim] = victims) -> PhaseBatch:
                return PhaseBatch(victims[:count])

            seen = observations(targets, first, parties)
            facts[phase.name] = measure_sums(seen, judges, tried, f"{name}, {phase.name}", log)
    return facts


class PhaseBatch:
    """Several victims in one phase."""

    def __init__(self, victims: Sequence[PhaseVictim], labels: bool = False) -> None:
        self.victims = victims
        self.search_labels = labels
        self.labels = [victim.label for victim in victims]
        self.true = [victim.true for victim in victims]
        self.images = (
            [f"{i}:inputs" for i in range(len(victims))] if victims[0].subject.pixels else []
        )

    def _parts(self, dummy: Params) -> list[tuple[PhaseVictim, Params]]:
        return [(victim, within(f"{i}:", dummy)) for i, victim in enumerate(self.victims)]

    def start(self, restart: int) -> Params:
        """Draw dummy data of each victim."""
        dummies = [under(f"{i}:", victim.start(restart)) for i, victim in enumerate(self.victims)]
        return {
            k: v
            for dummy in dummies
            for k, v in dummy.items()
            if self.search_labels or not k.endswith(":label")
        }

    def gradient(self, dummy: Params) -> Params:
        """Return the mean of the victims' gradients."""
        each = [victim.gradient(victim.decoded(part)) for victim, part in self._parts(dummy)]
        return {
            name: torch.stack([gradient[name] for gradient in each]).mean(0) for name in each[0]
        }

    def read(self, dummy: Params) -> list[Params]:
        """Return what dummy data say of each victim."""
        return [victim.read(part) for victim, part in self._parts(dummy)]

    def read_label(self, dummy: Params) -> int | None:
        """Return the first victim's class, if it was searched."""
        return self.victims[0].read_label(within("0:", dummy))

    def closed_form(self, target: Params) -> tuple[Params, int | None]:
        """Read a sum as if it were the first victim's update."""
        return self.victims[0].closed_form(target)


def phase_victims(subject: Subject, seed: int) -> list[tuple[Phase, list[PhaseVictim]]]:
    """Return each phase of a round, and its victims; none where no parameter of it travels."""
    result = []
    for phase in subject.method.phases():
        names = [name for name in subject.params if phase.owns(name) and name in subject.travels]
        count = len(subject.victims) if names else 0
        if not phase.before_round:
            result.append(
                (phase, [PhaseVictim(subject, phase, names, i, seed) for i in range(count)])
            )
    return result


class PhaseVictim:
    """One sample in one phase of a method."""

    def __init__(
        self, subject: Subject, phase: Phase, names: Sequence[str], i: int, seed: int
    ) -> None:
        self.subject = subject
        self.phase = phase
        self.i = i
        self.seed = seed
        method = subject.method
        victim = int(subject.victims[i])
        self.device = subject.inputs.device
        self.label = int(subject.labels[victim])
        self.labels = torch.tensor([self.label], device=self.device)
        context = {**method.context(), **method.client_context(subject.held[i])}
        self.context: Context = to_device(context, self.device)
        self.leaves = {
            name: subject.params[name].detach().clone().requires_grad_() for name in names
        }
        self.fixed = {
            name: value for name, value in subject.params.items() if name not in self.leaves
        }
        self.inputs = subject.sample(victim)
        self.draws = self._draw(stream(seed, "leakage draws", i))
        self.candidates = torch.from_numpy(np.unique(subject.labels[subject.train])).to(self.device)
        self.true = {"inputs": self.inputs, "attributes": method.semantics[self.labels]}
        self.unknowns = {"inputs": self.inputs, **self.draws}
        if method.generates:
            self.unknowns |= {key: self.context[key][self.labels] for key in self._descriptions()}
        self.target = {name: value.detach() for name, value in self.gradient(self.unknowns).items()}

    def _descriptions(self) -> list[str]:
        """Return what of the context describes the classes."""
        return [
            key
            for key in ("semantics", "text")
            if key in self.context and self.context[key].shape[1]
        ]

    def _draw(self, rng: np.random.Generator) -> Params:
        """Return what the method draws at random for a batch of this one sample."""
        plan = self.subject.method.plan("", self.labels.cpu().numpy(), 1, rng)
        place = slice(int(np.argmax(plan.weight[0] > 0)), int(np.argmax(plan.weight[0] > 0)) + 1)
        drawn = {name: value[0] for name, value in plan.extras.items()} | dict(
            plan.draws(0) if plan.draws else {}
        )
        return {
            name: torch.from_numpy(np.ascontiguousarray(value[place])).to(self.device)
            for name, value in drawn.items()
        }

    def gradient(self, unknowns: Params) -> Params:
        """Return the gradient of a sample by what travels, differentiable by every part of
        ``unknowns``.

        Beside the sample and the draws, ``unknowns`` may hold ``semantics`` (1, a) and ``text`` (1,
        t), which replace the true class's rows. It may also hold ``label`` (1, K), logits of the
        seen classes; the gradient is then that of the expected loss.
        """
        fixed = {
            name: value.clone() if is_statistic(name) else value
            for name, value in self.fixed.items()
        }
        params = {**fixed, **self.leaves}
        draws = {name: unknowns[name] for name in self.draws}
        batch: Batch = {
            "inputs": unknowns["inputs"],
            "weights": torch.ones(1, device=self.device),
            **draws,
        }
        rows = {
            key: self.context[key].index_copy(0, self.labels, unknowns[key])
            for key in self._descriptions()
            if key in unknowns
        }
        context = {**self.context, **rows}

        def of_class(label: Tensor) -> Tensor:
            return self.phase.loss(params, {**batch, "labels": label.reshape(1)}, context)[0]

        if "label" not in unknowns:
            loss = of_class(self.labels)
        else:
            losses = torch.func.vmap(of_class)(self.candidates)
            loss = (unknowns["label"].softmax(-1)[0] * losses).sum()
        grads = torch.autograd.grad(
            loss,
            list(self.leaves.values()),
            create_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        return dict(zip(self.leaves, grads, strict=True))

    def sensitivity(self) -> dict[str, bool]:
        """Say for each unknown whether the gradient depends on it at all.

        It differentiates the gradient's product with random numbers. False is exact: the derivative
        is zero, not merely small.
        """
        unknowns = {
            name: value.detach().clone().requires_grad_() for name, value in self.unknowns.items()
        }
        rng = stream(self.seed, "leakage sensitivity", self.i)
        terms = [
            (value * _normal(rng, tuple(value.shape), self.device)).sum()
            for value in self.gradient(unknowns).values()
        ]
        total = torch.stack(terms).sum()
        if not total.requires_grad:
            return dict.fromkeys(_plain(unknowns), False)
        grads = torch.autograd.grad(total, list(unknowns.values()), allow_unused=True)
        result = {
            name: grad is not None and bool(grad.any())
            for name, grad in zip(unknowns, grads, strict=True)
        }
        return _plain(result)

    @functools.cached_property
    def scales(self) -> dict[str, tuple[float, float]]:
        """Return where the unknowns lie on the scale of public data: name -> mean, standard
        deviation.
        """
        subject = self.subject
        inputs = (0.0, 1.0)
        if not subject.pixels:
            inputs = _scale(_floats(subject.inputs[torch.from_numpy(subject.train[:2000])]))
        return {"inputs": inputs} | {key: _scale(self.context[key]) for key in self._descriptions()}

    def decoded(self, dummy: Params) -> Params:
        """Return what dummy data of :meth:`start` stand for, as :meth:`gradient` takes it."""
        values = {
            name: value * self.scales[name][1] + self.scales[name][0]
            if name in self.scales
            else value
            for name, value in dummy.items()
        }
        return values | (
            {"inputs": dummy["inputs"].reshape(self.inputs.shape)} if self.subject.pixels else {}
        )

    def start(self, restart: int) -> Params:
        """Return the dummy data from which a search begins: random values for all that the attacker
        does not know.
        """
        method = self.subject.method
        pixels = self.subject.pixels
        rng = stream(self.seed, "leakage start", self.i, restart)
        shape = (1, *pixels) if pixels else tuple(self.inputs.shape)
        dummy = {"inputs": _normal(rng, shape, self.device), **self._draw(rng)}
        if method.generates:
            for key in self._descriptions():
                dummy[key] = _normal(rng, (1, self.context[key].shape[1]), self.device)
        elif method.batched:
            dummy["label"] = _normal(rng, (1, len(self.candidates)), self.device)
        return dummy

    def read(self, dummy: Params) -> Params:
        """Return what dummy data say, by the report's names; pixels are kept where pixels can
        be.
        """
        values = _plain(self.decoded(dummy))
        return values | ({"inputs": values["inputs"].clamp(0, 1)} if self.subject.pixels else {})

    def read_label(self, dummy: Params) -> int | None:
        """Return the class that dummy data say, if it was searched."""
        return int(self.candidates[int(dummy["label"].argmax())]) if "label" in dummy else None

    def closed_form(self, target: Params) -> tuple[Params, int | None]:
        """Read what went into linear layers off their gradients: columns that stand for the sample
        or its description.

        The attacker knows the network, so that a layer's width shows its input: the sample, the
        sample and the description, or, in a generator, the draws and the description. If several
        layers have such a width, that one counts whose columns explain the gradient best when they
        replace the true ones.
        """
        wide = self.inputs.numel()
        described = self.subject.method.semantics.shape[1]
        drawn = [
            value.numel() for name, value in self.draws.items() if name.startswith(self.phase.name)
        ]
        before = {
            0,
            wide,
            *(
                sum(combination)
                for n in range(1, len(drawn) + 1)
                for combination in itertools.combinations(drawn, n)
            ),
        }
        weights = [
            name for name, value in target.items() if value.ndim == 2 and name.endswith(".weight")
        ]
        layers = [name.removesuffix(".weight") for name in weights]
        label = None
        tried = []
        for layer in layers:
            weight = target[f"{layer}.weight"]
            bias = target.get(f"{layer}.bias")
            if bias is None:
                continue
            if len(bias) == len(self.subject.method.space.names):
                label = inversion.inferred_label(bias)
            if (read := inversion.layer_inputs(weight, bias)) is None:
                continue
            if (
                weight.shape[1] in (wide, wide + described)
                and not self.subject.method.backbone.trained
            ):
                tried.append(("inputs", read[0][:wide]))
                tried += [("inputs", real) for real in self._real_of_critic(layer, wide, target)]
            if weight.shape[1] - described in before:
                scale = float(
                    getattr(self.subject.method, "condition_scale", 1.0)
                )  # networks are given them times it
                tried.append(("semantics", read[0][-described:] / scale))
        return self._explaining(tried, target), label

    def _explaining(self, tried: Sequence[tuple[str, Tensor]], target: Params) -> Params:
        """Return of each kind the columns that explain the gradient best in place of the true
        ones.
        """
        best: dict[str, tuple[float, Tensor]] = {}
        depends = self.sensitivity()
        for kind, columns in tried:
            if not depends.get("attributes" if kind == "semantics" else kind):
                continue
            value = columns.reshape(self.unknowns[kind].shape)
            gradient = self.gradient({**self.unknowns, kind: value})
            off = sum(
                float((g.detach() - target[name]).square().sum()) for name, g in gradient.items()
            )
            if kind not in best or off < best[kind][0]:
                best[kind] = (off, value)
        return _plain({kind: value for kind, (_, value) in best.items()})

    def _real_of_critic(self, layer: str, wide: int, target: Params) -> list[Tensor]:
        """Return the sample behind the gradient of a first layer, if that is a critic's."""
        params = {**self.fixed, **self.leaves}
        top = params.get(layer.removesuffix("0") + "1.weight")
        if (
            not layer.endswith(".0")
            or top is None
            or top.shape[0] != 1
            or params[f"{layer}.weight"].shape[1] <= wide
        ):
            return []
        grads = target[f"{layer}.weight"], target[f"{layer}.bias"]
        weight, bias = (params[f"{layer}.{kind}"].detach() for kind in ("weight", "bias"))
        result = inversion.critic_inputs(grads, weight, bias, top.detach()[0], wide)
        return [] if result is None else [result]


def _search_facts(search: Recovery) -> Facts:
    return {"distance": search.distance, "iterations": search.iterations}


def _guesses(
    judge: Judge, source: Tensor, true: Sequence[int], classes: NDArray[np.int64], seed: int
) -> Facts:
    """Judge guesses that need no gradient: the average, and the mean of a class drawn at random."""
    drawn = [int(stream(seed, "leakage guess", i).integers(len(classes))) for i in range(len(true))]
    return {
        "average": judge.summary(
            [judge(judge.average, source[i], label) for i, label in enumerate(true)]
        ),
        "random class": judge.summary(
            [judge(judge.means[drawn[i]], source[i], label) for i, label in enumerate(true)]
        ),
        "source": judge.summary(
            [judge(source[i], source[i], label) for i, label in enumerate(true)]
        ),
    }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Rename ``semantics`` for the report: the attributes of the class."""
    return {"attributes" if name == "semantics" else name: value for name, value in values.items()}


def _floats(values: Tensor) -> Tensor:
    """Return values as float32: bytes in [0, 1]."""
    return values.float() / 255 if values.dtype == torch.uint8 else values.float()


def _scale(values: Tensor) -> tuple[float, float]:
    """Return where values usually lie: mean and standard deviation over all of them."""
    return float(values.mean()), max(float(values.std()), 1e-6)


def _within_unit(values: Tensor) -> bool:
    return bool(values.min() >= 0) and bool(values.max() <= 1)


def _normal(
    rng: np.random.Generator, shape: tuple[int, ...], device: torch.device | None
) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)).to(device)
