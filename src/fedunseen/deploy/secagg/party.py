"""A party's side of a masked sum: it signs the plan, then answers four messages for each sum.

1. ``keys``: signed one-time keys, bound to the plan, the sum, the attempt, and the digest of the
   instruction.
2. ``shares``: shares of the seed of its own mask, one for each member of the roster, encrypted
   under rho.
3. ``masked``: its ring elements under its own mask and a mask for each pair of the roster.
4. ``open``: its shares of all members' seeds. The reply is written before it is sent, and repeated
   bit for bit.

rho is the digest of the plan, the sum and all signed keys, so that honest parties mask for the same
roster or not at all. Keys of pair masks are never shared. Messages are JSON values with bytes in
hexadecimal digits.
"""

import hmac
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedunseen.deploy.secagg import primitives
from fedunseen.deploy.secagg.enrolment import Credentials, Enrolment
from fedunseen.deploy.secagg.ledger import Ledger, Sample
from fedunseen.deploy.secagg.plan import Plan, signers
from fedunseen.deploy.secagg.primitives import (
    Elements,
    Operation,
    SecAggError,
    apply_streams,
    canonical,
    digest,
    from_hex,
    seal,
)
from fedunseen.deploy.secagg.sharing import SEED, split

Message = dict[str, Any]

_FIELDS = frozenset(
    {"party", "plan", "k", "attempt", "instruction", "extra", "seal", "pair", "seed", "signature"}
)
_PURPOSE = b"fedunseen keys"
_LOSSES = 256  # names of losses that a party adds to a sum
SEALING = b"fedunseen sealing"
"""The purpose of keys that encrypt shares."""


def _signed_text(message: Mapping[str, Any]) -> bytes:
    return _PURPOSE + canonical(
        {key: value for key, value in message.items() if key != "signature"}
    )


def check_keys(message: object, name: str, enrolment: Enrolment) -> None:
    """Refuse a keys message that ``name`` has not signed."""
    if not isinstance(message, dict) or message.keys() != _FIELDS or message["party"] != name:
        raise SecAggError(f"the keys of {name} are damaged, or those of another party")
    if name not in enrolment.parties:
        raise SecAggError(f"{name} is not in federation.json")
    if not enrolment.verify(name, message["signature"], _signed_text(message)):
        raise SecAggError(
            f"the keys of {name} are not signed by {name}, or were signed for another sum"
        )
    extra = message["extra"]
    if (
        not isinstance(extra, list)
        or len(extra) > _LOSSES
        or not all(isinstance(loss, str) for loss in extra)
    ):
        raise SecAggError(f"the keys of {name} are damaged, or those of another party")
    for key in ("seed", "seal", "pair"):
        from_hex(message[key], 32)


def exchanged(private: Any, message: Mapping[str, Any], key: str, purpose: bytes) -> bytes:
    """Return the key that this side and the sender of a keys message have in common."""
    try:
        return primitives.agree(private, bytes.fromhex(message[key]), purpose)
    except SecAggError:
        raise SecAggError(f"{message['party']} has signed a key that is not a public key") from None


def rho_of(plan: str, k: int, keys: Iterable[Mapping[str, Any]]) -> str:
    """Return what binds all later messages of a sum to its roster and its keys."""
    rows = sorted(canonical(dict(message)) for message in keys)
    return digest(b"fedunseen rho", bytes.fromhex(plan), str(k).encode(), *rows).hex()


def associated(rho: str, dealer: str, holder: str) -> bytes:
    """Return the associated data of an encrypted share."""
    return digest(b"fedunseen share", bytes.fromhex(rho), dealer.encode(), holder.encode())


def share_commitment(rho: str, dealer: str, holder: str, share: bytes) -> str:
    """Return the commitment of a dealer to a share."""
    return digest(b"fedunseen commitment", associated(rho, dealer, holder), share).hex()


def own_key(rho: str, seed: bytes) -> bytes:
    """Return the key of the mask that a party's own seed yields."""
    return digest(b"fedunseen own mask", bytes.fromhex(rho), seed)


