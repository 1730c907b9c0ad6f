"""The live page of a run: what the observer tells, what the page asks for, and that the run does
not depend on it.
"""

import contextlib
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import httpx
import pytest
from starlette.testclient import TestClient

from fedunseen import Experiment, __version__, run
from fedunseen.core.errors import ArgumentError, DataError, ExperimentError, QuorumError
from fedunseen.federation.engine import PartyStatus
from fedunseen.pages.cli.live_page import bind_address_of
from fedunseen.pages.serve.dashboard import create_app
from fedunseen.pages.serve.run_monitor import RunMonitor
from pages import says
from processes import sets
from refusals import message_of
from small_runs import TRAINED

TOKEN = "a-token-of-the-tests"
SMALL = {**TRAINED, "strategy.rounds": 3, "evaluation.clients": False}
EXPERIMENT = Experiment.load("digit-pairs", SMALL)
DEPLOYED = {
    "engine.name": "nvflare",
    "engine.mode": "deployment",
    "engine.quorum": 2,
    "partition.clients": 3,
}


def connect(parties):
    for party in parties:
        party.connected, party.classes, party.samples = True, 27, 1620


def line(round, zsl, **more):
    return {
        "round": round,
        "zsl": zsl,
        "losses": {"loss": 1 / round},
        "participants": [0, 1],
        "seconds": 0.5,
        **more,
    }


@pytest.fixture
def monitor(tmp_path):
    return RunMonitor(EXPERIMENT, tmp_path / "run")


@pytest.fixture
def federation(tmp_path):
    """A watched deployment of three parties, of which two are needed."""
    parties = [PartyStatus(name) for name in ("north", "south", "west")]
    seen = RunMonitor(EXPERIMENT.with_overrides(DEPLOYED), tmp_path / "run")
    seen.meet(parties)
    return seen, parties


def test_rounds_are_told_once_and_in_order(monitor):
    monitor.on_round("training", 0, 2, None)
    assert monitor.state()["events"] == []
    monitor.on_round("training", 1, 2, line(1, 40.0, dropped={"2": "it has not answered"}))
    result = monitor.state()
    (one,) = result["events"]
    assert (result["round"], result["rounds"], result["phase"], result["left_out"]) == (
        1,
        2,
        "training",
        1,
    )
    out = [{"client": 2, "why": "it has not answered"}]
    assert (
        one.items()
        >= {"accuracies": {"ZSL": 40.0}, "losses": {"loss": 1.0}, "merged": 2, "out": out}.items()
    )
    monitor.on_round("training", 2, 2, line(2, 45.0, privacy={"epsilon": 1.5}))
    later = monitor.state(result["seq"])
    assert ([(one["round"], one["epsilon"]) for one in later["events"]], later["phase"]) == (
        [(2, 1.5)],
        "finishing",
    )
    assert monitor.state(later["seq"])["events"] == []


def test_a_deployment_waits_until_enough_parties_are_there(federation):
    monitor, parties = federation
    monitor.on_round("training", 0, 3, None)
    for connected, phase in ((0, "waiting"), (2, "training")):
        connect(parties[:connected])
        assert (monitor.phase(), monitor.numbers()["connected"]) == (phase, connected)
    parties[2].refused = "they differ in the attributes of the classes"
    merged = {
        "participants": [0],
        "client_seconds": {"0": 1.25},
        "dropped": {"1": "its update is not finite"},
    }
    monitor.on_round("training", 1, 3, {**line(1, 40.0), **merged})
    north, south, west = monitor.state()["parties"]
    assert (north["rounds"], north["seconds"], north["classes"], north["missed"]) == (
        1,
        1.25,
        27,
        None,
    )
    assert (south["rounds"], south["missed"]) == (
        0,
        {"round": 1, "why": "its update is not finite"},
    )
    assert (west["connected"], west["refused"]) == (
        False,
        "they differ in the attributes of the classes",
    )


@pytest.mark.parametrize(
    ("error", "phase"),
    [(None, "complete"), (QuorumError("1 of 2 replies"), "paused"), (DataError("no data"), "failed"),
     (KeyboardInterrupt(), "interrupted")],
)  # fmt: skip
def test_the_end_is_told_with_its_reason(monitor, error, phase):
    monitor.end(error)
    assert not monitor.end_was_shown.is_set()
    result = monitor.state()
    assert (result["phase"], result["why"], monitor.end_was_shown.is_set()) == (
        phase,
        str(error or ""),
        True,
    )


