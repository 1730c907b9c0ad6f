"""What a model answers on test samples and episodes; the theorems of DistZSL, measured. Numbers: fedunseen.metrics."""

from fedunseen.evaluation.zero_shot import answer

__all__ = ["answer"]
