"""What a party must keep over restarts, so that no sum is opened twice.

``ledger.json`` holds the pinned federation, the accepted plans with the last opened sum of each and its reply, the sum
that waits for its opening, and all opened rosters. ``released-PLAN.bin`` holds a keyed digest of each sample whose sums
were released under that plan. Files are whole or absent. Keys and seeds of an attempt are never written.
"""

import copy
import hashlib
import json
import os
import secrets
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedunseen.core.errors import RefusedError
from fedunseen.core.files import holding, replacing
from fedunseen.secagg.enrolment import Enrolment
from fedunseen.secagg.primitives import canonical

_DIGEST = 16  # bytes of a sample's digest
_KEYS = frozenset({"key", "authority", "serial", "data", "plans", "rosters", "released"})


class Ledger:
    """A party's durable state."""

    def __init__(self, folder: Path | None = None, data: str = "", moved: bool = False) -> None:
        self.folder = folder
        self._released: dict[str, frozenset[bytes]] = {}
        self._file = b""  # as this process has read or written it
        content = self._read()
        key = secrets.token_bytes(32)
        keyed = bytes.fromhex(content["key"]) if content else key
        mark = hashlib.blake2b(data.encode(), key=keyed, digest_size=16, person=b"data folder").hexdigest()
        if content is None:
            content = {"key": key.hex(), "authority": "", "serial": 0, "data": mark, "plans": {}, "rosters": []}
            content["released"] = []
        elif content["data"] != mark:
            if not moved:
                raise RefusedError(
                    f"{folder} is the ledger of another data folder than {data}: give each data folder its own "
                    "--state, or pass --consent moved if the folder was moved"
                )
            content["data"] = mark
        self._content = content

    @property
    def plans(self) -> dict[str, dict[str, Any]]:
        """The accepted plans."""
        found: dict[str, dict[str, Any]] = self._content["plans"]
        return found

    @property
    def rosters(self) -> list[list[str]]:
        """All rosters of opened sums."""
        found: list[list[str]] = self._content["rosters"]
        return found

    def pin(self, enrolment: Enrolment) -> None:
        """Keep the federation's authority, or check that it is the remembered one."""
        known, mine = self._content["authority"], enrolment.authority.hex()
        if known and known != mine:
            raise RefusedError(
                f"{self.folder}: this ledger belongs to a federation of another authority: give each federation its "
                "own --state"
            )
        if enrolment.serial < self._content["serial"]:
            raise RefusedError(
                "federation.json is older than the one that this party has used before: copy the newest one"
            )
        if (known, self._content["serial"]) != (mine, enrolment.serial):
            self.write({"authority": mine, "serial": enrolment.serial})

    def write(self, changes: Mapping[str, Any]) -> None:
        """Change keys of the ledger, durably. If writing fails, nothing has changed."""
        content = {**self._content, **changes}
        if self.folder is not None:
            text, path = canonical(content), self._path("ledger.json")
            whole = text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n"
            path.parent.mkdir(parents=True, exist_ok=True)
            with holding(self.folder) as held:
                if not held or (path.read_bytes() if path.exists() else b"") != self._file:
                    raise RefusedError(f"{path} is in use by another process: end it, and start this one again")
                _write(path, whole)
            self._file = whole
        self._content = content

    def change_plan(self, plan: str, roster: Iterable[str] | None = None, **changes: Any) -> None:
        """Change an accepted plan's record, and add an opened roster if one is given, durably."""
        plans = {**self.plans, plan: {**self.plans.get(plan, {}), **copy.deepcopy(changes)}}
        rosters = self.rosters
        if roster is not None and (added := sorted(roster)) not in rosters:
            rosters = [*rosters, added]
        self.write({"plans": plans, "rosters": rosters})

    def digests(self, samples: Iterable[bytes]) -> frozenset[bytes]:
        """Return the keyed digests of samples."""
        key = bytes.fromhex(self._content["key"])
        return frozenset(
            hashlib.blake2b(one, key=key, digest_size=_DIGEST, person=b"sample").digest() for one in samples
        )

    def released_elsewhere(self, plan: str, samples: frozenset[bytes]) -> dict[str, frozenset[bytes]]:
        """Return the other plans that released some of these samples -> the digests of all samples that each did."""
        others = {other: known for other, known in self._all_released().items() if other != plan}
        return {other: known for other, known in others.items() if not known.isdisjoint(samples)}

    def released(self, plan: str) -> frozenset[bytes]:
        """Return the digests of all samples that were released under a plan."""
        return self._all_released().get(plan, frozenset())

    def release(self, plan: str, samples: frozenset[bytes]) -> None:
        """Keep durably that samples (digests) are released under a plan."""
        known = self.released(plan) | samples
        if self.folder is not None:
            text = b"".join(sorted(known))
            _write(self._path(f"released-{plan}.bin"), text + hashlib.sha256(text).digest())
        self._released[plan] = known
        if plan not in self._content["released"]:
            self.write({"released": [*self._content["released"], plan]})

    def check_removal(
        self, removing: Collection[str], asked: Collection[str], enrolment: Enrolment, consent: Collection[str]
    ) -> None:
        """Refuse a removal whose parties, or those that stay, are too few to hide each other's sums.

        An observer of the sums from before and after learns the total of what is removed, and that of what stays. So at
        least c + 2 parties remove samples, and of at least c + 2 no sample is ever removed. A party that removes some
        samples does not count among those that stay, since all others may remove everything.

        Args:
            removing: whose samples are removed.
            asked: who takes part; parties that stay send the sums of no sample.
            enrolment: the federation.
            consent: what this party's owner has consented to; ``removal`` allows few parties.

        Raises:
            RefusedError: a party of ``removing`` is not asked, or too few remove or stay.
        """
        if not set(removing) <= set(asked):
            raise RefusedError("the plan removes samples of parties that it does not ask: ask for a new plan")
        if "removal" in consent:
            return
        records = self.plans.values()
        opened = [one for one in records if one["opened"]]
        by_file = [one["offline"]["parties"] for one in records if one.get("offline")]
        last = [list(one["opened"]["reply"].get("shares", ())) for one in opened]
        took_part = [names for names in (*self.rosters, *by_file, *last) if names]
        gone = set(removing).union(*(one["content"].get("removing", []) for one in opened))
        staying = min(len(set(names) - gone) for names in (enrolment.names, asked, *took_part))
        batch = enrolment.colluding + 2
        for count, what in ((len(set(removing)), "removes samples of"), (staying, "keeps all samples of")):
            if count < batch:
                raise RefusedError(
                    f"the plan {what} {count} parties, and an observer of the sums from before learns their total: "
                    f"give --consent removal if the owner agrees, or ask for a plan with {batch}"
                )

    def check_removed(self, plan: str, samples: frozenset[bytes], consent: Collection[str]) -> None:
        """Refuse to remove samples (digests) twice, or without ``removal`` those of no released sum."""
        others = self.released_elsewhere(plan, samples)
        if any(self.plans.get(other, {}).get("content", {}).get("removing") for other in others):
            raise RefusedError("some of these samples were removed by another plan: leave them out")
        if "removal" not in consent and not samples <= frozenset().union(*others.values()):
            raise RefusedError(
                "some of these samples are in no sum that this party's ledger knows, and removing them would reveal "
                "them: leave them out, or give --consent removal if the owner agrees"
            )

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / name

    def _all_released(self) -> dict[str, frozenset[bytes]]:
        for path in self.folder.glob("released-*.bin") if self.folder is not None else ():
            plan = path.stem.removeprefix("released-")
            if plan not in self._released:
                text = path.read_bytes()
                text, check = text[:-32], text[-32:]
                if hashlib.sha256(text).digest() != check or len(text) % _DIGEST:
                    raise RefusedError(_damaged(path))
                rows = range(0, len(text), _DIGEST)
                self._released[plan] = frozenset(text[row : row + _DIGEST] for row in rows)
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
            content = json.loads(text)
            if content.keys() != _KEYS:
                raise ValueError
            if missing := [one for one in content["released"] if one not in self._all_released()]:
                raise ValueError(missing)
        except FileNotFoundError:
            if any(self.folder.glob("released-*.bin")):
                raise RefusedError(_damaged(path)) from None
            return None
        except (OSError, ValueError, TypeError, AttributeError):
            raise RefusedError(_damaged(path)) from None
        return dict(content)


def _damaged(path: Path) -> str:
    return (
        f"{path} is missing or damaged, and without it a sum could be opened twice: restore the newest copy, or start "
        "with a new --state if no sum of this data was ever opened"
    )


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.touch(0o600)
        temporary.write_bytes(content)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name itself must survive a loss of power
    finally:
        os.close(folder)
