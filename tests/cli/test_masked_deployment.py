"""Secure aggregation between machines: real processes over TLS on loopback, one of them killed between the stages."""

import json
import signal

import pytest
from safetensors.torch import load_file

from fedunseen.experiment import Experiment, run
from processes import ENGINES, command, free_port

NAMES = ("north", "south", "west", "east")
SMALL = {
    "data.train_per_class": 6,
    "data.test_per_class": 3,
    "partition.clients": 4,
    "strategy.rounds": 2,
    "method.hidden": [16],
    "evaluation.selection": "last",
    "evaluation.theory": False,
    "evaluation.embedding": False,
}
SET = [f"--set={key}={json.dumps(value)}" for key, value in SMALL.items()]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    out = tmp_path_factory.mktemp("dealt") / "data"
    command("data", "deal", "digit-pairs", *SET[:3], "--parties", ",".join(NAMES), "--out", out)
    return out


@pytest.mark.parametrize("engine", ENGINES)
def test_a_party_killed_between_the_stages_leaves_the_sum_of_the_others(engine, machine, data, tmp_path):
    """West has dealt its shares and dies with its masks; the others' shares take them off."""
    command("certs", "--engine", engine, "--parties", ",".join(NAMES), "--out", tmp_path / "kits")
    at = f"127.0.0.1:{free_port()}"
    more = ["--set=privacy.aggregation=masked", "--set=engine.quorum=3", "--kit", "kits/coordinator"]
    host = machine.start("host.log", "host", "digit-pairs", *SET, *more, "--address", at, "--out", "run")
    parties = {
        name: machine.start(
            f"{name}.log", "join", at, "--data", data / name, "--kit", f"kits/{name}", "--masked",
            killed_in="1:masked" if name == "west" else None,
        )
        for name in NAMES
    }  # fmt: skip
    assert machine.ended(parties.pop("west"), host) == -signal.SIGKILL
    assert machine.ended(host) == 0
    for party in parties.values():
        assert machine.ended(party) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first, second = (line["participants"] for line in lines)
    assert second == [0, 1, 3]  # of the first sum all are part, or all but one that came late: three are enough
    late = {str(client): 1 for client in {0, 1, 3} - set(first)}
    died = {"partition.leave": {"2": 1}} if 2 in first else {"partition.without": [2]}
    schedule = {**died, "partition.join": late}
    settings = {**SMALL, "engine.mode": "one-at-a-time", **schedule}
    unmasked = run(Experiment.load("digit-pairs", settings), tmp_path / "unmasked")
    one, other = (load_file(path / "model.safetensors") for path in (tmp_path / "run", unmasked.path))
    assert one.keys() == other.keys()
    assert max(float((one[name].double() - other[name].double()).abs().max()) for name in one) < 2e-7
    assert "samples of" not in machine.said("host.log")  # who holds how much is not told
