"""The messages between a coordinator and its parties: a header in JSON and tensors in safetensors,
in one piece.

    4 bytes: the header's length, big-endian · the header · safetensors

Nothing is unpickled, and nothing that arrives is believed: a reply is checked against what was
asked for.
"""

import json
import math
import re
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from fedunseen.core.files import check_tensor_header, parse_json
from fedunseen.core.parameters import Params, finite, fits_int32, size_in_bytes, under, within
from fedunseen.core.text import printable
from fedunseen.data.names import is_visible
from fedunseen.deploy.remote.link import HEADER, LENGTH, Content, Spooled
from fedunseen.deploy.remote.refusals import DATA, LEFT, STORAGE, described
from fedunseen.strategies import Instruction, Reply

PROTOCOL = 2
"""The version of the messages; coordinator and party must have the same. It grows with each change
of what travels, as a test demands.
"""

SEMANTICS = "space/semantics"
"""The tensor that describes the classes of a class space that grows."""

PLAN_BEFORE = "plan_before"
"""The key of a greeting that names the plan of the run from which it removes samples."""

SUMS = "sums_sha256"
"""The digest of whole sums in a run's result, which every party gets to compare."""

_SAME = "same"  # header key: name -> name of the same tensor, which travels once
_WIDE = "int64"  # header key: names of int64 tensors that travel in 32 bits
_NAMES = 2**22  # bytes that the names, types and shapes of a message's tensors may have
_ALIASES = 8  # names that one tensor may have beside its own: each is hashed and checked again
_CLASSES_SENT = 2**26  # bytes of what a party says of its classes: 1,000 of 8,000 attributes
_BROUGHT = 1000  # classes that a party may bring
_BROUGHT_NAMES = 2**17  # bytes of their names in a greeting
_SPARE = 2**16  # bytes that the names of tensors may take beside their numbers
# how many losses or notes a reply may tell, and how much of a name is shown
_ENTRIES = 256
_NAME = 200
_WARNINGS = 20  # warnings that a farewell may tell
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}")  # a name of a loss, a note or a parameter


class WireError(Exception):
    """What arrived is not what was asked for; the message says what is wrong with it.

    Attributes:
        code: what a party sends that refuses it.
    """

    code = "refused-message"


class NotFiniteError(WireError):
    """It has the right form, and numbers that are not finite: training diverged there, or someone
    is malicious.
    """


class PartyError(WireError):
    """The party says that it could not do what it was asked for."""

    final = False
    """It may depend on the party's samples: it would refuse again, and leave after many times."""
    full = False
    """Its disk is full: it may answer once there is room."""


@dataclass(frozen=True, eq=False)
class Body:
    """The tensors of messages that differ in their headers alone.

    Attributes:
        tensors: what travels.
        shared: what a header says of how.
        content: their bytes.
    """

    tensors: Mapping[str, Tensor]
    shared: Mapping[str, Any]
    content: memoryview


