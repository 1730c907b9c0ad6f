"""Clients that send half of what they begin: they are cut off, and others are answered meanwhile."""

import contextlib
import http.client
import json
import socket

import pytest

from fedunseen import Experiment, load_run
from fedunseen.serve import Recognizer, dashboard
from fedunseen.serve import app as service
from fedunseen.serve.connections import BoundedProtocol, server_config
from fedunseen.serve.run_monitor import RunMonitor

MOST = 12
HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
BODY = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"


@pytest.fixture(params=["service", "live page"])
def port(request, features, served_app, tmp_path):
    """Serve a run, or a run's live page, to a few connections at once; return at which port."""
    if request.param == "service":
        app = service.create_app(Recognizer(load_run(features)))
    else:
        app = dashboard.create_app(RunMonitor(Experiment.load("digit-pairs"), tmp_path / "run"))
    url = served_app(app, lambda app: server_config(app, MOST, 1), force=True)
    return int(url.rstrip("/").rpartition(":")[2])


def version(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/health")
    return json.loads(connection.getresponse().read())["version"]


@pytest.mark.parametrize("half", [HEAD, BODY, b""], ids=["head", "body", "nothing"])
def test_others_are_answered_while_many_send_half(port, half):
    held = []
    for _ in range(4 * MOST):
        held.append(socket.create_connection(("127.0.0.1", port), timeout=60))
        held[-1].sendall(half)
        if len(held) % MOST == 0:
            assert version(port)
    with contextlib.suppress(ConnectionResetError):  # the oldest one has given way
        while held[0].recv(1000):
            pass
    for one in held:
        one.close()


def test_half_a_head_is_cut_off(port, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "head_seconds", 0.2)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(HEAD)
        assert one.recv(1000) == b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:  # the second request of a connection
        one.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + HEAD)
        answer = b""
        while piece := one.recv(1000):
            answer += piece
        assert answer.startswith(b"HTTP/1.1 200")


def test_a_head_without_end_is_cut_off(port):
    """Alone, and behind a request whose answer is under way."""
    for before in (b"", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
            one.sendall(before + HEAD)
            with pytest.raises(OSError, match=r"Broken pipe|reset by peer"):
                one.sendall(b"x" * 2**29)


@pytest.mark.parametrize("name", ["Host", "Origin"])
def test_an_address_that_is_none(client, features, name):
    assert client(features).get("/health", headers={name: "http://[" if name == "Origin" else "["}).status_code == 400
