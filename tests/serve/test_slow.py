"""Slow clients, clients that send half and a slow model: each is told so in time, and others are
answered.
"""

import contextlib
import select
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from fedunseen import Experiment, load_run
from fedunseen.core.errors import DataError
from fedunseen.pages.serve import Recognizer, dashboard
from fedunseen.pages.serve.app import create_app
from fedunseen.pages.serve.connections import BoundedServer, Connection, Connections
from fedunseen.pages.serve.guard import Limits
from fedunseen.pages.serve.run_monitor import RunMonitor
from processes import until

MOST = 12
ROWS = {"features": [[0.0] * 9]}
HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
HEAD = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
BODY = HEAD + b"Content-Length: 99\r\n\r\n{"


def connected(url):
    return socket.create_connection((httpx.URL(url).host, httpx.URL(url).port), 300)


def asked(url):
    return httpx.post(f"{url}predict", json=ROWS, timeout=300)


def metrics(url):
    """Return what the service counts: name and labels to number."""
    lines = httpx.get(f"{url}metrics", timeout=300).text.splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"
    }


@pytest.fixture
def slow(features, served_app):
    """Serve a run whose model answers once it is let; return the address, what lets it, and how
    many have asked it.
    """
    model, gate, begun = Recognizer(load_run(features)), threading.Event(), threading.Semaphore(0)
    gate.set()
    rank = model.rank

    def wait(*given):
        begun.release()
        assert gate.wait(300)
        return rank(*given)

    model.rank = wait
    yield lambda **limits: (served_app(create_app(model, limits=Limits(**limits))), gate, begun)
    gate.set()  # whatever a test has left waiting


