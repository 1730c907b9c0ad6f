"""A party's half of secure aggregation: SecAgg+ (Bell et al. 2020), or SecAgg (Bonawitz et al. 2017) with all others.

Four answers, in this order, each once; what is asked out of order, again, or in another session is refused:

1. ``keys``: two public keys, and the digest of a secret.
2. ``shares``: shares of two secrets for each neighbour, sealed so that the neighbour alone can read them: of the secret
   that its own mask is made of, and of the private key that its pairs of masks are made of.
3. ``masked``: its words, plus its own mask, plus (or minus) a mask for each pair that it is part of.
4. ``unmask``: of each neighbour one share. Of one that has sent its masked words: the share of its own mask, so that
   the mask can be taken off the sum. Of one that has gone: the share of its key, so that the pairs' masks can. Never
   both: whoever has both of enough neighbours sees what that party has sent.

Messages are JSON values; bytes are hexadecimal in them. Clients are numbered as in the federation.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedunseen.engines.masked.primitives import (
    SECRET,
    MaskError,
    Words,
    agreed,
    digest,
    key_stream,
    new_secret,
    public,
    seal,
    split,
    unseal,
)

__all__ = ["PartyHalf", "bytes_of", "least", "pair_mask", "sworn"]


def least(threshold: float, holders: int) -> int:
    """Return how many of the holders of shares have to answer: a share of them, and more than half, and two at least.

    Example:
        >>> least(0.6, 3), least(0.6, 4), least(0.6, 10)
        (2, 3, 6)
    """
    return max(2, holders // 2 + 1, math.ceil(threshold * holders - 1e-9))


def bytes_of(text: object, length: int | None = None) -> bytes:
    """Return the bytes that a message holds as hexadecimal digits.

    Raises:
        MaskError: it holds something else.
    """
    try:
        found = bytes.fromhex(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise MaskError("a message of the masks is damaged") from None
    if length is not None and len(found) != length:
        raise MaskError("a message of the masks is damaged")
    return found


def sworn(dealer: int, holder: int, share: bytes) -> bytes:
    """Return what a dealer says beforehand of the two shares that a holder gets, one after the other as 32 bytes."""
    own, key = share[:SECRET], share[SECRET:]
    where = f"{dealer} {holder}".encode()
    return digest(b"own", where, own) + digest(b"key", where, key)


def pair_mask(secret: bytes, other: bytes, session: bytes, count: int) -> Words:
    """Return the mask that two parties have in common, from the secret of one and the public key of the other."""
    return key_stream(agreed(secret, other, b"fedunseen pair mask " + session), count)


def _sealing(session: bytes, dealer: int, holder: int) -> bytes:
    return b"fedunseen shares %s %d %d" % (session, dealer, holder)


class PartyHalf:
    """A party in one session: one attempt at the sum of one round.

    Args:
        client: its number.
        session: as the coordinator names it; all parties of the session have the same.
        threshold: share of the holders of its secrets that have to answer, as the experiment says.
        smallest: of how many parties that it knows of a sum has to be, this one included.
    """

    def __init__(self, client: int, session: bytes, threshold: float, smallest: int = 2) -> None:
        self.client, self.session, self.threshold, self.smallest = client, session, threshold, smallest
        self._reading, self._pairs, self._own = new_secret(), new_secret(), new_secret()
        self._stage = "keys"
        self._others: dict[int, tuple[bytes, bytes]] = {}  # client -> public keys: to read, for pairs of masks
        self._least = 0
        self._held: dict[int, bytes] = {}  # dealer -> its two shares

    def _turn(self, stage: str, next_stage: str) -> None:
        """Refuse what is out of order."""
        if self._stage != stage:
            raise MaskError(f"party {self.client} is asked for {stage!r} out of order or twice")
        self._stage = next_stage

    def keys(self) -> dict[str, Any]:
        """Return the public keys."""
        self._turn("keys", "shares")
        own = digest(b"own mask", self._own)
        return {"reading": public(self._reading).hex(), "pairs": public(self._pairs).hex(), "own": own.hex()}

    def shares(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """Return a sealed share for each neighbour, and what it swears of all of them.

        Args:
            told: ``keys``: client -> what its :meth:`keys` has returned, of the neighbours and of this party.

        Raises:
            MaskError: the keys are not those of a session that this party can be part of.
        """
        self._turn("shares", "masked")
        keys = {_client(name): one for name, one in told["keys"].items()}
        mine = keys.pop(self.client, None)
        if mine is None or bytes_of(mine["pairs"]) != public(self._pairs) or len(keys) < 2:
            raise MaskError("the list of keys lacks this party's own, or two others")
        self._others = {
            client: (bytes_of(one["reading"], 32), bytes_of(one["pairs"], 32)) for client, one in keys.items()
        }
        if len({key for pair in self._others.values() for key in pair}) != 2 * len(self._others):
            raise MaskError("two parties have the same key")
        self._least = least(self.threshold, len(keys) + 1)
        holders = sorted([*keys, self.client])
        dealt = {
            holder: own + key
            for holder, own, key in zip(
                holders,
                split(self._own, self._least, len(holders)),
                split(self._pairs, self._least, len(holders)),
                strict=True,
            )
        }
        self._held[self.client] = dealt[self.client]
        sealed = {
            str(holder): seal(self._key(holder), dealt[holder], _sealing(self.session, self.client, holder)).hex()
            for holder in sorted(keys)
        }
        said = {str(holder): sworn(self.client, holder, share).hex() for holder, share in dealt.items()}
        return {"sealed": sealed, "sworn": said}

    def _key(self, other: int) -> bytes:
        return agreed(self._reading, self._others[other][0], b"fedunseen reading " + self.session)

    def masked(self, told: Mapping[str, Any], words: Words) -> Words:
        """Return the words under masks.

        Args:
            told: ``sealed``: neighbour -> the shares that it has sealed for this party; ``sworn``: neighbour -> what it
                has sworn of them.
            words: to hide.

        Raises:
            MaskError: too few neighbours are left, or a share is not what its dealer has sworn.
        """
        self._turn("masked", "unmask")
        sealed = {_client(name): bytes_of(one) for name, one in told["sealed"].items()}
        if sealed.keys() - self._others.keys() or len(sealed) + 1 < self._least:
            raise MaskError("the list of shares is not of this party's neighbours, or too few of them are left")
        for dealer, text in sealed.items():
            try:
                share = unseal(self._key(dealer), text, _sealing(self.session, dealer, self.client))
            except MaskError:
                raise MaskError(f"the shares that party {dealer} has sent to party {self.client} are damaged") from None
            said = bytes_of(told["sworn"][str(dealer)])
            if len(share) != 2 * SECRET or not hmac.compare_digest(said, sworn(dealer, self.client, share)):
                raise MaskError(f"the shares that party {dealer} has sent to party {self.client} are not what it swore")
            self._held[dealer] = share
        hidden = words + key_stream(digest(b"fedunseen own mask", self.session, self._own), len(words))
        for other in sealed:
            mask = pair_mask(self._pairs, self._others[other][1], self.session, len(words))
            (np.add if other > self.client else np.subtract)(hidden, mask, out=hidden)
        return hidden

    def unmask(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """Return of every neighbour, and of this party itself, one of two shares.

        Args:
            told: ``there``: all clients that have sent their masked words.

        Raises:
            MaskError: this party is not among them, or too few of its neighbours are.
        """
        self._turn("unmask", "over")
        there = {_client(name) for name in told["there"]}
        near = there & self._held.keys()
        if self.client not in near or len(near) < max(self._least, self.smallest):
            raise MaskError(f"the sum would be of fewer parties than party {self.client} agrees to")
        own = {str(dealer): self._held[dealer][:SECRET].hex() for dealer in sorted(near)}
        gone = sorted(self._held.keys() - near)
        return {"own": own, "pairs": {str(dealer): self._held[dealer][SECRET:].hex() for dealer in gone}}


def _client(name: object) -> int:
    if not isinstance(name, str | int) or isinstance(name, bool) or not str(name).isdecimal() or len(str(name)) > 9:
        raise MaskError("a message of the masks names no party")
    return int(name)
