"""Sufficient statistics as an object: planned once, filled anywhere, added in any order.

A plan fixes the classes, the scaling and the quantization. Everybody who has it turns samples into
whole numbers and adds these up (:mod:`fedunseen.methods.closed_form.statistics`). So any partition,
tree or number of workers gives the same bits, and one :attr:`Statistics.sums_sha256`.

>>> import numpy as np
>>> from fedunseen import Statistics, ZeroShotClassifier
>>> X = np.array([[0.0, 0.1], [0.1, 0.0], [2.0, 2.1], [2.1, 2.0]])
>>> model = ZeroShotClassifier().fit(X, ["near", "near", "far", "far"])
>>> north = Statistics.plan(model).add(X[:2], ["near", "near"])
>>> south = Statistics.plan(model).add(X[2:], ["far", "far"])
>>> (north + south).sha256 == (south + north).sha256
True
>>> (north + south - south).solve().seen_mask.tolist()
[False, True]
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import ArgumentError, DataError, counted, unknown
from fedunseen.core.files import write_tensors
from fedunseen.core.model_file import read_tensor_file, refusing_damage
from fedunseen.core.parameters import Params, of_each_client, under, within
from fedunseen.data.names import class_name
from fedunseen.methods.base import Method
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.plans import (
    ConfidencePlan,
    Part,
    StatisticsPlan,
    UnlabelledPlan,
    exact_method,
    quantization_of,
)
from fedunseen.strategies.summed import forget as without_all

FORMAT = 1
"""The version of the file; a reader refuses a later one."""

OTHER_PLAN = "other-plan"
TWICE = "added-twice"
DAMAGED = "statistics-file"
NEWER = "statistics-version"

_KEY = "fedunseen statistics"
_REMEDY = "let whoever made it save it again"


class Statistics:
    """The sufficient statistics of samples, and marks of what was added.

    :meth:`plan` makes an empty one. What is added or subtracted twice is refused by its mark, a
    digest of the samples of one :meth:`add`.

    Attributes:
        planned: the :class:`StatisticsPlan`.
        params: ``count`` (C,), ``total`` (C, d), ``square`` (d (d + 1) / 2,) and ``clipped`` (1,)
            int64, and ``space`` (32,) bytes.
        marks: mark -> 1, or -1 for what was subtracted and is in another mark.
    """

    def __init__(
        self,
        planned: StatisticsPlan,
        params: Params | None = None,
        marks: Mapping[str, int] | None = None,
    ) -> None:
        self.planned = planned
        self.params = params or planned.nothing()
        self.marks = dict(marks or {})

    @staticmethod
    def plan(
        source: Any, sample: NDArray[Any] | None = None, part: Part = "labelled"
    ) -> Statistics:
        """Return empty statistics whose scaling and quantization are fixed.

        Args:
            source: a :class:`fedunseen.Model` or a fitted :class:`fedunseen.ZeroShotClassifier`,
                which have both; an :class:`fedunseen.Experiment`, from whose stated bounds, known
                ranges or training samples they follow; or statistics, whose plan is taken.
            sample: (n, d) features to which an experiment's scaling and quantization are fitted, in
                place of all its training samples.
            part: ``labelled`` samples; ``unlabelled`` ones, which adapt a model, and statistics of
                which plan its next iteration; or ``confidence``, answers of the model of statistics
                about the samples in them.

        Returns:
            Statistics of no sample; ``planned.source`` says what the scaling comes from.

        Raises:
            ArgumentError: ``source`` is none of these, or has no such part.
            ExperimentError: its statistics are not whole numbers that add up.
        """
        if not hasattr(source, "plan_statistics"):
            raise ArgumentError(
                f"Statistics.plan takes a Model, a fitted ZeroShotClassifier, an Experiment or "
                f"Statistics, and not {type(source).__name__}: give one of these"
            )
        if part == "labelled":
            return Statistics(source.plan_statistics(sample))
        if part == "unlabelled":
            if isinstance(source, Statistics) and isinstance(source.planned, UnlabelledPlan):
                return Statistics(source.planned.following(source.params))
            if isinstance(source, Statistics):
                return Statistics(UnlabelledPlan.of(source.solve()))
            model = getattr(source, "model_", source)
            if hasattr(model, "with_params"):
                return Statistics(UnlabelledPlan.of(model))
        if part == "confidence" and isinstance(source, Statistics):
            source.check_some()
            return Statistics(ConfidencePlan.of(source.planned, source.params))
        raise ArgumentError(
            f"part = {part!r} does not go with {type(source).__name__}: give a model or statistics "
            "for 'unlabelled', and statistics for 'confidence'"
        )

    def plan_statistics(self, sample: NDArray[Any] | None = None) -> StatisticsPlan:
        """Return the plan of these statistics."""
        if sample is not None:
            raise ArgumentError("sample: the scaling of statistics is fixed: leave the sample out")
        return self.planned

    @property
    def count(self) -> Tensor:
        """(C,) samples of each class."""
        return self.params["count"]

    @property
    def samples(self) -> int:
        """How many samples there are; of a confidence plan, how many answers."""
        return self.planned.samples(self.params)

    @property
    def sums_sha256(self) -> str:
        """The digest of the sums that a run reports under this name."""
        return self.planned.digest_of(self.params)

    @property
    def sha256(self) -> str:
        """The digest of plan and sums, without marks."""
        both = f"{self.planned.digest} {self.sums_sha256}"
        return hashlib.sha256(both.encode()).hexdigest()

    def add(self, X: Any, y: Any = None, mark: str = "") -> Self:
        """Add samples in place; either all of them or, where they are refused, none.

        Args:
            X: (n, d) features before scaling, an array or memory map.
            y: (n,) class names; None where the samples are unlabelled.
            mark: what the samples are known by; by default a digest of them in their order.

        Returns:
            These statistics.

        Raises:
            DataError: a class is unknown, shapes do not fit, a number is not finite, or the samples
                are in the statistics already (code ``added-twice``).
        """
        exact_method(self.planned.method)
        rows, labels = self._checked(X, y)
        if not len(rows):
            return self
        content = hashlib.sha256(self.planned.digest.encode() + labels.astype("<i8").tobytes())
        part = self.planned.summed(rows, labels, content)
        more = Statistics(self.planned, part, {mark or content.hexdigest()[:32]: 1})
        marks = self._marks_with(more, 1)
        self.planned.check_capacity(self.samples + more.samples)
        self.merge(more)
        self.marks = marks
        return self

    def merge(self, other: Statistics) -> None:
        """Add the sums of other samples in place, which are of the same plan and have no marks: a
        worker knows what it holds.
        """
        for name, value in other.params.items():
            if name != "space":
                self.params[name] += value

    def _checked(self, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return features (n, d) and class ids (n,)."""
        model = self.planned.model
        if model is None or self.planned.scaler is None:
            raise TypeError("statistics of a run take what its method takes")
        rows = np.asarray(X)
        names = np.asarray(y, dtype=object)
        if rows.ndim != 2 or rows.shape[1:] != model.sample_shape or rows.dtype.kind not in "fiub":
            raise DataError(
                f"X is {rows.dtype} of the shape {rows.shape}: give numbers (n, "
                f"{model.sample_shape[0]})"
            )
        if isinstance(self.planned, UnlabelledPlan):
            if y is not None:
                raise DataError("y: the plan is of unlabelled samples: leave the names out")
            return rows, np.full(len(rows), -1)
        if names.shape != (len(rows),):
            raise DataError(
                f"y has the shape {names.shape} for {counted(len(rows), 'sample')}: give one class "
                "name for each"
            )
        space = self.planned.method.space
        ids = {name: c for c, name in enumerate(space.names)}
        known = {name: ids.get(class_name(name), -1) for name in set(names.tolist())}
        for name, place in known.items():
            if place < 0:
                raise DataError("y: " + unknown("class", class_name(name), space.names))
        return rows, np.array([known[name] for name in names.tolist()], dtype=np.int64)

    def _marks_with(self, other: Statistics, sign: int) -> dict[str, int]:
        """Return the marks of a sum or a difference; refuse what would be there twice."""
        marks = Counter(self.marks)
        for mark, number in other.marks.items():
            marks[mark] += sign * number
            if abs(marks[mark]) > 1:
                done = "added to" if sign > 0 else "taken out of"
                raise DataError(
                    f"the samples with the mark {mark[:12]} were {done} these statistics before: "
                    "leave them out this time",
                    TWICE,
                )
        return {mark: number for mark, number in marks.items() if number}

    def check_same_plan(self, other: Statistics) -> None:
        """Raise a DataError (``other-plan``) where statistics do not add up."""
        mine = self.planned
        theirs = other.planned
        if mine is theirs or mine.digest == theirs.digest:
            return
        names = mine.parts | theirs.parts
        wrong = [name for name in names if mine.parts.get(name) != theirs.parts.get(name)]
        raise DataError(
            f"the statistics are of another plan, which differs in {', '.join(wrong)}: let all "
            "parties start from one plan (an empty Statistics that is saved and sent)",
            OTHER_PLAN,
        )

    def __add__(self, other: Statistics) -> Statistics:
        """Return the statistics of both, which share no samples.

        Raises:
            DataError: they are of another plan (``other-plan``), or hold the same samples
                (``added-twice``).
        """
        if not isinstance(other, Statistics):
            return NotImplemented
        self.check_same_plan(other)
        marks = self._marks_with(other, 1)
        self.planned.check_capacity(self.samples + other.samples)
        copies = {name: value.clone() for name, value in self.params.items()}
        total = Statistics(self.planned, copies, marks)
        total.merge(other)
        return total

    def __sub__(self, other: Statistics) -> Statistics:
        """Return the statistics without those of some samples, exactly.

        Raises:
            DataError: they are of another plan (``other-plan``), were subtracted before
                (``added-twice``), or no samples could have what is left (``never-part``).
        """
        if not isinstance(other, Statistics):
            return NotImplemented
        self.check_same_plan(other)
        marks = self._marks_with(other, -1)
        params = self.planned.difference(self.params, other.params)
        return Statistics(self.planned, params, marks)

    def __eq__(self, other: object) -> bool:
        """Say whether plan, sums and marks are the same."""
        if not isinstance(other, Statistics):
            return NotImplemented
        return self.sha256 == other.sha256 and self.marks == other.marks

    __hash__ = None  # type: ignore[assignment]  # they change in place

    def solve(self) -> Any:
        """Return the :class:`fedunseen.Model` of all samples; classes without any are unseen.

        The calibration offset is that of the model that was planned with, beside the method's own.

        Raises:
            DataError: there is no sample.
        """
        self.check_some()
        return self.planned.solved(self.params)

    def check_some(self) -> None:
        """Raise a DataError (``no-samples``) where there is no sample."""
        if not self.samples:
            raise DataError("there is no sample in the statistics: add some first", "no-samples")

    def save(self, path: str | Path) -> None:
        """Write plan, sums and marks to one safetensors file, whole or not at all; nothing is
        pickled.

        A mark is a digest of samples: who can guess all samples of one :meth:`add` can check the
        guess. The sums show more.
        """
        about, tensors = self.planned.content()
        planned = self.planned
        about |= {"part": planned.part, "source": planned.source, "prior": planned.prior}
        note = {
            "format": FORMAT,
            "sha256": self.sha256,
            "marks": self.marks,
            "plan": about,
        }
        tensors = under("plan/", tensors) | under("sums/", self.params)
        write_tensors(Path(path), tensors, {_KEY: json.dumps(note)}, follow=True)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read statistics that :meth:`save` wrote.

        Raises:
            DataError: the file is missing, damaged or of another kind (``statistics-file``), or a
                later version wrote it (``statistics-version``).
        """
        place = Path(path)
        about, tensors = read_tensor_file(place, (_KEY,), "statistics", FORMAT, (DAMAGED, NEWER))
        with refusing_damage(place, _REMEDY, DAMAGED):
            planned = StatisticsPlan.of_content(about["plan"], within("plan/", tensors))
            marks = {str(mark): int(number) for mark, number in about["marks"].items()}
            sums = within("sums/", tensors)
            planned.check(sums)
            read = cls(planned, sums, marks)
            if why := planned.validate(read.params):
                raise DataError(f"no samples can have its sums ({why}): {_REMEDY}", DAMAGED)
            if read.sha256 != about["sha256"]:
                raise DataError(f"its sums are not those that were saved: {_REMEDY}", DAMAGED)
        return read


def without_party(
    method: Method, server: Params, total: Params, client: int, part: Params | None = None
) -> tuple[Params, Params]:
    """Return the server's state and the total of all parties without samples of one party.

    What was fitted to samples beside the statistics stays: scalings, quantization, calibration.

    Args:
        method: made for the classes of the statistics.
        server: each party's statistics, under ``client/K/``, where they are kept.
        total: of all parties.
        client: the party, K.
        part: the statistics of some of its samples; None: all of them.

    Raises:
        FedUnseenError: the party's statistics are not kept, or it is the only one.
        DataError: no samples can have what would be left.
        ExperimentError: the statistics are not whole numbers, and ``part`` is given.
    """
    if part is None:
        return without_all(server, client)
    quantization_of(method)
    assert isinstance(method, ClosedForm)
    planned = StatisticsPlan(method)
    removed = Statistics(planned, part)
    remaining = Statistics(planned, total) - removed
    kept = of_each_client(server)
    if client in kept:
        rest = Statistics(planned, kept[client]) - removed
        if not rest.samples:
            return without_all(server, client)
        server = server | under(f"client/{client}/", rest.params)
    return server, remaining.params
