"""What a party must keep over restarts, so that no sum is opened twice.

``ledger.json`` holds the accepted plans with the last opened sum of each and its reply, the sum
that waits for its opening, and of each federation that the party belongs to, known by its
authority: the newest list of parties, all rosters of opened sums and of answers to a first look,
who took part in further masked sums, and whether a look counted this party's samples in clear.
``released-PLAN.bin`` holds keyed digests of each sample whose sums were released under that plan,
in any federation: of its content, and of its class and which of its copies it is, since a sum has
all of them. ``clear-DIGEST.bin`` holds the same of samples whose sums or updates runs took in clear
over a network. Files are whole or absent. Keys and seeds of an attempt are never written.

:meth:`Ledger.check` is the one rule that decides which sums are released: over a network, in a
federation of Flower or NVFlare, and by file.
"""

import copy
import hashlib
import os
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedunseen.core.errors import RefusedError, counted
from fedunseen.core.files import holding, parse_json, replacing
from fedunseen.deploy.secagg.enrolment import Enrolment
from fedunseen.deploy.secagg.primitives import canonical

Sample = bytes | tuple[bytes, bytes]
"""A sample's content, alone or with its class: a row of a table holds its class itself."""

_CONTENT = 16  # bytes of the digest of a sample's content
_DIGEST = 2 * _CONTENT  # with that of its class and its number behind it
_SHOWN = 16  # of the name of a run, as in `fedunseen ledger`
_UNKNOWN_CLASS = bytes(_DIGEST - _CONTENT)
_WITH_CLASSES = b"samples with classes\n"  # begins a file; earlier versions kept contents alone
_WRITES = frozenset({"writes", "history"})  # a file of the first version lacks them
_KEYS = frozenset({"key", "data", "plans", "released", "federations"}) | _WRITES
_CLEAR = "clear"  # once a run took samples in clear: the digest of all of them -> the runs
_ONE = frozenset({"authority", "serial", "rosters"})  # in place of federations, in earlier versions
_EARLIER = _KEYS - {"federations"} | _ONE
ASKING = "asking"
"""The ``evaluation.confidence`` of a plan that asks once more about the samples of another one."""
_RELEASED = "sums of some of these samples were released under another plan"
_OTHER_FEDERATION = "that one was of another federation"
_ANNOUNCED = ("auto", "histograms")
# of a federation; earlier versions lack them
_LOOSE = "loose"  # who took part in masked sums that the rule of one roster does not count
_COUNTED = "counted"  # whether a look has counted samples in clear
_SAME = ("scaling", "quantization", "privacy")  # of a removal's plan and of that of the run


