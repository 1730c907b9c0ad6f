"""Methods in closed form: their parameters follow from sums over samples, without a gradient."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.core.samples import CodedRows
from fedunseen.core.settings import NamedSettings
from fedunseen.data import Quantization, Scaling
from fedunseen.methods.base import Candidates, Method
from fedunseen.methods.closed_form import statistics
from fedunseen.methods.closed_form.influence import influence
from fedunseen.methods.closed_form.set_apart import Moments

_BLOCK = 1024  # maps averaged at once


class ClosedFormSettings(NamedSettings):
    """Settings that every method in closed form has."""

    retention: Literal["each", "total"] = "each"
    """What the server keeps: the sums of each party, so that one can be taken out again (`fedunseen
    forget`), or their total alone, after which no one can tell what a party has sent."""
    removal_batch: int = Field(20, ge=1)
    """How many samples `fedunseen forget --samples` removes at once at least: an observer of the
    totals learns the sums of what is removed. Fewer need `--consent`."""
    min_samples: int = Field(1, ge=1)
    """A client leaves a class of which it has fewer samples out of all its statistics: the sums of
    few samples show them. In a deployment each party's own `--min-samples` counts where that is
    more. For unlabelled samples it is the soft count of the class at the client."""
    clip_norm: float | None = Field(None, gt=0)
    """A party shortens samples to this length, and the server refuses sums that longer ones must
    have made: a bound on what samples that a party has made up can do. Unset: samples are taken as
    they are."""


class Release(Protocol):
    """What private sums are about (:class:`fedunseen.safety.privacy.private_sums.Release`)."""

    @property
    def clip(self) -> float:
        """The length to which samples are shortened."""

    def nothing(self, sums: Params) -> Params:
        """Return sums with a place for how much noise they have."""

    def cleaned(self, sums: Params, seen: NDArray[np.int64]) -> Params:
        """Return sums that some samples could have, from noisy ones."""


class Discriminants(NamedTuple):
    """The scores of samples' classes as linear functions of features x: weight (x - centre) +
    constant.

    Attributes:
        weight: (n, d) of the class of each sample.
        centre: (d,).
        constant: (n,).
    """

    weight: Tensor
    centre: Tensor
    constant: Tensor


class ClosedForm(Method):
    """A method whose :meth:`solve` needs the sums of its classes' samples and nothing else
    (:mod:`~.statistics`).

    A run merges sums; :meth:`fit_heads` makes the model. ``release`` bounds samples and treats the
    noise of private sums (None: exact sums). ``quantization`` makes features whole numbers (None:
    float64 sums).
    """

    shift_invariant: ClassVar[bool] = True
    scaling: ClassVar[tuple[Scaling, ...]] = ()
    frozen = True
    grows = True
    release: Release | None = None
    quantization: Quantization | None = None
    worth: float = 1.0  # of a sample that is in the sums once

    @property
    def clip_norm(self) -> float | None:
        """The length to which samples are shortened; None: none is."""
        return (
            getattr(self.settings, "clip_norm", None) if self.release is None else self.release.clip
        )

    @property
    def min_samples(self) -> int:
        """Of how many samples at a client a class is in its statistics; 1: of any number."""
        return int(getattr(self.settings, "min_samples", 1))

    def init(self, rng: np.random.Generator) -> Params:
        """Return the sums of no sample."""
        nothing = statistics.no_sums(self.width, self.space, self.quantization)
        return nothing if self.release is None else self.release.nothing(nothing)

    def statistics(
        self,
        inputs: Tensor | CodedRows,
        labels: Tensor,
        among: tuple[Tensor | CodedRows, Tensor] | None = None,
        min_samples: int | None = None,
    ) -> Params:
        """Return the sums of a party's samples; of frozen maps, those of their means over cells.

        ``among``: the samples that say which features are hidden, if these are a part of them.
        ``min_samples``: the party's own number, if it is not the method's.
        """
        inputs = self._averaged(inputs)
        hidden = None
        least = self.min_samples if min_samples is None else min_samples
        if least > 1:
            whole = (self._averaged(among[0]), among[1]) if among else (inputs, labels)
            hidden = statistics.hidden_features(
                *whole, len(self.space.names), self.quantization, least
            )
        sums = statistics.statistics(
            inputs, labels, self.space, self.clip_norm, self.quantization, hidden
        )
        return sums if self.release is None else self.release.nothing(sums)

    def moments(
        self, inputs: Tensor | CodedRows, labels: Tensor, min_samples: int, fewest: int
    ) -> Moments:
        """Return samples whose exact :meth:`statistics` a party sends, of ``min_samples`` in a
        class; ``fewest`` is the party's own number.
        """
        classes = int(labels.max()) + 1 if len(labels) else 0
        inputs = self._averaged(inputs)
        numbers = min_samples, fewest, self.clip_norm, self.quantization
        return Moments(inputs, labels, classes, *numbers)

    def _averaged(self, inputs: Tensor | CodedRows) -> Tensor | CodedRows:
        """Return vectors as they are, and of frozen maps their means over cells."""
        if isinstance(inputs, CodedRows) or inputs.ndim <= 2:
            return inputs
        return torch.cat([self.backbone({}, part) for part in torch.split(inputs, _BLOCK)])

    def solve(self, sums: Params) -> Params:
        """Return the model of added statistics, at the server."""
        raise TypeError(f"{type(self).__name__} must say how it is solved")

    def expand_classes(self, params: Params) -> Params:
        """Return sums of an earlier version of the class space as sums of this one: a new class is
        one more row.
        """
        return statistics.expand_classes(params, self.space, self.quantization)

    def units(self, model: Params) -> dict[str, float]:
        """Return the settings that scale a model's scores: models that choose an offset together
        must have the same.
        """
        return {}

    def choice(self, model: Params) -> dict[str, str]:
        """Return which closed form the model is, where the method has a choice: ``form``."""
        return {}

    def quick(self, model: Params) -> "ClosedForm":
        """Return the method with the settings that its model has found, so that it solves others at
        once.
        """
        return self

    def answers_of_sums(
        self, sums: Params, inputs: Tensor, among: Tensor, measured: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Return the :meth:`scores` (n, A) of inputs (n, d) for the classes ``among`` (A,) by the
        model of ``sums``, and the :meth:`distances` of those that are ``measured`` (m,): of a model
        that answers nothing else.
        """
        model = self.solve(sums)
        scores = self.scores(model, inputs, self.semantics)[:, among]
        return scores, self.distances(model, inputs[measured], self.semantics)

    def left_out_scores(self, model: Params, sums: Params, inputs: Tensor, out: Tensor) -> Tensor:
        """Return the scores (n, T) of inputs (n, d) for the classes ``out`` (T,), which were left
        out of ``sums``.
        """
        return self.scores(self.solve(sums), inputs, self.semantics)[:, out]

    def distances(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor | None:
        """Return (n,) how far inputs are from the nearest prototype; None: there is no such
        distance.
        """
        return None

    def discriminants(
        self, params: Params, inputs: Tensor, semantics: Tensor, classes: Tensor
    ) -> Discriminants:
        """Return the scores of ``classes`` (n,), before any offset, as linear functions of the
        features of inputs (n, d), where they are such.
        """
        raise TypeError(f"{type(self).__name__} has scores that are not linear in features")

    def attribute_parts(
        self, params: Params, inputs: Tensor, semantics: Tensor, classes: Tensor
    ) -> Tensor | None:
        """Return what each attribute adds (n, a) to the scores of ``classes`` (n,); None: scores
        are no sums over attributes.
        """
        return None

    def validate_statistics(self, sums: Params) -> str:
        """Return why the statistics are infeasible, or ""."""
        return statistics.validate_statistics(sums, self.clip_norm, self.quantization)

    def influence(self, parts: Mapping[int, Params]) -> dict[str, Any]:
        """Return how far each client's statistics move the means of classes that others hold
        too.
        """
        return influence(parts, self.quantization)

    def fit_heads(
        self,
        params: Params,
        among: Candidates,
        seed: int,
        real: tuple[Tensor, Tensor] | None = None,
    ) -> Params:
        """Return the model of merged sums; a model as it is."""
        return self.of_sums(params) if "square" in params else params

    def of_sums(self, params: Params) -> Params:
        """Return the model of merged sums."""
        if self.release is None and self.quantization is not None:
            statistics.check_capacity(int(params["count"].sum()), self.quantization)
        with statistics.few_threads(max(self.width, len(self.space.names))):
            if self.release is not None:
                return self.solve(self.release.cleaned(params, self.space.seen))
            exact = statistics.dequantized(params, self.quantization, self.worth)
            return self.solve({**params, **exact})

    def check_model(self, model: Params) -> None:
        """Raise a DataError where a model lacks a parameter that no score needs."""

    def facts(self, params: Params) -> dict[str, Any]:
        """Return the digest of whole sums, and which share of features was clipped, where any was
        and the parties count them.
        """
        if self.quantization is None or "square" not in params or self.release is not None:
            return {}
        features = int(params["count"].sum()) * self.width
        rate = int(params["clipped"]) / max(1, features)
        clipped = {"clipped": rate} if rate else {}
        return {"sums_sha256": statistics.sums_sha256(params, self.quantization), **clipped}
