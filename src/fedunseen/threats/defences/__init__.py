"""Defences of the server: rules that say what of a round's replies is merged, one room for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedunseen.core.lazy import lazily

if TYPE_CHECKING:
    from fedunseen.threats.defences.base import Defence, DefenceSettings, Robust, Scores

__all__ = ["DEFENCES", "Defence", "DefenceSettings", "Robust", "Scores"]

DEFENCES = {
    "none": "fedunseen.threats.defences.base:Defence",
    "norm-clip": "fedunseen.threats.defences.clipping:NormClip",
    "clip-noise": "fedunseen.threats.defences.clipping:ClipNoise",
    "median": "fedunseen.threats.defences.coordinates:Median",
    "trimmed-mean": "fedunseen.threats.defences.coordinates:TrimmedMean",
    "robust-learning-rate": "fedunseen.threats.defences.coordinates:RobustLearningRate",
    "krum": "fedunseen.threats.defences.distances:Krum",
    "multi-krum": "fedunseen.threats.defences.distances:MultiKrum",
    "bulyan": "fedunseen.threats.defences.distances:Bulyan",
    "flame": "fedunseen.threats.defences.distances:Flame",
    "class-probes": "fedunseen.threats.defences.class_probes:ClassProbes",
}
"""Name -> where the class is. Other packages add theirs through the entry-point group ``fedunseen.defences``."""

_BASE = ("Defence", "DefenceSettings", "Robust", "Scores")
__getattr__, __dir__ = lazily(__name__, {name: f"fedunseen.threats.defences.base:{name}" for name in _BASE})
