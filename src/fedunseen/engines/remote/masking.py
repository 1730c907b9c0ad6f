"""A masked round between machines: which messages pass between the coordinator and the parties, and what is refused.

The first message of a masked round is the instruction of any round, with the name of a session in it. The party trains,
keeps what it has learnt, and answers with its keys and with the names of its losses. Three messages follow, ``shares``,
``masked`` and ``unmask``; :mod:`fedunseen.engines.masked.party` says what they are for. Whoever does not answer one of
them, or lies, has gone from then on; the round goes on as long as enough parties are left.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedunseen.core.errors import RefusedError
from fedunseen.core.parameters import Params
from fedunseen.engines.masked.aggregation import MaskedSum, Masks
from fedunseen.engines.masked.party import PartyHalf, bytes_of
from fedunseen.engines.masked.primitives import MaskError
from fedunseen.engines.masked.server import ServerHalf
from fedunseen.engines.masked.words import Layout
from fedunseen.engines.remote.identity import Forged, Signer
from fedunseen.engines.remote.link import Link
from fedunseen.engines.remote.wire import PartyError, WireError, pack, plain, unpack
from fedunseen.strategies import Reply, Strategy

__all__ = ["STAGES", "BeginAnewError", "Hearing", "Masking", "keys_message", "session_of"]

_log = logging.getLogger("fedunseen.federation")

STAGES = ("shares", "masked", "unmask")
"""The kinds of messages that follow the first one."""

_TEXT = 2**20 + 2**16  # bytes that an answer without words may have
_LOSSES = 256
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}")


class BeginAnewError(Exception):
    """Too few parties are left before anything has been unmasked: the round may begin anew."""


def keys_message(half: PartyHalf, reply: Reply, round: int, signer: Signer | None = None) -> bytes:
    """Return a party's answer to an instruction under masks, signed where it has a kit."""
    told = {"client": reply.client, "round": round, "session": half.session.hex()}
    keys = half.keys()
    if signer is not None:
        keys = signer.signed(reply.client, round, half.session.hex(), keys)
    return pack({**told, "told": keys, "losses": sorted(reply.terms)})


@dataclass(eq=False)
class Masking:
    """What a party keeps between the messages of a session.

    Attributes:
        masks: as the federation has agreed.
        half: its half of the protocol.
        reply: what it has learnt, which nobody sees.
        strategy: says how updates are weighted.
        expected: tensors like those of its update.
        round: counted from 0.
        opened: round -> who was part of the sum that this party has helped to unmask.
        dealt: sessions in which this party has dealt shares.
        signer: looks at the others' signatures; None: this party has no kit, and takes keys as they come.
    """

    masks: Masks
    half: PartyHalf
    reply: Reply
    strategy: Strategy
    expected: Params
    round: int
    opened: dict[int, frozenset[int]]
    dealt: set[bytes]
    signer: Signer | None = None

    def answer(self, header: Mapping[str, Any]) -> bytes:
        """Answer one of the messages that follow the first.

        Raises:
            MaskError: it is not to be answered.
        """
        stage, told = header["kind"], header["told"]
        if header.get("session") != self.half.session.hex():
            raise MaskError("the message is of another session of masks")
        about = {"session": self.half.session.hex(), "stage": stage}
        if stage == "shares":
            self._look(told)
            self.dealt.add(self.half.session)
            return pack({**about, "told": self.half.shares(told)})
        if stage == "masked":
            layout = self.masks.layout(self.strategy, self.expected, header["losses"])
            words = self.masks.words(self.strategy, layout, self.reply, self.half.session, self.round)
            hidden = self.half.masked(told, words)
            return pack(about, {"words": torch.from_numpy(hidden.view(np.int64))})
        there = frozenset(int(one) for one in told["there"])
        if self.opened.get(self.round, there) != there:
            raise MaskError(
                f"a sum of round {self.round + 1} has been unmasked before, of other parties, and the two would differ "
                "by what single ones have sent; join again to agree to that"
            )
        shares = self.half.unmask(told)
        self.opened[self.round] = there
        return pack({**about, "told": shares})

    def _look(self, told: Mapping[str, Any]) -> None:
        """Refuse keys that are not signed by the parties whose they are said to be."""
        if self.signer is None:
            return
        try:
            keys = {int(client): own for client, own in told["keys"].items()}
            self.signer.check(keys, self.round, self.half.session.hex())
        except (Forged, RefusedError) as error:
            raise MaskError(f"{error}, so that this party takes no part in this sum") from None