def test_a_client_that_sends_a_byte_now_and_then_hears_408_too(slow):
    """The limit is on the whole request: who keeps the connection alive gains nothing by it."""
    url, *_ = slow(upload=0.5)
    with connected(url) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        while not select.select([connection], [], [], 0.05)[0]:
            connection.sendall(b"1\r\n \r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_leaves_in_the_middle_does_no_harm(slow, caplog):
    url, _, begun = slow()
    for part in (HEAD, BODY, BODY * 2):
        with connected(url) as connection:
            connection.sendall(part)
    assert asked(url).status_code == 200
    total = 'fedunseen_requests_total{method="POST",path="/predict",status="%s"}'
    until(lambda: metrics(url).get(total % 499) == 2)  # those whose head had come
    assert {key: n for key, n in metrics(url).items() if 'total{method="POST' in key} == {
        total % 200: 1,
        total % 499: 2,
    }
    assert [begun.acquire(blocking=False) for _ in range(2)] == [
        True,
        False,
    ]  # it has seen the whole request alone
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_model_that_takes_too_long_is_504_and_the_next_question_waits_its_turn(slow):
    url, gate, begun = slow(answer=0.3)
    gate.clear()
    reply = asked(url)
    assert (reply.status_code, reply.json()) == (
        504,
        {"detail": "the answer takes too long: send less at a time"},
    )
    assert begun.acquire(timeout=300)
    assert (
        asked(url).status_code == 504
    )  # the model still works at the first: this one waits, and gives up too
    assert not begun.acquire(blocking=False)
    gate.set()
    until(lambda: asked(url).status_code == 200)


@pytest.mark.slow
def test_who_comes_when_too_many_wait_hears_503_at_once(slow):
    url, gate, begun = slow(waiting=2)
    gate.clear()
    with ThreadPoolExecutor(3) as threads:
        answers = [threads.submit(asked, url)]
        assert begun.acquire(timeout=300)  # one is at the model
        answers += [threads.submit(asked, url) for _ in range(2)]
        until(lambda: metrics(url)["fedunseen_waiting"] == 3)
        reply = asked(url)
        gate.set()
    why = {"detail": "too many questions wait already: ask again later"}
    assert (reply.status_code, reply.json(), reply.headers["retry-after"]) == (503, why, "1")
    assert [one.result().status_code for one in answers] == [200] * 3


@pytest.mark.parametrize(
    ("wrong", "then"), [(None, (200, "ok")), (DataError("no weights"), (503, "failed"))]
)
def test_health_is_503_until_the_model_is_loaded(features, served, monkeypatch, wrong, then):
    gate = threading.Event()

    def load(_):
        assert gate.wait(300)
        if wrong:
            raise wrong

    monkeypatch.setattr(Recognizer, "warm", load)
    url = served(features)

    def health():
        reply = httpx.get(f"{url}health", timeout=300)
        return reply.status_code, reply.json()["status"]

    assert health() == (503, "loading")
    gate.set()
    until(lambda: health() != (503, "loading"))
    assert health() == then


@pytest.fixture(params=["service", "live page"])
def few_connections(request, features, served_app, tmp_path):
    """Serve a run, or a run's live page, to a few connections at once; return the address."""
    if request.param == "service":
        app = create_app(Recognizer(load_run(features)))
    else:
        app = dashboard.create_app(RunMonitor(Experiment.load("digit-pairs"), tmp_path / "run"))
    return served_app(app, lambda app: BoundedServer(app, MOST, 1), force=True)


@pytest.mark.parametrize("half", [HALF, BODY, b""], ids=["head", "body", "nothing"])
def test_others_are_answered_while_many_send_half(few_connections, half):
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(4 * MOST):
            held.append(stack.enter_context(connected(few_connections)))
            held[-1].sendall(half)
            if len(held) % MOST == 0:
                assert httpx.get(f"{few_connections}health", timeout=60).json()["version"]
        with contextlib.suppress(ConnectionResetError):  # the oldest one has given way
            while held[0].recv(1000):
                pass


PAGES = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 800


def unread(url):
    """Return a connection that asks for pages and reads none."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect((httpx.URL(url).host, httpx.URL(url).port))
    connection.sendall(PAGES)
    return connection


@pytest.mark.slow
def test_others_are_answered_while_many_read_no_answer(few_connections, monkeypatch):
    pause, paused = Connection.pause_writing, threading.Semaphore(0)

    def noted(self):
        pause(self)
        paused.release()

    monkeypatch.setattr(Connection, "pause_writing", noted)
    with contextlib.ExitStack() as stack:
        for _ in range(MOST):
            stack.enter_context(contextlib.closing(unread(few_connections)))
        for _ in range(MOST):
            assert paused.acquire(timeout=300)
        assert httpx.get(f"{few_connections}health", timeout=60).json()["version"]


def test_a_client_that_reads_no_answer_is_cut_off(few_connections, monkeypatch, caplog):
    monkeypatch.setattr(Connections, "unread_seconds", 0.2)
    remove, removed = Connections.remove, threading.Event()

    def noted(self, address):
        remove(self, address)
        removed.set()

    monkeypatch.setattr(Connections, "remove", noted)
    with contextlib.closing(unread(few_connections)):
        assert removed.wait(300)
        assert httpx.get(f"{few_connections}health", timeout=60).json()["version"]
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_head_without_a_body_is_sent_and_a_proxy_names_the_client(features, served_app, caplog):
    caplog.set_level("INFO", "fedunseen.requests")
    app = create_app(Recognizer(load_run(features)))
    url = served_app(app, lambda app: BoundedServer(app, MOST, 1), force=True)
    for headers in ({}, {"X-Forwarded-For": "10.1.2.3"}):
        reply = httpx.head(f"{url}health", headers=headers, timeout=60)
        assert (reply.status_code, reply.content) == (200, b"")
    until(lambda: len(caplog.records) == 2)
    assert [record.getMessage().split()[0] for record in caplog.records] == [
        "127.0.0.1",
        "10.1.2.3",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("before", [b"", HEALTH])
def test_half_a_head_is_cut_off_alone_and_behind_a_request(few_connections, before, monkeypatch):
    with (
        connected(few_connections) as one,
        pytest.raises(OSError, match=r"Broken pipe|reset by peer"),
    ):
        one.sendall(before + HALF + b"x" * 2**29)  # a head without end
    monkeypatch.setattr(Connections, "head_seconds", 0.2)
    with connected(few_connections) as one:
        one.sendall(before + HALF)
        answer = b""
        while piece := one.recv(1000):
            answer += piece
        assert answer[:12] == (b"HTTP/1.1 200" if before else b"")
