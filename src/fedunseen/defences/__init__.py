"""Defences: rules of the server for which replies are merged, and screening of samples at the clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedunseen.core.registry import lazily

if TYPE_CHECKING:
    from fedunseen.defences.base import Defence, DefenceSettings, Robust, Scores

__all__ = ["DEFENCES", "SCREENINGS", "Defence", "DefenceSettings", "Robust", "Scores"]

DEFENCES = {
    "none": "fedunseen.defences.base:Defence",
    "norm-clip": "fedunseen.defences.clipping:NormClip",
    "clip-noise": "fedunseen.defences.clipping:ClipNoise",
    "median": "fedunseen.defences.coordinates:Median",
    "trimmed-mean": "fedunseen.defences.coordinates:TrimmedMean",
    "robust-learning-rate": "fedunseen.defences.coordinates:RobustLearningRate",
    "krum": "fedunseen.defences.distances:Krum",
    "multi-krum": "fedunseen.defences.distances:MultiKrum",
    "bulyan": "fedunseen.defences.distances:Bulyan",
    "flame": "fedunseen.defences.distances:Flame",
    "class-probes": "fedunseen.defences.class_probes:ClassProbes",
}
"""Name -> where the class is. Other packages add theirs through the entry-point group ``fedunseen.defences``."""

SCREENINGS = {"none": "fedunseen.defences.screening:NoScreening", "magnitude": "fedunseen.defences.screening:Magnitude"}
"""What a client does about bad samples: name -> class. Entry-point group ``fedunseen.screenings``."""

_BASE = ("Defence", "DefenceSettings", "Robust", "Scores")
__getattr__, __dir__ = lazily(__name__, {name: f"fedunseen.defences.base:{name}" for name in _BASE})
