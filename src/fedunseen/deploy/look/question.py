"""What a first look asks: counts for class and column names that the coordinator's plan lists.

The counts are vectors of whole numbers, the same for every party, so that masks add them up. A
party coarsens them before anything leaves: each is rounded down to a multiple of its
``--min-samples``, so that no count below that is sent, and one sample rarely changes one.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params
from fedunseen.data.class_table import class_names
from fedunseen.data.names import composed, is_visible
from fedunseen.deploy.look.holdings import CELLS, KINDS, ColumnCounts, Holdings
from fedunseen.deploy.offline.files import Form, Signed, check_names, checked_kind, signed
from fedunseen.deploy.remote.wire import WireError
from fedunseen.deploy.secagg.enrolment import Enrolment
from fedunseen.deploy.secagg.primitives import digest, from_hex
from fedunseen.deploy.secagg.ring import Field, Layout
from fedunseen.experiment.class_descriptions import names_in

PLAN = "look-plan"
ANSWER = "look-answer"
MOST_NAMES = 10_000
"""Classes and columns that a plan asks for, at most: their counts take 25 MB."""
OWN_NAMES = 1_000
"""Further classes that a party gives, at most, and further columns."""
LIMIT = 2**25
"""Bytes of a file, at most."""
_ROOM = 2**18  # bytes of such names of a party; a header has up to 2**20, and names of a plan half
MOST = 2**31
"""Samples that a party may say it has."""
_FIELDS: dict[str, dict[str, type]] = {
    PLAN: {"parties": list, "masked": bool, "classes": list, "columns": list, "nonce": str},
    ANSWER: {
        "party": str, "plan": str, "masked": bool, "minimum": int, "classes": list, "columns": list,
    },
}  # fmt: skip
POOLS = ("others", "unlabelled", "only unlabelled")
"""Samples of classes that are not asked for, samples without a class, and whether there are no
others."""

Values = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Question:
    """The names that counts are of.

    Attributes:
        classes: names of classes.
        columns: names of a table's columns.
    """

    classes: Sequence[str]
    columns: Sequence[str]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Vector of counts -> its shape."""
        classes = len(self.classes)
        columns = len(self.columns)
        return {
            "holds": (classes,), "samples": (classes,), "pools": (len(POOLS),), "has": (columns,),
            "kinds": (columns, len(KINDS)), "cells": (columns, CELLS),
        }  # fmt: skip

    def layout(self, parties: int) -> Layout:
        """Return how the counts become ring elements under masks."""
        fields = [Field(name, shape, "whole") for name, shape in self.shapes.items()]
        return Layout(fields, parties)

    def values(self, holdings: Holdings, minimum: int) -> dict[str, NDArray[np.int64]]:
        """Return the counts that leave.

        Args:
            holdings: of the party.
            minimum: samples that a count must have; each count is a multiple of it.
        """
        shown = large_classes(holdings, minimum)
        samples = np.array([shown.get(composed(name), 0) for name in self.classes], dtype=np.int64)
        known = {composed(name) for name in self.classes}
        unlabelled = coarse(holdings.unlabelled, minimum)
        pools = [sum(count for name, count in shown.items() if name not in known), unlabelled]
        pools.append(int(unlabelled > 0 and not shown))
        counts = [holdings.columns.get(name) or ColumnCounts() for name in self.columns]
        kinds = [[count.kinds[kind] for kind in KINDS] for count in counts]
        shapes = self.shapes
        return {
            "holds": (samples > 0).astype(np.int64),
            "samples": samples,
            "pools": np.array(pools, dtype=np.int64),
            "has": np.array([name in holdings.columns for name in self.columns], dtype=np.int64),
            "kinds": coarse(np.array(kinds, dtype=np.int64), minimum).reshape(shapes["kinds"]),
            "cells": coarse(
                np.array([count.cells for count in counts], dtype=np.int64), minimum
            ).reshape(shapes["cells"]),
        }

    def checked(self, values: Params | Values, parties: int = 1) -> dict[str, NDArray[np.int64]]:
        """Return counts that so many parties can have.

        Raises:
            WireError: they are of another form, negative or too large.
        """
        if {name: tuple(value.shape) for name, value in values.items()} != self.shapes or any(
            value.dtype not in (np.int64, torch.int64) for value in values.values()
        ):
            raise WireError("its counts are of another form than the plan's")
        arrays = {name: np.asarray(value) for name, value in values.items()}
        flags = np.concatenate([arrays["holds"], arrays["has"], arrays["pools"][2:]])
        if (
            any(((array < 0) | (array > parties * MOST)).any() for array in arrays.values())
            or (flags > parties).any()
        ):
            raise WireError("it has counts that no samples can have")
        return arrays


