"""Real parties behind a bad network: 100 ms, 2 % loss, 5 Mbit/s, and a link that is cut while a round runs."""

import json
import time

import pytest

from fedunseen.experiment import Experiment, run
from processes import ENGINES, TRAINED, Deployment, command, same_model, sets
from weather import Proxy

pytestmark = pytest.mark.slow

NAMES = ("north", "south")
ROUNDS = 3
SMALL = {**TRAINED, "partition.clients": 2, "strategy.rounds": ROUNDS, "method.kl": 0.0}
CUT = 3.0  # seconds; 30 in the field


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bad_network_and_a_cut_change_nothing(engine, machine, tmp_path):
    """Everything that parties send and receive goes through the proxy, which is cut when the first round is merged."""
    command("data", "deal", "digit-pairs", *sets(SMALL), "--parties", ",".join(NAMES), "--out", tmp_path / "data")
    patient = ["--patience", 600]
    deployment = Deployment(machine, engine, NAMES, tmp_path / "data", "digit-pairs", *sets(SMALL), join=patient)
    proxy = Proxy(deployment.port, delay=0.1, loss=0.02, rate=5e6 / 8)
    try:
        coordinator = deployment.host("--json")
        parties = {name: deployment.join(name, port=proxy.port) for name in NAMES}
        lines = tmp_path / "run" / "metrics.jsonl"
        machine.until(lambda: lines.exists() and lines.read_text().count("\n") >= 1, coordinator, *parties.values())
        proxy.cut()
        time.sleep(CUT)
        proxy.mend()
        deployment.end(coordinator, parties)
    finally:
        proxy.close()
    assert proxy.cuts >= len(NAMES)
    assert proxy.carried > 2 * len(NAMES) * ROUNDS * 1000
    told = Experiment.load("digit-pairs", {**SMALL, "engine.mode": "one-at-a-time"})
    here = run(told, tmp_path / "here")
    same_model(tmp_path / "run", here.path)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["gzsl_harmonic"] == here.result["gzsl_harmonic"]
