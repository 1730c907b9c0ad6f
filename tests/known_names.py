"""What several tests name: the end of a refusal of an unknown name, and a few-shot experiment of seconds."""

import difflib
from collections.abc import Iterable
from pathlib import Path

DIGITS_MAML = str(Path(__file__).with_name("digits-maml.toml"))


def known(names: Iterable[str], wrong: str) -> str:
    """Return it: all names there are, or of more than twelve the three nearest to the wrong one."""
    if len(every := sorted(names)) <= 12:
        return f"(known: {', '.join(every)})"
    return f"(the nearest: {', '.join(difflib.get_close_matches(wrong, every, 3, 0.0))})"
