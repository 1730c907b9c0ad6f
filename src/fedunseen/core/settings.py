"""The base of every section's settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["NamedSettings", "Settings"]


class Settings(BaseModel):
    """Settings are checked when they are read, refuse unknown keys and never change.

    The docstring below a field is what ``fedunseen settings`` says of it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class NamedSettings(Settings):
    """Settings of a section whose ``name`` chooses among classes."""

    name: str
