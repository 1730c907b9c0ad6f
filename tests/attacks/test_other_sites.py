"""Another site of an NVFlare job acts as its coordinator: it asks for the token of a process, sends
questions and tasks, and fires events.
"""

import contextlib
import logging
import threading
from unittest.mock import Mock

import pytest

from processes import GUARD

pytest.importorskip("nvflare", reason="needs the extra 'nvflare'")

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import EventScope, FLContextKey, ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from fedunseen.core.errors import DataError
from fedunseen.deploy import nvflare_job
from fedunseen.deploy.nvflare import job
from fedunseen.deploy.site import Site


class Echo(job.Party):
    """A site that sends what it is asked."""

    started = 0

    def answering(self, place):
        self.started += 1
        return bytes


def context(scope=EventScope.LOCAL):
    """Return what NVFlare passes with an event, as its own runner of events from elsewhere does."""
    return Mock(**{"get_prop.side_effect": {FLContextKey.EVENT_SCOPE: scope}.get})


@pytest.fixture
def site(monkeypatch):
    """Return a site whose job has started: the thread of the test is that of NVFlare's runner."""
    monkeypatch.setattr(job.Place, "of", lambda fl_ctx: None)
    made = Echo()
    made.handle_event(EventType.START_RUN, context())
    return made


def in_other_thread(work):
    """Return what a function returns in another thread, as NVFlare's callbacks run."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join(GUARD)
    return found[0]


def give_key(site, key, task=job.KEY_TASK):
    """Return the code with which a site answers a task."""
    return site.execute(task, Shareable({job.KEY: key}), None, None).get_return_code()


def replied(site, **content):
    """Return what a site replies to an auxiliary message, without NVFlare's headers."""
    reply = site.receive(job.TOPIC, Shareable(content), None)
    return {name: reply[name] for name in reply if not name.startswith("__")}


@pytest.mark.parametrize(
    "key", [None, "", "another", "schl\u00fcssel", "\ud800", 7, b"server's", ["server's"]], ids=repr
)
def test_a_message_without_the_servers_key_gets_nothing(site, key):
    given = {} if key is None else {job.KEY: key}
    question = {"id": "1", "to": site.token, "body": b"question"}
    assert [replied(site, **given, **more) for more in ({}, question)] == [{}, {}]  # no key yet
    assert give_key(site, "server's") == ReturnCode.OK
    assert replied(site, **question, **{job.KEY: "server's"})["body"] == b"question"
    for more in ({}, question, {**question, "id": "2"}, {"forget": "1"}):
        assert replied(site, **given, **more) == {}
    assert set(site.answers) == {"1"}
    assert replied(site, **{job.KEY: "server's"}) == {"token": site.token}


def test_a_key_comes_by_a_task_that_the_site_has_fetched_itself(site):
    """NVFlare also hands an executor tasks that other sites send as auxiliary messages."""
    assert in_other_thread(lambda: give_key(site, "another's")) == ReturnCode.TASK_UNKNOWN
    assert replied(site, key="another's") == {}
    assert give_key(site, "server's") == ReturnCode.OK
    assert in_other_thread(lambda: give_key(site, "another's")) == ReturnCode.TASK_UNKNOWN
    assert give_key(site, "another's", "train") == ReturnCode.TASK_UNKNOWN
    assert [give_key(site, key) for key in (None, "", 7)] == [ReturnCode.TASK_UNKNOWN] * 3
    assert replied(site, key="another's") == {}
    assert replied(site, key="server's") == {"token": site.token}


def test_an_event_of_another_site_does_not_start_a_site_again(site):
    in_other_thread(lambda: site.handle_event(EventType.START_RUN, context(EventScope.FEDERATION)))
    assert (site.started, site.runner) == (1, threading.get_ident())


class Engine:
    """A server's engine with two sites: ``sent`` holds what each was sent, ``reply`` what it says."""

    new_context = contextlib.nullcontext

    def __init__(self):
        self.sent, self.reply = {}, lambda name: make_reply(ReturnCode.BAD_REQUEST_DATA)

    def send_aux_request(self, targets, topic, message, patience, context, optional):
        (name,) = targets
        self.sent.setdefault(name, []).append(message)
        return {name: self.reply(name)}


def test_each_site_gets_a_key_of_its_own_until_it_has_it():
    coordinator = type("Silent", (job.Coordinator,), {"coordinate": None})()
    coordinator.engine, tasks = Engine(), []
    coordinator.send = lambda task, context, targets: tasks.append((task, *targets))
    for _ in range(2):  # the first tasks still wait
        coordinator._look({"north": 0.0, "west": 0.0})
    assert [name for _, name in tasks] == ["north", "west"]
    keys = {name: task.data[job.KEY] for task, name in tasks}
    assert len({len(key) for key in keys.values()} | set(keys.values())) == 3
    for name, messages in coordinator.engine.sent.items():
        assert {message[job.KEY] for message in messages} == {keys[name]}
    tasks[0][0].completion_status = "OK"  # north's process has started again since
    coordinator._look({"north": 0.0, "west": 0.0})
    assert [name for _, name in tasks] == ["north", "west", "north"]
    assert tasks[2][0].data[job.KEY] == keys["north"]
    assert coordinator.present() == {}
    coordinator.engine.reply = lambda name: Shareable({"token": name})
    coordinator._look({"north": 0.0, "west": 0.0})
    assert coordinator.present() == {"north": "north", "west": "west"}
    assert len(tasks) == 3


SECRET = "patient 4711"


class Refuser(nvflare_job.Party):
    """A site whose data are not as they must be."""

    def answering(self, place):
        raise DataError(f"{SECRET} is no number")


def test_why_a_site_does_not_start_stays_in_its_state(tmp_path, monkeypatch, caplog):
    """NVFlare can stream its log to the server: the text of an error must not be in it."""
    place = job.Place("north", tmp_path, tmp_path, {"state": "own"})
    monkeypatch.setattr(job.Place, "of", lambda fl_ctx: place)
    seen = context()
    seen.get_engine.return_value.get_workspace.return_value.get_root_dir.return_value = tmp_path
    made = Refuser()
    panic = Mock()
    monkeypatch.setattr(made, "system_panic", panic)
    with caplog.at_level(logging.DEBUG):
        made.handle_event(EventType.START_RUN, seen)
    assert SECRET in (tmp_path / "own" / job.MESSAGES).read_text()
    assert (SECRET in caplog.text, "[refused-data]" in caplog.text) == (False, True)
    assert SECRET not in str(panic.call_args)


def test_why_a_site_refuses_a_question_stays_in_its_state(tmp_path, monkeypatch, caplog):
    party = Mock(error=None)

    def answer(question):
        party.error = DataError(f"{SECRET} is no number")
        return b"refused"

    party.answer = answer

    @contextlib.contextmanager
    def taking_part(tree, settings, state, out, say):
        site = Site(state, say=say)
        site.say(f"{SECRET} is read")
        yield party

    monkeypatch.setattr(nvflare_job, "taking_part", taking_part)
    place = job.Place("north", tmp_path, tmp_path, {"data": "data"})
    with caplog.at_level(logging.DEBUG):
        assert nvflare_job.Party().answering(place)(b"question") == b"refused"
    text = (tmp_path / job.STATE / job.MESSAGES).read_text()
    assert (text.count(SECRET), SECRET in caplog.text) == (1, False)
    assert "[refused-data]" in caplog.text
