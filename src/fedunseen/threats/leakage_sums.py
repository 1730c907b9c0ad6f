"""What the sum of several parties gives away: the attacks of :mod:`fedunseen.threats.leakage` on what masks leave.

Each party takes one step on one sample of its own, and the coordinator is left with the mean of their gradients. It
searches all samples at once, and knows of how many parties the sum is, of which classes their samples are (who holds
which classes is no secret) and all parameters: again the worst case. The closed form reads a sum as it would read one
update, since the linear layer's gradients are added up.

Of what is found, nobody can say whose it is. So each sample is compared with what matches it best among all that was
recovered from its sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.threats.inversion import Inversion, Recovery, invert
from fedunseen.threats.leakage import Judge, Log, Network, Subject, Victim, judges_of

if TYPE_CHECKING:
    from fedunseen.secagg.masks import Masks

__all__ = ["SEEN", "Sight", "measure_classifier_sums", "measure_method_sums", "sights"]

_SMALLEST = 3  # parties of a sum under masks
SEEN = ("update", "sum", "masked elements")
"""What an attacker may have: one party's update, the sum of several, or what one party sends under masks."""

Facts = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Sight:
    """What the coordinator has of a round, and what it takes it for: the mean gradient of ``searched`` samples.

    Attributes:
        seen: one of :data:`SEEN`.
        parties: how many took part.
        searched: how many samples are searched, the first of the parties'.
        target: name -> tensor.
    """

    seen: str
    parties: int
    searched: int
    target: Params


def sights(updates: Sequence[Params], parties: Sequence[int], masks: Masks | None = None) -> list[Sight]:
    """Return what a coordinator has of rounds of the first so many parties.

    Args:
        updates: each party's gradient.
        parties: of how many parties the sums are, 1 being an update.
        masks: the run's, under which sums of three and more go through the whole protocol, and the smallest of these
            is also seen as what its first party sends.
    """
    found: list[Sight] = []
    hidden: list[Sight] = []
    for count in parties:
        own = [{name: value.detach() for name, value in one.items()} for one in updates[:count]]
        mean = {name: torch.stack([one[name] for one in own]).mean(0) for name in own[0]}
        if masks is not None and count >= _SMALLEST:
            mean, words = _masked(own, masks)
            hidden = hidden or [Sight("masked elements", count, 1, words)]
        found.append(Sight("update" if count == 1 else "sum", count, count, mean))
    return found + hidden


