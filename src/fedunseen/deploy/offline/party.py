"""A party's side of a federation by file: one answer to a plan, under masks that cancel in the sum
of all answers.

The mask of two parties follows from their static keys of ``federation.json`` and from the plan's
file, which fixes the parties of the sum. Two answers under the same masks would reveal their
difference, so the ledger stores the one answer that is ever given, and the same bytes are written
again.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from fedunseen.core.bounds import check_model
from fedunseen.core.errors import DataError, RefusedError
from fedunseen.core.files import replacing
from fedunseen.core.parameters import Params, finite
from fedunseen.deploy.offline.answered import WITHDRAWN, keep_one
from fedunseen.deploy.offline.files import Signed, signed, withdrawals
from fedunseen.deploy.remote.masking import instruction_digest, plan_facts
from fedunseen.deploy.remote.party import Ready, local_update
from fedunseen.deploy.remote.wire import PLAN_BEFORE, PROTOCOL, reply_message
from fedunseen.deploy.secagg.enrolment import Credentials, Enrolment
from fedunseen.deploy.secagg.ledger import Ledger
from fedunseen.deploy.secagg.masks import Masks, digest_of
from fedunseen.deploy.secagg.primitives import (
    Elements,
    Operation,
    SecAggError,
    agree,
    apply_streams,
    canonical,
    digest,
)
from fedunseen.deploy.secagg.ring import Layout
from fedunseen.deploy.site import Site, planned
from fedunseen.federation.engine import Masking
from fedunseen.federation.in_process import InProcess
from fedunseen.strategies import Instruction, Strategy

CLEAR = "plan-clear"
_HELLO = {"kind", "protocol", "version", "experiment", "clients", "run", "space", "shape"}
_OTHER_LIST = (
    "the plan is of another federation.json than this party's: copy the newest one everywhere"
)
_NEW: Mapping[str, Any] = {
    "file": "",
    "answer": "",
    "withdrawn": False,
}  # the record of a plan not answered yet


def rho_of(plan: Signed) -> bytes:
    """Return what binds the masks and the check of a sum to the plan's file, and so to its
    parties.
    """
    instruction = {name: value for name, value in plan.tensors.items() if name not in plan.greeting}
    instruction_bytes = bytes.fromhex(instruction_digest(plan["k"], instruction))
    return digest(
        b"fedunseen offline",
        bytes.fromhex(plan.plan.digest),
        plan.id,
        str(plan["k"]).encode(),
        instruction_bytes,
    )


def layout_of(
    masks: Masking | None, strategy: Strategy, parties: int, instruction: Instruction
) -> tuple[Masks, Layout]:
    """Return how the sums of a closed form become ring elements, and which number stands where."""
    masks = masks or Masks(1.0, parties)
    assert isinstance(masks, Masks)
    return masks, masks.layout(strategy, strategy.expects(instruction))


def pair_masks(
    credentials: Credentials, parties: Iterable[str], rho: bytes, elements: Elements
) -> Elements:
    """Return ring elements under a mask for each other party of the sum."""
    hidden = elements.copy()
    streams: list[tuple[bytes, Operation]] = []
    for peer in sorted(set(parties) - {credentials.name}):
        names = (name.encode() for name in sorted((credentials.name, peer)))
        purpose = digest(b"fedunseen offline pair", rho, *names)
        key = agree(credentials.exchange, credentials.enrolment.parties[peer][1], purpose)
        streams.append((key, np.add if credentials.name < peer else np.subtract))
    apply_streams(hidden, streams)
    return hidden


def facts_of(
    hello: Mapping[str, Any], tensors: Params, enrolment: Enrolment, sums: int
) -> dict[str, Any]:
    """Return what a greeting fixes of a plan; see
    :func:`~fedunseen.deploy.remote.masking.plan_facts`.
    """
    settings = {
        **hello,
        "experiment": {"privacy": {}, **hello["experiment"]},
    }  # in clear, parties get no privacy
    return plan_facts(settings, tensors, enrolment, closed=True, sums=sums) | {"weights": {}}


def check_addressed(plan: Signed, credentials: Credentials) -> None:
    """Refuse a plan of another federation or coordinator, one that does not ask this party, or one
    that masks for too few.

    Raises:
        RefusedError: the remedy is in the message.
    """
    mine = credentials.enrolment
    parties = plan["parties"]
    if plan.enrolment.authority != mine.authority or plan.enrolment.coordinator != mine.coordinator:
        raise RefusedError(
            "the plan is signed by an unknown key, not by the coordinator in this party's "
            "federation.json: ask who has sent it"
        )
    if plan.enrolment.digest != mine.digest:
        raise RefusedError(_OTHER_LIST)
    if stray := sorted(set(parties) - set(mine.names)):
        raise RefusedError(
            f"the plan asks {stray[0]!r}, which is not in federation.json: ask for a new plan"
        )
    if credentials.name not in parties:
        raise RefusedError(
            f"the plan asks {', '.join(parties)}, and this party is {credentials.name}: there is "
            "nothing to do"
        )
    if plan["masked"] and len(parties) < mine.threshold:
        raise RefusedError(
            f"the plan asks {len(parties)} parties, and a masked sum of this federation takes "
            f"{mine.threshold} at least: the coordinator must plan with more"
        )


def _check_asked(plan: Signed, credentials: Credentials) -> None:
    """Refuse a plan that this party cannot answer with one message for each round."""
    check_addressed(plan, credentials)
    if plan.plan.federation != credentials.enrolment.digest:
        raise RefusedError(_OTHER_LIST)
    hello = plan["hello"]
    parties = plan["parties"]
    if hello.keys() - {"names", "removing", "before", PLAN_BEFORE} != _HELLO or (
        hello["protocol"],
        hello["clients"],
    ) != (
        PROTOCOL,
        len(parties),
    ):
        raise RefusedError(
            "the plan asks for more than one message from each party: ask for a new plan"
        )
    names = hello.get("names")
    removing = plan.plan.removing
    if names is None and removing and credentials.name not in removing:
        names = []  # this party would take itself for one that removes samples
    if names is not None and names != parties:
        raise RefusedError(
            "the plan does not say rightly which parties remove samples, and which hide their "
            "sums: ask for a new plan"
        )


class Asked:
    """One party that is asked by a plan's file, once plan, federation and owner fit together.

    Args:
        plan: its file.
        credentials: of the party.
        ledger: pins the federation, and notes that the history has grown.
        site: keeps what left.
        plain: whether the owner agrees to an answer in clear.

    Raises:
        RefusedError: the plan asks another party or federation, or for an answer in clear (code
            ``plan-clear``).
    """

    what: ClassVar[str] = "sums"

    def __init__(
        self,
        plan: Signed,
        credentials: Credentials,
        ledger: Ledger,
        site: Site,
        plain: bool = False,
    ) -> None:
        self.plan = plan
        self.credentials = credentials
        self.ledger = ledger
        self.site = site
        self.consent = frozenset(site.owner.consent)
        site.releases.bind(ledger)
        self.check_plan()
        if not plan["masked"] and not plain:
            raise RefusedError(
                f"the plan asks for {self.what} in clear: anyone with the answer sees this party's "
                f"{self.what}; answer with --plain if its owner agrees, or ask for a plan without "
                "--plain",
                CLEAR,
            )
        ledger.pin(credentials.enrolment, credentials.name)

    def check_plan(self) -> None:
        """Refuse a plan that this party cannot answer."""
        check_addressed(self.plan, self.credentials)

    def keep_one(self, what: str, content: bytes) -> None:
        """Refuse a second answer under the same masks, from any folder."""
        if self.plan["masked"]:
            given = hashlib.sha256(content).hexdigest()
            keep_one(self.site.owner.kit, [what], given, self.site.state, self.ledger)


class Answering(Asked):
    """One party that answers one plan."""

    def __init__(
        self,
        plan: Signed,
        credentials: Credentials,
        ledger: Ledger,
        site: Site,
        plain: bool = False,
    ) -> None:
        self.run, *_ = planned(plan["hello"])
        self.k: int = plan["k"]
        super().__init__(plan, credentials, ledger, site, plain)
        self._waived = list[str]()  # what the owner reads before the answer is stored
        ledger.tell = self._waived.append
        removing = plan.plan.removing
        if removing and plan["masked"]:
            ledger.check_removal(removing, plan["parties"], credentials.enrolment, self.consent)

    def check_plan(self) -> None:
        """Refuse a plan that this party cannot answer with one message for each round."""
        _check_asked(self.plan, self.credentials)
        instruction = self.plan.instruction
        check_model({**instruction.params, **instruction.extras})

    def check_classes(self, names: Iterable[str]) -> None:
        """Refuse to send samples of classes that federation.json does not let this party send."""
        if not self.plan.plan.removing:
            self.credentials.enrolment.check_classes(self.credentials.name, names)

    @property
    def _place(self) -> Path:
        assert self.ledger.folder is not None
        return self.ledger.folder / f"answer-{self.plan.plan.digest}-{self.k}.fedunseen"

    def stored(self) -> bytes | None:
        """Return the answer to this round that was given before; None if there is none."""
        record = self.ledger.plans.get(self.plan.plan.digest, {"offline": _NEW})
        before = record.get("offline")
        if before is not None and before["withdrawn"]:
            raise RefusedError(
                "this party has withdrawn from the plan, and never answers it: ask for a new plan"
            )
        answers = (
            [[before["file"], before["answer"]], *before.get("later", ())]
            if before and before["file"]
            else []
        )
        if len(answers) < self.k:
            raise RefusedError(
                f"this is round {self.k + 1} of the plan, and this party answers round "
                f"{len(answers) + 1} next"
            )
        if before is not None and len(answers) == self.k:
            if answers and (before["parties"], before["masked"]) != (
                self.plan["parties"],
                self.plan["masked"],
            ):
                raise RefusedError(
                    "the plan asks other parties than in the round before: ask for a new plan"
                )
            return None
        if not answers or answers[self.k][0] != self.plan.id.hex():
            raise RefusedError(
                "this party has answered another file with the same plan: ask for a new plan"
            )
        try:
            content = self._place.read_bytes()
        except OSError:
            content = b""
        if hashlib.sha256(content).hexdigest() != answers[self.k][1]:
            raise RefusedError(
                f"{self._place} is missing or damaged, and another answer under the same masks "
                "would reveal sums: restore it from a copy, or ask for a new plan"
            )
        self.site.wrote(self.run, content, {})  # a killed command may not have come so far
        return content

    def counts(self, ready: Ready) -> dict[str, int]:
        """Return what the history says of an answer beside its bytes."""
        if self.plan.adapts:
            return {"unlabelled": sum(1 for _ in ready.raw()), "round": self.k}
        return {"samples": ready.samples, "classes": ready.classes}

    def spent(self, ready: Ready) -> tuple[float, float]:
        """Return the (epsilon, delta) of the answer, from the noise that this party draws."""
        engine = ready.engine
        if engine is None or not isinstance(engine.masks, Masks):
            return math.inf, 0.0
        masks = replace(engine.masks, threshold=self.credentials.enrolment.threshold)
        return masks.spent(engine.strategy)

    def answer(self, ready: Ready) -> bytes:
        """Return the content of the answer from the party's samples, once its privacy is paid and
        it is stored and written down.
        """
        engine = ready.engine
        plan = self.plan
        self.check_classes(ready.names)
        if engine is None or not engine.strategy.adds:
            raise RefusedError(
                "the plan asks for more than one message: only methods in closed form work by file"
            )
        instruction = plan.instruction
        client = plan["parties"].index(self.credentials.name)
        try:
            masks, layout = layout_of(
                engine.masks, engine.strategy, len(plan["parties"]), instruction
            )
            self._check(engine, layout, instruction)
            samples = self.check(ready)
            reply, _ = local_update(engine, client, instruction, {}, self.k)
        except (TypeError, ValueError, IndexError, KeyError, RuntimeError) as error:
            raise RefusedError(
                f"the plan's instruction does not fit its experiment ({error}): ask for a new plan"
            ) from None
        if not finite(dict(reply.update)):
            raise DataError(
                "the sums of this party's samples are not finite: look for such numbers in its data"
            )
        if why := ready.left_out or engine.worker.left_out_of(client):
            self.site.say(why)
        tensors: Params
        if plan["masked"]:
            masks = replace(masks, threshold=self.credentials.enrolment.threshold)
            try:
                elements = masks.encode(engine.strategy, layout, reply, rho_of(plan), self.k)
                hidden = pair_masks(self.credentials, plan["parties"], rho_of(plan), elements)
            except SecAggError as error:
                raise RefusedError(f"this party's sums cannot be masked: {error}") from None
            tensors = {"elements": torch.from_numpy(hidden.view(np.int64))}
        else:
            message = reply_message(reply, None, self.k, 0.0)
            tensors = {"reply": torch.frombuffer(bytearray(message), dtype=torch.uint8)}
        fields = {
            "party": self.credentials.name, "plan": plan.plan.digest, "file": plan.id.hex(),
            "k": self.k, "masked": plan["masked"],
        }  # fmt: skip
        content = self._signed(fields, tensors)
        self.site.releases.charge(self.run, self.spent(ready), plan.plan.digest)
        self.keep_one(round_of(plan.plan.digest, self.k), content)
        for note in self._waived:
            self.site.say(note)
        self._store(content, samples)
        self.site.wrote(self.run, content, self.counts(ready))
        return content

    def _signed(self, fields: dict[str, Any], tensors: Params) -> bytes:
        return signed(
            "answer", fields, tensors, self.credentials.enrolment, self.credentials.signing
        )

    def _store(self, content: bytes, samples: frozenset[bytes]) -> None:
        others = self.plan["parties"] if self.plan["masked"] else ()
        self.ledger.release(self.plan.plan.digest, samples, others)
        with replacing(self._place) as temporary:
            temporary.touch(0o600)
            temporary.write_bytes(content)
        replaced = [plan for plan in self.ledger.plans if self._replaces(plan)]
        _record(self.ledger, self.plan, answer=hashlib.sha256(content).hexdigest())
        for plan in replaced:  # no sum with those that have withdrawn will ever be whole
            earlier = {**self.ledger.plans[plan]["offline"], "replaced": True}
            self.ledger.change_plan(plan, offline=earlier)

    def _replaces(self, other_plan: str) -> bool:
        return other_plan != self.plan.plan.digest and not self.k and not self._differs(other_plan)

    def _check(self, engine: InProcess, layout: Layout, instruction: Instruction) -> None:
        """Refuse a plan that says something else than its own greeting, from which this party has
        made itself ready.
        """
        plan = self.plan
        agreed = self.plan.plan
        facts = facts_of(
            plan["hello"], plan.greeting, self.credentials.enrolment, engine.strategy.rounds
        )
        facts |= {"layout": layout.digest()} | (
            {} if self.k else {"model": digest_of(instruction.params)}
        )
        wrong = [name for name, value in facts.items() if getattr(agreed, name) != value]
        if (engine.masks is not None) != plan["masked"] or layout.length != plan["elements"]:
            wrong.append("way of masking")
        if wrong:
            raise RefusedError(
                f"the plan's {wrong[0]} is not what its experiment says: ask for a new plan"
            )

    def check(self, ready: Ready) -> frozenset[bytes]:
        """Return the digests of this party's samples, unless the ledger refuses their sums."""
        plan = self.plan.plan
        if plan.removing:
            ready.check_removal(self.ledger, plan.digest, plan.content())
        samples = self.ledger.digests(ready.raw())
        self.ledger.compare_with(ready.present())
        masked = self.plan["masked"]
        asked = plan.digest, plan.content(), samples, self.plan["parties"] if masked else None
        self.ledger.check(*asked, self.consent, self._differs, masked)
        return samples

    def _differs(self, other_plan: str) -> str:
        """Say why this plan is not an answered one without parties that have withdrawn; "" if it
        is.

        The same parties again are refused, too: one of them may have other samples now, and the
        difference of both totals would be its own.
        """
        plan = self.plan
        if not self.ledger.same_federation(other_plan):
            return "that one was of another federation"
        record = self.ledger.plans.get(other_plan, {})
        earlier = record.get("offline")
        if earlier is not None and earlier.get("later"):
            return "that one has had further rounds"
        if earlier is None or earlier["masked"] != plan["masked"]:
            return "that one was of another kind"
        if earlier["sums"] != _sums(plan):
            return "that one was about other sums"
        before = set(earlier["parties"])
        now = set(plan["parties"])
        if new := sorted(now - before):
            return f"{', '.join(new)} took no part in that one"
        withdrawn = withdrawals(plan, self.credentials.enrolment)
        if unwithdrawn := [
            name for name in sorted(before - now) if other_plan not in withdrawn.get(name, ())
        ]:
            return (
                f"{', '.join(unwithdrawn)} took part in that one, without a withdrawal in this one"
            )
        if before == now:
            return "that one asked the same parties, and one may have other samples now"
        return ""


