"""Secure aggregation between machines: real processes over TLS on loopback, one of them killed between the stages."""

import json
import random
import signal

import pytest
from safetensors.torch import load_file

from fedunseen.experiment import Experiment, run
from processes import ENGINES, command, free_port

pytestmark = pytest.mark.slow

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
    """West has dealt its shares and dies; a new attempt is the sum of the others, who agree to that."""
    command("certs", "--engine", engine, "--parties", ",".join(NAMES), "--out", tmp_path / "kits")
    at = f"127.0.0.1:{free_port()}"
    more = ["--set=privacy.aggregation=masked", "--set=privacy.dropouts=allow", "--set=engine.quorum=3"]
    more += ["--kit", "kits/coordinator"]
    host = machine.start("host.log", "host", "digit-pairs", *SET, *more, "--address", at, "--out", "run")
    parties = {
        name: machine.start(
            f"{name}.log", "join", at, "--data", data / name, "--kit", f"kits/{name}", "--masked",
            "--consent", "dropouts",
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("engine", ENGINES)
def test_three_processes_killed_at_random_open_each_sum_once(engine, seed, machine, tmp_path):
    """The coordinator dies with a sum in its hands, a party at some message; both come back."""
    rng, names = random.Random(f"{engine} {seed}"), ("north", "south", "west")
    settings = {**SMALL, "partition.clients": 3}
    words = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
    command("data", "deal", "digit-pairs", *words[:3], "--parties", ",".join(names), "--out", tmp_path / "data")
    command("certs", "--engine", engine, "--parties", ",".join(names), "--out", tmp_path / "kits")
    at, kill_host, victim = f"127.0.0.1:{free_port()}", rng.randrange(2), rng.choice(names)
    kill_party = f"{rng.randrange(2)}:{rng.choice(['shares', 'masked', 'open'])}"
    host_words = ["host", "digit-pairs", *words, "--set=privacy.aggregation=masked", "--kit", "kits/coordinator"]
    host_words += ["--address", at, "--out", "run"]
    host = machine.start("host.log", *host_words, killed_in=kill_host)

    def join(name, killed_in=None):
        given = ["join", at, "--data", tmp_path / "data" / name, "--kit", f"kits/{name}", "--masked"]
        return machine.start(f"{name}.log", *given, killed_in=killed_in)

    parties = {name: join(name, kill_party if name == victim else None) for name in names}
    resumed = False
    while host.poll() is None or not resumed:
        now = host, parties[victim]
        machine.until(lambda now=now: any(one.poll() is not None for one in now))
        if parties[victim].poll() == -signal.SIGKILL:
            parties[victim] = join(victim)
        if host.poll() is not None and not resumed:
            assert host.poll() == -signal.SIGKILL
            host, resumed = machine.start("host.log", *host_words, "--resume"), True
    assert machine.ended(host) == 0
    for party in parties.values():
        assert machine.ended(party) == 0
    for name in names:
        ledger = json.loads((tmp_path / f"fedunseen-{name}" / "ledger" / "ledger.json").read_bytes().splitlines()[0])
        (plan,) = ledger["plans"].values()
        assert (ledger["rosters"], plan["opened"]["k"], plan["waiting"]) == ([list(names)], 1, None)
    unmasked = run(Experiment.load("digit-pairs", {**settings, "engine.mode": "one-at-a-time"}), tmp_path / "unmasked")
    one, other = (load_file(path / "model.safetensors") for path in (tmp_path / "run", unmasked.path))
    assert max(float((one[name].double() - other[name].double()).abs().max()) for name in one) < 2e-7


def test_an_owner_consents_to_what_there_is(refused, tmp_path):
    words = ["join", "127.0.0.1", "--data", tmp_path, "--insecure", "--name", "a", "--consent", "all"]
    assert refused(*words) == "--consent all: choose among again, dropouts, moved"
