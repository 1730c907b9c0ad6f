"""What a task is: everything about a run that depends on what its model is for.

A method names its task (``Method.task``). The road of a run asks the task, never the method, so that a new task is one
file and one line in ``tasks/__init__.py``, or an entry point ``fedunseen.tasks`` of another package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from torch import Tensor

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.parameters import Params
from fedunseen.core.settings import Settings
from fedunseen.data import Benchmark, ClassSpace, Partition, Scaler
from fedunseen.federation.callbacks import Choice, ModelsOf
from fedunseen.federation.federation import Federation
from fedunseen.federation.loop import NOT_MEASURED, Loop, Score
from fedunseen.methods import Method

__all__ = ["ClassSum", "EvaluationSettings", "Learnt", "Prediction", "Question", "Task", "Trained", "percent", "shares"]

_SELDOM = 5  # a generative method's classifiers are trained anew after so many rounds, where no round is to be chosen


class EvaluationSettings(Settings):
    """How accuracies are measured and how rounds, calibration and settings are chosen."""

    selection: Literal["validation", "best-on-test", "last"] = "validation"
    """Where the round and the calibration factor are chosen: on validation classes, by a run of their own that never
    sees a test sample; on the test set, as many papers do; or not at all (last round, no calibration)."""
    criterion: Literal["harmonic", "zsl"] = "harmonic"
    """The accuracy by which the round is chosen."""
    calibration: Literal["stacking", "none"] = "stacking"
    """Calibrated stacking of the generalised accuracies; only for methods that score unseen classes."""
    factor: float | None = Field(None, allow_inf_nan=False)
    """A fixed calibration factor in the method's score units, instead of a chosen one."""
    clients: bool | None = None
    """Measure clients' own models before merging, at most 50 of them: in each round (true) or never (false). By default
    in the first, the reported, the last and some five other rounds, since ten models take ten times as long as the
    merged one; never for generative methods, which would have to train classifiers for each, and those in closed form,
    which would have to be solved for each."""
    every: int | None = Field(None, ge=1)
    """Measure every so many rounds; the first, the reported and the last round always, and a round can only be chosen
    where it is measured. By default every round, and every 5th of a generative method where no round is left to choose:
    measuring trains a classifier anew."""
    theory: bool = True
    """Measure for the report what DistZSL's theory promises on the reported round, and class similarities after a few
    rounds; only for methods that predict attributes under strategies that merge."""
    embedding: bool = True
    """Draw a t-SNE picture of the unseen classes for the report, which takes some seconds at the end of a run."""
    episodes: int = Field(600, ge=2)
    """Few-shot: test episodes, fixed by the seed, on which accuracy and its 95 % interval are measured in the end."""
    validation_episodes: int = Field(100, ge=2)
    """Few-shot: episodes after every round, of validation classes where the round is chosen on them, else of unseen
    ones (then the first test episodes)."""
    boundaries: tuple[PositiveInt, ...] = (1, 5, 10, 20, 50)
    """Few-shot with two features a sample: rounds after which the plane of an episode is drawn (FedFSL, Fig. 6)."""
    choose: dict[str, list[Any]] = Field(default_factory=dict)
    """Settings to choose on validation classes: "method.lr" = [0.01, 0.1]; every combination is tried."""


class Prediction(NamedTuple):
    """One class of a ranking: its name and its score (the method's own units; seen classes less the calibration)."""

    name: str
    score: float


def shares(ranking: Sequence[Prediction]) -> list[float]:
    """Return the softmax of a ranking's scores: how the classes that compete share 100 %, not how often it is right.

    Raises:
        DataError: a score is not finite.

    Example:
        >>> [round(share, 2) for share in shares([Prediction("cat", 1.0), Prediction("dog", 0.0)])]
        [0.73, 0.27]
    """
    scores = np.array([one.score for one in ranking])
    if not np.isfinite(scores).all():
        raise DataError("the model's scores of a sample are not finite: its numbers are too large")
    odds = np.exp(scores - scores.max(initial=-np.inf))
    return list((odds / odds.sum()).tolist())


