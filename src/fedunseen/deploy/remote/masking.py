"""Masked sums between machines: what the coordinator and a party add to
:mod:`fedunseen.deploy.secagg`.

Before the first sum the coordinator sends the plan (``plan``), and then all signatures
(``signed``). The first message of a sum is the instruction of any round: the party trains, keeps
its reply, and answers with signed keys. Three messages follow: ``shares``, ``masked`` and ``open``.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedunseen.core.errors import QuorumError, RefusedError
from fedunseen.core.files import parse_json, write_json
from fedunseen.core.parameters import Params, under, within
from fedunseen.deploy.remote.link import Content, Link, exchange
from fedunseen.deploy.remote.patience import Patience
from fedunseen.deploy.remote.wire import (
    SEMANTICS,
    SILENT,
    PartyError,
    WireError,
    pack,
    unpack_answer,
)
from fedunseen.deploy.secagg.driver import Exchange, Stage, gather, open_total
from fedunseen.deploy.secagg.enrolment import Credentials, Enrolment
from fedunseen.deploy.secagg.ledger import Ledger, Sample
from fedunseen.deploy.secagg.masks import BEYOND, Masks, digest_of
from fedunseen.deploy.secagg.party import Message, SecAggClient
from fedunseen.deploy.secagg.plan import Plan, signers
from fedunseen.deploy.secagg.primitives import Elements, SecAggError, canonical, digest
from fedunseen.deploy.secagg.ring import Layout
from fedunseen.deploy.secagg.server import MaskedTotal, SecAggServer, grouped
from fedunseen.experiment.own_samples import TAKEN
from fedunseen.federation.in_process import InProcess
from fedunseen.federation.server_step import MaskedSum
from fedunseen.strategies import Instruction, Reply, Strategy

_log = logging.getLogger("fedunseen.federation")

_TEXT = 2**20 + 2**16  # bytes that an answer without ring elements may have
# how many losses a party may name, and how long a name may be
_LOSSES = 256
_NAME = 200


def instruction_digest(round: int, tensors: Params) -> str:
    """Return the digest of an instruction, from the tensors of its message."""
    return digest(
        b"fedunseen instruction", str(round).encode(), bytes.fromhex(digest_of(tensors))
    ).hex()


def plan_facts(
    hello: Mapping[str, Any], tensors: Params, enrolment: Enrolment, closed: bool, sums: int
) -> dict[str, Any]:
    """Return what a greeting fixes of a plan: the same for all parties, who compute it
    themselves.
    """
    experiment = hello["experiment"]
    shared = {key: value for key, value in hello.items() if key != "client"}
    privacy = experiment["privacy"]
    data = experiment.get("data", {})
    scaling = {name: value for name, value in tensors.items() if name != SEMANTICS}
    return {
        "federation": enrolment.digest,
        "experiment": digest(canonical(shared), bytes.fromhex(digest_of(tensors))).hex(),
        "space": digest(canonical(hello["space"])).hex(),
        "quantization": str(data.get("quantization", "none")),
        "scaling": digest(canonical(_seen_as(experiment)), bytes.fromhex(digest_of(scaling))).hex(),
        "privacy": str(privacy.get("name", "none")),
        "sums": sums,
        "once": bool(closed or privacy.get("name", "none") != "none"),
        "dropouts": privacy.get("dropouts", "refuse") == "allow",
        "choosing": bool(hello.get("validation")),
        "removing": list(hello.get("removing", ())),
        # adapting asks about unlabelled samples, also where the experiment asks about confidence
        "confidence": "none"
        if data.get("unlabelled") == "summed"
        else str(experiment.get("evaluation", {}).get("confidence", "none")),
    }


def _seen_as(experiment: Mapping[str, Any]) -> list[Any]:
    """Return the settings that say which numbers of a sample are added up: all that a party takes
    for its data, but what describes classes.

    Where files are is each machine's own.
    """
    data = experiment.get("data", {})
    method = experiment.get("method", {})
    return [
        {key: _no_place(data.get(key)) for key in sorted({*TAKEN} - {"semantics", "prompt"})},
        {key: _no_place(value) for key, value in experiment.get("encoder", {}).items()},
        method.get("clip_norm"),
        method.get("min_samples", 1),
    ]


def _no_place(value: Any) -> Any:
    """Return a setting, unless it is a place on a machine."""
    return None if str(value).startswith(os.sep) else value


def client_of(
    kit: Path | None, state: Path, data: Path | None, consent: Iterable[str]
) -> SecAggClient:
    """Return a party's side of masked sums, from its credentials and its ledger."""
    if kit is None:
        raise RefusedError(
            "masked sums need credentials, whose federation.json lists the parties: join with "
            "--kit, without --insecure"
        )
    where = "" if data is None else str(data.resolve())
    return SecAggClient(
        Credentials.load(kit), Ledger(state / "ledger", where, "moved" in consent), consent
    )


