"""What a party counts of its own samples, from the sums of all: each sample is held out once.

The samples are in the sums, so that a model would be too sure of them. In five turns a party takes
a fifth of its own samples out of the sums, exactly as it has put them in, and asks models without
some classes about them (:mod:`~.folds`). The others' samples stay in all models, but for counts and
totals of these classes.
"""

import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.confidence.confidence import log_lengths
from fedunseen.confidence.counted import UNIT, Scored, counted, no_counts, scales_for
from fedunseen.confidence.folds import (
    TURNS,
    answered,
    class_folds,
    most_samples,
    opened,
    read,
    statistics_of,
    without_samples,
)
from fedunseen.core.errors import DataError, RefusedError
from fedunseen.core.parameters import Params
from fedunseen.core.samples import Inputs, ScaledSamples
from fedunseen.encoders.backbone import Backbone
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.statistics import (
    Hidden,
    dequantized,
    few_threads,
    fits,
    hidden_features,
    no_sums,
    subtract,
)

_LEAST = 10  # samples of a class that are asked about, of many
_BLOCK = 4096


def question(sums: Params, scales: NDArray[np.float64], offset: float) -> Params:
    """Return what parties are sent: the sums of all, the scales, and the offset of seen classes."""
    numbers = {"scales": scales, "offset": np.array([offset])}
    return {**sums, **{name: torch.from_numpy(value) for name, value in numbers.items()}}


def scales_of(method: ClosedForm, model: Params, sums: Params) -> NDArray[np.float64]:
    """Return the scales to try, from the model's scores of class means."""
    space = method.space
    exact = {**sums, **dequantized(sums, method.quantization)}
    observed = torch.nonzero(exact["count"] > 0)[:, 0]
    means = (exact["total"][observed] / exact["count"][observed][:, None]).float()
    with torch.no_grad():
        scores = method.scores(model, means, method.semantics).double()
    scores = scores[:, torch.from_numpy(np.union1d(space.seen, space.unseen))]
    return scales_for(float(scores.std(1).median()))


def own_counts(
    method: ClosedForm,
    asked: Params,
    inputs: Inputs,
    labels: Tensor,
    own: NDArray[np.int64],
    seed: int,
) -> Params:
    """Return the counts of a party's answers (:mod:`~.counted`).

    Nothing is counted where no model follows, or the sums lack this party's samples.

    Args:
        method: with its settings and classes.
        asked: what :func:`question` returns.
        inputs: (N, d) samples as the method takes them.
        labels: (N,) their classes.
        own: (n,) the samples that are in the sums.
        seed: draws the folds of classes, the same at all parties.

    Raises:
        RefusedError: these are no sums of this class space (code ``"refused-sums"``).
    """
    sums = _received(method, asked)
    nothing = no_counts(len(method.space.names))
    if not len(own):
        return nothing
    marks = np.array(list(_marks(inputs, own)), dtype=object)
    order = np.argsort(marks, kind="stable")  # whoever has the samples has them in this order
    samples = _Samples(method, inputs, labels, own[order])
    whole = samples.statistics(np.ones(len(own), dtype=bool))
    others, why = _others(method, sums, whole)
    if why:  # a refusal would say something of the samples
        warnings.warn(
            f"the coordinator's sums lack this party's samples ({why}), so that it counts nothing",
            stacklevel=2,
        )
        return nothing
    sums = sums if bool(others["count"].any()) else whole
    counts = sums["count"].cpu().numpy()
    held = _Turns.of(marks[order], samples.classes, counts, method.min_samples)
    parts: list[list[Scored]] = []
    try:
        with torch.no_grad(), few_threads(method.width):
            quick = method.quick(method.of_sums(sums))
            for turn in range(TURNS):
                if (held.turn == turn).any():
                    parts.append(_scored(quick, sums, asked, samples, held, turn, seed))
    # the samples that are left are all but alike
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return nothing
    folds = [Scored.together(fold) for fold in zip(*parts, strict=True)]
    return counted(folds, len(method.space.names), method.min_samples) if folds else nothing


def _others(method: ClosedForm, sums: Params, whole: Params) -> tuple[Params, str]:
    """Return the sums of the other parties, and why they are those of no samples, or ""."""
    try:
        others = subtract(sums, whole, method.space, method.quantization)
    except DataError as error:
        return {}, str(error)
    return others, method.validate_statistics(others) if bool(others["count"].any()) else ""


def _scored(
    quick: ClosedForm,
    sums: Params,
    asked: Params,
    samples: "_Samples",
    held: "_Turns",
    turn: int,
    seed: int,
) -> list[Scored]:
    """Return what is counted of each fold's answers about the samples that a turn holds out.

    A fold's model lacks the party's samples of the classes that play unseen ones. Those of others
    are in its covariance.
    """
    method = samples.method
    out_now = held.turn == turn
    first = out_now & held.first
    kept = opened(subtract(sums, samples.statistics(out_now), method.space, method.quantization))
    candidates = np.flatnonzero(asked["count"].cpu().numpy() > 0)
    scales = asked["scales"].cpu().numpy()
    offset = float(asked["offset"])
    rows = samples.at(first)
    lengths = samples.lengths(first)
    labels = samples.classes[first]
    scored = []
    for out in class_folds(candidates, len(quick.space.unseen), seed):
        part = samples.statistics(np.isin(samples.classes, out) & ~out_now, matrix=True)
        fold = answered(quick, without_samples(method, kept, part), rows, labels, candidates, out)
        fold = replace(fold, lengths=lengths)
        scored.append(Scored.of(fold, labels, held.weights[first], scales, offset, quick.width))
    return scored


