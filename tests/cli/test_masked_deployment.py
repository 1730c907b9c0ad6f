"""Secure aggregation and unlabelled samples on machines: real processes over TLS on loopback, some of them killed."""

import json
import random
import signal

import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.experiment.forget import forget
from processes import ADAPTING, TRAINED, Deployment, command, sets
from same import distance, same

pytestmark = pytest.mark.slow

NAMES = ("north", "south", "west")
SMALL = {**TRAINED, "partition.clients": 3, "strategy.rounds": 2}
MASKED = ["--set=privacy.aggregation=masked"]


@pytest.mark.parametrize("seed", [0, 1])
def test_three_processes_killed_at_random_open_each_sum_once(seed, machine, tmp_path):
    """The coordinator dies with a sum in its hands, a party at some message; both come back."""
    rng, words, folder = random.Random(f"websocket {seed}"), sets(SMALL), tmp_path / "data"
    command("data", "deal", "digit-pairs", *words, "--parties", ",".join(NAMES), "--out", folder)
    deployment = Deployment(machine, NAMES, folder, "digit-pairs", *words, *MASKED, join=["--masked"])
    host, victim = deployment.host(killed_in=rng.randrange(2)), rng.choice(NAMES)
    kill_party = f"{rng.randrange(2)}:{rng.choice(['shares', 'masked', 'open'])}"
    parties = {name: deployment.join(name, kill_party if name == victim else None) for name in NAMES}
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
        ledger = json.loads((tmp_path / f"fedunseen-{name}" / "ledger" / "ledger.json").read_bytes().splitlines()[0])
        (plan,) = ledger["plans"].values()
        assert (ledger["rosters"], plan["opened"]["k"], plan["waiting"]) == ([list(NAMES)], 1, None)
    unmasked = run(Experiment.load("digit-pairs", {**SMALL, "engine.mode": "one-at-a-time"}), tmp_path / "unmasked")
    assert distance(tmp_path / "run", unmasked) < 2e-7


def test_samples_are_removed_in_one_masked_sum_by_real_processes(machine, tmp_path):
    """All three remove some samples from a finished run; south dies before it opens the sum."""
    chosen = range(0, 40, 2)
    settings = {key: value for key, value in SMALL.items() if not key.startswith(("method", "strategy"))}
    folder = tmp_path / "data"
    command("data", "deal", "digit-pairs-gaussian", *sets(settings), "--parties", ",".join(NAMES), "--out", folder)
    host = ["digit-pairs-gaussian", *sets(settings), *MASKED]
    deployment = Deployment(machine, NAMES, folder, *host, join=["--masked"])
    deployment.end(deployment.host(), {name: deployment.join(name) for name in NAMES})
    deployment.more = ["--masked", "--removal", "--consent", "removal", *(f"--samples={sample}" for sample in chosen)]
    where = "--kit", "kits/coordinator", "--address", f"127.0.0.1:{deployment.port}"
    words = "forget", "run", "--removing", ",".join(NAMES), *where, "--out", "left"
    coordinator = machine.start("host.log", *words)
    parties = {name: deployment.join(name, "0:open" if name == "south" else None) for name in NAMES}
    assert machine.ended(parties["south"], coordinator) == -signal.SIGKILL
    parties["south"] = deployment.join("south")
    deployment.end(coordinator, parties)
    plain = run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "plain")
    for client in "012":
        plain = forget(plain, client, tmp_path / f"without-{client}", chosen)
    left = json.loads((tmp_path / "left" / "result.json").read_text("utf-8"))
    assert left["sums_sha256"] == plain.result["sums_sha256"]
    assert left["forgotten"] == ["60 samples of north, south, west"]
    assert not (tmp_path / "left.removal").exists()


@pytest.mark.parametrize("aggregation", ["masked", "plain"])
def test_killed_processes_adapt_to_the_bits_of_one_process(aggregation, machine, adapting, tmp_path):
    """South dies in the second iteration, the coordinator after it has merged it."""
    settings = {"data.root": str(adapting / "data" / "coordinator"), "data.part": True}
    settings = {**ADAPTING, **settings, "privacy.aggregation": aggregation}
    deployment = Deployment(machine, NAMES, adapting / "data", adapting / "mine.toml", *sets(settings))
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
