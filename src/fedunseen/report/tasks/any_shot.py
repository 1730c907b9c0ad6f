"""The page of an any-shot run: that of a zero-shot run, and what examples add."""

from __future__ import annotations

from fedunseen.report.classes import CLASSES
from fedunseen.report.shots import PROTOTYPES, SHOTS
from fedunseen.report.tasks import zero_shot

__all__ = ["SECTIONS"]

_place = zero_shot.SECTIONS.index(CLASSES)

SECTIONS = (*zero_shot.SECTIONS[:_place], SHOTS, CLASSES, PROTOTYPES, *zero_shot.SECTIONS[_place + 1 :])
"""From top to bottom."""
