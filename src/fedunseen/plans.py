"""What statistics are of: plans, which fix how samples become whole numbers and what these are for.

The first plan is of labeled samples. What follows from a model has a second plan, which names the
model's digest: unlabelled samples that adapt it, and answers that say how sure it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.confidence import Prior
from fedunseen.confidence.counted import infeasible, no_counts
from fedunseen.confidence.own_folds import own_counts, question, scales_of
from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.extensions import at
from fedunseen.core.model_file import Content as FileContent
from fedunseen.core.model_file import content_of
from fedunseen.core.parameters import Params, under, within
from fedunseen.core.samples import ScaledSamples
from fedunseen.data import Quantization, Scaler
from fedunseen.methods.base import Method
from fedunseen.methods.closed_form import statistics as sums_of
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.soft_statistics import infeasible_soft, scorer, soft_statistics
from fedunseen.methods.closed_form.unlabelled import (
    Adapted,
    adaptable,
    features_of,
    recalibrated,
    stretched,
    update,
)

Source = Literal["known", "bounds", "sample", "first pass", "model"]
"""Where scaling and quantization come from: known beforehand (unit length, gray values), bounds
that the experiment states, a sample, a first pass over all training samples, or the model's own."""

Part = Literal["labelled", "unlabelled", "confidence"]
"""Which samples statistics are of, or which answers about them."""

Rows = NDArray[Any]


