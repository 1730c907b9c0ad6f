"""Statistics of Parquet files by a loop and on Ray: samples a second, and the most memory of any
process.

    python benchmarks/scale/spread.py --rows 100000 --width 2048 --workers 1 2 4 --folder /tmp/spread

All ways must end with one digest. Each runs as the command, in a process of its own; its seconds
count the start of Python, of Ray and of the workers.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil

from fedunseen import Experiment, run

CLASSES = 50
GROUP = 8192  # rows of a row group
ATTRIBUTES = 20


def make(folder: Path, rows: int, width: int, seed: int) -> None:
    """Write a run of small data of this width, and Parquet files of ``rows`` samples."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    rng = np.random.default_rng(seed)
    names = [f"class {c}" for c in range(CLASSES)]
    small = folder / "small"
    small.mkdir(parents=True)
    table = ["name,split," + ",".join(f"a{i}" for i in range(ATTRIBUTES))]
    for c, name in enumerate(names):
        values = ",".join(f"{value:.3f}" for value in rng.random(ATTRIBUTES))
        table.append(f"{name},{'unseen' if c >= CLASSES - 5 else 'seen'},{values}")
    (small / "classes.csv").write_text("\n".join(table) + "\n")
    labels = np.repeat(names, 4)
    split = np.where(np.arange(len(labels)) % 2, "test", "train")
    split[-20:] = "test"
    features = rng.normal(size=(len(labels), width)).astype(np.float32)
    np.savez(small / "features.npz", features=features, labels=labels, split=split)
    tree = {
        "data": {"name": "folder", "root": str(small)},
        "method": {"name": "gaussian"},
        "evaluation": {"selection": "last", "embedding": False, "confidence": "none"},
        "partition": {"clients": 2},
    }
    run(Experiment.from_dict(tree), folder / "run")
    (folder / "parquet").mkdir()
    vector = pa.list_(pa.float32(), width)
    schema = pa.schema([("features", vector), ("label", pa.string())])
    seen = np.array(names[: CLASSES - 5])
    drawn = rng.normal(size=GROUP * width).astype(np.float32)  # rolled on: other rows each time
    with ParquetWriter(folder / "parquet" / "0.parquet", schema, compression="none") as writer:
        for start in range(0, rows, GROUP):
            count = min(GROUP, rows - start)
            flat = pa.array(np.roll(drawn, start // GROUP)[: count * width])
            vectors = pa.FixedSizeListArray.from_arrays(flat, width)
            chosen = pa.array(seen[rng.integers(len(seen), size=count)].tolist())
            writer.write_table(pa.table([vectors, chosen], schema=schema), row_group_size=GROUP)


def measured(folder: Path, *words: str) -> tuple[str, float, float, float]:
    """Run the command; return the digest, its seconds, and the most memory in GB of one process and
    of all of them.
    """
    out = folder / "sums"
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "fedunseen", "statistics", str(folder / "parquet"), "--json"]
    command += ["--plan", str(folder / "run"), "--out", str(out), *words]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    most = [0, 0]

    def watch() -> None:
        while process.poll() is None:
            sizes = []
            for one in [psutil.Process(process.pid), *_below(process.pid)]:
                try:
                    sizes.append(one.memory_full_info().uss)
                except psutil.Error:
                    continue
            if sizes:
                most[0] = max(most[0], *sizes)
                most[1] = max(most[1], sum(sizes))
            time.sleep(0.5)

    watcher = threading.Thread(target=watch)
    watcher.start()
    answer, _ = process.communicate()
    watcher.join()
    assert process.returncode == 0, command
    seconds = time.monotonic() - began
    return json.loads(answer)["sums_sha256"], seconds, most[0] / 1e9, most[1] / 1e9


def _below(process: int) -> list[psutil.Process]:
    try:
        return psutil.Process(process).children(recursive=True)
    except psutil.Error:
        return []


def main() -> None:
    """Print a row of the table for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--folder", type=Path, default=Path("spread"))
    parser.add_argument("--smallest", action="store_true", help="100 x 8, by the loop alone")
    given = parser.parse_args()
    if given.smallest:
        given.rows, given.width, given.workers = 100, 8, []
    if not (given.folder / "parquet").exists():
        make(given.folder, given.rows, given.width, 0)
    digests = set()
    for workers in [0, *given.workers]:
        words = ("--engine", "ray", "--workers", str(workers)) if workers else ()
        digest, seconds, single, total = measured(given.folder, *words)
        digests.add(digest)
        way = f"{workers} workers" if workers else "loop"
        load = os.getloadavg()[0]
        print(
            f"| {way} | {seconds:.1f} | {given.rows / seconds:,.0f} | {single:.2f} | {total:.2f} | "
            f"load {load:.0f}",
            flush=True,
        )
    assert len(digests) == 1, digests


if __name__ == "__main__":
    main()
