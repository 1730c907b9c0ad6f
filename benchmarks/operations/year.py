"""A year of a federation in an afternoon: what its operators do, with real processes.

    python benchmarks/operations/year.py [--loopback] [--keep FOLDER]

Three parties are enrolled and train; a fourth is added to the run while all certificates are
renewed; one leaves; one is revoked; a party's disk fills and is emptied; the run returns to an
earlier round; a party with another version is refused by name. Each machine is a network namespace
of its own, joined by a bridge, where the system permits it (root); else all are on loopback. Every
step checks what it must have led to, and prints a line. The exit status is 1 where one did not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

NAMES = ("north", "south", "west", "east")
PORT = 8850
WAIT = 600.0  # seconds for any one thing to happen
SETTINGS = {
    "data.train_per_class": 40, "data.test_per_class": 10, "method.hidden": [8], "method.kl": 0.0,
    "evaluation.selection": "last", "evaluation.theory": False, "evaluation.embedding": False,
    "evaluation.clients": False, "engine.patience": 300.0,
}  # fmt: skip


class Machines:
    """A folder with the processes of all machines; each has an address."""

    def __init__(self, folder: Path, apart: bool) -> None:
        self.folder = folder
        self.apart = apart
        self.mark = f"fu{os.getpid()}"
        self.running: list[subprocess.Popen[bytes]] = []
        self.address = "10.203.7.1" if apart else "127.0.0.1"

    def __enter__(self) -> Machines:
        if self.apart:
            _ip("link", "add", f"{self.mark}b", "type", "bridge")
            _ip("link", "set", f"{self.mark}b", "up")
            for place, name in enumerate(("coordinator", *NAMES), 1):
                self._join(name, place)
        return self

    def _join(self, name: str, place: int) -> None:
        """Make a network namespace with an address on the bridge."""
        space, outer, inner = f"{self.mark}{name}", f"{self.mark}o{place}", f"{self.mark}i{place}"
        _ip("netns", "add", space)
        _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
        _ip("link", "set", inner, "netns", space)
        _ip("link", "set", outer, "master", f"{self.mark}b", "up")
        _ip("-n", space, "addr", "add", f"10.203.7.{place}/24", "dev", inner)
        _ip("-n", space, "link", "set", inner, "up")
        _ip("-n", space, "link", "set", "lo", "up")

    def __exit__(self, *error: object) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait()
        if self.apart:
            for name in ("coordinator", *NAMES):
                subprocess.run(["ip", "netns", "del", f"{self.mark}{name}"], check=False)
            subprocess.run(["ip", "link", "del", f"{self.mark}b"], check=False)

    def start(
        self, name: str, *words: object, source: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command on a machine; ``source``: of another version of the package."""
        space = ["ip", "netns", "exec", f"{self.mark}{name}"] if self.apart else []
        command = [*space, sys.executable, "-m", "fedunseen", *map(str, words)]
        paths = os.pathsep.join(filter(None, [str(source or ""), os.environ.get("PYTHONPATH")]))
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, env={**os.environ, **own}
            )
        self.running.append(process)
        return process

    def said(self, name: str) -> str:
        """Return the log of a machine."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def fresh(self) -> None:
        """Begin the logs anew."""
        for name in ("coordinator", *NAMES):
            (self.folder / f"{name}.log").unlink(missing_ok=True)

    def until(self, what: str, true: Callable[[], object]) -> None:
        """Wait until something is so."""
        end = time.monotonic() + WAIT
        while not true():
            if time.monotonic() > end:
                logs = "\n".join(f"== {name}\n{self.said(name)[-2000:]}" for name in
                                 ("coordinator", *NAMES))  # fmt: skip
                raise SystemExit(f"this did not happen: {what}\n{logs}")
            time.sleep(0.1)

    def ended(self, process: subprocess.Popen[bytes], name: str, status: int = 0) -> None:
        """Wait for a process, and check how it ended."""
        self.until(f"{name} ends", lambda: process.poll() is not None)
        if process.poll() != status:
            raise SystemExit(f"{name} ended with {process.poll()}:\n{self.said(name)[-3000:]}")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Year:
    """The steps, in their order."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.folder = machines.folder
        self.outs = 0
        self.settings: dict[str, object] = dict(SETTINGS)

    def command(self, *words: object) -> None:
        """Call a command that must succeed."""
        done = subprocess.run(
            [sys.executable, "-m", "fedunseen", *map(str, words)],
            cwd=self.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{words} failed: {done.stderr}")

    def change(self, *words: object) -> None:
        """Let the authority change the credentials, and copy them to where they belong."""
        self.outs += 1
        new = self.folder / f"new-{self.outs}"
        self.command("certs", *words, "--authority", "authority", "--out", new)
        for kit in new.iterdir():
            shutil.copytree(kit, self.folder / "kits" / kit.name, dirs_exist_ok=True)
        for name in ("federation.json", "revoked.pem"):
            if (list_ := new / "coordinator" / name).exists():
                for kit in (self.folder / "kits").iterdir():
                    shutil.copy(list_, kit)

    def host(self, run: str, *words: str, **more: object) -> subprocess.Popen[bytes]:
        """Start the coordinator of a run."""
        sets = [f"--set={key}={json.dumps(v)}" for key, v in {**self.settings, **more}.items()]
        place = ["--kit", "kits/coordinator", "--address", f"{self.machines.address}:{PORT}"]
        return self.machines.start(
            "coordinator", "host", "digit-pairs", *sets, *place, "--out", run, *words
        )

    def join(self, name: str, source: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a party."""
        self.outs += 1
        place = ["--data", f"data/{name}", "--kit", f"kits/{name}", "--state", f"state/{name}"]
        return self.machines.start(
            name, "join", f"{self.machines.address}:{PORT}", *place,
            "--out", f"models/{name}-{self.outs}", source=source,
        )  # fmt: skip

    def together(self, coordinator: subprocess.Popen[bytes], parties: Sequence[str]) -> None:
        """Let parties take part until the run is over."""
        joined = {name: self.join(name) for name in parties}
        self.machines.ended(coordinator, "coordinator")
        for name, process in joined.items():
            self.machines.ended(process, name)

    def lines(self, run: str) -> list[list[int]]:
        """Return who took part in each round of a run."""
        text = (self.folder / run / "metrics.jsonl").read_text()
        return [json.loads(line)["participants"] for line in text.splitlines()]

    def enrol(self) -> str:
        """Enrol three parties, and let them train."""
        self.command(
            "data", "deal", "digit-pairs", "--parties", ",".join(NAMES), "--out", "data",
            *[f"--set={key}={json.dumps(value)}" for key, value in SETTINGS.items()
              if not key.startswith("engine")], "--set=partition.clients=4",
        )  # fmt: skip
        self.command(
            "certs", "--parties", ",".join(NAMES[:3]), "--address", self.machines.address,
            "--out", "kits", "--authority", "authority", "--days", 40,
        )  # fmt: skip
        self.together(self.host("spring", **{"strategy.rounds": 2}), NAMES[:3])
        check(self.lines("spring") == [[0, 1, 2]] * 2, "three parties took part in both rounds")
        return "three parties were enrolled and trained two rounds"

    def add_and_renew(self) -> str:
        """Add a fourth party to the run, and renew all certificates meanwhile."""
        self.change("add", "east")
        self.machines.fresh()
        coordinator = self.host("spring", "--resume", **{"strategy.rounds": 4})
        joined = {name: self.join(name) for name in NAMES[:3]}
        said = partial_said(self.machines, "coordinator")
        self.machines.until("three join", lambda: said().count(" has joined") == 3)
        self.change("renew", "--days", 365)
        self.machines.until("new credentials count", lambda: "count from now on" in said())
        self.together(coordinator, ["east"])
        for name, process in joined.items():
            self.machines.ended(process, name)
        check(" is gone" not in said(), "no connection ended for the renewal")
        check(self.lines("spring")[2:] == [[0, 1, 2, 3]] * 2, "four took part from round 3 on")
        return "a fourth party joined the run, and all certificates were renewed meanwhile"

    def leave(self) -> str:
        """Let a party leave in the midst; the run does without it."""
        self.machines.fresh()
        coordinator = self.host("summer", **{"strategy.rounds": 2, "engine.quorum": 3})
        joined = {name: self.join(name) for name in ("north", "south")}
        said = partial_said(self.machines, "coordinator")
        self.machines.until("two join", lambda: said().count(" has joined") == 2)
        joined["south"].send_signal(signal.SIGTERM)
        self.machines.ended(joined.pop("south"), "south", 143)
        self.together(coordinator, ["west", "east"])
        self.machines.ended(joined["north"], "north")
        check(self.lines("summer") == [[0, 2, 3]] * 2, "the others trained without south")
        return "one party left, and three finished without it"

    def revoke_and_fill(self) -> str:
        """Revoke a party, which no one waits for; fill another one's disk, and empty it."""
        self.change("revoke", "south")
        self.machines.fresh()
        with full_disk(self.folder / "state" / "north") as empty:
            coordinator = self.host("autumn", **{"strategy.rounds": 4, "run.keep": 4})
            joined = {name: self.join(name) for name in ("north", "west", "east", "south")}
            self.machines.ended(joined.pop("south"), "south", 2)
            said = partial_said(self.machines, "coordinator")
            if empty is not None:
                self.machines.until("the disk is full", lambda: "No space left on device" in said())
                empty()
            self.machines.ended(coordinator, "coordinator")
            for name, process in joined.items():
                self.machines.ended(process, name)
        check(self.lines("autumn") == [[0, 1, 2]] * 4, "all rounds have all three")
        filled = (
            "a full disk delayed its greeting or a round"
            if empty
            else "no disk was filled (no permission)"
        )
        return f"one party was revoked and refused; {filled}"

    def roll_back(self) -> str:
        """Return the run to an earlier round, and let it go on from there."""
        model = (self.folder / "autumn" / "model.safetensors").read_bytes()
        self.machines.fresh()
        reason = "the labels of the last quarter were wrong"
        self.command("rollback", "autumn", "--round", 2, "--reason", reason)
        self.together(self.host("autumn", "--resume", **{"strategy.rounds": 4, "run.keep": 4}),
                      ["north", "west", "east"])  # fmt: skip
        check(reason in (self.folder / "autumn" / "history.jsonl").read_text(), "it says why")
        check(len(self.lines("autumn")) == 4, "it trained the rounds again")
        check(model == (self.folder / "autumn" / "model.safetensors").read_bytes(),
              "the same rounds lead to the same model")  # fmt: skip
        return "the run returned to round 2 with a reason, and went on to the same bits"

    def upgrade(self) -> str:
        """Join with another version, which is refused by name before it trains."""
        import fedunseen

        source = self.folder / "upgraded"
        shutil.copytree(Path(fedunseen.__file__).parent, source / "fedunseen")
        start = source / "fedunseen" / "__init__.py"
        now = f'__version__ = "{fedunseen.__version__}"'
        check(now in start.read_text(), "the version stands where it is looked for")
        start.write_text(start.read_text().replace(now, '__version__ = "9.8.7"'))
        self.machines.fresh()
        coordinator = self.host("winter", **{"strategy.rounds": 1})
        self.machines.ended(self.join("east", source), "east", 2)
        words = self.machines.said("east")
        check("9.8.7" in words and fedunseen.__version__ in words, "both versions are named")
        self.together(coordinator, ["north", "west", "east"])
        return "a party with another version was refused by name, and came back with the right one"


def partial_said(machines: Machines, name: str) -> Callable[[], str]:
    """Return what reads the log of a machine."""
    return lambda: machines.said(name)


def check(holds: bool, what: str) -> None:
    """End the year where something does not hold."""
    if not holds:
        raise SystemExit(f"this does not hold: {what}")


@contextlib.contextmanager
def full_disk(place: Path) -> Iterator[Callable[[], None] | None]:
    """Put a folder on a small disk that is full; yield what empties it, None without permission."""
    before = place.with_name(f"{place.name}-before")
    place.rename(before)
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)],
        capture_output=True, check=False,
    ).returncode == 0  # fmt: skip
    shutil.copytree(before, place, dirs_exist_ok=True)
    filler = place / "filler"
    if mounted:
        with contextlib.suppress(OSError), open(filler, "wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
    try:
        yield filler.unlink if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=False)
        shutil.rmtree(place, ignore_errors=True)
        before.rename(place)


def permitted() -> bool:
    """Say whether this process may make network namespaces."""
    name = f"fu{os.getpid()}try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode == 0:
        subprocess.run(["ip", "netns", "del", name], check=False)
    return made.returncode == 0


def main() -> None:
    """Live through the year."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loopback", action="store_true", help="no network namespaces")
    parser.add_argument("--keep", type=Path, help="a new folder in which everything stays")
    parser.add_argument("--smallest", action="store_true", help="on loopback")
    asked = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if asked.keep is not None:
            folder = asked.keep.absolute()
            folder.mkdir(parents=True)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        apart = not (asked.loopback or asked.smallest) and shutil.which("ip") and permitted()
        machines = stack.enter_context(Machines(folder, bool(apart)))
        print("each machine is a network namespace" if apart else "all machines are on loopback")
        year = Year(machines)
        for step in (
            year.enrol, year.add_and_renew, year.leave, year.revoke_and_fill, year.roll_back,
            year.upgrade,
        ):  # fmt: skip
            began = time.monotonic()
            print(f"{step()} ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
