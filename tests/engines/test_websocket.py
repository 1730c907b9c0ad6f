"""Connections of `host` and `join`: who is let in, what is lost on its way, what is too much, keys
and their end.
"""

import asyncio
import contextlib
import datetime
import errno
import json
import os
import shutil
import socket
import ssl
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from fedunseen.core.errors import ConnectionLost, FedUnseenError, RefusedError
from fedunseen.deploy import websocket
from fedunseen.deploy.remote.link import Host, Join, PartyGone, Spooled, exchange
from processes import GUARD, Forked, command, free_port, until

pytest.importorskip("websockets", reason="pip install 'fedunseen[masked]'")

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fedunseen.core.validity import Validity
from fedunseen.deploy import certs
from fedunseen.deploy.websocket import client, messages, server
from fedunseen.deploy.websocket import kit as kits

pytestmark = pytest.mark.slow
NAMES = ("north", "south", "west")


class Joined:
    """A party in a thread; it ends when it is sent ``b"last"``, or by an error."""

    def __init__(self, place, answer=None):
        self.done, self.error, self.said = threading.Event(), None, answer or self.named
        self.place = place
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def named(self, message):
        if message == b"last":
            self.done.set()
        return f"{self.place.name}:".encode() + message

    def _work(self):
        try:
            websocket.join(self.place, lambda message: self.said(message), self.done)
        except FedUnseenError as error:
            self.error = error

    def ended(self):
        """Wait for its end; return the error with which it ended."""
        self.thread.join(GUARD)
        assert not self.thread.is_alive()
        return self.error


class Place:
    """Where a coordinator listens, and the credentials of its parties."""

    def __init__(self, folder, names, secure=True, authority=None):
        self.folder, self.names, self.port, self.kit = folder, names, free_port(), None
        self.joined = []
        if secure:
            self.kit = folder / "kit"
            kept = [] if authority is None else ["--authority", authority]
            command("certs", "--parties", ",".join(names), "--days", 2, "--out", self.kit, *kept)

    def host(self, folder="host", address="127.0.0.1", names=None):
        kit = self.kit and self.kit / "coordinator"
        return websocket.host(
            Host(self.folder / folder, address, self.port, kit, names or self.names)
        )

    def at(self, name, kit="", folder="", address="127.0.0.1", patience=GUARD):
        if kit == "":
            kit = self.kit and self.kit / name
        return Join(self.folder / (folder or name), address, self.port, kit, name, patience)

    def join(self, name, answer=None, **how):
        self.joined.append(Joined(self.at(name, **how), answer))
        return self.joined[-1]

    @contextlib.contextmanager
    def hosting(self, name, answer=None):
        """Host, with one party that has joined."""
        with self.host() as link:
            self.join(name, answer)
            until(link.present)
            yield link

    def end(self):
        """End all parties; how they end is of no interest any more."""
        for party in self.joined:
            party.done.set()
            party.ended()

    def refused(self, name, patience=0.5, **how):
        """Return why a party cannot join; one that is let in is ended, and the test fails."""
        done = threading.Event()
        timer = threading.Timer(30, done.set)
        timer.start()
        try:
            with pytest.raises(FedUnseenError) as error:
                websocket.join(self.at(name, patience=patience, **how), bytes, done)
        finally:
            timer.cancel()
        return f"{type(error.value).__name__}: {error.value}"


def days_ago(days):
    """Return what a carrier needs of ``datetime``, on a machine whose clock is behind."""
    past = SimpleNamespace(
        now=lambda zone: datetime.datetime.now(zone) - datetime.timedelta(days=days)
    )
    return SimpleNamespace(**{**vars(datetime), "datetime": past})


@pytest.fixture
def place(tmp_path, request):
    made = Place(tmp_path, NAMES, getattr(request, "param", True), tmp_path / "authority")
    yield made
    made.end()


plain = pytest.mark.parametrize("place", [False], indirect=True)


