"""The parts of a round, in processor seconds: local training, merging, measuring, observing,
checkpoints, the report.

    python benchmarks/scale/round.py [cub-size digit-pairs digit-pairs-clswgan] [--rounds 20] [--selection
    last]

Each case is a process of its own. ``cub-size`` is ``cub-fedzsl`` on made-up features of CUB's shape
(``cub_size.py``). The share that is not local training is that of a round; what a run costs once
(start, summary, report) stands beside. Rounds and their choice are the preset's own unless given;
with ``validation`` the rounds of both trainings count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

EACH_ROUND = ("local training", "merging", "measuring", "observing", "checkpoint", "other")
ONCE = ("start", "summary", "report")
CASES = ("cub-size", "digit-pairs", "digit-pairs-clswgan")


@contextmanager
def parts() -> Iterator[dict[str, float]]:
    """Add up the processor seconds of the parts of all runs in this block; a part inside another
    counts for itself.
    """
    from fedunseen.core.trainer import Trainer
    from fedunseen.experiment import stages
    from fedunseen.federation import callbacks
    from fedunseen.federation.in_process import InProcess
    from fedunseen.federation.run_directory import RunDirectory
    from fedunseen.federation.worker import Worker
    from fedunseen.tasks.zero_shot import ZeroShotEvaluator

    spent: dict[str, float] = {}
    inside: list[float] = []

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            start = time.process_time()
            inside.append(0.0)
            try:
                return function(*args, **options)
            finally:
                took = time.process_time() - start
                spent[part] = spent.get(part, 0.0) + took - inside.pop()
                if inside:
                    inside[-1] += took

        return call

    places = [
        *((Worker, name, "local training") for name in ("task", "finish", "sums")),
        *((Trainer, name, "local training") for name in ("train", "together")),
        (InProcess, "round", "merging"), (ZeroShotEvaluator, "measure", "measuring"),
        (ZeroShotEvaluator, "observe", "observing"),
        (RunDirectory, "save_checkpoint", "checkpoint"), (RunDirectory, "add_metrics", "checkpoint"),
        (callbacks, "write_tensors", "checkpoint"), (ZeroShotEvaluator, "summary", "summary"), (stages, "fit", "other"),
    ]  # fmt: skip
    before = [getattr(owner, name) for owner, name, _ in places]
    for (owner, name, part), function in zip(places, before, strict=True):
        setattr(owner, name, timed(part, function))
    try:
        yield spent
    finally:
        for (owner, name, _), function in zip(places, before, strict=True):
            setattr(owner, name, function)


def measured(tree: Mapping[str, Any], out: Path, settings: Mapping[str, Any]) -> dict[str, float]:
    """Run an experiment and write its report in this process; return the processor seconds of each
    part.
    """
    from fedunseen import Experiment, run
    from fedunseen.pages.report.page import write_report

    with parts() as spent:
        start = time.process_time()
        done = run(Experiment.from_dict(dict(tree), dict(settings)), out)
        spent["start"] = time.process_time() - start - sum(spent.values())
        start = time.process_time()
        write_report(done)
        spent["report"] = time.process_time() - start
    return spent


def tree_of(case: str, root: Path, smallest: bool) -> dict[str, Any]:
    """Return the experiment of a case."""
    from fedunseen import Experiment

    if case != "cub-size":
        return Experiment.load(case).to_dict()
    from cub_size import CUB, SMALLEST, write_data

    write_data(root, SMALLEST if smallest else CUB)
    return Experiment.load("cub-fedzsl", {"data.root": str(root)}).to_dict()


def one(
    case: str, rounds: int | None, selection: str | None, smallest: bool
) -> tuple[dict[str, float], int]:
    """Measure a case in this process; return the seconds of its parts, and how many rounds were
    trained.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = tree_of(case, folder / "data", smallest)
        rounds, selection = (
            rounds or tree["strategy"]["rounds"],
            selection or tree["evaluation"]["selection"],
        )
        spent = measured(
            tree, folder / "run", {"strategy.rounds": rounds, "evaluation.selection": selection}
        )
    return spent, rounds * (2 if selection == "validation" else 1)


def line_of(case: str, spent: Mapping[str, float], rounds: int) -> str:
    """Return the line of a case: seconds of each part of a round, the share beside training, what a
    run costs once.
    """
    each = [spent.get(part, 0.0) / rounds for part in EACH_ROUND]
    cells = [*(f"{value:.3f}" for value in each), f"{100 * (1 - each[0] / sum(each)):.0f} %"]
    return (
        f"| {case} | "
        + " | ".join([*cells, *(f"{spent.get(part, 0.0):.2f}" for part in ONCE)])
        + " |"
    )


def main(words: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=list(CASES), help=f"[{' '.join(CASES)}]")
    parser.add_argument("--rounds", type=int, help="by default the preset's own")
    parser.add_argument(
        "--selection", choices=["last", "validation"], help="by default the preset's own"
    )
    parser.add_argument(
        "--smallest", action="store_true", help="one case on next to nothing: to see that it runs"
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    if asked.one:
        print(json.dumps(one(asked.cases[0], asked.rounds, asked.selection, asked.smallest)))
        return
    print(f"| CPU-seconds a round | {' | '.join(EACH_ROUND)} | not training | {' | '.join(ONCE)} |")
    print("|---" + "|--:" * (len(EACH_ROUND) + 1 + len(ONCE)) + "|", flush=True)
    if asked.smallest:
        print(line_of("cub-size", *one("cub-size", 1, "last", True)))
        return
    for case in asked.cases:
        command = [sys.executable, __file__, case, "--one"]
        command += ["--rounds", str(asked.rounds)] if asked.rounds else []
        command += ["--selection", asked.selection] if asked.selection else []
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        print(line_of(case, *json.loads(done.stdout.splitlines()[-1])), flush=True)


if __name__ == "__main__":
    main()
