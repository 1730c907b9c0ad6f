"""What leaves a site is written down first, once, and within its owner's budget."""

import json
import math
import threading
from unittest.mock import Mock

import pytest

from fedunseen.cli.health import summary
from fedunseen.core.errors import DataError, RefusedError
from fedunseen.engines.remote.wire import failure, pack
from fedunseen.privacy.client_level import plan_cost
from fedunseen.privacy.releases import Releases, Site, header_of
from fedunseen.serve.run_monitor import SiteMonitor

NOISE = {"name": "sample-level", "clip": 1.0, "epsilon": 3.0}
PRIVATE = {"privacy": NOISE, "strategy": {"rounds": 1, "name": "fedavg"}}


class Answers:
    """Stands for a party: gives one answer, and keeps what it was asked."""

    def __init__(self, reply=None):
        self.reply = reply or {"classes": 2, "samples": 7}
        self.asked, self.error, self.done = [], None, threading.Event()

    def answer(self, message):
        self.asked.append(header_of(message))
        return self.reply if isinstance(self.reply, bytes) else pack(self.reply)


def hello(run="a" * 16, **experiment):
    return pack({"kind": "hello", "run": run, "experiment": {**PRIVATE, **experiment}})


def round_of(number):
    return pack({"kind": "round", "round": number})


def site(folder, limit=None, reply=None, data="data"):
    return Site(Answers(reply), folder, folder / data, plan_cost, limit)


def test_a_release_is_on_disk_before_it_leaves_only_once_and_is_counted(tmp_path):
    party = site(tmp_path, reply={"terms": {"loss": 0.5}, "seconds": 1.0})
    party.answer(hello())
    first = party.answer(round_of(0))
    assert party.answer(round_of(0)) == first  # lost on its way, and sent again
    lines = [json.loads(line) for line in (tmp_path / "releases.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["budget", "hello", "round"]
    assert (lines[-1]["bytes"], party.sent) == (len(first), 3 * len(first))
    assert party.received == len(hello()) + 2 * len(round_of(0))
    assert party.events[0]["losses"] == {"loss": 0.5}
    found = summary(party.releases.lines)
    assert (found["messages"], found["runs"], found["spent"]) == (2, 1, {party.data: (3.0, 1e-05)})
    with pytest.raises(RefusedError):
        party.releases.charge("c/d", party.data, (6.0, 0.0), 8.0)


def test_a_refusal_is_a_release_and_nothing_leaves_that_cannot_be_written(tmp_path, monkeypatch):
    party = site(tmp_path, reply=failure("out of range"))
    party.answer(hello())
    assert party.releases.lines[-1]["kind"] == "refusal"
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
    assert "No space left on device" in header_of(party.answer(round_of(0)))["error"]


def test_the_budget_holds_over_runs_restarts_and_changed_plans(tmp_path):
    site(tmp_path, 7.0).answer(hello())
    site(tmp_path, 7.0).answer(hello())  # the same run after a restart costs nothing more
    assert Releases(tmp_path).spent(site(tmp_path).data) == (3.0, 1e-05)
    changed = site(tmp_path, 7.0)
    changed.answer(hello(privacy={**NOISE, "epsilon": 4.0}))  # the same name, another plan
    assert changed.party.error is None
    third = site(tmp_path, 7.0)
    assert "epsilon of 3 after 7" in header_of(third.answer(hello("b" * 16)))["error"]
    assert (third.party.error.code, third.party.asked, third.party.done.is_set()) == ("epsilon-limit", [], True)
    other = site(tmp_path, 7.0, data="other")
    other.answer(hello("b" * 16))
    assert other.party.error is None  # other data have a budget of their own


@pytest.mark.parametrize("privacy", [{}, {"name": "client-level", "clip": 1.0, "epsilon": 1.0}])
def test_a_run_without_noise_at_the_site_is_refused(tmp_path, privacy):
    party = site(tmp_path, 8.0)
    party.answer(hello(privacy=privacy))
    assert party.party.error.code == "epsilon-unbounded"
    free = site(tmp_path)
    free.answer(hello(privacy=privacy))
    assert math.isinf(free.releases.spent(free.data)[0])


@pytest.mark.parametrize(
    "experiment",
    [{"privacy": {"name": "word"}}, {"privacy": [1]}, {"strategy": "fast"}, {"strategy": {"rounds": "many"}}],
)
def test_an_experiment_that_makes_no_sense_is_refused_before_the_party_reads_it(tmp_path, experiment):
    party = site(tmp_path)
    assert "cannot be computed" in header_of(party.answer(hello(**experiment)))["error"]
    assert (party.party.asked, party.releases.lines) == ([], [])


def test_a_budget_covers_a_noise_multiplier():
    pytest.importorskip("dp_accounting")
    masked = {"name": "client-level", "clip": 1.0, "noise": 2.0, "aggregation": "masked"}
    few, many = (plan_cost({"privacy": masked, "strategy": {"rounds": rounds}})[0] for rounds in (2, 20))
    assert 0 < few < many < math.inf


def test_a_line_that_a_kill_has_cut_is_dropped_and_a_damaged_history_is_refused(tmp_path):
    party = site(tmp_path)
    party.answer(hello())
    file = tmp_path / "releases.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"time": "20')
    again = Releases(tmp_path)
    assert len(again.lines) == 2
    assert file.read_bytes().endswith(b'"20')  # a reader changes nothing: a party may be writing that line
    again.add("run", "file", bytes=1)
    assert file.read_bytes().startswith(whole + b'{"time"')
    assert [line["kind"] for line in Releases(tmp_path).lines] == ["budget", "hello", "file"]
    file.write_bytes(whole.replace(b'"kind"', b'"kin'))
    with pytest.raises(DataError, match="is damaged"):
        Releases(tmp_path)


@pytest.mark.parametrize("message", [b"", b"\0\0", b"\xff\xff\xff\xff{}", pack({})[:6], b"\0\0\0\2[]"])
def test_a_message_without_a_header_reaches_the_party(tmp_path, message):
    party = site(tmp_path)
    party.answer(message)
    assert (party.party.asked, party.releases.lines) == ([{}], [])


def test_the_page_shows_what_the_site_sent(tmp_path):
    party = site(tmp_path, 8.0, {"terms": {"loss": 0.5}, "seconds": 1.0})
    monitor = SiteMonitor("north", 7, 2, party)
    assert monitor.state()["phase"] == "waiting"
    party.answer(hello())
    party.answer(round_of(0))
    party.answer(pack({"kind": "stop", "result": {"zsl": 40.0, "seconds": 3.0}}))
    shown = monitor.state()
    assert (shown["phase"], shown["round"], shown["budget"]) == ("training", 1, 8.0)
    assert (shown["site"]["epsilon"], shown["site"]["result"]) == (3.0, {"ZSL": 40.0})
    assert [line["kind"] for line in shown["site"]["releases"]] == ["budget", "hello", "round"]
    assert [event["losses"] for event in shown["events"]] == [{"loss": 0.5}]
    assert monitor.state(shown["seq"])["events"] == []