@contextlib.asynccontextmanager
async def dialled(place, name="north", key=None, sign=bytes, token="token", **how):
    """Connect by hand, as a party or as someone else, who may sign something else than the
    challenge.
    """
    context = (
        ssl.create_default_context(cafile=place.kit / "north" / "ca.crt") if place.kit else None
    )
    scheme = "wss" if place.kit else "ws"
    async with connect(
        f"{scheme}://127.0.0.1:{place.port}", ssl=context, ping_interval=None, **how
    ) as connection:
        signed = messages.statement(sign(await connection.recv()), name, token)
        signature = b"" if key is None else key.sign(signed, ec.ECDSA(SHA256()))
        await connection.send(
            json.dumps({"name": name, "token": token, "signature": signature.hex()})
        )
        yield connection


async def closed(connection):
    """Return the code with which a connection is closed."""
    await connection.wait_closed()
    return connection.close_code


@plain
def test_late_answers_are_thrown_away(place):
    over = threading.Event()
    with place.hosting(
        "north", lambda message: message if message == b"next" else over.wait() and b"late"
    ) as link:
        assert list(exchange(link, {"north": b"slowly"}, 0.5)) == [("north", None)]
        until(lambda: not link.open)
        over.set()
        assert list(exchange(link, {"north": b"next"}, GUARD)) == [("north", b"next")]


@pytest.mark.parametrize("where", ["message", "work", "answer"])
def test_what_is_lost_with_its_connection_is_asked_again(place, monkeypatch, where):
    """It breaks within a message, while a party works, and within an answer, and so does the
    connection after it.
    """
    breaks, real, asked = [], messages.pieces, []

    def cut(here):
        if here == where and breaks:
            breaks.pop()
            link.loop.call_soon_threadsafe(link.seen["north"].connection.transport.abort)

    def breaking(here):
        def pieces(number, message):
            first, *others = real(number, message)
            yield first
            cut(here)
            yield from others

        return pieces

    def answer(message):
        asked.append(message)
        cut("work")
        return b"north:" + message

    monkeypatch.setattr(server, "pieces", breaking("message"))
    monkeypatch.setattr(client, "pieces", breaking("answer"))
    with place.hosting("north", answer) as link:
        for times in (1, 2):
            breaks += [None] * times
            message = bytes(300_000 * times)
            # An hour: whoever waited for the time-out would not end before the test's own guard.
            assert list(exchange(link, {"north": message}, 3600)) == [
                ("north", b"north:" + message)
            ]
            assert not breaks
        assert len(set(asked)) == 2


@plain
def test_a_party_that_is_silent_or_reads_nothing_is_gone(place, monkeypatch):
    monkeypatch.setattr(messages, "SILENCE", 0.5)
    monkeypatch.setattr(server, "GRACE", 0.0)

    async def be_silent():
        async with dialled(place) as connection:
            await asyncio.to_thread(until, lambda: "north" in link.present())
            await connection.wait_closed()
            await asyncio.to_thread(until, lambda: not link.present())
        async with dialled(place) as connection:
            await asyncio.to_thread(until, link.present)
            connection.transport.pause_reading()
            with pytest.raises(PartyGone):
                await asyncio.wrap_future(link.ask("north", bytes(30_000_000)))
            await asyncio.to_thread(until, lambda: not link.tasks)
            connection.transport.abort()

    with place.host() as link:
        asyncio.run(be_silent())


@plain
@pytest.mark.parametrize("signs_in", [False, True])
def test_pings_whose_answers_no_one_reads_end_a_connection(place, signs_in):
    own = json.dumps({"name": "north", "token": "token", "signature": ""}).encode()
    with place.host() as link, socket.create_connection(("127.0.0.1", place.port)) as attacker:
        asked = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
        key = f"Sec-WebSocket-Key: {'A' * 22}=="
        attacker.sendall("\r\n".join(["GET / HTTP/1.1", "Host: x", *asked, key, "", ""]).encode())
        if signs_in:
            attacker.sendall(bytes([0x81, 0x80 | len(own), 0, 0, 0, 0]) + own)
            until(link.present)
        pings = (bytes([0x89, 0x80 | 125, 0, 0, 0, 0]) + bytes(125)) * 1000
        with pytest.raises(ConnectionError):
            list(iter(lambda: attacker.sendall(pings), 0))


@plain
def test_what_is_asked_when_the_coordinator_ends_has_an_answer(place):
    over = threading.Event()
    with place.hosting("north", lambda message: over.wait() and message) as link:
        asked = link.ask("north", b"message")
        until(lambda: link.open)
    over.set()
    for future in (asked, link.ask("north", b"another")):
        with pytest.raises(PartyGone):
            future.result(GUARD)


