"""Really kill the process (SIGKILL), at several moments of one run, and resume it: nothing may show."""

import json
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from fedunseen import load_run, run
from fedunseen.federation.run_directory import load_params
from processes import GUARD, Forked, until

pytestmark = pytest.mark.slow


GENERATIVE = {
    "method.name": "clswgan", "method.hidden": 16, "method.output": "linear", "method.synthetic": 5,
    "method.head_epochs": 1, "method.batch_size": 8, "method.softmax_epochs": 3, "method.critic_steps": 2,
}  # fmt: skip


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


def lines(path):
    return [{k: v for k, v in json.loads(t).items() if k != "seconds"} for t in path.read_text().splitlines()]


def command_line(tree, settings, out):
    """Return the arguments of ``run`` for the small experiment with other settings, written beside ``out``."""
    text = [f'name = "{tree["name"]}"']
    for section, content in tree.items():
        if isinstance(content, dict):
            text += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in content.items())]
    file = out.with_name("small.toml")
    file.write_text("\n".join(text), "utf-8")
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return [str(file), "--out", str(out), "--resume", *sets]


def check(killed, whole):
    """Compare a run that was killed and resumed with one that was not."""
    assert (killed / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()
    assert (killed / "evaluation.safetensors").read_bytes() == (whole.path / "evaluation.safetensors").read_bytes()
    written = sorted(str(file.relative_to(whole.path)) for file in whole.path.glob("similarity/*"))
    for name in written:
        assert (killed / name).read_bytes() == (whole.path / name).read_bytes()
    last = sorted((whole.path / "checkpoints").glob("*.safetensors"))[-1]  # what stays with the clients, too
    torch.testing.assert_close(
        load_params(killed / "checkpoints" / last.name), load_params(last), rtol=0, atol=0, equal_nan=True
    )
    for name in ("metrics.jsonl", "selection/metrics.jsonl"):
        assert lines(killed / name) == lines(whole.path / name)
    resumed = load_run(killed).result
    for key in whole.result.keys() | resumed.keys():
        if key not in ("seconds", "run"):
            assert resumed[key] == whole.result[key], key
    assert not [file for file in killed.rglob(".*") if file.name != ".lock"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
# all but the first keep; "selective": the clients' critics and softmaxes stay with them; "defended": the rule too
@pytest.mark.parametrize("strategy", ["fedavg", "local", "scaffold", "moon", "fedgloss", "selective", "defended"])
def test_kills_at_many_moments_change_nothing(make, tree, tmp_path, strategy):
    settings = {"strategy.name": strategy, "strategy.rounds": 20, "strategy.fraction": 0.7}
    if strategy == "selective":
        settings |= {"strategy.name": "moon", "strategy.shared": ["generator.*"], **GENERATIVE}
    if strategy == "defended":  # it keeps what is typical
        settings |= {"strategy.name": "scaffold", "defence.name": "class-probes"}
    out = tmp_path / "killed"
    arguments = command_line(tree, settings, out)
    # of each stage: at the start, in the midst twice, and right after the last round, before its result is written
    moments = [(name, rounds) for name in ("selection/metrics.jsonl", "metrics.jsonl") for rounds in (1, 6, 7, 20)]
    draw = random.Random(0)
    kills = 0
    for name, rounds in moments:
        patience = 0 if rounds == 20 else draw.uniform(0, 0.02)
        kills += kill_child(arguments, tmp_path, out / name, rounds, patience)
    assert kills >= 6  # the last moments of a stage may be missed
    if not (out / "result.json").exists():
        (out / ".model.safetensors.1.tmp").write_bytes(b"half")
        (out / "checkpoints" / ".tmpAb12Cd").write_bytes(b"half")
    run(make(settings), out, resume=True)
    check(out, run(make(settings), tmp_path / "whole"))
