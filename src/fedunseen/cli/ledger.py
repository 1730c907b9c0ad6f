"""``fedunseen ledger``: what a party has ever sent, and how much privacy that has spent."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import filled, print_json, say
from fedunseen.core.errors import DataError


def ledger(
    state: Annotated[
        Path, typer.Argument(metavar="STATE", help="A party's --state folder, for example fedunseen-north.")
    ],
    as_json: opt.Json = False,
) -> None:
    """List what a party has sent: when, for which run, what kind, how many bytes; and the privacy that it spent."""
    from fedunseen.engines.remote.releases import Releases

    if not state.is_dir():
        raise DataError(f"the folder {state} is missing: name a party's --state folder")
    lines = Releases(state).lines
    found = summary(lines)
    if as_json:
        return print_json(True, {**found, "releases": lines})
    if lines:
        print(filled("ledger", {"lines": lines}))
    say(f"sent:   {found['messages']} messages, {found['bytes']:,} bytes, in {found['runs']} runs")
    for data, (epsilon, delta) in found["spent"].items():
        bound = "no bound" if epsilon is None else f"epsilon {epsilon:.3g}, delta {delta:.1e}"
        say(f"spent:  {bound}, on the data {data}")


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the totals of a history: ``messages``, ``bytes``, ``runs``, and ``spent``: data -> (epsilon, delta)."""
    sent = [line for line in lines if "bytes" in line]
    spent: dict[str, tuple[float | None, float]] = {}
    for line in lines:
        if line["kind"] == "budget":
            epsilon, delta = spent.get(line["data"], (0.0, 0.0))
            total = None if epsilon is None or line["epsilon"] is None else epsilon + line["epsilon"]
            spent[line["data"]] = (total, delta + line["delta"])
    total = math.fsum(line["bytes"] for line in sent)
    return {"messages": len(sent), "bytes": int(total), "runs": len({line["run"] for line in lines}), "spent": spent}
