"""A first look over the links that carry runs: the files of a look are its messages.

The coordinator asks each party of a plan with the plan's file, and gets the answer's. What a party
checks, lists, writes down and keeps is as by file, so that the same plan has the same answers.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedunseen.core.errors import ArgumentError, FedUnseenError, QuorumError, RefusedError
from fedunseen.core.files import free_folder, whole_folder, write_json
from fedunseen.core.parameters import Params
from fedunseen.core.text import printable
from fedunseen.deploy.existing_federation import (
    OPTIONS,
    OWN_STATE,
    check_options,
    few_of,
    flag,
    owner_of,
)
from fedunseen.deploy.look.coordinator import facts_of, read_look
from fedunseen.deploy.look.findings import findings
from fedunseen.deploy.look.party import Looking
from fedunseen.deploy.look.question import ANSWER, FORM, LIMIT, PLAN
from fedunseen.deploy.offline.files import Signed, read_content
from fedunseen.deploy.remote import refusals
from fedunseen.deploy.remote.link import HEADER, Content, exchange, may_return
from fedunseen.deploy.remote.wire import (
    WireError,
    failure,
    farewell,
    pack,
    unpack,
    unpack_answer,
)
from fedunseen.deploy.secagg.enrolment import Credentials
from fedunseen.deploy.secagg.ledger import Ledger
from fedunseen.deploy.site import Site, at_site
from fedunseen.federation.engine import Session

CONSENT = frozenset({"again", "federations", "look", "moved", "names"})
"""What the owner of a site may agree to."""
PATIENCE = 3600.0
"""Seconds to wait for all parties."""
FEW = 20
"""A class that one party alone holds with fewer samples is worth a warning."""
_KIND = "look"
_MOST = LIMIT + HEADER + 2**10  # bytes of a message with a file
_FAREWELL = 15.0  # seconds for parties to hear that the look is over
_LOOK = 0.2  # seconds between two looks at who is connected
_log = logging.getLogger("fedunseen.federation")


def _packed(content: bytes) -> bytes:
    return pack({"kind": _KIND}, {"file": torch.frombuffer(bytearray(content), dtype=torch.uint8)})


def _file_of(header: Mapping[str, Any], tensors: Params) -> bytes:
    """Return the file of a message; raises WireError where it has none."""
    file = tensors.get("file")
    if header != {"kind": _KIND} or len(tensors) != 1 or file is None:
        raise WireError("it holds no file of a look")
    if file.dtype != torch.uint8 or file.dim() != 1 or len(file) > LIMIT:
        raise WireError("its file is damaged, or too long")
    return file.numpy().tobytes()


class LookingParty:
    """Answers a look over a link, at its site; a refusal ends it.

    Args:
        credentials: of the party.
        ledger: of the site.
        site: keeps what left.
        label: of a table: the column with the classes.
        minimum: each count is rounded down to a multiple of it.
        agrees_to_clear: whether the owner agrees to counts in clear.

    Attributes:
        done: set once the look is over.
        error: why the party has refused; None if it has not.
    """

    def __init__(
        self,
        credentials: Credentials,
        ledger: Ledger,
        site: Site,
        label: str,
        minimum: int,
        agrees_to_clear: bool,
    ) -> None:
        self.credentials = credentials
        self.ledger = ledger
        self.site = site
        self.label = label
        self.minimum = minimum
        self.agrees_to_clear = agrees_to_clear
        self.done = threading.Event()
        self.error: FedUnseenError | None = None
        self._turn = threading.Lock()

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a message; an error is part of it, and is never raised."""
        with self._turn:
            self.site.received += len(message)
            self.site.heard = time.time()
            if self.error is not None:
                return failure(refusals.LEFT)
            try:
                return self._answered(message)
            except FedUnseenError as error:
                return self._refused(error)
            except WireError as error:
                words = f"the message cannot be read: {error}"
                return self._refused(RefusedError(words, refusals.MESSAGE))
            except OSError as error:
                words = f"the party cannot write its history of releases ({error.strerror})"
                return self._refused(FedUnseenError(words, refusals.code_of(error)))
            except Exception as error:  # a library failed: the owner reads why
                reason = printable(f"{type(error).__name__}: {error}")
                return self._refused(FedUnseenError(f"the look could not be answered ({reason})"))

    def _answered(self, message: bytes) -> bytes:
        header, tensors = unpack(message, _MOST)
        if header.get("kind") == "stop":
            self.site.finished("the look is over")
            self.done.set()
            return pack({})
        if header.get("kind") != _KIND:
            raise RefusedError(
                "the coordinator asks for a run, and this site takes part in a look alone: start "
                "the site for a run",
                refusals.MESSAGE,
            )
        plan = read_content(_file_of(header, tensors), "the look's plan", PLAN, FORM)
        data = self.site.owner.data
        assert data is not None
        looking = Looking(plan, self.credentials, self.ledger, self.site, self.agrees_to_clear)
        content, _ = looking.given(data, self.label, self.minimum, self.site.say)
        return _packed(content)

    def _refused(self, error: FedUnseenError) -> bytes:
        """Refuse, once: only a code leaves, and no text."""
        self.error = error
        self.site.refused(error)
        answer = failure(refusals.code_of(error))
        digest = hashlib.sha256(answer).hexdigest()
        with contextlib.suppress(
            OSError, FedUnseenError
        ):  # a full disk: a code leaves all the same
            self.site.releases.add("look-refused", "refusal", bytes=len(answer), sha256=digest)
        self.site.sent += len(answer)
        self.done.set()
        return answer


