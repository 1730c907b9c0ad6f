"""Methods in closed form: their parameters follow from sums over samples, without a gradient."""

from typing import Any, ClassVar, Literal, Protocol

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

_BLOCK = 1024  # maps averaged at once


class ClosedFormSettings(NamedSettings):
    """Settings that every method in closed form has."""

    retention: Literal["each", "total"] = "each"
    """What the server keeps: the sums of each party, so that one can be taken out again (`fedunseen forget`), or their
    total alone, after which no one can tell what a party has sent."""
    removal_batch: int = Field(20, ge=1)
    """How many samples `fedunseen forget --samples` removes at once at least: an observer of the totals learns
    the sums of what is removed. Fewer need `--consent`."""
    clip_norm: float | None = Field(None, gt=0)
    """A party shortens samples to this length, and the server refuses sums that longer ones must have made: a bound on
    what samples that a party has made up can do. Unset: samples are taken as they are."""


class Release(Protocol):
    """What private sums are about (:class:`fedunseen.privacy.private_sums.Release`)."""

    @property
    def clip(self) -> float:
        """The length to which samples are shortened."""

    def nothing(self, sums: Params) -> Params:
        """Return sums with a place for how much noise they have."""

    def cleaned(self, sums: Params, seen: NDArray[np.int64]) -> Params:
        """Return sums that some samples could have, from noisy ones."""


class ClosedForm(Method):
    """A method whose :meth:`solve` needs the sums of its classes' samples and nothing else (:mod:`~.statistics`).

    A run merges sums; :meth:`fit_heads` makes the model. ``release`` bounds samples and treats the noise of private
    sums (None: exact sums). ``quantization`` makes features whole numbers (None: float64 sums).
    """

    shift_invariant: ClassVar[bool] = True
    scaling: ClassVar[tuple[Scaling, ...]] = ()
    frozen = True
    grows = True
    release: Release | None = None
    quantization: Quantization | None = None

    @property
    def clip_norm(self) -> float | None:
        """The length to which samples are shortened; None: none is."""
        return getattr(self.settings, "clip_norm", None) if self.release is None else self.release.clip

    def init(self, rng: np.random.Generator) -> Params:
        """Return the sums of no sample."""
        nothing = statistics.no_sums(self.width, self.space, self.quantization)
        return nothing if self.release is None else self.release.nothing(nothing)

    def statistics(self, inputs: Tensor | CodedRows, labels: Tensor) -> Params:
        """Return the sums of a party's samples; of frozen maps, those of their means over cells."""
        if isinstance(inputs, Tensor) and inputs.ndim > 2:
            inputs = torch.cat([self.backbone({}, part) for part in torch.split(inputs, _BLOCK)])
        sums = statistics.statistics(inputs, labels, self.space, self.clip_norm, self.quantization)
        return sums if self.release is None else self.release.nothing(sums)

    def solve(self, sums: Params) -> Params:
        """Return the model of added statistics, at the server."""
        raise TypeError(f"{type(self).__name__} must say how it is solved")

    def merged(self, sums: Params, more: Params) -> Params:
        """Return the statistics of two sets of samples together."""
        return statistics.add([sums, more], self.space, self.quantization)

    def extends(self, sums: Params) -> bool:
        """Return whether samples can be added to statistics exactly: integers without noise, of this class space."""
        exact = self.quantization is not None and self.release is None
        return exact and statistics.fits(sums, self.space, self.quantization)

    def expand_classes(self, params: Params) -> Params:
        """Return sums of an earlier version of the class space as sums of this one: a new class is one more row."""
        return statistics.expand_classes(params, self.space, self.quantization)

    def units(self, model: Params) -> dict[str, float]:
        """Return the settings that scale a model's scores: models that choose an offset together must have the same."""
        return {}

    def choice(self, model: Params) -> dict[str, str]:
        """Return which closed form the model is, where the method has a choice: ``form``."""
        return {}

    def quick(self, model: Params) -> "ClosedForm":
        """Return the method with the settings that its model has found, so that it solves others at once."""
        return self

    def left_out_scores(self, model: Params, sums: Params, inputs: Tensor, out: Tensor) -> Tensor:
        """Return the scores (n, T) of inputs (n, d) for the classes ``out`` (T,), which were left out of ``sums``."""
        return self.scores(self.solve(sums), inputs, self.semantics)[:, out]

    def validate_statistics(self, sums: Params) -> str:
        """Return why the statistics are infeasible, or ""."""
        return statistics.validate_statistics(sums, self.clip_norm, self.quantization)

    def fit_heads(
        self, params: Params, among: Candidates, seed: int, real: tuple[Tensor, Tensor] | None = None
    ) -> Params:
        """Return the model of merged sums; a model as it is."""
        if "square" not in params:
            return params
        if self.release is None and self.quantization is not None:
            statistics.check_capacity(int(params["count"].sum()), self.quantization)
        with statistics.few_threads(max(self.width, len(self.space.names))):
            if self.release is not None:
                return self.solve(self.release.cleaned(params, self.space.seen))
            return self.solve({**params, **statistics.dequantized(params, self.quantization)})

    def facts(self, params: Params) -> dict[str, Any]:
        """Return the digest of whole sums, and which share of features was clipped."""
        if self.quantization is None or "square" not in params or self.release is not None:
            return {}
        features = int(params["count"].sum()) * self.width
        rate = int(params["clipped"]) / max(1, features)
        return {"sums_sha256": statistics.sums_sha256(params, self.quantization), "clipped": rate}
