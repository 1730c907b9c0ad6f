"""Threats: what the curious can find out, what the malicious can do, and what helps against them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedunseen.core.lazy import lazily

if TYPE_CHECKING:
    from fedunseen.threats.inversion import DLG, Cosine, Inversion
    from fedunseen.threats.leakage import Subject, measure_classifier, measure_method

__all__ = ["ATTACKS", "DLG", "SCREENINGS", "Cosine", "Inversion", "Subject", "measure_classifier", "measure_method"]

ATTACKS = {
    "none": "fedunseen.threats.attacks:NoAttack",
    "backdoor": "fedunseen.threats.backdoor:Backdoor",
    "label-flip": "fedunseen.threats.attacks:LabelFlip",
    "sign-flip": "fedunseen.threats.attacks:SignFlip",
    "gaussian": "fedunseen.threats.attacks:Gaussian",
    "nan": "fedunseen.threats.attacks:NaN",
}
"""Name -> where the class is. Other packages add theirs through the entry-point group ``fedunseen.attacks``."""

SCREENINGS = {"none": "fedunseen.threats.screening:NoScreening", "magnitude": "fedunseen.threats.screening:Magnitude"}
"""What a client does about bad samples: name -> class. Entry-point group ``fedunseen.screenings``."""

_HOMES = {"inversion": ("DLG", "Cosine", "Inversion"), "leakage": ("Subject", "measure_classifier", "measure_method")}
__getattr__, __dir__ = lazily(
    __name__, {name: f"fedunseen.threats.{home}:{name}" for home, inside in _HOMES.items() for name in inside}
)
