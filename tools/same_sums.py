"""One experiment by each way of running it: a table of the digests of its sums, which must be one.

    python tools/same_sums.py [FOLDER] [--flower .venv-flower/bin/python]

The ways are tests of real processes, which leave their digests in the folder that FEDUNSEEN_SUMS
names: as in continuous integration, whose folder is ``build/sums``. Without a folder these tests
run first, those of Flower in Flower's own environment. The exit code is 1 where digests differ or a
way is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
WAYS = ("loop", "files", "WebSocket", "NVFlare", "Ray", "Flower")
TESTS = (
    "tests/cli/test_deployment.py::test_samples_are_removed_in_one_masked_sum_by_real_processes",
    "tests/cli/test_offline.py::test_files_end_with_the_bits_of_the_run_in_one_process",
    "tests/cli/test_spread_on_ray.py::test_a_node_that_is_killed_costs_its_blocks_in_flight_alone",
    "tests/engines/test_nvflare_job.py::test_a_job_ends_with_the_sums_of_the_run_in_one_process",
)
OF_FLOWER = (
    "tests/engines/test_flower_app.py::test_a_closed_form_ends_with_the_sums_of_one_process",
)


def leave_digests(folder: Path, flower: Path) -> None:
    """Run the tests that leave digests in a folder."""
    environment = {**os.environ, "FEDUNSEEN_SUMS": str(folder)}
    for python, tests in ((Path(sys.executable), TESTS), (flower, OF_FLOWER)):
        if not python.exists():
            print(f"{python} is missing: make test-flower makes it", file=sys.stderr)
            continue
        subprocess.run([python, "-m", "pytest", "-q", *tests], cwd=ROOT, env=environment)


def show(folder: Path) -> bool:
    """Print the table, and return whether all ways are there and have one digest."""
    rows = [json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")]
    rows.sort(key=lambda row: (WAYS.index(row["way"].partition(" ")[0]), row["way"]))
    print("| way | how | sums_sha256 |")
    print("|---|---|---|")
    for row in rows:
        print(f"| {row['way']} | {row['how']} | `{row['sums_sha256'][:16]}` |")
    missing = [way for way in WAYS if not any(row["way"].startswith(way) for row in rows)]
    digests = sorted({row["sums_sha256"] for row in rows})
    print(f"\n{len(digests)} digest{'s' * (len(digests) != 1)}: {', '.join(digests)}")
    if missing:
        print(f"missing: {', '.join(missing)}")
    return not missing and len(digests) == 1


def main() -> int:
    """Print the table, and return 1 where it is not whole or the digests differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="where tests have left their digests")
    parser.add_argument(
        "--flower", type=Path, default=ROOT / ".venv-flower" / "bin" / "python", metavar="PYTHON"
    )
    given = parser.parse_args()
    if given.folder is not None:
        return 0 if show(given.folder) else 1
    with tempfile.TemporaryDirectory() as folder:
        leave_digests(Path(folder), given.flower.absolute())
        return 0 if show(Path(folder)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