@plain
def test_of_messages_that_wait_the_newest_is_answered(place, monkeypatch):
    first, answered, came, put = threading.Event(), [], [], client.Connection._put
    monkeypatch.setattr(
        client.Connection, "_put", lambda self, message: (put(self, message), came.append(message))
    )
    with place.hosting(
        "north", lambda message: answered.append(message) or (first.wait() and message)
    ) as link:
        for message in (b"1", b"2", b"3"):
            last = link.ask("north", message)
            until(lambda: answered)
        until(lambda: len(came) == 3)
        first.set()
        assert last.result(GUARD) == b"3"
    assert answered == [b"1", b"3"]


@plain
def test_a_broken_answer_after_an_outage_is_tried_again(place, monkeypatch):
    """As of a proxy whose coordinator has not started: something strange is judged by itself, not
    by the outage.
    """
    monkeypatch.setattr(client, "STRANGE", 1.0)
    party = place.join("north")
    time.sleep(1.5)
    with socket.create_server(("127.0.0.1", place.port)) as listener:
        listener.accept()[0].close()
    with place.host() as link:
        until(link.present)
    assert party.error is None


@plain
def test_a_party_leaves_a_coordinator_that_is_silent_and_connects_again(place, monkeypatch):
    monkeypatch.setattr(messages, "SILENCE", 0.5)
    came = []

    async def silent(connection):
        await connection.send(b"challenge")
        came.append(json.loads(await connection.recv())["name"])
        await connection.wait_closed()

    async def wait_for_both():
        async with serve(silent, "127.0.0.1", place.port):
            party = place.join("north")
            await asyncio.to_thread(until, lambda: len(came) == 2)
            party.done.set()
            await asyncio.to_thread(party.ended)

    asyncio.run(wait_for_both())
    assert came == ["north"] * 2


@plain
def test_the_second_process_of_a_party_is_refused(place, monkeypatch):
    monkeypatch.setattr(client, "SILENCE", -2.0 - messages.CALL)
    with place.hosting("north") as link:
        assert place.refused("north", folder="second") == (
            f"RefusedError: another process is connected to 127.0.0.1:{place.port} as party "
            "'north': end it, or join under another name and with its key"
        )
        assert dict(exchange(link, {"north": b"still"}, GUARD)) == {"north": b"north:still"}


@pytest.mark.parametrize("place", [True, False], ids=["tls", "plain"], indirect=True)
def test_a_second_process_does_not_take_the_name_while_the_coordinator_is_down(place, monkeypatch):
    """The second one connects first; the one that was there before stays, after restarts too."""
    monkeypatch.setattr(client, "SILENCE", -1.0 - messages.CALL)  # it is refused after a second
    with place.hosting("north") as link:
        assert dict(exchange(link, {"north": b"a round"}, GUARD)) == {"north": b"north:a round"}
    first = place.joined[-1]
    stop, away = client.Connection._receive, threading.Event()

    async def receive(connection):  # the first one cannot reach the coordinator yet
        if away.is_set() and connection.place.folder.name == "north":
            raise OSError("no route")
        await stop(connection)

    monkeypatch.setattr(client.Connection, "_receive", receive)
    for _ in range(2):
        away.set()
        with place.host() as link:
            second = place.join("north", folder="second")
            second.thread.join(10)
            assert "another process is connected" in str(second.error)
            away.clear()
            until(link.present)
            assert dict(exchange(link, {"north": b"next"}, GUARD)) == {"north": b"north:next"}
    assert first.error is None


@plain
def test_a_party_that_lost_its_state_has_its_name_again_after_a_while(place, monkeypatch):
    """Its last process left no farewell; from the same folder, it connects at once."""
    with place.hosting("north") as link:
        link.loop.call_soon_threadsafe(link.seen["north"].connection.transport.abort)
        place.joined[-1].done.set()
        place.joined[-1].ended()
        until(lambda: not link.present())
        monkeypatch.setattr(messages, "CALL", 3.0)
    began = time.monotonic()
    with place.host() as link:
        place.join("north", folder="new disk")
        until(link.present)
        assert time.monotonic() - began > 3.0
    before = place.joined[-1]
    before.done.set()
    before.ended()
    with place.host() as link:
        monkeypatch.setattr(link.holders, "_reserved_until", {"north": float("inf")})
        place.join("north", folder="new disk")
        until(link.present)


