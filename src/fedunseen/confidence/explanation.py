"""Why a sample gets its answer: exact splits of the answer's score over seen classes, over
attributes, and over places of a picture.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.confidence.places import Places
from fedunseen.core.parameters import Params
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.gaussian import Gaussian

Floats = NDArray[np.float64]

_LEAST = 0.005  # of all amounts: a smaller part would be stated as 0 %


class Part(NamedTuple):
    """What one class or attribute speaks for an answer, in units of the score."""

    name: str
    value: float


@dataclass(frozen=True)
class Explanation:
    """Why a sample gets its answer.

    Attributes:
        answer: the class that is explained.
        score: its score.
        parts: what classes with samples speak for it, the largest amount first; negative ones
            speak against it. For an unseen class these are the classes whose means predict it.
            Empty unless the method is ``gaussian``.
        made_of: how much each of the named classes' means counts in the answer's prototype.
        others: what the classes add that are not named.
        description: what the class's description adds by itself; 0 unless samples are expected at
            descriptions (``method.prior = "semantics"``).
        offset: by how much the score of a seen class is lowered.
        attributes: what attributes add, the largest amount first. Of ``ridge``, ``eszsl`` and
            ``sae`` they split the score itself; of ``gaussian`` the lead over a class whose description is the
            mean of all, and none where the class is given by samples.
        other_attributes: what attributes add that are not named.
        places: what places of a picture add, where they do.
    """

    answer: str
    score: float
    parts: tuple[Part, ...]
    made_of: tuple[Part, ...]
    others: float
    description: float
    offset: float
    attributes: tuple[Part, ...] = ()
    other_attributes: float = 0.0
    places: Places | None = None

    def sentence(self) -> str:
        """Return in words which classes speak for the answer, or which attributes, by shares of
        all that speaks for or against it.
        """
        if not self.parts:
            shares = _shares(self.attributes, self.other_attributes)
            shares = shares or ("its description" if self.other_attributes else "")
        else:
            shares = _shares(self.parts, self.others, self.description)
            shares = shares or ("its description" if self.description else "")
        return f"{self.answer}: {shares or 'nothing speaks for it or against it'}"

    def shares(self) -> list[Part]:
        """Return the named classes that say something, with their shares of all that speaks for or
        against the answer, in percent; negative where they speak against it.
        """
        return _percent(self.parts, self.others, self.description)

    def attribute_sentence(self) -> str:
        """Return in words which attributes speak for the answer; "" where none does."""
        return _shares(self.attributes, self.other_attributes)


def _percent(parts: Sequence[Part], *unnamed: float) -> list[Part]:
    whole = sum(abs(part.value) for part in parts) + sum(map(abs, unnamed))
    return [
        Part(part.name, 100 * part.value / whole)
        for part in parts
        if abs(part.value) > _LEAST * whole
    ]


def _shares(parts: Sequence[Part], *unnamed: float) -> str:
    """Name parts with their shares of all amounts; "" without any."""
    return said_shares(_percent(parts, *unnamed))


def said_shares(parts: Sequence[Part]) -> str:
    """Return parts in percent as words: those that speak for the answer first."""
    sides = [
        ", ".join(
            f"{part.name} {abs(part.value):.0f} %" for part in parts if (part.value < 0) == against
        )
        for against in (False, True)
    ]
    return "; against it: ".join(sides) if all(sides) else sides[0] or _only_against(sides[1])


def _only_against(words: str) -> str:
    return f"against it: {words}" if words else ""


@dataclass(frozen=True, eq=False)
class Asked:
    """Samples and the classes whose scores are explained.

    Attributes:
        method, params: of the model.
        names: (C,) of its classes.
        attributes: (a,) names of attributes; empty where their names say nothing.
        samples: (n, ...) as the method takes them.
        classes: (n,) the class that is explained of each sample.
        scores: (n,) the scores of these.
        offset: (n,) by how much each is lowered.
        places: (n,) what places add; None: there is no picture.
    """

    method: ClosedForm
    params: Params
    names: Sequence[str]
    attributes: Sequence[str]
    samples: Tensor
    classes: NDArray[np.int64]
    scores: Floats
    offset: Floats
    places: Sequence[Places] | None = None

    def explained(self, top: int | None) -> list[Explanation]:
        """Return an explanation of each sample, which names ``top`` classes and attributes; None:
        all.
        """
        with torch.no_grad():
            by_class = self._by_class(top)
            by_attribute = self._by_attribute(top)
        explanations = []
        for row, c in enumerate(self.classes.tolist()):
            parts, made_of, others, description = by_class[row]
            attributes, rest = by_attribute[row]
            explanations.append(
                Explanation(
                    self.names[c],
                    float(self.scores[row]),
                    parts,
                    made_of,
                    others,
                    description,
                    float(self.offset[row]),
                    attributes,
                    rest,
                    None if self.places is None else self.places[row],
                )
            )
        return explanations

    def _by_class(
        self, top: int | None
    ) -> list[tuple[tuple[Part, ...], tuple[Part, ...], float, float]]:
        """Return what seen classes speak, their weights, what the others add, and the
        description's part.
        """
        if not isinstance(self.method, Gaussian) or "dual_coefficients" not in self.params:
            return [((), (), 0.0, 0.0)] * len(self.classes)
        class_ids = torch.from_numpy(self.classes)
        semantics = self.method.semantics
        evidence, of_description = self.method.evidence(
            self.params, self.samples, semantics, class_ids
        )
        weights = self.method.support(self.params, semantics)[class_ids].numpy()
        observed = np.flatnonzero(self.params["count"].numpy() > 0)
        names = [self.names[c] for c in observed.tolist()]
        by_class = []
        for row, (values, added) in enumerate(
            zip(evidence.numpy(), of_description.tolist(), strict=True)
        ):
            order, parts, others = _largest(names, values, top)
            made_of = tuple(Part(names[o], float(weights[row, o])) for o in order)
            by_class.append((parts, made_of, others, added))
        return by_class

    def _by_attribute(self, top: int | None) -> list[tuple[tuple[Part, ...], float]]:
        """Return what attributes add: those that are named, and the others together."""
        class_ids = torch.from_numpy(self.classes)
        parts = self.method.attribute_parts(
            self.params, self.samples, self.method.semantics, class_ids
        )
        if parts is None:
            return [((), 0.0)] * len(self.classes)
        rows = parts.double().numpy()
        if not self.attributes:
            return [((), float(values.sum())) for values in rows]
        return [
            _largest(self.attributes, values, top)[1:] if values.any() else ((), 0.0)
            for values in rows
        ]


def _largest(
    names: Sequence[str], values: Floats, top: int | None
) -> tuple[list[int], tuple[Part, ...], float]:
    """Return the places of the largest amounts, these parts, and what the others add."""
    order = np.argsort(-np.abs(values), kind="stable")[:top].tolist()
    largest = tuple(Part(names[place], float(values[place])) for place in order)
    return order, largest, float(values.sum() - values[order].sum())
