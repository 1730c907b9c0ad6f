"""What ``fedunseen health`` says of folders, and what a log says to machines."""

import json
import logging
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from fedunseen.cli.logs import Format, emit, logged, speak, subscribed
from fedunseen.core import validity
from fedunseen.core.files import holding
from fedunseen.core.validity import Validity
from fedunseen.deploy.site import Site
from processes import sets


def asked(command, folder):
    done = command("health", folder, "--json")
    result = json.loads(done.out)
    assert done.code == (0 if result["healthy"] else 1)
    return result["healthy"], result["what"].rpartition(" (")[0]


@pytest.mark.slow
def test_a_party_is_well_while_it_is_connected(command, tmp_path):
    site = Site(tmp_path)
    assert asked(command, tmp_path) == (False, "no process is at work; last: started")
    with holding(tmp_path):
        assert asked(command, tmp_path) == (False, "no coordinator is reached; last: started")
        site.say("joined with 1620 samples of 27 classes")
        assert asked(command, tmp_path) == (
            True,
            "connected; last: joined with 1620 samples of 27 classes",
        )
        site.told(False, "waiting for the coordinator at 127.0.0.1:1: refused")
        healthy, what = asked(command, tmp_path)
        assert (healthy, what.startswith("no coordinator is reached")) == (False, True)
        site.say("round 3: 0.5 s, loss 1.2")
        assert asked(command, tmp_path)[0]
    assert asked(command, tmp_path)[0] is False  # the process is gone in the middle of the run
    site.finished("the run is over")
    assert asked(command, tmp_path) == (True, "the run is over")
    lines = (tmp_path / "messages.log").read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["INFO"] * 5
    assert datetime.fromisoformat(lines[0].split()[0]).tzinfo is not None


@pytest.fixture
def ending(tmp_path):
    """A party whose own certificate ends in so many days and an hour."""
    (tmp_path / "engine").mkdir()
    now = datetime.now(UTC)

    def ends(days):
        last = now + timedelta(days=days, hours=1)
        year = timedelta(days=365)
        found = {"north": Validity(now - year, last), "authority": Validity(now - year, now + year)}
        validity.write(tmp_path / "engine", found)
        return last.isoformat()

    return ends


@pytest.mark.slow
def test_health_names_a_certificate_that_ends_and_fails_once_it_has(command, ending, tmp_path):
    site = Site(tmp_path)
    with holding(tmp_path):
        site.say("joined")
        ending(31)
        assert asked(command, tmp_path) == (True, "connected; last: joined")
        for days, healthy, words in ((12, True, "ends in 12 days, at"), (-2, False, "ended at")):
            end = ending(days)
            done = command("health", tmp_path)
            assert (done.code, f"the certificate of north {words} {end}" in done.out) == (
                int(not healthy),
                True,
            )
        assert json.loads(command("health", tmp_path, "--json").out)["certificates"]["north"] == end
    (tmp_path / "engine" / "certificates.json").write_text("{")
    site.finished("the run is over")
    assert asked(command, tmp_path) == (True, "the run is over")


def test_the_live_page_and_its_metrics_name_certificates(ending, tmp_path):
    dashboard = pytest.importorskip("fedunseen.pages.serve.dashboard")
    from starlette.testclient import TestClient

    from fedunseen.pages.serve.run_monitor import SiteMonitor

    end = ending(3)
    page = dashboard.create_app(SiteMonitor("north", 7, 2, Site(tmp_path)))
    with TestClient(page, base_url="http://127.0.0.1") as browser:
        said = browser.get("/state").json()["certificates"]
        assert said == [f"The certificate of north ends in 3 days, at {end}."]
        line = next(
            line
            for line in browser.get("/metrics").text.splitlines()
            if line.startswith('fedunseen_certificate_ends_seconds{holder="north"}')
        )
    assert float(line.split()[1]) == pytest.approx(datetime.fromisoformat(end).timestamp())


