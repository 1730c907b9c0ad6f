"""Flower carries the messages of `host` and `join`: who is let in, what is lost on its way, keys and their end."""

import datetime
import shutil
import socket
import ssl
import threading

import pytest

from carried import Place, days_ago
from fedunseen.core.errors import ConnectionLost, FedUnseenError, RefusedError
from fedunseen.engines.carriers import flower
from fedunseen.engines.remote.link import Join, Simulate, exchange
from processes import GUARD, command, free_port, until

pytest.importorskip("flwr", reason="pip install 'fedunseen[flower]'")

import httpx
from flwr.app import Array

from fedunseen.engines.carriers.flower import client, private, superlink
from fedunseen.engines.carriers.flower import kit as kits
from fedunseen.engines.carriers.flower.content import TOKEN

pytestmark = pytest.mark.slow
NAMES = ("north", "south", "west")


@pytest.fixture
def place(tmp_path, request):
    secure = getattr(request, "param", True)
    made = Place("flower", tmp_path, NAMES, secure, **({"authority": tmp_path / "authority"} if secure else {}))
    yield made
    made.end()


def test_late_answers_are_thrown_away(place):
    over = threading.Event()
    with place.hosting("north", lambda message: over.wait() and message) as link:
        assert list(exchange(link, {"north": b"slowly"}, 0.5)) == [("north", None)]
        state = link.state
        until(lambda: not link.open)
        assert (state.message_ins_store, state.message_res_store, len(state.object_store)) == ({}, {}, 0)
        over.set()


@pytest.mark.parametrize("place", [False], indirect=True)
def test_what_is_lost_with_its_connection_is_said_again(place, monkeypatch):
    """A call has done its work at the coordinator when its connection breaks, and so does the connection after it."""
    calls = ("PullMessages", "PullObject", "PushMessages", "PushObject")
    breaks = dict.fromkeys(calls, 0)

    def breaking(name):
        real = getattr(private.FleetHttpClient, name)

        def call(self, request):
            response = real(self, request)
            if breaks[name] and (name != "PullMessages" or response.messages_list):
                breaks[name] -= 1
                raise httpx.ReadError("the connection broke")
            return response

        return call

    for name in calls:
        monkeypatch.setattr(private.FleetHttpClient, name, breaking(name))
    asked = []
    with place.hosting("north", lambda body: asked.append(body) or b"north:" + body) as link:
        for name in calls:
            for times in (1, 2):
                body = f"{name} {times}".encode()
                breaks[name] = times
                # An hour: whoever waited for the time-out would not end before the test's own guard.
                assert list(exchange(link, {"north": body}, 3600)) == [("north", b"north:" + body)]
                until(lambda: breaks[name] < times)  # noqa: B023  (the answer may be there before the call returns)
                breaks[name] = 0
        assert len(set(asked)) == 2 * len(calls)


def test_the_second_process_of_a_party_is_refused(place):
    with place.hosting("north") as link:
        assert place.refused("north", folder="second") == (
            f"RefusedError: another process is connected to 127.0.0.1:{place.port} as party 'north': end it, or join "
            "under another name and with its key"
        )
        assert dict(exchange(link, {"north": b"still"}, GUARD)) == {"north": b"north:still"}


def test_strangers_and_expired_certificates_are_refused(place, tmp_path):
    flower.certificates(tmp_path / "other", "127.0.0.1", NAMES, days=2)
    keyless = tmp_path / "other" / "south"
    (keyless / "ca.crt").write_bytes((place.kit / "south" / "ca.crt").read_bytes())
    where = f"127.0.0.1:{place.port}"
    with place.host() as link:
        for name, kit, why in (
            ("north", tmp_path / "other" / "north", f"RefusedError: the certificate of the coordinator at {where} is "
             "not accepted: unable to get local issuer"),
            ("south", keyless, f"RefusedError: the coordinator at {where} does not know this key of 'south': take"),
            ("west", None, f"ConnectionLost: no coordinator at {where}: "),
            ("north", place.kit / "west", f"RefusedError: {place.kit}/west is the folder of party 'west', not of "
             "'north': take the right one"),
        ):  # fmt: skip
            assert place.refused(name, kit=kit, patience=1).startswith(why)
        assert not link.present()
        link.gate.ends["north"] = link.gate.ends["south"] - datetime.timedelta(days=9)
        place.join("south")
        assert "does not know this key of 'north'" in place.refused("north")
        until(lambda: set(link.present()) == {"south"})


def test_a_handshake_that_is_hung_up_is_tried_again(place, monkeypatch):
    """As at a coordinator that is ending, or a proxy whose coordinator has not started; what speaks no TLS ends it."""
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
        result = Join(place.folder / "north", "127.0.0.1", place.port, place.kit / "north", "north", GUARD)
        with pytest.raises(ConnectionLost, match="does not speak TLS"):
            client.Connection(result).connect(threading.Event())
        assert len(came) == 3


def test_a_party_gets_a_new_key_and_another_is_shut_out(place, tmp_path):
    """No one else needs a new kit; the old keys, and whoever has them, stay outside."""
    for how, name, out in (("--renew", "south", tmp_path / "new"), ("--revoke", "west", tmp_path / "gone")):
        command("certs", "--authority", tmp_path / "authority", how, name, "--out", out)
        for file in (out / "coordinator").iterdir():
            shutil.copy(file, place.kit / "coordinator")
    with place.host() as link:
        place.join("north")
        place.join("south", kit=tmp_path / "new" / "south")
        until(lambda: len(link.present()) == 2)
        for name in ("south", "west"):
            why = f"RefusedError: the coordinator at 127.0.0.1:{place.port} does not know this key of '{name}'"
            assert place.refused(name, folder="stolen").startswith(why)
        assert dict(exchange(link, dict.fromkeys(NAMES, b"yes"), GUARD)) == {
            "north": b"north:yes", "south": b"south:yes", "west": None,
        }  # fmt: skip


