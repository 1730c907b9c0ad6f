"""Secure aggregation between machines: real processes over TLS on loopback, one of them killed between the stages."""

import json
import random
import re
import signal

import pytest
from safetensors.torch import load_file

from fedunseen.experiment import Experiment, run
from fedunseen.experiment.forget import forget
from processes import ENGINES, TRAINED, Deployment, command, sets

pytestmark = pytest.mark.slow

NAMES = ("north", "south", "west", "east")
SMALL = {**TRAINED, "partition.clients": 4, "strategy.rounds": 2}
MASKED = ["--set=privacy.aggregation=masked"]


def deployed(machine, engine, names, settings, folder, *more, consent=()):
    """Deal the data, and return what hosts and joins."""
    words = sets(settings)
    command("data", "deal", "digit-pairs", *words, "--parties", ",".join(names), "--out", folder / "data")
    host = ["digit-pairs", *words, *MASKED, *more]
    return Deployment(machine, engine, names, folder / "data", *host, join=["--masked", *consent])


def close(folder, settings):
    """Assert that the run has the weights of the same one without masks."""
    unmasked = run(Experiment.load("digit-pairs", {**settings, "engine.mode": "one-at-a-time"}), folder / "unmasked")
    one, other = (load_file(path / "model.safetensors") for path in (folder / "run", unmasked.path))
    assert one.keys() == other.keys()
    assert max(float((one[name].double() - other[name].double()).abs().max()) for name in one) < 2e-7


@pytest.mark.parametrize("engine", ENGINES)
def test_a_party_killed_between_the_stages_leaves_the_sum_of_the_others(engine, machine, tmp_path):
    """West has dealt its shares and dies; a new attempt is the sum of the others, who agree to that."""
    loose = ["--set=privacy.dropouts=allow", "--set=engine.quorum=3"]
    deployment = deployed(machine, engine, NAMES, SMALL, tmp_path, *loose, consent=["--consent", "dropouts"])
    host = deployment.host()
    parties = {name: deployment.join(name, "1:masked" if name == "west" else None) for name in NAMES}
    assert machine.ended(parties.pop("west"), host) == -signal.SIGKILL
    deployment.end(host, parties)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first, second = (line["participants"] for line in lines)
    assert second == [0, 1, 3]  # of the first sum all are part, or all but one that came late: three are enough
    late = {str(client): 1 for client in {0, 1, 3} - set(first)}
    died = {"partition.leave": {"2": 1}} if 2 in first else {"partition.without": [2]}
    close(tmp_path, {**SMALL, **died, "partition.join": late})
    assert not re.search(r"\d samples of \d", machine.said("host.log"))  # who holds how much is not said


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("engine", ENGINES)
def test_three_processes_killed_at_random_open_each_sum_once(engine, seed, machine, tmp_path):
    """The coordinator dies with a sum in its hands, a party at some message; both come back."""
    rng, names = random.Random(f"{engine} {seed}"), ("north", "south", "west")
    settings = {**SMALL, "partition.clients": 3}
    deployment = deployed(machine, engine, names, settings, tmp_path)
    host, victim = deployment.host(killed_in=rng.randrange(2)), rng.choice(names)
    kill_party = f"{rng.randrange(2)}:{rng.choice(['shares', 'masked', 'open'])}"
    parties = {name: deployment.join(name, kill_party if name == victim else None) for name in names}
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
    for name in names:
        ledger = json.loads((tmp_path / f"fedunseen-{name}" / "ledger" / "ledger.json").read_bytes().splitlines()[0])
        (plan,) = ledger["plans"].values()
        assert (ledger["rosters"], plan["opened"]["k"], plan["waiting"]) == ([list(names)], 1, None)
    close(tmp_path, settings)


@pytest.mark.parametrize("engine", ENGINES)
def test_samples_are_removed_in_one_masked_sum_by_real_processes(engine, machine, tmp_path):
    """All three remove some samples from a finished run; south dies before it opens the sum."""
    names, chosen = ("north", "south", "west"), range(0, 40, 2)
    settings = {key: value for key, value in SMALL.items() if not key.startswith(("method", "strategy"))}
    settings, folder = {**settings, "partition.clients": 3}, tmp_path / "data"
    command("data", "deal", "digit-pairs-gaussian", *sets(settings), "--parties", ",".join(names), "--out", folder)
    host = ["digit-pairs-gaussian", *sets(settings), *MASKED]
    deployment = Deployment(machine, engine, names, folder, *host, join=["--masked"])
    deployment.end(deployment.host(), {name: deployment.join(name) for name in names})
    deployment.more = ["--masked", "--removal", "--consent", "removal", *(f"--samples={sample}" for sample in chosen)]
    where = "--kit", "kits/coordinator", "--address", f"127.0.0.1:{deployment.port}"
    words = "forget", "run", "--removing", ",".join(names), *where, "--out", "left"
    coordinator = machine.start("host.log", *words)
    parties = {name: deployment.join(name, "0:open" if name == "south" else None) for name in names}
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
