"""What leaves a site is written down first, once, and within its owner's budget."""

import json
import math
from pathlib import Path
from unittest.mock import Mock

import pytest

from fedunseen.core.errors import ArgumentError, DataError, RefusedError
from fedunseen.deploy import site as site_module
from fedunseen.deploy.cli.health import summary
from fedunseen.deploy.releases import Releases
from fedunseen.deploy.remote.refusals import code_of
from fedunseen.deploy.remote.wire import failure, pack
from fedunseen.deploy.site import Owner, Site, header_of
from fedunseen.pages.serve.run_monitor import SiteMonitor
from fedunseen.safety.privacy.client_level import epsilon, plan_cost
from known_names import accounted

NOISE = {"name": "sample-level", "clip": 1.0, "epsilon": 3.0, "aggregation": "masked"}
WHO = ("sample", "client")
MULTIPLIED, SUMS = (
    {"name": "client-level", "clip": 1.0, "noise": 2.0, "aggregation": "masked"},
    {"name": "sample-level"},
)
PRIVATE = {"privacy": NOISE, "strategy": {"rounds": 1, "name": "fedavg"}}


class Answers:
    """Stands for a party: gives one answer, and keeps what it was asked."""

    spent = None
    accepted = "p" * 64
    joined = True

    def __init__(self, site, reply=None):
        self.site, self.says = site, reply or {"classes": 2, "samples": 7}
        self.asked, self.error = [], None

    def answer(self, message):
        return self.site.answered(message, self)

    def reply(self, message):
        self.asked.append(header_of(message))
        return self.says if isinstance(self.says, bytes) else pack(self.says)

    def leave(self, error):
        self.error = error

    def forget(self):
        """Stays in the run before."""

    def refusal(self, error, message):
        return failure(code_of(error))


def hello(run="a" * 16, **experiment):
    return pack({"kind": "hello", "run": run, "experiment": {**PRIVATE, **experiment}})


def round_of(number, plan="p" * 64):
    return pack({"kind": "round", "round": number, "plan": plan})


def site(folder, limit=None, reply=None, delta_limit=1e-4):
    owner = Owner(epsilon_limit=limit, delta_limit=delta_limit)
    return Answers(Site(folder, owner), reply)


