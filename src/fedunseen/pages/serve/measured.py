"""The numbers of a served model for ``/metrics``."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Counter, Gauge, Histogram

from fedunseen.confidence.measured import ALARM
from fedunseen.core.errors import RunDirectoryError
from fedunseen.pages.serve.guard import Measured
from fedunseen.pages.serve.model import Answer

_TENTHS = tuple(i / 10 for i in range(1, 11))
_RECENT = 1000  # answers that are compared with those of the run's test samples
_ENOUGH = 100  # of them


def tested_tenths(result: Mapping[str, Any]) -> NDArray[np.float64] | None:
    """Return (10,) the shares of a run's test answers by tenths of their probability; None: it has
    no calibrated probabilities.
    """
    counts = np.zeros(len(_TENTHS))
    try:
        kinds = result.get("confidence", {}).get("reliability", {}).values()
        rows = [row for kind in kinds for row in kind]
        for count, stated, _ in rows:
            counts[_tenth(stated / 100)] += count
    except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError):
        raise RunDirectoryError(
            "result.json is damaged, of whose confidence the reliability is no table of numbers: "
            "restore it, or run the experiment again"
        ) from None
    if not rows:
        return None
    return np.asarray(counts / counts.sum())


def _tenth(probability: float) -> int:
    return min(int(probability * len(_TENTHS)), len(_TENTHS) - 1)


class MeasuredModel(Measured):
    """The numbers of the requests, and those of the model's answers.

    Args:
        tested: (10,) as :func:`tested_tenths` returns it.
    """

    def __init__(self, tested: NDArray[np.float64] | None = None) -> None:
        super().__init__()
        self._tested = tested
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self.samples = Counter(
            "fedunseen_samples", "Samples for which classes were ranked.", registry=self.registry
        )
        self.unfamiliar = Counter(
            "fedunseen_unfamiliar",
            f"Samples unlike all known ones: p-values of at most {ALARM}.",
            registry=self.registry,
        )
        self.top = Histogram(
            "fedunseen_top_probability",
            "Probability of the first class of each ranking.",
            registry=self.registry,
            buckets=_TENTHS,
        )
        self.added = Gauge(
            "fedunseen_added_classes", "Classes added to those of the run.", registry=self.registry
        )
        self.waiting = Gauge(
            "fedunseen_waiting", "Questions that wait for the model.", registry=self.registry
        )

        if tested is not None:
            Gauge(
                "fedunseen_confidence_drift",
                f"How far the probabilities of the last {_RECENT} first classes are from those of "
                f"the run's test samples: 0 the same, 1 none in common; NaN below {_ENOUGH}.",
                registry=self.registry,
            ).set_function(self._drift)

    def _drift(self) -> float:
        """Return half of the summed differences between the two histograms of tenths."""
        recent = list(self._recent)
        if self._tested is None or len(recent) < _ENOUGH:
            return float("nan")
        shares = np.bincount(recent, minlength=len(_TENTHS)) / len(recent)
        return float(np.abs(shares - self._tested).sum() / 2)

    def answered(self, answers: Sequence[Answer]) -> None:
        """Count answers."""
        self.samples.inc(len(answers))
        for answer in answers:
            self.top.observe(answer.classes[0].probability)
            self._recent.append(_tenth(answer.classes[0].probability))
            if answer.unfamiliar is not None and answer.unfamiliar <= ALARM:
                self.unfamiliar.inc()
