"""Really kill the process (SIGKILL), at several moments of one run, and resume it: nothing may show."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import fedunseen
from fedunseen import load_run, run
from fedunseen.federation.run_directory import load_params

pytestmark = pytest.mark.slow

NURSERY = """
import json, os, sys
from fedunseen import Experiment, run
from fedunseen.cli.main import main
for name, folder in (("fedavg", "a"), ("local", "b")):  # torch imports much when it first trains
    settings = {"strategy.name": name, "strategy.rounds": 1, "evaluation.selection": "last"}
    run(Experiment.from_dict(json.loads(sys.argv[1]), settings), os.path.join(sys.argv[2], folder))
for line in sys.stdin:
    child = os.fork()
    if not child:
        sys.argv = ["fedunseen", "run", *json.loads(line)]
        main()
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Starts the command again and again without importing everything again: it imports, then forks."""


def environment(cache):
    path = os.pathsep.join(filter(None, [str(Path(fedunseen.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "FEDUNSEEN_CACHE": str(cache)}


@pytest.fixture(scope="module")
def nursery(tree, tmp_path_factory):
    process = subprocess.Popen(
        [sys.executable, "-c", NURSERY, json.dumps(tree), str(tmp_path_factory.mktemp("nursery"))],
        env=environment(tmp_path_factory.mktemp("cache")),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    yield process
    process.stdin.close()
    process.wait(60)


GENERATIVE = {
    "method.name": "clswgan", "method.hidden": 16, "method.output": "linear", "method.synthetic": 5,
    "method.head_epochs": 1, "method.batch_size": 8, "method.softmax_epochs": 3, "method.critic_steps": 2,
}  # fmt: skip


def rounds_of(path):
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def wait_for(path, rounds, over):
    limit = time.monotonic() + 100
    while rounds_of(path) < rounds and not over():
        assert time.monotonic() < limit, "it never came so far"
        time.sleep(0.0005)


def is_over(pid):
    """Say whether a process is no more, or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def kill_child(nursery, arguments, path, rounds, patience):
    """Start the command, kill it a little after the line of that round is written; say whether it died of that."""
    nursery.stdin.write(json.dumps(arguments) + "\n")
    nursery.stdin.flush()
    child = int(nursery.stdout.readline())
    wait_for(path, rounds, lambda: is_over(child))
    time.sleep(patience)
    os.kill(child, signal.SIGKILL)
    return int(nursery.stdout.readline()) == -signal.SIGKILL


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
def test_kills_at_many_moments_change_nothing(nursery, make, tree, tmp_path, strategy):
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
        kills += kill_child(nursery, arguments, out / name, rounds, patience)
    assert kills >= 6  # the last moments of a stage may be missed
    if not (out / "result.json").exists():
        (out / ".model.safetensors.1.tmp").write_bytes(b"half")
        (out / "checkpoints" / ".tmpAb12Cd").write_bytes(b"half")
    run(make(settings), out, resume=True)
    check(out, run(make(settings), tmp_path / "whole"))


def test_the_command_is_killed_and_resumed(nursery, make, tree, tmp_path, own_cache):
    settings = {"strategy.rounds": 25}
    out = tmp_path / "killed"
    arguments = command_line(tree, settings, out)
    process = subprocess.Popen(
        [sys.executable, "-m", "fedunseen", "run", *arguments],
        env=environment(own_cache), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(out / "metrics.jsonl", 5, lambda: process.poll() is not None)
    process.kill()
    stdout, stderr = process.communicate()
    assert process.returncode == -signal.SIGKILL, stderr
    assert stdout == ""
    assert not (out / "result.json").exists()
    with pytest.raises(fedunseen.FedUnseenError, match="not complete: resume it"):
        load_run(out)
    run(make(settings), out, resume=True)
    check(out, run(make(settings), tmp_path / "whole"))
