"""``fedunseen history`` and ``rollback``: what a run has been through, and its return to an earlier
round.
"""

from typing import Annotated

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import print_json, say
from fedunseen.core.text import shown


def history(run: opt.RunPath, as_json: opt.Json = False) -> None:
    """List a run's rounds, which of them are kept, its parties, and every return with its
    reason.
    """
    from fedunseen.deploy.rollback import history as history_of

    past = history_of(run)
    if as_json:
        return print_json(True, past)
    for entry in past["rounds"]:
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in entry["numbers"].items())
        mark = "*" if entry["kept"] else " "
        print(shown(f"{entry['round']:>5}{mark} {len(entry['participants'])} parties  {numbers}"))
    say("* kept: `fedunseen rollback` can return to it")
    for entry in past["rosters"]:
        say(f"from round {entry['round']}: {', '.join(entry['parties'])} (list {entry['serial']})")
    for entry in past["events"]:
        what = f"{entry['event']} from round {entry['from']} to {entry['round']}"
        say(f"{entry['time']}: {what}: {entry['reason']}")


def rollback(
    run: opt.RunPath,
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
