"""The messages of NVFlare's job: what is given up, what a site's new process ends, lost and strange
answers.
"""

import contextlib
import time

import pytest

from fedunseen.deploy.remote.link import PartyGone, exchange
from processes import GUARD, until

pytest.importorskip("nvflare", reason="needs the extra 'nvflare'")

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

from fedunseen.deploy.nvflare import job


def message(**content):
    made = make_reply(ReturnCode.OK)
    made.update(content)
    return made


class Engine:
    """What NVFlare's job needs of NVFlare: ``reply`` says what each message gets."""

    new_context = contextlib.nullcontext

    def __init__(self, reply):
        self.reply, self.sent = reply, []

    def send_aux_request(self, targets, topic, message, patience, context, optional):
        self.sent += [message] if "body" in message else []
        return dict.fromkeys(targets, self.reply(message))


@pytest.fixture
def coordinator():
    """It has seen a site, which takes no question."""
    made = type("Silent", (job.Coordinator,), {"coordinate": None})()
    made.engine = Engine(
        lambda sent: make_reply(ReturnCode.TIMEOUT) if "id" in sent else message(token="token")
    )
    made._look({"a": 0.0})
    return made


def test_it_sends_nothing_that_has_been_given_up(coordinator):
    answers = exchange(coordinator, {"a": b"message", "b": b""}, GUARD)
    assert next(answers) == ("b", None)  # no one is there of that name
    until(lambda: len(coordinator.engine.sent) > 1)  # what is lost is sent again
    answers.close()  # the question to the other is given up
    assert not coordinator.open
    time.sleep(0.3)  # what was on its way
    sent = len(coordinator.engine.sent)
    time.sleep(0.5)
    assert len(coordinator.engine.sent) == sent


def test_it_sends_a_question_once_and_has_the_answer_forgotten(coordinator):
    sent, replies = [], [message(known=True), message(known=True, body=b"answer"), message()]
    coordinator.engine.reply = lambda one: sent.append(one) or replies.pop(0)
    assert coordinator.ask("a", b"message").result(GUARD) == b"answer"
    until(lambda: not replies)
    assert ["body" in one for one in sent] == [True, False, False]
    assert sent[0]["id"] == sent[1]["id"] == sent[2]["forget"]


@pytest.mark.parametrize(
    "code", [ReturnCode.OK, ReturnCode.COMMUNICATION_ERROR, ReturnCode.TIMEOUT]
)
def test_it_gives_up_what_a_process_was_asked_that_is_no_longer_there(coordinator, code):
    waiting = coordinator.ask("a", b"message")
    coordinator._look(seen := {"a": 0.0})
    assert not waiting.done()
    coordinator.engine.reply = lambda sent: (
        message(token="another") if code == ReturnCode.OK else make_reply(code)
    )
    if code == ReturnCode.TIMEOUT:  # a large message may hold up a reply
        coordinator._look(seen)
        assert (coordinator.present(), waiting.done()) == ({"a": "token"}, False)
        seen["a"] -= job.SILENCE
    coordinator._look(seen)
    assert isinstance(waiting.exception(GUARD), PartyGone)
    assert coordinator.present() == ({"a": "another"} if code == ReturnCode.OK else {})


@pytest.mark.parametrize("body", ["text", 7, None, b"too large"])
def test_it_takes_a_strange_or_too_large_answer_for_lost(coordinator, monkeypatch, body):
    for name, value in (("ALLOWED", 4), ("TIMES", 2)):
        monkeypatch.setattr(f"fedunseen.deploy.nvflare.job.{name}", value)
    for content, expected in ((body, None), (b"12345678", b"12345678")):
        coordinator.engine.reply = lambda sent, content=content: message(
            token="token", known=True, body=content
        )
        begun = time.monotonic()
        assert dict(exchange(coordinator, {"a": b"1234"}, GUARD)) == {"a": expected}
        assert time.monotonic() - begun < GUARD  # a lost answer is known to be lost


@pytest.mark.parametrize("headers", ["text", ["list"], 7], ids=repr)
def test_a_malformed_reply_of_a_site_counts_as_none(coordinator, headers):
    odd = message(token="token", __headers__=headers)
    coordinator.engine.reply = lambda sent: odd
    coordinator._look({"a": 0.0})
    assert coordinator.present() == {}
    assert isinstance(coordinator.ask("a", b"message").exception(GUARD), PartyGone)


def test_a_site_answers_a_question_to_its_process_once_and_keeps_the_answer(monkeypatch):
    monkeypatch.setattr(job, "HOLD", 0.01)
    asked, party = [], type("Echo", (job.Party,), {"answering": None})()
    party.key = "key"
    other = message(key="key", id="1", to="another's token", body=b"1")
    assert "known" not in party.receive("", other, None)
    question = {"key": "key", "id": "2", "to": party.token}
    for content in ({"body": b"2"}, {"body": b"2"}, {}):
        reply = party.receive("", message(**question, **content), None)
        assert (reply["token"], reply["known"], "body" in reply) == (party.token, True, False)
    monkeypatch.setattr(job, "HOLD", GUARD)
    job.in_thread(party._work, lambda question: asked.append(question) or question)
    for _ in range(2):  # the first reply may get lost
        assert party.receive("", message(**question), None)["body"] == b"2"
    party.receive("", message(key="key", forget="2"), None)
    assert (asked, party.answers) == ([b"2"], {})