@plain
def test_a_party_that_leaves_gives_its_name_up(place):
    with place.hosting("north") as link:
        place.joined[-1].done.set()
        assert place.joined[-1].ended() is None
        place.join("north", folder="another machine")
        until(link.present)


def test_damaged_names_are_refused_before_anything_listens(place):
    (place.folder / "host").mkdir()
    (place.folder / "host" / "holders.json").write_text("{")
    with pytest.raises(RefusedError, match=r"holders.json cannot be read: remove it"), place.host():
        pass


def test_strangers_and_expired_certificates_are_refused(place, tmp_path):
    certs.make(tmp_path / "other", "127.0.0.1", NAMES, days=2)
    keyless = tmp_path / "other" / "south"
    (keyless / "ca.crt").write_bytes((place.kit / "south" / "ca.crt").read_bytes())
    where = f"127.0.0.1:{place.port}"
    with place.host() as link:
        for name, kit, why in (
            ("north", tmp_path / "other" / "north", "RefusedError: the certificate of the "
             f"coordinator at {where} is not accepted: unable to get local issuer"),
            ("south", keyless, f"RefusedError: the coordinator at {where} does not know this key "
                               "of 'south': take"),
            ("west", None, f"ConnectionLost: no coordinator at {where}: "),
            ("north", place.kit / "west", f"RefusedError: the coordinator at {where} does not know "
                                          "this key of"),
        ):  # fmt: skip
            assert place.refused(name, kit=kit, patience=1).startswith(why)
        assert not link.present()
        last = link.valid["south"].last - datetime.timedelta(days=9)
        ended = link.valid["north"] = Validity(last - datetime.timedelta(days=1), last)
        place.join("south")
        assert f"the certificate of north ended at {last.isoformat()}" in place.refused("north")
        until(lambda: set(link.present()) == {"south"})
        link.valid["south"] = ended  # while it is connected
        assert not link.present()
        why = f"its certificate ended at {last.isoformat()}"
        assert link.barred() == {"north": why, "south": why}
        assert dict(exchange(link, {"south": b"?"}, GUARD)) == {"south": None}


def test_only_a_key_and_the_coordinators_challenge_let_a_party_in(place):
    own, other = (kits.party_key(place.kit / name, name) for name in ("north", "south"))

    async def knock():
        for wrong in (
            {"key": other},
            {"key": None},
            {"key": own, "sign": lambda drawn: bytes(32)},
            {"name": "east"},
        ):
            async with dialled(place, **wrong) as connection:
                assert await closed(connection) == messages.REFUSED
        assert not link.seen
        async with dialled(place, key=own) as connection:
            await asyncio.to_thread(until, lambda: link.present() == {"north": "token"})
            connection.transport.abort()  # cut off, so that its name stays its own for a while
        await asyncio.to_thread(until, lambda: not link.present())
        async with dialled(place, key=own, token="another") as connection:
            assert await closed(connection) == messages.TAKEN
        link.holders.gone("north", True)  # after its time, another process may take the name
        async with dialled(place, key=other) as connection:
            assert await closed(connection) == messages.REFUSED
        async with dialled(place, key=own):
            await asyncio.to_thread(until, lambda: link.present() == {"north": "token"})

    with place.host() as link:
        asyncio.run(knock())


def test_nothing_else_is_served(place):
    context = ssl.create_default_context(cafile=place.kit / "north" / "ca.crt")

    async def knock():
        own = f"127.0.0.1:{place.port}"
        for page in (f"https://{own}", "http://localhost", "https://localhost", "null", "file://"):
            with pytest.raises(InvalidStatus, match="403"):  # a page of a browser
                await connect(f"wss://{own}", ssl=context, origin=page)
        for said, code in (
            ("[]", 1000),
            ("no JSON", 1000),
            ('{"name": "north"}', 1000),
            (b"\0" * (messages.CHUNK + 1), 1009),
        ):
            async with connect(f"wss://127.0.0.1:{place.port}", ssl=context) as connection:
                with contextlib.suppress(ConnectionClosed):
                    await connection.send(said)
                assert await closed(connection) == code

    with place.host() as link:
        outsider = httpx.Client(verify=context, base_url=f"https://127.0.0.1:{place.port}")
        assert [outsider.get(path).status_code for path in ("/", "/docs")] == [426, 426]
        asyncio.run(knock())
        assert not link.seen
        why = f"cannot listen at 127.0.0.1:{place.port} .*choose another"
        with pytest.raises(ConnectionLost, match=why), place.host():
            pass