@dataclass(eq=False)
class PartySession:
    """A party's masked sums of one run."""

    client: SecAggClient
    engine: InProcess
    facts: Mapping[str, Any]
    weight: float
    samples: Callable[[], Iterable[Sample]]
    check_removal: Callable[..., None] = lambda ledger, plan, content: None
    present: Callable[[], Iterable[Sample] | None] = lambda: None
    _plan: Plan | None = None
    _signed: tuple[str, str] = "", ""  # the digest of the last plan that was signed, the signature
    _round: int = -1
    _kept: tuple[str, Reply] | None = (
        None  # the digest of the last instruction, and what was learned from it
    )
    _instruction: Instruction | None = None

    def __post_init__(self) -> None:
        self.spent = self.masks.spent(self.engine.strategy)  # what the run costs this party

    @property
    def opened(self) -> bool:
        """Whether a sum of this greeting's plan was opened, perhaps before a restart."""
        plans = self.client.ledger.plans.values()
        mine = self.facts["experiment"]
        return any(
            record["content"].get("experiment") == mine and record["opened"] for record in plans
        )

    def last_opened(self, plan: str) -> int:
        """Return which sum of a plan was opened last; -1 before the first one."""
        opened = self.client.ledger.plans[plan]["opened"]
        return -1 if opened is None else int(opened["k"])

    @property
    def accepted(self) -> str:
        """The digest of the plan that this party has accepted; "" before."""
        return "" if self._plan is None else self._plan.digest

    @property
    def masks(self) -> Masks:
        """How numbers become ring elements."""
        assert isinstance(self.engine.masks, Masks)
        return replace(self.engine.masks, threshold=self.client.enrolment.threshold)

    def answer_plan(self, header: Mapping[str, Any]) -> bytes:
        """Sign a plan, or accept one that enough parties have signed."""
        plan = Plan.read(header.get("plan"))
        for name, value in self.facts.items():
            if getattr(plan, name) != value:
                raise SecAggError(
                    f"the plan's {name} is not what the coordinator has sent to this party"
                )
        uniform = self.engine.strategy.settings.weights == "uniform"
        if (not plan.weights) != uniform or plan.weight(self.client.name) != self.weight:
            raise SecAggError("the plan's weight of this party is not what it has said")
        if plan.removing:
            self.check_removal(self.client.ledger, plan.digest, plan.content())
        if self._signed[0] != plan.digest:  # the samples are read once
            self.client.ledger.compare_with(self.present())
            self._signed = plan.digest, self.client.sign(plan, self.samples())
        if header["kind"] == "plan":
            return pack({"signature": self._signed[1]})
        self.client.accept(plan, header.get("signatures"))
        self._plan = plan
        return pack({"accepted": True})

    def known_reply(self, header: Mapping[str, Any], tensors: Params) -> Reply | None:
        """Return what was learned from the same instruction before; None if it is a new one."""
        if self._plan is None or header.get("plan") != self._plan.digest:
            raise SecAggError("this party has not accepted the plan of this sum")
        k = header.get("k")
        if type(k) is not int or k != header.get("round"):
            raise SecAggError("the instruction is of another round than the sum")
        if k == 0 and digest_of(within("params/", tensors)) != self._plan.model:
            raise SecAggError("the first model is not that of the plan")
        opened = self.last_opened(self._plan.digest)
        if int(header["after"]) < opened < k:
            raise SecAggError(
                "the instruction starts from an older state of this party than its last opened sum"
            )
        key = instruction_digest(int(header["round"]), tensors)
        if self._kept is not None and self._kept[0] == key:
            return self._kept[1]
        if k <= opened:
            raise SecAggError(
                f"this party has opened sum {opened + 1} of the plan, and trains for none up to it "
                "again"
            )
        return None

    def keys(
        self, header: Mapping[str, Any], tensors: Params, instruction: Instruction, reply: Reply
    ) -> bytes:
        """Keep what was learned, and return this party's keys."""
        assert self._plan is not None
        self._round = int(header["round"])
        self._instruction = instruction
        if self._layout(()).digest() != self._plan.layout:
            raise SecAggError("the layout of the plan is not that of this party's update")
        instructed = instruction_digest(self._round, tensors)
        if header.get("instruction") != instructed:
            raise SecAggError("the instruction is not the one that its digest says")
        self._kept = instructed, reply
        k = header["k"]
        attempt = header["attempt"]
        # whether numbers were cut is in the sum alone, not in which terms there are
        cuts = {BEYOND} if self.masks.counts_cuts(self.engine.strategy) else set()
        terms = sorted({*reply.terms, *cuts})
        keys = self.client.keys(self._plan.digest, k, attempt, instructed, terms)
        return pack({"keys": keys})

    def _layout(self, losses: Iterable[str]) -> Layout:
        assert self._instruction is not None
        strategy = self.engine.strategy
        return self.masks.layout(strategy, strategy.expects(self._instruction), losses)

    def answer(self, header: Mapping[str, Any]) -> bytes:
        """Answer one of the messages that follow the keys."""
        kind = header["kind"]
        request = header.get("content")
        client = self.client
        if not isinstance(request, dict):
            raise SecAggError("a message of the masked sum is damaged")
        if kind == "shares":
            return pack({"content": client.shares(request)})
        if kind == "open":
            return pack({"content": client.open(request)})
        if self._kept is None:
            raise SecAggError(
                "this party is in no attempt at a sum, perhaps after a restart: start a new attempt"
            )
        assert self._plan is not None
        # A later plan or instruction may have changed what is kept, and was refused its keys.
        if client.signed_for != (self._plan.digest, self._round, self._kept[0]):
            raise SecAggError(
                "what this party has learned is of another instruction than the keys that it has "
                "signed"
            )
        rho = bytes.fromhex(client.rho)
        layout = self._layout(client.extra)
        strategy = self.engine.strategy
        elements = self.masks.encode(strategy, layout, self._kept[1], rho, self._round, cut=True)
        hidden = client.masked(request, elements)
        if isinstance(hidden, dict):
            return pack({"content": hidden})
        return pack({}, {"elements": torch.from_numpy(hidden.view(np.int64))})


