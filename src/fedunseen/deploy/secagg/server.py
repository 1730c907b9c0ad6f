"""The coordinator's side of a masked sum: it passes keys and encrypted shares on, adds up, and
removes the masks.

Anything that a party refuses, or that its reply shows, ends the attempt once the roster is fixed.
The parties whose fault it is are named, and are left out of the next attempt.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from fedunseen.core.errors import RefusedError
from fedunseen.core.files import parse_json, write_tensors
from fedunseen.deploy.secagg import party
from fedunseen.deploy.secagg.enrolment import Enrolment
from fedunseen.deploy.secagg.party import Message
from fedunseen.deploy.secagg.primitives import (
    Elements,
    SecAggError,
    apply_streams,
    digest,
    exchange_public,
    from_hex,
    unseal,
)
from fedunseen.deploy.secagg.sharing import SEED, restore

_TRIAL = secrets.token_bytes(32)


def grouped(why: Mapping[str, str]) -> list[str]:
    """Return a clause for each reason, with the parties it holds for.

    Example:
        >>> grouped({"north": "no answer", "south": "no answer"})
        ['; north, south: no answer']
    """
    reasons: dict[str, list[str]] = {}
    for name, text in sorted(why.items()):
        reasons.setdefault(text, []).append(name)
    return [f"; {', '.join(names)}: {text}" for text, names in reasons.items()]


class AttemptError(SecAggError):
    """An attempt at a sum is over, and nothing was opened."""

    def __init__(self, text: str, faulty: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.faulty = dict(faulty or {})


@dataclass(eq=False)
class MaskedTotal:
    """The total of all masked elements, which t parties can open. It is stored before the first is
    asked.
    """

    plan: str
    k: int
    rho: str
    threshold: int
    total: Elements
    seeds: Mapping[str, str]
    commitments: Mapping[str, Mapping[str, str]]
    extra: Sequence[str]
    replies: dict[str, Mapping[str, bytes]] = field(default_factory=dict)

    @property
    def roster(self) -> list[str]:
        """Whose elements are in the total."""
        return sorted(self.seeds)

    def ask_open(self) -> Message:
        """Return the request for all members of the roster."""
        return {"plan": self.plan, "k": self.k, "rho": self.rho}

    @property
    def enough(self) -> bool:
        """Whether enough parties have answered."""
        return len(self.replies) >= self.threshold

    def take_open(self, name: str, reply: Message) -> None:
        """Take a party's shares."""
        shares = reply.get("shares")
        if (
            reply.get("rho") != self.rho
            or not isinstance(shares, dict)
            or shares.keys() != self.seeds.keys()
        ):
            raise SecAggError(f"{name} has opened another roster than it was asked for")
        opened = {dealer: from_hex(share, SEED) for dealer, share in shares.items()}
        for dealer, share in opened.items():
            if self.commitments[dealer][name] != party.share_commitment(
                self.rho, dealer, name, share
            ):
                raise SecAggError(f"{name} has sent another share of {dealer} than it was dealt")
        self.replies[name] = opened

    def sum(self) -> Elements:
        """Return the sum of the parties' ring elements."""
        if not self.enough:
            raise SecAggError(
                f"{len(self.replies)} parties have opened the sum, and {self.threshold} must"
            )
        roster = self.roster
        holders = sorted(self.replies)[: self.threshold]
        seeds = restore(
            [roster.index(holder) for holder in holders],
            ([self.replies[holder][dealer] for holder in holders] for dealer in roster),
        )
        keys = []
        for dealer, seed in zip(roster, seeds, strict=True):
            if digest(b"fedunseen seed", seed).hex() != self.seeds[dealer]:
                raise SecAggError(
                    f"the shares that {dealer} has dealt do not restore its seed: keep it out of "
                    "the run"
                )
            keys.append(party.own_key(self.rho, seed))
        total = self.total.copy()
        apply_streams(total, [(key, np.subtract) for key in keys])
        return total

    def save(self, path: Path) -> None:
        """Write the total, whole or not at all."""
        content = {
            key: value for key, value in vars(self).items() if key not in ("total", "replies")
        }
        write_tensors(
            path,
            {"total": torch.from_numpy(self.total.view(np.int64))},
            {"sum": json.dumps(content)},
        )

    @classmethod
    def load(cls, path: Path) -> MaskedTotal | None:
        """Read a stored total; None if there is none."""
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as file:
                content = parse_json((file.metadata() or {})["sum"])
                return cls(**content, total=file.get_tensor("total").numpy().view(np.uint64))
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise RefusedError(
                f"{path} is damaged ({error}): its sum is lost, start a new run"
            ) from None