class Hearing:
    """The coordinator's side of one session.

    Args:
        link: reaches the parties.
        names: client -> the name of its party.
        server: the coordinator's half of the protocol.
        round: counted from 0.
        signer: looks at the parties' signatures; None: there are no kits.
    """

    def __init__(
        self, link: Link, names: Sequence[str], server: ServerHalf, round: int, signer: Signer | None = None
    ) -> None:
        self.link, self.names, self.server, self.round, self.signer = link, names, server, round, signer
        self.losses: set[str] = set()
        self.refused: dict[int, str] = {}
        self.down = self.up = 0

    @property
    def session(self) -> str:
        """The session's name, as it is in messages."""
        return self.server.session.hex()

    def take_keys(self, client: int, answer: bytes) -> None:
        """Read a party's answer to the instruction.

        Raises:
            WireError: says what is wrong with it.
        """
        header, tensors = self._read(answer, _TEXT)
        if (header.get("client"), header.get("round")) != (client, self.round) or tensors:
            raise WireError("it answers another question")
        losses = header.get("losses")
        if not isinstance(losses, list) or len(losses) > _LOSSES:
            raise WireError("its losses are no list of names")
        if stray := [one for one in losses if not isinstance(one, str) or not _WORD.fullmatch(one)]:
            raise WireError(f"its losses have an impossible name, {plain(stray[0], 40)!r}")
        told = _table(header)
        signed: dict[str, str] = {}
        if self.signer is not None:
            try:
                self.signer.check({client: told}, self.round, self.session)
            except Forged as error:
                raise WireError(str(error)) from None
            signed = {key: told[key] for key in ("certificate", "signature")}
        self._take(lambda: self.server.take_keys(client, told, signed))
        self.losses |= set(losses)

    def _take(self, take: Callable[[], None]) -> None:
        try:
            take()
        except MaskError as error:
            raise WireError(str(error)) from None

    def _read(self, answer: bytes, limit: int) -> tuple[dict[str, Any], Params]:
        self.up += len(answer)
        header, tensors = unpack(answer, limit)
        if "error" in header:
            raise PartyError(plain(header["error"]))
        if header.get("session") != self.session:
            raise WireError("it answers in another session of masks")
        return header, tensors

    def sum(self, masks: Masks, strategy: Strategy, expected: Params, timeout: float) -> MaskedSum:
        """Lead the parties that have sent keys through the other stages.

        Raises:
            BeginAnewError: too few are left, and nothing has been unmasked.
            MaskError: the masks cannot be taken off.
        """
        layout = masks.layout(strategy, expected, self.losses)
        server = self.server
        try:
            self._stage("shares", server.ask_shares(), self._shares, timeout)
            self._stage("masked", server.ask_masked(), lambda c, a: self._words(c, a, layout), timeout)
            asked = server.ask_unmask()
        except MaskError as error:
            raise BeginAnewError(f"{error}{self.why()}") from None
        self._stage("unmask", asked, self._unmasked, timeout)
        try:
            words = server.total()
        except MaskError as error:
            raise MaskError(f"{error}{self.why()}") from None
        found = masks.reply(strategy, layout, words, len(server.sent), server.session, expected)
        return MaskedSum(found, sorted(server.sent), self.refused, self.down, self.up)

    def why(self) -> str:
        """Say who has not taken part to the end, and why."""
        return "".join(f"; {self.names[client]}: {why}" for client, why in sorted(self.refused.items()))

    def _stage(self, stage: str, asked: Mapping[int, Any], take: Callable[[int, bytes], None], timeout: float) -> None:
        about = {"kind": stage, "session": self.session, "round": self.round}
        if stage == "masked":
            about["losses"] = sorted(self.losses)
        messages = {self.names[client]: pack({**about, "told": told}) for client, told in asked.items()}
        self.down += sum(map(len, messages.values()))
        places = {self.names[client]: client for client in asked}
        for name, answer in self.link.exchange(messages, timeout):
            try:
                if answer is None:
                    raise WireError(f"it has not answered when it was asked for {_WORDS[stage]}")
                take(places[name], answer)
            except WireError as error:
                self.refused[places[name]] = str(error)
                _log.warning("round %d: %s drops out of the masked sum: %s", self.round + 1, name, error)

    def _shares(self, client: int, answer: bytes) -> None:
        header, _ = self._read(answer, _TEXT)
        self._take(lambda: self.server.take_shares(client, _table(header)))

    def _words(self, client: int, answer: bytes, layout: Layout) -> None:
        _, tensors = self._read(answer, 8 * layout.length + _TEXT)
        words = tensors.get("words")
        if words is None or words.dtype != torch.int64 or len(tensors) != 1:
            raise WireError("its masked words are not as many as were asked for")
        self._take(lambda: self.server.take_masked(client, words.numpy().view(np.uint64), layout.length))

    def _unmasked(self, client: int, answer: bytes) -> None:
        header, _ = self._read(answer, _TEXT)
        self._take(lambda: self.server.take_unmasked(client, _table(header)))


_WORDS = {"shares": "its shares", "masked": "its masked words", "unmask": "the shares of the others"}


def _table(header: Mapping[str, Any]) -> Mapping[str, Any]:
    told = header.get("told")
    if not isinstance(told, dict):
        raise WireError("a message of the masks is damaged")
    return told


def session_of(header: Mapping[str, Any]) -> bytes:
    """Return the name of the session that a coordinator's message begins.

    Raises:
        MaskError: it is none.
    """
    return bytes_of(header["session"], 16)
