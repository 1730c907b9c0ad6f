"""``fedunseen history`` and ``rollback``: what a run has been through, and its return to an earlier
round.
"""

from pathlib import Path
from typing import Annotated

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import print_json, say

Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]


def history(run: Folder, as_json: opt.Json = False) -> None:
    """List a run's rounds, which of them are kept, its parties, and every return with its
    reason.
    """
    from fedunseen.deploy.rollback import history as history_of

    found = history_of(run)
    if as_json:
        return print_json(True, found)
    for one in found["rounds"]:
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in one["numbers"].items())
        mark = "*" if one["kept"] else " "
        print(f"{one['round']:>5}{mark} {len(one['participants'])} parties  {numbers}")
    say("* kept: `fedunseen rollback` can return to it")
    for one in found["rosters"]:
        say(f"from round {one['round']}: {', '.join(one['parties'])} (list {one['serial']})")
    for one in found["events"]:
        what = f"{one['event']} from round {one['from']} to {one['round']}"
        say(f"{one['time']}: {what}: {one['reason']}")


def rollback(
    run: Folder,
    round: Annotated[int, typer.Option(min=1, help="The round, counted from 1.")],
    reason: Annotated[str, typer.Option(help="Why: it enters the audit trail of the run.")],
) -> None:
    """Return a run to the state after an earlier round, to be continued from there."""
    from fedunseen.deploy.rollback import rollback as go_back

    event = go_back(run, round, reason)
    say(
        f"{run}: back from round {event['from']} to {round}",
        "next:   the command that began it with --resume, from that round on; with --set "
        f"strategy.rounds={round} it ends there",
    )
