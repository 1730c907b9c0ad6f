"""What a coordinator shows: who is there, who holds how much, who took how long, and how the run goes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table

from fedunseen.cli.logs import is_json
from fedunseen.cli.progress import numbers, state
from fedunseen.engines.remote.coordinator import PartyStatus
from fedunseen.experiment import Progress

_log = logging.getLogger("fedunseen.federation")


class ClientTable:
    """A table of the parties, drawn again from what is known of them whenever it is shown."""

    def __init__(self, parties: Sequence[PartyStatus]) -> None:
        self.parties, self.title = parties, "waiting for parties"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(title=self.title, title_justify="left")
        for column in ("party", "", "classes", "samples", "rounds", "last took"):
            table.add_column(column, justify="left" if column in ("party", "") else "right")
        for party in self.parties:
            where = "refused" if party.refused else "connected" if party.connected else "not there"
            held = [str(party.classes), str(party.samples)] if party.samples else ["", ""]
            took = f"{party.seconds:.1f} s" if party.rounds else ""
            table.add_row(party.name, where, *held, str(party.rounds or ""), took)
        yield table


@contextmanager
def client_table(parties: Sequence[PartyStatus]) -> Iterator[Progress]:
    """Yield a progress callback: a live table on a terminal, one line for each round elsewhere."""
    if is_json() or not sys.stderr.isatty():
        yield _say_round
        return
    shown = ClientTable(parties)

    def on_round(stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        shown.title = f"round {round} of {rounds}   {state(line)}"

    with Live(shown, console=Console(stderr=True), refresh_per_second=2):
        yield on_round


def _say_round(stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
    if line is not None:
        _log.info("round %d of %d: %s", round, rounds, state(line).strip(), extra={"fields": numbers(stage, line)})