@plain
@pytest.mark.parametrize(
    "said",
    [
        ['{"id": 0, "size": 1001}'], ['{"id": 9, "size": 1001}'], ['{"id": 0, "size": -1}'], ['{"id": 0}'], [b"x"],
        ['{"id": 0, "size": Infinity}'], ["[0]"],
        ['{"id": 0, "size": 3}', b"four"], ['{"id": 0, "size": 3}', b""], ['{"id": 0, "size": 3}', "no bytes"],
        ['{"id": 1, "size": 1}'],
    ],
    ids=[
        "too large", "too large and late", "negative", "no size", "no head", "endless", "a list", "too long", "empty",
        "text", "another's",
    ],
)  # fmt: skip
def test_what_cannot_be_read_costs_a_party_its_answer_alone(place, monkeypatch, said, caplog):
    monkeypatch.setattr(server, "ALLOWED", 1000)
    first = threading.Event()

    async def say():
        async with dialled(place) as connection:
            await asyncio.to_thread(until, lambda: len(link.present()) == 2)
            futures = [link.ask("north", b""), link.ask("south", b"x" * 200)]
            await asyncio.to_thread(until, lambda: len(link.open) == 2)
            for piece in said:
                await connection.send(piece)
            await closed(connection)
            first.set()
            return await asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)

    with place.hosting("south", lambda message: first.wait() and 8 * message) as link:
        refused, answered = asyncio.run(say())
    assert isinstance(refused, PartyGone)
    assert answered == b"x" * 1600
    assert "party north sent what cannot be read" in caplog.text


def test_a_handshake_that_is_hung_up_is_tried_again(place, monkeypatch):
    """As at a coordinator that is ending, or a proxy whose coordinator has not started; what speaks
    no TLS ends it.
    """
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
        where = Join(
            place.folder / "north", "127.0.0.1", place.port, place.kit / "north", "north", GUARD
        )
        with pytest.raises(ConnectionLost, match="does not speak TLS"):
            websocket.join(where, bytes, threading.Event())
        assert len(came) == 3


def test_a_party_gets_a_new_key_and_another_is_shut_out(place, tmp_path):
    """No one else needs a new kit; the old keys, and whoever has them, stay outside."""
    for how, name, out in (
        (("renew", "--new-keys"), "south", tmp_path / "new"),
        (("revoke",), "west", tmp_path / "gone"),
    ):
        command("certs", *how, name, "--authority", tmp_path / "authority", "--out", out)
        for file in (out / "coordinator").iterdir():
            shutil.copy(file, place.kit / "coordinator")
    with place.host() as link:
        assert link.revoked() == {"west"}
        place.join("north")
        place.join("south", kit=tmp_path / "new" / "south")
        until(lambda: len(link.present()) == 2)
        for name in ("south", "west"):
            why = f"RefusedError: the coordinator at 127.0.0.1:{place.port} does not know this key of '{name}'"
            assert place.refused(name, folder="stolen").startswith(why)
        assert dict(exchange(link, dict.fromkeys(NAMES, b"yes"), GUARD)) == {
            "north": b"north:yes", "south": b"south:yes", "west": None,
        }  # fmt: skip


