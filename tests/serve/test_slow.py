"""Slow clients and a slow model: each is told so in time, and the service continues."""

import asyncio
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from fedunseen import load_run
from fedunseen.core.errors import DataError
from fedunseen.serve import Recognizer
from fedunseen.serve.app import create_app
from fedunseen.serve.guard import Limits
from fedunseen.serve.inference_queue import InferenceQueue

ROWS = json.dumps({"features": [[0.0] * 9]}).encode()
HEAD = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"


@pytest.fixture
def slow(features, served_app):
    """Serve a run whose model answers once it is let; return the port, what lets it, and how many have asked it."""

    def start(**limits):
        model, gate, begun = Recognizer(load_run(features)), threading.Event(), threading.Semaphore(0)
        gate.set()
        rank = model.rank

        def wait(*given):
            begun.release()
            assert gate.wait(300)
            return rank(*given)

        model.rank = wait
        url = served_app(create_app(model, limits=Limits(**limits)))
        gates.append(gate)
        return int(url.rstrip("/").rpartition(":")[2]), gate, begun

    gates = []
    yield start
    for gate in gates:
        gate.set()  # whatever a test has left waiting


def answer(connection):
    """Read an answer to its end: its status, its sentence, its head."""
    found = b""
    with suppress(ConnectionResetError):  # the server has closed before it read what was sent last
        while part := connection.recv(65536):
            found += part
    head, _, body = found.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body), head.decode().lower()


def asked(port, rows=ROWS):
    with socket.create_connection(("127.0.0.1", port), 300) as connection:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(rows) + rows)
        return answer(connection)


def test_a_client_that_sends_a_byte_now_and_then_hears_408_too(slow):
    """The limit is on the whole request: who keeps the connection alive gains nothing by it."""
    port, *_ = slow(upload=0.5)
    with socket.create_connection(("127.0.0.1", port), 300) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        status = []
        reader = threading.Thread(target=lambda: status.append(answer(connection)[0]))
        reader.start()
        while reader.is_alive():
            try:
                connection.sendall(b"1\r\n \r\n")
            except OSError:  # it has been cut off
                break
            time.sleep(0.05)
        reader.join()
    assert status == [408]


def test_a_client_that_leaves_in_the_middle_does_no_harm(slow, caplog):
    port, _, begun = slow()
    for part in (HEAD, HEAD + b"Content-Length: 1000\r\n\r\n", HEAD + b"Content-Length: 1000\r\n\r\n" + ROWS):
        with socket.create_connection(("127.0.0.1", port), 300) as connection:
            connection.sendall(part)
    assert asked(port)[0] == 200
    until, total = time.monotonic() + 300, 'fedunseen_requests_total{method="POST",path="/predict",status="%s"}'
    while metrics(port).get(total % 499) != 2:  # those whose head had come
        assert time.monotonic() < until, metrics(port)
    assert {key: n for key, n in metrics(port).items() if 'total{method="POST' in key} == {
        total % 200: 1,
        total % 499: 2,
    }
    assert begun.acquire(blocking=False)
    assert not begun.acquire(blocking=False)  # the model has seen the whole request alone
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_model_that_takes_too_long_is_504_and_the_next_question_waits_its_turn(slow):
    port, gate, begun = slow(answer=0.3)
    gate.clear()
    status, result, _ = asked(port)
    assert (status, result) == (504, {"detail": "the answer takes too long: send less at a time"})
    assert begun.acquire(timeout=300)
    status, result, _ = asked(port)  # the model still works at the first: this one waits, and gives up too
    assert status == 504
    assert not begun.acquire(blocking=False)
    gate.set()
    until = time.monotonic() + 300
    while asked(port)[0] != 200:
        assert time.monotonic() < until


def test_who_comes_when_too_many_wait_hears_503_at_once(slow):
    port, gate, begun = slow(waiting=2)
    gate.clear()
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(asked(port)[0]))]
    threads[0].start()
    assert begun.acquire(timeout=300)  # one is at the model
    threads += [threading.Thread(target=lambda: answers.append(asked(port)[0])) for _ in range(2)]
    for thread in threads[1:]:
        thread.start()
    until, result = time.monotonic() + 300, {}
    while metrics(port)["fedunseen_waiting"] < 3:
        assert time.monotonic() < until
    status, result, head = asked(port)
    assert (status, result) == (503, {"detail": "too many questions wait already: ask again later"})
    assert "retry-after: 1" in head
    gate.set()
    for thread in threads:
        thread.join()
    assert answers == [200] * 3


def test_health_is_503_until_the_model_is_loaded(slow_to_load):
    port, gate, wrong = slow_to_load
    assert health(port) == (503, "loading")
    gate.set()
    until = time.monotonic() + 300
    while health(port) == (503, "loading"):
        assert time.monotonic() < until
    assert health(port) == ((503, "failed") if wrong else (200, "ok"))


@pytest.fixture(params=[None, DataError("the weights are gone")])
def slow_to_load(features, served_app, monkeypatch, request):
    """Serve a run whose model is loaded once it is let, or cannot be; return the port, what lets it, what is wrong."""
    gate = threading.Event()

    def load(_):
        assert gate.wait(300)
        if request.param:
            raise request.param

    monkeypatch.setattr(Recognizer, "warm", load)
    url = served_app(create_app(Recognizer(load_run(features))))
    yield int(url.rstrip("/").rpartition(":")[2]), gate, request.param
    gate.set()


def health(port):
    with socket.create_connection(("127.0.0.1", port), 300) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        status, result, _ = answer(connection)
        return status, result["status"]


def metrics(port):
    """What the service counts: name and labels to number."""
    with socket.create_connection(("127.0.0.1", port), 300) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        found = b""
        while part := connection.recv(65536):
            found += part
    lines = found.partition(b"\r\n\r\n")[2].decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}


def test_the_loop_asks_small_questions_while_they_are_quick():
    line = InferenceQueue(4)

    def ask(*given, **how):
        """Ask in an event loop of a thread of its own: a browser's may run in this one."""
        with ThreadPoolExecutor(1, "loop") as thread:
            return thread.submit(lambda: asyncio.run(line.ask(*given, **how))).result()

    def asked(seconds_before, small=True):
        line._small = seconds_before
        return ask(lambda: threading.current_thread().name, 60, small)

    assert [asked(0.0), asked(0.0, small=False), asked(1.0)] == ["loop_0", "model", "model"]
    assert line._small == pytest.approx(0.8, abs=0.01)  # it took no time
    with line._asking:  # a question is being answered
        waiting, line._small = line.put(lambda: None), 0.0
        with pytest.raises(TimeoutError):
            ask(lambda: None, 0.05, small=True)
    waiting.result(60)
    with pytest.raises(ZeroDivisionError):
        ask(lambda: 1 // 0, 60, small=True)
    with line._asking:  # an answer is there a moment before its thread gives this back
        pass
    assert asked(0.0) == "loop_0"