class Ledger:
    """A party's durable state."""

    def __init__(
        self, folder: Path | None = None, data: str | None = "", moved: bool = False
    ) -> None:
        """Read a ledger, or begin one.

        Args:
            folder: where it is; None: it is not kept.
            data: the folder of the samples; None: whose ledger it is, is judged later.
            moved: the samples of the ledger are in another folder now.

        Raises:
            RefusedError: it is damaged, or that of another data folder.
        """
        self.folder = folder
        self._released: dict[str, frozenset[bytes]] = {}
        self._in_clear: dict[str, frozenset[bytes]] = {}
        self._file = b""  # as this process has read or written it
        self._present: frozenset[bytes] | None = None
        self._authority = ""  # of the federation that asks
        self._name = ""  # of this party there
        self.history: Callable[[], Mapping[str, Any]] | None = None
        """Returns what every write notes of the history of releases beside this ledger."""
        self.in_clear: Callable[[], Mapping[str, bool]] = dict
        """Returns the runs of that history that had answers in clear -> whether this ledger has
        kept the samples of all of them.
        """
        self.tell: Callable[[str], None] = lambda text: None
        """Takes what the owner reads of the rules that a consent waives."""
        self._told = set[tuple[str, frozenset[bytes], str]]()  # for which sum of which samples, why
        content = self._read()
        key = secrets.token_bytes(32)
        keyed = bytes.fromhex(content["key"]) if content else key
        mark = hashlib.blake2b(
            (data or "").encode(), key=keyed, digest_size=16, person=b"data folder"
        ).hexdigest()
        if content is None:
            content = {"key": key.hex(), "data": mark, "plans": {}, "federations": {}}
            content |= {"released": [], "writes": 0, "history": {}}
        elif data is not None and content["data"] != mark:
            if not moved:
                raise RefusedError(
                    f"{folder} is the ledger of another data folder than {data}: pass --consent "
                    "moved if it has the same samples, moved, copied or encoded; other samples "
                    "have their own --state"
                )
            content["data"] = mark
        self._content = content
        self.writes: int | None = content.get("writes")
        """How often the file was written, or None for a file of a version that did not count."""

    @property
    def plans(self) -> dict[str, dict[str, Any]]:
        """The accepted plans."""
        plans: dict[str, dict[str, Any]] = self._content["plans"]
        return plans

    @property
    def identity(self) -> str:
        """What tells this ledger from one that is begun anew, also in the same folder."""
        key = bytes.fromhex(self._content["key"])
        return hashlib.blake2b(key=key, digest_size=16, person=b"ledger").hexdigest()

    @property
    def rosters(self) -> list[list[str]]:
        """All rosters of opened sums and of answered looks in the federation that asks."""
        rosters: list[list[str]] = self._federation["rosters"]
        return rosters

    @property
    def _federation(self) -> dict[str, Any]:
        known: dict[str, dict[str, Any]] = self._content["federations"]
        return known.get(self._authority, {"serial": 0, "rosters": []})

    @property
    def noted(self) -> dict[str, Any]:
        """What the last write noted of the history of releases; empty if there was none."""
        return dict(self._content.get("history", {}))

    def pin(self, enrolment: Enrolment, name: str = "") -> None:
        """Keep the federation that asks, by the authority of its list of parties, which comes from
        the party's own credentials. One ledger serves several: samples count for all of them.

        Args:
            enrolment: its list of parties.
            name: which of them this party is.

        Raises:
            RefusedError: the list is older than one that was used before, or another one of the
                same number.
        """
        self._authority = enrolment.authority.hex()
        self._name = name
        before = self._federation
        now: dict[str, Any] = {"serial": enrolment.serial, "list": enrolment.digest}
        now |= {"name": name} if name else {}
        if now["serial"] < before["serial"]:
            raise RefusedError(
                "federation.json is older than the one that this party has used before: copy the "
                "newest one"
            )
        if now["serial"] == before["serial"] and before.get("list", now["list"]) != now["list"]:
            raise RefusedError(
                "federation.json is another list than one of the same number that this party has "
                "used before: let the authority say which one counts, and sign a new one"
            )
        if not before.items() >= now.items():
            self.write(self._with(**now))

    def _with(self, **changes: Any) -> dict[str, Any]:
        """Return a change of what is kept of the federation that asks."""
        changed = {**self._federation, **changes}
        return {"federations": {**self._content["federations"], self._authority: changed}}

    def same_federation(self, plan: str) -> bool:
        """Say whether a plan is of the federation that asks."""
        return bool(self._authority_of(plan) == self._authority)

    def _authority_of(self, plan: str) -> str:
        authority: str = self.plans.get(plan, {}).get("authority", self._authority)
        return authority

    def write(self, changes: Mapping[str, Any]) -> None:
        """Change keys of the ledger, durably. If writing fails, nothing has changed."""
        noted = self.noted if self.history is None else dict(self.history())
        content = {**self._content, **changes, "writes": (self.writes or 0) + 1, "history": noted}
        if self.folder is not None:
            text = canonical(content)
            path = self._path("ledger.json")
            whole = text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n"
            path.parent.mkdir(parents=True, exist_ok=True)
            with holding(self.folder) as held:
                if not held or (path.read_bytes() if path.exists() else b"") != self._file:
                    raise RefusedError(
                        f"{path} is in use by another process: end it, and start this one again"
                    )
                _write(path, whole)
            self._file = whole
        self._content = content
        self.writes = content["writes"]

    def change_plan(self, plan: str, roster: Iterable[str] | None = None, **changes: Any) -> None:
        """Change an accepted plan's record, durably.

        Args:
            plan: its digest.
            roster: is added to the rosters of opened sums.
            changes: keys of the record.
        """
        before = self.plans.get(plan, {"authority": self._authority})
        plans = {**self.plans, plan: {**before, **copy.deepcopy(changes)}}
        kept = {} if roster is None else self._with_roster(roster)
        self.write({"plans": plans, **kept})

    def _with_roster(self, roster: Iterable[str], looked: bool = False) -> dict[str, Any]:
        new = sorted(roster)
        rosters = self.rosters if new in self.rosters else [*self.rosters, new]
        return self._with(rosters=rosters, looked=looked or _has_looked(self._federation))

    def _with_loose(self, names: Iterable[str]) -> dict[str, Any]:
        known = self._federation.get(_LOOSE, [])
        new = set(names).difference(known, *self.rosters)
        return self._with(**{_LOOSE: sorted(new.union(known))}) if new else {}

    def keep_look(self, roster: Collection[str], consent: Collection[str]) -> None:
        """Keep durably who takes part in a masked look, which may count any samples.

        Raises:
            RefusedError: a sum of others was released (code ``roster-differs``).
        """
        self.check_roster(roster, samples=None, consent=consent)
        self._keep(self._with_roster(roster, looked=True))

    def keep_look_in_clear(self) -> None:
        """Keep durably that a look counts samples of this party in clear, which may be any."""
        self._keep(self._with(**{_COUNTED: True}))

    def _keep(self, kept: Mapping[str, Any]) -> None:
        if kept["federations"] != self._content["federations"]:
            self.write(kept)

    def digests(self, samples: Iterable[Sample]) -> frozenset[bytes]:
        """Return the keyed digests of samples."""
        return frozenset(self.digests_in_order(samples))

    def digests_in_order(self, samples: Iterable[Sample]) -> list[bytes]:
        """Return the keyed digest of each sample; each copy has a number."""
        copies = Counter[tuple[bytes, bytes]]()
        hashed = partial(
            hashlib.blake2b, key=bytes.fromhex(self._content["key"]), digest_size=_CONTENT
        )
        digests = []
        for sample in samples:
            content, label = sample if isinstance(sample, tuple) else (sample, b"")
            digest = hashed(content, person=b"sample").digest()
            number = copies[digest, label].to_bytes(8, "little")
            copies[digest, label] += 1
            text = digest + number + label
            digests.append(digest + hashed(text, person=b"class of sample").digest())
        return digests

    @staticmethod
    def contents(digests: Iterable[bytes]) -> frozenset[bytes]:
        """Return the digests of contents alone, which a sample keeps under another class."""
        return frozenset(digest[:_CONTENT] for digest in digests)

    def compare_with(self, present: Iterable[Sample] | None) -> None:
        """Compare samples with those of earlier plans, which are edited, or written anew: they are
        others only while the folder or table still has those.

        Args:
            present: all samples that there are now; None: samples keep their bytes.
        """
        self._present = None if present is None else Ledger.contents(self.digests(present))

    def released_elsewhere(
        self, plan: str, samples: frozenset[bytes]
    ) -> dict[str, frozenset[bytes]]:
        """Return the other plans of this federation that released some of these samples -> the
        digests of all samples that each did.
        """
        return {
            other_plan: digests
            for other_plan, digests in self._overlapping(plan, samples).items()
            if self.same_federation(other_plan)
        }

    def _overlapping(self, plan: str, samples: frozenset[bytes]) -> dict[str, frozenset[bytes]]:
        """Return the same of all federations."""
        return {
            other_plan: digests
            for other_plan, digests in self._all_released().items()
            if other_plan != plan
            and not Ledger.contents(digests).isdisjoint(Ledger.contents(samples))
        }

    def release(self, plan: str, samples: frozenset[bytes], others: Iterable[str] = ()) -> None:
        """Keep durably that samples (digests) are released under a plan.

        Args:
            plan: its digest.
            samples: those of this party.
            others: who may see a masked sum of this party opened, though no roster of the ledger
                says so yet, or ever: with ``privacy.dropouts = "allow"``, or by them alone.
        """
        before = self._all_released().get(plan, frozenset())
        if not _has_classes(before):
            gone = before - Ledger.contents(samples)
            before = frozenset(digest + _UNKNOWN_CLASS for digest in gone)
        digests = before | samples
        if digests != self._released.get(plan) or plan not in self._content["released"]:
            if self.folder is not None:
                _write_digests(self._path(f"released-{plan}.bin"), digests)
            self._released[plan] = digests
        kept = self._with_loose(others)
        if plan not in self._content["released"]:
            kept["released"] = [*self._content["released"], plan]
        if kept:  # at once: one without the other would let a look in clear go out
            self.write(kept)

    def release_in_clear(self, run: str, samples: frozenset[bytes]) -> None:
        """Keep durably that a run may take samples (digests) in clear over a network: it has if
        its history says so.
        """
        known: dict[str, list[str]] = self._content.get(_CLEAR, {})
        which = hashlib.sha256(b"".join(sorted(samples))).hexdigest()[:32]  # a name, which is short
        runs = known.get(which, [])
        if run in runs:
            return
        if not runs and self.folder is not None:
            _write_digests(self._path(f"{_CLEAR}-{which}.bin"), samples)
        self._in_clear[which] = samples
        self.write({_CLEAR: {**known, which: [*runs, run]}})

    def check(
        self,
        plan: str,
        content: Mapping[str, Any],
        samples: frozenset[bytes],
        roster: Collection[str] | None,
        consent: Collection[str],
        differs: Callable[[str], str] | None = None,
        masked: bool = True,
    ) -> None:
        """Refuse a sum that could reveal samples, or one party's part, together with sums released
        before.

        Args:
            plan: the digest of the sum's plan.
            content: what the plan says.
            samples: the digests of this party's samples.
            roster: who takes part in a masked sum; None while that is open, or if it is in clear.
            consent: what this party's owner has consented to: ``again``, ``dropouts``,
                ``federations``, ``removal``.
            differs: says of another plan why this one does not replace it, "" if it does: the same
                sums without parties that have withdrawn. Only answers by file replace a plan.
            masked: whether the sum is; one in clear hides no party.

        Raises:
            RefusedError: the sum needs a consent that the owner has not given, and the text names
                all that this consent would waive; or its roster is not allowed.
        """
        if content["dropouts"] and "dropouts" not in consent:
            raise RefusedError(
                "the plan allows rosters that differ by few parties (privacy.dropouts = 'allow'), "
                "and two such sums can reveal one party's update: the owner must consent with "
                "--consent dropouts",
                "dropouts-consent",
            )
        if content["removing"]:
            self.check_removed(plan, content, samples, consent)
            if not masked:
                self.check_in_clear(plan, samples, True, consent, by_file=True)
        else:
            self._check_samples(plan, content, samples, consent, differs, masked)
        if roster is not None and not content["dropouts"]:
            self.check_roster(roster, differs, samples, consent)

    def _check_samples(
        self,
        plan: str,
        content: Mapping[str, Any],
        samples: frozenset[bytes],
        consent: Collection[str],
        differs: Callable[[str], str] | None,
        masked: bool,
    ) -> None:
        released = self._all_released()
        if plan in released or self._has_opened(plan):  # the others can open what this party masked
            before = released.get(plan)
            if before != samples:
                why = f"{_how_changed(before)} the round before, and the difference of two sums"
                why += " can reveal single samples"
                self._waive(plan, samples, why, ":", "samples-changed", ["again"], consent)
        if self._may_have_left(plan):  # what came before was allowed by then
            return
        reasons = [*self._under_other_plans(plan, content, samples, differs)]
        if content["confidence"] == ASKING and samples and not self._announced(content, samples):
            reasons.append(
                "the plan counts answers, which no plan of statistics over exactly these samples "
                "has announced, so that it may ask about made-up statistics"
            )
        reasons += self.taken_in_clear(samples) if masked else self._counted_in_looks()
        words = ["again"]
        if masked and not content["dropouts"] and (others := self.in_other_federations(samples)):
            words.append("federations")
            reasons.append(
                f"in another federation {', '.join(others)} took part, and what is left of its sum "
                "and this one may be the update of a single party, whose owner is not asked by "
                "this: ask first"
            )
        if reasons:
            why = "; and ".join(dict.fromkeys(reasons))
            why += ": the difference of two sums can reveal a party's sums or single samples"
            what = ", so for a second experiment over the same data"
            self._waive(plan, samples, why, what, "samples-again", words, consent)

    def _waive(
        self,
        about: str,
        samples: frozenset[bytes],
        why: str,
        what: str,
        code: str,
        words: Collection[str],
        consent: Collection[str],
    ) -> None:
        """Refuse ``what`` needs words of consent; tell the owner who has given them why, once for
        these samples in ``about``, a plan or a run.
        """
        given = " ".join(f"--consent {word}" for word in words)
        if not set(words) <= set(consent):
            raise RefusedError(f"{why}{what} the owner must consent with {given}", code)
        if (about, samples, why) not in self._told:
            self._told.add((about, samples, why))
            self.tell(f"allowed by {given}: {why}")

    def in_other_federations(self, samples: frozenset[bytes] | None) -> list[str]:
        """Return who else took part in masked sums of other federations that may have some of these
        samples (digests; None: any), and in their looks.
        """
        return self._took_part(self._sharing(samples) - {self._authority})

    def in_masked_sums(self) -> list[str]:
        """Return who else took part in masked sums and looks of this party, in any federation."""
        return self._took_part({self._authority, *self._content["federations"]})

    def _took_part(self, authorities: Collection[str]) -> list[str]:
        known = self._content["federations"]
        others = set[str]()
        for authority, _, roster in self._all_rosters(authorities, strict=False):
            # an earlier version has not kept its own name there
            others |= {*roster} - {known.get(authority, {}).get("name", "")}
        return sorted(others)

    def _sharing(self, samples: frozenset[bytes] | None) -> set[str]:
        """Return the authorities of federations whose sums may have some of these samples (None:
        any). No one knows which samples a look has counted.
        """
        federations: dict[str, dict[str, Any]] = self._content["federations"]
        if samples is None or federations.keys() <= {self._authority}:
            return set(federations)
        looked = {authority for authority in federations if _has_looked(federations[authority])}
        return looked | {self._authority_of(plan) for plan, _ in self._may_share(samples)}

    def _under_other_plans(
        self,
        plan: str,
        content: Mapping[str, Any],
        samples: frozenset[bytes],
        differs: Callable[[str], str] | None,
    ) -> Iterator[str]:
        """Yield why sums of other plans forbid one of samples (digests), once for each plan."""
        for other_plan, theirs in self._may_share(samples):
            if other_plan == plan:  # kept for a sum that has not left
                continue
            same = theirs == samples
            ours = self.same_federation(other_plan)
            if same and ours and not content["once"] and self._has_chosen(other_plan):
                continue
            if same and ours and self._asks_about(content, other_plan):
                continue
            why = "" if differs is None else differs(other_plan)
            if not ours:
                why = _OTHER_FEDERATION
            if not same:
                changed = _since_that_one(theirs, samples, "sum")
                why = changed if ours else f"{why}, and {changed}"
            if differs is None or why:
                yield f"{_RELEASED}{why and f', and {why}'}"

    def taken_in_clear(self, samples: frozenset[bytes] | None) -> Iterator[str]:
        """Yield what was sent in clear, and a masked sum of samples (digests) or a masked look
        (None), which may count any, show together. A sum of samples that were sent in clear by file
        is one of another plan.
        """
        total = "a masked total hides the other parties less"
        federations: dict[str, dict[str, Any]] = self._content["federations"]
        if samples != frozenset() and any(each.get(_COUNTED) for each in federations.values()):
            yield f"a look counted this party's samples in clear, and without them {total}"
        if samples is None and any(map(self._was_in_clear, filter(self._has_opened, self.plans))):
            yield f"this party sent sums in clear by file, and without them {total}"
        answered = self.in_clear()
        for which, every in self._content.get(_CLEAR, {}).items():
            theirs = self._clear_digests(which)
            runs = [run for run in every if run in answered]
            if not runs or (samples is not None and self._are_others(theirs, samples)):
                continue
            run = f"run {runs[-1][:_SHOWN]}"
            if samples is None:
                yield f"{run} took samples in clear, and without them {total}"
            elif theirs == samples:
                yield f"{run} took exactly these samples in clear, and without them {total}"
            else:
                yield f"{run} took in clear {_compared(theirs, samples, 'sum')}"
        for run in (run for run, kept in answered.items() if not kept):
            yield f"run {run[:_SHOWN]} took samples in clear that an earlier version has not kept"

    def _counted_in_looks(self) -> Iterator[str]:
        """Yield that samples in clear show what others had in a masked look."""
        federations: dict[str, dict[str, Any]] = self._content["federations"]
        looked = [each for each in federations.values() if _has_looked(each)]
        if others := {name for each in looked for roster in each["rosters"] for name in roster}:
            names = ", ".join(sorted(others - {self._name}))
            yield f"a look under masks may have counted samples of this party and {names}"

    def check_in_clear(
        self,
        run: str,
        samples: frozenset[bytes],
        removing: bool,
        consent: Collection[str],
        by_file: bool = False,
    ) -> None:
        """Refuse to send samples (digests) in clear that sums of any federation may have: whoever
        sees both could take them off. Several parties that are asked one by one would show the sums
        of one that is not asked.

        Args:
            run: its name, or the plan of a removal by file.
            samples: those that are sent.
            removing: to subtract them; ``removal`` allows it, else ``again``.
            consent: what this party's owner has consented to.
            by_file: sums by file in clear, which hid no party, do not count.

        Raises:
            RefusedError: the owner has not given the word, and the text names all that it would
                waive (code ``samples-again``).
        """
        reasons = [
            _RELEASED
            if removing or theirs == samples
            else f"{_RELEASED}, and {_since_that_one(theirs, samples, 'run')}"
            for plan, theirs in self._may_share(samples)
            if not (by_file and self._was_in_clear(plan))
        ]
        reasons += self._counted_in_looks()
        if reasons:
            why = "; and ".join(dict.fromkeys(reasons))
            why += (
                ": sent in clear, these samples would show what the sums of other parties are, and "
                "the difference of two sums can reveal a party's sums or single samples"
            )
            word, what = ("removal", "removal") if removing else ("again", "run")
            what = f", so for a {what} in clear"
            self._waive(run, samples, why, what, "samples-again", [word], consent)

    def _clear_digests(self, which: str) -> frozenset[bytes]:
        if which not in self._in_clear:
            path = self._path(f"{_CLEAR}-{which}.bin")
            if not path.exists():
                raise RefusedError(_damaged(path))
            self._in_clear[which] = _read_digests(path)
        return self._in_clear[which]

    def _may_share(
        self, samples: frozenset[bytes]
    ) -> Iterator[tuple[str, frozenset[bytes] | None]]:
        """Yield the plans of all federations whose sums may have some of these samples, and the
        digests of all that each has; None where these are unknown.
        """
        released = self._all_released()
        for plan in sorted({*released, *filter(self._has_opened, self.plans)}):
            theirs = released.get(plan)
            if theirs is None or not self._are_others(theirs, samples):
                yield plan, theirs

    def _has_opened(self, plan: str) -> bool:
        """Say whether sums of a plan were opened: perhaps of unknown samples, since a version kept
        no digests of trained methods.
        """
        record = self.plans.get(plan, {})
        return bool(record.get("opened")) and not (record.get("offline") or {}).get("withdrawn")

    def _may_have_left(self, plan: str) -> bool:
        """Say whether sums of a plan are out: masked just now, opened or answered by file. Samples
        may be kept for one that a full disk or a kill has stopped before, or that others open.
        """
        return bool(self.plans.get(plan, {}).get("waiting")) or self._has_opened(plan)

    def _was_in_clear(self, plan: str) -> bool:
        """Say whether sums of a plan by file were sent in clear."""
        offline = self.plans.get(plan, {}).get("offline") or {}
        return not offline.get("masked", True)

    def _are_others(self, theirs: frozenset[bytes], samples: frozenset[bytes]) -> bool:
        """Say whether the samples of another plan are certainly others."""
        before = Ledger.contents(theirs)
        all_present = self._present is None or before <= self._present
        return all_present and before.isdisjoint(Ledger.contents(samples))

    def _has_chosen(self, plan: str) -> bool:
        """Say whether a plan's updates only chose rounds and settings, on validation classes, for a
        run to follow.
        """
        content = self.plans.get(plan, {}).get("content", {})
        return bool(content.get("choosing")) and not content["once"]

    def _asks_about(self, content: Mapping[str, Any], other_plan: str) -> bool:
        """Say whether a plan asks how sure models are of the samples of another, which has
        announced it, or whether both choose and ask before. It may ask once.
        """
        earlier = self.plans.get(other_plan, {}).get("content", {})
        announced = earlier.get("confidence") in _ANNOUNCED and not earlier.get("removing")
        statistics = earlier.get("once") and earlier.get("privacy") == "none"
        alike = all(earlier.get(name) == content[name] for name in _SAME)
        return bool(content["confidence"] == ASKING and announced and statistics and alike)

    def _announced(self, content: Mapping[str, Any], samples: frozenset[bytes]) -> bool:
        """Say whether a plan has announced that one asks about exactly these samples (digests)."""
        same = {plan for plan, theirs in self._may_share(samples) if theirs == samples}
        return any(self.same_federation(plan) and self._asks_about(content, plan) for plan in same)

    def check_roster(
        self,
        roster: Collection[str],
        differs: Callable[[str], str] | None = None,
        samples: frozenset[bytes] | None = frozenset(),
        consent: Collection[str] = (),
    ) -> None:
        """Refuse a strict masked sum of other parties than those of an earlier one, in this
        federation or in one whose sums may have the same samples.

        Names say nothing of who takes part in another federation. Its sums may be combined with
        those of this one where the owner consents to it and no other party seems to be in both:
        else both may be one coordinator's, which would single out who is in one alone.

        Args:
            roster: who takes part.
            differs: as for :meth:`check`.
            samples: the digests of those in the sum; None if it may be any.
            consent: ``federations`` allows other parties in other federations.

        Raises:
            RefusedError: a sum of others was released (code ``roster-differs``).
        """
        # Two rosters of t share an honest party. So one roster is opened in all; three that differ
        # by c + 2 parties and more could still be combined to one party's update.
        for authority, plan, before in self._all_rosters(
            {self._authority, *self._sharing(samples)}
        ):
            differing = sorted(set(roster) ^ set(before))
            if authority != self._authority and "federations" in consent:
                in_both = set(roster) & set(before) - {self._name}
                differing = differing if in_both else []
            if differing and not (plan and differs is not None and not differs(plan)):
                raise RefusedError(
                    f"the roster differs from that of an opened sum by {', '.join(differing)}, and "
                    "the difference of both sums can reveal one party's update: the same "
                    f"{len(before)} must take part. With privacy.dropouts = 'allow' and --consent "
                    f"dropouts it may reveal that of {', '.join(differing)}, whose owner is not "
                    "asked by this: ask first",
                    "roster-differs",
                )

    def _all_rosters(
        self, authorities: Collection[str], strict: bool = True
    ) -> Iterator[tuple[str, str, list[str]]]:
        """Yield the authority, the plan if it is known, and the roster of masked sums of some
        federations: opened ones, and those that this party has answered by file.

        Args:
            authorities: of the federations.
            strict: leave out sums to which the rule of one roster does not apply.
        """
        for authority, federation in self._content["federations"].items():
            if authority in authorities:
                yield from ((authority, "", roster) for roster in federation["rosters"])
                if not strict:
                    yield authority, "", federation.get(_LOOSE, [])
        for plan, record in self.plans.items():
            if self._authority_of(plan) not in authorities:
                continue
            offline = record.get("offline") or {}
            masked = offline.get("masked") and offline["answer"] and not offline.get("replaced")
            if masked and not (strict and record["content"]["dropouts"]):
                yield self._authority_of(plan), plan, offline["parties"]
            if not strict and record.get("opened"):
                # an earlier version kept no others of sums with dropouts
                yield self._authority_of(plan), plan, [*record["opened"]["reply"].get("shares", ())]

    def check_removal(
        self,
        removing: Collection[str],
        parties: Collection[str],
        enrolment: Enrolment,
        consent: Collection[str],
    ) -> None:
        """Refuse a masked removal whose parties, or those that stay, are too few to hide each other's
        sums.

        An observer of the sums from before and after learns the total of what is removed, and that
        of what stays. So at least c + 2 parties remove samples, and of at least c + 2 no sample is
        ever removed. A party that removes some samples does not count among those that stay, since
        all others may remove everything.

        Args:
            removing: whose samples are removed.
            parties: who takes part; parties that stay send the sums of no sample.
            enrolment: the federation.
            consent: what this party's owner has consented to; ``removal`` allows few parties.

        Raises:
            RefusedError: a party of ``removing`` is not asked, or too few remove or stay.
        """
        if not set(removing) <= set(parties):
            raise RefusedError(
                "the plan removes samples of parties that it does not ask: ask for a new plan"
            )
        if "removal" in consent:
            return
        plans = {plan: self.plans[plan] for plan in filter(self.same_federation, self.plans)}
        records = plans.values()
        opened = [record for record in records if record["opened"]]
        sent = [
            plans[plan] for plan in plans if self._has_opened(plan) or plan in self._all_released()
        ]
        by_file = [record["offline"]["parties"] for record in records if record.get("offline")]
        last = [list(record["opened"]["reply"].get("shares", ())) for record in opened]
        took_part = [names for names in (*self.rosters, *by_file, *last) if names]
        removed_parties = set(removing).union(
            *(record["content"].get("removing", []) for record in sent)
        )
        batch = enrolment.colluding + 2
        staying = [
            len(set(names) - removed_parties) for names in (enrolment.names, parties, *took_part)
        ]
        for count, action in (
            (len(set(removing)), "removes samples of"),
            (min(staying), "keeps all samples of"),
        ):
            if count < batch:
                raise RefusedError(
                    f"the plan {action} {count} parties, and an observer of the sums from before "
                    "learns their total: give --consent removal if the owner agrees, or ask for a "
                    f"plan with {batch}"
                )

    def check_removed(
        self,
        plan: str,
        content: Mapping[str, Any],
        samples: frozenset[bytes],
        consent: Collection[str],
    ) -> None:
        """Refuse to remove samples (digests) twice, or without ``removal`` those of no released sum
        of statistics with the scaling, quantization and noise of the removal: it would be a sum of
        its own.
        """
        if content["confidence"] == ASKING:
            raise RefusedError(
                "the removal asks for counts of answers, which subtract nothing: ask for a plan "
                "without them"
            )
        other_plans = self.released_elsewhere(plan, samples)
        contents = {
            other_plan: self.plans.get(other_plan, {}).get("content", {})
            for other_plan in other_plans
        }
        if any(earlier.get("removing") for earlier in contents.values()):
            raise RefusedError("some of these samples were removed by another plan: leave them out")
        if "removal" in consent:
            return
        if not all(map(self.same_federation, self._overlapping(plan, samples))):
            raise RefusedError(
                "some of these samples are in sums of another federation, and together with those "
                "the removal can reveal single samples: give --consent removal if the owner agrees",
                "removal-of-other-sums",
            )
        if not samples <= frozenset().union(*other_plans.values()):
            raise RefusedError(
                "some of these samples are in no sum that this party's ledger knows, and removing "
                "them would reveal them: leave them out, or give --consent removal if the owner "
                "agrees"
            )
        alike = [
            other_plans[other_plan]
            for other_plan, earlier in contents.items()
            if _subtracts_from(earlier, content)
        ]
        if not samples <= frozenset().union(*alike):
            raise RefusedError(
                "the sums that have these samples are not of a method in closed form, or have "
                "other scalings, quantization or noise than the removal, so that it would be "
                "another sum of them: ask for a plan with the run's own, or give --consent "
                "removal if the owner agrees",
                "removal-of-other-sums",
            )

    def removed_from(
        self, plan_before: str, content: Mapping[str, Any], samples: frozenset[bytes]
    ) -> str:
        """Return the plan that a removal names, if its sums of statistics have all samples
        (digests) with the same scalings, so that they alone are to be judged; else "".

        Sums of other plans that have some of them and different others needed the owner's consent
        to their difference. So a removal that is subtracted from those, by a coordinator that lies,
        shows no more than this difference and what stays of the sums that it names.
        """
        earlier = self.plans.get(plan_before, {}).get("content", {})
        alike = _subtracts_from(earlier, content) and self.same_federation(plan_before)
        theirs = self._all_released().get(plan_before, frozenset())
        return plan_before if alike and samples and samples <= theirs else ""

    def remaining(
        self, plan: str, samples: frozenset[bytes] | None, alone: str = ""
    ) -> list[tuple[frozenset[bytes], frozenset[bytes]]]:
        """Return the digests in each other plan's sums that have some of these samples (None: in
        all), in this federation: all that the plan released, and those of them that no other plan
        has removed. ``alone``: of this plan alone.
        """
        released = self._all_released()
        removals = {
            other_plan
            for other_plan in filter(self.same_federation, released)
            if self.plans.get(other_plan, {}).get("content", {}).get("removing")
        }
        removed_digests = frozenset[bytes]().union(
            *(released[other_plan] for other_plan in removals - {plan})
        )
        ours = {name: released[name] for name in filter(self.same_federation, released)}
        other_plans = ours if samples is None else self.released_elsewhere(plan, samples)
        return [
            (theirs, theirs - removed_digests)
            for other_plan, theirs in other_plans.items()
            if other_plan not in removals | {plan} and alone in ("", other_plan)
        ]

    def check_removed_whole(self, plan: str, left_out: frozenset[bytes], alone: str = "") -> None:
        """Refuse a removal that leaves out samples (digests) for their small classes although sums
        have them; ``alone``: those of this plan.
        """
        having = self.released_elsewhere(plan, left_out)
        if alone in having if alone else having:
            raise RefusedError(
                "the removal leaves out samples of small classes that are in a released sum: give "
                "the --min-samples with which that sum was answered",
                "removal-of-small-classes",
            )

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / name

    def _all_released(self) -> dict[str, frozenset[bytes]]:
        for path in self.folder.glob("released-*.bin") if self.folder is not None else ():
            plan = path.stem.removeprefix("released-")
            if plan not in self._released:
                self._released[plan] = _read_digests(path)
        return self._released

    def _read(self) -> dict[str, Any] | None:
        if self.folder is None:
            return None
        path = self._path("ledger.json")
        try:
            self._file = path.read_bytes()
            text, check = self._file.rstrip(b"\n").rsplit(b"\n", 1)
            if hashlib.sha256(text).hexdigest().encode() != check:
                raise ValueError
            content = parse_json(text)
            if content.keys() in (_EARLIER, _EARLIER - _WRITES):
                content = _of_federations(content)
            elif content.keys() - {_CLEAR} != _KEYS:
                raise ValueError
            for which in content.get(_CLEAR, ()):
                self._clear_digests(which)
            if missing := [
                plan for plan in content["released"] if plan not in self._all_released()
            ]:
                raise ValueError(missing)
        except FileNotFoundError:
            if any(self.folder.glob("released-*.bin")):
                raise RefusedError(_damaged(path)) from None
            return None
        except (OSError, ValueError, TypeError, AttributeError):
            raise RefusedError(_damaged(path)) from None
        return dict(content)


