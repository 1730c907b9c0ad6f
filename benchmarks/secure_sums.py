"""What secure aggregation costs, what it hides, and how far its sums are from the unmasked ones.

    python benchmarks/secure_sums.py cost  [--parties 3 10 30] [--numbers 40000 600000] [--neighbours N]
    python benchmarks/secure_sums.py error [--parties 3 10 30] [--numbers 40000]
    python benchmarks/secure_sums.py hides [--parties 1 2 3 10] [--images 3]
    python benchmarks/secure_sums.py classes [--root FOLDER_WITH_XLSA17]
    python benchmarks/secure_sums.py malicious [--rounds 20]
    python benchmarks/secure_sums.py carriers [--engines flower nvflare] [--parties 3] [--gone 0]

``cost``: a round's protocol in one process, the parties one after the other, without training. **coordinator** is the
processor time of the coordinator's half; **party** that of one party, the mean; **up** and **down** the bytes of one
party, where an unmasked update takes 4 a number. A share of the parties goes at a stage, and does not come back.

``error``: the largest difference of the mean update from the exact mean (float64), under masks and in float32 without.

``hides``: DLG (Zhu et al. 2019), the attack and the classifier of ``fedunseen attack leakage``, on the mean gradient of
so many parties, an 8 x 8 digit each: what a coordinator is left with that has the sum alone. One party is what it sees
without masks. The attacker knows all labels. The numbers are PSNRs of each image and what matches it best among all
that was recovered; **best** is the highest over all images and searches, **mean** that of all.

``classes``: what the aggregate of a method in closed form says of each class's mean. The error is that of the means
that somebody works out, relative to how far they are from the mean of all: 0 is each mean exactly, 1 no more than that.

``carriers``: a coordinator and parties, processes of their own over TLS on loopback, with kits, with and without masks:
seconds of a round (the median of all but the first, training included), bytes that a party sends and is sent in it, the
most memory that all processes took, and the largest difference of the final weights from those of the unmasked run.
With ``--gone`` so many parties are killed in the last round, whose seconds these are, when they are asked for their
masked words or, where the others would be too few for a sum, for what unmasks it.

``malicious``: one of ten clients replaces the model in the last round (FedZSL's backdoor, beta = 10), on digit-pairs.
Where clients shorten their own updates, that is private merging with as good as no noise; once all do, and once the
malicious one does not.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from fedunseen import Experiment, run
from fedunseen.core.parameters import Params
from fedunseen.data.xlsa17 import Xlsa17
from fedunseen.encoders import Backbone
from fedunseen.engines.masked.aggregation import Masks, in_one_process
from fedunseen.engines.masked.party import PartyHalf
from fedunseen.engines.masked.primitives import MaskError
from fedunseen.engines.masked.server import SMALLEST, ServerHalf
from fedunseen.experiment.registry import find
from fedunseen.methods.gaussian import Gaussian, GaussianSettings, Kernel, squared_distances
from fedunseen.strategies import FedAvg, Reply
from fedunseen.threats.inversion import DLG, invert
from fedunseen.threats.lenet import lenet, lenet_init
from fedunseen.threats.privacy import Private

STAGES = ("keys", "shares", "masked", "unmask")
TAKES = ("take_keys", "ask_shares", "take_shares", "ask_masked", "take_masked", "ask_unmask", "take_unmasked", "total")


def timed(owner: type, names: Sequence[str], spent: dict[str, float], key: str) -> Callable[[], None]:
    """Add the processor time of methods to ``spent[key]``; return what undoes that."""
    real = {name: getattr(owner, name) for name in names}

    def around(name: str) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            began = time.process_time()
            try:
                return real[name](*given)
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
        "| parties | numbers | gone | at | in the sum | party, s | coordinator, s | up, MB | down, MB | up / unmasked |"
    )
    print("|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|")
    for parties in args.parties:
        for numbers in args.numbers:
            for gone in sorted({0, 1, parties // 3}):
                for stage in STAGES if gone else ("",):
                    print(_cost(parties, numbers, gone, stage, args.neighbours), flush=True)


def _cost(parties: int, numbers: int, gone: int, stage: str, neighbours: int | None) -> str:
    masks = Masks(0.6, neighbours, 64.0, parties, 5)
    strategy, own = FedAvg(), replies(parties, numbers)
    layout = masks.layout(strategy, dict(own[0].update), ["loss"])
    spent = {"party": 0.0, "server": 0.0}
    undo = timed(PartyHalf, STAGES, spent, "party"), timed(ServerHalf, TAKES, spent, "server")
    row = f"| {parties} | {numbers:,} | {gone} | {stage} | "
    try:
        server = masks.server(3)
        began = time.process_time()
        words = {one.client: masks.words(strategy, layout, one, server.session) for one in own}
        spent["party"] += time.process_time() - began
        done = in_one_process(masks, server, words, lambda now, client: now == stage and client < gone)
    except MaskError as error:
        return f"{row}refused: {error} | | | | | |"
    finally:
        for one in undo:
            one()
    up, down = done.bytes_up / parties / 1e6, done.bytes_down / parties / 1e6
    return (
        f"{row}{len(done.clients)} | {spent['party'] / parties:.3f} | {spent['server']:.3f} | {up:.2f} | {down:.2f} | "
        f"{up * 1e6 / (4 * numbers):.2f} |"
    )


def error(args: argparse.Namespace) -> None:
    """Print the table of errors."""
    print("| parties | step of the masks | masked, most | float32 without masks, most |")
    print("|--:|--:|--:|--:|")
    for parties in args.parties:
        masks, strategy, own = Masks(0.6, None, 64.0, parties, 5), FedAvg(), replies(parties, args.numbers[0])
        weights = np.array([one.classes for one in own], dtype=float)
        exact = sum(w * one.update["w"].double() for w, one in zip(weights, own, strict=True)) / weights.sum()
        assert isinstance(exact, torch.Tensor)
        layout = masks.layout(strategy, dict(own[0].update), ["loss"])
        server = masks.server(3)
        words = {one.client: masks.words(strategy, layout, one, server.session) for one in own}
        done = in_one_process(masks, server, words)
        found = layout.numbers(done.words, parties, server.session)["update/w"] / weights.sum()
        _, merged = strategy.merge({}, {"w": torch.zeros(args.numbers[0])}, own, 0)
        print(
            f"| {parties} | {layout.step(layout.fields[0]):.1e} | {float(abs(found - exact.numpy()).max()):.1e} | "
            f"{float((merged['w'].double() - exact).abs().max()):.1e} |"
        )


def hides(args: argparse.Namespace) -> None:
    """Print the table of attacks."""
    digits = load_digits()
    images = torch.from_numpy(digits.images[:, None].astype(np.float32) / 16)
    labels, shape = torch.from_numpy(digits.target), (1, 8, 8)
    print("| parties in the sum | what the coordinator has | best match, dB | mean match, dB | searches |")
    print("|--:|---|--:|--:|--:|")
    for parties in args.parties:
        for masked in (True, False) if parties == 3 else (False,):
            best, mean = [], []
            for search in range(args.images):
                rng = np.random.default_rng([search, parties])
                own = torch.from_numpy(rng.choice(len(labels), parties, replace=False))
                params = {k: v.requires_grad_() for k, v in lenet_init(shape, 10, rng).items()}
                found = _recovered(params, images[own], labels[own], masked, args.steps, rng)
                error = (
                    (found[None] - images[own][:, None]).square().flatten(2).mean(2)
                )  # of each image, each recovered
                psnr = -10 * torch.log10(error.min(1).values.clamp_min(1e-12))
                best.append(float(psnr.max()))
                mean.append(float(psnr.mean()))
            what = "one party's masked words" if masked else "an update" if parties == 1 else "the sum"
            print(f"| {parties} | {what} | {max(best):.1f} | {np.mean(mean):.1f} | {args.images} |", flush=True)


def _recovered(
    params: Params, images: torch.Tensor, labels: torch.Tensor, masked: bool, steps: int, rng: np.random.Generator
) -> torch.Tensor:
    """Attack what a coordinator sees; it knows the labels."""
    count = len(images)

    def gradient(dummy: torch.Tensor, own: torch.Tensor) -> Params:
        loss = torch.nn.functional.cross_entropy(lenet(params, dummy), own)
        return dict(zip(params, torch.autograd.grad(loss, list(params.values()), create_graph=True), strict=True))

    each = [gradient(images[k : k + 1], labels[k : k + 1]) for k in range(count)]
    own = [Reply(k, {name: value.detach() for name, value in each[k].items()}, 1, 1) for k in range(count)]
    target = dict(own[0].update)
    if count >= 3:
        masks, strategy = Masks(0.6, None, 64.0, count, 1), FedAvg(weights="uniform")
        target = dict(masks.sum(strategy, own, target, count).reply.update)
        if masked:  # one party's words as numbers, of about the length of a gradient
            layout, server = masks.layout(strategy, target, []), masks.server(3)
            words = {one.client: masks.words(strategy, layout, one, server.session) for one in own}
            heard = in_one_process(masks, server, words).heard
            hidden = next(said for stage, client, said in heard if stage == "masked" and client == 0)
            numbers = torch.from_numpy(hidden.view(np.int64).astype(np.float32) / 2**62)
            parts = torch.split(
                numbers[: sum(v.numel() for v in target.values())], [target[n].numel() for n in sorted(target)]
            )
            target = {name: part.reshape(target[name].shape) for name, part in zip(sorted(target), parts, strict=True)}
    elif count == 2:
        target = {name: (value + own[1].update[name]) / 2 for name, value in target.items()}
    tried = 1 if masked else count
    start = torch.from_numpy(rng.standard_normal((tried, *images.shape[1:]), dtype=np.float32))
    attack = DLG(steps=steps, restarts=1)
    done = invert(
        attack, lambda dummy: gradient(dummy["image"], labels[:tried]), target, lambda restart: {"image": start}
    )
    return done.values["image"].clamp(0, 1)


def classes(args: argparse.Namespace) -> None:
    """Print what aggregates of closed forms say of class means."""
    sets = {"digit-pairs": find("data", "digit-pairs").load(find("data", "digit-pairs").Settings(), 0)}
    if args.root is not None:
        for name in ("AWA1_LAMPERT", "CIFAR100_MBV2"):
            sets[name] = Xlsa17.load(Xlsa17.Settings(name="xlsa17", root=args.root, dataset=name), 0)
    print("| data | seen classes | what the server is given | numbers for each feature | error of class means |")
    print("|---|--:|---|--:|--:|")
    for name, benchmark in sets.items():
        semantics = torch.from_numpy(benchmark.space.semantics).double()
        rows = benchmark.features[benchmark.train].reshape(len(benchmark.train), -1).astype(np.float32)
        inputs, labels = torch.from_numpy(rows), torch.from_numpy(benchmark.labels[benchmark.train])
        method = Gaussian(GaussianSettings(shrinkage=0.3), benchmark.space, semantics, Backbone((inputs.shape[1],)))
        sums = method.statistics(inputs, labels)
        there = sums["count"] > 0
        count, total, own = sums["count"][there], sums["total"][there], semantics[there]
        means = total / count[:, None]
        centre = means.mean(0)

        def error(found: torch.Tensor, means: torch.Tensor = means, centre: torch.Tensor = centre) -> float:
            return float((found - means).norm() / (centre - means).norm())

        seen = len(count)
        told: list[tuple[str, int, torch.Tensor]] = [("each class's sum, as it is summed today", seen, means)]
        for many in dict.fromkeys((own.shape[1], min(own.shape[1], seen // 2))):
            some = own[:, :many]
            combined = total.T @ some  # (d, a): all that ESZSL and ridge regression need of class sums
            guess = (combined @ torch.linalg.pinv(some)).T / count[:, None]
            told.append((f"sums times {some.shape[1]} attributes (ESZSL, ridge)", some.shape[1], guess))
        model = method.solve(sums)
        kernel = Kernel(*map(float, model["kernel"][:3]))
        observed = kernel.within(own)
        observed.diagonal().add_(1 / count)
        others = semantics[torch.from_numpy(benchmark.space.unseen)]
        weights = torch.linalg.solve(observed, kernel(squared_distances(others, own)).T).T
        needed = weights @ (means - centre)  # (U, d): all that recognising the unseen classes needs of class means
        told.append(
            (
                "the unseen classes' prototypes alone (gaussian)",
                len(others),
                centre + torch.linalg.pinv(weights) @ needed,
            )
        )
        for what, many, guess in told:
            print(f"| {name} | {seen} | {what} | {many} | {error(guess):.2g} |", flush=True)


def malicious(args: argparse.Namespace) -> None:
    """Print what a malicious client does under masks."""
    attacked = {
        "strategy.rounds": args.rounds, "evaluation.selection": "last", "evaluation.embedding": False,
        "evaluation.theory": False, "attack.name": "backdoor", "attack.rounds": str(args.rounds), "attack.scale": 10.0,
        "attack.ignore_defence": True,
    }  # fmt: skip
    masked = {"privacy.aggregation": "masked"}
    clipped = {"privacy.name": "client-level", "privacy.clip": 2.0, "privacy.noise": 1e-3, "privacy.accountant": "rdp"}
    rows: list[tuple[str, str, dict[str, Any], bool]] = [
        ("no", "none", {}, True),
        ("no", "`norm-clip` at the server", {"defence.name": "norm-clip"}, True),
        ("yes", "none can be", masked, True),
        ("yes", "every client shortens its own to 2", masked | clipped, True),
        ("yes", "every client but the malicious one does", masked | clipped, False),
    ]
    print("| masks | defence | ZSL before, % | ZSL after, % | backdoor before, % | backdoor after, % |")
    print("|---|---|--:|--:|--:|--:|")
    real = Private.blurred

    def honest(self: Private, reply: Reply, parties: int, round: int) -> Reply:
        return reply if reply.client == 0 else real(self, reply, parties, round)

    for masks, what, more, binds in rows:
        Private.blurred = real if binds else honest  # type: ignore[method-assign]
        with tempfile.TemporaryDirectory() as folder:
            before, after = run(Experiment.load("digit-pairs", attacked | more), Path(folder) / "run").metrics[-2:]
        numbers = (before["zsl"], after["zsl"], before["backdoor"], after["backdoor"])
        print(f"| {masks} | {what} | " + " | ".join(f"{value:.1f}" for value in numbers) + " |", flush=True)
    Private.blurred = real  # type: ignore[method-assign]


GOES = """
import os, signal, sys
from fedunseen.cli.main import main
from fedunseen.engines.remote.masking import Masking

