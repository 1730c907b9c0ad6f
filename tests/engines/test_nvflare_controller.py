"""The messages of NVFlare's job: what is given up, what a site's new process ends, lost and strange answers."""

import contextlib
import time

import pytest

from fedunseen.engines.remote.link import PartyGone, exchange
from processes import GUARD, until

pytest.importorskip("nvflare", reason="needs the extra 'nvflare'")

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

from fedunseen.engines.carriers.nvflare import job


def message(**content):
    made = make_reply(ReturnCode.OK)
    made.update(content)
    return made


class Engine:
    """What NVFlare's job needs of NVFlare: ``reply`` says what each message gets."""

    def __init__(self, reply):
        self.reply, self.sent = reply, []

    def new_context(self):
        return contextlib.nullcontext()

    def send_aux_request(self, targets, topic, message, patience, context, optional):
        self.sent += [message] if "body" in message else []
        return dict.fromkeys(targets or ["server"], self.reply(message))


@pytest.fixture
def coordinator():
    """It has seen a site, which takes no question."""
    made = type("Silent", (job.Coordinator,), {"coordinate": None})()
    made.engine = Engine(lambda sent: make_reply(ReturnCode.TIMEOUT) if "id" in sent else message(token="token"))
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


@pytest.mark.parametrize("reply", [message(token="another"), make_reply(ReturnCode.COMMUNICATION_ERROR)])
def test_it_gives_up_what_a_process_was_asked_that_is_no_longer_there(coordinator, reply):
    waiting = coordinator.ask("a", b"message")
    coordinator._look(seen := {"a": 0.0})
    assert not waiting.done()
    coordinator.engine.reply = lambda sent: reply
    coordinator._look(seen)
    assert isinstance(waiting.exception(GUARD), PartyGone)
    assert coordinator.present() == ({"a": "another"} if "token" in reply else {})


def test_a_silent_site_is_gone_after_a_while(coordinator):
    """A large message may hold up a reply."""
    coordinator.engine.reply = lambda sent: make_reply(ReturnCode.TIMEOUT)
    for seconds, there in ((job.SILENCE / 2, {"a": "token"}), (2 * job.SILENCE, {})):
        coordinator._look({"a": time.monotonic() - seconds})
        assert coordinator.present() == there


@pytest.mark.parametrize("body", ["text", 7, None, b"too large"])
def test_it_takes_a_strange_or_too_large_answer_for_lost(coordinator, monkeypatch, body):
    for name, value in (("ALLOWED", 4), ("TIMES", 2)):
        monkeypatch.setattr(f"fedunseen.engines.carriers.nvflare.job.{name}", value)

    for content, expected in ((body, None), (b"12345678", b"12345678")):
        coordinator.engine.reply = lambda sent, content=content: (
            coordinator.receive("", message(id=sent["id"], body=content), None) and message(token="token")
        )
        begun = time.monotonic()
        assert dict(exchange(coordinator, {"a": b"1234"}, GUARD)) == {"a": expected}
        assert time.monotonic() - begun < GUARD  # a lost answer is known to be lost


def test_a_site_answers_a_question_once_and_sends_the_answer_until_it_arrives():
    asked, party = [], type("Echo", (job.Party,), {"answering": None})()
    engine = Engine(lambda sent: make_reply(ReturnCode.TIMEOUT if len(engine.sent) < 3 else ReturnCode.OK))
    job.in_thread(party._work, lambda question: asked.append(question) or question, engine)
    for key, token in (("1", "another's token"), ("2", party.token), ("2", party.token), ("3", party.token)):
        assert party.receive("", message(id=key, to=token, body=key.encode()), None)["token"] == party.token
    until(lambda: len(engine.sent) == 4)
    assert asked == [b"2", b"3"]
    assert [(sent["id"], sent["body"]) for sent in engine.sent] == [("2", b"2")] * 3 + [("3", b"3")]
