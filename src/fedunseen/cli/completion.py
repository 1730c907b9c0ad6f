"""What a shell completes after ``fedunseen``: presets, sweeps and keys of settings, without any library of models."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from textwrap import shorten

from fedunseen.core.presets import preset_names, preset_text, sweep_names, sweep_text

_WORDS = 60  # characters that explain a name: a longer line is broken in two, and shells take the rest for a name


def title(text: str) -> str:
    """Return the first line of an experiment file, which says what it is."""
    return text.splitlines()[0].lstrip("# ")


def _named(names: Sequence[str], text: Callable[[str], str], incomplete: str) -> list[tuple[str, str]]:
    fitting = [name for name in names if name.startswith(incomplete)]
    return [(name, shorten(title(text(name)), _WORDS, placeholder=" ...")) for name in fitting]


def presets(incomplete: str) -> list[tuple[str, str]]:
    """Return the presets whose names begin so, and what they are; where there are none, shells complete files."""
    return _named(preset_names(), preset_text, incomplete)


def sweeps(incomplete: str) -> list[tuple[str, str]]:
    """Return the shipped sweeps whose names begin so, and what they are."""
    return _named(sweep_names(), sweep_text, incomplete)


def settings(incomplete: str) -> list[str]:
    """Return the keys that presets set and that begin so; ``fedunseen settings`` lists all."""
    sections = [item for name in preset_names() for item in tomllib.loads(preset_text(name)).items()]
    keys = {f"{section}.{key}=" for section, content in sections if isinstance(content, dict) for key in content}
    return sorted(key for key in keys if key.startswith(incomplete))
