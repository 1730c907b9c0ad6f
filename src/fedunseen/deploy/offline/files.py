"""Signed files: a plan, a party's answer, a party's withdrawal.

A file is a first line, then one message of :mod:`~fedunseen.deploy.remote.wire`: a JSON header and
tensors. The header carries ``federation.json`` and a signature of the header and of the bytes that
follow it. No tensor is read before the signature is checked. Nothing is unpickled, and no file is
read that is larger than its reader expects.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen import __version__
from fedunseen.core.bounds import check_greeting
from fedunseen.core.errors import DataError, RefusedError
from fedunseen.core.files import check_ordinary, replacing
from fedunseen.core.parameters import Params
from fedunseen.core.party_names import COORDINATOR
from fedunseen.core.text import printable
from fedunseen.deploy.remote.wire import (
    WireError,
    join,
    own_fields,
    pack,
    read_instruction,
    read_tensors,
    split,
)
from fedunseen.deploy.secagg.enrolment import Enrolment
from fedunseen.deploy.secagg.ledger import ASKING
from fedunseen.deploy.secagg.plan import Plan
from fedunseen.deploy.secagg.primitives import SecAggError, canonical, digest, sign, verify
from fedunseen.strategies import Instruction

_FIRST = b"fedunseen file 2\n"
_PURPOSE = b"fedunseen file"
_LIMIT = 2**31  # bytes of a file whose plan is not known
_SPARE = 2**21  # bytes that a header and the names of tensors may take
_SECTIONS = ("method", "data", "strategy")  # of a plan's experiment, read before the whole is
_NAME = 200  # characters of a party's name or a digest
_NO_TENSORS = pack({})[split(pack({}))[1] :]
_FIELDS: dict[str, dict[str, type]] = {
    "plan": {
        "plan": dict, "k": int, "parties": list, "masked": bool, "elements": int, "hello": dict, "withdrawals": list,
    },
    "answer": {"party": str, "plan": str, "file": str, "k": int, "masked": bool},
    "withdrawal": {"party": str, "plans": list},
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Signed:
    """What a file says; its signature has been checked against the ``federation.json`` that it
    carries.
    """

    header: Mapping[str, Any]
    tensors: Params
    content: bytes
    enrolment: Enrolment
    id: bytes
    """What identifies this file, without its signature."""

    def __getitem__(self, key: str) -> Any:
        return self.header[key]

    @property
    def kind(self) -> str:
        """``plan``, ``answer`` or ``withdrawal``."""
        return str(self.header["kind"])

    @property
    def signer(self) -> str:
        """Who has signed it."""
        return signer_of(self.header)

    @cached_property
    def plan(self) -> Plan:
        """Of a plan: what the parties agree on."""
        return Plan.read(self.header["plan"])

    @property
    def greeting(self) -> Params:
        """Of a plan: the tensors that come with its greeting."""
        return {
            name: value for name, value in self.tensors.items() if not name.startswith("params/")
        }

    @property
    def instruction(self) -> Instruction:
        """Of a plan: what its sum depends on, nothing for a closed form."""
        return read_instruction(self.tensors, torch.device("cpu"))

    @property
    def adapts(self) -> bool:
        """Of a plan: its rounds adapt a model to unlabelled samples."""
        return bool(self.header["hello"].get("experiment", {}).get("data", {}).get("unlabelled"))

    @property
    def counts(self) -> bool:
        """Of a plan: it asks how sure models are of the parties' samples."""
        evaluation = self.header["hello"].get("experiment", {}).get("evaluation", {})
        return bool(evaluation.get("confidence") == ASKING)

    @property
    def limit(self) -> int:
        """Of a plan: how many bytes an answer may have."""
        return 8 * int(self.header["elements"]) + _SPARE


@dataclass(frozen=True)
class Form:
    """The files of a command.

    Attributes:
        command: that writes them.
        check: returns the kind of a file from its header, whose fields it has checked.
    """

    command: str
    check: Callable[[Mapping[str, Any]], str]