def pack(header: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> bytes:
    """Return one message. int64 tensors travel in 32 bits where their numbers fit, and arrive as
    int64.
    """
    first: dict[int, str] = {}  # a tensor that has two names travels once
    same: dict[str, str] = {}
    wide: list[str] = []
    body: Params = {}
    storages: set[int] = set()
    for name, value in (tensors or {}).items():
        if id(value) in first:
            same[name] = first[id(value)]
            continue
        first[id(value)] = name
        kept = value.detach().cpu().contiguous()
        if fits_int32(kept):
            kept = kept.to(torch.int32)
            wide.append(name)
        place = kept.untyped_storage().data_ptr()
        body[name] = (
            kept.clone() if place in storages else kept
        )  # safetensors refuses views of the same numbers
        storages.add(place)
    shared = {**({_SAME: same} if same else {}), **({_WIDE: wide} if wide else {})}
    return join({**header, **shared}, save(body))


def join(header: Mapping[str, Any], body: bytes) -> bytes:
    """Return a message from its header and the bytes of its tensors; :func:`split` takes it
    apart.
    """
    text = json.dumps(header).encode()
    return struct.pack(">I", len(text)) + text + body


def split(message: Content, limit: int | None = None) -> tuple[dict[str, Any], int]:
    """Return a message's header, and at which byte its tensors begin; none is read."""
    size = len(message)
    if limit is not None and size > limit:
        raise WireError(f"it has {size} bytes, more than the {limit} that were asked for")
    if size < LENGTH:
        raise WireError("it is cut short")
    start = message.first() if isinstance(message, Spooled) else message
    (length,) = struct.unpack(">I", start[:LENGTH])
    if length > min(HEADER, size - LENGTH):
        raise WireError("its header is cut short or too long")
    try:
        header = parse_json(start[LENGTH : LENGTH + length])
    except ValueError as error:
        raise WireError(f"it cannot be read ({error})") from None
    if not isinstance(header, dict):
        raise WireError("its header is not a table")
    return header, LENGTH + length


def own_fields(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return a header without what it says of the tensors' format."""
    return {key: value for key, value in header.items() if key not in (_SAME, _WIDE)}


def read_tensors(header: Mapping[str, Any], body: bytes | Path) -> Params:
    """Return a message's tensors, each converted once; the names of a header are checked first.

    Those of a file stay there until their numbers are asked for, also where it is removed.
    """
    wide = header.get(_WIDE, [])
    same = header.get(_SAME, {})
    if not isinstance(wide, list) or not isinstance(same, dict):
        raise WireError("its header names tensors that are not there")
    names = [*wide, *same.values()]
    if not all(isinstance(name, str) for name in names):
        raise WireError("its header names tensors that are not there")
    if len(set(wide)) < len(wide) or max(Counter(same.values()).values(), default=0) > _ALIASES:
        raise WireError("its header names a tensor too often")
    try:
        if isinstance(body, bytes) and int.from_bytes(body[:8], "little") > _NAMES:
            raise WireError("the names of its tensors are too long")
        check_tensor_header(body)
        if isinstance(body, Path):
            with safe_open(body, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        else:
            tensors = load(body)
    except (ValueError, SafetensorError) as error:  # safetensors repeats what it cannot read
        raise WireError(f"it cannot be read ({printable(error)})") from None
    if not tensors.keys() >= set(names) or tensors.keys() & same.keys():
        raise WireError("its header names tensors that are not there")
    if any(tensors[name].dtype != torch.int32 for name in wide):
        raise WireError("its header names tensors that are not there")
    tensors |= {name: tensors[name].to(torch.int64) for name in wide}
    return tensors | {name: tensors[source] for name, source in same.items()}


def unpack(message: Content, limit: int | None = None) -> tuple[dict[str, Any], Params]:
    """Take a message apart."""
    header, first = split(message, limit)
    if isinstance(message, Spooled):
        if int.from_bytes(message.first()[first:], "little") > _NAMES:
            raise WireError("the names of its tensors are too long")
        return own_fields(header), read_tensors(header, message.tensors)
    return own_fields(header), read_tensors(header, message[first:])


SILENT = "it has not answered"
"""What is said of a party that has sent nothing, not even a refusal."""


def unpack_answer(answer: Content | None, limit: int | None) -> tuple[dict[str, Any], Params]:
    """Take a party's answer apart; raises WireError if there is none, PartyError if it is a
    :func:`failure`.
    """
    if answer is None:
        raise WireError(SILENT)
    header, tensors = unpack(answer, limit)
    if "error" in header:
        error = PartyError(described(header["error"], printable(header.get("text", ""))))
        error.final = header["error"] in (DATA, LEFT)
        error.full = header["error"] == STORAGE
        raise error
    return header, tensors


def failure(code: str, text: str = "") -> bytes:
    """Return the answer of a party that refuses: a code of ``REFUSALS``, and in clear its
    reason.
    """
    return pack({"error": code, **({"text": text[:1000]} if text else {})})


def fields(message: bytes) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the header of an own message and the names of its tensors, without their numbers."""
    header, first = split(message)
    length = int.from_bytes(message[first : first + 8], "little")
    names = json.loads(message[first + 8 : first + 8 + length])
    tensor_names = (name for name in names if name != "__metadata__")
    return own_fields(header), (*tensor_names, *header.get(_SAME, {}))


def is_failure(answer: bytes) -> bool:
    """Return whether a party's own answer is a :func:`failure`."""
    return answer.startswith(b'{"error"', LENGTH)


def read_holdings(
    answer: Content, announced: Mapping[str, Any], largest: float
) -> tuple[int, int, tuple[str, ...], dict[str, NDArray[np.float64]]]:
    """Read what a party says it holds where the class space grows.

    Args:
        answer: to the greeting.
        announced: the class space in the greeting.
        largest: absolute value of a number that describes a class which the party brings.
    """
    header, tensors = unpack_answer(answer, _CLASSES_SENT)
    held = header.get("held")
    brings = header.get("brings")
    samples = header.get("samples")
    for names in (held, brings):
        if not isinstance(names, list) or not all(
            isinstance(name, str) and 0 < len(name) <= _NAME for name in names
        ):
            raise WireError("it does not say which classes it holds")
    assert isinstance(held, list)
    assert isinstance(brings, list)
    class_names = set(announced["classes"])
    tests = set(announced["tested"])
    new = [name for name in held if name not in class_names]
    if (
        not held
        or len(set(held)) < len(held)
        or brings != new
        or any(name != name.strip() for name in new)
    ):
        raise WireError("it does not say which classes it holds")
    if (
        not isinstance(samples, int)
        or isinstance(samples, bool)
        or not len(held) <= samples < 2**48
    ):
        raise WireError(
            f"it says that it holds {printable(samples, 40)} samples of {len(held)} classes"
        )
    if tested := [name for name in held if name in tests]:
        raise WireError(
            f"it holds samples of {tested[0]!r}, which is tested as a class that no one holds"
        )
    if hidden := [name for name in new if not is_visible(name)]:
        raise WireError(f"it brings the class {hidden[0]!a}, whose name has invisible characters")
    if new and not announced["open"]:
        raise WireError(
            f"it brings the class {printable(new[0], 80)}, and this federation takes no new classes"
        )
    attributes = len(announced["attributes"])
    brought = _read_brought(new, tensors.get("brought"), attributes, largest) if new else {}
    return len(held), samples, tuple(held), brought


def _read_brought(
    new: list[str], rows: Tensor | None, attributes: int, largest: float
) -> dict[str, NDArray[np.float64]]:
    """Return the new classes of a party and their descriptions: each changes the run of all."""
    check_brought(new)
    if (
        rows is None
        or rows.dtype != torch.float64
        or rows.shape != (len(new), attributes)
        or not bool(torch.isfinite(rows).all())
    ):
        raise WireError(
            f"it brings {len(new)} classes without a description of {attributes} numbers for each"
        )
    if bool((outside := rows.abs() > largest).any()):
        c, column = outside.nonzero()[0].tolist()
        raise WireError(
            f"it describes the class {printable(new[c], 80)!r} with {rows[c, column]:g}, and the "
            f"descriptions of the coordinator allow numbers up to {largest:g}"
        )
    return dict(zip(new, rows.numpy(), strict=True))


def check_brought(new: Collection[str], verb: str = "brings") -> None:
    """Refuse more new classes than a party may bring, or longer names."""
    if len(new) > _BROUGHT or greeted_bytes(new) > _BROUGHT_NAMES:
        raise WireError(
            f"it {verb} {len(new):,} new classes with names of {greeted_bytes(new):,} bytes, and "
            f"{_BROUGHT:,} classes and {_BROUGHT_NAMES:,} bytes are the most"
        )


def greeted_bytes(names: Iterable[str]) -> int:
    """Return how many bytes classes take in the header of a greeting at most: a name and an id."""
    return sum(len(json.dumps(name)) + 2 + 8 for name in names)


def read_instruction(tensors: Params, device: torch.device) -> Instruction:
    """Return a client's instruction from a message's tensors."""
    on_device = {name: value.to(device) for name, value in tensors.items()}
    return Instruction(within("params/", on_device), within("extras/", on_device))


@dataclass(frozen=True, eq=False)
class Expected:
    """What a reply has to look like."""

    client: int
    round: int
    update: Params
    lengths: frozenset[str]
    classes: int
    notes: frozenset[str] = frozenset()
    counts: tuple[int, int] | None = None
    state: bool = False

    @property
    def limit(self) -> int | None:
        """Bytes that a reply may have at most; None where a state, of any size, comes along from
        our own process.
        """
        return (
            None
            if self.state
            else size_in_bytes(self.update) + HEADER + _SPARE + 256 * len(self.update)
        )


def read_reply(message: Content, expected: Expected) -> tuple[Reply, Params, float, bool]:
    """Read a reply, and refuse it if anything of it is not as it has to be."""
    header, tensors = unpack_answer(message, expected.limit)
    if (header.get("client"), header.get("round")) != (expected.client, expected.round):
        raise WireError("it answers another question")
    update = within("update/", tensors)
    state = within("state/", tensors)
    if (not expected.state and state) or len(update) + len(state) != len(tensors):
        raise WireError("it holds tensors that no one asked for")
    _check_update(update, expected.update)
    counts = read_counts(header, expected.classes)
    if expected.counts is not None and counts != expected.counts:
        said = "{1} samples of {0} classes".format(*expected.counts)
        raise WireError(
            f"it claims {counts[1]} samples of {counts[0]} classes, after the party has joined "
            f"with {said}"
        )
    terms, lengths, notes = (_numbers(header, key) for key in ("terms", "step_lengths", "notes"))
    if expected.lengths and (
        lengths.keys() != expected.lengths or any(value <= 0 for value in lengths.values())
    ):
        raise WireError("its step lengths are not those of the model")
    if notes and notes.keys() != expected.notes:
        raise WireError("it has fields that no one asked for")
    seconds = _number(header.get("seconds", 0.0), "seconds")
    reply = Reply(
        expected.client,
        update,
        counts[0],
        counts[1],
        terms,
        lengths if expected.lengths else {},
        notes,
    )
    return reply, state, seconds, header.get("forgot") is True


def reply_message(
    reply: Reply, state: Params | None, round: int, seconds: float, forgot: bool = False
) -> bytes:
    """Return a reply as a message: what :func:`read_reply` reads; ``state`` is sent along if it is
    not None.
    """
    header = {
        "client": reply.client,
        "round": round,
        "classes": reply.classes,
        "samples": reply.samples,
        "terms": reply.terms,
        "step_lengths": reply.step_lengths,
        "notes": reply.notes,
        "seconds": seconds,
        **({"forgot": True} if forgot else {}),
    }
    return pack(header, under("update/", dict(reply.update)) | under("state/", state or {}))


def farewell(
    result: Mapping[str, Any] | None = None, params: Mapping[str, Tensor] | None = None
) -> bytes:
    """Return the message that ends a run; with the merged model and its numbers, for parties to
    take home.
    """
    if result is None:
        return pack({"kind": "stop"})
    numbers = {
        name: value
        for name, value in result.items()
        if type(value) in (int, float) and math.isfinite(value)
    }
    words = {
        "selection": result["selection"],
        "warnings": list(result.get("warnings", ()))[:_WARNINGS],
        **({SUMS: result[SUMS]} if SUMS in result else {}),
    }
    return pack({"kind": "stop", "result": {**numbers, **words}}, params)


def read_farewell(header: Mapping[str, Any], params: Params, expected: Params) -> dict[str, Any]:
    """Return the numbers that a farewell brings, after a look at all that it brings."""
    result = header.get("result")
    if not isinstance(result, dict) or not isinstance(result.get("warnings"), list):
        raise WireError("its numbers are not a table")
    numbers = _numbers(
        {"numbers": {k: v for k, v in result.items() if k not in ("selection", "warnings", SUMS)}},
        "numbers",
    )
    if missing := {"rounds", "calibration_factor"} - numbers.keys():
        raise WireError(f"its numbers lack {min(missing)!r}")
    if result.get("selection") not in ("validation", "last", "best-on-test"):
        raise WireError(f"its numbers were chosen {printable(result.get('selection'), 40)!r}")
    sums = {SUMS: result[SUMS]} if SUMS in result else {}
    if sums and not re.fullmatch("[0-9a-f]{64}", str(sums[SUMS])):
        raise WireError(f"its {SUMS} is no digest")
    for name, value in expected.items():
        if name not in params:
            raise WireError(f"its model lacks {name!r}")
        if params[name].shape != value.shape:
            shape = tuple(params[name].shape)
            raise WireError(
                f"{name!r} of its model has the shape {shape}, not {tuple(value.shape)}"
            )
    if not finite(params):
        raise WireError("its model is not finite")
    warnings = [
        {key: printable(warning.get(key, "")) for key in ("what", "why", "remedy")}
        for warning in result["warnings"][:_WARNINGS]
        if isinstance(warning, dict)
    ]
    whole = {name: int(value) if value.is_integer() else value for name, value in numbers.items()}
    return {**whole, **sums, "selection": result["selection"], "warnings": warnings}


def _check_update(update: Params, wanted: Params) -> None:
    """Refuse an update of other names, shapes or types, or one that is not finite."""
    if missing := sorted(wanted.keys() - update.keys()):
        raise WireError(f"its update lacks {missing[0]!r}")
    if stray := sorted(update.keys() - wanted.keys()):
        raise WireError(
            f"its update holds {printable(stray[0], _NAME)!r}, which is not a shared parameter"
        )
    for name, value in wanted.items():
        tensor = update[name]
        if tensor.shape != value.shape:
            raise WireError(
                f"{name!r} of its update has the shape {tuple(tensor.shape)}, not "
                f"{tuple(value.shape)}"
            )
        if tensor.dtype != value.dtype:
            raise WireError(f"{name!r} of its update is of type {tensor.dtype}, not {value.dtype}")
    if not finite(update):
        raise NotFiniteError("the update is not finite")


def read_counts(header: Mapping[str, Any], classes: int) -> tuple[int, int]:
    """Return how many classes, of so many, and samples a party says it holds."""
    held = _count(header, "classes")
    samples = _count(header, "samples")
    if not held <= min(classes, samples):
        raise WireError(f"it claims {samples} samples of {held} classes, and there are {classes}")
    return held, samples


def _count(header: Mapping[str, Any], key: str) -> int:
    value = header.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**48:
        raise WireError(f"it claims {printable(value, 40)} {key}")
    return value


def _numbers(header: Mapping[str, Any], key: str) -> dict[str, float]:
    value = header.get(key, {})
    if not isinstance(value, dict) or (key != "step_lengths" and len(value) > _ENTRIES):
        raise WireError(f"its {key} are not a table of numbers")
    if stray := [name for name in value if not _WORD.fullmatch(name)]:
        raise WireError(f"its {key} have an impossible name, {printable(stray[0], 40)!r}")
    return {name: _number(number, f"{key} {name!r}") for name, number in value.items()}


def _number(value: object, name: str) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, int | float):
            if math.isfinite(value):
                return float(value)
            raise NotFiniteError(f"its {name} is not a finite number")
    except OverflowError:  # a whole number larger than any float
        pass
    raise WireError(f"its {name} is not a finite number")