class Content(Protocol):
    """A hash."""

    def update(self, data: bytes, /) -> None: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class StatisticsPlan:
    """What statistics of labeled samples are of.

    Attributes:
        method: made for the classes, with its quantization.
        scaler: turns features into whole numbers; None: samples come as the method takes them.
        model: the model without parameters, which statistics complete; None: nothing is solved.
        source: where scaling and quantization come from.
        prior: which questions to expect, for the confidence of the model.
    """

    method: ClosedForm
    scaler: Scaler | None = None
    model: Any = None
    source: Source = "model"
    prior: Prior = "auto"

    part = "labelled"

    @property
    def exact(self) -> bool:
        """Whether statistics of parts add up to those of the whole, bit for bit: integers without
        noise, none of which depends on all samples.
        """
        method = self.method
        return method.quantization is not None and method.release is None and method.min_samples < 2

    @cached_property
    def parts(self) -> dict[str, str]:
        """What a whole number depends on -> its SHA-256."""
        quantization = self.method.quantization
        encoder = None if self.model is None else self.model.features_from
        contents = {
            "classes": sums_of.space_hash(self.method.space, None).numpy().tobytes(),
            "quantization": b"" if quantization is None else quantization.digest,
            "scaling": b"" if self.scaler is None else self.scaler.digest().encode(),
            "method.clip_norm": repr(self.method.clip_norm).encode(),
            "encoder": json.dumps(encoder, sort_keys=True, default=str).encode(),
            "kind": self.part.encode(),
            **self.further,
        }
        return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}

    @property
    def further(self) -> dict[str, bytes]:
        """What else a whole number depends on."""
        return {}

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of all that a whole number depends on: statistics of one digest add up."""
        return hashlib.sha256(json.dumps(self.parts).encode()).hexdigest()

    def nothing(self) -> Params:
        """Return the sums of no sample."""
        method = self.method
        return sums_of.no_sums(method.width, method.space, method.quantization)

    def check_capacity(self, samples: int) -> None:
        """Refuse more samples than the numbers can add up."""
        if self.method.quantization is not None:
            sums_of.check_capacity(samples, self.method.quantization)

    def summed(self, rows: Rows, labels: NDArray[np.int64], content: Content) -> Params:
        """Return the sums of features (n, d) before scaling, and class ids (n,); ``content`` is
        updated with what is summed.
        """
        assert self.scaler is not None
        total = self.nothing()
        step = max(sums_of.BLOCK, sums_of.CODES // max(1, rows.shape[1]))
        for start in range(0, len(rows), step):
            codes, beyond = self.scaler.codes(rows[start : start + step])
            content.update(codes.tobytes())
            part_labels = torch.from_numpy(labels[start : start + step])
            part = self.method.statistics(torch.from_numpy(codes), part_labels)
            part["clipped"] += beyond
            for name in total.keys() - {"space"}:
                total[name] += part[name]
        return total

    def check(self, sums: Params) -> None:
        """Raise a DataError where these are no sums of this plan."""
        sums_of.check(sums, self.method.space, self.method.quantization)

    def validate(self, sums: Params) -> str:
        """Return why no samples can have these sums, or ""."""
        quantization = self.method.quantization
        return sums_of.validate_statistics(sums, self.method.clip_norm, quantization)

    def difference(self, sums: Params, less: Params) -> Params:
        """Return sums without those of some samples.

        Raises:
            DataError: no samples could have what is left (``never-part``).
        """
        method = self.method
        quantization = quantization_of(method)
        left = sums_of.subtract(sums, less, method.space, quantization)
        return self._checked(left, sums_of.validate_statistics(left, None, quantization))

    def _checked(self, left: Params, why: str) -> Params:
        """Return what is left; refuse what no samples could have."""
        if why:
            raise DataError(
                f"what is to be removed was never a part of the sums: without it {why}",
                sums_of.NEVER_PART,
            )
        return left

    def samples(self, sums: Params) -> int:
        """Return how many samples there are."""
        return int(sums["count"].sum())

    def solved(self, sums: Params) -> Any:
        """Return the :class:`fedunseen.Model` that follows."""
        return self.model.solved(sums)

    def digest_of(self, sums: Params) -> str:
        """Return the SHA-256 of sums."""
        return sums_of.sums_sha256(sums, quantization_of(self.method))

    def content(self) -> FileContent:
        """Return what a file holds of the plan."""
        return self.model.content()  # type: ignore[no-any-return]

    @classmethod
    def of_content(cls, about: Mapping[str, Any], tensors: Params) -> StatisticsPlan:
        """Return the plan of a file."""
        model = at("fedunseen.model:Model").template(content_of(about), tensors)
        kind = KINDS[about["part"]]
        if model.params:
            model.check()
        quantization_of(model.method)
        noted = {"source": about["source"], "prior": about["prior"]}
        return kind(model.method, model.scaler, model, **noted, **kind.stored(about, tensors))

    @staticmethod
    def stored(about: Mapping[str, Any], tensors: Params) -> dict[str, Any]:
        """Return further arguments of a plan, from a file."""
        return {}


@dataclass(frozen=True, eq=False)
class SecondPlan(StatisticsPlan):
    """What statistics that follow from a model are of; ``model`` has its parameters."""

    @property
    def further(self) -> dict[str, bytes]:
        """The model."""
        return {"model": self.model.sha256.encode()}

    def digest_of(self, sums: Params) -> str:
        """Return the SHA-256 of sums."""
        content = hashlib.sha256()
        for name, value in sorted(sums.items()):
            content.update(name.encode() + value.numpy().astype("<i8").tobytes())
        return content.hexdigest()

    def check_capacity(self, samples: int) -> None:
        """Do nothing: these sums are small."""

    def difference(self, sums: Params, less: Params) -> Params:
        """Return sums without others."""
        left = {name: value - less[name] for name, value in sums.items()}
        return self._checked(left, self.validate(left))

    def check(self, sums: Params) -> None:
        """Raise a DataError where these are no sums of this plan."""
        form = self.nothing()
        if form.keys() != sums.keys() or any(
            sums[name].shape != value.shape or sums[name].dtype != value.dtype
            for name, value in form.items()
        ):
            raise DataError(
                "the sums are damaged, their parts do not fit together: let the party send them "
                "again"
            )


@dataclass(frozen=True, eq=False)
class UnlabelledPlan(SecondPlan):
    """Unlabelled samples that adapt a model: one iteration of expectation maximization
    (:mod:`fedunseen.methods.closed_form.unlabelled`).

    Attributes:
        labelled: the parameters of the labeled model, which each iteration starts from.
        refused: (C,) bool classes that the first iteration refused; empty before.
        offset: of seen classes, of the labeled model.
    """

    labelled: Params = field(default_factory=dict)
    refused: torch.Tensor | None = None
    offset: float = 0.0

    part = "unlabelled"

    @classmethod
    def of(cls, model: Any) -> Self:
        """Return the first iteration's plan."""
        method = adaptable(exact_method(model.method), model.params)
        offset = model.calibration.offset
        return cls(method, model.scaler, model, labelled=model.params, offset=offset)

    @cached_property
    def _scorer(self) -> Any:
        method = adaptable(self.method)
        params = self.model.params
        params = stretched(method, params) if self.refused is None else params
        return scorer(params, self.offset, "all", method.quantization, every=True)

    @property
    def further(self) -> dict[str, bytes]:
        """The model, and that of the first iteration."""
        first = [] if self.refused is None else self.refused.tolist()
        return {**super().further, "iteration": json.dumps([first, self.offset]).encode()}

    def nothing(self) -> Params:
        """Return the soft sums of no sample."""
        empty: Params = self._scorer.no_samples()
        return empty

    def summed(self, rows: Rows, labels: NDArray[np.int64], content: Content) -> Params:
        """Return the soft sums of features (n, d)."""
        content.update(rows.astype(np.float32).tobytes())
        return soft_statistics(self._scorer, features_of(self.method, self.model.scaled(rows)))

    def validate(self, sums: Params) -> str:
        """Return why no samples can have these sums, or ""."""
        return infeasible_soft(sums, self.method.quantization)

    def samples(self, sums: Params) -> int:
        """Return how many samples there are."""
        return int(sums["samples"])

    def _updated(self, sums: Params) -> Adapted:
        return update(adaptable(self.method), self.labelled, sums, refused=self.refused)

    def solved(self, sums: Params) -> Any:
        """Return the adapted model."""
        adapted = self._updated(sums)
        share = adapted.offset_share
        return self.model.with_params(recalibrated(adapted).params, self.offset * share)

    def following(self, sums: Params) -> UnlabelledPlan:
        """Return the plan of the next iteration."""
        adapted = self._updated(sums)
        model = self.model.with_params(adapted.params, self.offset)
        return replace(self, model=model, refused=adapted.refused)

    def content(self) -> FileContent:
        """Return what a file holds of the plan."""
        about, tensors = self.model.content()
        tensors = tensors | under("labelled/", self.labelled)
        tensors |= {} if self.refused is None else {"refused": self.refused}
        return {**about, "first_offset": self.offset}, tensors

    @staticmethod
    def stored(about: Mapping[str, Any], tensors: Params) -> dict[str, Any]:
        """Return further arguments of a plan, from a file."""
        return {
            "labelled": within("labelled/", tensors),
            "refused": tensors.get("refused"),
            "offset": float(about["first_offset"]),
        }