def signer_of(header: Mapping[str, Any]) -> str:
    """Return who signs a file: the party that its header names, or the coordinator."""
    return str(header.get("party", COORDINATOR))


def _id(header: Mapping[str, Any], body: bytes) -> bytes:
    unsigned = {key: value for key, value in header.items() if key != "signature"}
    return digest(_PURPOSE, canonical(unsigned), body)


def signed(
    kind: str, fields: Mapping[str, Any], tensors: Params, enrolment: Enrolment, private: bytes
) -> bytes:
    """Return the content of a file."""
    message = pack(
        {
            "kind": kind,
            "version": __version__,
            "federation": enrolment.text().decode(),
            **fields,
        },
        tensors,
    )
    header, first = split(message)
    body = message[first:]
    signature = sign(private, _PURPOSE + _id(header, body))
    return _FIRST + join({**header, "signature": signature}, body)


def withdrawals(plan: Signed, enrolment: Enrolment) -> dict[str, set[str]]:
    """Return name -> digests of the plans that a party has withdrawn from, by the withdrawals that
    a plan carries.
    """
    by_party: dict[str, set[str]] = {}
    for withdrawal in plan["withdrawals"]:
        try:
            kind = _checked(withdrawal)
        except (WireError, SecAggError) as error:
            raise RefusedError(
                f"the plan carries a damaged withdrawal ({error}): ask for a new plan"
            ) from None
        if kind != "withdrawal" or not enrolment.verify(
            withdrawal["party"], withdrawal["signature"], _PURPOSE + _id(withdrawal, _NO_TENSORS)
        ):
            raise RefusedError(
                "the plan carries a withdrawal that its party has not signed: ask for a new plan"
            )
        by_party.setdefault(withdrawal["party"], set()).update(withdrawal["plans"])
    return by_party


def write(path: Path, content: bytes) -> None:
    """Write a file whole, or not at all."""
    if path.exists() and (path.is_dir() or path.read_bytes() != content):
        raise DataError(f"{path} is there already: choose another --out")
    with replacing(path, follow=True) as temporary:
        temporary.write_bytes(content)


def read(
    path: Path, kind: str | None = None, limit: int = _LIMIT, form: Form | None = None
) -> Signed:
    """Read a file.

    Args:
        path: of the file.
        kind: that it must have; None: any.
        limit: bytes that it may have.
        form: of which command it is; None: of ``fedunseen offline``.

    Raises:
        RefusedError: it is missing, damaged, of another kind or version, or not signed by the one
            that it names.
    """
    form = form or _OFFLINE
    try:
        check_ordinary(path)
        if (size := path.stat().st_size) > limit:
            raise WireError(f"it has {size} bytes, and {limit} are the most")
        content = path.read_bytes()
    except OSError as error:
        raise RefusedError(
            f"{path} cannot be read ({error.strerror or error}): look at its name"
        ) from None
    except WireError as error:
        raise RefusedError(
            f"{path} is damaged, or no file of `{form.command}` ({error}): get it again"
        ) from None
    return read_content(content, path, kind, form)


def read_content(
    content: bytes, where: object, kind: str | None = None, form: Form | None = None
) -> Signed:
    """Read what a file holds; see :func:`read`.

    Args:
        content: of the file.
        where: what errors call it.
        kind: that it must have; None: any.
        form: of which command it is; None: of ``fedunseen offline``.
    """
    form = form or _OFFLINE
    try:
        if not content.startswith(_FIRST):
            other_version = content.startswith(_FIRST[:-2])
            raise WireError(
                "it was written by another version of fedunseen"
                if other_version
                else "its first line is missing"
            )
        message = content[len(_FIRST) :]
        header, first = split(message)
        body = message[first:]
        actual_kind = form.check(own_fields(header))
    except (WireError, SecAggError, ValueError) as error:
        raise RefusedError(
            f"{where} is damaged, or no file of `{form.command}` ({error}): get it again"
        ) from None
    signed = _signed(where, header, body, content)
    if kind not in (None, actual_kind):
        raise RefusedError(
            f"{where} is a file of the kind {actual_kind!r}, not {kind!r}: give another one"
        )
    return signed


