"""Accuracies per class, calibrated stacking, means over seeds."""

from fedunseen.evaluation.zero_shot import Answers, Metrics, answer, best_factor, harmonic_mean, metrics

__all__ = ["Answers", "Metrics", "answer", "best_factor", "harmonic_mean", "metrics"]
