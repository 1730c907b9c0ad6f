"""Every script of ``benchmarks/`` and ``tools/`` runs, on its smallest shape."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import cub_size
from processes import run_forked

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPTS = {
    path.stem: path for places in ("benchmarks/*/*.py", "tools/*.py") for path in ROOT.glob(places)
}
# Tested elsewhere, or without a smallest shape; fuzz limits its process's memory.
APART = {
    "real_data", "splits", "fuzz", "structure", "mutants", "scorecard", "prose", "trace", "pictures",
    "same_sums",
}  # fmt: skip
# of scripts with several tables
PARTS = (
    "closed_form same", "closed_form private", "closed_form floor", "closed_form attacked", "closed_form few",
    "closed_form lengths",
    "secure_sums malicious", "living growing", "unlabelled guard", "unlabelled draws", "unlabelled "
                                                                                       "beside",
    "unlabelled parties", "unlabelled episodes", "tree --ray",
)  # fmt: skip


@pytest.fixture
def script(monkeypatch, tmp_path, one_thread):
    """Run a script in this process, as ``python NAME.py ...`` does; return its exit status."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    start = subprocess.run

    def quickly(command, **how):
        """Fork what runs the package, which a new interpreter would import first, unless it is for
        other variables.
        """
        ours = list(command[:3]) == [sys.executable, "-m", "fedunseen"] and not how.keys() & {
            "env",
            "cwd",
        }
        return run_forked(tmp_path, command, **how) if ours else start(command, **how)

    monkeypatch.setattr(subprocess, "run", quickly)

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [str(SCRIPTS[name]), *map(str, words)])
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            return end.code
        return 0

    return run


@pytest.mark.parametrize("name", [*sorted(set(SCRIPTS) - APART), *PARTS])
def test_it_runs_on_its_smallest_shape(name, script, capfd):
    assert script(*name.split(), "--smallest") in (0, None)
    assert capfd.readouterr().out.strip()  # it has something to tell


def test_a_tree_of_masked_sums_has_the_digest_of_one_in_clear(script, capfd):
    digests = set()
    for words in ((), ("--masked",), ("--masked", "--fan-out", 3)):
        assert script("tree", "--smallest", *words) == 0
        tree, flat = re.findall(r"(?:tree|flat) `(\w+)`", capfd.readouterr().out)
        digests |= {tree, flat}
    assert len(digests) == 1
    assert script("tree", "--smallest", "--masked", "--fan-out", 4) == 2  # two parties in the last


def test_the_tables_of_real_features_are_made_of_any_data_in_that_layout(script, tmp_path, capfd):
    cub_size.write_data(tmp_path, cub_size.SMALLEST)
    status = script(
        "real_data", "CUB", "--smallest", "--root", tmp_path, "--out", tmp_path / "runs"
    )
    assert status in (0, None), status
    table = capfd.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in table[2:]] == [
        "| FedAvg (Eq. 3 alone)", "| FedZSL as printed (mu = 3, tau = 10, all classes)",
    ]  # fmt: skip


def test_without_the_data_the_tables_say_what_is_missing(script, tmp_path):
    said = script("real_data", "AWA1_LAMPERT", "--smallest", "--root", tmp_path / "nowhere")
    assert str(said).startswith("error: ")
    assert "nowhere" in str(said)
