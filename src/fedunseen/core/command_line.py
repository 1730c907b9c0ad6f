"""The command that the user typed, which the manifest of a run records."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_TYPED: ContextVar[tuple[str, ...] | None] = ContextVar("typed", default=None)
_SECRET = re.compile(r".*?(token|passw|secret|api.?key)[^=]*", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")  # a name and password inside an address
HIDDEN = "..."
"""What stands for a secret."""


@contextmanager
def typed(words: Sequence[str]) -> Iterator[None]:
    """Let runs within the context record these words as their command."""
    before = _TYPED.set(tuple(words))
    try:
        yield
    finally:
        _TYPED.reset(before)


def command_line() -> list[str] | None:
    """Return the command that the user typed, without secrets; None where Python called."""
    words = _TYPED.get()
    return None if words is None else without_secrets(words)


def without_secrets(words: Sequence[str]) -> list[str]:
    """Return a command without the values of options and settings that are named after a secret.

    The name of a file that holds a secret stays.

    Example:
        >>> without_secrets(["join", "--token", "abc", "--token-file", "f", "--set", "a.api_key=x"])
        ['join', '--token', '...', '--token-file', 'f', '--set', 'a.api_key=...']
    """
    kept: list[str] = []
    hidden = False  # the last word was an option whose value is a secret
    for word in words:
        match = _SECRET.match(word)
        name = match[0] if match and not match[0].endswith("-file") else ""
        follows = bool(name) and name == word and word.startswith("--") and not hidden
        if hidden:
            word = HIDDEN
        elif name and name != word:
            word = f"{name}={HIDDEN}"
        kept.append(_LOGIN.sub(f"{HIDDEN}@", word))
        hidden = follows
    return kept
