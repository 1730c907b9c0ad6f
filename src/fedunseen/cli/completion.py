"""What a shell completes after ``fedunseen``: presets and keys of settings, without loading any library of models."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from textwrap import shorten

__all__ = ["presets", "settings"]

_WORDS = 60  # characters that explain a name: a longer line is broken in two, and shells take the rest for a name


def _texts() -> dict[str, str]:
    """Return the presets' texts by name; read as files, because a shell waits for the answer."""
    folder = (files("fedunseen") / "experiment" / "presets").iterdir()
    return {one.name.removesuffix(".toml"): one.read_text("utf-8") for one in folder if one.name.endswith(".toml")}


def presets(incomplete: str) -> list[tuple[str, str]]:
    """Return the presets whose names begin so, and what they are; where there are none, shells complete files."""
    known = _texts().items()
    return sorted(
        (name, shorten(text.splitlines()[0].lstrip("# "), _WORDS, placeholder=" ..."))
        for name, text in known
        if name.startswith(incomplete)
    )


def settings(incomplete: str) -> list[str]:
    """Return the keys that presets set and that begin so; ``fedunseen settings`` lists all."""
    found = set()
    for text in _texts().values():
        for section, content in tomllib.loads(text).items():
            if isinstance(content, dict):
                found |= {f"{section}.{key}=" for key in content}
    return sorted(key for key in found if key.startswith(incomplete))