def test_renewed_and_revoked_credentials_count_while_the_federation_lives(place, tmp_path, caplog):
    """No one starts again: all get later certificates, one makes its own keys, one is shut out."""
    caplog.set_level("INFO", "fedunseen.federation")
    signer, kit = ("--authority", tmp_path / "authority"), place.kit / "coordinator"
    with place.host() as link:
        for name in NAMES:
            place.join(name)
        until(lambda: len(link.present()) == 3)
        before = dict(link.present())
        until(lambda: "the certificate of coordinator ends in 47 hours, at 20" in caplog.text)
        until(lambda: "the certificate of north ends in 47 hours" in caplog.text)
        command("certs", "renew", *signer, "--out", tmp_path / "later", "--days", 90)
        assert not [*(tmp_path / "later").rglob("*.key")]
        copied(tmp_path / "later", place.kit)
        until(lambda: "are new, and count from now on" in caplog.text)
        assert all(one.last - kits.now() > datetime.timedelta(89) for one in link.valid.values())
        assert link.present() == before  # no one was cut off
        command("certs", "request", "--name", "south", "--out", tmp_path / "own")
        request = tmp_path / "own" / "south.request"
        command("certs", "sign", request, *signer, "--out", tmp_path / "signed")
        assert not [*(tmp_path / "signed").rglob("*.key")]
        copied(tmp_path / "signed" / "coordinator", kit)
        until(lambda: set(link.present()) == {"north", "west"})
        assert not link.revoked()
        for source in (tmp_path / "own", tmp_path / "signed" / "south"):
            copied(source, place.kit / "south")
        until(lambda: len(link.present()) == 3)  # the same process, with its new key
        command("certs", "revoke", "west", *signer, "--out", tmp_path / "gone")
        copied(tmp_path / "gone" / "coordinator", kit)
        until(lambda: set(link.present()) == {"north", "south"})
        until(lambda: link.revoked() == {"west"})  # and south never was
        assert "does not know this key of 'west'" in place.refused("west", folder="stolen")
        assert dict(exchange(link, sent(b"?", ("north", "south")), GUARD)) == {
            "north": b"north:?", "south": b"south:?",
        }  # fmt: skip


def copied(source, target):
    shutil.copytree(source, target, dirs_exist_ok=True)


def test_half_of_new_credentials_change_nothing(place, tmp_path, caplog):
    command(
        "certs", "renew", "--new-keys", "south", "--authority", tmp_path / "authority", "--out", tmp_path / "new"
    )  # fmt: skip
    with place.hosting("south") as link:
        shutil.copy(tmp_path / "new" / "coordinator" / "south.pub", place.kit / "coordinator")
        until(lambda: "cannot be read yet" in caplog.text)
        assert set(link.present()) == {"south"}  # its certificate is still that of the old key


@pytest.mark.slow
@pytest.mark.parametrize("damaged", ["west.pub", "west.crt", "server.crt"])
def test_who_is_revoked_leaves_though_another_file_cannot_be_read(place, tmp_path, caplog, damaged):
    kit = place.kit / "coordinator"
    signer = "--authority", tmp_path / "authority"
    with place.host() as link:
        for name in ("north", "south"):
            place.join(name)
        until(lambda: set(link.present()) == {"north", "south"})
        (kit / damaged).write_text("half of it")
        until(lambda: "cannot be read yet" in caplog.text)
        for name in ("north", "south"):
            assert name in link.present()
            command("certs", "revoke", name, *signer, "--out", tmp_path / f"less-{name}")
            copied(tmp_path / f"less-{name}" / "coordinator", kit)
            until(lambda name=name: name in link.revoked() and name not in link.present())


@pytest.mark.parametrize(
    ("by", "why"), [(-2, "begins at"), (3, "ended at")], ids=["back", "forward"]
)
def test_a_coordinator_whose_clock_is_wrong_says_so_at_both_ends(place, caplog, by, why):
    with place.hosting("north") as link:
        link.clock = lambda: kits.now() + datetime.timedelta(days=by)
        until(lambda: not link.present())
        assert link.barred()["north"].startswith(f"its certificate {why}")
        until(lambda: f"the certificate of north {why}" in caplog.text)  # the party's own words
        until(lambda: "no coordinator at" in caplog.text)


def test_a_party_whose_clock_is_wrong_tells_the_coordinator(place, monkeypatch):
    with place.host() as link:
        wrong = kits.now() + datetime.timedelta(days=5000)
        monkeypatch.setattr(kits, "now", lambda: wrong)
        assert "node.crt ended at " in place.refused("north")
        until(lambda: "north" in link.barred())
        shown = wrong.isoformat(timespec="seconds")
        assert f"by its clock, {shown}, a certificate is not valid" in link.barred()["north"]
        assert set(link.barred()) == {"north"}
        monkeypatch.undo()
        place.join("north")
        until(link.present)
        assert not link.barred()