def coarse(count: Any, minimum: int) -> Any:
    """Return counts, each rounded down to a multiple of a number.

    Example:
        >>> [coarse(count, 5) for count in (4, 5, 23)]
        [0, 5, 20]
    """
    return count // minimum * minimum


def large_classes(holdings: Holdings, minimum: int) -> dict[str, int]:
    """Return the classes of which a party has at least so many samples -> their coarse counts."""
    return {
        name: coarse(count, minimum) for name, count in holdings.samples.items() if count >= minimum
    }


def further(question: Question, holdings: Holdings, minimum: int) -> Question:
    """Return the names of a party that a plan does not list, but no class of few samples and no
    name with invisible characters.
    """
    known = {composed(name) for name in question.classes}
    asked = frozenset(question.columns)
    classes = [name for name in large_classes(holdings, minimum) if name not in known]
    columns = [name for name in holdings.columns if name not in asked]
    return Question(*([name for name in names if _fits(name)] for names in (classes, columns)))


def first_names(question: Question) -> Question:
    """Return the first names of a question for which an answer has room."""
    return Question(*(_first(names) for names in (question.classes, question.columns)))


def _first(names: Sequence[str]) -> Sequence[str]:
    """Return the first names, as many as an answer may give."""
    size = 0
    for i, name in enumerate(names):
        size += _bytes([name])
        if i == OWN_NAMES or size > _ROOM:
            return names[:i]
    return names


def _bytes(names: Iterable[str]) -> int:
    """Return how many bytes of a header names take."""
    return sum(len(json.dumps(name)) + 2 for name in names)


def _fits(name: str) -> bool:
    return 0 < len(name) <= 200 and is_visible(name)


def names_asked(
    classes: Path | None, columns: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a plan.

    Args:
        classes: a class table, or a file with a name a line.
        columns: names of columns.

    Raises:
        DataError: the file is missing, or has a name twice.
        ExperimentError: a name is empty, long, given twice or does not show; they are too many
            (code ``too-many-names``).
    """
    listed: list[str] = []
    if classes is not None:
        listed = list(names_in(classes) or class_names(classes, None))
    count = len(listed) + len(columns)
    if count > MOST_NAMES or _bytes([*listed, *columns]) > 2 * _ROOM:
        raise ExperimentError(
            f"the plan would ask for {count:,} classes and columns; {MOST_NAMES:,}, or "
            f"{2 * _ROOM:,} bytes of names, are the most: make several lists",
            "too-many-names",
        )
    for kind, names in (("class", listed), ("column", list(columns))):
        times = Counter(names)
        wrong = [name for name in names if not _fits(name) or times[name] > 1]
        if wrong:
            raise ExperimentError(
                f"the {kind} {wrong[0][:80]!r} is empty, longer than 200 characters, given twice, "
                "or has characters that do not show: correct it"
            )
    return tuple(listed), tuple(columns)


def question_of(plan: Signed) -> Question:
    """Return what a plan asks for."""
    return Question(tuple(plan["classes"]), tuple(plan["columns"]))


def rho_of(plan: Signed) -> bytes:
    """Return what binds masks and the check of a sum to a plan's file."""
    return digest(b"fedunseen look", plan.id)


def make_plan(
    enrolment: Enrolment, private: bytes, parties: Sequence[str], masked: bool, question: Question
) -> bytes:
    """Return the content of a plan, signed by the coordinator."""
    fields = {
        "parties": list(parties),
        "masked": masked,
        "classes": list(question.classes),
        "columns": list(question.columns),
        "nonce": secrets.token_hex(16),
    }
    return signed(PLAN, fields, {}, enrolment, private)


def _checked(header: Mapping[str, Any]) -> str:
    """Return the kind of a file of a look, whose fields are of the right types."""
    kind = checked_kind(header, _FIELDS)
    counts = len(header["classes"]), len(header["columns"])
    given, most = (sum(counts), MOST_NAMES) if kind == PLAN else (max(counts), OWN_NAMES)
    if given > most:
        raise WireError(f"it has {given:,} names of classes or columns, and {most:,} are the most")
    for names in (header["classes"], header["columns"], header.get("parties", [])):
        check_names(names)
        if not all(map(_fits, names)):
            raise WireError("a name in its header is empty, or has characters that do not show")
    if kind == PLAN:
        from_hex(header["nonce"], 16)
    elif not 1 <= header["minimum"] <= MOST:
        raise WireError("its header is damaged")
    return kind


FORM = Form("fedunseen look", _checked)
