"""What a task is: everything about a run that depends on what its model is for.

A method names its task (``Method.task``). The road of a run asks the task, never the method, so
that a new task is one file and one line in ``tasks/__init__.py``, or an entry point
``fedunseen.tasks`` of another package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from fedunseen.core.errors import ExperimentError
from fedunseen.data import Benchmark
from fedunseen.federation.evaluator import Evaluator
from fedunseen.federation.partition import Partition
from fedunseen.methods import Method
from fedunseen.model import Classes, ClassSum, Model, Prediction, Question
from fedunseen.model import Examples as ModelExamples

Inputs = NDArray[Any] | str | Path | Sequence[str | Path]
"""Samples as the benchmark's raw ones, (n, d) features or (n, channels, height, width) maps or
images; or paths.
"""

Examples = str | Path | Mapping[str, Inputs]
"""A folder with a folder of examples for each class, or ``{name: examples}``."""

Shown = Examples | Mapping[str, ClassSum]


class Predictor(ABC):
    """Answers with a model."""

    @classmethod
    @abstractmethod
    def predict(cls, model: Model, question: Question) -> list[list[Prediction]]:
        """Rank classes for each sample, best first.

        Raises:
            DataError: a sample or a class is wrong.
            ExperimentError: the model cannot do this.
        """

    @classmethod
    def learn(cls, model: Model, classes: Classes | None, examples: ModelExamples | None) -> Model:
        """Return the model with classes added for good, from descriptions, examples, or both.

        Raises:
            DataError: a class or an example is wrong.
            ExperimentError: the model cannot do this; by default none can.
        """
        raise ExperimentError(
            f"method.name = {model.method_name!r} cannot keep classes that it learns after "
            "training: give them with every call of predict"
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
        personalizes: whether clients' own models can be measured beside the merged one
            (``strategy.personal_epochs``).
        attackable: whether ``[attack]`` and ``[screening]`` can be used, which need a label for
            each sample.
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
        """Leave out the clients that cannot take part with the method's settings; by default no
        one.

        Raises:
            ExperimentError: no client is left.
        """
        return partition

    @classmethod
    def prepare(cls, method: Method, benchmark: Benchmark) -> None:
        """Tell the method what only the benchmark knows; by default nothing."""
        return None

    @classmethod
    def of_seeds(
        cls, results: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return what a run of several seeds reports beside each number's mean and deviation
        (``summary``).
        """
        return {}

    @classmethod
    def headline(cls, result: Mapping[str, Any]) -> str:
        """Return a run's numbers as one line, with their deviations if there are several seeds."""
        return "   ".join(
            f"{name.replace('_', ' ')} {percent(result, name)}" for name in cls.evaluator.accuracies
        )


def percent(result: Mapping[str, Any], name: str) -> str:
    """Write one number of a result, with its deviation over several seeds."""
    spread = f" ± {result[f'{name}_sd']:.1f}" if f"{name}_sd" in result else ""
    return f"{result[name]:.1f}{spread} %"