@dataclass(eq=False)
class _Attempt:
    """Secrets and answers of one attempt at a sum; in memory only."""

    keys: Message
    seal: bytes
    pair: bytes
    seed: bytes
    rho: str = ""
    roster: dict[str, Message] = field(default_factory=dict)
    own_share: bytes = b""
    sealing: dict[str, bytes] = field(default_factory=dict)  # other -> key that encrypts shares
    pairs: dict[str, bytes] = field(default_factory=dict)  # other -> key of the pair's mask
    answers: dict[str, tuple[bytes, Any]] = field(
        default_factory=dict
    )  # stage -> digest of the request, answer

    def answered(self, stage: str, message: bytes) -> Any:
        """Return the stored answer to the same request, None before the first one."""
        if stage not in self.answers:
            return None
        request, answer = self.answers[stage]
        if request != digest(message):
            raise SecAggError(f"this party has answered another {stage!r} request of this attempt")
        return answer


class SecAggClient:
    """A party in the masked sums of a run."""

    def __init__(
        self, credentials: Credentials, ledger: Ledger, consent: Iterable[str] = ()
    ) -> None:
        self.credentials = credentials
        self.ledger = ledger
        self.consent = frozenset(consent)
        self.name = credentials.name
        self.enrolment = credentials.enrolment
        ledger.pin(self.enrolment, self.name)
        self._samples: dict[str, frozenset[bytes]] = {}
        self._attempt: _Attempt | None = None

    # The plan

    def sign(self, plan: Plan, samples: Iterable[Sample] = ()) -> str:
        """Return this party's signature of a plan; the caller has compared it with what this party
        expects.
        """
        if plan.federation != self.enrolment.digest:
            raise SecAggError(
                "the plan is of another federation.json than this party's: copy the newest one"
            )
        if plan.weights and sorted(plan.weights) != self.enrolment.names:
            raise SecAggError("the plan's weights are not those of the parties in federation.json")
        self._samples[plan.digest] = self.ledger.digests(samples)
        self._check(plan.digest, plan.content())
        return self.credentials.sign(plan.signed_text)

    def _check(
        self, plan: str, content: Mapping[str, Any], roster: Iterable[str] | None = None
    ) -> None:
        if plan not in self._samples:
            raise SecAggError("this party has to see the plan again after its restart")
        if removing := content["removing"]:
            self.ledger.check_removal(removing, self.enrolment.names, self.enrolment, self.consent)
        samples = self._samples[plan]
        who = None if roster is None else set(roster)
        self.ledger.check(plan, content, samples, who, self.consent)

    def accept(self, plan: Plan, signatures: object) -> None:
        """Take part in a plan that enough parties have signed."""
        signed = signers(plan, signatures, self.enrolment)
        if len(signed) < self.enrolment.threshold or self.name not in signed:
            raise SecAggError(
                f"{len(signed)} parties have signed the plan, and {self.enrolment.threshold} must, "
                "this one included"
            )
        assert isinstance(signatures, dict)
        if plan.digest not in self.ledger.plans:
            self.ledger.change_plan(
                plan.digest,
                content=plan.content(),
                signatures=dict(signatures),
                waiting=None,
                opened=None,
            )

    def _record(self, plan: object) -> dict[str, Any]:
        if not isinstance(plan, str) or plan not in self.ledger.plans:
            raise SecAggError("this party has not accepted the plan of this sum")
        return self.ledger.plans[plan]

    # The four messages

    def keys(
        self, plan: str, k: int, attempt: int, instruction: str, extra: Sequence[str] = ()
    ) -> Message:
        """Return signed one-time keys for an attempt at sum ``k`` (counted from 0)."""
        record = self._record(plan)
        if (
            type(k) is not int
            or type(attempt) is not int
            or not 0 <= k < record["content"]["sums"]
            or attempt < 0
        ):
            raise SecAggError("the plan has no such sum")
        from_hex(instruction, 32)
        mine = {
            "plan": plan,
            "k": k,
            "attempt": attempt,
            "instruction": instruction,
            "extra": sorted(extra),
        }
        if (now := self._attempt) is not None:
            if all(now.keys[key] == value for key, value in mine.items()):
                return now.keys
            if (now.keys["plan"], now.keys["k"]) == (plan, k) and attempt <= now.keys["attempt"]:
                raise SecAggError(
                    "this attempt at the sum is over: a new one needs a larger number"
                )
        if (opened := record["opened"]) is not None and k <= opened["k"]:
            raise SecAggError(
                f"this party has opened sum {opened['k'] + 1} of the plan, and opens none up to it "
                "again"
            )
        if record["waiting"] is not None:
            self.ledger.change_plan(
                plan, waiting=None
            )  # its shares are discarded: it can never be opened
        private = [secrets.token_bytes(32), secrets.token_bytes(32)]
        seed = secrets.token_bytes(SEED)
        message: Message = {
            "party": self.name,
            **mine,
            "seal": primitives.exchange_public(private[0]).hex(),
            "pair": primitives.exchange_public(private[1]).hex(),
            "seed": digest(b"fedunseen seed", seed).hex(),
        }
        message["signature"] = self.credentials.sign(_signed_text(message))
        self._attempt = _Attempt(message, private[0], private[1], seed)
        return message

    def _current(self) -> _Attempt:
        if self._attempt is None:
            raise SecAggError(
                "this party is in no attempt at a sum, perhaps after a restart: start a new attempt"
            )
        return self._attempt

    def shares(self, message: Mapping[str, Any]) -> Message:
        """Return encrypted shares of this party's seed."""
        now = self._current()
        request = canonical(message)
        if (answer := now.answered("shares", request)) is not None:
            return dict(answer)
        roster = self._roster(message.get("keys"))
        rho = rho_of(now.keys["plan"], now.keys["k"], roster.values())
        members = sorted(roster)
        parts = dict(
            zip(members, split(now.seed, self.enrolment.threshold, len(members)), strict=True)
        )
        peers = [holder for holder in members if holder != self.name]
        own_seal, own_pair = (primitives.exchange_key(key) for key in (now.seal, now.pair))
        sealing = {peer: exchanged(own_seal, roster[peer], "seal", SEALING) for peer in peers}
        pairs = {
            peer: exchanged(own_pair, roster[peer], "pair", b"fedunseen pair " + rho.encode())
            for peer in peers
        }
        encrypted = {
            peer: seal(sealing[peer], parts[peer], associated(rho, self.name, peer)).hex()
            for peer in peers
        }
        commitments = {
            holder: share_commitment(rho, self.name, holder, parts[holder]) for holder in members
        }
        now.rho = rho
        now.roster = roster
        now.own_share = parts[self.name]
        now.sealing = sealing
        now.pairs = pairs
        answer = {
            "party": self.name,
            "rho": rho,
            "encrypted_shares": encrypted,
            "share_commitments": commitments,
        }
        now.answers["shares"] = digest(request), answer
        return answer

    def _roster(self, keys: object) -> dict[str, Message]:
        now = self._current()
        if not isinstance(keys, list) or not all(
            isinstance(message, dict) and "party" in message for message in keys
        ):
            raise SecAggError("the roster of the sum is damaged")
        roster = {str(message["party"]): message for message in keys}
        if len(roster) < len(keys):
            raise SecAggError("the roster of the sum names a party twice")
        if len(roster) < self.enrolment.threshold:
            raise SecAggError(
                f"the roster has {len(roster)} parties, and a sum takes {self.enrolment.threshold} "
                "at least"
            )
        if roster.get(self.name) != now.keys:
            raise SecAggError("the roster of the sum lacks this party's own keys")
        for name, message in roster.items():
            check_keys(message, name, self.enrolment)
            for key, part in (
                ("plan", "plan"),
                ("k", "sum"),
                ("attempt", "attempt"),
                ("instruction", "instruction"),
            ):
                if message[key] != now.keys[key]:
                    raise SecAggError(f"{name} has signed keys for another {part} than this party")
        public = [message[key] for message in roster.values() for key in ("seal", "pair")]
        if len(set(public)) < len(public):
            raise SecAggError("two keys of the roster are the same")
        content = self._record(now.keys["plan"])["content"]
        if missing := set(content["removing"]) - roster.keys():
            raise SecAggError(
                f"{', '.join(sorted(missing))} removes samples, and is not in the roster"
            )
        self._check(now.keys["plan"], content, roster)
        return roster

    @property
    def extra(self) -> list[str]:
        """The names that the roster adds to the layout."""
        return sorted(
            {name for message in self._current().roster.values() for name in message["extra"]}
        )

    @property
    def signed_for(self) -> tuple[str, int, str]:
        """The plan, the sum and the digest of the instruction that the keys of the current attempt
        are signed for.
        """
        keys = self._current().keys
        return keys["plan"], keys["k"], keys["instruction"]

    @property
    def rho(self) -> str:
        """The rho of the current attempt."""
        return self._current().rho

    def masked(self, message: Mapping[str, Any], elements: Elements) -> Message | Elements:
        """Return the ring elements under masks, or a complaint about a dealer whose share is bad.

        Before it returns elements, the shares that this party holds are written. So are the samples
        that the elements have, and the roster: the others can open the sum, and need not ask this
        party to.
        """
        now = self._current()
        request = canonical(message)
        if (answer := now.answered("masked", request)) is not None:
            return answer  # type: ignore[no-any-return]
        if not now.rho or message.get("rho") != now.rho:
            raise SecAggError(
                "the shares are of another roster or another attempt than this party's"
            )
        encrypted = message.get("encrypted_shares")
        commitments = message.get("share_commitments")
        peers = now.roster.keys() - {self.name}
        if (
            not isinstance(encrypted, dict)
            or not isinstance(commitments, dict)
            or encrypted.keys() != peers
        ):
            raise SecAggError(
                "a share from every other member of the roster is needed, and from no one else"
            )
        shares = {self.name: now.own_share.hex()}
        for dealer in sorted(peers):
            route = now.rho, dealer, self.name
            try:
                share = primitives.unseal(
                    now.sealing[dealer], bytes.fromhex(encrypted[dealer]), associated(*route)
                )
                said = str(commitments.get(dealer))
                if len(share) != SEED or not hmac.compare_digest(
                    said, share_commitment(*route, share)
                ):
                    raise SecAggError("")
            except (SecAggError, TypeError, ValueError):
                complaint = {"party": self.name, "complaint": dealer, "seal_secret": now.seal.hex()}
                self._attempt = None  # nothing was masked, so that the revealed key opens nothing
                return complaint
            shares[dealer] = share.hex()
        hidden = elements.copy()
        own: tuple[bytes, Operation] = (own_key(now.rho, now.seed), np.add)
        pairs = [
            (key, np.add if self.name < peer else np.subtract) for peer, key in now.pairs.items()
        ]
        apply_streams(hidden, [own, *pairs])
        shares = dict(sorted(shares.items()))  # as they are read from the ledger
        waiting = {
            "k": now.keys["k"],
            "rho": now.rho,
            "roster": sorted(now.roster),
            "shares": shares,
        }
        self.ledger.release(now.keys["plan"], self._samples[now.keys["plan"]], now.roster)
        self.ledger.change_plan(now.keys["plan"], waiting=waiting)
        now.answers["masked"] = digest(request), hidden
        return hidden

    def open(self, message: Mapping[str, Any]) -> Message:
        """Return this party's shares of the seeds of all members of the roster, or the stored
        reply.
        """
        plan, k, rho = (message.get(key) for key in ("plan", "k", "rho"))
        record = self._record(plan)
        opened = record["opened"]
        waiting = record["waiting"]
        if opened is not None and (opened["k"], opened["rho"]) == (k, rho):
            return dict(opened["reply"])
        if opened is not None and isinstance(k, int) and k <= opened["k"]:
            raise SecAggError(
                f"this party has opened sum {opened['k'] + 1} of the plan for another roster, and "
                "opens none again"
            )
        before = waiting is not None and "samples" in waiting  # a version that kept none by now
        if waiting is None or before or (waiting["k"], waiting["rho"]) != (k, rho):
            raise SecAggError("this party has masked nothing for this roster")
        assert isinstance(plan, str)
        content = record["content"]
        self._check(plan, content, waiting["roster"])
        reply = {"party": self.name, "rho": rho, "shares": waiting["shares"]}
        done = {"k": k, "rho": rho, "reply": reply}
        roster = None if content["dropouts"] else waiting["roster"]
        self.ledger.change_plan(plan, roster, waiting=None, opened=done)
        return reply
