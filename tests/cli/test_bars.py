"""Bars on a terminal, and what is said where no bar has begun."""

import sys

import pytest

from fedunseen.cli import bars


class Now:
    """A timer that is due at once."""

    def __init__(self, seconds, due):
        assert seconds == bars.QUIET == 2.0
        self.due = due

    def start(self):
        self.due()

    def cancel(self):
        pass

    join = cancel


class Never(Now):
    def start(self):
        pass


def to_terminal(monkeypatch, timer):
    """Take standard error for a terminal of 100 columns."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bars.threading, "Timer", timer)


@pytest.mark.parametrize("timer", [Now, Never])
def test_after_two_seconds_without_a_bar_the_work_is_named(timer, monkeypatch, capsys):
    to_terminal(monkeypatch, timer)
    with bars.preparation_bars("exporting"):
        assert ("exporting" in capsys.readouterr().err) is (timer is Now)


def test_a_bar_that_has_begun_takes_its_place(monkeypatch, capsys):
    to_terminal(monkeypatch, Now)
    with bars.bars(doing="learning") as advance:
        advance("encoding images", 3, 4)
        advance("encoding images", 4, 4)
    last = capsys.readouterr().err.split("encoding images")[-1]
    assert "4/4" in last
    assert "learning" not in last


def test_elsewhere_than_on_a_terminal_nothing_is_drawn(monkeypatch, capsys):
    monkeypatch.setattr(bars.threading, "Timer", Now)
    with bars.preparation_bars("exporting"):
        pass
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("timer", "said"), [(Now, "looking ...\n"), (Never, "")])
def test_elsewhere_than_on_a_terminal_a_line_names_the_work(timer, said, monkeypatch, capsys):
    monkeypatch.setattr(bars.threading, "Timer", timer)
    with bars.preparation_bars("looking", line=True):
        pass
    assert capsys.readouterr() == ("", said)