def test_the_messages_of_a_site_go_on_in_a_new_file_after_a_rotation(tmp_path):
    site = Site(tmp_path)
    (tmp_path / "messages.log").rename(tmp_path / "messages.log.1")
    site.say("joined")
    assert (tmp_path / "messages.log").read_text().endswith("INFO    joined\n")
    assert (tmp_path / "messages.log.1").read_text().endswith("INFO    started\n")


def test_a_coordinator_is_well_while_it_works_and_when_it_is_done(command, digits, tmp_path):
    run = shutil.copytree(digits, tmp_path / "run")
    assert asked(command, run) == (True, "the run is complete")
    (run / "result.json").unlink()
    assert asked(command, run) == (False, "no process is at work; round 3 of 3 is done")
    (run / "metrics.jsonl").write_bytes(
        b"".join((digits / "metrics.jsonl").read_bytes().splitlines(True)[:2])
    )
    with holding(run):
        assert asked(command, run) == (True, "round 2 of 3 is done")


@pytest.fixture
def machines():
    speak(Format.json)
    yield
    speak(Format.text)


def read(text):
    lines = [json.loads(line) for line in text.splitlines()]
    assert all(datetime.fromisoformat(line["time"]).tzinfo is not None for line in lines)
    return [(line["level"], line["message"]) for line in lines]


@pytest.mark.usefixtures("machines")
def test_every_line_has_a_level_and_a_time_with_its_zone(capsys):
    messages = []
    with subscribed(lambda level, text: messages.append((level, text))):
        for line in (
            "run:    runs/ä",
            "warning: little is left",
            "error: nothing is left: fix that",
        ):
            emit(line)
    expected = [
        ("info", "run:    runs/ä"),
        ("warning", "little is left"),
        ("error", "nothing is left: fix that"),
    ]
    assert messages == read(capsys.readouterr().err) == expected


@pytest.mark.usefixtures("machines")
def test_the_log_of_the_federation_is_json_on_the_console_and_in_its_file(capsys, tmp_path):
    with logged(tmp_path):
        logging.getLogger("fedunseen.federation").warning(
            "%s\nis gone", "south", extra={"fields": {"round": 3}}
        )
    console, file = capsys.readouterr().err, (tmp_path / "federation.log").read_text("utf-8")
    assert console == file
    assert read(console) == [("warning", "south\nis gone")]
    assert json.loads(console)["round"] == 3


def test_the_file_for_people_says_date_zone_and_level(capsys, tmp_path):
    with logged(tmp_path):
        logging.getLogger("fedunseen.federation").info("north has joined")
    when, level, *words = (tmp_path / "federation.log").read_text("utf-8").split()
    assert (level, *words) == ("INFO", "north", "has", "joined")
    assert datetime.fromisoformat(when).tzinfo is not None
    assert (
        capsys.readouterr().err.split(" ", 1)[1] == "north has joined\n"
    )  # after hours, minutes and seconds
    logging.getLogger("fedunseen.federation").info("no one hears")
    assert "nobody" not in (tmp_path / "federation.log").read_text("utf-8")


@pytest.mark.slow
def test_a_run_says_each_round_in_json(command, tmp_path, fast):
    words = "run", "digit-pairs", "--log-format", "json", "--out", tmp_path / "a"
    done = command(*words, *sets({**fast, "method.kl": 0}))
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in done.err.splitlines()]
    rounds = [line for line in lines if "round" in line]
    assert [line["round"] for line in rounds] == [1, 2, 3]
    assert all(0 <= line["numbers"]["zsl"] <= 100 for line in rounds)
    again = command(*words)
    (line,) = map(json.loads, again.err.splitlines())
    assert (again.code, line["level"]) == (2, "error")
    assert "already holds a run" in line["message"]
    assert command("run", "digit-pairs", "--out", tmp_path / "a").err.startswith(
        "error: "
    )  # text is the default