def _of_sum(attack: Inversion, sight: Sight) -> Inversion:
    """Return an attack with fewer new starts, since every step of a sum's search costs as many gradients."""
    return replace(attack, restarts=max(1, attack.restarts // sight.parties))


def _masked(own: Sequence[Params], masks: Masks) -> tuple[Params, Params]:
    """Return the mean of updates out of masks, and the first party's masked elements taken for an update."""
    from fedunseen.strategies import FedAvg, Reply

    largest = max(float(value.abs().max()) for one in own for value in one.values())
    masks = replace(masks, clients=len(own), range=max(masks.range, largest), noisy=False)
    strategy, expected = FedAvg(weights="uniform"), dict(own[0])
    layout = masks.layout(strategy, expected)
    done = masks.opened(strategy, layout, [Reply(k, one, 1, 1) for k, one in enumerate(own)])
    rho = bytes.fromhex(done.rho)
    mean = masks.decode(strategy, layout, done.elements, [1.0] * len(own), rho, expected).update
    sent = next(said for stage, name, said in done.heard if stage == "masked" and name == "0")
    numbers = torch.from_numpy(sent.view(np.int64).astype(np.float32) / 2**62)  # about as long as a gradient
    names = sorted(expected)
    parts = torch.split(numbers[: sum(v.numel() for v in expected.values())], [expected[n].numel() for n in names])
    hidden = {name: part.reshape(expected[name].shape) for name, part in zip(names, parts, strict=True)}
    return dict(mean), {name: value.to(expected[name]) for name, value in hidden.items()}


def measure_classifier_sums(
    network: Network,
    images: NDArray[Any],
    labels: NDArray[np.int64],
    samples: NDArray[np.int64],
    parties: Sequence[int],
    attacks: Mapping[str, Inversion],
    masks: Masks | None = None,
    log: Log = lambda words: None,
) -> Facts:
    """Attack sums of gradients of a classifier that sees images.

    Args:
        network: the classifier.
        images: (N, channels, height, width), bytes or floats in [0, 1].
        labels: (N,) class ids.
        samples: ids of one sample of each party.
        parties: of how many parties the sums are.
        attacks: name -> attack.
        masks: the run's, if it has any.
        log: called with a line for each attack on each sum.

    Returns:
        name of the attack -> a row for each sum (JSON): ``parties``, ``seen``, and under ``inputs`` what was recovered.
    """
    source = network.sample(images, samples)
    true = [int(label) for label in labels[samples]]
    soft = F.one_hot(torch.tensor(true), network.classes).float().to(network.device)
    updates = [network.gradient(source[i : i + 1], soft[i : i + 1]) for i in range(len(samples))]
    told: dict[str, list[Facts]] = {name: [] for name in attacks}
    for sight in sights(updates, parties, masks):
        known = soft[: sight.searched]

        def of_dummy(dummy: Params, known: Tensor = known) -> Params:
            return network.gradient(dummy["image"], known)

        def start(restart: int, count: int = sight.searched) -> Params:
            return {"image": torch.cat([network.start(i, restart)["image"] for i in range(count)])}

        for name, attack in attacks.items():
            search = invert(
                _of_sum(attack, sight), of_dummy, sight.target, start, images=("image",), bounded=("image",)
            )
            found = list(search.values["image"].clamp(0, 1))
            row = _row(sight, {"inputs": (network.judge, found, list(source))}, true, search)
            log(f"classifier, {name}, {_words(row, 'inputs')}")
            told[name].append(row)
    return told


def measure_method_sums(
    subject: Subject,
    parties: Sequence[int],
    attacks: Mapping[str, Inversion],
    seed: int,
    masks: Masks | None = None,
    log: Log = lambda words: None,
) -> Facts:
    """Attack sums of the method's own gradients, phase by phase; the victims are one sample of each party.

    What is unknown of each sample is what is unknown where an update is attacked, but for the number of its class.

    Returns:
        phase -> name of the attack -> rows, as :func:`measure_classifier_sums` gives them, with ``attributes`` where
        the attack gives these. Left out are phases whose gradient does not travel, and searches where nothing depends
        on what is searched.
    """
    judges, method = judges_of(subject), subject.method
    true = [int(label) for label in subject.labels[subject.victims]]
    sources = {
        "inputs": [subject.sample(int(victim))[0] for victim in subject.victims],
        "attributes": list(method.semantics[torch.tensor(true)]),
    }
    facts: Facts = {}
    for phase in method.phases():
        names = [name for name in subject.params if phase.owns(name) and name in subject.travels]
        if phase.before_round or not names:
            continue
        victims = [Victim(subject, phase, names, i, seed) for i in range(len(true))]
        searched = attacks if any(victims[0].sensitivity().values()) else {}
        told: dict[str, list[Facts]] = {name: [] for name in ("analytic", *searched)}
        for sight in sights([victim.target for victim in victims], parties, masks):
            own = victims[: sight.searched]
            for name in told:
                search = None if name == "analytic" else _searched(own, sight.target, _of_sum(attacks[name], sight))
                if search is None:
                    found = [own[0].seeing(sight.target).closed_form().values]
                else:
                    found = [victim.read(_part(search.values, i)) for i, victim in enumerate(own)]
                given = {
                    kind: (judge, [one[kind] for one in found], sources[kind])
                    for kind, judge in judges.items()
                    if all(kind in one for one in found)
                }
                row = _row(sight, given, true, search)
                log(f"{method.settings.name}, {phase.name}, {name}, " + _words(row, *given))
                told[name].append(row)
        facts[phase.name] = told
    return facts


def _searched(victims: Sequence[Victim], target: Params, attack: Inversion) -> Recovery:
    """Search the samples of several parties at once."""

    def gradient(dummy: Params) -> Params:
        each = [victim.gradient(victim.decoded(_part(dummy, i))) for i, victim in enumerate(victims)]
        return {name: torch.stack([one[name] for one in each]).mean(0) for name in target}

    def start(restart: int) -> Params:
        made = [victim.start(restart) for victim in victims]
        return {f"{i}:{name}": v for i, one in enumerate(made) for name, v in one.items() if name != "label"}

    images = [f"{i}:inputs" for i in range(len(victims))] if victims[0].subject.pixels else []
    return invert(attack, gradient, target, start, images, images)


def _part(dummy: Params, i: int) -> Params:
    """Return the dummy data of the i-th party."""
    return {name.partition(":")[2]: value for name, value in dummy.items() if name.startswith(f"{i}:")}


def _row(
    sight: Sight,
    given: Mapping[str, tuple[Judge, Sequence[Tensor], Sequence[Tensor]]],
    true: Sequence[int],
    search: Recovery | None,
) -> Facts:
    """Judge what an attack on a sum gave: kind -> judge, what was recovered, sources."""
    row: Facts = {"parties": sight.parties, "seen": sight.seen}
    for kind, (judge, found, sources) in given.items():
        best = []
        for source, label in zip(sources[: sight.searched], true, strict=False):
            best.append(min((judge(one, source, label) for one in found), key=lambda one: float(one["mse"])))
        row[kind] = {**judge.summary(best), "samples": best}
    if search is not None:
        row["search"] = {"distance": search.distance, "iterations": search.iterations}
    return row


def _words(row: Facts, *kinds: str) -> str:
    """Return what a line of the log says of a row."""
    what = {"update": "one update", "masked elements": "one party's masked elements"}.get(
        row["seen"], f"the sum of {row['parties']}"
    )
    told = ", ".join(f"{row[kind]['recovered']} of {len(row[kind]['samples'])} {kind}" for kind in kinds)
    return f"{what}: " + (f"recovered {told}" if told else "nothing")
