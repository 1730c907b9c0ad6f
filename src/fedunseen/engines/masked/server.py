"""The coordinator's half of secure aggregation: it passes keys and sealed shares on, adds up, and takes masks off."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedunseen.engines.masked.party import bytes_of, least, pair_mask, sworn
from fedunseen.engines.masked.primitives import SECRET, MaskError, Words, digest, joined, key_stream, public

__all__ = ["SMALLEST", "ServerHalf", "ring"]

SMALLEST = 3
"""So many parties have to be part of a sum: of two, each would know what the other has sent."""


def ring(clients: Sequence[int], neighbours: int | None) -> dict[int, list[int]]:
    """Return each client's neighbours: all others, or the ``neighbours`` nearest in a circle of random order.

    Args:
        clients: who takes part.
        neighbours: an even number; None: all others.

    Example:
        >>> sorted(len(near) for near in ring(range(10), 4).values()), ring([1, 5, 7], 4)[5]
        ([4, 4, 4, 4, 4, 4, 4, 4, 4, 4], [1, 7])
    """
    if neighbours is None or neighbours >= len(clients) - 1:
        return {client: sorted(set(clients) - {client}) for client in clients}
    order = sorted(clients)
    secrets.SystemRandom().shuffle(order)
    half, count = neighbours // 2, len(order)
    return {
        client: sorted(order[(place + step) % count] for step in range(-half, half + 1) if step)
        for place, client in enumerate(order)
    }


class ServerHalf:
    """The coordinator in one session: one attempt at the sum of one round.

    It asks for four things, and is told each party's answers one by one; a party that lies is refused by a
    :class:`MaskError` there and then, and has gone from then on.

    Args:
        session: its name, drawn anew for every attempt.
        threshold: share of the holders of a party's secrets that have to answer.
        neighbours: with how many others each party shares masks; None: with all.
        need: how many parties the sum has to be of.
    """

    def __init__(self, session: bytes, threshold: float, neighbours: int | None, need: int) -> None:
        self.session, self.threshold, self.neighbours = session, threshold, neighbours
        self.need = max(need, SMALLEST)
        self.keys: dict[int, Mapping[str, Any]] = {}
        self.near: dict[int, list[int]] = {}
        self.sealed: dict[int, Mapping[str, str]] = {}  # dealer -> holder -> sealed shares
        self.sworn: dict[int, Mapping[str, str]] = {}
        self.dealt: list[int] = []  # who has dealt shares, and masks for the others
        self.sent: list[int] = []  # who has sent masked words
        self.sum: Words = np.zeros(0, dtype=np.uint64)
        self.found: dict[str, dict[int, dict[int, bytes]]] = {"own": {}, "pairs": {}}  # dealer -> holder -> share
        self.answered: set[int] = set()

    def enough(self, count: int) -> None:
        """Say that the sum cannot be made any more."""
        if count < self.need:
            raise MaskError(f"{count} of the {self.need} parties that the sum has to be of are left")

    def _least(self, client: int) -> int:
        return least(self.threshold, len(self.near[client]) + 1)

    # 1. Keys

    def take_keys(self, client: int, told: Mapping[str, Any], signed: Mapping[str, str] | None = None) -> None:
        """Take a party's public keys, and what goes with them to the others: its certificate and signature, if any."""
        known = {key: bytes_of(told.get(key), 32).hex() for key in ("reading", "pairs", "own")}
        if client in self.keys:
            raise MaskError("it has sent its keys twice")
        used = {one[key] for one in self.keys.values() for key in ("reading", "pairs")}
        if {known["reading"], known["pairs"]} & used or known["reading"] == known["pairs"]:
            raise MaskError("it has sent a key of another party, or one key twice")
        self.keys[client] = {**known, **(signed or {})}

    def ask_shares(self) -> dict[int, dict[str, Any]]:
        """Return what each party is told to deal its shares with.

        Raises:
            MaskError: too few have sent keys.
        """
        self.enough(len(self.keys))
        self.near = ring(sorted(self.keys), self.neighbours)
        return {
            client: {"keys": {str(one): self.keys[one] for one in [*near, client]}}
            for client, near in self.near.items()
        }

    # 2. Shares

    def take_shares(self, client: int, told: Mapping[str, Any]) -> None:
        """Take a party's sealed shares."""
        if client in self.sealed:
            raise MaskError("it has dealt its shares twice")
        near = {str(one) for one in self.near[client]}
        sealed, said = told.get("sealed"), told.get("sworn")
        if not isinstance(sealed, dict) or not isinstance(said, dict):
            raise MaskError("a message of the masks is damaged")
        if sealed.keys() != near or said.keys() != near | {str(client)}:
            raise MaskError("it has dealt shares to others than its neighbours")
        self.sworn[client] = {name: bytes_of(one, 64).hex() for name, one in said.items()}
        self.sealed[client] = {name: bytes_of(one, 2 * SECRET + 28).hex() for name, one in sealed.items()}

    def ask_masked(self) -> dict[int, dict[str, Any]]:
        """Return what each party is told to mask with: the shares that its neighbours have dealt it.

        Raises:
            MaskError: too few have dealt shares.
        """
        self.enough(len(self.sealed))
        there = set(self.sealed)
        while weak := [c for c in there if len(there & {*self.near[c], c}) < self._least(c)]:
            there -= set(weak)  # nobody could take off their masks
        self.enough(len(there))
        self.dealt = sorted(there)
        return {
            client: {
                "sealed": {str(one): self.sealed[one][str(client)] for one in self.near[client] if one in there},
                "sworn": {str(one): self.sworn[one][str(client)] for one in self.near[client] if one in there},
            }
            for client in self.dealt
        }

    # 3. Masked words

    def take_masked(self, client: int, words: Words, length: int) -> None:
        """Add a party's masked words, of which there have to be ``length``."""
        if client in self.sent:
            raise MaskError("it has sent its masked words twice")
        if client not in self.dealt or words.dtype != np.uint64 or words.shape != (length,):
            raise MaskError("its masked words are not as many as were asked for")
        self.sum = self.sum + words if self.sent else words.copy()
        self.sent.append(client)

    def ask_unmask(self) -> dict[int, dict[str, Any]]:
        """Return what each party is told to unmask the sum.

        Raises:
            MaskError: too few have sent masked words. Nothing has been unmasked yet, so the round may begin anew.
        """
        self.enough(len(self.sent))
        there = set(self.sent)
        if weak := [c for c in there if len(there & {*self.near[c], c}) < self._least(c)]:
            raise MaskError(f"too few neighbours of party {min(weak)} are left to take off its mask")
        return {client: {"there": sorted(self.sent)} for client in self.sent}

    # 4. Unmasking

    def take_unmasked(self, client: int, told: Mapping[str, Any]) -> None:
        """Take the shares that a party holds.

        Raises:
            MaskError: one of them is not what its dealer has sworn; none of this party's is used then.
        """
        if client in self.answered:
            raise MaskError("it has sent its shares twice")
        held = {one for one in [*self.near[client], client] if one in self.dealt}
        wanted = {"own": held & set(self.sent), "pairs": held - set(self.sent)}
        found: dict[str, dict[int, bytes]] = {}
        for kind, dealers in wanted.items():
            given = told.get(kind)
            if not isinstance(given, dict) or given.keys() != {str(dealer) for dealer in dealers}:
                raise MaskError("it has sent other shares than those that were asked for")
            found[kind] = {dealer: bytes_of(given[str(dealer)], SECRET) for dealer in dealers}
            for dealer, share in found[kind].items():
                said = bytes_of(self.sworn[dealer][str(client)], 64)
                both = share + bytes(SECRET) if kind == "own" else bytes(SECRET) + share
                part = slice(0, 32) if kind == "own" else slice(32, 64)
                if not hmac.compare_digest(said[part], sworn(dealer, client, both)[part]):
                    raise MaskError(f"its share of a secret of party {dealer} is not the one that was dealt")
        self.answered.add(client)
        for kind, shares in found.items():
            for dealer, share in shares.items():
                self.found[kind].setdefault(dealer, {})[client] = share

    def total(self) -> Words:
        """Return the sum of the words of all that have sent them.

        Raises:
            MaskError: shares are missing, or those that a party has dealt do not fit together.
        """
        total, length = self.sum, len(self.sum)
        there = set(self.sent)
        for client in self.sent:
            secret = self._secret("own", client)
            if digest(b"own mask", secret) != bytes_of(self.keys[client]["own"]):
                raise MaskError(f"the shares that party {client} has dealt do not give the secret of its mask")
            total = total - key_stream(digest(b"fedunseen own mask", self.session, secret), length)
        for client in (one for one in self.dealt if one not in there):
            partners = there.intersection(self.near[client])
            if not partners:
                continue
            secret = self._secret("pairs", client)
            if public(secret) != bytes_of(self.keys[client]["pairs"]):
                raise MaskError(f"the shares that party {client} has dealt do not give the key of its masks")
            for other in partners:  # the other has added it if its own number is the smaller one
                mask = pair_mask(secret, bytes_of(self.keys[other]["pairs"]), self.session, length)
                (np.subtract if other < client else np.add)(total, mask, out=total)
        return total

    def _secret(self, kind: str, dealer: int) -> bytes:
        shares = self.found[kind].get(dealer, {})
        need = self._least(dealer)
        if len(shares) < need:
            raise MaskError(f"{len(shares)} of the {need} shares that the masks of party {dealer} need have come")
        holders = sorted([*self.near[dealer], dealer])
        chosen = sorted(shares)[:need]
        return joined({holders.index(holder): shares[holder] for holder in chosen})
