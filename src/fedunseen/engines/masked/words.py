"""Numbers as whole numbers modulo 2^64, which masks can hide and which add up exactly.

A number is multiplied by a power of two and rounded; the sum of all parties' whole numbers must stay below 2^63, or it
would wrap. Three kinds of number travel:

- ``number``: of an update. One word: its step is the finest with which ``parties`` numbers as large as ``most`` do not
  wrap. Rounding moves each by at most half a step, so a sum of n by at most n/2 steps.
- ``sum``: of a method in closed form, a loss, a weight. Two words: the whole part, and the rest in steps of 2^-48. It
  may be as large as 2^47, whatever the others are, for up to 2^15 parties, and is off by at most 2^-49.
- ``whole``: of quantized sums in a method in closed form. One word, exactly.
- ``same``: a whole number that all parties have in common (the class space of a method in closed form). One word; the
  sum has to be as many times the own one as there are parties.

The last word is a check: the other words times random ones that the session fixes, modulo 2^64. It adds up as they do.
If masks do not cancel, because somebody has used those of another round or sent anything else than words and masks, the
sum of the checks is not the check of the sums (but for one time in 2^60 or so).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.engines.masked.primitives import MaskError, Words, digest, key_stream

__all__ = ["PARTIES", "Field", "Layout", "RangeError"]

PARTIES = 2**15
"""So many parties may take part at most."""

_WHOLE = 2.0**47  # what a number of two words stays below
_REST = 48  # bits of its rest
_BITS = 62  # of the sum of words, beside the sign


class RangeError(MaskError):
    """A number is beyond the range; the message names the field and not the number, so that it can be sent."""


@dataclass(frozen=True)
class Field:
    """A tensor of numbers of one kind.

    Attributes:
        name: of the tensor.
        shape: of it.
        kind: see the module.
        most: ``number``: how large one may be, in absolute value.
    """

    name: str
    shape: tuple[int, ...]
    kind: Literal["number", "sum", "whole", "same"]
    most: float = 0.0

    @property
    def words(self) -> int:
        """How many words it takes."""
        return math.prod(self.shape) * (2 if self.kind == "sum" else 1)


@dataclass(frozen=True)
class Layout:
    """Which numbers stand where in a vector of words: the same at all parties and at the coordinator.

    Attributes:
        fields: in their order.
        parties: how many may take part at most.

    Example:
        >>> layout = Layout((Field("w", (2,), "number", 8.0),), parties=3)
        >>> one, two = (layout.words({"w": np.array(w)}, b"session") for w in ([0.25, -1.0], [0.5, 3.0]))
        >>> layout.numbers(one + two, 2, b"session")["w"].tolist()
        [0.75, 2.0]
    """

    fields: Sequence[Field]
    parties: int

    def __post_init__(self) -> None:
        assert 0 < self.parties <= PARTIES

    @property
    def length(self) -> int:
        """Words of a vector, the check included."""
        return sum(field.words for field in self.fields) + 1

    def step(self, field: Field) -> float:
        """Return the distance of two neighbouring numbers: a power of two."""
        if field.kind == "sum":
            return 2.0**-_REST
        return (
            1.0 if field.kind in ("same", "whole") else 2.0 ** (math.ceil(math.log2(field.most * self.parties)) - _BITS)
        )

    def words(self, values: Mapping[str, Any], session: bytes) -> Words:
        """Return a party's numbers as words.

        Args:
            values: name -> tensor, array or number, of the shape of its field.
            session: what the check depends on.

        Raises:
            RangeError: a number is not finite, or beyond its range.
        """
        parts = [self._encoded(field, _flat(values[field.name])) for field in self.fields]
        found = np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint64)
        return np.append(found, self._check(found, session))

    def numbers(self, words: Words, count: int, session: bytes) -> dict[str, NDArray[Any]]:
        """Return sums of numbers, float64 (``same``, ``whole``: int64), from the sum of the words of ``count`` parties.

        Raises:
            MaskError: these are no sums of words: the masks have not cancelled, or a party has not kept to its range.
        """
        if words.shape != (self.length,) or self._check(words[:-1], session) != words[-1]:
            raise MaskError("the masks have not cancelled: a party has sent something else than what it was asked for")
        return {field.name: self._decoded(field, part, count) for field, part in self._parts(words)}

    def _parts(self, words: Words) -> Iterator[tuple[Field, Words]]:
        start = 0
        for field in self.fields:
            yield field, words[start : start + field.words]
            start += field.words

    def _encoded(self, field: Field, values: NDArray[Any]) -> Words:
        assert values.size == math.prod(field.shape), field
        if field.kind in ("same", "whole"):
            return values.astype(np.int64).view(np.uint64)
        numbers = values.astype(np.float64)
        most = _WHOLE if field.kind == "sum" else field.most
        if not bool((np.abs(numbers) <= most).all()):  # nor if one is not a number
            raise RangeError(f"{field.name!r} holds a number beyond the range of the masks")
        if field.kind == "number":
            return np.rint(numbers / self.step(field)).astype(np.int64).view(np.uint64)
        whole = np.floor(numbers)
        rest = np.rint((numbers - whole) * 2.0**_REST)
        return np.concatenate([whole, rest]).astype(np.int64).view(np.uint64)

    def _decoded(self, field: Field, words: Words, count: int) -> NDArray[Any]:
        signed = words.view(np.int64)
        if field.kind in ("same", "whole"):
            return signed.reshape(field.shape)
        if field.kind == "sum":
            whole, rest = np.split(signed, 2)
            found = whole + rest * 2.0**-_REST
            most = _WHOLE
        else:
            found, most = signed * self.step(field), field.most
        if not bool((np.abs(found) <= count * most * (1 + 1e-9)).all()):
            raise MaskError(f"the sum of {field.name!r} is larger than {count} parties can make it: one of them lies")
        return found.reshape(field.shape)

    def _check(self, words: Words, session: bytes) -> np.uint64:
        factors = key_stream(digest(b"fedunseen check", session), len(words)) | np.uint64(1)
        return np.uint64((words * factors).sum(dtype=np.uint64))


def _flat(value: Any) -> NDArray[Any]:
    if isinstance(value, Tensor):
        value = value.detach().to("cpu")
        value = (value if not value.is_floating_point() else value.to(torch.float64)).numpy()
    return np.asarray(value).reshape(-1)
