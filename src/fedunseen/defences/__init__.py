"""Defences: rules of the server for which replies are merged, and screening of samples at the clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedunseen.core.registry import lazily

if TYPE_CHECKING:
    from fedunseen.defences.base import Defence, DefenceSettings, Robust, Scores

__all__ = ["DEFENCES", "SCREENINGS", "Defence", "DefenceSettings", "Robust", "Scores"]

DEFENCES = {
    "none": "fedunseen.defences.base:Defence",
    "norm-clip": "fedunseen.defences.rules:NormClip",
    "clip-noise": "fedunseen.defences.rules:ClipNoise",
    "median": "fedunseen.defences.rules:Median",
    "trimmed-mean": "fedunseen.defences.rules:TrimmedMean",
    "robust-learning-rate": "fedunseen.defences.rules:RobustLearningRate",
    "krum": "fedunseen.defences.rules:Krum",
    "multi-krum": "fedunseen.defences.rules:MultiKrum",
    "bulyan": "fedunseen.defences.rules:Bulyan",
    "flame": "fedunseen.defences.rules:Flame",
    "class-probes": "fedunseen.defences.class_probes:ClassProbes",
}
"""Name -> where the class is. Other packages add theirs through the entry-point group ``fedunseen.defences``."""

SCREENINGS = {"none": "fedunseen.core.settings:Nothing", "magnitude": "fedunseen.defences.screening:Magnitude"}
"""What a client does about bad samples: name -> class. Entry-point group ``fedunseen.screenings``."""

_BASE = ("Defence", "DefenceSettings", "Robust", "Scores")
__getattr__, __dir__ = lazily(__name__, {name: f"fedunseen.defences.base:{name}" for name in _BASE})
