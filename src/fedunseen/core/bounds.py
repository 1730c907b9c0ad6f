"""The bounds of each number that a coordinator chooses and a party computes with.

A party checks them before it computes anything (:func:`check_header`, :func:`check_statistics`,
:func:`check_model`). Settings have the same bounds, so that an honest coordinator is refused as it
reads its experiment.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field

from fedunseen.core.errors import RefusedError
from fedunseen.core.text import printable

if TYPE_CHECKING:  # settings are read before PyTorch is loaded
    from torch import Tensor

NOT_FINITE = "not-finite"
OUTSIDE = "out-of-bounds"
MALFORMED = "malformed"
"""The codes of refusals: NaN or infinity; beyond its bounds; of another type or shape."""

_TEXTS = (".name", ".prompt", ".label", "data.missing", "data.columns.values")
"""Ends of the names of settings that are texts, also where they read as numbers."""
_DEPTH = 16  # of lists and tables within each other in a header
_SHOWN = 60  # characters of a received name or value in a message


@dataclass(frozen=True)
class Bound:
    """The least and the greatest value of a number.

    Attributes:
        whole: it has no fraction.
        also: values outside the range that have a meaning of their own.
        words: texts that may stand in place of the number.
    """

    least: float
    most: float
    whole: bool = False
    also: tuple[float, ...] = ()
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the range as users read it."""
        parts = [f"{_text(self.least)} to {_text(self.most)}", *map(_text, self.also), *self.words]
        return " or ".join(parts)

    def holds(self, value: float) -> bool:
        """Return whether the range has the value; it has no NaN."""
        return self.least <= value <= self.most or value in self.also


NUMBERS: Mapping[str, Bound] = {
    "client": Bound(0, 99_999, whole=True),
    "clients": Bound(1, 100_000, whole=True),
    "shape": Bound(1, 2**24, whole=True),
    "validation": Bound(0, 2**16 - 1, whole=True),
    "round": Bound(0, 999_999, whole=True),
    "after": Bound(-1, 999_999, whole=True),
    "k": Bound(0, 999_999, whole=True),
    "attempt": Bound(0, 2**53, whole=True),
    "privacy.clip": Bound(1e-6, 1e6),
    "privacy.noise": Bound(1e-6, 1e4),
    "privacy.epsilon": Bound(1e-4, 1e4),
    "privacy.delta": Bound(1e-15, 0.5),
    "privacy.range": Bound(1e-6, 2.0**20),
    "strategy.rounds": Bound(1, 1_000_000, whole=True),
    "strategy.local_epochs": Bound(1, 10_000, whole=True),
    "strategy.personal_epochs": Bound(1, 10_000, whole=True),
    "strategy.head_epochs": Bound(1, 10_000, whole=True),
    "method.batch_size": Bound(1, 100_000, whole=True),
    "data.quantization": Bound(2, 16, whole=True, words=("none",)),
    "data.quantization_range": Bound(1e-3, 1e6),
    "data.kernel_features": Bound(16, 4096, whole=True),
    "data.bounds": Bound(-1e19, 1e19),  # a range of both fits the statistics below
    "run.seed": Bound(0, 2**63 - 1, whole=True),
}
"""Of a header and of the experiment in it; a list's name is that of its items."""

ANY_SETTING = Bound(-1_000_000, 1_000_000, whole=True)
"""Of all other whole numbers of an experiment."""
ANY_WHOLE = Bound(-(2**53), 2**53, whole=True)
ANY = Bound(-1e12, 1e12)
"""Of all other numbers of a header, without and with a fraction."""

LENGTHS: Mapping[str, int] = {"names": 100_000, "removing": 100_000, "shape": 4}
ANY_LENGTH = 2**16
"""Items of a list or table of a header, and of all others."""

TEXT = 10_000
"""Characters of a text or a key of a header: a party writes some of them to its files and logs."""


@dataclass(frozen=True)
class TensorBound:
    """The bound of a tensor's numbers, and the tensor's type and shape.

    Attributes:
        single: it may hold one number for all features.
        each: it may hold one number for each feature.
        kernel: it may hold one for each feature of a kernel, or a row of them for each feature.
    """

    bound: Bound
    single: bool = False
    each: bool = True
    kernel: bool = False