@dataclass(frozen=True, eq=False)
class _Samples:
    """A party's samples that are in the sums.

    Attributes:
        method: with its settings and classes.
        inputs: (N, d) as the method takes them.
        labels: (N,) their classes.
        own: (n,) which samples these are.
    """

    method: ClosedForm
    inputs: Inputs
    labels: Tensor
    own: NDArray[np.int64]

    @cached_property
    def classes(self) -> NDArray[np.int64]:
        """(n,) their classes."""
        return np.asarray(self.labels.cpu().numpy()[self.own])

    def statistics(self, mask: NDArray[np.bool_], matrix: bool = False) -> Params:
        """Return the statistics of some of them, (n,) bool, as they are part of the sums."""
        places = self.own[mask]
        return statistics_of(self.method, self.inputs, self.labels, places, self._hidden, matrix)

    def at(self, mask: NDArray[np.bool_]) -> Tensor:
        """Return some of them, (n,) bool."""
        return self.inputs[self._rows(self.own[mask])].cpu()

    def lengths(self, mask: NDArray[np.bool_]) -> NDArray[np.float64] | None:
        """Return the logarithms (m,) of the lengths of some of them, (n,) bool, before any scaling;
        None: only scaled ones are here.
        """
        if not isinstance(self.inputs, ScaledSamples):
            return None
        return log_lengths(self.inputs.rows[self.own[mask]])

    @cached_property
    def _hidden(self) -> Hidden | None:
        rows = self._rows(self.own)
        method = self.method
        samples = read(self.inputs, rows), self.labels[rows]
        classes = len(method.space.names)
        return hidden_features(*samples, classes, method.quantization, method.min_samples)

    def _rows(self, places: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(places).to(self.labels.device)


@dataclass(frozen=True, eq=False)
class _Turns:
    """When each sample of a party is held out.

    Attributes:
        turn: (n,) in which turn; -1: in none.
        first: (n,) bool, none before it is the same. Only such samples are asked about.
        weights: (n,) whole numbers, by which a class weighs the same as the others.
    """

    turn: NDArray[np.int64]
    first: NDArray[np.bool_]
    weights: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        marks: NDArray[Any],
        labels: NDArray[np.int64],
        counts: NDArray[np.int64],
        least: int,
    ) -> "_Turns":
        """Return the turns of samples in an order that depends on their content alone.

        Args:
            marks: (n,) what identifies each sample.
            labels: (n,) their classes.
            counts: (C,) samples of each class, of all parties.
            least: samples of a class that are asked about, or none is.
        """
        turn = np.full(len(labels), -1)
        first = np.zeros(len(labels), dtype=bool)
        weights = np.zeros(len(labels), dtype=np.int64)
        classes = np.unique(labels)
        most = max(_LEAST, most_samples(len(counts)) // len(classes))
        for c in classes:
            mine = np.flatnonzero(labels == c)
            kinds, places, which = np.unique(marks[mine], return_index=True, return_inverse=True)
            if len(kinds) < max(2, least):
                continue
            asked = min(most, len(kinds))
            turn[mine] = np.where(which < asked, which % TURNS, -1)
            first[mine[places[:asked]]] = True
            weights[mine] = round(UNIT * len(mine) / (float(counts[c]) * asked))
        return cls(turn, first, weights)


def _marks(inputs: Inputs, own: NDArray[np.int64]) -> Iterator[bytes]:
    """Yield what identifies each sample by its content before any scaling, which a coordinator
    chooses; one that another stands in for is a sample of its own.
    """
    for start in range(0, len(own), _BLOCK):
        some = own[start : start + _BLOCK]
        which = torch.from_numpy(some)
        if isinstance(inputs, ScaledSamples):
            rows = np.asarray(inputs.rows[some])
            numbers = inputs.repeated(which).tolist()
        else:
            rows = inputs[which].cpu().numpy()
            numbers = [0] * len(some)
        for row, number in zip(rows, numbers, strict=True):
            mark = hashlib.sha256(np.ascontiguousarray(row).data)
            mark.update(number.to_bytes(8, "little") if number else b"")
            yield mark.digest()


def _received(method: ClosedForm, asked: Params) -> Params:
    """Return the sums of a question, once it has the form of one."""
    form = question(no_sums(method.width, method.space, method.quantization), scales_for(1.0), 0.0)
    alike = asked.keys() == form.keys() and all(
        asked[name].shape == value.shape and asked[name].dtype == value.dtype
        for name, value in form.items()
    )
    sums = {name: value.cpu() for name, value in asked.items() if name not in ("scales", "offset")}
    vectors = type(method.backbone) is Backbone
    if not (alike and vectors and method.release is None):
        problem = "are no sums of these classes and features"
    elif not fits(sums, method.space, method.quantization):
        problem = "are of another class space"
    elif not bool((asked["scales"] > 0).all()):
        problem = "have a scale that is not positive"
    else:
        return sums
    raise RefusedError(
        f"the coordinator's sums {problem}, so that this party cannot say how sure models of them "
        "are: ask it to plan again with this version",
        "refused-sums",
    )
