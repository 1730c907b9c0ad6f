"""The relay between our process and an engine's drops what no one waits for, and closes a channel on any error."""

import contextlib
import threading
import time
from concurrent.futures import Future
from importlib import import_module

import pytest

from fedunseen.engines.remote.link import PartyGone, exchange
from fedunseen.engines.remote.relay import ENDED, Port, RelayServer, dial, forward
from processes import GUARD, until


def heard(channel):
    assert channel.connection.poll(GUARD), "nothing comes"
    return channel.receive()


@pytest.fixture
def board(tmp_path):
    """A switchboard, and the channel of a relay that has said that two parties are there."""
    made = RelayServer()
    with Port(tmp_path, made.serve) as port:
        channel = dial(port.environment)
        channel.send({"parties": {"a": "1", "b": "2"}})
        until(made.present)
        yield made, channel


def test_the_relay_hears_of_messages_that_are_given_up(board):
    board, channel = board
    assert dict(exchange(board, {"a": b"first"}, 0.05)) == {"a": None}  # too late
    (asked, body), (dropped, _) = heard(channel), heard(channel)
    assert (asked["to"], body, dropped) == ("a", b"first", {"id": asked["id"], "drop": True})
    answers = exchange(board, {"a": b"second", "b": b"second"}, GUARD)
    numbers: dict[str, int] = {}

    def answer():
        for _ in range(2):
            head, _ = heard(channel)
            numbers[head["to"]] = head["id"]
        channel.send({"id": numbers["a"]}, b"yes")

    thread = threading.Thread(target=answer)
    thread.start()
    assert next(answers) == ("a", b"yes")
    thread.join()
    answers.close()  # without waiting for the other one
    assert heard(channel)[0] == {"id": numbers["b"], "drop": True}
    assert not board.open


def test_a_relay_passes_on_answers_losses_and_what_is_given_up(board):
    board, channel = board
    asked = {}

    def ask(name, message):
        asked[message] = Future()
        return asked[message]

    threading.Thread(target=forward, args=(channel, ask), daemon=True).start()
    futures = {message: board.ask("a", message) for message in (b"answered", b"lost", b"dropped")}
    until(lambda: len(asked) == 3)
    asked[b"lost"].set_exception(PartyGone("a"))
    futures[b"dropped"].cancel()
    until(asked[b"dropped"].cancelled)
    asked[b"answered"].set_result(b"yes")
    assert futures[b"answered"].result(GUARD) == b"yes"
    assert isinstance(futures[b"lost"].exception(GUARD), PartyGone)


def test_a_frame_is_sent_whole_or_not_at_all_and_a_wire_ends_with_what_serves_it(board, monkeypatch):
    board, channel = board
    with pytest.raises(TypeError):
        channel.send({"id": 0}, "not bytes")
    channel.send({"parties": {"c": "3"}})
    until(lambda: board.present() == {"c": "3"})
    failed = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda error: failed.set())
    channel.connection.send_bytes(b"not JSON")
    with contextlib.suppress(OSError):  # it may have been closed by now
        channel.connection.send_bytes(b"")
    with pytest.raises(ENDED):
        heard(channel)
    until(lambda: not board.present())
    assert failed.wait(GUARD)


def test_open_messages_are_taken_away_under_the_lock(board):
    """Another thread may be going through them."""
    board, channel = board

    class Open(dict):
        def pop(self, *key):
            assert board.lock.locked()
            return super().pop(*key)

    board.open = Open()
    assert dict(exchange(board, {"a": b"late"}, 0.0)) == {"a": None}
    answers = exchange(board, {"a": b"", "b": b""}, GUARD)
    threading.Timer(0.1, channel.send, ({"parties": {"a": "1"}},)).start()
    assert next(answers) == ("b", None)
    answers.close()
    assert not board.open


class Engine:
    """What the controller of NVFlare's job needs of NVFlare: here a site that answers as it is told to."""

    def __init__(self, **content):
        self.asked, self.content = [], content

    def new_context(self):
        return contextlib.nullcontext()

    def send_aux_request(self, targets, topic, message, patience, context, optional):
        from nvflare.apis.fl_constant import ReturnCode
        from nvflare.apis.shareable import make_reply

        reply = make_reply(ReturnCode.OK)
        if message["do"] == "ask":
            self.asked.append(message["id"])
            reply.update(self.content)
        return {targets[0]: reply}


@pytest.fixture
def coordinator():
    pytest.importorskip("nvflare", reason="needs the extra 'nvflare'")
    job = import_module("fedunseen.engines.carriers.nvflare.job")
    made = type("Silent", (job.Coordinator,), {"coordinate": None})()
    made.engine = Engine()
    made._now("a", "token")
    return made


def test_nvflare_sends_nothing_that_the_coordinator_has_given_up(coordinator):
    answers = exchange(coordinator, {"a": b"message", "b": b""}, GUARD)
    assert next(answers) == ("b", None)  # no one is there of that name
    until(lambda: coordinator.engine.asked)
    answers.close()  # the question to the other is given up
    until(lambda: not coordinator.open)
    time.sleep(0.3)  # what was on its way
    asked = len(coordinator.engine.asked)
    time.sleep(0.5)
    assert len(coordinator.engine.asked) == asked


def test_nvflare_gives_up_what_a_process_was_asked_that_another_one_replaces(coordinator):
    waiting = coordinator.ask("a", b"message")
    until(lambda: coordinator.engine.asked)
    coordinator._now("a", "another token")
    assert isinstance(waiting.exception(GUARD), PartyGone)
    assert coordinator.present() == {"a": "another token"}


@pytest.mark.parametrize("body", ["text", 7, None, b"too large"])
def test_nvflare_takes_a_strange_or_too_large_answer_for_lost(coordinator, monkeypatch, body):
    for name, value in (("ALLOWED", 4), ("TIMES", 2)):
        monkeypatch.setattr(f"fedunseen.engines.carriers.nvflare.job.{name}", value)
    for content, expected in ((body, None), (b"12345678", b"12345678")):
        coordinator.engine = Engine(known=True, body=content)
        begun = time.monotonic()
        assert dict(exchange(coordinator, {"a": b"1234"}, GUARD)) == {"a": expected}
        assert time.monotonic() - begun < GUARD  # a lost answer is known to be lost
