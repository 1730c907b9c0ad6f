"""How far a run is: a bar or a table of parties on a terminal, elsewhere a line every so often."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fedunseen.cli.bars import bars, showing
from fedunseen.cli.console import say
from fedunseen.cli.logs import is_json, logged
from fedunseen.federation.callbacks import Progress, scalars
from fedunseen.federation.engine import PartyStatus

EVERY = 20.0  # seconds between two lines


@contextmanager
def live_progress(clock: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """Yield a callback that shows every round on standard error."""
    if is_json():
        log = logging.getLogger("fedunseen.federation")

        def write(stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
            if line is not None:
                words = f"{stage}: round {round} of {rounds}  {state(line)}"
                log.info(words, extra={"fields": numbers(stage, line)})

        with logged():
            yield write
        return
    if not sys.stderr.isatty():
        last = clock()

        def each_round(stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
            nonlocal last
            if line is not None and clock() - last >= EVERY:
                last = clock()
                say(f"{stage}: round {round} of {rounds}  {state(line)}")

        yield each_round
        return
    with bars("{task.fields[state]}", doing="preparing") as advance, showing(advance):
        yield lambda stage, round, rounds, line: advance(stage, round, rounds, state(line))


def numbers(stage: str, line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a round's numbers for a log that machines read."""
    return {"stage": stage, "round": line["round"], "numbers": scalars(line)}


def state(line: Mapping[str, Any] | None) -> str:
    """Say a round's numbers in few words."""
    if line is None:
        return ""
    loss = line["losses"].get("loss")
    words = [] if loss is None else [f"loss {loss:.3f}"]
    for name, short in (
        ("few_shot", "few-shot"),
        ("zsl", "ZSL"),
        ("gzsl_harmonic", "H"),
        ("backdoor", "backdoor"),
    ):
        if name in line:
            words.append(f"{short} {line[name]:.1f}")
    if "privacy" in line:
        words.append(f"epsilon {line['privacy']['epsilon']:.2f}")
    out = len({*line.get("dropped", {}), *line.get("defence", {}).get("dropped", {})})
    return "  ".join([*words, f"{out} left out"] if out else words)


_log = logging.getLogger("fedunseen.federation")


@contextmanager
def client_table(parties: Sequence[PartyStatus]) -> Iterator[Progress]:
    """Yield a progress callback: a live table of the parties on a terminal, one line for each round
    elsewhere.
    """
    if is_json() or not sys.stderr.isatty():
        yield round_log(parties)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    title = "waiting for parties"

    def drawn() -> Table:
        table = Table(title=title, title_justify="left")
        for column in ("party", "", "classes", "samples", "rounds", "last took"):
            table.add_column(column, justify="left" if column in ("party", "") else "right")
        for party in parties:
            where = "refused" if party.refused else "connected" if party.connected else "not there"
            held = [str(party.classes), str(party.samples)] if party.samples else ["", ""]
            took = f"{party.seconds:.1f} s" if party.rounds else ""
            table.add_row(party.name, where, *held, str(party.rounds or ""), took)
        return table

    def on_round(stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        nonlocal title
        title = f"round {round} of {rounds}   {state(line)}"

    with Live(get_renderable=drawn, console=Console(stderr=True), refresh_per_second=2):
        yield on_round


def round_log(parties: Sequence[PartyStatus]) -> Progress:
    """Return a progress callback that logs what a round has measured, and which parties' updates it
    lacks.
    """

    def say_round(stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        if line is None:
            return
        merged = set(line["participants"])
        missing = [party.name for client, party in enumerate(parties) if client not in merged]
        who = f"from {len(merged)} of {len(parties)} parties"
        who += f", without {', '.join(missing)}" if missing else ""
        words = "  ".join(filter(None, (state(line), who)))
        fields = {"event": "round", **numbers(stage, line), "missing": missing}
        _log.info("round %d of %d: %s", round, rounds, words, extra={"fields": fields})

    return say_round
