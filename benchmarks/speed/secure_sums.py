"""What secure aggregation costs, and how far its sums are from the unmasked ones.

    python benchmarks/speed/secure_sums.py cost  [--parties 3 10 30] [--numbers 40000 600000]
    python benchmarks/speed/secure_sums.py error [--parties 3 10 30] [--numbers 40000]
    python benchmarks/speed/secure_sums.py classes [--root FOLDER_WITH_XLSA17]
    python benchmarks/speed/secure_sums.py malicious [--rounds 20]
    python benchmarks/speed/secure_sums.py carriers [--parties 3] [--gone 0]

``cost``: a sum in one process, the parties one after the other, without training. **coordinator**
is the processor time of the coordinator's side; **party** that of one party, the mean; **up** and
**down** the bytes of one party, where an unmasked update takes 4 a number. Where parties go, they
do so when they are first asked for masked elements, so that these rows are of two attempts.

``error``: the largest difference of the mean update from the exact mean (float64), under masks and
in float32 without.

``classes``: what the aggregate of a method in closed form says of each class's mean. The error is
that of the means that somebody works out, relative to how far they are from the mean of all: 0 is
each mean exactly, 1 no more than that.

``carriers``: a coordinator and parties, processes of their own over TLS on loopback, with kits,
with and without masks: seconds of a round (the median of all but the first, training included),
bytes that a party sends and is sent in it, the most memory that all processes took (they are
forked, so that they share what they import), and the largest difference of the final weights from
those of the unmasked run. With ``--gone`` so many parties are killed in the last round, whose
seconds these are, when they are asked for their masked elements.

``malicious``: one of ten clients replaces the model in the last round (FedZSL's backdoor, beta =
10), on digit-pairs. Where clients shorten their own updates, that is private merging with as good
as no noise; once all do, and once the malicious one does not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedunseen import Experiment, run
from fedunseen.cli.main import main as command_line
from fedunseen.core.parameters import Params
from fedunseen.core.registry import find
from fedunseen.data.benchmarks.xlsa17 import Xlsa17
from fedunseen.deploy.remote.masking import PartySession
from fedunseen.deploy.secagg.driver import Answer, InOneProcess, Stage
from fedunseen.deploy.secagg.masks import Masks
from fedunseen.deploy.secagg.party import Message, SecAggClient
from fedunseen.deploy.secagg.primitives import Elements
from fedunseen.deploy.secagg.server import MaskedTotal, SecAggServer
from fedunseen.encoders.backbone import Backbone
from fedunseen.federation.run_directory import load_params
from fedunseen.methods.closed_form.gaussian import Gaussian
from fedunseen.methods.closed_form.gaussian_process import Kernel, squared_distances
from fedunseen.safety.privacy.client_level import Private
from fedunseen.strategies import FedAvg, Reply

STAGES = ("keys", "shares", "masked", "open")
TAKES = ("take_keys", "ask_shares", "take_shares", "ask_masked", "take_masked", "total")


def timed(
    owner: type, names: Sequence[str], spent: dict[str, float], key: str
) -> Callable[[], None]:
    """Add the processor time of methods to ``spent[key]``; return what undoes that."""
    real = {name: getattr(owner, name) for name in names}

    def around(name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return real[name](*given, **named)
            finally:
                spent[key] += time.process_time() - began

        return call

    for name in names:
        setattr(owner, name, around(name))

    def undo() -> None:
        for name, method in real.items():
            setattr(owner, name, method)

    return undo


def replies(parties: int, numbers: int, seed: int = 0) -> list[Reply]:
    """Make up updates of about the size of real ones."""
    rng = np.random.default_rng(seed)
    return [
        Reply(
            k,
            {"w": torch.from_numpy(0.01 * rng.standard_normal(numbers, dtype=np.float32))},
            1 + k % 5,
            100,
            {"loss": 1},
        )
        for k in range(parties)
    ]


def cost(args: argparse.Namespace) -> None:
    """Print the table of costs."""
    print(
        "| parties | numbers | gone | in the sum | party, s | coordinator, s | up, MB | down, MB | "
        "up / unmasked |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for parties in args.parties:
        for numbers in args.numbers:
            for gone in sorted({0, (parties - 1) // 4}):
                print(_cost(parties, numbers, gone), flush=True)


def _cost(parties: int, numbers: int, gone: int) -> str:
    """Measure a sum whose first attempts end because some parties go when they are asked for masked
    elements.
    """
    masks, strategy, own = (
        Masks(64.0, parties, dropouts=True, classes=5),
        FedAvg(),
        replies(parties, numbers),
    )
    layout = masks.layout(strategy, dict(own[0].update), ["loss"])
    clients, plan, _ = masks._simulated
    began = time.process_time()
    encoded = {str(one.client): masks.encode(strategy, layout, one, b"") for one in own}
    spent = {"party": time.process_time() - began, "server": 0.0}
    lost, dead = {str(k) for k in range(gone)}, set[str]()

    class Leaving(InOneProcess):
        def answer(self, stage: Stage, name: str, request: Message) -> Answer:
            if stage == "masked":
                dead.update(lost)
            return None if name in dead else super().answer(stage, name, request)

    def encode(name: str, rho: bytes, extra: Sequence[str]) -> Elements:
        return encoded[name]  # the check, which rho changes, does not count here

    undo = [
        timed(SecAggClient, STAGES, spent, "party"),
        timed(SecAggServer, TAKES, spent, "server"),
    ]
    undo.append(timed(MaskedTotal, ("take_open", "sum"), spent, "server"))
    try:
        done = Leaving(clients, encode).sum(plan, 0, "00" * 32)
    finally:
        for one in undo:
            one()
    up, down = done.bytes_up / parties / 1e6, done.bytes_down / parties / 1e6
    return (
        f"| {parties} | {numbers:,} | {gone} | {len(done.roster)} | {spent['party'] / parties:.3f} "
        f"| {spent['server']:.3f} | {up:.2f} | {down:.2f} | {up * 1e6 / (4 * numbers):.2f} |"
    )


def error(args: argparse.Namespace) -> None:
    """Print the table of errors."""
    print("| parties | step of the masks | masked, most | float32 without masks, most |")
    print("|--:|--:|--:|--:|")
    for parties in args.parties:
        masks, strategy, own = (
            Masks(64.0, parties, classes=5),
            FedAvg(),
            replies(parties, args.numbers[0]),
        )
        weights = np.array([one.classes for one in own], dtype=float)
        exact = (
            sum(w * one.update["w"].double() for w, one in zip(weights, own, strict=True))
            / weights.sum()
        )
        assert isinstance(exact, torch.Tensor)
        layout = masks.layout(strategy, dict(own[0].update), ["loss"])
        done = masks.opened(strategy, layout, own)
        found = (
            layout.decode(done.elements, parties, bytes.fromhex(done.rho))["update/w"]
            / weights.sum()
        )
        _, merged = strategy.merge({}, {"w": torch.zeros(args.numbers[0])}, own, 0)
        print(
            f"| {parties} | {layout.step(layout.fields[0]):.1e} | "
            f"{float(abs(found - exact.numpy()).max()):.1e} | "
            f"{float((merged['w'].double() - exact).abs().max()):.1e} |"
        )


def classes(args: argparse.Namespace) -> None:
    """Print what aggregates of closed forms say of class means."""
    sets = {
        "digit-pairs": find("data", "digit-pairs").load(find("data", "digit-pairs").Settings(), 0)
    }
    if args.root is not None:
        for name in ("AWA1_LAMPERT", "CIFAR100_MBV2"):
            sets[name] = Xlsa17.load(
                Xlsa17.Settings(name="xlsa17", root=args.root, dataset=name), 0
            )
    print(
        "| data | seen classes | what the server is given | numbers for each feature | error of "
        "class means |"
    )
    print("|---|--:|---|--:|--:|")
    for name, benchmark in sets.items():
        semantics = torch.from_numpy(benchmark.space.semantics).double()
        rows = (
            benchmark.features[benchmark.train].reshape(len(benchmark.train), -1).astype(np.float32)
        )
        inputs, labels = torch.from_numpy(rows), torch.from_numpy(benchmark.labels[benchmark.train])
        method = Gaussian(
            Gaussian.Settings(shrinkage=0.3),
            benchmark.space,
            semantics,
            Backbone((inputs.shape[1],)),
        )
        sums = method.statistics(inputs, labels)
        there = sums["count"] > 0
        count, total, own = sums["count"][there], sums["total"][there], semantics[there]
        means = total / count[:, None]
        centre = means.mean(0)

        def error(
            found: torch.Tensor, means: torch.Tensor = means, centre: torch.Tensor = centre
        ) -> float:
            return float((found - means).norm() / (centre - means).norm())

        seen = len(count)
        items: list[tuple[str, int, torch.Tensor]] = [
            ("each class's sum, as it is summed today", seen, means)
        ]
        for many in dict.fromkeys((own.shape[1], min(own.shape[1], seen // 2))):
            some = own[:, :many]
            combined = (
                total.T @ some
            )  # (d, a): all that ESZSL and ridge regression need of class sums
            guess = (combined @ torch.linalg.pinv(some)).T / count[:, None]
            items.append(
                (f"sums times {some.shape[1]} attributes (ESZSL, ridge)", some.shape[1], guess)
            )
        model = method.solve(sums)
        kernel = Kernel(*map(float, model["kernel"][:3]))
        observed = kernel.within(own)
        observed.diagonal().add_(1 / count)
        others = semantics[torch.from_numpy(benchmark.space.unseen)]
        weights = torch.linalg.solve(observed, kernel(squared_distances(others, own)).T).T
        needed = weights @ (
            means - centre
        )  # (U, d): all that recognising the unseen classes needs of class means
        items.append(
            (
                "the unseen classes' prototypes alone (gaussian)",
                len(others),
                centre + torch.linalg.pinv(weights) @ needed,
            )
        )
        for what, many, guess in items:
            print(f"| {name} | {seen} | {what} | {many} | {error(guess):.2g} |", flush=True)


def malicious(args: argparse.Namespace) -> None:
    """Print what a malicious client does under masks."""
    attacked = {
        "strategy.rounds": args.rounds, "evaluation.selection": "last", "evaluation.embedding": False,
        "evaluation.theory": False, "attack.name": "backdoor", "attack.rounds": str(args.rounds), "attack.scale": 10.0,
        "attack.ignore_defence": True,
    }  # fmt: skip
    masked = {"privacy.aggregation": "masked"}
    clipped = {"privacy.name": "client-level", "privacy.clip": 2.0, "privacy.noise": 1e-3}
    rows: list[tuple[str, str, dict[str, Any], bool]] = [
        ("no", "none", {}, True),
        ("no", "`norm-clip` at the server", {"defence.name": "norm-clip"}, True),
        ("yes", "none can be", masked, True),
        ("yes", "every client shortens its own to 2", masked | clipped, True),
        ("yes", "every client but the malicious one does", masked | clipped, False),
    ]
    print(
        "| masks | defence | ZSL before, % | ZSL after, % | backdoor before, % | backdoor after, % "
        "|"
    )
    print("|---|---|--:|--:|--:|--:|")
    real = Private.add_local_noise

    def honest(self: Private, reply: Reply, parties: int, round: int) -> Reply:
        return reply if reply.client == 0 else real(self, reply, parties, round)

    for masks, what, more, binds in rows:
        Private.add_local_noise = real if binds else honest  # type: ignore[method-assign]
        with tempfile.TemporaryDirectory() as folder:
            before, after = run(
                Experiment.load("digit-pairs-fedavg", attacked | more), Path(folder) / "run"
            ).metrics[-2:]
        numbers = (before["zsl"], after["zsl"], before["backdoor"], after["backdoor"])
        print(
            f"| {masks} | {what} | " + " | ".join(f"{value:.1f}" for value in numbers) + " |",
            flush=True,
        )
    Private.add_local_noise = real  # type: ignore[method-assign]


SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "torch", "cryptography.x509", "fedunseen.cli.main", "fedunseen.data.benchmarks.folder",
        "fedunseen.deploy.remote.party", "fedunseen.deploy.websocket.server",
        "fedunseen.methods.fedzsl", "fedunseen.deploy.secagg.masks",
        "fedunseen.experiment.running", "fedunseen.strategies.scaffold",
    ]
)  # fmt: skip
"""Forks processes that share what it has imported: thirty parties on one machine would not have
room otherwise.
"""


def be(words: Sequence[str], folder: Path, log: Path, dies: tuple[int, str] | None) -> None:
    """Be ``fedunseen WORDS``; one that ``dies`` kills itself in that round when it is asked for
    that stage.
    """
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), number)
    os.chdir(folder)
    sys.argv = ["fedunseen", *words]
    real = PartySession.answer

    def answer(self: PartySession, header: Any) -> Any:
        if (self._round, header["kind"]) == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, header)

    PartySession.answer = answer  # type: ignore[method-assign]
    command_line()


def memory(processes: Sequence[ForkServerProcess]) -> int:
    """Return the bytes that processes and all that they have started take, what they share counted
    once.
    """
    status: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            status[int(entry.parent.name)] = int(entry.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:  # it has ended
            continue
    ours = {process.pid for process in processes}
    while more := {pid for pid, parent in status.items() if parent in ours} - ours:
        ours |= more
    total = 0
    for pid in ours:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        except (OSError, ProcessLookupError):
            continue
    return total


def waited(processes: Sequence[ForkServerProcess], host: ForkServerProcess) -> int:
    """Wait until the coordinator and all parties have ended; return the most memory that they
    took.
    """
    most = 0
    while host.is_alive():
        most = max(most, memory(processes))
        time.sleep(1.0)
    for process in processes:
        if host.exitcode:
            process.terminate()  # it would wait for the coordinator
        process.join()
    return most


def carriers(args: argparse.Namespace) -> None:
    """Print what masks cost between machines."""
    heads = "parties | numbers | masks | killed | round, s | up, MB | down, MB | memory, GB | weights differ by"
    print(f"| {heads} |")
    print("|--:|--:|---|--:|--:|--:|--:|--:|--:|")
    program = [sys.executable, "-m", "fedunseen"]
    for parties in args.parties:
        names = [f"party{k}" for k in range(parties)]
        dealt = [
            f"--set=partition.clients={parties}",
            "--set=data.train_per_class=6",
            "--set=data.test_per_class=3",
        ]
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            deal = [
                *program,
                "data",
                "deal",
                "digit-pairs",
                *dealt,
                "--parties",
                ",".join(names),
                "--out",
                "data",
            ]
            subprocess.run(deal, cwd=folder, check=True, capture_output=True)
            kits = [*program, "certs", "--parties", ",".join(names), "--out", "kits"]
            subprocess.run(kits, cwd=folder, check=True, capture_output=True)
            for numbers in args.numbers:
                plain: Params = {}
                for masks, gone in ((False, 0), *((True, gone) for gone in args.gone)):
                    plain = _carried(folder, names, numbers, masks, gone, args.rounds, dealt, plain)


def _carried(
    folder: Path, names: Sequence[str], numbers: int, masks: bool, gone: int, rounds: int,
    dealt: Sequence[str], plain: Params,
) -> Params:  # fmt: skip
    """Run a federation between processes, print its row, and return the weights of the run without
    masks.
    """
    wide = max(1, round((numbers - 20) / 149))  # digit-pairs: 128 features and 20 attributes
    settings = {
        "method.hidden": [wide], "strategy.rounds": rounds, "evaluation.selection": "last", "evaluation.theory": False,
        "evaluation.embedding": False, "engine.quorum": len(names) - gone,
    }  # fmt: skip
    chosen = [*dealt, *(f"--set={key}={json.dumps(value)}" for key, value in settings.items())]
    more = ["--set=privacy.aggregation=masked", "--set=privacy.dropouts=allow"] if masks else []
    out = f"{len(names)}-{numbers}-{masks}-{gone}"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{probe.getsockname()[1]}"
    host = ["host", "digit-pairs", *chosen, *more, "--address", at, "--out", out]
    last, log = rounds - 1, folder / f"{out}.log"
    stage = "masked"
    running = [
        SERVER.Process(target=be, args=([*host, "--kit", "kits/coordinator"], folder, log, None))
    ]
    for k, name in enumerate(names):
        join = [
            "join",
            at,
            "--data",
            f"data/{name}",
            "--kit",
            f"kits/{name}",
            "--state",
            f"state-{out}-{name}",
            "--consent",
            "dropouts",
        ]
        running.append(
            SERVER.Process(target=be, args=(join, folder, log, (last, stage) if k < gone else None))
        )
    for process in running:
        process.start()
    most = waited(running, running[0])
    if any(one.exitcode for k, one in enumerate(running) if not 1 <= k <= gone):
        raise SystemExit(log.read_text())
    lines = [json.loads(line) for line in (folder / out / "metrics.jsonl").read_text().splitlines()]
    model = load_params(folder / out / "model.safetensors")
    whole = [line for line in lines[1:] if len(line["participants"]) == len(names)]
    there = lines[last] if gone else (whole or lines)[-1]
    seconds = (
        there["seconds"] if gone else float(np.median([line["seconds"] for line in whole or lines]))
    )
    up, down = (there[way] / len(names) / 1e6 for way in ("bytes_up", "bytes_down"))
    differ = (
        ""
        if gone
        else f"{max(float((model[name] - (plain or model)[name]).abs().max()) for name in model):.1e}"
    )
    numbers = sum(value.numel() for value in model.values())
    dropouts = f"{gone}, {stage}" if gone else 0
    result = f"{numbers:,} | {'yes' if masks else 'no'} | {dropouts}"
    print(
        f"| {len(names)} | {result} | {seconds:.2f} | {up:.3f} | {down:.3f} | {most / 1e9:.1f} | "
        f"{differ} |",
        flush=True,
    )
    return plain or model


ALL = {
    "cost": cost,
    "error": error,
    "classes": classes,
    "malicious": malicious,
    "carriers": carriers,
}

SMALL: dict[str, dict[str, Any]] = {
    "malicious": {"rounds": 2},
    "carriers": {"parties": [4], "numbers": [500], "gone": [1], "rounds": 2},
}
"""What --smallest sets for tables of their own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("what", choices=tuple(ALL), nargs="?", default="cost")
    parser.add_argument("--parties", type=int, nargs="+")
    parser.add_argument("--numbers", type=int, nargs="+", default=[40_000, 600_000])
    parser.add_argument(
        "--root", type=Path, help="classes: folder with AWA1_LAMPERT and CIFAR100_MBV2"
    )
    parser.add_argument(
        "--rounds", type=int, default=20, help="malicious: the last of which is attacked"
    )
    parser.add_argument(
        "--gone", type=int, nargs="+", default=[0], help="carriers: how many parties are killed"
    )
    parser.add_argument(
        "--smallest", action="store_true", help="a run of a few seconds that shows that this works"
    )
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if args.smallest and args.what in SMALL:
        for name, value in SMALL[args.what].items():
            setattr(args, name, value)
    elif args.smallest:
        for what in (cost, error):
            args.parties, args.numbers = [4], [500]
            what(args)
        classes(args)
        return 0
    args.parties = args.parties or ([3] if args.what == "carriers" else [3, 10, 30])
    ALL[args.what](args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
