"""Real parties behind a bad network: 100 ms, 2 % loss, 5 Mbit/s, and a link that is cut while a round runs."""

import json
import time

import pytest
import torch
from safetensors.torch import load_file

from fedunseen.experiment import Experiment, run
from processes import ENGINES, command, free_port
from weather import Proxy

pytestmark = pytest.mark.slow

NAMES = ("north", "south")
ROUNDS = 3
SMALL = {
    "data.train_per_class": 6, "data.test_per_class": 3, "partition.clients": 2, "strategy.rounds": ROUNDS,
    "method.kl": 0.0, "method.hidden": [16], "evaluation.selection": "last", "evaluation.theory": False,
    "evaluation.embedding": False,
}  # fmt: skip
SET = [f"--set={key}={json.dumps(value)}" for key, value in SMALL.items()]
CUT = 3.0  # seconds; 30 in the field


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bad_network_and_a_cut_change_nothing(engine, machine, tmp_path):
    """Everything that parties send and receive goes through the proxy, which is cut when the first round is merged."""
    command("data", "deal", "digit-pairs", *SET[:3], "--parties", ",".join(NAMES), "--out", tmp_path / "data")
    command("certs", "--engine", engine, "--parties", ",".join(NAMES), "--out", tmp_path / "kits")
    port = free_port()
    proxy = Proxy(port, delay=0.1, loss=0.02, rate=5e6 / 8)
    try:
        host = ["host", "digit-pairs", *SET, "--kit", "kits/coordinator", "--address", f"127.0.0.1:{port}"]
        coordinator = machine.start("host.log", *host, "--out", "run", "--json")
        parties = [
            machine.start(
                f"{name}.log", "join", f"127.0.0.1:{proxy.port}", "--data", tmp_path / "data" / name,
                "--kit", f"kits/{name}", "--patience", 600,
            )
            for name in NAMES
        ]  # fmt: skip
        lines = tmp_path / "run" / "metrics.jsonl"
        machine.until(lambda: lines.exists() and lines.read_text().count("\n") >= 1, coordinator, *parties)
        proxy.cut()
        time.sleep(CUT)
        proxy.mend()
        assert machine.ended(coordinator) == 0, machine.said("host.log")
        for name, party in zip(NAMES, parties, strict=True):
            assert machine.ended(party) == 0, machine.said(f"{name}.log")
    finally:
        proxy.close()
    assert proxy.cuts >= len(NAMES)
    assert proxy.carried > 2 * len(NAMES) * ROUNDS * 1000
    told = Experiment.load("digit-pairs", {**SMALL, "engine.mode": "one-at-a-time"})
    here = run(told, tmp_path / "here")
    one, other = (load_file(path / "model.safetensors") for path in (tmp_path / "run", here.path))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["gzsl_harmonic"] == here.result["gzsl_harmonic"]
