"""Numbers as ring elements modulo 2^64, which masks can hide and which add up exactly.

Three kinds of numbers are sent:

- ``whole``: an int64 of a closed form. One element, exact; the sum of all parties must fit int64.
- ``number``: of an update. One element in fixed point. Its step is the finest with which
  ``parties`` numbers as large as ``most`` do not wrap. Rounding moves each by at most half a step.
- ``sum``: a float64 of a closed form, or a loss. Two elements: the whole part up to 2^47, and the
  rest in steps of 2^-48. A number is off by at most 2^-49.

The last element is a check: the other elements times random ones derived from the sum's rho. It
adds up as they do, so that masks that do not cancel are detected but for about one time in 2^60.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.deploy.secagg.primitives import Elements, SecAggError, digest, stream_blocks

PARTIES = 2**10
"""The largest number of parties."""

LARGEST_SUM = 2.0**47
"""The bound of a number of two elements."""

_REST = 48  # bits of its rest
_BITS = 62  # of a sum of elements, beside the sign


class RangeError(SecAggError):
    """A number is out of range; the message names the field and not the number."""

    code = "refused-data"


@dataclass(frozen=True)
class Field:
    """A tensor of numbers of one kind."""

    name: str
    shape: tuple[int, ...]
    kind: Literal["whole", "number", "sum"]
    most: float = 0.0

    @property
    def elements(self) -> int:
        """The number of ring elements."""
        return math.prod(self.shape) * (2 if self.kind == "sum" else 1)


@dataclass(frozen=True)
class Layout:
    """Which numbers stand where in a vector of ring elements, the same at all parties and at the
    coordinator.

    Example:
        >>> layout = Layout((Field("w", (2,), "number", 8.0),), parties=3)
        >>> one, two = (layout.encode({"w": np.array(w)}, b"rho") for w in ([0.25, -1.0], [0.5, 3.0]))
        >>> layout.decode(one + two, 2, b"rho")["w"].tolist()
        [0.75, 2.0]
    """

    fields: Sequence[Field]
    parties: int

    def __post_init__(self) -> None:
        assert 0 < self.parties <= PARTIES

    @property
    def length(self) -> int:
        """The number of ring elements, the check included."""
        return sum(field.elements for field in self.fields) + 1

    def digest(self) -> str:
        """Return what identifies this layout."""
        rows = [
            f"{field.name} {list(field.shape)} {field.kind} {field.most!r}" for field in self.fields
        ]
        return digest(str(self.parties).encode(), *(row.encode() for row in rows)).hex()

    def step(self, field: Field) -> float:
        """Return the distance of two neighboring numbers: a power of two."""
        if field.kind == "sum":
            return 2.0**-_REST
        return (
            1.0
            if field.kind == "whole"
            else 2.0 ** (math.ceil(math.log2(field.most * self.parties)) - _BITS)
        )

    def encode(self, values: Mapping[str, Any], rho: bytes) -> Elements:
        """Return a party's numbers as ring elements."""
        elements = np.empty(self.length, dtype=np.uint64)
        start = 0
        for field in self.fields:
            stop = start + field.elements
            elements[start:stop] = self._encoded(field, _flat(values[field.name]))
            start = stop
        elements[-1] = self._check(elements[:-1], rho)
        return elements

    def decode(self, elements: Elements, count: int, rho: bytes) -> dict[str, NDArray[Any]]:
        """Return the sums, float64 (``whole``: int64), from the sum of the ring elements of
        ``count`` parties.
        """
        if elements.shape != (self.length,) or self._check(elements[:-1], rho) != elements[-1]:
            raise SecAggError(
                "the masks have not cancelled: a party has sent something else than the sum takes"
            )
        *parts, _ = np.split(
            elements, np.cumsum([field.elements for field in self.fields], dtype=np.int64)
        )
        return {
            field.name: self._decoded(field, part, count)
            for field, part in zip(self.fields, parts, strict=True)
        }

    def _encoded(self, field: Field, values: NDArray[Any]) -> Elements:
        assert values.size == math.prod(field.shape), field
        if field.kind == "whole":
            if not _largest(values) * self.parties < 2.0**63:
                raise RangeError(
                    f"{field.name!r} holds a whole number beyond the range of the masks"
                )
            return values.astype(np.int64).view(np.uint64)
        numbers = values.astype(np.float64)
        most = LARGEST_SUM if field.kind == "sum" else field.most
        if not _largest(numbers) <= most:  # also false for NaN
            raise RangeError(f"{field.name!r} holds a number beyond the range of the masks")
        if field.kind == "number":
            return np.rint(numbers / self.step(field)).astype(np.int64).view(np.uint64)
        whole = np.floor(numbers)
        rest = np.rint((numbers - whole) * 2.0**_REST)
        return np.concatenate([whole, rest]).astype(np.int64).view(np.uint64)

    def _decoded(self, field: Field, elements: Elements, count: int) -> NDArray[Any]:
        signed = elements.view(np.int64)
        if field.kind == "whole":
            return signed.reshape(field.shape)
        if field.kind == "sum":
            whole, rest = np.split(signed, 2)
            values = whole + rest * 2.0**-_REST
            most = LARGEST_SUM
        else:
            values = signed * self.step(field)
            most = field.most
        if not bool((np.abs(values) <= count * most * (1 + 1e-9)).all()):
            raise SecAggError(
                f"the sum of {field.name!r} is larger than {count} parties can make it: one of "
                "them lies"
            )
        return values.reshape(field.shape)

    def _check(self, elements: Elements, rho: bytes) -> np.uint64:
        total = 0
        key = digest(b"fedunseen check", rho)
        for place, factors in stream_blocks(key, len(elements)):
            total += int((elements[place] * (factors | np.uint64(1))).sum(dtype=np.uint64))
        return np.uint64(total % 2**64)


def _largest(values: NDArray[Any]) -> float:
    """Return the largest absolute value as a float, of NaN NaN; 0 where there is none."""
    return max(-float(values.min()), float(values.max())) if values.size else 0.0


def _flat(value: Any) -> NDArray[Any]:
    if isinstance(value, Tensor):
        value = value.detach().to("cpu")
        value = (value if not value.is_floating_point() else value.to(torch.float64)).numpy()
    return np.asarray(value).reshape(-1)
