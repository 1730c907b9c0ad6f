"""What a task is: everything about a run that depends on what its model is for.

A method names its task (``Method.task``). The road of a run asks the task, never the method, so that a new task is one
file and one line in ``tasks/__init__.py``, or an entry point ``fedunseen.tasks`` of another package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.parameters import Params
from fedunseen.data import Benchmark, ClassSpace
from fedunseen.federation.evaluator import Evaluator
from fedunseen.federation.partition import Partition
from fedunseen.methods import Method

if TYPE_CHECKING:
    from fedunseen.experiment.result.run import Run


class Prediction(NamedTuple):
    """One class of a ranking: its name and its score (the method's own units; seen classes less the calibration)."""

    name: str
    score: float


def shares(ranking: Sequence[Prediction]) -> list[float]:
    """Return the softmax of a ranking's scores: how the classes that compete share 100 %, not how often it is right."""
    return list(softmax(np.array([one.score for one in ranking])).tolist())


def softmax(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Return the softmax of finite scores (..., C)."""
    if not np.isfinite(scores).all():
        raise DataError("the model's scores of a sample are not finite: its numbers are too large")
    odds = np.exp(scores.astype(np.float64) - scores.max(-1, keepdims=True, initial=-np.inf))
    return np.asarray(odds / odds.sum(-1, keepdims=True))


Inputs = NDArray[Any] | str | Path | Sequence[str | Path]
Classes = str | Path | Mapping[str, Sequence[float]]


@dataclass(frozen=True, eq=False)
class ClassSum:
    """All that learning a class asks of its samples, in place of these."""

    count: float
    total: Tensor


Examples = str | Path | Mapping[str, NDArray[Any] | Sequence[str | Path]]
Shown = Examples | Mapping[str, ClassSum]


@dataclass(frozen=True, eq=False)
class Question:
    """What a finished run is asked.

    Attributes:
        inputs: samples as the benchmark's raw ones, (n, d) features or (n, channels, height, width) maps or images; or
            paths of images or feature files.
        classes: classes to add, or to replace by name: a CSV file (name, attributes...) or ``{name: attributes}``.
        support: examples of classes: a folder with a folder for each class, or ``{name: examples}``.
        top: how many classes of each ranking, None for all.
        among: which classes are ranked: ``all``, ``unseen`` ones, or only the ``given`` ones.
    """

    inputs: Inputs
    classes: Classes | None = None
    support: Examples | None = None
    top: int | None = None
    among: str = "all"


@dataclass(frozen=True, eq=False)
class Learnt:
    """What a run knows once it has learned classes: the class space with them, and the model."""

    space: ClassSpace
    params: Params


def scaled(run: Run, samples: NDArray[Any]) -> Tensor:
    """Return samples (n, ...) as the model takes them: vectors are scaled."""
    return torch.from_numpy(run.scaler(samples) if samples.ndim == 2 else samples)


class Predictor(ABC):
    """Answers with the model of a finished run."""

    @classmethod
    @abstractmethod
    def predict(cls, run: Run, question: Question) -> list[list[Prediction]]:
        """Rank classes for each input, best first.

        Raises:
            DataError: an input or a class is wrong.
            ExperimentError: the run's model cannot do this.
        """

    @classmethod
    def learn(cls, run: Run, classes: Classes | None, support: Shown | None) -> Learnt:
        """Add classes to a finished run for good, from descriptions, examples, or both.

        Raises:
            DataError: a class or an example is wrong.
            ExperimentError: the run's model cannot do this; by default none can.
        """
        raise ExperimentError(
            f"method.name = {run.method_name!r} cannot keep classes that it learns after training: give them with "
            "every call of predict"
        )


class Task:
    """What depends on what a model is for; a subclass is never instantiated.

    Attributes:
        name: what ``Method.task`` says.
        evaluator: measures the rounds of a run.
        predictor: answers with its model.
        also_averaged: patterns of other numbers of ``result.json`` that several seeds average.
        needs_descriptions: whether classes must have attributes.
        chooses_settings: whether ``evaluation.choose`` can be used.
        personalizes: whether clients' own models can be measured beside the merged one (``strategy.personal_epochs``).
        attackable: whether ``[attack]`` and ``[screening]`` can be used, which need a label for each sample.
    """

    name: ClassVar[str]
    evaluator: ClassVar[type[Evaluator]]
    predictor: ClassVar[type[Predictor]]
    also_averaged: ClassVar[tuple[str, ...]] = ()
    needs_descriptions: ClassVar[bool] = True
    chooses_settings: ClassVar[bool] = True
    attackable: ClassVar[bool] = True
    personalizes: ClassVar[bool] = False

    @classmethod
    def client_data(cls, benchmark: Benchmark) -> Benchmark:
        """Return the part of a benchmark that clients hold; by default all that is for training.

        Raises:
            DataError: nothing is left.
        """
        return benchmark

    @classmethod
    def eligible_clients(cls, partition: Partition, benchmark: Benchmark, method: Any) -> Partition:
        """Leave out the clients that cannot take part with the method's settings; by default no one.

        Raises:
            ExperimentError: no client is left.
        """
        return partition

    @classmethod
    def prepare(cls, method: Method, benchmark: Benchmark) -> None:
        """Tell the method what only the benchmark knows; by default nothing."""
        return None

    @classmethod
    def of_seeds(cls, results: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a run of several seeds reports beside each number's mean and deviation (``summary``)."""
        return {}

    @classmethod
    def headline(cls, result: Mapping[str, Any]) -> str:
        """Return a run's numbers as one line, with their deviations if there are several seeds."""
        return "   ".join(f"{name.replace('_', ' ')} {percent(result, name)}" for name in cls.evaluator.accuracies)


def percent(result: Mapping[str, Any], name: str) -> str:
    """Write one number of a result, with its deviation over several seeds."""
    spread = f" ± {result[f'{name}_sd']:.1f}" if f"{name}_sd" in result else ""
    return f"{result[name]:.1f}{spread} %"
