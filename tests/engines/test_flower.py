"""Flower carries messages between real processes: here all of them answer with what they were sent, and their name."""

import datetime
import importlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedunseen.cli.main import app
from fedunseen.core.errors import ConnectionLost, FedUnseenError, RefusedError
from fedunseen.engines.carriers import flower
from fedunseen.engines.remote.link import Host, Join, Simulate
from fedunseen.engines.remote.requests import exchange
from fedunseen.engines.remote.supervisor import descendants
from processes import GUARD, free_port, until

needed = pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="pip install 'fedunseen[flower]'")
pytestmark = [
    pytest.mark.slow,
    needed,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are watched through /proc"),
]
NAMES = ("north", "south", "west")

PARTY = """
import sys, threading, time
from pathlib import Path
from fedunseen.engines.carriers import flower
from fedunseen.engines.remote.link import Join

folder, address, port, kit, name, patience = sys.argv[1:]
done = threading.Event()

def answer(message):
    if message.startswith(b"slowly"):
        time.sleep(3600)
    if message == b"last":
        done.set()
    return name.encode() + b":" + message

try:
    place = Join(Path(folder), address, int(port), Path(kit) if kit else None, name, float(patience))
    flower.join(place, answer, done)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""

COORDINATOR = """
import sys, time
from pathlib import Path
from fedunseen.engines.carriers import flower
from fedunseen.engines.remote.link import Host

folder, port, kit, *names = sys.argv[1:]
with flower.host(Host(Path(folder), "127.0.0.1", int(port), Path(kit), tuple(names))) as link:
    print("listens", flush=True)
    while len(link.present()) < len(names):
        time.sleep(0.05)
    print("complete", flush=True)
    time.sleep(3600)