last, stage, real = int(sys.argv[1]), sys.argv[2], Masking.answer

def answer(self, header):
    if (self.round, header["kind"]) == (last, stage):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, header)

Masking.answer = answer
sys.argv = ["fedunseen", *sys.argv[3:]]
main()
"""
"""A party that dies at a stage of a round."""


def memory(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Return the bytes that processes and all that they have started take, what they share counted once."""
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


def waited(processes: Sequence[subprocess.Popen[bytes]], host: subprocess.Popen[bytes]) -> int:
    """Wait until the coordinator and all parties have ended; return the most memory that they took."""
    most = 0
    while host.poll() is None:
        most = max(most, memory(processes))
        time.sleep(1.0)
    for process in processes:
        if host.returncode:
            process.terminate()  # it would wait for the coordinator
        process.wait()
    return most


def carriers(args: argparse.Namespace) -> None:
    """Print what masks cost between machines."""
    heads = (
        "carrier | parties | numbers | masks | killed | round, s | up, MB | down, MB | memory, GB | weights differ by"
    )
    print(f"| {heads} |")
    print("|---|--:|--:|---|--:|--:|--:|--:|--:|--:|")
    program = [sys.executable, "-m", "fedunseen"]
    for parties in args.parties:
        names = [f"party{k}" for k in range(parties)]
        dealt = [f"--set=partition.clients={parties}", "--set=data.train_per_class=6", "--set=data.test_per_class=3"]
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            deal = [*program, "data", "deal", "digit-pairs", *dealt, "--parties", ",".join(names), "--out", "data"]
            subprocess.run(deal, cwd=folder, check=True, capture_output=True)
            for engine in args.engines:
                kits = [*program, "certs", "--engine", engine, "--parties", ",".join(names), "--out", f"kits-{engine}"]
                subprocess.run(kits, cwd=folder, check=True, capture_output=True)
                for numbers in args.numbers:
                    plain: Params = {}
                    for masks, gone in ((False, 0), *((True, gone) for gone in args.gone)):
                        plain = _carried(folder, engine, names, numbers, masks, gone, args.rounds, dealt, plain)


