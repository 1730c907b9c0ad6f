"""The end of a refusal of an unknown name, so that no test has to be told of a new method or benchmark."""

import difflib
from collections.abc import Iterable


def known(names: Iterable[str], wrong: str) -> str:
    """Return it: all names there are, or of more than twelve the three nearest to the wrong one."""
    if len(every := sorted(names)) <= 12:
        return f"(known: {', '.join(every)})"
    return f"(the nearest: {', '.join(difflib.get_close_matches(wrong, every, 3, 0.0))})"
