"""What a model answers on test samples and episodes; the theorems of DistZSL, measured. Numbers: fedunseen.metrics."""

from fedunseen.evaluation.zero_shot import answer
from fedunseen.metrics import Answers, Metrics, best_factor, harmonic_mean
from fedunseen.metrics import accuracies as metrics

__all__ = ["Answers", "Metrics", "answer", "best_factor", "harmonic_mean", "metrics"]
