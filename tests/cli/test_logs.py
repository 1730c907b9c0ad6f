"""Lines for machines: JSON with date, zone and level."""

import json
import logging
from datetime import datetime

import pytest

from fedunseen.cli.logs import Format, emit, logged, speak, subscribed


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
        for line in ("run:    runs/ä", "warning: little is left", "error: nothing is left: fix that"):
            emit(line)
    expected = [("info", "run:    runs/ä"), ("warning", "little is left"), ("error", "nothing is left: fix that")]
    assert messages == read(capsys.readouterr().err) == expected


@pytest.mark.usefixtures("machines")
def test_the_log_of_the_federation_is_json_on_the_console_and_in_its_file(capsys, tmp_path):
    with logged(tmp_path):
        logging.getLogger("fedunseen.federation").warning("%s\nis gone", "south", extra={"fields": {"round": 3}})
    console, file = capsys.readouterr().err, (tmp_path / "federation.log").read_text("utf-8")
    assert console == file
    assert read(console) == [("warning", "south\nis gone")]
    assert json.loads(console)["round"] == 3


def test_the_file_for_people_says_date_zone_and_level(capsys, tmp_path):
    with logged(tmp_path):
        logging.getLogger("fedunseen.federation").info("north has joined")
    when, level, *words = (tmp_path / "federation.log").read_text("utf-8").split()
    assert (level, " ".join(words)) == ("INFO", "north has joined")
    assert datetime.fromisoformat(when).tzinfo is not None
    assert capsys.readouterr().err.split(" ", 1)[1] == "north has joined\n"  # after hours, minutes and seconds
    logging.getLogger("fedunseen.federation").info("no one hears")
    assert "nobody" not in (tmp_path / "federation.log").read_text("utf-8")


@pytest.mark.slow
def test_a_run_says_each_round_in_json(command, tmp_path, fast):
    settings = [f"--set={key}={json.dumps(value)}" for key, value in fast.items()]
    done = command(
        "run", "digit-pairs", *settings, "--set=method.kl=0", "--log-format", "json", "--out", tmp_path / "a"
    )
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in done.err.splitlines()]
    rounds = [line for line in lines if "round" in line]
    assert [line["round"] for line in rounds] == [1, 2, 3]
    assert all(0 <= line["numbers"]["zsl"] <= 100 for line in rounds)
    again = command("run", "digit-pairs", "--log-format", "json", "--out", tmp_path / "a")
    (line,) = map(json.loads, again.err.splitlines())
    assert (again.code, line["level"]) == (2, "error")
    assert "already holds a run" in line["message"]
    assert command("run", "digit-pairs", "--out", tmp_path / "a").err.startswith("error: ")  # text is the default