@dataclass(frozen=True, eq=False)
class ConfidencePlan(SecondPlan):
    """Answers about samples that are in a model's statistics, counted: what says how sure it is
    (:mod:`fedunseen.confidence.counted`).

    Attributes:
        asked: the model's own sums, the scales, and the offset of seen classes.
    """

    asked: Params = field(default_factory=dict)

    part = "confidence"

    @classmethod
    def of(cls, planned: StatisticsPlan, sums: Params) -> Self:
        """Return the plan for the model of ``sums``."""
        model = planned.solved(sums)
        method = model.method
        offset = model.calibration.offset + method.own_offset(model.params)
        asked = question(sums, scales_of(method, model.params, sums), offset)
        return cls(method, model.scaler, model, planned.source, planned.prior, asked)

    def nothing(self) -> Params:
        """Return the counts of no answer."""
        return no_counts(len(self.method.space.names))

    def summed(self, rows: Rows, labels: NDArray[np.int64], content: Content) -> Params:
        """Return the counts of answers about all samples (n, d) of one party."""
        content.update(rows.astype(np.float32).tobytes())
        assert self.scaler is not None
        inputs = ScaledSamples(rows, torch.device("cpu"), self.scaler)
        places = np.arange(len(rows))
        return own_counts(self.method, self.asked, inputs, torch.from_numpy(labels), places, 0)

    def validate(self, sums: Params) -> str:
        """Return why no answers can have these counts, or ""."""
        return infeasible(sums, len(self.method.space.names))

    def samples(self, sums: Params) -> int:
        """Return how many answers there are."""
        return int(sums["asked"].sum())

    def solved(self, sums: Params) -> Any:
        """Return the model with its confidence."""
        return self.model.with_counts(sums, self.asked["scales"].numpy(), self.prior)

    def content(self) -> FileContent:
        """Return what a file holds of the plan."""
        about, tensors = self.model.content()
        return about, tensors | under("asked/", self.asked)

    @staticmethod
    def stored(about: Mapping[str, Any], tensors: Params) -> dict[str, Any]:
        """Return further arguments of a plan, from a file."""
        return {"asked": within("asked/", tensors)}


KINDS: dict[str, type[StatisticsPlan]] = {
    kind.part: kind for kind in (StatisticsPlan, UnlabelledPlan, ConfidencePlan)
}


def exact_method(method: Method) -> ClosedForm:
    """Return a method whose statistics are whole numbers that add up; refuse any other."""
    name = getattr(method.settings, "name", type(method).__name__)
    if not isinstance(method, ClosedForm):
        raise ExperimentError(
            f"method.name = {name!r} is trained, so that no sums replace its samples: use a method "
            "in closed form, for example gaussian"
        )
    quantization_of(method)
    if method.release is not None:
        raise ExperimentError(
            "[privacy] adds noise once to the whole sum, so that its parts are no statistics: plan "
            "without it, and add noise where the run merges"
        )
    if method.min_samples > 1:
        raise ExperimentError(
            f"method.min_samples = {method.min_samples} depends on all samples of a party, so that "
            "parts of them are no statistics: set it to 1"
        )
    return method


def quantization_of(method: Method) -> Quantization:
    """Return how features became whole numbers, from whose sums samples are removed exactly."""
    if not isinstance(method, ClosedForm) or method.quantization is None:
        raise ExperimentError(
            "data.quantization = 'none' has summed float64 numbers, from which nothing is removed "
            "exactly: run it again"
        )
    return method.quantization
