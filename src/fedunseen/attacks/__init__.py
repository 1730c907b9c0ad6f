"""Attacks: backdoors and forged updates of malicious clients, and samples recovered from gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedunseen.core.registry import lazily

if TYPE_CHECKING:
    from fedunseen.attacks.inversion import DLG, Cosine, Inversion
    from fedunseen.attacks.leakage import Subject, measure_classifier, measure_method

__all__ = ["ATTACKS", "DLG", "Cosine", "Inversion", "Subject", "measure_classifier", "measure_method"]

ATTACKS = {
    "none": "fedunseen.attacks.base:NoAttack",
    "backdoor": "fedunseen.attacks.backdoor:Backdoor",
    "label-flip": "fedunseen.attacks.base:LabelFlip",
    "sign-flip": "fedunseen.attacks.base:SignFlip",
    "gaussian": "fedunseen.attacks.base:Gaussian",
    "nan": "fedunseen.attacks.base:NaN",
}
"""Name -> where the class is. Other packages add theirs through the entry-point group ``fedunseen.attacks``."""

_HOMES = {"inversion": ("DLG", "Cosine", "Inversion"), "leakage": ("Subject", "measure_classifier", "measure_method")}
__getattr__, __dir__ = lazily(
    __name__, {name: f"fedunseen.attacks.{home}:{name}" for home, inside in _HOMES.items() for name in inside}
)
