"""The controller of NVFlare's job: what it gives up, what a site's new process ends, and strange answers."""

import contextlib
import time

import pytest

from fedunseen.engines.remote.link import PartyGone, exchange
from processes import GUARD, until

pytest.importorskip("nvflare", reason="needs the extra 'nvflare'")

from fedunseen.engines.carriers.nvflare import job


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
    made = type("Silent", (job.Coordinator,), {"coordinate": None})()
    made.engine = Engine()
    made._now("a", "token")
    return made


def test_it_sends_nothing_that_has_been_given_up(coordinator):
    answers = exchange(coordinator, {"a": b"message", "b": b""}, GUARD)
    assert next(answers) == ("b", None)  # no one is there of that name
    until(lambda: coordinator.engine.asked)
    answers.close()  # the question to the other is given up
    until(lambda: not coordinator.open)
    time.sleep(0.3)  # what was on its way
    asked = len(coordinator.engine.asked)
    time.sleep(0.5)
    assert len(coordinator.engine.asked) == asked


def test_it_gives_up_what_a_process_was_asked_that_another_one_replaces(coordinator):
    waiting = coordinator.ask("a", b"message")
    until(lambda: coordinator.engine.asked)
    coordinator._now("a", "another token")
    assert isinstance(waiting.exception(GUARD), PartyGone)
    assert coordinator.present() == {"a": "another token"}


@pytest.mark.parametrize("body", ["text", 7, None, b"too large"])
def test_it_takes_a_strange_or_too_large_answer_for_lost(coordinator, monkeypatch, body):
    for name, value in (("ALLOWED", 4), ("TIMES", 2)):
        monkeypatch.setattr(f"fedunseen.engines.carriers.nvflare.job.{name}", value)
    for content, expected in ((body, None), (b"12345678", b"12345678")):
        coordinator.engine = Engine(known=True, body=content)
        begun = time.monotonic()
        assert dict(exchange(coordinator, {"a": b"1234"}, GUARD)) == {"a": expected}
        assert time.monotonic() - begun < GUARD  # a lost answer is known to be lost
