"""What clients have screened: counts in the lines of metrics, and in the result."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from fedunseen.core.parameters import Params
from fedunseen.federation.federation import Federation, Monitor
from fedunseen.federation.server_step import RoundResult
from fedunseen.safety.defences.screening import COUNTS
from fedunseen.strategies import Reply


class ScreeningMonitor(Monitor):
    """Adds up how many samples the clients have left out."""

    def line(
        self,
        federation: Federation,
        round: int,
        result: RoundResult,
        models: Sequence[Params],
        offset: float,
    ) -> dict[str, Any]:
        """Return the counts of a round, in all and of each client."""
        noted = [reply for reply in result.replies if "threshold" in reply.notes]
        return {"screening": _counted(round, noted)} if noted else {}

    def result(
        self, federation: Federation, lines: Sequence[Mapping[str, Any]], selected: int
    ) -> dict[str, Any]:
        """Return the counts of all rounds."""
        screened = [line["screening"] for line in lines if "screening" in line]
        if not screened:
            return {}
        return {"screened": {name: sum(counts[name] for counts in screened) for name in COUNTS}}


def _counted(round: int, noted: Sequence[Reply]) -> dict[str, Any]:
    """Add up what the clients have screened, and warn of those that have nothing left."""
    line: dict[str, Any] = {name: int(sum(reply.notes[name] for reply in noted)) for name in COUNTS}
    line["clients"] = [
        {
            "client": reply.client,
            **{name: int(reply.notes[name]) for name in COUNTS},
            "threshold": reply.notes["threshold"],
        }
        for reply in noted
    ]
    kinds = ("clean", "poisoned")
    empty = [
        client["client"]
        for client in line["clients"]
        if sum(client[f"{kind}_dropped"] for kind in kinds) == sum(client[kind] for kind in kinds)
    ]
    if empty:
        line["empty"] = empty
        who = "every client"
        then = "the model stays as it was"
        if len(empty) < len(noted):
            who = f"client {empty[0]}" + (f" and {len(empty) - 1} others" if empty[1:] else "")
            then = "nothing is learned from it"
        warnings.warn(
            f"round {round + 1}: every sample of {who} was below the threshold of [screening]: "
            f"{then}",
            stacklevel=4,
        )
    return line
