"""How much of a sample its gradient gives away (FZSL, section 4.2 and Fig. 4), to a server that keeps to the protocol.

The attacker sees the gradient of one sample by the parameters that travel, as after the first step of plain SGD on a
batch of one, and knows every parameter, private ones too. That is the worst case: batches, many local steps and Adam
(whose first step keeps the signs alone) hide more.

- :func:`measure_classifier`: *high-level knowledge*: a classifier that sees the benchmark's images.
- :func:`measure_method`: *mid-level knowledge*: the experiment's own method, phase by phase.

:mod:`fedunseen.threats.leakage_sums` attacks sums of several parties with the same means.

What is recovered is judged against the source: mean squared error, PSNR = 10 log10(1 / MSE) for values in [0, 1],
cosine, whether the class whose mean (description) is nearest is the right one, and the error relative to that of a
guess that needs no gradient, the average of all. There is no agreed threshold; here a sample counts as ``recovered``
if that ratio is at most :data:`RECOVERED`.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import DataError
from fedunseen.core.parameters import Params, is_statistic, to_device
from fedunseen.core.phases import Batch, Context, Phase
from fedunseen.core.random import stream
from fedunseen.core.samples import Inputs
from fedunseen.methods import Method
from fedunseen.threats.inversion import (
    Cosine,
    Inversion,
    Recovery,
    critic_inputs,
    inferred_label,
    invert,
    layer_inputs,
    shown_iterations,
)
from fedunseen.threats.lenet import KERNEL, lenet, lenet_init

__all__ = ["RECOVERED", "Subject", "class_means", "measure_classifier", "measure_method"]

RECOVERED = 0.1
"""A sample counts as recovered if its error is at most this share of the error of guessing the average."""

Facts = dict[str, Any]
Log = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Judge:
    """What recovered values are compared with.

    Attributes:
        average: (d,) the guess of somebody who has seen no gradient.
        means: (K, d) of the classes that it may be: mean samples, or descriptions.
        classes: (K,) their ids.
        unit: the values lie in [0, 1].
    """

    average: Tensor
    means: Tensor
    classes: NDArray[np.int64]
    unit: bool

    def __call__(self, found: Tensor, true: Tensor, label: int) -> Facts:
        """Compare one recovered thing with the true one."""
        found, true, average = (value.detach().double().flatten().cpu() for value in (found, true, self.average))
        mse = float((found - true).square().mean())
        blind = float((average - true).square().mean())
        nearest = int((self.means.double().cpu() - found).square().sum(1).argmin())
        told: Facts = {
            "mse": mse,
            "relative": mse / max(blind, 1e-12),
            "cosine": float(F.cosine_similarity(found, true, dim=0)),
            "class": int(self.classes[nearest]),
            "match": int(self.classes[nearest]) == label,
        }
        if self.unit:
            told["psnr"] = 10 * math.log10(1 / max(mse, 1e-12))
        return told

    def summary(self, told: Sequence[Facts]) -> Facts:
        """Return the means over samples, and how many match and are recovered."""
        names = ("mse", "relative", "cosine", *(["psnr"] if self.unit else []))
        return {
            **{name: float(np.mean([one[name] for one in told])) for name in names},
            "matches": sum(one["match"] for one in told),
            "recovered": sum(one["relative"] <= RECOVERED for one in told),
        }


@dataclass(frozen=True, eq=False)
class Subject:
    """The experiment's method as the attacker meets it, before its first round.

    Attributes:
        method: the method.
        params: all its parameters.
        travels: names of those that travel.
        inputs: (N, ...) the samples as the method takes them.
        labels: (N,) their class ids.
        train: ids of the training samples.
        victims: (n,) ids of the samples under attack.
        held: (n,) for each the ids of the classes that its client holds.
        pixels: (channels, height, width) if the samples are images, flattened or not.
    """

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


def class_means(rows: NDArray[Any] | Inputs, ids: NDArray[np.int64], labels: NDArray[np.int64]) -> Tensor:
    """Return (K, d) the mean of the samples ``ids`` of each of their K classes, in ascending order; bytes in [0, 1].

    Args:
        rows: (N, ...) all samples.
        ids: which of them count.
        labels: (N,) class ids.
    """
    means = []
    for c in np.unique(labels[ids]).tolist():
        own = ids[labels[ids] == c]
        block = torch.from_numpy(rows[own]) if isinstance(rows, np.ndarray) else rows[torch.from_numpy(own)]
        means.append(_floats(block).double().mean(0).flatten().cpu())
    return torch.stack(means)


@dataclass(frozen=True, eq=False)
class Network:
    """A freshly drawn classifier that sees images (:mod:`fedunseen.threats.lenet`), as the attacker meets it.

    Attributes:
        params: all of them, all of which travel.
        shape: (channels, height, width) of an image.
        classes: how many it tells apart.
        judge: of what is recovered.
        seed: of where attacks start.
    """

    params: Params
    shape: tuple[int, int, int]
    classes: int
    judge: Judge
    seed: int

    @classmethod
    def drawn(
        cls,
        images: NDArray[Any],
        labels: NDArray[np.int64],
        classes: int,
        train: NDArray[np.int64],
        seed: int,
        device: torch.device | None = None,
    ) -> Network:
        """Draw the network; see :func:`measure_classifier`.

        Raises:
            DataError: the images are too small for it.
        """
        shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
        if min(shape[1:]) < KERNEL:
            raise DataError(
                f"the images have {shape[1]} x {shape[2]} pixels, too few for the classifier that is attacked, whose "
                f"first layer looks at {KERNEL} x {KERNEL}: use a benchmark with larger images, or one of features"
            )
        drawn = lenet_init(shape, classes, stream(seed, "leakage classifier"))
        params = {name: v.requires_grad_() for name, v in to_device(drawn, device or torch.device("cpu")).items()}
        means = class_means(images, train, labels)
        counts = torch.from_numpy(np.bincount(labels[train], minlength=classes)[np.unique(labels[train])]).double()
        judge = Judge((means * counts[:, None]).sum(0) / counts.sum(), means, np.unique(labels[train]), unit=True)
        return cls(params, shape, classes, judge, seed)

    @property
    def device(self) -> torch.device:
        """Return where it computes."""
        return next(iter(self.params.values())).device

    def sample(self, images: NDArray[Any], ids: NDArray[np.int64]) -> Tensor:
        """Return (n, channels, height, width) some of the images, as floats."""
        return _floats(torch.from_numpy(np.ascontiguousarray(images[ids]))).to(self.device)

    def gradient(self, images: Tensor, soft: Tensor) -> Params:
        """Return the gradient of images (n, ...) and soft labels (n, K): the mean of those of the single images."""
        loss = -(soft * torch.log_softmax(lenet(self.params, images), -1)).sum() / len(images)
        grads = torch.autograd.grad(loss, list(self.params.values()), create_graph=True)
        return dict(zip(self.params, grads, strict=True))

    def start(self, i: int, restart: int) -> Params:
        """Return the dummy image (1, ...) and soft label (1, K) from which a search begins for the i-th sample."""
        rng = stream(self.seed, "leakage start", i, restart)
        return {
            "image": _normal(rng, (1, *self.shape), self.device),
            "label": _normal(rng, (1, self.classes), self.device),
        }


def measure_classifier(
    images: NDArray[Any],
    labels: NDArray[np.int64],
    classes: int,
    train: NDArray[np.int64],
    victims: NDArray[np.int64],
    attacks: Mapping[str, Inversion],
    seed: int,
    device: torch.device | None = None,
    log: Log = lambda words: None,
) -> tuple[Facts, dict[str, Tensor]]:
    """Attack a freshly drawn classifier that sees images (:mod:`fedunseen.threats.lenet`).

    DLG searches image and soft label together; the cosine attack is given the label that iDLG's rule infers.

    Args:
        images: (N, channels, height, width), bytes or floats in [0, 1].
        labels: (N,) class ids.
        classes: how many classes the network tells apart.
        train: ids of the samples whose class means decide what is nearest.
        victims: ids of the samples under attack.
        attacks: name -> attack.
        seed: of the network and of where the attacks start.
        device: where to compute.
        log: called with a line for each attack.

    Returns:
        Numbers (JSON), and tensors: ``source`` (n, channels, height, width); of each attack ``<name>`` (n, S, channels,
        height, width), the dummy image at :func:`shown_iterations`, and ``<name>.recovered`` (n, ...).

    Raises:
        DataError: the images are too small for the network.
    """
    network = Network.drawn(images, labels, classes, train, seed, device)
    shape, judge, gradient = network.shape, network.judge, network.gradient
    source = network.sample(images, victims)
    tensors, told = {"source": source}, {}
    true = [int(label) for label in labels[victims]]
    for name, attack in attacks.items():
        found: list[Facts] = []
        pictures, recovered = [], []
        for i, label in enumerate(true):
            image, one_hot = source[i : i + 1], F.one_hot(torch.tensor([label]), classes).float().to(device)
            target = {key: value.detach() for key, value in gradient(image, one_hot).items()}
            inferred = inferred_label(target["head.weight"])
            known = F.one_hot(torch.tensor([inferred]), classes).float().to(device)
            sharp = isinstance(attack, Cosine)

            def start(restart: int, i: int = i, sharp: bool = sharp) -> Params:
                dummy = network.start(i, restart)
                return {"image": dummy["image"]} if sharp else dummy

            def of_dummy(dummy: Params, known: Tensor = known) -> Params:
                return gradient(dummy["image"], dummy["label"].softmax(-1) if "label" in dummy else known)

            recovery = invert(attack, of_dummy, target, start, images=("image",), bounded=("image",))
            seen = recovery.values["image"].clamp(0, 1)  # where pixels can be, which the attacker knows
            answer = inferred if sharp else int(recovery.values["label"].argmax())
            found.append({**judge(seen, image, label), "label": answer == label, **_search_facts(recovery)})
            pictures.append(torch.cat([recovery.shown[at]["image"] for at in sorted(recovery.shown)]))
            recovered.append(seen)
            log(f"classifier, {name}, image {i + 1} of {len(true)}: MSE {found[-1]['mse']:.2g}")
        tensors[name], tensors[f"{name}.recovered"] = torch.stack(pictures).clamp(0, 1), torch.cat(recovered)
        told[name] = {
            "settings": vars(attack),
            "iterations": list(shown_iterations(attack.steps)),
            **judge.summary(found),
            "labels": sum(one["label"] for one in found),
            "images": found,
        }
    facts = {
        "network": "LeNet: 3 convolutions of 12 channels, 5 x 5, sigmoids, 1 linear layer; weights from U(-0.5, 0.5)",
        "pixels": list(shape),
        "guesses": _guesses(judge, source, true, judge.classes, seed),
        "attacks": told,
    }
    return facts, tensors


def judges_of(subject: Subject) -> dict[str, Judge]:
    """Return what recovered ``inputs`` and ``attributes`` of a method are compared with."""
    seen = np.unique(subject.labels[subject.train])
    train = torch.from_numpy(subject.train).to(subject.inputs.device)
    means = class_means(subject.inputs, subject.train, subject.labels)
    counts = torch.from_numpy(np.bincount(subject.labels[subject.train])[seen]).double()
    unit = subject.pixels is not None or (
        subject.inputs.ndim == 2 and bool(subject.inputs[train].min() >= 0) and bool(subject.inputs[train].max() <= 1)
    )
    semantics = subject.method.semantics.double().cpu()[torch.from_numpy(seen)]
    return {
        "inputs": Judge((means * counts[:, None]).sum(0) / counts.sum(), means, seen, unit),
        "attributes": Judge(semantics.mean(0), semantics, seen, _within_unit(semantics)),
    }


def measure_method(
    subject: Subject, attacks: Mapping[str, Inversion], seed: int, log: Log = lambda words: None
) -> tuple[Facts, dict[str, Tensor]]:
    """Attack the method's own gradients, those of each phase by what travels of its parameters.

    The attacker does not know the sample, what was drawn at random, and the class. For a generative method it searches
    the class's description (and text embedding); for others its number among the seen classes, whose descriptions are
    public. The closed form (:func:`layer_inputs`) is tried beside the searches.

    Returns:
        Numbers (JSON), and tensors: ``inputs`` (n, ...), ``attributes`` (n, a) and for each phase and attack
        ``<phase>.<attack>.inputs`` and ``.attributes``, those that the attack gives.
    """
    method = subject.method
    seen, judges = np.unique(subject.labels[subject.train]), judges_of(subject)
    true = [int(label) for label in subject.labels[subject.victims]]
    source = torch.cat([subject.sample(int(victim)) for victim in subject.victims])
    tensors = {"inputs": source, "attributes": method.semantics[torch.tensor(true)]}
    phases: dict[str, Facts] = {}
    for phase in method.phases():
        if phase.before_round:
            continue
        names = [name for name in subject.params if phase.owns(name) and name in subject.travels]
        if not names:
            phases[phase.name] = {"travels": [], "attacks": {}}
            continue
        victims = [Victim(subject, phase, names, i, seed) for i in range(len(true))]
        depends = victims[0].sensitivity()
        optimiser = type(phase.optimiser).__name__
        told: dict[str, Facts] = {}
        for name, attack in {"analytic": None, **attacks}.items():
            if attack is not None and not any(depends.values()):
                continue
            results = []
            for i, victim in enumerate(victims):
                results.append(victim.closed_form() if attack is None else victim.search(attack))
                values = {k: v.detach() for k, v in results[-1].values.items() if k in judges}
                lines = {k: judges[k](v, tensors[k][i], true[i])["mse"] for k, v in values.items()}
                words = ", ".join(f"MSE of {k} {value:.2g}" for k, value in lines.items())
                log(
                    f"{method.settings.name}, {phase.name}, {name}, sample {i + 1} of {len(true)}: {words or 'nothing'}"
                )
            told[name] = _judged(results, judges, tensors, true, attack)
            for kind in judges:
                if all(kind in one.values for one in results):
                    stacked = torch.cat([one.values[kind].detach() for one in results])
                    tensors[f"{phase.name}.{name}.{kind}"] = stacked
        phases[phase.name] = {"travels": names, "optimiser": optimiser, "depends": depends, "attacks": told}
    facts = {
        "method": method.settings.name,
        "generates": method.generates,
        "unit": {name: judge.unit for name, judge in judges.items()},
        "pixels": list(subject.pixels) if subject.pixels else None,
        "guesses": {name: _guesses(judges[name], tensors[name], true, seen, seed) for name in judges},
        "phases": phases,
    }
    return facts, tensors


@dataclass(frozen=True, eq=False)
class _Found:
    """What an attack on a phase gives: things by name, the class it answers, how the search went."""

    values: Params
    label: int | None
    search: Recovery | None


class Victim:
    """One sample in one phase: the gradient that is seen of it, and the attacks on that."""

    def __init__(self, subject: Subject, phase: Phase, names: Sequence[str], i: int, seed: int) -> None:
        self.subject, self.phase, self.i, self.seed = subject, phase, i, seed
        method, victim = subject.method, int(subject.victims[i])
        self.device = subject.inputs.device
        self.label = torch.tensor([int(subject.labels[victim])], device=self.device)
        context = {**method.context(), **method.client_context(subject.held[i])}
        self.context: Context = to_device(context, self.device)
        self.leaves = {name: subject.params[name].detach().clone().requires_grad_() for name in names}
        self.fixed = {name: value for name, value in subject.params.items() if name not in self.leaves}
        self.inputs = subject.sample(victim)
        self.draws = self._draw(stream(seed, "leakage draws", i))
        self.candidates = torch.from_numpy(np.unique(subject.labels[subject.train])).to(self.device)
        true = {"inputs": self.inputs, **self.draws}
        if method.generates:
            true |= {key: self.context[key][self.label] for key in self._descriptions()}
        self.true = true
        gradient = self.gradient(true)
        self.target = {name: value.detach() for name, value in gradient.items()}

    def _descriptions(self) -> list[str]:
        """Return what of the context describes the classes."""
        return [key for key in ("semantics", "text") if key in self.context and self.context[key].shape[1]]

    def _draw(self, rng: np.random.Generator) -> Params:
        """Return what the method draws at random for a batch of this one sample."""
        plan = self.subject.method.plan("", self.label.cpu().numpy(), 1, rng)
        place = slice(int(np.argmax(plan.weight[0] > 0)), int(np.argmax(plan.weight[0] > 0)) + 1)
        drawn = {name: value[0] for name, value in plan.extras.items()} | dict(plan.draws(0) if plan.draws else {})
        return {
            name: torch.from_numpy(np.ascontiguousarray(value[place])).to(self.device) for name, value in drawn.items()
        }

    def gradient(self, known: Params) -> Params:
        """Return the gradient of a sample by what travels, differentiable by every part of ``known``.

        Beside the sample and the draws, ``known`` may hold ``semantics`` (1, a) and ``text`` (1, t), which replace the
        true class's rows. It may also hold ``label`` (1, K), logits of the seen classes; the gradient is then that of
        the expected loss.
        """
        fixed = {name: value.clone() if is_statistic(name) else value for name, value in self.fixed.items()}
        params = {**fixed, **self.leaves}
        draws = {name: known[name] for name in self.draws}
        batch: Batch = {"inputs": known["inputs"], "weights": torch.ones(1, device=self.device), **draws}
        rows = {
            key: self.context[key].index_copy(0, self.label, known[key]) for key in self._descriptions() if key in known
        }
        context = {**self.context, **rows}

        def of_class(label: Tensor) -> Tensor:
            return self.phase.loss(params, {**batch, "labels": label.reshape(1)}, context)[0]

        if "label" not in known:
            loss = of_class(self.label)
        else:
            losses = torch.func.vmap(of_class)(self.candidates)
            loss = (known["label"].softmax(-1)[0] * losses).sum()
        grads = torch.autograd.grad(
            loss, list(self.leaves.values()), create_graph=True, allow_unused=True, materialize_grads=True
        )
        return dict(zip(self.leaves, grads, strict=True))

    def sensitivity(self) -> dict[str, bool]:
        """Say for each unknown whether the gradient depends on it at all.

        It differentiates the gradient's product with random numbers. False is exact: the derivative is zero, not merely
        small.
        """
        known = {name: value.detach().clone().requires_grad_() for name, value in self.true.items()}
        rng = stream(self.seed, "leakage sensitivity", self.i)
        terms = [
            (value * _normal(rng, tuple(value.shape), self.device)).sum() for value in self.gradient(known).values()
        ]
        total = torch.stack(terms).sum()
        if not total.requires_grad:
            return dict.fromkeys(_plain(known), False)
        grads = torch.autograd.grad(total, list(known.values()), allow_unused=True)
        found = {name: grad is not None and bool(grad.any()) for name, grad in zip(known, grads, strict=True)}
        return _plain(found)

    @functools.cached_property
    def scales(self) -> dict[str, tuple[float, float]]:
        """Return where the unknowns lie on the scale of public data: name -> mean, standard deviation."""
        subject = self.subject
        inputs = (0.0, 1.0)
        if not subject.pixels:
            inputs = _scale(_floats(subject.inputs[torch.from_numpy(subject.train[:2000])]))
        return {"inputs": inputs} | {key: _scale(self.context[key]) for key in self._descriptions()}

    def decoded(self, dummy: Params) -> Params:
        """Return what dummy data of :meth:`start` stand for, as :meth:`gradient` takes it."""
        values = {
            name: value * self.scales[name][1] + self.scales[name][0] if name in self.scales else value
            for name, value in dummy.items()
        }
        return values | ({"inputs": dummy["inputs"].reshape(self.inputs.shape)} if self.subject.pixels else {})

    def start(self, restart: int) -> Params:
        """Return the dummy data from which a search begins: random values for all that the attacker does not know."""
        method, pixels = self.subject.method, self.subject.pixels
        rng = stream(self.seed, "leakage start", self.i, restart)
        shape = (1, *pixels) if pixels else tuple(self.inputs.shape)
        dummy = {"inputs": _normal(rng, shape, self.device), **self._draw(rng)}
        if method.generates:
            for key in self._descriptions():
                dummy[key] = _normal(rng, (1, self.context[key].shape[1]), self.device)
        elif method.batched:
            dummy["label"] = _normal(rng, (1, len(self.candidates)), self.device)
        return dummy

    def search(self, attack: Inversion) -> _Found:
        """Search sample, draws and class together, from random values on the scale of public data."""
        images = ("inputs",) if self.subject.pixels else ()
        found = invert(
            attack, lambda dummy: self.gradient(self.decoded(dummy)), self.target, self.start, images, images
        )
        values = self.read(found.values)
        label = int(self.candidates[int(values["label"].argmax())]) if "label" in values else None
        return _Found(values, label, found)

    def read(self, dummy: Params) -> Params:
        """Return what found dummy data say, by the report's names; pixels are kept where pixels can be."""
        values = _plain(self.decoded(dummy))
        return values | ({"inputs": values["inputs"].clamp(0, 1)} if self.subject.pixels else {})

    def seeing(self, target: Params) -> Victim:
        """Return the same victim with another gradient in the attacker's hands."""
        other = copy.copy(self)
        other.target = target
        return other

    def closed_form(self) -> _Found:
        """Read what went into linear layers off their gradients: columns that stand for the sample or its description.

        The attacker knows the network, so that a layer's width tells what goes into it: the sample, the sample and the
        description, or, in a generator, the draws and the description. If several layers have such a width, that one
        counts whose columns explain the gradient best when they replace the true ones.
        """
        wide, described = self.inputs.numel(), self.subject.method.semantics.shape[1]
        drawn = [value.numel() for name, value in self.draws.items() if name.startswith(self.phase.name)]
        before = {0, wide, *(sum(some) for n in range(1, len(drawn) + 1) for some in itertools.combinations(drawn, n))}
        weights = [name for name, value in self.target.items() if value.ndim == 2 and name.endswith(".weight")]
        layers = [name.removesuffix(".weight") for name in weights]
        label, tried = None, []
        for layer in layers:
            weight, bias = self.target[f"{layer}.weight"], self.target.get(f"{layer}.bias")
            if bias is None:
                continue
            if len(bias) == len(self.subject.method.space.names):
                label = inferred_label(bias)
            if (read := layer_inputs(weight, bias)) is None:
                continue
            if weight.shape[1] in (wide, wide + described) and not self.subject.method.backbone.trained:
                tried.append(("inputs", read[0][:wide]))
                tried += [("inputs", real) for real in self._real_of_critic(layer, wide)]
            if weight.shape[1] - described in before:
                scale = float(getattr(self.subject.method, "condition_scale", 1.0))  # networks are given them times it
                tried.append(("semantics", read[0][-described:] / scale))
        best: dict[str, tuple[float, Tensor]] = {}
        depends = self.sensitivity()
        for kind, columns in tried:
            if not depends.get("attributes" if kind == "semantics" else kind):
                continue
            value = columns.reshape(self.true[kind].shape)
            off = self._distance({**self.true, kind: value})
            if kind not in best or off < best[kind][0]:
                best[kind] = (off, value)
        return _Found(_plain({kind: value for kind, (_, value) in best.items()}), label, None)

    def _distance(self, known: Params) -> float:
        """Return the squared distance of a gradient from the one seen."""
        gradient = self.gradient(known)
        return sum(float((value.detach() - self.target[name]).square().sum()) for name, value in gradient.items())

    def _real_of_critic(self, layer: str, wide: int) -> list[Tensor]:
        """Return the sample behind the gradient of a first layer, if that is a critic's."""
        params = {**self.fixed, **self.leaves}
        top = params.get(layer.removesuffix("0") + "1.weight")
        if not layer.endswith(".0") or top is None or top.shape[0] != 1 or params[f"{layer}.weight"].shape[1] <= wide:
            return []
        grads = self.target[f"{layer}.weight"], self.target[f"{layer}.bias"]
        weight, bias = (params[f"{layer}.{kind}"].detach() for kind in ("weight", "bias"))
        found = critic_inputs(grads, weight, bias, top.detach()[0], wide)
        return [] if found is None else [found]


