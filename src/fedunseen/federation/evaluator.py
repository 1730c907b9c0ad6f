"""What measures the rounds of a loop, and which of them is reported."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.parameters import Params
from fedunseen.data import Benchmark
from fedunseen.evaluation.settings import EvaluationSettings
from fedunseen.federation.federation import Federation
from fedunseen.federation.loop import NOT_MEASURED, Loop, Score
from fedunseen.methods import Method

# a generative method's classifiers are trained again after so many rounds, where no round is to be chosen
_SELDOM = 5

ModelsOf = Callable[[Collection[int]], Iterable[tuple[int, Params]]]
"""Gives those of some clients that have a model of their own, with it, in client order."""


@dataclass(frozen=True)
class Choice:
    """The round whose model is reported, and its calibration offset; None: the best by this stage's
    own numbers.
    """

    round: int | None = None
    offset: float | None = None

    def is_kept(self, loop: Loop) -> bool:
        """Say whether the model of the last round is the one to report so far."""
        if self.round is not None:
            return self.round == len(loop.history)
        return bool(loop.history) and loop.scores[-1] >= max(loop.scores)

    def selected(self, loop: Loop) -> int:
        """Return the round, counted from 1, that is reported: of equally good ones the last, which
        is trained most.
        """
        if self.round is not None:
            return min(self.round, len(loop.history))
        scores = loop.scores
        return 1 + max(range(len(scores)), key=lambda i: (*scores[i], i))


class Evaluator(ABC):
    """Measures the models of rounds, and compares rounds and runs.

    Attributes:
        groups: name -> class ids, of a class space that grows: what accuracies are reported for.
        accuracies: that a run reports, in percent, of several seeds as mean and deviation; the
            first is the main one.
    """

    accuracies: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        federation: Federation,
        benchmark: Benchmark,
        evaluation: EvaluationSettings | None = None,
    ) -> None:
        self.federation = federation
        self.benchmark = benchmark
        self.evaluation = evaluation or EvaluationSettings.model_validate({})
        self.groups: Mapping[str, NDArray[np.int64]] = {}

    @classmethod
    def chooses_apart(cls, evaluation: EvaluationSettings) -> bool:
        """Say whether a run on validation classes chooses round, calibration and settings."""
        return False

    @classmethod
    @abstractmethod
    def choice(
        cls,
        evaluation: EvaluationSettings,
        method: type[Method],
        rounds: int,
        selecting: bool = False,
    ) -> Choice:
        """Return the round and the calibration offset to report; None for one that the run's own
        numbers choose.

        ``selecting``: this is the run on validation classes.
        """

    @classmethod
    @abstractmethod
    def order(
        cls, line: Mapping[str, Any], evaluation: EvaluationSettings, method: type[Method]
    ) -> tuple[float, float]:
        """Return a key that sorts rounds and runs by their numbers: higher is better."""

    @abstractmethod
    def measure(self, loop: Loop, models: Sequence[Params], choice: Choice) -> dict[str, Any]:
        """Return the metrics of the models after the last round of a loop."""

    def unmeasured(self, loop: Loop) -> dict[str, Any]:
        """Return the metrics of a round whose models are not measured."""
        return {}

    def every(self, choice: Choice) -> int:
        """Return after how many rounds there is a measured one: ``evaluation.every``, or what suits
        the method.
        """
        if self.evaluation.every is not None:
            return self.evaluation.every
        # Speed does not decide which rounds can be chosen, and an attack is followed round by
        # round.
        followed = any(monitor.every_round for monitor in self.federation.monitors)
        free = choice.round is not None and not followed
        return _SELDOM if free and self.federation.method.generates else 1

    def measures_clients(self, round: int, rounds: int, choice: Choice) -> bool:
        """Say whether clients' own models are measured in ``round``, counted from 1, of so many."""
        return False

    def observe(self, loop: Loop, path: Path) -> None:
        """Write into a run directory what only exists during a round."""
        return None

    def score(self, line: Mapping[str, Any]) -> Score:
        """Return what rounds are compared by: higher is better; one that is not measured is below
        all others.
        """
        if self.accuracies[0] not in line:
            return NOT_MEASURED
        return self.order(line, self.evaluation, type(self.federation.method))

    def personal(
        self, merged: Params | None, models: ModelsOf, line: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Measure the clients' own models, beside the merged one if any: only for a task that
        ``personalizes``.
        """
        return {}

    @abstractmethod
    def numbers(
        self, lines: Sequence[Mapping[str, Any]], selected: int, model_path: Path
    ) -> dict[str, Any]:
        """Return what a run reports, from its lines, the chosen round (from 1) and the model
        written for it.
        """

    @abstractmethod
    def summary(self, params: Params, result: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return what the report draws (``evaluation.safetensors``), from the written model and the
        numbers.
        """


def is_measured(round: int, rounds: int, choice: Choice, every: int) -> bool:
    """Say whether a round, counted from 1, of so many is measured: every so many, the first, the
    chosen, the last.
    """
    return round in (1, choice.round, rounds) or round % every == 0