def _subtracts_from(earlier: Mapping[str, Any], content: Mapping[str, Any]) -> bool:
    """Say whether the sums of an earlier plan are of statistics that a removal's may be subtracted
    from.
    """
    # with noise, a plan of a trained method is for once, too
    statistics = earlier.get("once") and earlier.get("privacy") == "none"
    asks = earlier.get("confidence") == ASKING
    others = earlier.get("removing") or earlier.get("choosing") or asks
    if others or not statistics:
        return False
    return all(earlier.get(name) == content[name] for name in _SAME)


def _of_federations(content: dict[str, Any]) -> dict[str, Any]:
    """Return what an earlier version kept, which knew one federation, as it is kept now."""
    authority = content["authority"]
    federation = {key: content[key] for key in ("serial", "rosters")}
    plans = {plan: {"authority": authority, **record} for plan, record in content["plans"].items()}
    kept = {key: value for key, value in content.items() if key not in _ONE}
    return {**kept, "plans": plans, "federations": {authority: federation} if authority else {}}


def _has_looked(federation: Mapping[str, Any]) -> bool:
    """Say whether looks may be among the rosters; earlier versions kept them like those of runs."""
    return bool(federation.get("looked", federation["rosters"]))


def _has_classes(digests: frozenset[bytes]) -> bool:
    """Say whether digests tell classes and copies apart; earlier versions kept contents alone."""
    return not digests or digests != Ledger.contents(digests)


