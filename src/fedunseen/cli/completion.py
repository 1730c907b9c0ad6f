"""What a shell completes after ``fedunseen``: presets, sweeps and keys of settings, without any library of models."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from textwrap import shorten

_WORDS = 60  # characters that explain a name: a longer line is broken in two, and shells take the rest for a name


def _texts(folder: str) -> dict[str, str]:
    """Return a folder's experiment files by name; read as files, because a shell waits for the answer."""
    keys = files("fedunseen").joinpath(folder).iterdir()
    return {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in keys if file.name.endswith(".toml")}


def _named(folder: str, incomplete: str) -> list[tuple[str, str]]:
    return sorted(
        (name, shorten(text.splitlines()[0].lstrip("# "), _WORDS, placeholder=" ..."))
        for name, text in _texts(folder).items()
        if name.startswith(incomplete)
    )


def presets(incomplete: str) -> list[tuple[str, str]]:
    """Return the presets whose names begin so, and what they are; where there are none, shells complete files."""
    return _named("experiment/presets", incomplete)


def sweeps(incomplete: str) -> list[tuple[str, str]]:
    """Return the shipped sweeps whose names begin so, and what they are."""
    return _named("sweeps", incomplete)


def settings(incomplete: str) -> list[str]:
    """Return the keys that presets set and that begin so; ``fedunseen settings`` lists all."""
    keys = set()
    for text in _texts("experiment/presets").values():
        for section, content in tomllib.loads(text).items():
            if isinstance(content, dict):
                keys |= {f"{section}.{key}=" for key in content}
    return sorted(key for key in keys if key.startswith(incomplete))
