"""A real coordinator and three real parties, processes of their own, over TLS on loopback; some are killed for real."""

import json
import signal
import sys

import pytest

from fedunseen import Experiment, run
from fedunseen.experiment.deployed import UNCALIBRATED
from processes import TRAINED, Deployment, command, descendants, is_running, sets
from same import same

pytestmark = pytest.mark.slow

NAMES = ("north", "south", "west")
ROUNDS = 4
SMALL = {**TRAINED, "partition.clients": 3, "strategy.rounds": ROUNDS, "strategy.name": "scaffold"}  # clients keep c
SET = sets(SMALL)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    out = tmp_path_factory.mktemp("dealt") / "data"
    command("data", "deal", "digit-pairs", *SET, "--parties", ",".join(NAMES), "--out", out)
    return out


def test_a_party_and_the_coordinator_killed_change_nothing(machine, data, tmp_path):
    """A party dies when it has trained for round 2, the coordinator when it has merged round 3."""
    deployment = Deployment(machine, NAMES, data, "digit-pairs", *SET)
    coordinator = deployment.host(killed_in=2)
    parties = {name: deployment.join(name, 1 if name == "south" else None) for name in NAMES}
    assert machine.ended(parties["south"], coordinator) == -signal.SIGKILL
    missed = ("south has not answered", "south is gone")
    machine.until(lambda: any(words in machine.said("host.log") for words in missed), coordinator)
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 1  # all three are needed: it waits
    parties["south"] = deployment.join("south")
    assert machine.ended(coordinator, *parties.values()) == -signal.SIGKILL
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 2
    deployment.end(deployment.host("--resume", "--json"), parties)
    undisturbed = run(Experiment.load("digit-pairs", {**SMALL, "engine.mode": "one-at-a-time"}), tmp_path / "here")
    assert same(tmp_path / "run", undisturbed.path)
    for name in NAMES:  # the model went home, and names a sample there
        assert same(tmp_path / "runs" / name, undisturbed.path)
        command("predict", tmp_path / "runs" / name, data / name / "features.npz", "--top", 1)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["gzsl_harmonic"] == undisturbed.result["gzsl_harmonic"]
    assert [note.startswith(UNCALIBRATED) for note in result["notes"]] == [True, False]
    assert all(f"note: {note}\n" in machine.said("host.log") for note in result["notes"])


def test_a_late_reply_counts(machine, data, tmp_path):
    """Of two parties one is held until two merges are done without it; its update of the first model counts then."""
    words = sets({**SMALL, "strategy.name": "fedavg", "partition.clients": 2, "engine.buffer": 1})
    deployment = Deployment(machine, NAMES[:2], data, "digit-pairs", *words, insecure=True)
    coordinator = deployment.host()
    lines = tmp_path / "run" / "metrics.jsonl"

    def merges():
        return [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []

    parties = {name: deployment.join(name, held_by=tmp_path / f"{name}.may") for name in ("south", "north")}
    needed = (coordinator, *parties.values())
    machine.until(lambda: machine.said("host.log").count("has joined") == 2, *needed)
    (tmp_path / "north.may").write_text("1")
    machine.until(lambda: len(merges()) >= 2, *needed)
    (tmp_path / "south.may").write_text("9")
    machine.until(lambda: len(merges()) >= 3, *needed)
    (tmp_path / "north.may").write_text("9")
    deployment.end(coordinator, parties)
    found = [(line["participants"], line["clock"]["ages"]) for line in merges()]
    assert (found[:3], len(found)) == ([([0], [0]), ([0], [0]), ([1], [2])], ROUNDS)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are watched through /proc")
@pytest.mark.parametrize(("number", "status", "word"), [(signal.SIGTERM, 143, "ended"), (signal.SIGINT, 130, "interr")])
def test_a_signal_ends_host_and_join_and_all_that_they_started(number, status, word, machine, data, tmp_path):
    words = *SET, "--set=partition.clients=2"
    deployment = Deployment(machine, NAMES[:2], data, "digit-pairs", *words, insecure=True)
    host, party = deployment.host(), deployment.join("north")
    machine.until(lambda: "north has joined" in machine.said("host.log"), host, party)  # and south never comes
    for process, log in ((party, "north.log"), (host, "host.log")):
        started = descendants(process.pid)
        process.send_signal(number)
        assert machine.ended(process) == status
        assert word in machine.said(log).splitlines()[-1]
        assert "Traceback" not in machine.said(log)
        assert not [child for child in started if is_running(child)]
    assert not (tmp_path / "run" / "result.json").exists()
    deployment.host("--resume")
    machine.until(lambda: machine.said("host.log").count("listening at") == 2)  # nothing that was left is in its way