def _carried(
    folder: Path, engine: str, names: Sequence[str], numbers: int, masks: bool, gone: int, rounds: int,
    dealt: Sequence[str], plain: Params,
) -> Params:  # fmt: skip
    """Run a federation between processes, print its row, and return the weights of the run without masks."""
    program = [sys.executable, "-m", "fedunseen"]
    wide = max(1, round((numbers - 20) / 149))  # digit-pairs: 128 features and 20 attributes
    settings = {
        "method.hidden": [wide], "strategy.rounds": rounds, "evaluation.selection": "last", "evaluation.theory": False,
        "evaluation.embedding": False, "engine.quorum": len(names) - gone,
    }  # fmt: skip
    chosen = [*dealt, *(f"--set={key}={json.dumps(value)}" for key, value in settings.items())]
    more = ["--set=privacy.aggregation=masked"] if masks else []
    out = f"{engine}-{len(names)}-{numbers}-{masks}-{gone}"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{probe.getsockname()[1]}"
    host = [*program, "host", "digit-pairs", *chosen, *more, "--address", at, "--out", out]
    commands = [[*host, "--kit", f"kits-{engine}/coordinator"]]
    last = rounds - 1
    stage = "masked" if len(names) - gone >= SMALLEST else "unmask"  # earlier, the others are no sum
    for k, name in enumerate(names):
        begin = [sys.executable, "-c", GOES, str(last), stage] if k < gone else program
        join = [*begin, "join", at, "--data", f"data/{name}", "--kit", f"kits-{engine}/{name}"]
        commands.append([*join, "--state", f"state-{out}-{name}"])
    with open(folder / f"{out}.log", "wb") as log:
        running = [subprocess.Popen(one, cwd=folder, stdout=log, stderr=log) for one in commands]
        most = waited(running, running[0])
        if any(one.returncode for k, one in enumerate(running) if not 1 <= k <= gone):
            raise SystemExit((folder / f"{out}.log").read_text())
    lines = [json.loads(line) for line in (folder / out / "metrics.jsonl").read_text().splitlines()]
    model = load_file(folder / out / "model.safetensors")
    whole = [line for line in lines[1:] if len(line["participants"]) == len(names)]
    there = lines[last] if gone else (whole or lines)[-1]
    seconds = there["seconds"] if gone else float(np.median([line["seconds"] for line in whole or lines]))
    up, down = (there[way] / len(names) / 1e6 for way in ("bytes_up", "bytes_down"))
    differ = "" if gone else f"{max(float((model[name] - (plain or model)[name]).abs().max()) for name in model):.1e}"
    told = (
        f"{sum(v.numel() for v in model.values()):,} | {'yes' if masks else 'no'} | {f'{gone}, {stage}' if gone else 0}"
    )
    print(
        f"| {engine} | {len(names)} | {told} | {seconds:.2f} | {up:.3f} | {down:.3f} | {most / 1e9:.1f} | {differ} |",
        flush=True,
    )
    return plain or model