_VALUE = Bound(-1e20, 1e20)
_UNIT = Bound(1e-20, 1e20, also=(math.inf,))
STATISTICS: Mapping[str, TensorBound] = {
    "N.mean": TensorBound(_VALUE),
    "N.min": TensorBound(_VALUE),
    "N.deviation": TensorBound(_UNIT),
    "N.range": TensorBound(_UNIT),
    "N.phases": TensorBound(Bound(0, 6.2832), each=False, kernel=True),
    "N.frequencies": TensorBound(_VALUE, each=False, kernel=True),
    "quantize.bits": TensorBound(Bound(2, 16, whole=True), single=True, each=False),
    "quantize.step": TensorBound(Bound(1e-20, 1e20, also=(0.0,)), single=True),
    "quantize.offset": TensorBound(_VALUE, single=True),
}
"""Of the tensors that features are scaled with, float32; N counts the scalings.

A deviation or range of infinity makes a constant column 0, and so does a step of 0: such a column
shows nothing of a sample.
"""

SEMANTICS = _VALUE
"""Of the descriptions of classes, (classes, attributes)."""

MODEL = Bound(-1e15, 1e15)
"""Of a model's parameters and of what else an instruction brings: all that has a fraction."""

_SECTIONS = ("data", "engine", "method")
"""Of a greeting's experiment: those that a party reads before the experiment is checked."""
_KINDS: Mapping[type, str] = {list: "a list", Mapping: "a table", str: "a text"}

_STEP = re.compile(r"^[0-9]{1,2}\.")
_RUN = re.compile("[0-9a-f]{16}")  # the name of a run, and of the folder with its states


def limits(name: str) -> Any:
    """Return the bounds of a setting, as the metadata of its annotation."""
    return Field(ge=NUMBERS[name].least, le=NUMBERS[name].most)


def check_header(header: Mapping[str, Any]) -> None:
    """Check every number of a header at any depth, and the length of every list, table and text.

    Raises:
        RefusedError: code ``not-finite``, ``out-of-bounds`` or ``malformed``.
    """
    for key, value in header.items():
        if key == "experiment" and isinstance(value, Mapping):
            for section, content in value.items():
                _check(str(section), content, 1, setting=True)
        else:
            _check(str(key), value, 0)


def check_greeting(header: Mapping[str, Any]) -> None:
    """Check the numbers of a coordinator's greeting, and that its parts are of the kinds that are
    read.

    Raises:
        RefusedError: as :func:`check_header`.
    """
    check_header(header)
    parts: dict[str, tuple[object, type]] = {"shape": (header.get("shape"), list)}
    if "growing" not in header:
        parts["space"] = (header.get("space"), Mapping)
    experiment = header.get("experiment")
    if isinstance(experiment, Mapping):
        sections = {**dict.fromkeys(_SECTIONS), **experiment}
        parts |= {
            f"experiment.{name}": (content, Mapping)
            for name, content in sections.items()
            if name != "name"
        }
        method = experiment.get("method")
        name = method.get("name") if isinstance(method, Mapping) else ""
        parts["experiment.method.name"] = (name, str)
    for place, (value, kind) in parts.items():
        if not isinstance(value, kind):
            raise _refused(place, value, f"{_KINDS[kind]} is needed", MALFORMED)


def check_run(header: Mapping[str, Any]) -> None:
    """Check the name of a greeting's run, of which a party makes a folder and lines of its history.

    Raises:
        RefusedError: code ``refused-message``.
    """
    run = header.get("run")
    if not isinstance(run, str) or not _RUN.fullmatch(run):
        raise RefusedError(
            "the coordinator's greeting names no run: start it again with `fedunseen host`",
            "refused-message",
        )


def _check(name: str, value: object, depth: int, setting: bool = False) -> None:
    bound = NUMBERS.get(name)
    if len(name) > TEXT or (isinstance(value, str) and len(value) > TEXT):
        raise _refused(name, "a text", f"{TEXT:,} characters are the most", OUTSIDE)
    # most values are texts, of which the second question takes the longest
    if not isinstance(value, str) and isinstance(value, (list, tuple, Mapping)):
        _check_length(name, value, depth, setting)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        default_bound = ANY_SETTING if setting else ANY_WHOLE
        check_number(name, value, bound or (default_bound if isinstance(value, int) else ANY))
    elif bound is not None and value is not None and value not in bound.words:
        raise _refused(name, value, f"a number is needed, {bound}", MALFORMED)
    elif setting and isinstance(value, str) and _reads_as_number(name, value):
        raise _refused(name, value, "a number is needed, not a text", MALFORMED)