"""


class Place:
    """A coordinator's place and parties around it; whatever still runs is killed at the end."""

    def __init__(self, folder, secure):
        self.folder, self.port, self.kit = folder, free_port(), None
        self.processes = []
        if secure:
            self.kit = folder / "kit"
            flower.certificates(self.kit, "127.0.0.1", NAMES, 2, folder / "authority")

    def host(self):
        kit = None if self.kit is None else self.kit / "coordinator"
        return flower.host(Host(self.folder / "host", "127.0.0.1", self.port, kit, NAMES))

    def start(self, program, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.processes.append(process)
        return process

    def join(self, name, kit=None, address="127.0.0.1", port=None, patience=GUARD):
        if kit is None:
            kit = "" if self.kit is None else self.kit / name
        return self.start(PARTY, self.folder / name, address, port or self.port, kit, name, patience)

    def coordinate(self):
        return self.start(COORDINATOR, self.folder / "host", self.port, self.kit / "coordinator", *NAMES)


@pytest.fixture
def place(tmp_path, request):
    made = Place(tmp_path, getattr(request, "param", True))
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def said(process):
    _, error = process.communicate(timeout=GUARD)
    assert process.returncode == 1
    return error.strip().splitlines()[-1]


def runs(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def sent(body):
    return dict.fromkeys(NAMES, body)


@pytest.mark.parametrize("place", [True, False], indirect=True, ids=["tls", "plain"])
def test_messages_of_any_size_arrive(place):
    with place.host() as link:
        parties = [place.join(name) for name in NAMES]
        until(lambda: len(link.present()) == 3)
        assert list(link.present()) == list(NAMES)
        for body in (b"", b"\0", os.urandom(12_000_000), b"\0" * 12_000_000):
            assert dict(exchange(link, sent(body), GUARD)) == {name: name.encode() + b":" + body for name in NAMES}
        own = {name: f"for {name}".encode() for name in NAMES}
        assert dict(exchange(link, own, GUARD)) == {name: f"{name}:for {name}".encode() for name in NAMES}
        assert dict(exchange(link, {"south": b"only", "nobody": b"?"}, GUARD)) == {
            "south": b"south:only",
            "nobody": None,
        }
        assert dict(exchange(link, sent(b"last"), GUARD)) == {name: name.encode() + b":last" for name in NAMES}
        for party in parties:
            output, error = party.communicate(timeout=GUARD)
            assert (party.returncode, output, error) == (0, "", "")
        until(lambda: not link.present())
    if place.kit is not None:
        assert place.processes[0].poll() == 0


def test_a_killed_party_is_left_out_and_comes_back(place):
    with place.host() as link:
        parties = {name: place.join(name) for name in NAMES[:2]}
        until(lambda: len(link.present()) == 2)
        first = link.present()
        threading.Timer(0.5, parties["north"].kill).start()
        begin = time.monotonic()
        arrived = list(exchange(link, {"north": b"slowly", "south": b"now"}, GUARD))
        assert arrived == [("south", b"south:now"), ("north", None)]
        assert time.monotonic() - begin < GUARD  # no one waited until the exchange was over
        assert list(link.present()) == ["south"]
        place.join("north")
        place.join("west")  # late
        until(lambda: len(link.present()) == 3)
        assert link.present()["south"] == first["south"]
        assert link.present()["north"] != first["north"]
        assert dict(exchange(link, sent(b"again"), GUARD)) == {name: name.encode() + b":again" for name in NAMES}


def test_late_answers_are_thrown_away(place):
    with place.host() as link:
        place.join("north")
        until(link.present)
        assert list(exchange(link, {"north": b"slowly"}, 0.5)) == [("north", None)]
        state = link.state
        until(lambda: not link.open)
        assert (state.message_ins_store, state.message_res_store, len(state.object_store)) == ({}, {}, 0)


@pytest.mark.parametrize("place", [False], indirect=True)
def test_what_is_lost_with_its_connection_is_said_again(place, monkeypatch):
    """A call has done its work at the coordinator when its connection breaks, and so does the connection after it."""
    import httpx

    from fedunseen.engines.carriers.flower.private import FleetHttpClient

    calls = ("PullMessages", "PullObject", "ConfirmMessageReceived", "PushMessages", "PushObject")
    breaks = dict.fromkeys(calls, 0)

    def breaking(name):
        real = getattr(FleetHttpClient, name)

        def call(self, request):
            response = real(self, request)
            if breaks[name] and (name != "PullMessages" or response.messages_list):
                breaks[name] -= 1
                raise httpx.ReadError("the connection broke")
            return response

        return call

    for name in calls:
        monkeypatch.setattr(FleetHttpClient, name, breaking(name))
    asked, done = [], threading.Event()

    def answer(body):
        asked.append(body)
        return b"north:" + body

    party = Join(place.folder / "north", "127.0.0.1", place.port, None, "north", GUARD)
    thread = threading.Thread(target=flower.join, args=(party, answer, done), daemon=True)
    with place.host() as link:
        thread.start()
        until(link.present)
        for name in calls:
            for times in (1, 2):
                body = f"{name} {times}".encode()
                breaks[name] = times
                # An hour: whoever waited for the time-out would not end before the test's own guard.
                assert list(exchange(link, {"north": body}, 3600)) == [("north", b"north:" + body)]
                assert breaks[name] < times
                breaks[name] = 0
        assert len(set(asked)) == 2 * len(calls)
        done.set()
        thread.join()


def test_a_killed_coordinator_is_found_again(place):
    first = place.coordinate()
    assert first.stdout.readline() == "listens\n"
    parties = [place.join(name) for name in NAMES]
    assert first.stdout.readline() == "complete\n"
    first.send_signal(signal.SIGKILL)
    first.wait()
    with place.host() as link:
        until(lambda: len(link.present()) == 3)
        assert dict(exchange(link, sent(b"last"), GUARD)) == {name: name.encode() + b":last" for name in NAMES}
    assert [party.wait(GUARD) for party in parties] == [0, 0, 0]


def test_the_second_process_of_a_party_is_refused(place):
    with place.host() as link:
        place.join("north")
        until(link.present)
        assert said(place.join("north")) == (
            f"RefusedError: another process is connected to 127.0.0.1:{place.port} as party 'north': end it, or join "
            "under another name and with its key"
        )
        assert dict(exchange(link, {"north": b"still"}, GUARD)) == {"north": b"north:still"}


def test_strangers_are_refused(place, tmp_path):
    flower.certificates(tmp_path / "other", "127.0.0.1", NAMES, days=2)
    foreign = tmp_path / "other" / "north"
    keyless = tmp_path / "other" / "south"
    (keyless / "ca.crt").write_bytes((place.kit / "south" / "ca.crt").read_bytes())
    with place.host() as link:
        where = f"127.0.0.1:{place.port}"
        strangers = [
            place.join("north", foreign),
            place.join("south", keyless),
            place.join("west", "", patience=1),
            place.join("north", place.kit / "west"),
        ]
        assert said(strangers[0]).startswith(
            f"RefusedError: the certificate of the coordinator at {where} is not accepted: unable to get local issuer"
        )
        assert said(strangers[1]).startswith(
            f"RefusedError: the coordinator at {where} does not know this key of 'south': take"
        )
        assert said(strangers[2]).startswith(f"ConnectionLost: no coordinator at {where}: ")
        assert said(strangers[3]).endswith("is the folder of party 'west', not of 'north': take the right one")
        assert not link.present()


def test_a_handshake_that_is_hung_up_is_tried_again(place, monkeypatch):
    """As at a coordinator that is ending, or a proxy whose coordinator has not started; what speaks no TLS ends it."""
    from fedunseen.engines.carriers.flower import client

    came = []

    def listen():
        while len(came) < 3:
            connection, _ = listener.accept()
            came.append(connection.recv(1) + (b"" if len(came) < 2 else connection.recv(4096)))
            if len(came) == 3:
                connection.sendall(b"HTTP/1.1 400 this is not TLS\r\n\r\n")
            connection.close()

    monkeypatch.setattr(client, "STRANGE", 0.0)
    with socket.create_server(("127.0.0.1", place.port)) as listener:
        threading.Thread(target=listen, daemon=True).start()
        told = Join(place.folder / "north", "127.0.0.1", place.port, place.kit / "north", "north", GUARD)
        with pytest.raises(ConnectionLost, match="does not speak TLS"):
            client.Connection(told).connect()
        assert len(came) == 3


def test_a_party_gets_a_new_key_and_another_is_shut_out(place, tmp_path):
    """No one else needs a new kit; the old keys, and whoever has them, stay outside."""
    change = ["certs", "--authority", str(tmp_path / "authority")]
    for words in (["--renew", "south", "--out", "new"], ["--revoke", "west", "--out", "gone"]):
        done = CliRunner().invoke(app, [*change, *words[:-1], str(tmp_path / words[-1])])
        assert done.exit_code == 0, done.output
        for file in (tmp_path / words[-1] / "coordinator").iterdir():
            shutil.copy(file, place.kit / "coordinator")
    with place.host() as link:
        places = {"south": tmp_path / "new" / "south", "north": None, "west": None}
        there = {name: place.join(name, kit) for name, kit in places.items()}
        while len(link.present()) < 2:
            time.sleep(0.05)
        assert dict(exchange(link, sent(b"yes"), GUARD)) == {"north": b"north:yes", "south": b"south:yes", "west": None}
        stolen = place.join("south", place.kit / "south")
        for name, process in (("south", stolen), ("west", there["west"])):
            known = f"RefusedError: the coordinator at 127.0.0.1:{place.port} does not know this key of '{name}'"
            assert said(process).startswith(known)
        assert len(link.present()) == 2


def test_only_what_parties_need_is_served(place):
    import httpx

    with place.host():
        context = ssl.create_default_context(cafile=place.kit / "north" / "ca.crt")
        client = httpx.Client(verify=context, base_url=f"https://127.0.0.1:{place.port}")
        for path in ("/v1/control/register-node", "/v1/control/start-run", "/v1/runtime/acquire-task", "/docs"):
            assert client.post(path).status_code == 404
        for path in ("/v1/fleet/get-fab", "/v1/fleet/register-node"):
            assert client.post(path).status_code == 404
        assert client.post("/v1/fleet/pull-messages").status_code == 403
        again = place.host()
        with pytest.raises(ConnectionLost, match=f"cannot listen at 127.0.0.1:{place.port} .*choose another"):
            again.__enter__()


@pytest.mark.parametrize("place", [False], indirect=True)
def test_nobody_there(place):
    alone = place.join("north", patience=1)
    nowhere = place.join("south", address="no-such-host.invalid", patience=1)
    assert said(alone) == f"ConnectionLost: no coordinator at 127.0.0.1:{place.port}: Connection refused"
    assert said(nowhere).startswith(f"ConnectionLost: no coordinator at no-such-host.invalid:{place.port}: ")
    with place.host():
        assert said(place.join("east")).startswith(
            f"RefusedError: the coordinator at 127.0.0.1:{place.port} has no party 'east': take"
        )


def test_kits(tmp_path):
    flower.certificates(tmp_path / "kit", "hospital.example", ["a", "b"], days=1)
    found = {str(path.relative_to(tmp_path / "kit")) for path in (tmp_path / "kit").rglob("*") if path.is_file()}
    own = {f"{name}/{file}" for name in "ab" for file in ("ca.crt", "node.crt", "node.key", "party.json")}
    names = ("ca.crt", "server.crt", "server.key", "parties.json", "a.pub", "b.pub", "a.crt", "b.crt")
    shared = {f"coordinator/{file}" for file in names}
    assert found == own | shared
    for path in (tmp_path / "kit").rglob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads((tmp_path / "kit/a/party.json").read_text()) == {"engine": "flower", "name": "a"}
    assert json.loads((tmp_path / "kit/coordinator/parties.json").read_text()) == {
        "engine": "flower",
        "parties": ["a", "b"],
    }
    with pytest.raises(FedUnseenError, match="is not an empty folder: name another with --out"):
        flower.certificates(tmp_path / "kit", "localhost", ["a"], days=1)


def hosted(kit, tmp_path):
    with flower.host(Host(tmp_path / "host", "127.0.0.1", free_port(), kit, ("a", "b"))):
        pass


def test_damaged_kits(tmp_path):
    kit = tmp_path / "kit" / "coordinator"
    flower.certificates(tmp_path / "kit", "localhost", ["a", "b"], days=1)
    (kit / "b.pub").write_bytes((kit / "a.pub").read_bytes())
    with pytest.raises(RefusedError, match=r"b.pub: parties 'a' and 'b' have the same key; give each its own"):
        hosted(kit, tmp_path)
    (kit / "b.pub").unlink()
    with pytest.raises(RefusedError, match=r"b.pub: no public key of party 'b' .*fedunseen certs"):
        hosted(kit, tmp_path)
    (kit / "parties.json").write_text('{"engine": "nvflare"}')
    with pytest.raises(RefusedError, match=r"parties.json: made for engine 'nvflare', not for 'flower'"):
        hosted(kit, tmp_path)
    (kit / "server.crt").write_text("no")
    with pytest.raises(RefusedError, match=r"server.crt: no certificate"):
        hosted(kit, tmp_path)


def test_an_expired_certificate(tmp_path, monkeypatch, place):
    from fedunseen.engines.carriers.flower import kit as kits

    today = datetime.datetime.now(datetime.UTC)

    class Earlier(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return today - datetime.timedelta(days=9)

    with monkeypatch.context() as patch:
        patch.setattr(kits.datetime, "datetime", Earlier)
        flower.certificates(tmp_path / "old", "127.0.0.1", NAMES, days=2)
    kit = tmp_path / "old"
    with pytest.raises(RefusedError, match=r"server.crt: valid from .* not today; make a new kit"):
        hosted(kit / "coordinator", tmp_path)
    monkeypatch.setattr(kits, "server_files", lambda kit: (kit / "server.crt", kit / "server.key"))
    place.kit = kit
    with place.host():
        assert "node.crt: valid from" in said(place.join("north"))
        for name in ("node.crt", "party.json"):  # a party that does not look at its own
            (kit / "south" / name).unlink()
        assert "is not accepted: certificate has expired; take the folder" in said(place.join("south"))


def test_the_coordinator_shuts_out_an_expired_certificate(place):
    with place.host() as link:
        link.gate.ends["north"] = link.gate.ends["south"] - datetime.timedelta(days=9)
        south = place.join("south")
        assert "does not know this key of 'north'" in said(place.join("north"))
        while set(link.present()) != {"south"}:
            assert south.poll() is None
            time.sleep(0.05)


def test_a_clock_that_goes_back_a_day(place, monkeypatch):
    from fedunseen.engines.carriers.flower import client

    behind, done = [datetime.timedelta()], threading.Event()

    class Behind(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.now(tz) - behind[0]

    monkeypatch.setattr(client, "datetime", Behind)
    told = Join(place.folder / "north", "127.0.0.1", place.port, place.kit / "north", "north", GUARD)
    with place.host() as link:
        party = threading.Thread(target=client.answer_messages, args=(told, lambda message: message, done))
        party.start()
        while "north" not in link.present():
            time.sleep(0.05)
        for _ in range(2):
            assert dict(exchange(link, {"north": b"x"}, GUARD)) == {"north": b"x"}
            behind[0] = datetime.timedelta(days=1)
        done.set()
        party.join()


def test_an_outsider_charges_no_budget(place):
    """Only what is signed by a party's key, and comes from its process, counts as the party's."""
    import httpx

    from fedunseen.engines.carriers.flower.content import TOKEN
    from fedunseen.engines.carriers.flower.private import (
        FLEET_HTTP_PUBLIC_KEY_HEADER,
        FLEET_HTTP_SIGNATURE_HEADER,
        TIMESTAMP_HEADER,
    )

    with place.host() as link:
        key = next(key for key, name in link.gate.keys.items() if name == "north").decode()
        context = ssl.create_default_context(cafile=place.kit / "north" / "ca.crt")
        outsider = httpx.Client(verify=context, base_url=f"https://127.0.0.1:{place.port}")
        link.gate.budget["north"] = 1000
        for more in ({}, {FLEET_HTTP_SIGNATURE_HEADER: "AAAA", TIMESTAMP_HEADER: "2026-01-01T00:00:00+00:00"}):
            head = {FLEET_HTTP_PUBLIC_KEY_HEADER: key, TOKEN: "guessed", **more}
            assert outsider.post("/v1/fleet/push-object", headers=head, content=b"x" * 999).status_code == 401
        assert link.gate.budget["north"] == 1000


def test_a_party_that_is_asked_again_has_no_more_budget(place):
    with place.host() as link:
        place.join("north")
        until(link.present)
        link.ask("north", b"x").result()
        link.gate.budget["north"] = 500_000
        link.ask("north", b"x").result()
        assert link.gate.budget["north"] < 500_000
        link.ask("north", b"another").result()
        assert link.gate.budget["north"] > 500_000


def test_an_array_that_names_one_piece_many_times():
    from flwr.app import Array

    from fedunseen.engines.carriers.flower import superlink
    from fedunseen.engines.carriers.flower.private import get_all_nested_objects

    array = Array("uint8", (1000,), "bytes", b"x" * 1000)
    pieces = {number: one.deflate() for number, one in get_all_nested_objects(array).items()}
    superlink._check_inflated(pieces, 3000)
    (whole,) = (number for number, content in pieces.items() if content.startswith(b"Array "))
    pieces[whole] = pieces[whole].replace(b'"arraychunk_ids": [0]', b'"arraychunk_ids": [' + b"0, " * 999 + b"0]")
    with pytest.raises(ValueError, match="more than 100,000 bytes"):
        superlink._check_inflated(pieces, 100_000)


FACTORY = """
import os

def make(argument):
    def answer(party, message):
        if message == b"die":
            os._exit(1)
        return f"{party} {argument} ".encode() + message
    return answer
"""


@pytest.fixture
def simulation(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="pip install 'fedunseen[flower]'")
    (tmp_path / "echo_for_flower.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    return flower.simulate(Simulate(tmp_path / "run", 3, 2, importlib.import_module("echo_for_flower").make, "says"))


def test_a_simulation_answers_and_leaves_nothing_behind(simulation):
    before = set(descendants(os.getpid()))  # of other tests in this process
    with simulation as link:
        names = ("0", "1", "2")
        assert tuple(link.present()) == names
        assert dict(exchange(link, {"0": b"given up"}, 0.0)) == {"0": None}
        body = os.urandom(3_000_000)
        for _ in range(2):
            assert dict(exchange(link, dict.fromkeys(names, body), GUARD)) == {
                name: f"{name} says ".encode() + body for name in names
            }
        started = set(descendants(os.getpid())) - before
        assert len(started) > 3
    assert not [process for process in started if runs(process)]


def test_a_simulation_outlives_its_workers(simulation):
    with simulation as link:
        first = link.present()
        assert dict(exchange(link, {"1": b"die"}, GUARD)) == {"1": None}
        until(lambda: link.present() and link.present() != first)
        assert dict(exchange(link, {"1": b"live"}, GUARD)) == {"1": b"1 says live"}


def test_a_simulation_that_cannot_start(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    from fedunseen.engines.carriers.flower import simulation as simulator

    monkeypatch.setattr(simulator, "START", 15.0)
    simulation = flower.simulate(Simulate(tmp_path, 2, 1, os.getenv, ""))
    with pytest.raises(FedUnseenError, match=r"Flower's simulation did not start: .*simulation.log says why"):
        simulation.__enter__()
