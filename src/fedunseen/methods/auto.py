"""What to start with when nothing is known of the data: the closed form, and a word if training would do better."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedunseen.methods.closed_form.gaussian import Gaussian, GaussianSettings

__all__ = ["Auto", "AutoSettings"]


class AutoSettings(GaussianSettings):
    """Settings of the automatic choice: those of Gaussian classes, and what is tried beside them."""

    name: Literal["auto"] = "auto"  # type: ignore[assignment]
    rivals: tuple[str, ...] = ("fedzsl",)
    """Trained methods that are tried on validation classes too, where there are some. The run is of Gaussian classes
    all the same; it says so if a rival did better."""
    rival_rounds: int = Field(10, ge=1)
    """Rounds of each rival."""


class Auto(Gaussian):
    """Gaussian classes; on validation classes, trained methods stand beside them."""

    Settings = AutoSettings
