"""Names of a first look that may be one, in time that no plan and no answer can stretch."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from fedunseen.experiment.dataset_checks import alike_spellings

_COMPARED = 2_000
_CHARACTERS = 60  # to compare two names takes the square of their length


def alike(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return pairs of names that differ in little, among the first 2,000 of up to 60 characters.

    Example:
        >>> alike(["polar bear", "polar bears", "zebra"])
        [('polar bear', 'polar bears')]
    """
    short = (name for name in names if len(name) <= _CHARACTERS)
    return alike_spellings(islice(short, _COMPARED))
