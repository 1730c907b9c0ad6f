"""Class probes: judge an update by what it does to the scores of classes, not by its distance to
the others.

Where clients hold disjoint classes, every honest update is far from the others, but changes little
beyond its own classes. ``theft`` is the share of other classes' probes that an update takes, with
its weight in the merge. ``pull`` is by how much more free probes turn to one class, at one length
for all updates. docs/defences.md has the limits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.parameters import Params, is_statistic
from fedunseen.core.random import stream
from fedunseen.safety.defences.base import PULLS, REASONS, TAKES_OVER, Defence
from fedunseen.safety.defences.rules import median_length, shortened
from fedunseen.strategies import FilterResult, Reply, RoundView

_STEPS = 40  # of the search for a class's probes
_BLOCK = 512  # probes at once: bounds memory
_DEVIATIONS = 5.0
LOUD = 3.0
"""How many times the typical length updates are given to see what they pull."""
_MULTIPLE = 1.5  # of the typical length: longer updates are shortened to it
_STOLEN = 0.1  # by how much a share of other classes' probes must stand out to be left out
_PULLED = 0.4  # likewise the share of free probes that turn to one class
_PER_CLASS = 8  # probes of each class
_FREE = 400  # probes of no class
_CONFIDENCE = 0.9  # probability with which the global model answers a class on its probes


class ClassProbes(Defence, name="class-probes"):
    """Shortens what is long, and leaves out what takes over classes that are not its own."""

    asks_scores = True

    def filter(self, view: RoundView) -> FilterResult:
        """Try every update on the probes of the round."""
        state = view.state
        replies = view.replies
        norms = view.norms
        typical = _within_memory(median_length(norms), state.get("length"))
        probes = self.probes_of(view.params, view.round)
        loud = [LOUD * typical / norm if norm else 0.0 for norm in norms]
        result = [
            self.judge(view.params, *item, probes)
            for item in zip(replies, view.weights, loud, strict=True)
        ]
        stolen, pulled = (np.array([item[i] for item in result]) for i in (0, 1))
        thief = standing_out(stolen, state.get("theft"), _STOLEN)
        puller = standing_out(pulled, state.get("pull"), _PULLED)
        bound = _MULTIPLE * typical
        factors = [
            0.0 if thief[i] or puller[i] else 1.0 if norm <= bound else bound / norm
            for i, norm in enumerate(norms)
        ]
        kept = [i for i, factor in enumerate(factors) if factor]
        why = [
            REASONS.index(TAKES_OVER if thief[i] else PULLS if puller[i] else "")
            for i in range(len(replies))
        ]
        memory = {
            "length": typical,
            "theft": _within_memory(float(np.median(stolen)), state.get("theft")),
            "pull": _within_memory(float(np.median(pulled)), state.get("pull")),
        }
        # A theft of 0 is typical and stored; a length or pull of 0 says nothing about typical ones.
        typical_values = {name: value for name, value in memory.items() if value or name == "theft"}
        return FilterResult(
            shortened([replies[i] for i in kept], [factors[i] for i in kept]),
            factors,
            why,
            np.maximum(stolen, pulled).tolist(),
            state=state
            | {
                name: torch.tensor(value, dtype=torch.float64)
                for name, value in typical_values.items()
            },
        )

    def probes_of(self, params: Params, round: int) -> _Probes:
        """Make the inputs of a round: some that the model answers with each class, and some of no
        class.
        """
        scores = self.scores
        assert scores is not None  # asks_scores
        rng = stream(self.seed, "class probes", round)
        labels = torch.arange(len(scores.classes), device=scores.classes.device).repeat(_PER_CLASS)
        start = scores.random(rng, len(labels))
        of_classes = class_inputs(
            lambda samples: scores.of(params, samples)[:, scores.classes],
            start,
            labels,
            _CONFIDENCE,
        )
        inputs = torch.cat([of_classes, scores.random(rng, _FREE)])
        return _Probes(inputs, labels, self._answers(params, inputs)[len(labels) :])

    def judge(
        self, params: Params, reply: Reply, weight: float, loud: float, probes: _Probes
    ) -> tuple[float, float]:
        """Return theft of one update times ``weight``, and pull of it times ``loud``.

        ``weight`` is that in a merge of all replies, before any is left out: what is then merged
        counts for more, and takes more probes than were judged here.
        """
        scores = self.scores
        own_probes = len(probes.labels)
        assert scores is not None
        merged = {name: value + weight * reply.update[name] for name, value in params.items()}
        foreign = ~torch.isin(scores.classes, scores.held[reply.client])[probes.labels]
        kept = (
            self._answers(merged, probes.inputs[:own_probes][foreign])
            == probes.labels[foreign].cpu().numpy()
        )
        louder = {  # a running variance may turn negative if it is lengthened
            name: value + (1.0 if is_statistic(name) else loud) * reply.update[name]
            for name, value in params.items()
        }
        after = self._answers(louder, probes.inputs[own_probes:])
        stolen = float(1.0 - kept.mean()) if len(kept) else 0.0
        return stolen, pull(probes.free_answers, after, len(scores.classes))

    def _answers(self, params: Params, inputs: Tensor) -> NDArray[np.int64]:
        """Return (n,) positions among the described classes."""
        scores = self.scores
        assert scores is not None
        with torch.no_grad():
            parts = [
                scores.of(params, part)[:, scores.classes].argmax(1)
                for part in torch.split(inputs, _BLOCK)
            ]
        return np.asarray(torch.cat(parts).cpu().numpy())


@dataclass(frozen=True, eq=False)
class _Probes:
    inputs: Tensor  # (n, ...) those of classes, then the free ones
    labels: Tensor  # (m,) positions among the described classes
    free_answers: NDArray[np.int64]  # (n - m,) of the global model


def class_inputs(
    scores: Callable[[Tensor], Tensor],
    start: Tensor,
    labels: Tensor,
    confidence: float,
    steps: int = _STEPS,
) -> Tensor:
    """Change inputs along gradients until a model answers given classes.

    Each step is a tenth as long as an input is, on average over those at the start; an input that
    is answered as it should be, with at least the probability ``confidence``, stays where it is.
    """
    size = 0.1 * float(start.flatten(1).norm(dim=1).mean())
    result = []
    for inputs, wanted in zip(torch.split(start, _BLOCK), torch.split(labels, _BLOCK), strict=True):
        current = inputs.clone()
        for _ in range(steps):
            current.requires_grad_(True)
            with torch.enable_grad():
                loss = F.cross_entropy(scores(current), wanted, reduction="none")
                (gradient,) = torch.autograd.grad(loss.sum(), current)
            lengths = gradient.flatten(1).norm(dim=1).clamp_min(1e-12)
            step = torch.where(loss.detach() > -np.log(confidence), size / lengths, 0.0)
            current = current.detach() - step.view(-1, *[1] * (current.ndim - 1)) * gradient
            if not step.any():
                break
        result.append(current.detach())
    return torch.cat(result)


def pull(before: NDArray[np.int64], after: NDArray[np.int64], classes: int) -> float:
    """Return by how much the share of one single answer rises at most."""
    old, new = (
        np.bincount(answers, minlength=classes) / max(len(answers), 1)
        for answers in (before, after)
    )
    return float((new - old).max(initial=0.0))


def standing_out(
    values: NDArray[np.float64], memory: Tensor | None, margin: float
) -> NDArray[np.bool_]:
    """Say (n,) which values exceed what is typical by more than a margin and more than five median
    deviations.
    """
    middle = _within_memory(float(np.median(values)), memory)
    spread = float(np.median(np.abs(values - np.median(values))))
    return np.asarray(values > middle + max(margin, _DEVIATIONS * spread))


def _within_memory(middle: float, memory: Tensor | None) -> float:
    """Return a median, or twice the stored one if that is less: a round may have more liars than
    honest ones.
    """
    return middle if memory is None else min(middle, 2.0 * float(memory))
