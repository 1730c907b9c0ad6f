"""Feature magnitude defence (FedZSL section 3.3, Algorithm 1, lines 14-20): samples of weak
features are left out.

A sample is dropped, by a weight of zero, if gamma_b = sum_c V_cb is below a threshold M. The paper
does not say how M is chosen: here it is a low percentile of the client's own gammas at the start of
each round. Features drift within a round, so the received model judges by default;
``model = "local"`` is Algorithm 1 as printed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedunseen.core.parameters import Params, under, within
from fedunseen.core.phases import POISONED, Batch, Context, Loss, Phase, Terms
from fedunseen.core.settings import Named, NamedSettings
from fedunseen.core.trainer import LocalResult, Task, Trainer

COUNTS = ("clean", "clean_dropped", "poisoned", "poisoned_dropped")
"""What a screened loss counts beside its terms, under names that begin with ``screening/``."""

THRESHOLD = "screening_threshold"
"""What a screened loss finds the threshold under, in its context."""

_RECEIVED = "screening_received/"


@dataclass(frozen=True, eq=False)
class Magnitude(Named, name="magnitude"):
    """FedZSL's feature magnitude defence (FMD); one of another package is a subclass with its own
    Settings.

    Attributes:
        settings: the ``[screening]`` section.
        features: ``(params, inputs) -> (n, d)``, f of the papers.
    """

    settings: Settings
    features: Callable[[Params, Tensor], Tensor]

    class Settings(NamedSettings):
        """Settings of the feature magnitude defence."""

        threshold: float | None = None
        """M, below which the sum of a sample's features drops it; unset, it is calibrated and
        follows the features.
        """
        model: Literal["received", "local"] = "received"
        """Whose features are summed: those of the model that the client has received in this round,
        which M is calibrated on, or of its own while it trains (Algorithm 1 as printed)."""
        percentile: float = Field(5.0, ge=0, lt=100)
        """Of a client's own samples, at the start of each of its rounds: what M is then. About so
        many of its clean samples are lost."""

    def measure(self, params: Params, inputs: Tensor) -> Tensor:
        """Return gamma (n,), the sum of each sample's features (Algorithm 1, line 16)."""
        return self.features(params, inputs).sum(-1)

    def threshold(self, values: NDArray[np.float64]) -> float:
        """Return M, below which a sample is dropped: the fixed one, or the percentile of a client's
        own gamma (n,).
        """
        if self.settings.threshold is not None:
            return self.settings.threshold
        return float(np.percentile(values, self.settings.percentile))

    def context(self, threshold: float, received: Params) -> Context:
        """Return what a screened loss has to know: M, and the model that judges if it is the
        received one.
        """
        context = {THRESHOLD: torch.tensor(threshold, device=next(iter(received.values())).device)}
        return (
            context | under(_RECEIVED, received) if self.settings.model == "received" else context
        )

    def judge(self, params: Params, inputs: Tensor, context: Context) -> Tensor:
        """Return gamma (n,) under the received model, or under the one in training."""
        return self.measure(within(_RECEIVED, context) or params, inputs)

    def screened(self, loss: Loss) -> Loss:
        """Return the loss of the samples that are kept, and the counts of :data:`COUNTS` among its
        terms.
        """

        def of_kept(params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
            weights = batch["weights"]
            values = self.judge(params, batch["inputs"], context).detach()
            kept = (values >= context[THRESHOLD]).to(weights.dtype)
            poisoned = batch.get(POISONED)
            present = (weights > 0).to(weights.dtype)
            bad = present * poisoned if poisoned is not None else torch.zeros_like(present)
            total, terms = loss(params, {**batch, "weights": weights * kept}, context)
            counted = (present - bad, (present - bad) * (1 - kept), bad, bad * (1 - kept))
            counts = {
                f"screening/{name}": value.sum()
                for name, value in zip(COUNTS, counted, strict=True)
            }
            return total, {**terms, **counts}

        return of_kept


@dataclass(frozen=True, eq=False)
class ScreenedTrainer(Trainer):
    """A trainer whose losses leave out the samples that the screening drops, also in what a
    strategy adds to a loss.
    """

    screening: Magnitude = field(kw_only=True)

    @classmethod
    def around(cls, trainer: Trainer, screening: Magnitude) -> ScreenedTrainer:
        """Return the trainer with a screening."""
        return cls(
            **{part.name: getattr(trainer, part.name) for part in fields(Trainer)},
            screening=screening,
        )

    def plain(self) -> Trainer:
        """Return the trainer without the screening."""
        return Trainer(**{part.name: getattr(self, part.name) for part in fields(Trainer)})

    def train(self, task: Task) -> LocalResult:
        """Train one client."""
        task = self.calibrated(task)
        return _counted(super().train(task), task)

    def together(self, tasks: Sequence[Task]) -> list[LocalResult]:
        """Train several clients at once."""
        tasks = [self.calibrated(task) for task in tasks]
        return [
            _counted(result, task)
            for result, task in zip(super().together(tasks), tasks, strict=True)
        ]

    def calibrated(self, task: Task) -> Task:
        """Return the task with the threshold: from the client's own samples, under the parameters
        it begins with.
        """
        if THRESHOLD in task.context:
            return task
        values = []
        with torch.no_grad():
            for start in range(0, len(task.samples), 256):
                rows = torch.from_numpy(task.samples[start : start + 256]).to(self.inputs.device)
                values.append(
                    self.screening.measure(task.params, self.inputs[rows]).double().cpu().numpy()
                )
        context = self.screening.context(
            self.screening.threshold(np.concatenate(values)), task.params
        )
        return replace(task, context=task.context | context)

    def _objective(self, phase: Phase) -> Loss:
        return self.screening.screened(super()._objective(phase))


def _counted(result: LocalResult, task: Task) -> LocalResult:
    """Turn the mean counts among the losses into numbers of samples, in the notes."""
    counts = {
        name: float(round(result.terms[f"screening/{name}"] * result.steps)) for name in COUNTS
    }
    terms = {
        name: value for name, value in result.terms.items() if not name.startswith("screening/")
    }
    empty = (
        counts["clean_dropped"] + counts["poisoned_dropped"] == counts["clean"] + counts["poisoned"]
    )
    params = (
        dict(task.params) if empty else result.params
    )  # weight decay would move the parameters even so
    return replace(
        result,
        params=params,
        terms=terms,
        notes={**counts, "threshold": float(task.context[THRESHOLD])},
    )