def test_a_release_is_on_disk_before_it_leaves_only_once_and_is_counted(tmp_path):
    party = site(tmp_path, 8.0, {"terms": {"loss": 0.5}, "seconds": 1.0})
    party.answer(hello())
    first = party.answer(round_of(0))
    assert party.answer(round_of(0)) == first  # lost on its way, and sent again
    lines = [json.loads(line) for line in (tmp_path / "releases.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["hello", "budget", "round"]
    assert (lines[-1]["bytes"], party.site.sent) == (len(first), 3 * len(first))
    assert party.site.received == len(hello()) + 2 * len(round_of(0))
    assert party.site.events[0]["losses"] == {"loss": 0.5}
    found = summary(party.site.releases.lines)
    assert (found["messages"], found["runs"], found["spent"]) == (2, 1, (3.0, 1e-05))
    with pytest.raises(RefusedError):
        party.site.releases.charge("c/d", (6.0, 0.0))


def test_a_refusal_is_a_release_and_nothing_leaves_that_cannot_be_written(tmp_path, monkeypatch):
    party = site(tmp_path, reply=failure("refused-data"))
    party.answer(hello())
    assert party.site.releases.lines[-1]["kind"] == "refusal"
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
    assert header_of(party.answer(round_of(0))) == {"error": "refused-storage"}


def test_the_budget_holds_over_runs_restarts_and_changed_plans(tmp_path):
    def asked(plan, run="a" * 16, **privacy):
        party = site(tmp_path, 10.0)
        party.accepted = plan
        answer = header_of(party.answer(hello(run, privacy={**NOISE, **privacy})))
        answer = answer if "error" in answer else header_of(party.answer(round_of(0, plan)))
        code = party.error and party.error.code
        return (
            answer.get("error"),
            code,
            len(party.asked),
            party.site.releases.spent()[0],
        )

    assert (
        asked("1" * 64) == asked("1" * 64) == (None, None, 2, 3.0)
    )  # after a restart it costs nothing more
    assert asked("2" * 64) == (
        None,
        None,
        2,
        6.0,
    )  # the same run has another plan, and so other noise
    assert asked("1" * 64, epsilon=4.0) == (
        None,
        None,
        2,
        10.0,
    )  # another experiment as the same run, and plan
    assert asked("3" * 64) == ("refused-budget", "epsilon-limit", 1, 10.0)
    # A new run is refused as it begins.
    assert asked("1" * 64, "b" * 16) == ("refused-budget", "epsilon-limit", 0, 10.0)
    assert asked("1" * 64) == (None, None, 2, 10.0)


@pytest.mark.parametrize(
    ("privacy", "code"),
    [({"name": "none", "aggregation": "plain"}, "epsilon-unbounded"), (NOISE, "epsilon-limit")],
)
def test_a_limit_that_is_set_later_holds_for_runs_that_were_answered_before(
    privacy, code, tmp_path
):
    """The owner restarts the party with a limit, on the same --state folder."""
    before = site(tmp_path)
    before.answer(hello(privacy=privacy))
    before.answer(round_of(0))
    assert len(before.asked) == 2
    line = next(line for line in before.site.releases.lines if line["kind"] == "budget")
    epsilon = math.inf if line["epsilon"] is None else line["epsilon"]
    for limit in (1.0, 5.0):
        party = site(tmp_path, limit)
        refused = "error" in header_of(party.answer(hello(privacy=privacy)))
        assert (refused, len(party.asked)) == (epsilon > limit, epsilon <= limit)
        assert not refused or party.error.code == code
    low = Releases(tmp_path, 1.0)  # of a party that was greeted before
    with pytest.raises(RefusedError):
        low.charge(line["run"], (epsilon, line["delta"]), line.get("plan", ""))
    assert sum(line["kind"] == "budget" for line in party.site.releases.lines) == 1


def test_a_refused_greeting_changes_no_price(tmp_path):
    """The party may still be in the run before, whose experiment is the dearer one."""
    party = site(tmp_path, 10.0)
    party.answer(hello())
    party.says = failure("refused-data")
    party.answer(hello(privacy={**NOISE, "epsilon": 0.1}))
    party.answer(round_of(0))
    assert (party.error.code, len(party.asked)) == ("epsilon-unbounded", 2)


def test_a_party_that_has_joined_pays_for_a_round_whatever_its_greeting_was_answered(
    tmp_path, monkeypatch
):
    party = site(tmp_path)
    with monkeypatch.context() as full:
        full.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
        answer = party.answer(hello(privacy={}))
    assert header_of(answer) == {"error": "refused-storage"}
    assert party.site.releases.spent() == (0.0, 0.0)
    party.joined = None
    party.answer(round_of(0))
    assert party.site.releases.spent() == (0.0, 0.0)  # the control: it answers nothing
    party.joined = True
    party.answer(round_of(0))
    assert party.site.releases.spent() == (math.inf, 0.0)


def test_deltas_add_up_too(tmp_path):
    party = site(tmp_path, 10.0, delta_limit=3e-5)
    for run, delta in (("a" * 16, 1e-5), ("b" * 16, 1.9e-5)):
        party.answer(hello(run, privacy={**NOISE, "delta": delta}))
        party.answer(round_of(0))
    party.answer(hello("c" * 16, privacy={**NOISE, "delta": 2e-6}))
    assert (party.error.code, len(party.asked)) == ("delta-limit", 4)
    assert party.site.releases.spent() == (6.0, pytest.approx(2.9e-5))
    Owner(delta_limit=1e-4).check(10_000)
    limited = Owner(epsilon_limit=8.0, delta_limit=1e-4)
    limited.check(9_999)
    with pytest.raises(ArgumentError, match="not below one over 10000, the number of your samples"):
        limited.check(10_000)


@pytest.mark.parametrize(
    "privacy", [{}, *({**NOISE, "name": f"{who}-level", "aggregation": "plain"} for who in WHO)]
)
def test_a_run_without_noise_at_the_site_is_refused(tmp_path, privacy):
    party = site(tmp_path, 8.0)
    party.answer(hello(privacy=privacy))
    assert party.error.code == "epsilon-unbounded"
    free = site(tmp_path)
    free.answer(hello(privacy=privacy))
    assert math.isinf(free.site.releases.spent()[0])


@pytest.mark.parametrize(
    "experiment",
    [
        {"privacy": {"name": "word"}}, {"privacy": [1]}, {"strategy": "fast"}, {"strategy": {"rounds": "many"}},
        {"privacy": MULTIPLIED, "strategy": {}}, {"privacy": {**MULTIPLIED, "name": "sample-level"}, "data": [1]},
        None, "fast", [["privacy", NOISE], ["strategy", PRIVATE["strategy"]]],
    ],
)  # fmt: skip
def test_an_experiment_that_makes_no_sense_is_refused_before_the_party_reads_it(
    tmp_path, experiment
):
    party = site(tmp_path)
    whole = {**PRIVATE, **experiment} if isinstance(experiment, dict) else experiment
    answer = party.answer(pack({"kind": "hello", "run": "a" * 16, "experiment": whole}))
    is_text = whole == {**PRIVATE, "strategy": {"rounds": "many"}}
    sent, code = (
        ("refused-number", "malformed") if is_text else ("refused-budget", "epsilon-unknown")
    )
    assert header_of(answer) == {"error": sent}
    assert is_text or "cannot be computed" in str(party.error)
    assert party.error.code == code
    assert (party.asked, party.site.releases.lines) == ([], [])


@accounted
@pytest.mark.parametrize(
    ("privacy", "quantization", "rounds", "accountant"),
    [
        ({}, "none", 2, "pld"), ({}, 8, 20, "pld"), (SUMS, "none", 1, "pld"), (SUMS, 8, 1, "rdp"), (SUMS, 8, 3, "rdp"),
        (SUMS, None, 1, "rdp"),
    ],
)  # fmt: skip
def test_a_budget_covers_a_noise_multiplier(privacy, quantization, rounds, accountant):
    """The bound that the run reports; whoever asks for part of the rounds alone is not believed."""
    strategy = {"rounds": rounds, "fraction": 0.1}
    charged = plan_cost({
        "privacy": {**MULTIPLIED, **privacy}, "strategy": strategy, "data": {"quantization": quantization},
    })  # fmt: skip
    assert charged == (epsilon(2.0, 1.0, rounds, 1e-5, accountant), 1e-5)
    assert 0 < epsilon(2.0, 1.0, rounds, 1e-5, "pld") < epsilon(2.0, 1.0, rounds, 1e-5, "rdp")


def test_a_line_that_a_kill_has_cut_is_dropped_and_a_damaged_history_is_refused(tmp_path):
    party = site(tmp_path)
    party.answer(hello(privacy={}))
    file = tmp_path / "releases.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"time": "20')
    again = Releases(tmp_path)
    assert len(again.lines) == 2
    assert file.read_bytes().endswith(
        b'"20'
    )  # a reader changes nothing: a party may be writing that line
    again.add("run", "file", bytes=1)
    assert file.read_bytes().startswith(whole + b'{"time"')
    assert [line["kind"] for line in Releases(tmp_path).lines] == ["budget", "hello", "file"]
    file.write_bytes(whole.replace(b'"kind"', b'"kin'))
    with pytest.raises(DataError, match="is damaged"):
        Releases(tmp_path)


@pytest.mark.parametrize(
    "message", [b"", b"\0\0", b"\xff\xff\xff\xff{}", pack({})[:6], b"\0\0\0\2[]"]
)
def test_a_message_without_a_header_reaches_the_party(tmp_path, message):
    party = site(tmp_path)
    party.answer(message)
    assert (party.asked, party.site.releases.lines) == ([{}], [])


def test_the_page_shows_what_the_site_sent(tmp_path):
    party = site(tmp_path, 8.0, {"terms": {"loss": 0.5}, "seconds": 1.0})
    monitor = SiteMonitor("north", 7, 2, party.site)
    assert monitor.state()["phase"] == "waiting"
    party.answer(hello())
    party.answer(round_of(0))
    party.answer(pack({"kind": "stop", "result": {"zsl": 40.0, "seconds": 3.0}}))
    shown = monitor.state()
    assert (shown["phase"], shown["round"], shown["budget"]) == ("training", 1, 8.0)
    assert (shown["site"]["epsilon"], shown["site"]["result"]) == (3.0, {"ZSL": 40.0})
    assert [line["kind"] for line in shown["site"]["releases"]] == ["hello", "budget", "round"]
    assert [event["losses"] for event in shown["events"]] == [{"loss": 0.5}]
    assert monitor.state(shown["seq"])["events"] == []


def test_without_what_adds_noise_nothing_bounds_a_run(monkeypatch, tmp_path):
    """Deployments work where the folder ``safety`` is deleted."""
    experiment = {"privacy": NOISE, "data": {"quantization": 8}, "strategy": {"rounds": 1}}
    assert site_module.plan_cost(experiment) == plan_cost(experiment) == (3.0, 1e-5)
    monkeypatch.setattr(site_module, "added", lambda what: [])
    assert site_module.plan_cost(experiment) == (math.inf, 0.0)
    folder = Path(site_module.__file__).parent
    assert not [file for file in folder.rglob("*.py") if "fedunseen.safety" in file.read_text()]