Inputs = NDArray[Any] | str | Path | Sequence[str | Path]
Classes = str | Path | Mapping[str, Sequence[float]]


@dataclass(frozen=True, eq=False)
class ClassSum:
    """All that learning a class asks of its samples, in place of these.

    Attributes:
        count: how many.
        total: (d,) the sum of their features as the model takes them, float64.
    """

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
    """What a run knows once it has learnt classes: the class space with them, and the model."""

    space: ClassSpace
    params: Params


class Trained(Protocol):
    """What a task's :meth:`Task.predict` is given of a finished run."""

    @property
    def path(self) -> Path:
        """The run directory."""

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What ``manifest.json`` holds."""

    @property
    def result(self) -> Mapping[str, Any]:
        """The final numbers."""

    @property
    def space(self) -> ClassSpace:
        """The class space."""

    @property
    def params(self) -> Params:
        """The merged model."""

    @property
    def method(self) -> Method:
        """The method, made for the run's class space."""

    @property
    def method_name(self) -> str:
        """The method's name in the experiment."""

    @property
    def pooled(self) -> bool:
        """All training data lay in one place."""

    @property
    def scaler(self) -> Scaler:
        """How vectors are scaled."""

    def read_inputs(self, inputs: Inputs) -> NDArray[Any]:
        """Return samples (n, ...) as the model takes them, before scaling."""

    def scaled_semantics(self, semantics: NDArray[np.float64]) -> NDArray[np.float32]:
        """Scale the semantics (C, attributes) of classes as those of the run were scaled."""