@dataclass(eq=False)
class SecAggSession:
    """The coordinator's side of the masked sums of one run."""

    link: Link
    names: Sequence[str]
    enrolment: Enrolment
    folder: Path
    masks: Masks
    strategy: Strategy
    timeout: float
    plan: Plan | None = None
    signatures: dict[str, str] = field(default_factory=dict)
    agreed: dict[str, str] = field(
        default_factory=dict
    )  # party -> token of the connection that was shown the plan
    unsigned: str = ""  # why the plan lacks signatures, while parties may still come back
    left_out: dict[str, str] = field(default_factory=dict)  # party -> why it is not in the last sum
    bound: Sequence[str] = ()  # without dropouts: who was in the sum before, and has to be in all
    down: int = 0
    up: int = 0

    def __post_init__(self) -> None:
        if stray := sorted(self.enrolment.parties.keys() - set(self.names)):
            raise RefusedError(
                f"federation.json lists {stray[0]!r}, which is not a party of this coordinator's "
                "kit"
            )
        self.masks = replace(self.masks, threshold=self.enrolment.threshold)

    def enrolled(self, clients: Sequence[int]) -> list[int]:
        """Return the clients that federation.json lists."""
        return [client for client in clients if self.names[client] in self.enrolment.parties]

    def stored_plan(self, facts: Mapping[str, Any]) -> bool:
        """Take the plan that an earlier coordinator has stored, if it says what this one's must."""
        path = self.folder / "plan.json"
        try:
            saved = parse_json(path.read_bytes())
            plan = Plan.read(saved["plan"])
            signed = signers(plan, saved["signatures"], self.enrolment)
        except FileNotFoundError:
            return False
        except (OSError, ValueError, TypeError, KeyError, SecAggError) as error:
            raise RefusedError(f"{path} is damaged ({error}): start a new run") from None
        if any(getattr(plan, name) != value for name, value in facts.items()):
            return False
        self.plan = plan
        self.signatures = {name: saved["signatures"][name] for name in signed}
        return True

    def new_plan(
        self, facts: Mapping[str, Any], weights: Mapping[str, float], instruction: Instruction
    ) -> None:
        """Make a plan for the run."""
        layout = self.masks.layout(self.strategy, self._expected(instruction)).digest()
        model = digest_of(dict(instruction.params))
        self.plan = Plan(**facts, layout=layout, weights=dict(weights), model=model)
        self.signatures = {}
        self.agreed = {}

    def _expected(self, instruction: Instruction) -> Params:
        return {name: value.cpu() for name, value in self.strategy.expects(instruction).items()}

    def agree(self, tokens: Mapping[str, str]) -> dict[str, str]:
        """Let parties that have not yet accepted the plan sign and accept it; return who refuses,
        and why.
        """
        assert self.plan is not None
        enrolled = {name: token for name, token in tokens.items() if name in self.enrolment.parties}
        new = [name for name, token in enrolled.items() if self.agreed.get(name) != token]
        if not new or len(enrolled.keys() | self.signatures.keys()) < self.enrolment.threshold:
            return {}
        self.agreed |= enrolled
        refused: dict[str, str] = {}
        content = self.plan.content()
        for name, header in self._texts(
            {name: {"kind": "plan", "plan": content} for name in new}, refused
        ):
            signature = header.get("signature")
            if self.enrolment.verify(name, signature, self.plan.signed_text):
                self.signatures[name] = str(signature)
            else:
                refused[name] = "it has signed another plan"
        self.unsigned = ""
        if len(self.signatures) < self.enrolment.threshold:
            self.unsigned = (
                f"{len(self.signatures)} parties have signed the plan of the masked sums, and "
                f"{self.enrolment.threshold} must{''.join(grouped(refused))}: fix that, and "
                "continue with --resume"
            )
            if any(why != SILENT for why in refused.values()):
                raise QuorumError(self.unsigned)
            self.agreed = {name: t for name, t in self.agreed.items() if name not in new}
            return {}  # who did not answer may come back, and all are asked again then
        write_json(self.folder / "plan.json", {"plan": content, "signatures": self.signatures})
        signed = {"kind": "signed", "plan": content, "signatures": self.signatures}
        for name, header in self._texts(
            {name: signed for name in new if name not in refused}, refused
        ):
            if header.get("accepted") is not True:
                refused[name] = "it has not accepted the plan"
        for clause in grouped(refused):
            _log.warning("not in the plan%s", clause)
        return refused

    def _texts(
        self, requests: Mapping[str, Message], refused: dict[str, str]
    ) -> Iterable[tuple[str, dict[str, Any]]]:
        for name, answer in self._send(requests):
            try:
                yield name, self._read(answer, _TEXT)[0]
            except WireError as error:
                refused[name] = str(error)

    def _send(self, requests: Mapping[str, Message]) -> Iterable[tuple[str, Content | None]]:
        messages = {name: pack(request) for name, request in requests.items()}
        self.down += sum(map(len, messages.values()))
        return exchange(self.link, messages, self.timeout)

    def _read(self, answer: Content | None, limit: int) -> tuple[dict[str, Any], Params]:
        self.up += len(answer or b"")
        return unpack_answer(answer, limit)

    def read_keys(self, answer: Content) -> Message:
        """Return the keys of a party's answer to an instruction."""
        keys = self._read(answer, _TEXT)[0].get("keys")
        extra = keys.get("extra") if isinstance(keys, dict) else None
        if not isinstance(keys, dict) or not isinstance(extra, list) or len(extra) > _LOSSES:
            raise WireError("it has sent no keys")
        if not all(
            isinstance(loss, str) and loss.isprintable() and len(loss) <= _NAME for loss in extra
        ):
            raise WireError("its losses have an impossible name")
        return keys

    def exchange(
        self, ask_keys: Callable[[Mapping[str, Message]], Iterable[tuple[str, Any]]], length: int
    ) -> Exchange:
        """Return what carries the messages of a sum."""

        def send(stage: Stage, requests: Mapping[str, Message]) -> Iterable[tuple[str, Any]]:
            if stage == "keys":
                yield from ask_keys(requests)
                return
            limit = _TEXT + (length if stage == "masked" else 0)
            for name, answer in self._send(
                {n: {"kind": stage, "content": request} for n, request in requests.items()}
            ):
                try:
                    header, tensors = self._read(answer, limit) if answer is not None else ({}, {})
                except WireError as error:
                    final = isinstance(error, PartyError) and error.final
                    yield name, {"error": str(error), "final": final}
                    continue
                elements = tensors.get("elements")
                if elements is not None and elements.dtype == torch.int64 and elements.ndim == 1:
                    yield name, elements.numpy().view(np.uint64)
                else:
                    content = header.get("content")
                    yield name, content if isinstance(content, dict) else None

        return send

    def sum(
        self,
        round: int,
        instruction: Instruction,
        quorum: Callable[[], int],
        clients: Sequence[int],
        ask_keys: Callable[[Mapping[str, Message]], Iterable[tuple[str, Any]]],
        patience: Patience,
    ) -> MaskedSum:
        """Return the sum of a round; a total that an earlier coordinator has stored is opened
        first.

        ``patience`` bounds how long parties without which there is no sum are asked again.
        """
        assert self.plan is not None
        plan = self.plan
        expected = self._expected(instruction)
        self.down = self.up = 0
        self.left_out = {}
        layout = partial(self.masks.layout, self.strategy, expected)
        send = self.exchange(ask_keys, 8 * (layout(()).length + 4 * _LOSSES * len(self.names)))
        path = self.folder / "total.safetensors"
        total = MaskedTotal.load(path)
        strict = total is not None and total.plan == plan.digest and not plan.dropouts
        self.bound = total.roster if total is not None and strict else []
        names = self._still_asked([self.names[client] for client in clients])
        if total is None or (total.plan, total.k) != (plan.digest, round):
            instructed = instruction_digest(
                round, under("params/", instruction.params) | under("extras/", instruction.extras)
            )
            total = gather(
                lambda attempt: SecAggServer(
                    self.enrolment,
                    plan.digest,
                    round,
                    attempt,
                    instructed,
                    lambda: min(quorum(), len(names)),
                ),
                names,
                send,
                lambda extra: layout(extra).length,
                self.left_out,
                patience.again,
            )
            total.save(path)
        place = {name: client for client, name in enumerate(self.names)}
        roster = [place[name] for name in total.roster]
        elements = _opened(total, send, patience, roster)
        weights = [plan.weight(name) for name in total.roster]
        rho = bytes.fromhex(total.rho)
        reply = self.masks.decode(
            self.strategy, layout(total.extra), elements, weights, rho, expected
        )
        reply = self._told(reply, round)
        refused = {place[name]: why for name, why in self.left_out.items()}
        return MaskedSum(reply, sorted(roster), refused, self.down, self.up)

    def _told(self, reply: Reply, round: int) -> Reply:
        """Warn if numbers were cut at a party, and return the sum without the term that says so."""
        if reply.terms.get(BEYOND):
            _log.warning(
                "round %s: updates had numbers beyond the range of the masks, which were cut: "
                "raise privacy.range, which is %g, or lower method.lr",
                round + 1,
                self.masks.range,
            )
        terms = {name: term for name, term in reply.terms.items() if name != BEYOND}
        return replace(reply, terms=terms)

    def _still_asked(self, names: Sequence[str]) -> list[str]:
        """Return who is asked for a sum: where one list serves all sums, who is on it."""
        kept = [name for name in names if name in (self.bound or names)]
        for name in names:
            if name not in kept:
                self.left_out[name] = "it was not in the sum before"
        return kept

    def check_list(self, revoked: Collection[str]) -> None:
        """Raise QuorumError where a party was revoked without which the others refuse a sum."""
        if gone := [name for name in self.bound if name in revoked]:
            raise QuorumError(
                f"{gone[0]} was revoked, and under masks one list of parties serves all sums: "
                "continue with --resume --set privacy.dropouts=allow, and let every other party "
                "join with --consent dropouts --consent again"
            )


def _opened(
    total: MaskedTotal, send: Exchange, patience: Patience, roster: Sequence[int]
) -> Elements:
    """Return the ring elements of a total, once enough of its parties have opened it."""
    while True:
        patience.wait(roster, lambda: total.threshold)
        try:
            return open_total(total, send)
        except SecAggError as error:
            if total.enough or not patience.again():
                raise
            _log.warning("%s", error)
