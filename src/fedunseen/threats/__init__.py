"""Threats: what somebody who follows the federation to the letter, but is curious, can find out."""

from fedunseen.threats.inversion import DLG, Attack, Cosine
from fedunseen.threats.leakage import Subject, measure_classifier, measure_method

__all__ = ["DLG", "Attack", "Cosine", "Subject", "measure_classifier", "measure_method"]