def _check_length(name: str, value: Any, depth: int, setting: bool) -> None:
    """Check a list or a table, its length before its items."""
    most = LENGTHS.get(name, ANY_LENGTH)
    if len(value) > most:
        raise _refused(name, f"{len(value)} items", f"{most:,} are the most", OUTSIDE)
    if depth == _DEPTH:
        raise _refused(name, "a list", "lists are nested too deeply", MALFORMED)
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check(f"{name}.{key}", item, depth + 1, setting)
    else:
        for item in value:
            _check(name, item, depth + 1, setting)


def _reads_as_number(name: str, text: str) -> bool:
    """Return whether a setting would become a number, which the text hides from the bounds."""
    if name.endswith(_TEXTS):
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_number(name: str, value: float, bound: Bound) -> None:
    """Refuse a number beyond its bounds; errors as for :func:`check_header`."""
    if value in bound.also:
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise _refused(name, value, f"a finite number is needed, {bound}", NOT_FINITE)
    if not bound.holds(value):
        raise _refused(name, value, f"a party takes {bound}", OUTSIDE)
    if bound.whole and value != int(value):
        raise _refused(name, value, "a whole number is needed", MALFORMED)


def check_statistics(statistics: Mapping[str, Tensor], shape: object, semantics: str) -> None:
    """Check the tensors of a greeting; errors as for :func:`check_header`.

    Args:
        statistics: what features are scaled with, by name.
        shape: of a sample, as the header says.
        semantics: the name of the tensor (classes, attributes) that describes classes.
    """
    for name, value in statistics.items():
        if name == semantics:
            if value.ndim != 2 or not value.is_floating_point() or len(value) > ANY_LENGTH:
                raise _refused(name, _form(value), "a table of real numbers is needed", MALFORMED)
            _check_tensor(name, value, SEMANTICS)
            continue
        row = STATISTICS.get(_STEP.sub("N.", name))
        if row is None:
            raise _refused(name, _form(value), "a party takes no such tensor", MALFORMED)
        allowed = [[1]] if row.single else []
        columns = shape if isinstance(shape, list) and len(shape) == 1 else []
        allowed += [columns] if row.each else []
        if row.kernel and value.ndim and NUMBERS["data.kernel_features"].holds(value.shape[-1]):
            allowed += [[value.shape[-1]], [*columns, value.shape[-1]]]
        if str(value.dtype) != "torch.float32" or list(value.shape) not in allowed:
            raise _refused(name, _form(value), "a float32 for each feature is needed", MALFORMED)
        _check_tensor(name, value, row.bound)


def check_model(tensors: Mapping[str, Tensor]) -> None:
    """Check the tensors of an instruction; errors as for :func:`check_header`."""
    for name, value in tensors.items():
        if value.is_complex():
            raise _refused(name, _form(value), "real numbers are needed", MALFORMED)
        if value.is_floating_point():
            _check_tensor(name, value, MODEL)


def _check_tensor(name: str, value: Tensor, bound: Bound) -> None:
    numbers = value.detach().double()
    fits = (numbers >= bound.least) & (numbers <= bound.most)
    for exception in bound.also:
        fits |= numbers == exception
    if bound.whole:
        fits &= numbers == numbers.round()
    if not bool(fits.all()):
        wrong = numbers[~fits]
        strange = wrong[~wrong.isfinite()]
        check_number(name, float((strange if len(strange) else wrong)[0]), bound)


def _form(value: Tensor) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}".removeprefix("torch.")


def _text(value: float) -> str:
    """Return a bound as it is written: 10,000 or 1e-06."""
    whole = math.isfinite(value) and value == int(value)
    return f"{int(value):,}" if whole and abs(value) < 1e9 else f"{value:g}"


def _refused(name: str, value: object, why: str, code: str) -> RefusedError:
    shown = value if isinstance(value, float) else str(value)
    shown = f"{shown:g}" if isinstance(shown, float) else shown
    name, shown = (printable(text, _SHOWN) for text in (name, shown))
    return RefusedError(
        f"the coordinator sends {name} = {shown}, and {why}: ask it to correct that", code
    )
