"""A real coordinator and real parties, processes of their own, over TLS on loopback; some are
killed for real.
"""

import json
import random
import signal
import sys

import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.deploy.deployed import UNCALIBRATED
from fedunseen.experiment.forget import forget
from processes import Deployment, command, descendants, is_running, sets
from same import distance, noted, same
from small_runs import ADAPTING, TRAINED

pytestmark = pytest.mark.slow

NAMES = ("north", "south", "west")
ROUNDS = 4
SMALL = {
    **TRAINED,
    "partition.clients": 3,
    "strategy.rounds": ROUNDS,
    "strategy.name": "scaffold",
}  # clients keep c
SET = sets(SMALL)
MASKED = ["--set=privacy.aggregation=masked"]


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
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count(
        "\n"
    ) == 1  # all three are needed: it waits
    parties["south"] = deployment.join("south")
    assert machine.ended(coordinator, *parties.values()) == -signal.SIGKILL
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 2
    deployment.end(deployment.host("--resume", "--json"), parties)
    undisturbed = run(
        Experiment.load("digit-pairs", {**SMALL, "engine.mode": "one-at-a-time"}), tmp_path / "here"
    )
    assert same(tmp_path / "run", undisturbed.path)
    for name in NAMES:  # the model went home, and names a sample there
        assert same(tmp_path / "runs" / name, undisturbed.path)
        command("predict", tmp_path / "runs" / name, data / name / "features.npz", "--top", 1)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["gzsl_harmonic"] == undisturbed.result["gzsl_harmonic"]
    assert [note.startswith(UNCALIBRATED) for note in result["notes"]] == [True, False]
    assert [machine.said("host.log").count(f"note: {note}\n") for note in result["notes"]] == [
        2,
        1,
    ]  # host began twice


