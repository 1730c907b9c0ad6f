"""What a model answers on test samples and episodes; the theorems of DistZSL, measured. Numbers: fedunseen.metrics."""

from fedunseen.evaluation.answers import answer

__all__ = ["answer"]
