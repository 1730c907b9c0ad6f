"""The coordinator's side of a federation by file: it writes a plan, and adds up the answers.

``engine.name = "offline"`` is the engine of such a run: its one round merges what the files hold.
"""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedunseen.core.errors import ExperimentError, QuorumError, RefusedError
from fedunseen.core.files import parse_json, write_json
from fedunseen.core.parameters import ClientStates, Params, to_device, under
from fedunseen.deploy.offline.files import Signed, read, signed, sum_of_elements
from fedunseen.deploy.offline.party import facts_of, layout_of, rho_of
from fedunseen.deploy.remote.clients import Parties
from fedunseen.deploy.remote.coordinator import Distributed
from fedunseen.deploy.remote.wire import Expected, WireError, read_reply
from fedunseen.deploy.secagg.enrolment import Enrolment
from fedunseen.deploy.secagg.masks import Masks, digest_of
from fedunseen.deploy.secagg.plan import Plan
from fedunseen.deploy.secagg.primitives import SecAggError
from fedunseen.federation.engine import PartyStatus, Session
from fedunseen.federation.server_step import Arrivals, MaskedSum, RoundResult, server_step
from fedunseen.strategies import Instruction, Reply

_PLAN = Path("secagg", "plan.json")  # in a run directory


@dataclass(eq=False)
class Table(Session):
    """Stands for the link to the parties where their answers are files."""

    link: Any = None
    parties: list[PartyStatus] = field(default_factory=list)
    brought: Arrivals | None = None


class Offline(Distributed, name="offline"):
    """Merges the answers of files in one round: ``fedunseen offline plan``, ``answer`` and
    ``merge``.
    """

    clients: Parties

    @property
    def masks(self) -> Masks | None:
        """How parties mask what they send, if they do."""
        return self.clients.masks

    @property
    def asks_again(self) -> bool:
        """Whether a run asks again: another plan does."""
        return False

    def connect(self, meeting: Session) -> None:
        """Take what the files hold."""
        self.clients.seat(meeting)

    def greeting(self, parties: Iterable[str], run: str) -> tuple[dict[str, Any], Params]:
        """Return what all parties have to know of the experiment."""
        self.clients.seat(Table(parties=[PartyStatus(name) for name in parties], run=run))
        self.clients.enrolment = None  # the plan carries federation.json whole
        hello, tensors = self.clients.hello()
        return json.loads(json.dumps(hello)), tensors

    def read(self, plan: Signed, answers: Mapping[str, Signed]) -> Arrivals:
        """Return what the answers to a plan hold, once it can be merged."""
        strategy = self.strategy
        sizes = (
            len(plan.content) * len(answers),
            sum(len(answer.content) for answer in answers.values()),
        )
        masks, layout = layout_of(self.masks, strategy, len(answers), plan.instruction)
        expected = strategy.expects(plan.instruction)
        if not plan["masked"]:
            if not plan.plan.removing:  # a party may remove what it was allowed to send
                self.clients.seat(Table(parties=[PartyStatus(name) for name in plan["parties"]]))
                self.clients.restrict(plan.enrolment, strategy)
            replies = [
                self._read_plain(client, answers[name], expected)
                for client, name in enumerate(plan["parties"])
            ]
            return Arrivals(replies, lambda place: {}, {}, *sizes)
        total = sum_of_elements(answers, layout.length)
        try:
            reply = masks.decode(
                strategy, layout, total, [1.0] * len(answers), rho_of(plan), expected
            )
        except SecAggError as error:
            raise RefusedError(
                f"the answers have no sum: {error}: start again with a new plan"
            ) from None
        if why := strategy.check(reply):
            raise RefusedError(f"the sum of the answers is refused: {why}")
        masked = MaskedSum(reply, list(range(len(answers))))
        return Arrivals([reply], lambda place: {}, {}, *sizes, masked=masked)

    def _read_plain(self, client: int, answer: Signed, expected: Params) -> Reply:
        message = answer.tensors.get("reply")
        try:
            if message is None or message.dtype != torch.uint8:
                raise WireError("it holds no sums")
            wanted = Expected(client, answer["k"], expected, frozenset(), self.classes, self.notes)
            reply = read_reply(message.numpy().tobytes(), wanted)[0]
            if why := self.strategy.check(reply):
                raise WireError(why)
        except WireError as error:
            raise RefusedError(f"the answer of {answer['party']} is refused: {error}") from None
        return reply

    def round(
        self,
        round: int,
        state: Params,
        params: Params,
        client_states: ClientStates,
        clients: Sequence[int],
    ) -> RoundResult:
        """Merge what the files hold."""
        meeting = self.clients.meeting
        assert isinstance(meeting, Table)
        assert meeting.brought is not None
        brought = meeting.brought
        device = next(iter(params.values())).device
        replies = [
            replace(reply, update=to_device(dict(reply.update), device))
            for reply in brought.replies
        ]
        for client, party in enumerate(self.parties):
            party.rounds += 1
            if brought.masked is None:
                party.classes = replies[client].classes
                party.samples = replies[client].samples
        masked = None if brought.masked is None else replace(brought.masked, reply=replies[0])
        arrived = replace(brought, replies=[] if masked else replies, masked=masked)
        return server_step(self.strategy, state, params, arrived, round)

    def finish(self, result: Mapping[str, Any], params: Params) -> None:
        """Do nothing: no party waits for the result."""

    finish_late = finish


def withdrawn(paths: Iterable[Path], enrolment: Enrolment) -> list[Signed]:
    """Read withdrawals."""
    withdrawals = [read(path, "withdrawal") for path in paths]
    for withdrawal in withdrawals:
        if withdrawal.enrolment.authority != enrolment.authority:
            raise RefusedError(
                f"the withdrawal of {withdrawal['party']} is of another federation: leave it out"
            )
    return withdrawals


