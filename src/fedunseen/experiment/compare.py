"""One run against another: the difference of their numbers, with its 95 % interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import ExperimentError
from fedunseen.evaluation.measures import FEW_SHOT, ZERO_SHOT
from fedunseen.experiment.result.run import Run
from fedunseen.metrics import class_difference, harmonic_difference, paired_difference

_NAMES = (FEW_SHOT[0], *ZERO_SHOT)
_EPISODES = ("ways", "shots", "queries", "permute_labels")  # runs that agree in these have the same episodes for a seed
# Settings of [data] that leave the test episodes as they are.
_NOT_TESTED = {"root", "features", "semantics", "vectors", "train_per_class"}


@dataclass(frozen=True)
class Comparison:
    """How much better a run is than another."""

    run: Run
    other: Run
    over: str
    count: int
    differences: Mapping[str, tuple[float, float]]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON; null for an interval that is not finite."""
        differences = {
            name: {"difference": mean, "ci95": half if np.isfinite(half) else None}
            for name, (mean, half) in self.differences.items()
        }
        paths = {"run": str(self.run.path), "other": str(self.other.path)}
        return {**paths, "over": self.over, "count": self.count, "differences": differences}


def compare(run: Run, other: Run) -> Comparison:
    """Compare two runs seed by seed or, of one seed, question by question.

    An interval over seeds says how the difference varies from training to training. One over test episodes or samples
    only says how it varies from question to question, for these two models.
    """
    names: list[str] = [name for name in _NAMES if name in run.result and name in other.result]
    data, others = ((r.manifest["benchmark"], r.space.names, r.space.unseen.tolist()) for r in (run, other))
    if not names or data != others:
        raise _apart(run, other, "their data or classes are not the same")
    if _seeds(run) != _seeds(other):
        raise _apart(run, other, "their seeds are not the same")
    if (run.result["selection"] == "best-on-test") != (other.result["selection"] == "best-on-test"):
        raise _apart(run, other, "one chose its round on the test samples (evaluation.selection = 'best-on-test')")
    few = names == ["few_shot"]
    if few and _episodes(run) != _episodes(other):
        raise _apart(
            run, other, f"their episodes are not the same (method.{', '.join(_EPISODES)}, how many, or [data])"
        )
    for pair in zip(run.seeds or [run], other.seeds or [other], strict=True):
        first, second = (seed.evaluation.get("labels") for seed in pair)
        if first is not None and second is not None and not np.array_equal(first, second):
            raise _apart(run, other, "their test samples are not the same")
    if run.seeds:
        each = {name: [[one.result[name] for one in both.seeds] for both in (run, other)] for name in names}
        found = {name: paired_difference(*np.array(values)) for name, values in each.items()}
        return Comparison(run, other, "seeds", len(run.seeds), found)
    if few:
        ours, theirs = (_needed(one, "episode_accuracies") for one in (run, other))
        return Comparison(run, other, "episodes", len(ours), {"few_shot": paired_difference(ours, theirs)})
    labels, _ = (_needed(one, "labels") for one in (run, other))
    zsl, gzsl = ([_needed(one, name) == labels for one in (run, other)] for name in ("zsl_answers", "gzsl_answers"))
    unseen = np.isin(labels, run.space.unseen)
    found = {
        "zsl": class_difference(labels[unseen], *(right[unseen] for right in zsl)),
        "gzsl_unseen": class_difference(labels[unseen], *(right[unseen] for right in gzsl)),
        "gzsl_seen": class_difference(labels[~unseen], *(right[~unseen] for right in gzsl)),
        "gzsl_harmonic": harmonic_difference(labels, ~unseen, *gzsl),
    }
    return Comparison(run, other, "samples", len(labels), {name: found[name] for name in names})


def _seeds(run: Run) -> list[int]:
    return [seed.manifest["seed"] for seed in run.seeds or [run]]


def _episodes(run: Run) -> tuple[object, ...]:
    experiment, count = run.manifest["experiment"], (run.seeds or [run])[0].result["test_episodes"]
    data = {name: value for name, value in experiment["data"].items() if name not in _NOT_TESTED}
    return count, data, *(experiment["method"][name] for name in _EPISODES)


def _needed(run: Run, name: str) -> NDArray[Any]:
    """Return a tensor of the answers that a run recorded."""
    if (found := run.evaluation.get(name)) is None:
        raise ExperimentError(
            f"{run.path} keeps no answers (every client's model has its own): compare runs of several seeds"
        )
    return found


def _apart(run: Run, other: Run, why: str) -> ExperimentError:
    return ExperimentError(f"{run.path} and {other.path} cannot be compared: {why}")
