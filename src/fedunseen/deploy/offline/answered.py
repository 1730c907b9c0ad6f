"""What a party's keys have answered by file, whatever ``--state`` it was answered from.

Masks of answers by file follow from the keys and the plan's file. So two answers to one file, from
two folders that do not know of each other, could be subtracted. A note beside the keys prevents it.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fedunseen.core.errors import RefusedError
from fedunseen.core.files import parse_json, write_json

ANSWERED = "answered.json"
"""In a party's credentials folder: what identifies a plan's round, or a look -> what was given."""
TWICE = "answered-elsewhere"
WITHDRAWN = "withdrawn"


def keep_one(kit: Path | None, plans: Sequence[str], given: str, state: Path) -> None:
    """Note what is given to plans, before it is.

    Args:
        kit: the party's credentials folder; a folder that is only read keeps no note.
        plans: what identifies each.
        given: the SHA-256 of the answer, or :data:`WITHDRAWN`.
        state: the ``--state`` folder that it is given from.

    Raises:
        RefusedError: something else was given from another folder (code ``answered-elsewhere``).
    """
    if kit is None:
        return
    path = kit / ANSWERED
    here = str(state.resolve())
    try:
        noted = dict(parse_json(path.read_bytes())) if path.exists() else {}
        before = [noted[plan] for plan in plans if plan in noted]
        places = [str(other["state"]) for other in before if other["given"] != given]
    except (OSError, ValueError, TypeError, KeyError):
        raise RefusedError(
            f"{path} is damaged, and says which plans these keys have answered: restore it, or ask "
            "the authority for new keys",
            TWICE,
        ) from None
    if set(places) - {here}:  # one folder knows itself what has left
        raise RefusedError(
            f"this party has given something else to the plan from {places[0]}, and their "
            "difference could reveal samples: name that folder with --state, or ask for a new plan",
            TWICE,
        )
    new = places or [plan for plan in plans if plan not in noted]
    if new:
        more = {plan: {"given": given, "state": here} for plan in plans}
        with suppress(OSError):
            write_json(path, {**noted, **more}, private=True)