def withdraw(plan: Signed, credentials: Credentials, ledger: Ledger, site: Site) -> bytes:
    """Return the content of a withdrawal from a plan, and from all that it follows, once the ledger
    holds it.
    """
    _check_asked(plan, credentials)
    ledger.pin(credentials.enrolment, credentials.name)
    plans = sorted({plan.plan.digest}.union(*withdrawals(plan, credentials.enrolment).values()))
    for plan_digest in plans:
        record = ledger.plans.get(plan_digest)
        if record is not None and not (record.get("offline") or {}).get("withdrawn"):
            raise RefusedError(
                "this party has answered the plan, or one that it follows, so that a sum without "
                "this party would reveal its sums: it cannot withdraw"
            )
    first = [round_of(plan_digest, 0) for plan_digest in plans]
    keep_one(site.owner.kit, first, WITHDRAWN, site.state, ledger)
    for plan_digest in plans:
        if plan_digest not in ledger.plans:
            _record(ledger, plan, plan_digest, withdrawn=True)
    return signed(
        "withdrawal",
        {"party": credentials.name, "plans": plans},
        {},
        credentials.enrolment,
        credentials.signing,
    )


def round_of(plan: str, k: int) -> str:
    """Return what identifies a round of a plan."""
    return f"{plan}-{k}"


def _sums(plan: Signed) -> str:
    """Return what identifies the sums that a plan asks for, for any parties."""
    same = {
        key: value for key, value in plan["hello"].items() if key not in ("run", "clients", "names")
    }
    return digest(canonical(same), bytes.fromhex(digest_of(plan.tensors))).hex()


def _record(
    ledger: Ledger, plan: Signed, which: str = "", answer: str = "", withdrawn: bool = False
) -> None:
    """Keep durably what was done with a plan, so that no sum of it is ever made over a network
    either.
    """
    which = which or plan.plan.digest
    mine = {
        "file": plan.id.hex(), "parties": plan["parties"], "masked": plan["masked"], "answer": answer,
        "withdrawn": withdrawn, "sums": _sums(plan),
    }  # fmt: skip
    if plan["k"] and not withdrawn:
        before = ledger.plans[which]["offline"]
        mine = {**before, "later": [*before.get("later", ()), [plan.id.hex(), answer]]}
    done = {"k": plan.plan.sums, "rho": "", "reply": {}}
    ledger.change_plan(
        which, content=plan.plan.content(), signatures={}, waiting=None, opened=done, offline=mine
    )