def test_the_service_is_read_only_and_guarded(monitor):
    monitor.on_round("training", 1, 3, line(1, 40.0))
    asked = TestClient(create_app(monitor), base_url="http://127.0.0.1")
    assert asked.get("/health").json() == {
        "status": "ok",
        "version": __version__,
        "phase": "training",
    }
    result = asked.get("/state").json()
    assert result["events"][0]["round"] == 1
    assert asked.get(f"/state?since={result['seq']}").json()["events"] == []
    for since in ("-1", "x", "1" * 30, "²"):
        assert asked.get("/state", params={"since": since}).status_code == 422
    for path in ("/", "/state", "/health", "/metrics"):
        assert asked.post(path).status_code == asked.delete(path).status_code == 405
        assert (asked.head(path).status_code, asked.head(path).content) == (200, b"")
    assert asked.post("/state", content=b"something").status_code == 413
    assert asked.get("/state", headers={"Host": "evil.example"}).status_code == 421
    assert asked.get("/state", headers={"Origin": "http://evil.example"}).status_code == 403
    page = asked.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not re.search(r"https://|http://(?!www\.w3\.org)", page.text)  # nothing from elsewhere
    assert "fedunseen_round 1.0" in asked.get("/metrics").text.splitlines()


def test_other_machines_are_let_in_as_the_service_lets_them_in():
    places = [bind_address_of(True, at) for at in (None, "[::1]:0")]
    assert [(one.host, one.port, one.local) for one in places] == [
        ("127.0.0.1", 8322, True),
        ("::1", 0, True),
    ]
    assert bind_address_of(False, None) is None
    why = "--dashboard-at 0.0.0.0 lets other machines in: give --dashboard-token-file FILE with a token for them"
    assert message_of(bind_address_of(True, "0.0.0.0:8322").token, error=ArgumentError) == why
    wanted = "is not an address: write HOST:PORT, for example 127.0.0.1:8322"
    for at in ("8322", "localhost", "127.0.0.1:", ":8322", "127.0.0.1:70000", "127.0.0.1:²"):
        assert (
            message_of(bind_address_of, True, at, error=ExperimentError)
            == f"--dashboard-at {at} {wanted}"
        )


def state(url):
    return httpx.get(f"{url}state", timeout=300).json()


@pytest.fixture
def watch(tmp_path, capsys):
    """Watch a run in ``seen``; return a block that gives the monitor and the page's address."""

    @contextlib.contextmanager
    def open_page():
        address = bind_address_of(True, "127.0.0.1:0")
        with address.of_run(EXPERIMENT, tmp_path / "seen") as monitor:
            yield monitor, capsys.readouterr().err.rpartition("live page: ")[2].strip()

    return open_page


