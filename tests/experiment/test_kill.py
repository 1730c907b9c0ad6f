"""Really kill the process (SIGKILL), at several moments of one run, and resume it: nothing may show."""

import random
import signal
import time
from pathlib import Path

import pytest

from fedunseen import run
from fedunseen.core.toml import toml_text
from processes import GUARD, Forked, sets, until
from same import content

pytestmark = pytest.mark.slow

SELECTIVE = {
    "method.name": "clswgan", "method.hidden": 16, "method.output": "linear", "method.synthetic": 5,
    "method.head_epochs": 1, "method.batch_size": 8, "method.softmax_epochs": 3, "method.critic_steps": 2,
    "strategy.name": "moon", "strategy.shared": ["generator.*"],
}  # fmt: skip
DEFENDED = {"strategy.name": "scaffold", "defence.name": "class-probes"}  # which keeps what is typical


def rounds_of(path):
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def kill_child(arguments, folder, path, rounds, patience):
    """Start the command, kill it a little after the line of that round is written; say whether it died of that."""
    child = Forked(["run", *arguments], None, folder, "log")
    until(lambda: rounds_of(path) >= rounds or child.poll() is not None, folder)
    time.sleep(patience)
    child.kill()
    return child.wait(GUARD) == -signal.SIGKILL


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
@pytest.mark.parametrize("settings", [{}, SELECTIVE, DEFENDED], ids=["fedavg", "selective", "defended"])
def test_kills_at_many_moments_change_nothing(settings, make, tree, tmp_path):
    settings = {**settings, "strategy.rounds": 20, "strategy.fraction": 0.7}
    (tmp_path / "small.toml").write_text(toml_text(tree), "utf-8")
    out = tmp_path / "killed"
    arguments = [str(tmp_path / "small.toml"), "--out", str(out), "--resume", *sets(settings)]
    # of each stage: at the start, in the midst twice, and right after the last round, before its result is written
    moments = [(name, rounds) for name in ("selection/metrics.jsonl", "metrics.jsonl") for rounds in (1, 6, 7, 20)]
    draw = random.Random(0)
    kills = 0
    for name, rounds in moments:
        patience = 0 if rounds == 20 else draw.uniform(0, 0.02)
        kills += kill_child(arguments, tmp_path, out / name, rounds, patience)
    assert kills >= 6  # the last moments of a stage may be missed
    run(make(settings), out, resume=True)
    whole, found = content(run(make(settings), tmp_path / "whole").path), content(out)
    assert {name: found.get(name) for name in whole} == whole
    assert all("checkpoints" in name for name in found.keys() - whole.keys())  # an old one, not deleted yet