def test_new_keys_that_are_at_a_party_alone_are_named_at_both_ends(place, tmp_path):
    certs.make(tmp_path / "renewed", "127.0.0.1", NAMES, days=2)
    for name in ("north", "south"):
        (tmp_path / "renewed" / name / "ca.crt").write_bytes(
            (place.kit / name / "ca.crt").read_bytes()
        )
    with place.host() as link:
        place.join("south")
        until(link.present)
        for name in ("north", "south"):
            said = place.refused(name, kit=tmp_path / "renewed" / name)
            assert f"does not know this key of '{name}': take the name and the folder" in said
        assert set(link.barred()) == {"north"}  # of one who is here, a stranger changes nothing
        assert link.barred()["north"].startswith("who came under its name has another key than")
        place.join("north")
        until(lambda: len(link.present()) == 2)
        assert not link.barred()


@pytest.mark.parametrize(
    ("signs", "clock"),
    [
        *((signs, "2031-01-01T00:00:00+00:00") for signs in ("statement", "other", "nothing")),
        ("nothing", "0001-01-01T00:00:00+23:59"),  # before the first time that there is
        ("nothing", "no time"),
    ],
)
def test_what_is_said_of_a_clock_lets_nobody_in(place, signs, clock):
    """Not even the signature that connects lets a clock be told, nor the other way round."""
    key = kits.party_key(place.kit / "north", "north")
    context = ssl.create_default_context(cafile=place.kit / "north" / "ca.crt")

    async def tell():
        url = f"wss://127.0.0.1:{place.port}"
        async with connect(url, ssl=context) as connection:
            challenge = await connection.recv()
            signed = {
                "statement": messages.statement(challenge, "north", clock),
                "other": messages.clock_statement(challenge, "south", clock),
                "nothing": b"",
            }[signs]
            signature = key.sign(signed, ec.ECDSA(SHA256())).hex()
            said = {"name": "north", "clock": clock, "signature": signature}
            await connection.send(json.dumps(said))
            with contextlib.suppress(ConnectionClosed):
                await connection.recv()
            return connection.close_code

    with place.host() as link:
        assert asyncio.run(tell()) == messages.REFUSED
        assert not link.barred()
        assert not link.present()


@plain
def test_lines_about_a_coordinator_that_is_gone_become_rare(place, monkeypatch, caplog):
    monkeypatch.setattr(client, "WORD", 0.1)
    monkeypatch.setattr(client, "QUIET", 0.8)
    place.refused("north", patience=3.5)
    said = [one.created for one in caplog.records if "trying for" in one.message]
    assert len(said) > 2
    apart = np.diff(said)
    pauses = 0.1 * 2.0 ** np.arange(1, len(said))
    # two clocks: that of the lines may be set while the other runs
    assert (apart > np.minimum(pauses, 0.8) - 0.05).all()


@plain
def test_nobody_there(place):
    where, nowhere = f"127.0.0.1:{place.port}", "no-such-host.invalid"
    assert (
        place.refused("north") == f"ConnectionLost: no coordinator at {where}: Connection refused"
    )
    why = f"ConnectionLost: no coordinator at {nowhere}:{place.port}: "
    assert place.refused("north", address=nowhere).startswith(why)
    with place.host():
        assert place.refused("east").startswith(
            f"RefusedError: the coordinator at {where} has no party 'east': take"
        )


