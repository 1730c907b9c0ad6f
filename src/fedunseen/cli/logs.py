"""Write every line on standard error, as text or as JSON: time, level, message, an error's code, a
round's numbers.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedunseen.core.log_files import LogFile
from fedunseen.core.text import shown

Listener = Callable[[str, str], None]
"""Receives a line: its level and its message."""


class Format(StrEnum):
    """How lines on standard error are written."""

    text = "text"
    json = "json"


LogFormat = Annotated[
    Format,
    typer.Option(
        help="How lines on standard error are written: json has date, zone and level in each."
    ),
]

_LEVELS = ("error", "warning")  # what a line of that level begins with; all others are info
_format = Format.text
_listeners: list[Listener] = []


def speak(format: Format) -> None:
    """Set how all further lines are written."""
    global _format
    _format = format


def is_json() -> bool:
    """Say whether lines are written for machines."""
    return _format is Format.json


def emit(line: str, code: str = "") -> None:
    """Write a line to standard error, at the level that its first word names, with an error's
    code.
    """
    level, colon, rest = line.partition(": ")
    level, message = (level, rest) if colon and level in _LEVELS else ("info", line)
    for listener in _listeners:
        listener(level, message)
    if is_json():
        line = _line(datetime.now(), level, message, {"code": code} if code else None)
    elif code:
        line = f"{line} [{code}]"
    print(shown(line), file=sys.stderr, flush=True)


@contextmanager
def subscribed(listener: Listener) -> Iterator[None]:
    """Call ``listener`` with every line that :func:`emit` writes."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def logged(
    folder: Path | None = None,
    *further_handlers: logging.Handler,
    name: str = "fedunseen.federation",
    least: int = logging.INFO,
) -> Iterator[None]:
    """Write what a logger receives to standard error, to ``federation.log`` in a folder, and to
    listeners.
    """
    log = logging.getLogger(name)
    shown = logging.StreamHandler(sys.stderr)
    run = "" if folder is None else folder.parent.name
    shown.setFormatter(
        _Machines(run) if is_json() else logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
    )
    handlers: list[logging.Handler] = [shown, *further_handlers]
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        kept = LogFile(folder / "federation.log", name)
        kept.setFormatter(_Machines(run) if is_json() else _Dated())
        handlers.append(kept)
    before = log.level
    log.setLevel(least)
    for handler in handlers:
        log.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()
        log.setLevel(before)


class _Machines(logging.Formatter):
    """A line of JSON; a record may bring further ``fields``. ``run``: the folder of the run or of
    the party.
    """

    def __init__(self, run: str = "") -> None:
        super().__init__()
        self.run = {"run": run} if run else {}

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created)
        fields = {**self.run, **getattr(record, "fields", {})}
        return _line(moment, record.levelname.lower(), record.getMessage(), fields)


class _Dated(logging.Formatter):
    """A line of text that still says when it was written once it is a week old."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="seconds")
        return f"{when} {record.levelname:<7} {record.getMessage()}"


def _line(
    moment: datetime, level: str, message: str, fields: Mapping[str, Any] | None = None
) -> str:
    when = moment.astimezone().isoformat(timespec="milliseconds")
    return json.dumps(
        {"time": when, "level": level, "message": message, **(fields or {})}, ensure_ascii=False
    )