@pytest.mark.slow
def test_a_watched_run_has_the_same_bits(watch, tmp_path):
    plain = run(EXPERIMENT, tmp_path / "plain")
    done, answers = threading.Event(), []

    def look(url):  # again and again, as many pages would
        while not done.is_set():
            answers.append(state(url))

    with watch() as (monitor, url), ThreadPoolExecutor(1) as threads:
        reader = threads.submit(look, url)
        run(
            EXPERIMENT,
            tmp_path / "seen",
            progress=monitor.on_round,
            present=monitor.meet,
        )
        last = state(url)
        done.set()
        reader.result()
    assert answers
    assert [one["round"] for one in last["events"]] == [1, 2, 3]
    assert last["events"][-1]["accuracies"]["ZSL"] == plain.metrics[-1]["zsl"]
    assert [(one["classes"], one["samples"], one["rounds"]) for one in last["parties"]] == [
        (8, 48, 3)
    ] * 10
    for name in ("model.safetensors", "evaluation.safetensors"):
        assert (tmp_path / "seen" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


def test_the_rounds_before_a_resume_are_on_the_page(monitor, tmp_path):
    def stop(stage, round, rounds, line):
        if round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(EXPERIMENT, tmp_path / "run", progress=stop)
    run(EXPERIMENT, tmp_path / "run", resume=True, progress=monitor.on_round)
    assert [one["round"] for one in monitor.state()["events"]] == [1, 2, 3]


def test_a_page_that_breaks_ends_neither_the_run_nor_its_log(watch, tmp_path, monkeypatch, caplog):
    breaks = Mock(side_effect=RuntimeError("no more file handles"))
    monkeypatch.setattr("fedunseen.pages.serve.connections.BoundedServer.run", breaks)
    with watch() as (monitor, _):
        done = run(EXPERIMENT, tmp_path / "run", progress=monitor.on_round)
    assert done.result["rounds"] == 3
    assert (
        "the live page has ended (RuntimeError: no more file handles); the run continues"
        in caplog.messages
    )


def test_who_is_looking_hears_of_the_end(watch, monkeypatch):
    for name in ("_RECENT", "_LAST_LOOK"):
        monkeypatch.setattr(f"fedunseen.pages.serve.dashboard.{name}", 300.0)
    first = threading.Event()

    def look(url):
        while (phase := state(url)["phase"]) == "preparing":
            first.set()
        return phase

    with ThreadPoolExecutor(1) as threads:
        with watch() as (_, url):
            reader = threads.submit(look, url)
            assert first.wait(300)
        assert reader.result() == "complete"


@pytest.mark.slow
def test_the_command_shows_a_run_live(machine):
    settings = sets({**SMALL, "strategy.rounds": 400})
    process = machine.start(
        "run.log", "run", "digit-pairs", *settings, "--out", "run", "--dashboard-at", "127.0.0.1:0"
    )
    machine.until(lambda: "\n" in machine.said("run.log"), process)
    url = machine.said("run.log").splitlines()[0].removeprefix("live page: ")
    machine.until(lambda: state(url)["round"] >= 2, process)
    process.send_signal(signal.SIGINT)
    assert machine.ended(process) == 130


@pytest.fixture
def shown(served_app, opened):
    """Show a monitor in the browser."""
    return lambda monitor, token=None, **options: opened(
        served_app(create_app(monitor, token)), **options
    )


@pytest.mark.slow
def test_the_page_follows_a_federation(shown, federation):
    monitor, parties = federation
    monitor.on_round("training", 0, 3, None)
    page = shown(monitor)
    says(page, "#phase", "Waiting for parties")
    assert page.locator("#parties tr").count() == 3
    connect(parties[:2])
    parties[2].refused = "<b>they differ</b>"  # a party's own words are text, never markup
    out = {"dropped": {"2": "it has not answered"}, "client_seconds": {"0": 0.25, "1": 75.0}}
    monitor.on_round("training", 1, 3, line(1, 40.0, **out))
    monitor.on_round("training", 2, 3, line(2, 52.5, **out, privacy={"epsilon": 1.25}))
    monitor.note("warning", "west is refused")
    says(page, "#round", "round 2 of 3")
    says(page, "#phase", "Training")
    north, _, west = page.locator("#parties tr").all_inner_texts()
    assert north.split() == ["north", "connected", "27", "1,620", "2", "250", "ms"]
    assert "<b>they differ</b>" in west
    assert page.locator("#refused tr").all_inner_texts() == ["1 to 2\twest\tit has not answered"]
    cards = dict(
        zip(*(page.locator(f"#cards {tag}").all_inner_texts() for tag in ("dt", "dd")), strict=True)
    )
    assert (cards["ZSL"], cards["connected"], cards["privacy: epsilon spent"]) == (
        "52.5 %",
        "2 of 3",
        "1.25",
    )
    assert page.get_by_role("img", name="Last: ZSL 52.5").count() == 1
    assert page.locator("#log li.warning").inner_text().endswith("west is refused")
    monitor.on_round(
        "training", 3, 3, {key: value for key, value in line(3, 0.0).items() if key != "zsl"}
    )
    says(page, "#round", "round 3 of 3")
    says(page, "#cards dd >> nth=0", "52.5 %, round 2")  # the last that was measured
    monitor.end(None)
    says(page, "#phase", "Complete")


def test_the_page_says_when_the_run_is_gone_and_asks_for_a_token(shown, monitor):
    monitor.on_round("training", 1, 3, line(1, 40.0))
    page = shown(monitor, TOKEN)
    refusal, welcome = ("#login-error", "This token is not the page's."), ("#round", "round 1 of 3")
    for token, shows in (("wrong", refusal), (TOKEN, welcome)):
        page.fill("#token", token)
        page.keyboard.press("Enter")
        says(page, *shows)
    monitor.end(QuorumError("round 2 has 1 of the 2 replies that it needs"))
    says(page, "#why", "round 2 has 1 of the 2 replies that it needs")
    says(page, "#phase", "Paused")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "scheme"), [(320, "light"), (390, "dark"), (1280, "light"), (1280, "dark")]
)
def test_nothing_of_the_page_is_wider_than_the_window(shown, federation, width, scheme):
    monitor, parties = federation
    connect(parties)
    monitor.note("info", "listening at " + "x" * 200)
    for round in range(1, 40):
        monitor.on_round("training", round, 50, line(round, 2.0 * round, dropped={"2": "y" * 150}))
    page = shown(monitor, viewport={"width": width, "height": 844}, color_scheme=scheme)
    page.wait_for_selector("#log li")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    if folder := os.environ.get("FEDUNSEEN_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/live-{width}-{scheme}.png", full_page=True)