@plain
def test_a_proxy_that_is_not_there_is_named(place, monkeypatch):
    proxy = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("http_proxy", f"http://user:secret@{proxy}")
    monkeypatch.setattr(client, "is_loopback", lambda host: False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    why = place.refused("north", address="127.0.0.1")
    assert f"through the proxy {proxy} of https_proxy or all_proxy: fix or unset it" in why
    assert "secret" not in why


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6")
def test_an_address_of_ipv6(tmp_path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this machine")
    place = Place(tmp_path, NAMES, False)
    place.kit = tmp_path / "kit"
    command("certs", "--parties", ",".join(NAMES), "--address", "::1", "--out", place.kit)
    with place.host(address="::1") as link:
        place.join("north", address="::1")
        until(link.present)
        assert dict(exchange(link, {"north": b"?"}, GUARD)) == {"north": b"north:?"}
    place.end()
    assert "no coordinator at [::1]:" in place.refused("north", address="::1")


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
    (kit / "server.crt").write_text("no")
    assert "server.crt: no certificate" in why()


def dated(place, folder, monkeypatch, days):
    """Give a place credentials that were made so many days ago, for two days."""
    place.kit = folder / "dated"
    with monkeypatch.context() as patch:
        patch.setattr(certs, "datetime", days_ago(days))
        certs.make(place.kit, "127.0.0.1", NAMES, days=2)


@pytest.mark.parametrize(
    ("ago", "why", "tls"),
    [(9, "ended", "has ended"), (-9, "begins", "is not valid yet")],
    ids=["ended", "to come"],
)
def test_a_certificate_that_is_not_valid_is_named_at_both_ends(
    place, monkeypatch, tmp_path, ago, why, tls
):
    dated(place, tmp_path, monkeypatch, ago)
    with (
        pytest.raises(
            RefusedError, match=rf"server.crt {why} at .*T.*\+00:00, and this machine's"
        ) as caught,
        place.host(),
    ):
        pass
    assert caught.value.code == kits.NOT_VALID
    monkeypatch.setattr(kits, "server_files", lambda kit: (kit / "server.crt", kit / "server.key"))
    with place.host():
        assert f"node.crt {why} at " in place.refused("north")
        (place.kit / "south" / "node.crt").unlink()  # a party that does not look at its own
        assert f"{tls} by this machine's clock" in place.refused("south")


def test_a_coordinator_hears_that_its_certificate_has_ended_by_a_party_s_clock(
    place, monkeypatch, tmp_path
):
    dated(place, tmp_path, monkeypatch, 9)
    monkeypatch.setattr(kits, "server_files", lambda kit: (kit / "server.crt", kit / "server.key"))
    monkeypatch.setattr(kits, "validities", lambda kit, keys: {})
    (place.kit / "south" / "node.crt").unlink()
    with place.host() as link:
        assert "has ended by this machine's clock" in place.refused("south")
        until(lambda: "south" in link.barred())
        assert set(link.barred()) == {"south"}


def be_party(place):
    def answer(message):
        if message == b"slowly":
            time.sleep(3600)
        return place.name.encode() + b":" + message

    websocket.join(place, answer, threading.Event())


def sent(body, names=NAMES):
    return dict.fromkeys(names, body)


def answers(body):
    return {name: f"{name}:".encode() + body for name in NAMES}


@pytest.mark.parametrize("place", [True, False], ids=["tls", "plain"], indirect=True)
def test_messages_of_any_size_arrive(place):
    with place.host() as link:
        parties = [place.join(name) for name in NAMES]
        until(lambda: len(link.present()) == 3)
        for body in (b"", b"\0", os.urandom(12_000_000), b"\0" * 12_000_000):
            found = dict(exchange(link, sent(body), GUARD))
            assert {name: bytes(answer) for name, answer in found.items()} == answers(body)
        found = dict(exchange(link, {"south": b"only", "nobody": b"?"}, GUARD))
        assert found == {"south": b"south:only", "nobody": None}
        assert dict(exchange(link, sent(b"last"), GUARD)) == answers(b"last")
        assert [party.ended() for party in parties] == [None] * 3
        until(lambda: not link.present())


def test_an_answer_that_a_full_disk_does_not_take_is_asked_for_again(place, monkeypatch, caplog):
    full, add = [True], Spooled.add

    def write(spooled, piece):
        if full:
            full.clear()
            raise OSError(errno.ENOSPC, "No space left on device")
        add(spooled, piece)

    monkeypatch.setattr(Spooled, "add", write)
    with place.hosting("north") as link:
        body = os.urandom(3_000_000)
        assert dict(exchange(link, {"north": body}, GUARD)) == {"north": None}
        assert "the answer of north cannot be stored: [Errno 28]" in caplog.text
        found = dict(exchange(link, {"north": body}, GUARD))
        assert bytes(found["north"]) == b"north:" + body


def test_a_killed_party_is_left_out_and_comes_back(place, machine, tmp_path):
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