class SecAggServer:
    """The coordinator in one attempt at a sum."""

    def __init__(
        self,
        enrolment: Enrolment,
        plan: str,
        k: int,
        attempt: int,
        instruction: str,
        quorum: Callable[[], int] = int,
    ) -> None:
        self.enrolment = enrolment
        self.plan = plan
        self.k = k
        self.attempt = attempt
        self.instruction = instruction
        self._quorum = quorum
        self.keys: dict[str, Message] = {}
        self.shares: dict[str, Message] = {}
        self.sent: set[str] = set()
        self.faulty: dict[str, str] = {}  # party -> what it did wrong
        self.absent: dict[str, str] = {}  # party -> why it did not answer, or refused
        self.final: set[str] = set()  # who has refused, and would again
        self.rho = ""
        self._total: Elements | None = None

    @property
    def quorum(self) -> int:
        """How many parties the sum takes."""
        return max(self._quorum(), self.enrolment.threshold)

    def end(self, why: str = "") -> AttemptError:
        """Return the error that ends the attempt and names who is at fault or absent, and why."""
        said = "".join(
            [
                f"an attempt at sum {self.k + 1} is over: {why}",
                *grouped({**self.absent, **self.faulty}),
            ]
        )
        return AttemptError(said, self.faulty)

    # 1. Keys

    def take_keys(self, name: str, message: Message) -> None:
        """Take a party's keys."""
        party.check_keys(message, name, self.enrolment)
        for key in ("seal", "pair"):
            party.exchanged(_TRIAL, message, key, b"trial")
        requested = (self.plan, self.k, self.attempt, self.instruction)
        if tuple(message[key] for key in ("plan", "k", "attempt", "instruction")) != requested:
            raise SecAggError(f"{name} has signed keys for another sum than it was asked for")
        other_keys = {
            keys[key]
            for other_name, keys in self.keys.items()
            if other_name != name
            for key in ("seal", "pair")
        }
        if message["seal"] == message["pair"] or {message["seal"], message["pair"]} & other_keys:
            raise SecAggError(f"{name} has sent a key twice, or a key of another party")
        self.keys[name] = message

    def _all(self, received: Mapping[str, Any] | set[str], why: str) -> None:
        if self.keys.keys() - received:
            raise self.end(why)

    def ask_shares(self) -> Message:
        """Fix the roster, and return the request for all its members."""
        if len(self.keys) < self.quorum:
            raise self.end(
                f"{len(self.keys)} of the {self.quorum} parties that the sum takes are left"
            )
        self.rho = party.rho_of(self.plan, self.k, self.keys.values())
        return {"keys": [self.keys[name] for name in sorted(self.keys)]}

    # 2. Shares

    def take_shares(self, name: str, message: Message) -> None:
        """Take a party's encrypted shares."""
        encrypted = message.get("encrypted_shares")
        commitments = message.get("share_commitments")
        if (
            message.get("rho") != self.rho
            or not isinstance(encrypted, dict)
            or not isinstance(commitments, dict)
            or encrypted.keys() != self.keys.keys() - {name}
            or commitments.keys() != self.keys.keys()
        ):
            raise SecAggError(f"{name} has dealt shares to another roster")
        for texts, length in ((encrypted, SEED + 28), (commitments, 32)):
            for text in texts.values():
                from_hex(text, length)
        self.shares[name] = message

    def ask_masked(self) -> dict[str, Message]:
        """Return the request for each member of the roster."""
        self._all(self.shares, "not all members of the roster have dealt shares")
        return {
            name: {
                "rho": self.rho,
                "encrypted_shares": {
                    d: reply["encrypted_shares"][name]
                    for d, reply in self.shares.items()
                    if d != name
                },
                "share_commitments": {
                    d: reply["share_commitments"][name]
                    for d, reply in self.shares.items()
                    if d != name
                },
            }
            for name in sorted(self.keys)
        }

    @property
    def extra(self) -> list[str]:
        """The names that the roster adds to the layout."""
        return sorted({name for keys in self.keys.values() for name in keys["extra"]})

    # 3. Masked elements

    def take_masked(self, name: str, elements: Elements, length: int) -> None:
        """Add a party's masked ring elements."""
        if name in self.sent or name not in self.keys:
            raise SecAggError(f"{name} has sent its masked elements twice, or is not in the roster")
        if elements.dtype != np.uint64 or elements.shape != (length,):
            raise SecAggError(f"{name} has sent {elements.size} masked elements, not {length}")
        if self._total is None:
            self._total = elements.copy()
        else:
            self._total += elements
        self.sent.add(name)

    def take_complaint(self, name: str, message: Message) -> None:
        """Find out who lies when a holder says that a dealer's share is bad: the holder reveals its
        sealing key.
        """
        dealer = message.get("complaint")
        if not isinstance(dealer, str) or dealer not in self.shares or dealer == name:
            self.faulty[name] = "it complains about a party that has dealt it nothing"
            return
        try:
            secret = from_hex(message.get("seal_secret"), 32)
            public = exchange_public(secret).hex()
        except SecAggError:
            public = ""
        if public != self.keys[name]["seal"]:
            self.faulty[name] = f"it complains about {dealer} and reveals another key than its own"
            return
        try:
            key = party.exchanged(secret, self.keys[dealer], "seal", party.SEALING)
            sent = bytes.fromhex(self.shares[dealer]["encrypted_shares"][name])
            route = self.rho, dealer, name
            share = unseal(key, sent, party.associated(*route))
            good = self.shares[dealer]["share_commitments"][name] == party.share_commitment(
                *route, share
            )
        except SecAggError:
            good = False
        if good:
            self.faulty[name] = f"it complains about the share of {dealer}, which is good"
        else:
            self.faulty[dealer] = f"the share that it has dealt to {name} is bad"

    def total(self) -> MaskedTotal:
        """Return the masked total, to be stored before it is opened."""
        self._all(self.sent, "not all members of the roster have sent masked elements")
        assert self._total is not None
        seeds = {name: message["seed"] for name, message in self.keys.items()}
        committed = {name: message["share_commitments"] for name, message in self.shares.items()}
        least = self.enrolment.threshold
        return MaskedTotal(
            self.plan, self.k, self.rho, least, self._total, seeds, committed, self.extra
        )
