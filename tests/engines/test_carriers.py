"""What carriers do alike, among parties that answer with their name and what they were sent."""

import os
import stat
import sys
import threading
import time

import pytest

from carried import Place
from fedunseen.core.errors import FedUnseenError
from fedunseen.core.files import parse_json
from fedunseen.engines.carriers import carrier, websocket
from fedunseen.engines.remote.link import Simulate, exchange
from processes import GUARD, Forked, descendants, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are watched through /proc"),
]
NAMES = ("north", "south", "west")


def be_party(place):
    """Be a party's process."""

    def answer(message):
        if message == b"slowly":
            time.sleep(3600)
        return place.name.encode() + b":" + message

    websocket.join(place, answer, threading.Event())


def sent(body, names=NAMES):
    return dict.fromkeys(names, body)


def answers(body):
    return {name: f"{name}:".encode() + body for name in NAMES}


@pytest.mark.parametrize("secure", [True, False], ids=["tls", "plain"])
def test_messages_of_any_size_arrive(secure, tmp_path):
    place = Place(tmp_path, NAMES, secure)
    with place.host() as link:
        parties = [place.join(name) for name in NAMES]
        until(lambda: len(link.present()) == 3)
        for body in (b"", b"\0", os.urandom(12_000_000), b"\0" * 12_000_000):
            assert dict(exchange(link, sent(body), GUARD)) == answers(body)
        found = dict(exchange(link, {"south": b"only", "nobody": b"?"}, GUARD))
        assert found == {"south": b"south:only", "nobody": None}
        assert dict(exchange(link, sent(b"last"), GUARD)) == answers(b"last")
        assert [party.ended() for party in parties] == [None] * 3
        until(lambda: not link.present())


def test_a_killed_party_is_left_out_and_comes_back(machine, tmp_path):
    place = Place(tmp_path, NAMES)

    def start(name):
        machine.running.append(Forked([place.at(name)], be_party, tmp_path, f"{name}.log"))
        return machine.running[-1]

    with place.host() as link:
        killed, _ = start("north"), start("south")
        until(lambda: len(link.present()) == 2)
        first = link.present()
        threading.Timer(0.5, killed.kill).start()
        begin = time.monotonic()
        found = list(exchange(link, {"north": b"slowly", "south": b"now"}, GUARD))
        assert found == [("south", b"south:now"), ("north", None)]
        assert time.monotonic() - begin < GUARD  # no one waited until the exchange was over
        until(lambda: list(link.present()) == ["south"])
        assert dict(exchange(link, {"north": b"gone?"}, GUARD)) == {"north": None}
        start("north")
        start("west")  # late
        until(lambda: len(link.present()) == 3)
        assert link.present()["south"] == first["south"]
        assert link.present()["north"] != first["north"]
        assert dict(exchange(link, sent(b"again"), GUARD)) == answers(b"again")


FACTORY = """
import os

def make(argument):
    def answer(party, message):
        if message == b"die":
            os._exit(3)
        if message == b"who?":
            return str(os.getpid()).encode()
        return f"{party} {argument} ".encode() + message
    return answer
"""


@pytest.fixture(params=["nvflare", "flower"])
def engine(request, tmp_path, monkeypatch):
    name = request.param
    pytest.importorskip({"flower": "ray"}.get(name, name), reason=f"pip install 'fedunseen[{name}]'")
    (tmp_path / f"echo_for_{name}.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def gone(started):
    return not [one for one, state in descendants(0).items() if one in started and state != "Z"]


def test_a_simulation_answers_survives_a_worker_and_leaves_nothing_behind(engine, tmp_path):
    before = set(descendants(os.getpid()))  # of other tests in this process
    with carrier(engine).simulate(Simulate(tmp_path / "run", 3, 2, f"echo_for_{engine}:make", "says")) as link:
        until(link.present)
        names, first = ("0", "1", "2"), link.present()
        assert tuple(first) == names
        assert dict(exchange(link, {"0": b"given up"}, 0.0)) == {"0": None}
        body = os.urandom(3_000_000)
        said = {name: f"{name} says ".encode() + body for name in names}
        for _ in range(2):
            assert dict(exchange(link, sent(body, names), GUARD)) == said
        processes = {int(process) for _, process in exchange(link, sent(b"who?", names), GUARD)}
        assert len(processes) == 2 if engine == "nvflare" else len(processes) <= 2  # Ray may leave one idle
        assert dict(exchange(link, {"1": b"die"}, GUARD)) == {"1": None}
        until(lambda: link.present() and link.present() != first)
        assert dict(exchange(link, {"1": b"live"}, GUARD)) == {"1": b"1 says live"}
        started = descendants(os.getpid()).keys() - before
        assert len(started) > 3
    until(lambda: gone(started))


def simulate_for_ever(engine, folder):
    with carrier(engine).simulate(Simulate(folder / "run", 2, 2, f"echo_for_{engine}:make", "says")) as link:
        until(link.present)
        (folder / "ready").touch()
        threading.Event().wait()


def test_a_simulation_ends_when_the_process_that_started_it_is_killed(engine, machine, tmp_path):
    machine.running.append(process := Forked([engine, tmp_path], simulate_for_ever, tmp_path, "simulation.log"))
    until((tmp_path / "ready").exists)
    started = descendants(process.pid)
    assert len(started) > 3
    process.kill()
    until(lambda: gone(started))


def test_credentials_of_each_party_are_its_own(tmp_path):
    from fedunseen.engines.carriers.websocket.kit import make

    kit = tmp_path / "kit"
    make(kit, "hospital.example", ["a", "b"], 1)
    assert sorted(path.name for path in kit.iterdir()) == ["a", "b", "coordinator"]
    keys = list(kit.rglob("*.key"))
    assert sorted(path.parent.name for path in keys) == ["a", "b", "coordinator"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
    assert parse_json((kit / "a/party.json").read_bytes()) == {"name": "a"}
    assert parse_json((kit / "coordinator/parties.json").read_bytes()) == {"parties": ["a", "b"]}
    with pytest.raises(FedUnseenError, match="is not an empty folder: name another with --out"):
        make(kit, "localhost", ["a"], 1)
