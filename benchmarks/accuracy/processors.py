"""Run the same seeds as other processors would, and compare the bench's rows and the presets.

    python benchmarks/accuracy/processors.py bench --out runs/processors
    python benchmarks/accuracy/processors.py presets --out runs/presets

``bench``: cells of `fedunseen bench`, beside the committed rows. ``presets``: presets that README
and docs quote, seeds 0 to 4.

PyTorch, OpenBLAS, MKL and oneDNN take the instructions of an old processor, of one with AVX2 and of
one with AVX-512, as `make test-portable` has them. Each is a process of its own. What is measured
stays in ``--out``; a second call continues. ``--smallest`` is a preset with few samples, to see
that it works.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

COMMITTED = Path(__file__).parents[2] / "docs" / "research" / "bench.csv"
CAPABILITIES = {
    "default": ("default", "Nehalem", "COMPATIBLE", "SSE41"),
    "avx2": ("avx2", "Haswell", "AVX2", "AVX2"),
    "avx512": ("avx512", "SkylakeX", "AVX512", "AVX512_CORE"),
}
ZERO_SHOT = ("zsl", "gzsl_harmonic")
VARIABLES = ("ATEN_CPU_CAPABILITY", "OPENBLAS_CORETYPE", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA")
CELLS: tuple[tuple[str, ...], ...] = (
    ("method=gaussian", "method=ridge"),
    ("data=digit-pairs", "method=fedzsl", "method=fedavg", "method=distzsl", "method=clswgan"),
    ("data=AWA1_LAMPERT", "method=fedzsl", "method=fedavg", "method=distzsl", "method=clswgan"),
)
PRESETS = {
    "digit-pairs": ZERO_SHOT,
    "digit-pairs-fedavg": ZERO_SHOT,
    "digit-pairs-gaussian": ZERO_SHOT,
    "digit-pairs-classifier": ZERO_SHOT,
    "digit-pairs-clswgan": ZERO_SHOT,
    "digit-pairs-few-shot": ("few_shot",),
    "digit-pairs-maml": ("few_shot",),
}
TITLES = {"zsl": "ZSL", "gzsl_harmonic": "H", "few_shot": "5-way 1-shot"}
FEW = (
    "--set",
    "data.train_per_class=4",
    "--set",
    "data.test_per_class=2",
    "--set",
    "strategy.rounds=2",
)


def call(capability: str, *words: str) -> None:
    """Run ``fedunseen`` with the instructions of a processor."""
    environment = {
        **os.environ,
        **dict(zip(VARIABLES, CAPABILITIES[capability], strict=True)),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "fedunseen", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")


def rows_of(path: Path) -> dict[tuple[str, str, str, str], dict[str, str]]:
    """Return (data, partition, method, condition) -> a row of a leaderboard that has been
    measured.
    """
    with path.open(encoding="utf-8") as file:
        found = {
            (row["data"], row["partition"], row["method"], row["condition"]): row
            for row in csv.DictReader(file)
        }
    return {key: row for key, row in found.items() if row["status"] == "done"}


def chosen(row: Mapping[str, str]) -> str:
    """Return the settings and the round of a row, without the calibration offset, which is a real
    number.
    """
    return re.sub(r" ?evaluation\.factor=\S+", "", row["settings"])


def compare(ours: Path, committed: Path = COMMITTED) -> Iterator[tuple[str, str, list[str]]]:
    """Yield data set, method, and cells: rows, largest differences, committed intervals, what was
    chosen otherwise.
    """
    measured, printed = rows_of(ours), rows_of(committed)
    for data, partition, method in dict.fromkeys(key[:3] for key in printed):
        pairs = [
            (measured[key], printed[key])
            for key in printed
            if key[:3] == (data, partition, method) and key in measured
        ]
        if not pairs:
            continue
        far = [
            max(abs(float(one[name]) - float(other[name])) for one, other in pairs)
            for name in ZERO_SHOT
        ]
        half = [max(float(other[f"{name}_half"]) for _, other in pairs) for name in ZERO_SHOT]
        otherwise = {chosen(one) for one, other in pairs if chosen(one) != chosen(other)}
        words = "; ".join(sorted(otherwise)) or "the same"
        yield (
            data,
            method,
            [str(len(pairs)), *(f"{v:.2f}" for v in far), *(f"{v:.1f}" for v in half), words],
        )


def bench(out: Path, capabilities: Sequence[str]) -> None:
    """Run cells of the bench for each processor, and print how far they are from the committed
    rows.
    """
    print(
        "| data | method | processor | rows | largest difference of ZSL | of H | ± of ZSL | ± of H "
        "| chosen |"
    )
    print("|---|---|---|--:|--:|--:|--:|--:|---|", flush=True)
    for capability in capabilities:
        place = out / capability
        for parts in CELLS:
            call(
                capability,
                "bench",
                "--out",
                str(place),
                *(word for part in parts for word in ("--only", part)),
            )
        for data, method, cells in compare(place / "leaderboard.csv"):
            print(f"| {data} | {method} | {capability} | {' | '.join(cells)} |", flush=True)


def presets(
    out: Path, capabilities: Sequence[str], seeds: Sequence[int], names: Sequence[str], few: bool
) -> None:
    """Run presets for each processor and seed, and print the spread of each number."""
    print(
        "| preset | | seeds | processors | mean | lowest to highest | largest difference of a seed "
        "between processors |"
    )
    print("|---|---|--:|---|--:|--:|--:|", flush=True)
    for preset in names:
        found = {
            (one, seed): result(out, preset, one, seed, few)
            for one in capabilities
            for seed in seeds
        }
        for key in PRESETS[preset]:
            each = [[found[one, seed][key] for seed in seeds] for one in capabilities]
            every = [value for values in each for value in values]
            apart = max(max(same) - min(same) for same in zip(*each, strict=True))
            cells = [
                f"{sum(every) / len(every):.1f}",
                f"{min(every):.1f} to {max(every):.1f}",
                f"{apart:.1f}",
            ]
            first = f"| `{preset}` | {TITLES[key]} | {len(seeds)} | {', '.join(capabilities)}"
            print(f"{first} | {' | '.join(cells)} |", flush=True)


def result(out: Path, preset: str, capability: str, seed: int, few: bool) -> dict[str, float]:
    """Run a preset, or read what it has left."""
    place = out / preset / f"{capability}-{seed}"
    if not (place / "result.json").exists():
        words = ("--set", f"run.seed={seed}", "--out", str(place), *(FEW if few else ()))
        call(capability, "run", preset, *words, *(("--resume",) if place.exists() else ()))
    return {
        str(key): value
        for key, value in json.loads((place / "result.json").read_text("utf-8")).items()
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=("bench", "presets"), default="presets")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/processors"), help="where runs are kept"
    )
    parser.add_argument(
        "--capability",
        choices=list(CAPABILITIES),
        action="append",
        help="one alone; may be repeated",
    )
    parser.add_argument(
        "--preset", choices=list(PRESETS), action="append", help="one alone; may be repeated"
    )
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds, from 0 on")
    parser.add_argument(
        "--smallest", action="store_true", help="a preset with few samples and two seeds"
    )
    given = parser.parse_args()
    flags = Path("/proc/cpuinfo")
    wide = flags.exists() and "avx512f" in flags.read_text()
    capabilities = given.capability or [name for name in CAPABILITIES if name != "avx512" or wide]
    if given.smallest:
        presets(given.out, ["default"], (0, 1), ["digit-pairs"], few=True)
    elif given.part == "bench":
        bench(given.out, capabilities)
    else:
        presets(
            given.out, capabilities, range(given.seeds), given.preset or list(PRESETS), few=False
        )


if __name__ == "__main__":
    main()