class Task(ABC):
    """Base of all tasks. The class methods are asked before there is a federation; an instance judges its rounds.

    Args:
        federation: of the run; it holds what :meth:`held` leaves of the benchmark.
        benchmark: the whole benchmark.
        evaluation: the experiment's settings; by default all defaults.

    Attributes:
        groups: name -> class ids, of a class space that grows: what accuracies are told apart by.
        name: what ``Method.task`` says.
        accuracies: the accuracies that a run reports, in percent; the first is the one to show where there is room for
            one. Of several seeds, mean and standard deviation are reported.
        also_averaged: patterns of other numbers of ``result.json`` that several seeds average.
        needs_descriptions: whether classes must have attributes.
        chooses_settings: whether ``evaluation.choose`` can be used.
        personalises: whether clients' own models can be measured beside the merged one (``strategy.personal_epochs``).
        attackable: whether ``[attack]`` and ``[screening]`` can be used, which need a label for each sample.
    """

    name: ClassVar[str]
    accuracies: ClassVar[tuple[str, ...]]
    also_averaged: ClassVar[tuple[str, ...]] = ()
    needs_descriptions: ClassVar[bool] = True
    chooses_settings: ClassVar[bool] = True
    attackable: ClassVar[bool] = True
    personalises: ClassVar[bool] = False

    def __init__(
        self, federation: Federation, benchmark: Benchmark, evaluation: EvaluationSettings | None = None
    ) -> None:
        self.federation, self.benchmark = federation, benchmark
        self.evaluation = evaluation or EvaluationSettings.model_validate({})
        self.groups: Mapping[str, NDArray[np.int64]] = {}

    # Before there is a federation.

    @classmethod
    def held(cls, benchmark: Benchmark) -> Benchmark:
        """Return the part of a benchmark that clients hold; by default all that is for training.

        Raises:
            DataError: nothing is left.
        """
        return benchmark

    @classmethod
    def able(cls, partition: Partition, benchmark: Benchmark, method: Any) -> Partition:
        """Leave out the clients that cannot take part with the method's settings; by default nobody.

        Raises:
            ExperimentError: no client is left.
        """
        return partition

    @classmethod
    def prepare(cls, method: Method, benchmark: Benchmark) -> None:
        """Tell the method what only the benchmark knows; by default nothing."""
        return None

    @classmethod
    def chooses_apart(cls, evaluation: EvaluationSettings) -> bool:
        """Say whether a run on validation classes chooses round, calibration and settings."""
        return False

    @classmethod
    @abstractmethod
    def choice(
        cls, evaluation: EvaluationSettings, method: type[Method], rounds: int, selecting: bool = False
    ) -> Choice:
        """Return the round and the calibration factor to report; None for one that the run's own numbers choose.

        ``selecting``: this is the run on validation classes.
        """

    @classmethod
    @abstractmethod
    def order(
        cls, line: Mapping[str, Any], evaluation: EvaluationSettings, method: type[Method]
    ) -> tuple[float, float]:
        """Return a key that sorts rounds and runs by their numbers: higher is better."""

    # While a run trains (:class:`fedunseen.federation.callbacks.Evaluator`).

    @abstractmethod
    def measure(self, loop: Loop, models: Sequence[Params], choice: Choice) -> dict[str, Any]:
        """Return the metrics of the models after the last round of a loop."""

    def unmeasured(self, loop: Loop) -> dict[str, Any]:
        """Return the metrics of a round whose models are not measured."""
        return {}

    def every(self, choice: Choice) -> int:
        """Return after how many rounds there is a measured one: ``evaluation.every``, or what suits the method."""
        if self.evaluation.every is not None:
            return self.evaluation.every
        # Which rounds can be chosen is no matter of speed, and an attack or new classes are followed round by round.
        free = choice.round is not None and self.federation.attack is None and not self.groups
        return _SELDOM if free and self.federation.method.generates else 1

    def measures_clients(self, round: int, rounds: int, choice: Choice) -> bool:
        """Say whether clients' own models are measured in ``round``, counted from 1, of so many."""
        return False

    def observe(self, loop: Loop, path: Path, kept: bool) -> None:
        """Write into a run directory what only exists during a round; ``kept``: its model is the best so far."""
        return None

    def score(self, line: Mapping[str, Any]) -> Score:
        """Return what rounds are compared by: higher is better; one that is not measured is below all others."""
        if self.accuracies[0] not in line:
            return NOT_MEASURED
        return self.order(line, self.evaluation, type(self.federation.method))

    def personal(self, merged: Params | None, models: ModelsOf, line: Mapping[str, Any]) -> dict[str, Any]:
        """Measure the clients' own models, beside the merged one if any: only for a task that ``personalises``."""
        return {}

    @abstractmethod
    def numbers(self, lines: Sequence[Mapping[str, Any]], selected: int, model_path: Path) -> dict[str, Any]:
        """Return what a run reports, from its lines, the chosen round (from 1) and the model written for it."""

    @abstractmethod
    def summary(self, params: Params, result: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return what the report draws (``evaluation.safetensors``), from the written model and the numbers."""

    @classmethod
    def of_seeds(cls, results: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a run of several seeds reports beside each number's mean and deviation (``summary``)."""
        return {}

    # Afterwards.

    @classmethod
    def headline(cls, result: Mapping[str, Any]) -> str:
        """Return a run's numbers as one line, with their deviations if there are several seeds."""
        return "   ".join(f"{name.replace('_', ' ')} {percent(result, name)}" for name in cls.accuracies)

    @classmethod
    @abstractmethod
    def predict(cls, run: Trained, question: Question) -> list[list[Prediction]]:
        """Rank classes for each input, best first.

        Raises:
            DataError: an input or a class is wrong.
            ExperimentError: the run's model cannot do this.
        """

    @classmethod
    def learn(cls, run: Trained, classes: Classes | None, support: Shown | None) -> Learnt:
        """Add classes to a finished run for good, from descriptions, examples, or both.

        Raises:
            DataError: a class or an example is wrong.
            ExperimentError: the run's model cannot do this; by default none can.
        """
        raise ExperimentError(
            f"method.name = {run.method_name!r} cannot keep classes that it learns after training: give them with "
            "every call of predict"
        )


def percent(result: Mapping[str, Any], name: str) -> str:
    """Write one number of a result, with its deviation over several seeds.

    Example:
        >>> percent({"zsl": 97.31, "zsl_sd": 0.42}, "zsl"), percent({"zsl": 97.31}, "zsl")
        ('97.3 ± 0.4 %', '97.3 %')
    """
    spread = f" ± {result[f'{name}_sd']:.1f}" if f"{name}_sd" in result else ""
    return f"{result[name]:.1f}{spread} %"