ALL = {"cost": cost, "error": error, "hides": hides, "classes": classes, "malicious": malicious, "carriers": carriers}

SMALL: dict[str, dict[str, Any]] = {
    "malicious": {"rounds": 2},
    "carriers": {"engines": ["flower"], "parties": [3], "numbers": [500], "gone": [1], "rounds": 2},
}
"""What --smallest sets for tables of their own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("what", choices=tuple(ALL), nargs="?", default="cost")
    parser.add_argument("--parties", type=int, nargs="+")
    parser.add_argument("--numbers", type=int, nargs="+", default=[40_000, 600_000])
    parser.add_argument("--neighbours", type=int)
    parser.add_argument("--images", type=int, default=3, help="searches")
    parser.add_argument("--steps", type=int, default=300, help="calls of L-BFGS")
    parser.add_argument("--root", type=Path, help="classes: folder with AWA1_LAMPERT and CIFAR100_MBV2")
    parser.add_argument("--rounds", type=int, default=20, help="malicious: the last of which is attacked")
    parser.add_argument("--engines", nargs="+", default=["flower", "nvflare"])
    parser.add_argument("--gone", type=int, nargs="+", default=[0], help="carriers: how many parties are killed")
    parser.add_argument("--smallest", action="store_true", help="a run of a few seconds that shows that this works")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if args.smallest and args.what in SMALL:
        for name, value in SMALL[args.what].items():
            setattr(args, name, value)
    elif args.smallest:
        for what in (cost, error):
            args.parties, args.numbers = [4], [500]
            what(args)
        args.parties, args.images, args.steps = [2], 1, 3
        hides(args)
        classes(args)
        return 0
    usual = {"hides": [1, 2, 3, 10], "carriers": [3]}
    args.parties = args.parties or usual.get(args.what, [3, 10, 30])
    ALL[args.what](args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