@contextlib.contextmanager
def looking_on(place: Mapping[str, Any], state: Path, say: Any) -> Iterator[LookingParty]:
    """Yield the party that its site describes; no other process takes its folder meanwhile.

    Args:
        place: as for a run (:func:`~fedunseen.deploy.existing_federation.taking_part`), and
            ``label`` and ``plain``. What only concerns a run is left alone.
        state: what the party keeps.
        say: takes what the party's owner may read, and no one else.

    Raises:
        FedUnseenError: an option or the credentials are not as they must be.
    """
    check_options(place, (*OPTIONS, "label", "plain"))
    owner = owner_of(place)
    if owner.kit is None or owner.data is None:
        raise ArgumentError(
            "a look needs this site's data and credentials: add the folder that `fedunseen certs` "
            "made"
        )
    credentials = Credentials.load(owner.kit)
    minimum = few_of(place)
    clear = flag(place, "plain")
    with at_site(state, owner, say, OWN_STATE) as site:
        ledger = Ledger(state / "ledger", str(owner.data.resolve()), "moved" in owner.consent)
        yield LookingParty(credentials, ledger, site, str(place.get("label") or ""), minimum, clear)


def ask(
    session: Session, plan: Signed, out: Path, few: int = FEW, patience: float = PATIENCE
) -> dict[str, Any]:
    """Ask the parties of a plan, write the look's folder, and tell them that the look is over.

    Where one refuses or is away, the others keep their answers: the same plan gets them again.

    Args:
        session: reaches the parties.
        plan: of the look.
        out: the folder to write.
        few: as for :func:`~fedunseen.deploy.look.findings.findings`.
        patience: seconds to wait for all.

    Returns:
        what ``look.json`` holds.

    Raises:
        QuorumError: a party is missing under masks, or all are.
        RefusedError: the answers have no sum.
    """
    free_folder(out)
    facts = write_look(plan, _gather(session, plan, patience), out, few)
    there = dict.fromkeys(session.link.present(), farewell())
    for _ in exchange(session.link, there, _FAREWELL):
        pass
    return facts


def write_look(
    plan: Signed, files: Sequence[tuple[object, Signed]], out: Path, few: int
) -> dict[str, Any]:
    """Write ``look.json`` and its page, whole or not at all, and return what the former holds."""
    from fedunseen.cli.console import pages_of

    look = read_look(plan, files)
    facts = facts_of(look, [each._asdict() for each in findings(look, few)])
    with whole_folder(out) as partial:
        write_json(partial / "look.json", facts)
        pages_of("LOOK_PAGES", facts, partial)
    return facts


def _gather(session: Session, plan: Signed, patience: float) -> list[tuple[object, Signed]]:
    """Return the answers. A party that has refused is asked again once it has started anew. Where
    it cannot, a masked look ends, and one in clear continues without it.
    """
    message = _packed(plan.content)
    answers: dict[str, Signed] = {}
    why: dict[str, str] = {}
    refused: dict[str, str] = {}  # party -> the process that has refused
    end = time.monotonic() + patience
    said: list[str] = []
    while missing := [name for name in plan["parties"] if name not in answers]:
        there = session.link.present()
        asked = [name for name in missing if name in there and refused.get(name) != there[name]]
        left = end - time.monotonic()
        final = {} if may_return(session.link) else refused
        if left <= 0 or (final and (plan["masked"] or final.keys() >= set(missing))):
            break
        for name, content in exchange(session.link, dict.fromkeys(asked, message), left):
            if content is None:
                continue
            try:
                answers[name] = _read(plan, name, content)
                _log.info("%s has answered", name)
            except (WireError, RefusedError) as error:
                why[name] = str(error)
                refused[name] = there[name]
                _log.warning("%s refuses: %s", name, error)
        if not asked and missing != said:
            _log.info("waiting for %s", ", ".join(missing))
            said = missing
        if not asked:
            time.sleep(_LOOK)
    if missing and (plan["masked"] or not answers):
        reasons = "; ".join(
            f"{name} refuses ({why[name]})" if name in why else f"{name} is not there"
            for name in missing
            if name in why or not final
        )
        raise QuorumError(
            f"the look has no sum: {reasons}: fix that, and ask with the same plan again"
        )
    return [(f"the answer of {name}", answer) for name, answer in answers.items()]


def _read(plan: Signed, name: str, content: Content) -> Signed:
    """Return a party's answer."""
    header, tensors = unpack_answer(content, _MOST)
    answer = read_content(_file_of(header, tensors), f"the answer of {name}", ANSWER, FORM)
    if answer.signer != name or answer["plan"] != plan.id.hex():
        raise RefusedError(f"the answer of {name} is of another party or plan: ask it again")
    return answer
