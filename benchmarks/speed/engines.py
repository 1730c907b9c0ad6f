"""A deployment beside the in-process engine: equal weights, what a round costs, what a killed
process costs.

Everything runs on this machine, in temporary folders, with the real commands: `data deal`, `certs`,
`host`, `join` and `run`, over TLS on loopback. `digit-pairs`, three parties.

- **equality**: the largest difference between the final weights of a run on each engine and those
  of a run in-process, one client at a time.
- **overhead**: seconds, processor seconds and idle processor time that a round takes beyond the
  parties' local updates.
- **faults**: each kind of process is killed (SIGKILL) at each stage of round 3 of 5. A coordinator
  is started again at once with `--resume`, a party is started again at once.

    python benchmarks/speed/engines.py equality|overhead|faults [--json FILE]

To stop a process at a stage it is started through this file, which wraps one function of the
package: there it says that it has arrived, and waits until the kill has been done.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedunseen.deploy.remote.link import Link

NAMES = ("north", "south", "west")
COMMON = (
    "--set=partition.clients=3",
    "--set=evaluation.selection=last",
    "--set=evaluation.theory=false",
    "--set=evaluation.embedding=false",
    "--set=run.seed=0",
)
CASES = {
    "fedavg": (),
    "scaffold (client state)": ("--set=strategy.name=scaffold",),
    "selective sharing": (
        "--set=method.name=clswgan", "--set=method.hidden=64", '--set=strategy.shared=["generator.*"]',
    ),
}  # fmt: skip
SMALL = ("--set=strategy.rounds=5", "--set=strategy.name=scaffold", "--set=method.hidden=[16]")
RUNS = {
    "reference": "one-at-a-time",
    "in-process, auto": "auto",
    "deployment": "deployment",
}  # name -> engine.mode
ROUNDS, STRUCK = 5, 2  # of a run with a fault; the round in which it happens, counted from 0
STAGES = ("instruct", "train", "reply", "merge", "checkpoint")
VICTIM = "south"
KINDS = ("coordinator", "party")
HELD = 120.0  # seconds that a process waits at its stage at most


# Processes


class Machine:
    """Starts commands in a folder, each with a log of its own, and leaves none behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.running:
            if process.poll() is None:
                process.terminate()
        for process in self.running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(
        self, log: str, *words: str, orders: Mapping[str, Any] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command of the package; through :func:`drive` if it has orders."""
        command = [sys.executable, "-m", "fedunseen", *words]
        if orders is not None:
            command = [
                sys.executable,
                str(Path(__file__).resolve()),
                "drive",
                json.dumps(dict(orders)),
                *words,
            ]
        with open(self.folder / log, "ab") as file:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=file, stderr=file
            )
        self.running.append(process)
        return process

    def run(self, *words: str, log: str = "commands.log", seconds: float = 600) -> None:
        """Run a command to its end.

        Raises:
            RuntimeError: it fails.
        """
        self.ended(self.start(log, *words), log, seconds)

    def ended(self, process: subprocess.Popen[bytes], log: str, seconds: float = 300) -> None:
        """Wait for the end of a process that has to succeed.

        Raises:
            RuntimeError: it fails, or does not end.
        """
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        if status != 0:
            text = (self.folder / log).read_text(errors="replace")[-3000:]
            raise RuntimeError(
                f"{log}: {'no end' if status is None else f'exit status {status}'}\n{text}"
            )

    def deal(self) -> None:
        """Make each party's data and all certificates."""
        names = ",".join(NAMES)
        self.run(
            "data",
            "deal",
            "digit-pairs",
            "--set=partition.clients=3",
            "--parties",
            names,
            "--out",
            "data",
        )
        self.run("certs", "--parties", names, "--out", "kits")

    def join(
        self, at: str, name: str, orders: Mapping[str, Any] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a party."""
        return self.start(
            f"{name}.log",
            "join",
            at,
            "--data",
            f"data/{name}",
            "--kit",
            f"kits/{name}",
            orders=orders,
        )


@contextlib.contextmanager
def workplace(keep: Path | None, name: str) -> Iterator[Path]:
    """Yield a temporary folder; say what is left running in it at the end, and keep it if asked
    to.
    """
    folder = Path(tempfile.mkdtemp(prefix="engines-"))
    try:
        yield folder
    finally:
        end = time.monotonic() + 8
        while (left := inside(folder)) and time.monotonic() < end:
            time.sleep(0.2)
        if left:
            say(f"left behind by {name}: {left}")
        if keep is not None:
            shutil.copytree(
                folder, keep / name.replace(" ", "-"), dirs_exist_ok=True, ignore=_no_sockets
            )
        shutil.rmtree(folder, ignore_errors=True)


def _no_sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(folder, name).is_socket()]


def inside(folder: Path) -> dict[int, str]:
    """Return the processes that work in a folder, and their commands."""
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if Path(os.readlink(entry / "cwd")).is_relative_to(folder):
                found[int(entry.name)] = command_of(int(entry.name))
    return found


def command_of(process: int) -> str:
    """Return the command line of a process; empty if it has gone."""
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{process}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
        )
    return ""


def below(parent: int) -> list[int]:
    """Return the processes below one, itself first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            above = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(above, []).append(int(entry.parent.name))
    found, ahead = [], [parent]
    while ahead:
        found.append(ahead.pop(0))
        ahead += children.get(found[-1], [])
    return found


def processor_time(processes: Sequence[int]) -> float:
    """Return the processor seconds that processes, and those of their children that have ended,
    have used.
    """
    ticks = 0
    for process in processes:
        with contextlib.suppress(OSError, ValueError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def say(line: str) -> None:
    """Tell on standard error how far things are."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


# Equality


def equality(asked: argparse.Namespace) -> tuple[list[str], list[dict[str, Any]]]:
    """Compare the final weights with those of the in-process engine, one client at a time."""
    head = ["case", *(name for name in RUNS if name != "reference")]
    rows: list[dict[str, Any]] = []
    print(table_head(head), flush=True)
    for case, settings in CASES.items():
        row: dict[str, Any] = {"case": case}
        with workplace(asked.keep, f"equality {case}") as folder:
            options = [*COMMON, f"--set=strategy.rounds={ROUNDS}", *settings]
            for name, mode in RUNS.items():
                say(f"{case}: {name}")
                place = folder / name.replace(" ", "-").replace(",", "")
                place.mkdir()
                try:
                    whole_run(place, mode, options)
                    if name != "reference":
                        row[name] = difference(folder / "reference" / "run", place / "run")
                except RuntimeError as error:
                    say(str(error))
                    row[name] = "failed"
        rows.append(row)
        print(line_of([row[name] for name in head]), flush=True)
    return head, rows


def whole_run(place: Path, mode: str, options: Sequence[str]) -> None:
    """Run an experiment into ``place/run``."""
    with Machine(place) as machine:
        if mode != "deployment":
            machine.run(
                "run", "digit-pairs-fedavg", *options, f"--set=engine.mode={mode}", "--out", "run"
            )
            return
        machine.deal()
        at = f"127.0.0.1:{free_port()}"
        words = [
            "host",
            "digit-pairs-fedavg",
            *options,
            "--kit",
            "kits/coordinator",
            "--address",
            at,
            "--out",
            "run",
        ]
        coordinator = machine.start("host.log", *words)
        parties = {name: machine.join(at, name) for name in NAMES}
        machine.ended(coordinator, "host.log")
        for name, party in parties.items():
            machine.ended(party, f"{name}.log", 60)


def difference(one: Path, other: Path) -> str:
    """Say how far the final weights of two runs are apart."""
    import torch

    from fedunseen.federation.run_directory import load_params

    first, second = (load_params(run / "model.safetensors") for run in (one, other))
    if first.keys() != second.keys():
        return "other names"
    if all(torch.equal(first[name], second[name]) for name in first):
        return "identical"
    return f"{max(float((first[name] - second[name]).abs().max()) for name in first):.1e}"


# Overhead


def overhead(asked: argparse.Namespace) -> tuple[list[str], list[dict[str, Any]]]:
    """Measure what a round takes beyond the local updates."""
    head = [
        "engine", "s a round", "s a message", "CPU-s a round", "CPU-s a message", "CPU-s a second, "
                                                                                  "idle",
        "slowest local update, s", "local updates, CPU-s", "load",
    ]  # fmt: skip
    rows: list[dict[str, Any]] = []
    print(table_head(head), flush=True)
    for mode in ("one-at-a-time", "batched", "deployment"):
        say(f"overhead: {mode}")
        command = [sys.executable, __file__, "measure", mode, "--rounds", str(asked.rounds)]
        command += ["--keep", str(asked.keep.resolve())] if asked.keep else []
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
        if done.returncode:
            rows.append({"engine": mode, "failed": done.returncode})
            print(line_of([mode, "failed", *[""] * (len(head) - 2)]), flush=True)
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        rows.append(row)
        per = len(NAMES) if mode == "deployment" else 1
        cells = [
            row["engine"],
            spread(row["seconds"]),
            "",
            spread(row["cpu"]),
            "",
            f"{row['idle']:.3f}",
        ]
        if per > 1:
            cells[2], cells[4] = (
                f"{statistics.median(row[key]) / per:.3f}" for key in ("seconds", "cpu")
            )
        cells += [f"{statistics.median(row[key]):.2f}" for key in ("local", "local_cpu")]
        print(line_of([*cells, f"{row['load'][0]:.1f}-{row['load'][1]:.1f}"]), flush=True)
    sizes = {row["bytes"] for row in rows if "bytes" in row}
    print(
        f"\nBytes of a model: {', '.join(map(str, sorted(sizes)))}; {asked.rounds} rounds, after 2 "
        "not counted."
    )
    return head, rows


def spread(values: Sequence[float]) -> str:
    """Return median, least and greatest."""
    return f"{statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f})"


def measure(asked: argparse.Namespace) -> None:
    """Measure one engine in this process, and print the numbers as JSON."""
    import torch

    from fedunseen.core.parameters import size_in_bytes
    from fedunseen.deploy import websocket
    from fedunseen.deploy.remote.link import Host
    from fedunseen.experiment.assemble import assemble, partition_of, prepared
    from fedunseen.experiment.schema import Experiment
    from fedunseen.federation.engine import PartyStatus, Session

    torch.set_num_threads(1)
    mode, deployed = asked.mode, asked.mode == "deployment"
    settings: dict[str, Any] = {
        "engine.name": "websocket" if deployed else "in-process", "engine.mode": mode, "run.seed": 0,
        "partition.clients": len(NAMES),
        "method.hidden": [asked.width], "strategy.local_epochs": 1, "evaluation.selection": "last",
    }  # fmt: skip
    experiment = Experiment.load("digit-pairs-fedavg", settings)
    benchmark, partition = prepared(experiment, False)
    if deployed:
        from fedunseen.federation.partition import elsewhere

        partition = elsewhere(experiment.partition)
    else:
        partition = partition_of(experiment, benchmark, 0)
    federation = assemble(experiment, benchmark, partition)
    with workplace(asked.keep, f"overhead {mode}") as folder, contextlib.ExitStack() as stack:
        events = folder / "events"
        events.touch()
        if deployed:
            machine = stack.enter_context(Machine(folder))
            machine.deal()
            port = free_port()
            place = Host(
                folder / "run" / "engine", "127.0.0.1", port, folder / "kits" / "coordinator", NAMES
            )
            link = stack.enter_context(websocket.host(place))
            for name in NAMES:
                machine.join(f"127.0.0.1:{port}", name, {"events": str(events)})
            federation.engine.connect(
                Session(link, [PartyStatus(name) for name in NAMES], "0" * 16)
            )
        numbers = rounds_of(federation, asked.rounds, events, asked.pause)
        if deployed:
            numbers_of_run = {
                "selection": "last",
                "rounds": asked.rounds,
                "calibration_factor": 0.0,
            }
            federation.engine.finish(numbers_of_run, federation.first)
    print(json.dumps({"engine": mode, "bytes": size_in_bytes(federation.first), **numbers}))


def rounds_of(federation: Any, rounds: int, events: Path, pause: float) -> dict[str, Any]:
    """Run rounds and return, of each but the first two, what it took beyond the local updates.

    Processor time is that of this process and all below it, less what the local updates took of it.
    At the end they are watched for ``pause`` seconds in which nothing is to be done.
    """
    from fedunseen.federation.in_process import InProcess

    engine, found = (
        federation.engine,
        {key: list[float]() for key in ("seconds", "cpu", "local", "local_cpu")},
    )
    if isinstance(engine, InProcess):
        inner = engine.worker.round

        def worked(*given: Any) -> Any:
            began, before = time.monotonic(), time.thread_time()
            done = list(inner(*given))
            note(
                events,
                what="trained",
                seconds=time.monotonic() - began,
                cpu=time.thread_time() - before,
            )
            return done

        vars(engine.worker)["round"] = worked
    state = federation.start()
    load = [os.getloadavg()[0]]
    for current in range(rounds + 2):
        tree, count = below(os.getpid()), len(read(events))
        used, began = processor_time(tree), time.monotonic()
        state, result = federation.round(state)
        took = time.monotonic() - began
        used = processor_time(tree) - used
        assert not result.dropped, result.dropped
        trained = [event for event in read(events)[count:] if event["what"] == "trained"]
        if current < 2:
            continue
        local = (
            max(result.seconds.values())
            if result.seconds
            else sum(event["seconds"] for event in trained)
        )
        local_cpu = sum(event["cpu"] for event in trained)
        for key, value in {
            "seconds": took - local, "cpu": used - local_cpu, "local": local, "local_cpu": local_cpu
        }.items():  # fmt: skip
            found[key].append(round(value, 4))
    used, began = processor_time(tree), time.monotonic()
    time.sleep(pause)
    idle = (processor_time(tree) - used) / (time.monotonic() - began)
    return {**found, "idle": round(idle, 4), "load": [*load, os.getloadavg()[0]]}


# Faults


def faults(asked: argparse.Namespace) -> tuple[list[str], list[dict[str, Any]]]:
    """Kill each kind of process at each stage of a round."""
    head = [
        "killed", "at", "rounds begun again", "local updates begun again", "s to the next full "
                                                                           "round",
        "of these, until the new process was up", "final weights",
    ]  # fmt: skip
    rows: list[dict[str, Any]] = []
    print(table_head(head), flush=True)
    with workplace(None, "faults") as folder:
        say("undisturbed")
        reference, made = folder / "reference", folder / "made"
        reference.mkdir()
        whole_run(reference, "in-process", "one-at-a-time", [*COMMON, *SMALL])
        made.mkdir()
        with Machine(made) as machine:
            machine.deal()
        for kind, stage in [
            ("nobody", ""),
            *((kind, stage) for kind in asked.kinds for stage in asked.stages),
        ]:
            say(f"{kind} {stage}")
            row: dict[str, Any] = {"killed": kind, "at": stage}
            with workplace(asked.keep, f"faults {kind} {stage}".strip()) as place:
                try:
                    row |= fault(place, made, kind, stage)
                    row["final weights"] = difference(reference / "run", place / "run")
                except RuntimeError as error:
                    say(str(error))
                    row["failed"] = str(error).splitlines()[0]
                    row["final weights"] = f"failed: {row['failed']}"
            rows.append(row | {"load": os.getloadavg()[0]})
            print(line_of([row.get(key, "") for key in head]), flush=True)
    return head, rows


def fault(place: Path, made: Path, kind: str, stage: str) -> dict[str, Any]:
    """Run a federation of three and kill one process at a stage; return what that cost.

    Raises:
        RuntimeError: the federation does not get to its end.
    """
    for name in ("data", "kits"):
        shutil.copytree(made / name, place / name)
    events, go = place / "events", place / "go"
    events.touch()
    at = f"127.0.0.1:{free_port()}"
    words = [
        "host",
        "digit-pairs-fedavg",
        *COMMON,
        *SMALL,
        "--kit",
        "kits/coordinator",
        "--address",
        at,
        "--out",
        "run",
    ]
    plain = {"events": str(events)}
    held = {**plain, "stage": stage, "round": STRUCK, "go": str(go)}
    with Machine(place) as machine:
        coordinator = machine.start(
            "host.log", *words, orders=plain if stage in ("train", "reply") else held
        )
        parties = {
            name: machine.join(
                at, name, held if name == VICTIM and stage in ("train", "reply") else plain
            )
            for name in NAMES
        }
        killed = 0.0
        if kind != "nobody":
            await_event(events, "arrived", [coordinator, *parties.values()])
            owner, killed = (
                coordinator if kind == "coordinator" else parties[VICTIM],
                time.monotonic(),
            )
            owner.kill()
            owner.wait()
            if kind == "coordinator":
                coordinator = machine.start("host.log", *words, "--resume", orders=plain)
            else:
                parties[VICTIM] = machine.join(at, VICTIM, plain)
            go.touch()
        machine.ended(coordinator, "host.log")
        for name, party in parties.items():
            machine.ended(party, f"{name}.log", 60)
    return cost(read(events), kind, killed)


def cost(events: Sequence[Mapping[str, Any]], kind: str, killed: float) -> dict[str, Any]:
    """Return what a fault cost, from what the processes have noted down."""
    times = {
        what: [event["at"] for event in events if event["what"] == what]
        for what in ("begun", "training", "kept")
    }
    row: dict[str, Any] = {
        "rounds begun again": len(times["begun"]) - ROUNDS,
        "local updates begun again": len(times["training"]) - len(NAMES) * ROUNDS,
    }
    if kind == "nobody":
        usual = [
            later - earlier
            for earlier, later in zip(times["kept"], times["kept"][1:], strict=False)
        ]
        return row | {"s to the next full round": f"{statistics.median(usual):.1f} (a round)"}
    # A round whose answers are all there goes on without who was killed: then it is the next one
    # that had to wait.
    after = [event for event in events if event["at"] > killed]
    again = any(event["what"] == "training" and event["round"] == STRUCK for event in after)
    needs = STRUCK + (0 if kind == "coordinator" or again else 1)
    full = [event["at"] for event in after if event["what"] == "kept" and event["round"] >= needs]
    up = [event["at"] for event in after if event["what"] == "up"]
    row["s to the next full round"] = round(full[0] - killed, 1)
    row["of these, until the new process was up"] = round(up[0] - killed, 1) if up else ""
    return row


def await_event(
    events: Path, what: str, needed: Sequence[subprocess.Popen[bytes]], seconds: float = 180
) -> None:
    """Wait until something has been noted down.

    Raises:
        RuntimeError: that does not come, or one of the processes ends before.
    """
    end = time.monotonic() + seconds
    while not any(event["what"] == what for event in read(events)):
        if time.monotonic() > end or any(process.poll() is not None for process in needed):
            raise RuntimeError(f"nobody has {what}")
        time.sleep(0.01)


# What processes note down, and where they wait


def note(events: Path, **event: Any) -> None:
    """Add a line to a file that several processes write."""
    line = json.dumps({"at": time.monotonic(), **event}) + "\n"
    with open(events, "ab", buffering=0) as file:
        file.write(line.encode())


def read(events: Path) -> list[dict[str, Any]]:
    """Return all whole lines."""
    return [json.loads(line) for line in events.read_bytes().split(b"\n")[:-1]]


def timed(events: Path, arrive: Callable[[str, int], None] | None = None) -> Callable[..., Any]:
    """Return a client's round that notes down when it begins and what it took, and waits before it
    if it is time to.
    """
    from fedunseen.deploy.remote import party

    inner = party.local_update

    def local(engine: Any, client: int, instruction: Any, before: Any, round: int) -> Any:
        note(events, what="training", client=client, round=round)
        if arrive is not None:
            arrive("train", round)
        began, used = time.monotonic(), time.thread_time()
        done = inner(engine, client, instruction, before, round)
        took, used = time.monotonic() - began, time.thread_time() - used
        note(events, what="trained", client=client, round=round, seconds=took, cpu=used)
        return done

    return local


class Held:
    """A link that waits before it sends the instructions of one round."""

    def __init__(self, link: Link, arrive: Callable[[str, int], None]) -> None:
        self.link, self.arrive = link, arrive

    def present(self) -> Mapping[str, str]:
        """Return who is connected."""
        return self.link.present()

    def ask(self, name: str, message: bytes) -> Future[bytes]:
        """Wait if it is time to, then ask."""
        from fedunseen.deploy.remote.wire import unpack

        header = unpack(message)[0]
        if header.get("kind") == "round":
            self.arrive("instruct", header["round"])
        return self.link.ask(name, message)


def drive(orders: Mapping[str, Any], words: Sequence[str]) -> None:
    """Run a command of the package that notes down what happens, and waits at one stage of one
    round.

    Args:
        orders: ``events``: where to note it down; ``stage``, ``round``: where to wait; ``go``:
            until it is there.
        words: the command.
    """
    from fedunseen.cli.main import main as command
    from fedunseen.deploy.remote import party
    from fedunseen.deploy.remote.coordinator import Distributed
    from fedunseen.federation.engine import Session
    from fedunseen.federation.federation import State
    from fedunseen.federation.run_directory import RunDirectory

    events = Path(orders["events"])
    waited = threading.Event()
    # The methods that are replaced here, before anything calls them.
    connect, play, save, answer, move = (
        Distributed.connect, Distributed.round, RunDirectory.save_checkpoint, party.Party._round, os.replace,
    )  # fmt: skip

    def arrive(stage: str, round: int) -> None:
        if (
            (stage, round) != (orders.get("stage"), orders.get("round"))
            or waited.is_set()
            or Path(orders["go"]).exists()
        ):
            return
        waited.set()
        note(events, what="arrived")
        end = time.monotonic() + HELD
        while not Path(orders["go"]).exists() and time.monotonic() < end:
            time.sleep(0.005)

    def held_connect(self: Distributed, meeting: Session) -> None:
        merge = self.strategy.merge

        def held_merge(state: Any, params: Any, replies: Any, round: int) -> Any:
            arrive("merge", round)
            return merge(state, params, replies, round)

        vars(self.strategy)["merge"] = held_merge
        meeting.link = Held(meeting.link, arrive)
        connect(self, meeting)

    def noted_round(self: Distributed, round: int, *given: Any) -> Any:
        note(events, what="begun", round=round)
        return play(self, round, *given)

    def noted_save(self: RunDirectory, checkpoint: State) -> None:
        save(self, checkpoint)
        note(events, what="kept", round=checkpoint.round - 1)

    def held_move(source: Any, target: Any, **options: Any) -> None:
        path = Path(target)
        if path.parent.name == "checkpoints":  # the file is written, but does not have its name yet
            arrive("checkpoint", int(path.stem) - 1)
        move(source, target, **options)

    def held_answer(
        self: party.Party, engine: Any, header: Mapping[str, Any], tensors: Any
    ) -> bytes:
        reply = answer(self, engine, header, tensors)
        arrive("reply", int(header["round"]))
        return reply

    for owner, name, value in (
        (Distributed, "connect", held_connect), (Distributed, "round", noted_round),
        (RunDirectory, "save_checkpoint", noted_save), (os, "replace", held_move),
        (party, "local_update", timed(events, arrive)), (party.Party, "_round", held_answer),
    ):  # fmt: skip
        setattr(owner, name, value)
    note(events, what="up", command=words[0])
    sys.argv = ["fedunseen", *words]
    command()


# The command


def table_head(cells: Sequence[str]) -> str:
    """Return a table's head in Markdown."""
    return f"{line_of(cells)}\n|{'---|' * len(cells)}"


def line_of(cells: Sequence[Any]) -> str:
    """Return a table's line in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


PARTS = {"equality": equality, "overhead": overhead, "faults": faults}


def smallest() -> None:
    """See that it runs: a round in this process, and one of the real command with every function
    replaced.

    Raises:
        RuntimeError: a replaced function does not say what it was replaced for.
    """
    for mode in ("one-at-a-time", "batched"):
        measure(argparse.Namespace(mode=mode, rounds=1, keep=None, width=8, pause=0.0))
    with workplace(None, "smallest") as folder, Machine(folder) as machine:
        (folder / "events").touch()
        words = [
            "run",
            "digit-pairs-fedavg",
            *COMMON,
            *SMALL[1:],
            "--set=strategy.rounds=1",
            "--set=data.train_per_class=2",
            "--out",
            "run",
        ]
        machine.ended(
            machine.start("run.log", *words, orders={"events": str(folder / "events")}), "run.log"
        )
        noted = [event["what"] for event in read(folder / "events")]
        if noted != ["up", "kept"]:
            raise RuntimeError(f"noted down was {noted}")


def main() -> None:
    """Measure a part and print its table."""
    if sys.argv[1:2] == ["drive"]:
        drive(json.loads(sys.argv[2]), sys.argv[3:])
        return
    if sys.argv[1:] == ["--smallest"]:
        smallest()
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    if sys.argv[1:2] == ["measure"]:
        parser.add_argument("part")
        parser.add_argument("mode")
    else:
        parser.add_argument("part", choices=PARTS)
        parser.add_argument(
            "--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="faults: who is killed"
        )
        parser.add_argument(
            "--stages", nargs="+", choices=STAGES, default=list(STAGES), help="faults: when"
        )
        parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", default=12, type=int, help="overhead: rounds that count")
    parser.add_argument(
        "--keep", type=Path, help="a folder that keeps all that the runs leave behind"
    )
    asked = parser.parse_args()
    if asked.part == "measure":
        asked.width, asked.pause = 4054, 5.0
        measure(asked)
        return
    before, began = os.getloadavg(), time.monotonic()
    _, rows = PARTS[asked.part](asked)
    load = [round(value, 1) for value in (*before, *os.getloadavg())]
    print(
        f"\n{os.cpu_count()} cores; load over 1, 5, 15 minutes {load[:3]} before, {load[3:]} "
        f"after; {(time.monotonic() - began) / 60:.0f} minutes"
    )
    if asked.json:
        facts = {
            "part": asked.part,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load": load,
        }
        asked.json.write_text(json.dumps({**facts, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