def test_only_what_parties_need_is_served(place):
    with place.host():
        context = ssl.create_default_context(cafile=place.kit / "north" / "ca.crt")
        outsider = httpx.Client(verify=context, base_url=f"https://127.0.0.1:{place.port}")
        missing = ("control/register-node", "control/start-run", "runtime/acquire-task", "fleet/get-fab")
        for path in ("/docs", "/v1/fleet/register-node", *(f"/v1/{path}" for path in missing)):
            assert outsider.post(path).status_code == 404
        assert outsider.post("/v1/fleet/pull-messages").status_code == 403
        why = f"cannot listen at 127.0.0.1:{place.port} .*choose another"
        with pytest.raises(ConnectionLost, match=why), place.host():
            pass


@pytest.mark.parametrize("place", [False], indirect=True)
def test_nobody_there(place):
    where, nowhere = f"127.0.0.1:{place.port}", "no-such-host.invalid"
    assert place.refused("north") == f"ConnectionLost: no coordinator at {where}: Connection refused"
    why = f"ConnectionLost: no coordinator at {nowhere}:{place.port}: "
    assert place.refused("north", address=nowhere).startswith(why)
    with place.host():
        assert place.refused("east").startswith(f"RefusedError: the coordinator at {where} has no party 'east': take")


def test_damaged_kits(place):
    def why():
        with pytest.raises(RefusedError) as error, place.host():
            pass
        return str(error.value)

    kit = place.kit / "coordinator"
    (kit / "south.pub").write_bytes((kit / "north.pub").read_bytes())
    assert "south.pub: parties 'north' and 'south' have the same key; give each its own" in why()
    (kit / "south.pub").unlink()
    assert "south.pub: no public key of party 'south'" in why()
    (kit / "parties.json").write_text('{"engine": "nvflare"}')
    assert "parties.json: made for engine 'nvflare', not for 'flower'" in why()
    (kit / "server.crt").write_text("no")
    assert "server.crt: no certificate" in why()


def test_an_expired_certificate(place, monkeypatch, tmp_path):
    place.kit = tmp_path / "old"
    with monkeypatch.context() as patch:
        patch.setattr(kits, "datetime", days_ago(9))
        flower.certificates(place.kit, "127.0.0.1", NAMES, days=2)
    with pytest.raises(RefusedError, match=r"server.crt: valid from .* not today; make a new kit"), place.host():
        pass
    monkeypatch.setattr(kits, "server_files", lambda kit: (kit / "server.crt", kit / "server.key"))
    with place.host():
        assert "node.crt: valid from" in place.refused("north")
        for name in ("node.crt", "party.json"):  # a party that does not look at its own
            (place.kit / "south" / name).unlink()
        assert "is not accepted: certificate has expired; take the folder" in place.refused("south")


def test_a_clock_that_goes_back_a_day(place, monkeypatch):
    with place.hosting("north") as link:
        for days in (0, 1):
            monkeypatch.setattr(client, "datetime", days_ago(days).datetime)
            assert dict(exchange(link, {"north": b"x"}, GUARD)) == {"north": b"north:x"}


def test_a_party_has_no_more_budget_when_it_is_asked_again_nor_when_an_outsider_speaks(place):
    """Only what is signed by a party's key, and comes from its process, counts as the party's."""
    with place.host() as link:
        key = next(key for key, name in link.gate.keys.items() if name == "north").decode()
        context = ssl.create_default_context(cafile=place.kit / "north" / "ca.crt")
        outsider = httpx.Client(verify=context, base_url=f"https://127.0.0.1:{place.port}")
        link.gate.budget["north"] = 1000
        signed = {private.FLEET_HTTP_SIGNATURE_HEADER: "AAAA", private.TIMESTAMP_HEADER: "2026-01-01T00:00:00+00:00"}
        for more in ({}, signed):
            head = {private.FLEET_HTTP_PUBLIC_KEY_HEADER: key, TOKEN: "guessed", **more}
            assert outsider.post("/v1/fleet/push-object", headers=head, content=b"x" * 999).status_code == 401
        assert link.gate.budget["north"] == 1000
        place.join("north")
        until(link.present)
        link.ask("north", b"x").result()
        link.gate.budget["north"] = 500_000
        link.ask("north", b"x").result()
        assert link.gate.budget["north"] < 500_000
        link.ask("north", b"another").result()
        assert link.gate.budget["north"] > 500_000


def test_an_array_that_names_one_piece_many_times():
    array = Array("uint8", (1000,), "bytes", b"x" * 1000)
    pieces = {number: one.deflate() for number, one in private.get_all_nested_objects(array).items()}
    superlink._check_inflated(pieces, 3000)
    (whole,) = (number for number, content in pieces.items() if content.startswith(b"Array "))
    pieces[whole] = pieces[whole].replace(b'"arraychunk_ids": [0]', b'"arraychunk_ids": [' + b"0, " * 999 + b"0]")
    with pytest.raises(ValueError, match="more than 100,000 bytes"):
        superlink._check_inflated(pieces, 100_000)


def test_a_simulation_that_cannot_start(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    monkeypatch.setattr("fedunseen.engines.carriers.flower.simulation.START", 15.0)
    simulation = flower.simulate(Simulate(tmp_path, 2, 1, "os:getenv", ""))
    with pytest.raises(FedUnseenError, match=r"Flower's simulation did not start: .*simulation.log says why"):
        simulation.__enter__()