def test_a_late_reply_counts(machine, data, tmp_path):
    """Of two parties one is held until two merges are done without it; its update of the first
    model counts then.
    """
    words = sets({**SMALL, "strategy.name": "fedavg", "partition.clients": 2, "engine.buffer": 1})
    deployment = Deployment(machine, NAMES[:2], data, "digit-pairs", *words, insecure=True)
    coordinator = deployment.host()
    lines = tmp_path / "run" / "metrics.jsonl"

    def merges():
        return (
            [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
        )

    parties = {
        name: deployment.join(name, held_by=tmp_path / f"{name}.may") for name in ("south", "north")
    }
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
@pytest.mark.parametrize(
    ("number", "status", "word"), [(signal.SIGTERM, 143, "ended"), (signal.SIGINT, 130, "interr")]
)
def test_a_signal_ends_host_and_join_and_all_that_they_started(
    number, status, word, machine, data, tmp_path
):
    words = *SET, "--set=partition.clients=2"
    deployment = Deployment(machine, NAMES[:2], data, "digit-pairs", *words, insecure=True)
    host, party = deployment.host(), deployment.join("north")
    machine.until(
        lambda: "north has joined" in machine.said("host.log"), host, party
    )  # and south never comes
    for process, log in ((party, "north.log"), (host, "host.log")):
        started = descendants(process.pid)
        process.send_signal(number)
        assert machine.ended(process) == status
        assert word in machine.said(log).splitlines()[-1]
        assert "Traceback" not in machine.said(log)
        assert not [child for child in started if is_running(child)]
    assert not (tmp_path / "run" / "result.json").exists()
    deployment.host("--resume")
    machine.until(
        lambda: machine.said("host.log").count("listening at") == 2
    )  # nothing that was left is in its way


@pytest.mark.parametrize("seed", [0, 1])
def test_three_processes_killed_at_random_open_each_sum_once(seed, machine, data, tmp_path):
    """The coordinator dies with a sum in its hands, a party at some message; both come back."""
    rng = random.Random(f"websocket {seed}")
    settings = {**SMALL, "strategy.name": "fedavg", "strategy.rounds": 2}
    deployment = Deployment(
        machine, NAMES, data, "digit-pairs", *sets(settings), *MASKED, join=["--masked"]
    )
    host, victim = deployment.host(killed_in=rng.randrange(2)), rng.choice(NAMES)
    kill_party = f"{rng.randrange(2)}:{rng.choice(['shares', 'masked', 'open'])}"
    parties = {
        name: deployment.join(name, kill_party if name == victim else None) for name in NAMES
    }
    resumed = False
    while host.poll() is None or not resumed:
        now = host, parties[victim]
        machine.until(lambda now=now: any(one.poll() is not None for one in now))
        if parties[victim].poll() == -signal.SIGKILL:
            parties[victim] = deployment.join(victim)
        if host.poll() is not None and not resumed:
            assert host.poll() == -signal.SIGKILL
            host, resumed = deployment.host("--resume"), True
    deployment.end(host, parties)
    for name in NAMES:
        ledger = json.loads(
            (tmp_path / f"fedunseen-{name}" / "ledger" / "ledger.json").read_bytes().splitlines()[0]
        )
        (plan,) = ledger["plans"].values()
        (federation,) = ledger["federations"].values()
        assert (federation["rosters"], plan["opened"]["k"], plan["waiting"]) == (
            [list(NAMES)],
            1,
            None,
        )
    unmasked = run(
        Experiment.load("digit-pairs", {**settings, "engine.mode": "one-at-a-time"}),
        tmp_path / "unmasked",
    )
    assert distance(tmp_path / "run", unmasked) < 2e-7


def test_samples_are_removed_in_one_masked_sum_by_real_processes(machine, tmp_path):
    """All three remove some samples from a finished run; south dies before it opens the sum."""
    chosen = range(0, 40, 2)
    settings = {
        key: value for key, value in SMALL.items() if not key.startswith(("method", "strategy"))
    }
    folder = tmp_path / "data"
    command(
        "data",
        "deal",
        "digit-pairs-gaussian",
        *sets(settings),
        "--parties",
        ",".join(NAMES),
        "--out",
        folder,
    )
    host = ["digit-pairs-gaussian", *sets(settings), *MASKED]
    all_samples = ["--masked", "--consent", "moments"]  # as in one process
    deployment = Deployment(machine, NAMES, folder, *host, join=all_samples)
    deployment.end(deployment.host(), {name: deployment.join(name) for name in NAMES})
    whole = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))["sums_sha256"]
    noted("WebSocket", "`host` and three `join`, TLS, masked", whole)
    deployment.more = [
        *all_samples,
        "--removal",
        "--consent",
        "removal",
        *(f"--samples={sample}" for sample in chosen),
    ]
    where = "--kit", "kits/coordinator", "--address", f"127.0.0.1:{deployment.port}"
    words = "forget", "run", "--removing", ",".join(NAMES), *where, "--out", "left"
    coordinator = machine.start("host.log", *words)
    parties = {name: deployment.join(name, "0:open" if name == "south" else None) for name in NAMES}
    assert machine.ended(parties["south"], coordinator) == -signal.SIGKILL
    parties["south"] = deployment.join("south")
    deployment.end(coordinator, parties)
    plain = run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "plain")
    assert plain.result["sums_sha256"] == whole
    noted("loop", "three parties in one process", whole)
    for client in "012":
        plain = forget(plain, client, tmp_path / f"without-{client}", chosen)
    left = json.loads((tmp_path / "left" / "result.json").read_text("utf-8"))
    assert left["sums_sha256"] == plain.result["sums_sha256"]
    assert left["forgotten"] == ["60 samples of north, south, west"]
    assert not (tmp_path / "left.removal").exists()


@pytest.mark.parametrize("aggregation", ["masked", "plain"])
def test_killed_processes_adapt_to_the_bits_of_one_process(
    aggregation, machine, adapting, tmp_path
):
    """South dies in the second iteration, the coordinator after it has merged it."""
    settings = {"data.root": str(adapting / "data" / "coordinator"), "data.part": True}
    settings = {**ADAPTING, **settings, "privacy.aggregation": aggregation}
    few = ("--min-samples", "1")  # as in one process, where no party leaves classes out
    deployment = Deployment(
        machine, NAMES, adapting / "data", adapting / "mine.toml", *sets(settings), join=few
    )
    coordinator = deployment.host(killed_in=1)
    parties = {name: deployment.join(name, 1 if name == "south" else None) for name in NAMES}
    assert machine.ended(parties["south"], coordinator) == -signal.SIGKILL
    parties["south"] = deployment.join("south")
    assert machine.ended(coordinator, *parties.values()) == -signal.SIGKILL
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 1
    assert (tmp_path / "run" / "adapting" / "metrics.jsonl").read_text().count("\n") == 1
    deployment.end(deployment.host("--resume"), parties)
    alone = load_run(adapting / "alone")
    assert same(tmp_path / "run", alone.path)
    result = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))
    for key in ("samples", "classes", "refused", "rounds"):
        assert result["adapted"][key] == alone.result["adapted"][key]
    assert result["gzsl_harmonic"] == alone.result["gzsl_harmonic"]
    for name in NAMES:  # the adapted model went home
        assert same(tmp_path / "runs" / name, alone.path)