def check_parties(
    enrolment: Enrolment, parties: Sequence[str], masked: bool, withdrawals: Sequence[Signed] = ()
) -> None:
    """Refuse parties that no plan can ask."""
    if stray := [name for name in parties if name not in enrolment.parties]:
        enrolled = ", ".join(enrolment.parties)
        raise ExperimentError(
            f"--parties names {stray[0]!r}, which is not in federation.json: name some of "
            f"{enrolled}"
        )
    if masked and len(parties) < enrolment.threshold:
        raise ExperimentError(
            f"--parties names {len(parties)}, and a masked sum of this federation takes "
            f"{enrolment.threshold} at least: name more, or give --plain, with which the "
            "coordinator sees each party's sums"
        )
    if withdrawn := [
        withdrawal["party"] for withdrawal in withdrawals if withdrawal["party"] in parties
    ]:
        raise ExperimentError(f"{withdrawn[0]} has withdrawn: leave it out of --parties")


def make_plan(
    engine: Offline,
    enrolment: Enrolment,
    private: bytes,
    parties: Sequence[str],
    withdrawals: Sequence[Signed] = (),
    instruction: Instruction | None = None,
) -> bytes:
    """Return the content of a plan."""
    nonce = secrets.token_hex(16)
    hello, tensors = engine.greeting(parties, nonce[:16])
    strategy = engine.strategy
    instruction = instruction or Instruction({})
    _, layout = layout_of(engine.masks, strategy, len(parties), instruction)
    facts = facts_of(hello, tensors, enrolment, strategy.rounds)
    plan = Plan(
        **facts, model=digest_of(dict(instruction.params)), layout=layout.digest(), nonce=nonce
    )
    fields = {
        "plan": plan.content(), "k": 0, "parties": list(parties), "masked": engine.masks is not None,
        "elements": layout.length, "hello": hello,
        "withdrawals": [dict(withdrawal.header) for withdrawal in withdrawals],
    }  # fmt: skip
    return signed(
        "plan", fields, tensors | under("params/", dict(instruction.params)), enrolment, private
    )


def next_round(plan: Signed, instruction: Instruction, private: bytes) -> bytes:
    """Return the content of a plan's file for its next round: the same plan with another
    instruction.
    """
    fields = {
        name: plan[name]
        for name in ("plan", "parties", "masked", "elements", "hello", "withdrawals")
    }
    tensors = plan.greeting | under("params/", dict(instruction.params))
    return signed("plan", {**fields, "k": plan["k"] + 1}, tensors, plan.enrolment, private)


def check_same(engine: Offline, plan: Signed, instruction: Instruction, path: Path) -> None:
    """Refuse to merge answers to a plan that the coordinator would not write now."""
    hello, tensors = engine.greeting(plan["parties"], plan["hello"]["run"])
    tensors |= under("params/", dict(instruction.params))
    if hello != plan["hello"] or digest_of(tensors) != digest_of(plan.tensors):
        raise RefusedError(
            f"the experiment or the coordinator's data are not those of {path}: write a new plan"
        )


def keep_plan(path: Path, plan: Signed) -> None:
    """Keep in a run directory under which plan parties have answered."""
    (path / _PLAN).parent.mkdir(exist_ok=True)
    write_json(path / _PLAN, {"plan": plan["plan"], "signatures": {}})


def plan_of(path: Path) -> str:
    """Return the digest of the plan of a run, by file or of masked sums; "" if its directory has
    none.
    """
    try:
        return Plan.read(parse_json((path / _PLAN).read_bytes())["plan"]).digest
    except (OSError, ValueError, TypeError, KeyError, SecAggError):
        return ""


def gather(plan: Signed, paths: Iterable[Path]) -> dict[str, Signed]:
    """Read the answers to a plan, in the order of its parties; the plan itself may be among the
    files.
    """
    by_party: dict[str, tuple[Path, Signed]] = {}
    withdrawn: set[str] = set()
    for path in paths:
        signed = read(path, limit=max(plan.limit, len(plan.content)))
        if signed.kind == "plan" and signed.id == plan.id:
            continue
        if signed.kind == "withdrawal" and plan.plan.digest in signed["plans"]:
            withdrawn.add(signed["party"])
            continue
        if (
            signed.kind == "answer"
            and signed["plan"] == plan.plan.digest
            and signed["k"] != plan["k"]
        ):
            raise RefusedError(
                f"{path} answers round {signed['k'] + 1} of the plan, and this is round "
                f"{plan['k'] + 1}"
            )
        if signed.kind != "answer" or (signed["plan"], signed["file"]) != (
            plan.plan.digest,
            plan.id.hex(),
        ):
            raise RefusedError(
                f"{path} belongs to another plan: leave it out, or ask {signed.signer} for its "
                "answer"
            )
        name = signed["party"]
        if signed.enrolment.digest != plan.enrolment.digest or name not in plan["parties"]:
            raise RefusedError(
                f"{path} is signed by {name}, whose key the plan does not know: leave it out"
            )
        if name in by_party:
            raise RefusedError(
                f"{path} and {by_party[name][0]} are both of {name}: give one of them"
            )
        by_party[name] = path, signed
    if missing := [name for name in plan["parties"] if name not in by_party]:
        note = " (withdrawn: {})".format(", ".join(sorted(withdrawn))) if withdrawn else ""
        useless = (
            "the others' masked files have no sum without it"
            if plan["masked"]
            else "the plan counts on it"
        )
        raise QuorumError(
            f"no answer of {', '.join(missing)}{note}, and {useless}: wait for it, or let it write "
            "a withdrawal with `fedunseen offline withdraw` and plan again without it"
        )
    return {name: by_party[name][1] for name in plan["parties"]}