def _signed(where: object, header: Mapping[str, Any], body: bytes, content: bytes) -> Signed:
    """Return a file's content, once its version and signature have been checked."""
    if header["version"] != __version__:
        raise RefusedError(
            f"{where} was written by fedunseen {printable(header['version'], 40)}, and this is "
            f"{__version__}: install the same version everywhere"
        )
    enrolment = Enrolment.read(header["federation"].encode(), f"federation.json in {where}")
    signer = signer_of(header)
    public = (
        enrolment.parties.get(signer, (b"",))[0] if "party" in header else enrolment.coordinator
    )
    id = _id(header, body)
    if len(public) != 32 or not verify(public, header["signature"], _PURPOSE + id):
        raise RefusedError(
            f"{where} is not signed by {printable(signer, 80)}, or was changed since: get it again"
        )
    try:
        tensors = read_tensors(header, body)
    except WireError as error:
        raise RefusedError(f"{where} is damaged ({error}): get it again") from None
    return Signed(own_fields(header), tensors, content, enrolment, id)


def checked_kind(header: Mapping[str, Any], fields: Mapping[str, Mapping[str, type]]) -> str:
    """Return the kind of a file, whose fields are of the types that ``fields`` gives for each
    kind.

    Raises:
        WireError: they are not.
    """
    kind = header.get("kind")
    if not isinstance(kind, str) or kind not in fields:
        raise WireError("its kind is unknown")
    common = {"kind": str, "version": str, "federation": str, "signature": str}
    wanted: dict[str, type] = {**common, **fields[kind]}
    if header.keys() != wanted.keys() or any(
        type(header[key]) is not kind for key, kind in wanted.items()
    ):
        raise WireError("its header lacks fields, or has unknown ones")
    return kind


def check_names(names: Sequence[object]) -> None:
    """Raise a WireError unless all are different texts of some length."""
    if not all(isinstance(name, str) and len(name) <= _NAME for name in names) or len(
        set(names)
    ) < len(names):
        raise WireError("a list in its header is damaged")


def _checked(header: Mapping[str, Any]) -> str:
    """Return the kind of a file, whose fields are of the right types."""
    kind = checked_kind(header, _FIELDS)
    check_names([*header.get("parties", ()), *header.get("plans", ())])
    if kind == "plan":
        fits = (
            0 <= header["k"] < Plan.read(header["plan"]).sums
            and 0 < header["elements"] < _LIMIT // 8
        )
        tree = header["hello"].get("experiment")
        sections = [tree.get(name) for name in _SECTIONS] if isinstance(tree, dict) else [None]
        fits = fits and all(isinstance(section, dict) for section in sections)
        if not fits or not all(
            isinstance(withdrawal, dict) for withdrawal in header["withdrawals"]
        ):
            raise WireError("its header is damaged")
        check_greeting(header["hello"])
    return kind


_OFFLINE = Form("fedunseen offline", _checked)


def sum_of_elements(answers: Mapping[str, Signed], length: int) -> NDArray[np.uint64]:
    """Return the sum (length,) of masked answers, modulo 2^64.

    Args:
        answers: party -> its answer.
        length: elements that the plan asks for.

    Raises:
        RefusedError: an answer holds something else than so many elements.
    """
    total = np.zeros(length, dtype=np.uint64)
    for name, answer in answers.items():
        elements = answer.tensors.get("elements")
        if (
            answer.tensors.keys() != {"elements"}
            or elements is None
            or elements.dtype != torch.int64
        ):
            raise RefusedError(
                f"the answer of {name} holds no masked elements: ask it for its file again"
            )
        if elements.shape != total.shape:
            raise RefusedError(
                f"the answer of {name} has another length than the plan: ask it for its file again"
            )
        total += elements.numpy().view(np.uint64)
    return total
