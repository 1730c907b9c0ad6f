"""Strangers that open many connections and say nothing, or half of what TLS needs: parties and
clients get in.
"""

import contextlib
import socket
import ssl
import threading

import pytest

pytest.importorskip("websockets", reason="pip install 'fedunseen[masked]'")
pytest.importorskip("uvicorn", reason="pip install 'fedunseen[serve]'")

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from fedunseen.deploy import certs, websocket
from fedunseen.deploy.remote.link import Host, Join
from fedunseen.deploy.websocket import messages
from fedunseen.pages.serve.connections import BoundedServer, Connections
from processes import GUARD, free_port, until

pytestmark = pytest.mark.slow
STRANGERS = 150
HELLO = bytes.fromhex("16030100f8010000f40303")  # TLS says that more comes


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """Credentials of a federation."""
    folder = tmp_path_factory.mktemp("half") / "kits"
    certs.make(folder, "127.0.0.1", ["north", "south"], 2)
    return folder


@contextlib.contextmanager
def strangers(port, said):
    """Hold connections on which half of a handshake was sent."""
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(STRANGERS):
            held.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), GUARD)))
            held[-1].sendall(said)
        yield held


def ended(connection):
    """Wait until the other side has closed a connection."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1000):
            pass


@pytest.mark.parametrize("said", [b"", HELLO], ids=["nothing", "half"])
def test_strangers_without_a_certificate_do_not_keep_a_party_out(kits, tmp_path, said, monkeypatch):
    monkeypatch.setattr(messages, "CALL", 5.0)
    port, done = free_port(), threading.Event()
    with (
        websocket.host(
            Host(tmp_path / "host", "127.0.0.1", port, kits / "coordinator", ("north", "south"))
        ) as link,
        strangers(port, said) as held,
    ):
        place = Join(tmp_path / "north", "127.0.0.1", port, kits / "north", "north", GUARD)
        thread = threading.Thread(
            target=websocket.join, args=(place, lambda message: message[::-1], done)
        )
        thread.start()
        try:
            until(lambda: "north" in link.present())
            assert link.ask("north", b"ab").result(GUARD) == b"ba"
            for one in held:  # each is cut, none stays for a minute
                ended(one)
            assert link.ask("north", b"cd").result(GUARD) == b"dc"
        finally:
            done.set()
            thread.join(GUARD)


@pytest.mark.parametrize("said", [b"", HELLO], ids=["nothing", "half"])
def test_strangers_do_not_hold_connections_of_the_service_before_tls(kits, said, monkeypatch):
    """The event loop's own limit is a minute, and limits for requests begin after TLS."""
    monkeypatch.setattr(Connections, "head_seconds", 2.0)
    own = kits / "coordinator"
    app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("here"))])
    server = BoundedServer(app, 64, 1, own / "server.crt", own / "server.key")
    context = ssl.create_default_context(cafile=own / "ca.crt")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            port = listening.getsockname()[1]
            with strangers(port, said) as held:
                with (
                    socket.create_connection(("127.0.0.1", port), GUARD) as plain,
                    context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
                ):
                    client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
                    assert client.recv(1000).startswith(b"HTTP/1.1 200")
                for one in held:
                    one.settimeout(30)  # asyncio's and uvloop's own limit is 60 s
                    ended(one)
        finally:
            server.should_exit = True
            thread.join(GUARD)
