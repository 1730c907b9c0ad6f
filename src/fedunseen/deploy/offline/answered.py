"""What a party's keys have answered by file, whatever ``--state`` it was answered from.

Masks of answers by file follow from the keys and the plan's file. So two answers to one file, from
two ledgers that do not know of each other, could be subtracted. A note beside the keys prevents it.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fedunseen.core.errors import RefusedError
from fedunseen.core.files import parse_json, write_json
from fedunseen.deploy.secagg.ledger import Ledger

ANSWERED = "answered.json"
"""In a party's credentials folder: what identifies a plan's round, or a look -> what was given."""
TWICE = "answered-elsewhere"
WITHDRAWN = "withdrawn"


def keep_one(
    kit: Path | None, plans: Sequence[str], given: str, state: Path, ledger: Ledger
) -> None:
    """Note what is given to plans, before it is.

    Args:
        kit: the party's credentials folder; a folder that is only read keeps no note.
        plans: what identifies each.
        given: the SHA-256 of the answer, or :data:`WITHDRAWN`.
        state: the ``--state`` folder that it is given from.
        ledger: in that folder; it knows itself what has left.

    Raises:
        RefusedError: something else was given, which this ledger does not know (code
            ``answered-elsewhere``).
    """
    if kit is None:
        return
    path = kit / ANSWERED
    try:
        noted = dict(parse_json(path.read_bytes())) if path.exists() else {}
        before = [noted[plan] for plan in plans if plan in noted]
        others = [other for other in before if other["given"] != given]
        unknown = [str(other["state"]) for other in others if other["ledger"] != ledger.identity]
    except (OSError, ValueError, TypeError, KeyError):
        raise RefusedError(
            f"{path} is damaged, and says which plans these keys have answered: restore it, or ask "
            "the authority for new keys",
            TWICE,
        ) from None
    if unknown:
        raise RefusedError(
            f"this party has given something else to the plan from {unknown[0]}, and their "
            "difference could reveal samples: name that folder with --state, as it was then, or "
            "ask for a new plan",
            TWICE,
        )
    if others or any(plan not in noted for plan in plans):
        note = {"given": given, "state": str(state.resolve()), "ledger": ledger.identity}
        more = dict.fromkeys(plans, note)
        with suppress(OSError):
            write_json(path, {**noted, **more}, private=True)