def _how_changed(theirs: frozenset[bytes] | None) -> str:
    """Say that this party's samples are not those of an earlier sum, or may not be."""
    if theirs is not None and _has_classes(theirs):
        return "this party's samples have changed since"
    return (
        "an earlier version kept too little to say whether this party's samples have changed since"
    )


def _since_that_one(theirs: frozenset[bytes] | None, samples: frozenset[bytes], now: str) -> str:
    """Say how samples have changed since another plan; ``now``: what takes them."""
    changed = f"{_how_changed(theirs)} that one"
    if theirs is None or not _has_classes(theirs):
        return changed
    return f"{changed}, which had {_compared(theirs, samples, now)}"


def _compared(theirs: frozenset[bytes], samples: frozenset[bytes], now: str) -> str:
    """Say how many samples an earlier sum or run has had alone, and how many it has lacked."""
    gone = counted(len(theirs - samples), "sample")
    return f"{gone} that this {now} lacks, and lacked {len(samples - theirs)} that it has"


def _damaged(path: Path) -> str:
    return (
        f"{path} is missing or damaged, and without it a sum could be opened twice: restore the "
        "newest copy, or start with a new --state if no sum of this data was ever opened"
    )


def _read_digests(path: Path) -> frozenset[bytes]:
    text = path.read_bytes()
    text, check = text[:-32], text[-32:]
    width = _DIGEST if text.startswith(_WITH_CLASSES) else _CONTENT
    digests = text.removeprefix(_WITH_CLASSES)
    if hashlib.sha256(text).digest() != check or len(digests) % width:
        raise RefusedError(_damaged(path))
    return frozenset(digests[row : row + width] for row in range(0, len(digests), width))


def _write_digests(path: Path, digests: frozenset[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = _WITH_CLASSES + b"".join(sorted(digests))
    _write(path, text + hashlib.sha256(text).digest())


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.touch(0o600)
        temporary.write_bytes(content)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name itself must survive a loss of power
    finally:
        os.close(folder)
