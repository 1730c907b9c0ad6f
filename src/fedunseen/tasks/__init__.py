"""Tasks: which samples clients hold, what a round is judged by, what a run reports, and how it predicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedunseen.core.registry import lazily

if TYPE_CHECKING:
    from fedunseen.evaluation.settings import EvaluationSettings
    from fedunseen.federation.evaluator import Evaluator
    from fedunseen.tasks.base import Learnt, Prediction, Predictor, Question, Task, Trained, shares

__all__ = [
    "TASKS", "EvaluationSettings", "Evaluator", "Learnt", "Prediction", "Predictor", "Question", "Task", "Trained",
    "shares",
]  # fmt: skip

TASKS = {
    "zero-shot": "fedunseen.tasks.zero_shot:ZeroShot",
    "few-shot": "fedunseen.tasks.few_shot:FewShot",
    "any-shot": "fedunseen.tasks.any_shot:AnyShot",
}

_BASE = ("Learnt", "Prediction", "Predictor", "Question", "Task", "Trained", "shares")
_HOMES = {
    "EvaluationSettings": "fedunseen.evaluation.settings:EvaluationSettings",
    "Evaluator": "fedunseen.federation.evaluator:Evaluator",
    **{name: f"fedunseen.tasks.base:{name}" for name in _BASE},
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
