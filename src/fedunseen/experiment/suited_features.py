"""Which scalings suit a table: columns in several units are standardized, and where boundaries
between classes curve, a kernel follows.

Held-out samples and left-out classes say whether they curve: the model ``gaussian`` is fitted to
the others, with a kernel and without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.random import stream
from fedunseen.core.registry import find
from fedunseen.data import Benchmark, ClassSpace, Scaler, fit_semantics
from fedunseen.data.kernel import Kernel
from fedunseen.data.scaling import FeatureScaling, Scaling, in_several_units
from fedunseen.encoders.backbone import Backbone
from fedunseen.experiment.hooks import hides_samples
from fedunseen.experiment.schema import Experiment
from fedunseen.methods.closed_form.gaussian import Gaussian
from fedunseen.metrics import harmonic_mean

Rows = NDArray[np.float32]
Ids = NDArray[np.int64]

COLUMNS = 256
"""Wider features are those of networks, on which random features bring nothing
(docs/research/scales.md), and are not compared."""
_FEATURES = 512
_SAMPLES = 3000
_EACH = 6  # samples of a class, on average: fewer do not show a boundary's form
_CLASSES = 200
_FOLDS = 3
_CLEAR = 2.0  # standard errors
_GAIN = 1.0  # percentage points


class Comparison(NamedTuple):
    """How well held-out samples are recognized, in percent, without and with a kernel.

    Attributes:
        linear, curved: of seen classes among them; where classes are described and unseen ones
            asked for, the harmonic mean with that of left-out classes among each other.
        clear: a kernel is better by more than chance explains.
    """

    linear: float
    curved: float
    clear: bool


def suited_features(
    benchmark: Benchmark, semantics: Sequence[Scaling] = ()
) -> tuple[tuple[FeatureScaling, ...], Comparison | None]:
    """Return the scalings that suit feature vectors, and what was compared; None: nothing was.

    Args:
        benchmark: its training samples are looked at.
        semantics: scalings of the descriptions.
    """
    rows = benchmark.features
    several = in_several_units(rows if len(benchmark.train) == len(rows) else rows[benchmark.train])
    gains = compared(benchmark, semantics)
    if gains is not None and gains.clear:
        return ("standard", "kernel"), gains
    return (("standard",) if several else ()), gains


def compared(benchmark: Benchmark, semantics: Sequence[Scaling] = ()) -> Comparison | None:
    """Compare standardized features without and with a kernel; arguments as above.

    Returns:
        None: features are those of a network, or there are too few samples or too many classes.
    """
    classes = len(benchmark.space.seen)
    too_few = len(benchmark.train) < _EACH * classes
    if benchmark.features.shape[1] > COLUMNS or classes > _CLASSES or classes < 2 or too_few:
        return None
    some = _some(benchmark)
    rows = np.asarray(benchmark.features[some], dtype=np.float32)
    labels = benchmark.labels[some]
    if not np.isfinite(rows).all():
        return None  # is refused elsewhere
    standard = Scaler.fit(rows, ("standard",))(rows)
    curved = Scaler.fit(standard, ("kernel",), Kernel(_FEATURES))(standard)
    turns = _turns(labels)
    both = [_recognized(z, labels, benchmark.space, semantics, turns) for z in (standard, curved)]
    gains = both[1].astype(np.float64) - both[0]
    error = gains.std() / np.sqrt(len(gains))
    accuracies = [100 * float(right.mean()) for right in both]
    clear = bool(gains.mean() > max(_CLEAR * error, _GAIN / 100))
    unseen = len(benchmark.space.unseen)
    if clear and benchmark.space.attributes and unseen and classes >= 2 * _FOLDS:
        left = [_of_left_out(z, labels, benchmark.space, semantics) for z in (standard, curved)]
        accuracies = [harmonic_mean(a, b) for a, b in zip(left, accuracies, strict=True)]
        clear = accuracies[1] > accuracies[0] + _GAIN
    linear, with_kernel = accuracies
    return Comparison(linear, with_kernel, clear)


def curved_boundaries(experiment: Experiment, benchmark: Benchmark) -> dict[str, float]:
    """Return the accuracies in percent of a :class:`Comparison` where a kernel is clearly better
    and the experiment has none; otherwise nothing.
    """
    table = benchmark.kind == "vectors" and benchmark.image_shape is None
    closed = not find("method", experiment.method.name).trained
    applies = table and closed and benchmark.pictures is None and not hides_samples(experiment)
    if not applies or "kernel" in (experiment.data.features or ()):
        return {}
    gains = compared(benchmark, experiment.data.semantics)
    return {} if gains is None or not gains.clear else gains._asdict()


def _some(benchmark: Benchmark) -> Ids:
    """Return training samples, at most some thousands, in an order that follows from their features
    alone.
    """
    train = benchmark.train
    if len(train) > 8 * _SAMPLES:  # a table on disk is not read whole
        train = train[np.linspace(0, len(train) - 1, 8 * _SAMPLES).astype(np.int64)]
    direction = stream(0, "order of samples").standard_normal(benchmark.features.shape[1])
    rows = benchmark.features[train]
    deviations = rows.std(axis=0, dtype=np.float64)
    places = np.einsum("nd,d->n", rows, direction / np.where(deviations > 0, deviations, 1.0))
    ordered = train[np.lexsort((places, benchmark.labels[train]))]
    every = np.linspace(0, len(ordered) - 1, min(len(ordered), _SAMPLES)).astype(np.int64)
    return np.asarray(ordered[every])


def _turns(labels: Ids) -> Ids:
    """Return (n,) in which turn a sample is held out; those of a class are spread over turns."""
    turns = np.zeros(len(labels), dtype=np.int64)
    for c in np.unique(labels):
        mine = np.flatnonzero(labels == c)
        turns[mine] = np.arange(len(mine)) % _FOLDS
    return turns


def _recognized(
    rows: Rows, labels: Ids, space: ClassSpace, semantics: Sequence[Scaling], turns: Ids
) -> NDArray[np.bool_]:
    """Return (n,) whether samples are recognized by a model of the others."""
    right = np.zeros(len(labels), dtype=bool)
    seen = np.unique(labels)
    for turn in range(_FOLDS):
        out = turns == turn
        scores = _scores(rows[~out], labels[~out], rows[out], space, semantics)
        right[out] = seen[scores[:, seen].argmax(1)] == labels[out]
    return right


def _of_left_out(rows: Rows, labels: Ids, space: ClassSpace, semantics: Sequence[Scaling]) -> float:
    """Return the percentage of samples recognized of classes that are left out, among these."""
    right = np.zeros(len(labels), dtype=bool)
    for out_classes in _left_out(np.unique(labels)):
        out = np.isin(labels, out_classes)
        scores = _scores(rows[~out], labels[~out], rows[out], space, semantics)
        right[out] = out_classes[scores[:, out_classes].argmax(1)] == labels[out]
    return 100 * float(right.mean())


def _left_out(seen: Ids) -> Iterator[Ids]:
    """Yield the classes that are left out together, each class once."""
    mixed = stream(0, "left-out classes").permutation(seen)
    yield from (np.sort(part) for part in np.array_split(mixed, _FOLDS))


def _scores(
    rows: Rows, labels: Ids, asked: Rows, space: ClassSpace, semantics: Sequence[Scaling]
) -> NDArray[np.float64]:
    """Return the scores (n, C) of the model of samples; classes without samples are described."""
    described = torch.from_numpy(fit_semantics(space, tuple(semantics))(space.semantics))
    method = Gaussian(Gaussian.Settings(), space, described, Backbone(rows.shape[1:]))
    sums = method.statistics(torch.from_numpy(rows), torch.from_numpy(labels))
    model = method.of_sums(sums)
    scores = method.scores(model, torch.from_numpy(asked).double(), method.semantics)
    return np.asarray(scores.numpy())
