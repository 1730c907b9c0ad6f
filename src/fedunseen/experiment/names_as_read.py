"""Names of classes as a text encoder reads them: words that it does not know, and names that it
takes for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import part_of
from fedunseen.core.text import shown
from fedunseen.data.class_table import describe
from fedunseen.encoders.hub import local_files_only

MADE_UP = (
    "bodok", "cuvim", "dazeg", "fipol", "gokus", "hujan", "jibet", "kewip",
    "lozuk", "mavur", "nupeb", "pigor", "rofud", "sebik", "tovaz", "vuned",
    "bhqzt", "cvkplw", "dwrgxn", "fjtyqk", "ghzvbd", "hxlcpm", "kqwnrt", "lmdgsv",
    "mzpxkr", "njbwfh", "pqrtvl", "rkxdzc", "sgvhqm", "tnwlbj", "vzfkgp", "wdcrxs",
)  # fmt: skip
"""Words of no language, half of them pronounceable: what a text encoder makes of a word that it
does not know."""
_MOST_NAMES = 500  # whose pairs are looked at
ROUNDING = 1e-3  # of a text encoder, by the sentences that it reads at once
_AS_STRANGE = 0.25  # share of made-up words that may be less strange than a name


def strange_names(
    names: Sequence[str], settings: Any, rows: NDArray[np.float64] | None = None
) -> list[str]:
    """Return the names that look like made-up words to a text encoder, or have letters that
    English does not.

    Args:
        names: of classes.
        settings: with ``text_encoder`` and ``prompt``.
        rows: (C, a) what the text encoder made of the names, where it has read them.
    """
    encoder = getattr(settings, "text_encoder", None)
    if encoder is None or not names:
        return []
    center, limit = _made_up(encoder, settings.prompt)
    rows = embedded(list(names), encoder, settings.prompt) if rows is None else rows
    likeness = unit(rows) @ center
    return [
        name
        for name, value in zip(names, likeness, strict=True)
        if value >= limit or not name.isascii()
    ]


def strange_words(names: Sequence[str], strange: Sequence[str]) -> str:
    """Say how many of the names :func:`strange_names` has found."""
    verb = "say" if len(strange) > 1 else "says"
    return (
        f"{part_of(len(strange), len(names), 'class names')} {verb} little to the text encoder, "
        f"such as {shown(strange[0])}"
    )


@lru_cache(maxsize=4)
def _made_up(encoder: str, prompt: str) -> tuple[NDArray[np.float64], float]:
    """Return the direction of made-up words, and how far along it a strange name lies."""
    rows = unit(embedded(list(MADE_UP), encoder, prompt))
    others = unit((rows.sum(0) - rows) / (len(rows) - 1))
    return unit(rows.mean(0)[None])[0], float(np.quantile((rows * others).sum(1), _AS_STRANGE))


def embedded(names: list[str], encoder: str, prompt: str) -> NDArray[np.float64]:
    """Return what a text encoder makes of names (n, a)."""
    with local_files_only():
        return np.asarray(describe(names, encoder, prompt)[0], dtype=np.float64)


def unit(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return rows at unit length."""
    rows = np.asarray(rows, dtype=np.float64)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


def alike_names(names: Sequence[str], settings: Any) -> list[tuple[str, str]]:
    """Return pairs of names that a text encoder takes for one: as much alike as a name and its
    plural.
    """
    if len(names) < 2 or len(names) > _MOST_NAMES:
        return []
    rows = unit(embedded(list(names), settings.text_encoder, settings.prompt))
    plurals = plurals_likeness(names, settings)
    limit = np.minimum(plurals, np.median(plurals)) - ROUNDING
    alike = np.triu(rows @ rows.T >= np.minimum(limit[:, None], limit), 1)
    return [(names[a], names[b]) for a, b in np.argwhere(alike).tolist()]


def plurals_likeness(names: Sequence[str], settings: Any) -> NDArray[np.float64]:
    """Return how much each name is like its own plural, to the text encoder."""
    plurals = [f"{name.strip()}s" for name in names]
    ones, more = (
        unit(embedded(list(words), settings.text_encoder, settings.prompt))
        for words in (names, plurals)
    )
    return np.asarray((ones * more).sum(1))