def _judged(
    results: Sequence[_Found],
    judges: Mapping[str, Judge],
    tensors: Mapping[str, Tensor],
    true: Sequence[int],
    attack: Inversion | None,
) -> Facts:
    """Judge what an attack gave of all samples."""
    told: Facts = {"settings": vars(attack) if attack else {}}
    for kind, judge in judges.items():
        if all(kind in one.values for one in results):
            found = [judge(one.values[kind], tensors[kind][i], true[i]) for i, one in enumerate(results)]
            told[kind] = {**judge.summary(found), "samples": found}
    if all(one.label is not None for one in results):
        told["labels"] = sum(one.label == label for one, label in zip(results, true, strict=True))
    told["searches"] = [_search_facts(one.search) for one in results if one.search]
    return told


def _search_facts(search: Recovery) -> Facts:
    return {"distance": search.distance, "iterations": search.iterations}


def _guesses(judge: Judge, source: Tensor, true: Sequence[int], classes: NDArray[np.int64], seed: int) -> Facts:
    """Judge guesses that need no gradient: the average, and the mean of a class drawn at random.

    ``source`` judges the true samples themselves: no attack can be expected to name the right class more often.
    """
    drawn = [int(stream(seed, "leakage guess", i).integers(len(classes))) for i in range(len(true))]
    return {
        "average": judge.summary([judge(judge.average, source[i], label) for i, label in enumerate(true)]),
        "random class": judge.summary([judge(judge.means[drawn[i]], source[i], label) for i, label in enumerate(true)]),
        "source": judge.summary([judge(source[i], source[i], label) for i, label in enumerate(true)]),
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


def _normal(rng: np.random.Generator, shape: tuple[int, ...], device: torch.device | None) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)).to(device)
