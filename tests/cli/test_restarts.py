"""Each machine is killed in each phase of a masked run and started again: the sums are those of a
run in which nothing happened.
"""

import json
import signal

import pytest

from processes import Deployment, Machine, command, sets
from small_runs import CLOSED

pytestmark = pytest.mark.slow
NAMES = ("north", "south", "west")
SETTINGS = {**CLOSED, "partition.clients": 3}
MASKED = {"privacy.aggregation": "masked", "strategy.weights": "uniform", "engine.patience": 200.0}
PHASES = [
    ("hello", 1), ("plan", 1), ("signed", 1), ("round", 1), ("shares", 1), ("masked", 1), ("open", 1),
    ("hello", 2), ("round", 2), ("masked", 2), ("open", 2),  # how sure the answers are
    ("stop", 1),
]  # fmt: skip
"""What a party gets: the kind of a message, and the how manieth of it."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    out = tmp_path_factory.mktemp("dealt") / "data"
    words = ["digit-pairs-gaussian", *sets(SETTINGS)]
    command("data", "deal", *words, "--parties", ",".join(NAMES), "--out", out)
    return out


def deployed(machine, data):
    words = ["digit-pairs-gaussian", *sets({**SETTINGS, **MASKED})]
    return Deployment(machine, NAMES, data, *words)


def results(folder):
    """Return what the result at each machine says of the sums."""
    places = [folder / "run", *(folder / "runs" / name for name in NAMES)]
    return {json.loads((place / "result.json").read_text())["sums_sha256"] for place in places}


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """The digest of a run in which nothing happens."""
    machine = Machine(tmp_path_factory.mktemp("undisturbed"))
    try:
        deployment = deployed(machine, data)
        deployment.end(deployment.host(), {name: deployment.join(name) for name in NAMES})
    finally:
        machine.stop()
    return results(machine.folder)


@pytest.mark.parametrize("phase", [*PHASES, ("result.json", 1)], ids=str)
def test_the_coordinator_is_killed(phase, machine, data, tmp_path, undisturbed):
    """In the midst: one party has the message already, and the others have not."""
    kind, time = phase
    messages = 1 if kind == "result.json" else len(NAMES) * (time - 1) + 2
    deployment = deployed(machine, data)
    coordinator = deployment.host(at=(kind, messages))
    parties = {name: deployment.join(name) for name in NAMES}
    assert machine.ended(coordinator, *parties.values()) == -signal.SIGKILL
    deployment.end(deployment.host("--resume"), parties)
    assert results(tmp_path) == undisturbed


@pytest.mark.parametrize("phase", PHASES, ids=str)
def test_a_party_is_killed(phase, machine, data, tmp_path, undisturbed):
    deployment = deployed(machine, data)
    coordinator = deployment.host()
    parties = {name: deployment.join(name, at=phase if name == "south" else None) for name in NAMES}
    assert machine.ended(parties["south"], coordinator) == -signal.SIGKILL
    if phase == ("stop", 1):  # the coordinator does not wait for its thanks
        parties.pop("south")
        deployment.end(coordinator, parties)
        coordinator = deployment.host("--resume")
    parties["south"] = deployment.join("south")
    deployment.end(coordinator, parties)
    assert results(tmp_path) == undisturbed
