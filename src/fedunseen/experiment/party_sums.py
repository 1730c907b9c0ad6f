"""What of a party's samples may be in sums whose scaling a coordinator has chosen.

A greeting brings that scaling to ``join`` and ``offline answer``, and a run directory to ``sums``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.bounds import check_statistics
from fedunseen.core.errors import ExperimentError, RefusedError, counted
from fedunseen.core.parameters import Params, within
from fedunseen.core.samples import CodedRows, RoundingScaler, ScaledSamples
from fedunseen.core.small_cells import alone_sentence, consent_to_single
from fedunseen.core.toml import toml_value
from fedunseen.data import Benchmark, Scaler
from fedunseen.experiment.parsing import validated
from fedunseen.experiment.result.agreement import check_same_classes
from fedunseen.experiment.result.stored import StoredRun
from fedunseen.experiment.schema import Experiment
from fedunseen.experiment.small_cells import without_small_cells
from fedunseen.methods.closed_form.set_apart import Moments
from fedunseen.methods.closed_form.statistics import in_large_classes

REFUSED = "refused-settings"
"""Code of a refusal that depends on settings alone, and on no sample."""

# Of a sample of unit length: rounding each feature with this step moves it by half of that.
_FINE = 0.125
_SHOWN = 1_000  # characters of a setting in a message


def check_scaling(
    experiment: Experiment,
    shape: Sequence[int],
    statistics: Params,
    clip_norm: float | None,
    asked: int,
) -> None:
    """Refuse scalings under which exact sums of many samples can show one of them.

    The sums of a kernel's random features are more numbers than a class's samples have, and tell
    which they are. After a step with numbers of the coordinator, one feature can make all samples
    long but those that have a certain value of it. Unit length then shrinks all others. Subtracting
    a mean once makes nothing long that was not, but a large mean makes different values one. The
    columns of a table are such a step.
    Without whole numbers nothing is hidden, and a relation of features that one sample breaks is
    not found (:func:`fedunseen.methods.closed_form.statistics.hidden_features`).

    Args:
        experiment: the coordinator's.
        shape: of a sample at the party.
        statistics: what features are scaled with, by name.
        clip_norm: to what length samples are shortened; None: none is.
        asked: ``method.min_samples`` of the coordinator.

    Raises:
        RefusedError: code ``refused-settings``.
    """
    consent = consent_to_single(asked)
    steps = tuple(experiment.data.features or ())
    placed = bool(getattr(experiment.data, "columns", ()))
    if clip_norm is not None:
        _check_clip(steps, shape, statistics, clip_norm, consent)
    if len(shape) != 1:
        return
    after = steps[1:] if steps[:2] == ("centre", "l2") else steps
    cases = (
        ("kernel" in steps, "they are random features of a kernel", "to leave kernel out"),
        (placed and "l2" in steps, "l2 comes after data.columns", "for ['min-max']"),
        ("l2" in after[1:], "l2 is neither first nor after one centre", "to put it there"),
        (
            "quantize.bits" not in statistics,
            "features are not rounded",
            "to set data.quantization to 8",
        ),
    )
    for applies, why, remedy in cases:
        if applies:
            raise RefusedError(
                f"data.features = {list(steps)} can let sums show single samples, since {why}: ask "
                f"the coordinator {remedy}, or {consent}",
                REFUSED,
            )


def check_stated(settings: object, owner: Mapping[str, Any], asked: int) -> None:
    """Refuse a way to read pictures or texts that the owner has not stated too, if it can let sums
    show one.

    A window can leave all pictures black but one. Frames of one file would be a class of many
    samples. A text becomes more numbers than its column has different cells, so that their sum
    tells how many rows have each.

    Args:
        settings: of ``[data]``, with what the coordinator has stated.
        owner: what the owner has stated of it, by key.
        asked: ``method.min_samples`` of the coordinator.

    Raises:
        RefusedError: code ``refused-settings``.
    """
    for key, usual in (("window", None), ("frames", "middle")):
        value = getattr(settings, key, usual)
        if value != usual and key not in owner:
            raise RefusedError(
                f"data.{key} = {value} is the coordinator's alone, and can let sums show single "
                f"pictures: give --set data.{key}={json.dumps(value)} if the owner agrees, or "
                f"{consent_to_single(asked)}",
                REFUSED,
            )
    columns = getattr(settings, "columns", ())
    texts = [column.name for column in columns if column.kind == "text"]
    if texts and "columns" not in owner:
        stated = toml_value([column.model_dump(exclude_defaults=True) for column in columns])
        stated = stated if len(stated) <= _SHOWN else "[...], as in its experiment,"
        raise RefusedError(
            f"the coordinator alone states that the column {texts[0]!r} holds texts, and sums of "
            f"texts can show the cells of single rows: give --set 'data.columns={stated}' if the "
            f"owner agrees, or {consent_to_single(asked)}",
            REFUSED,
        )


def _check_clip(
    steps: tuple[str, ...],
    shape: Sequence[int],
    statistics: Params,
    clip_norm: float,
    consent: str,
) -> None:
    """Refuse to shorten samples (``method.clip_norm``) that may be of very different lengths.

    All samples would become nearly 0 but those that are short in the coordinator's units. Samples
    of unit length that are rounded finely around 0 stay as they are.
    """
    alike = len(shape) == 1 and steps in (("l2",), ("centre", "l2"))
    if "quantize.bits" in statistics:
        step, offset = (statistics[f"quantize.{name}"] for name in ("step", "offset"))
        finest = _FINE / math.sqrt(shape[0])
        alike = alike and len(step) == 1 and float(step) <= finest and not bool(offset.any())
    if not alike or clip_norm < 1:
        raise RefusedError(
            f"method.clip_norm = {clip_norm:g} can make sums nearly those of one sample: ask the "
            "coordinator for 1 or more, data.features = ['l2'] and data.quantization = 8, or "
            f"{consent}",
            REFUSED,
        )


def without_alone(
    held: NDArray[np.int64],
    moments: Callable[[NDArray[np.int64]], Moments],
    taking: NDArray[np.int64],
    where: Path,
) -> tuple[NDArray[np.int64], str]:
    """Return which samples stay if those leave that second moments would show alone, and the
    sentence about these for their owner.

    Once some have left, the others may have cells that few of them have. These are hidden, and
    then others may stand alone.

    Args:
        held: the ids of all samples.
        moments: returns the statistics of some of them, with the cells hidden of which they have
            few.
        taking: the ids of those that take part.
        where: the party's folder.

    Raises:
        RefusedError: none of those that take part stays. It depends on samples, so that under masks
            it has no code of its own.
    """
    kept = held
    while len(kept):
        apart = moments(kept).left_out()
        alone = apart.alone.numpy()
        kept = kept[~alone]
        if np.isin(taking, held).any() and not np.isin(taking, kept).any():
            different = counted(apart.samples, "different sample")
            raise RefusedError(
                f"{where}: the second moments of {different} with {apart.features} features that "
                "vary can show each of them to the coordinator and to who has the model: take part "
                "with more samples than features and classes, ask the coordinator for privacy.name "
                "= 'sample-level', or give --consent moments if the owner agrees"
            )
        if not alone.any():
            break
    return kept, alone_sentence(len(held) - len(kept))


@dataclass(frozen=True, eq=False)
class Parts:
    """What a removal makes of a sum.

    Attributes:
        rows: (n,) all samples of the sum.
        removed: (n,) which of them are removed.
        left: (n,) which of them the sum has after the removal.
        minimum: samples that each part must have of what it shows.
    """

    rows: NDArray[np.int64]
    removed: NDArray[np.bool_]
    left: NDArray[np.bool_]
    minimum: int

    def parted(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return (n,) which samples are of classes of which some are removed and some are left; of
        other classes, a removal shows what the sums have shown. ``labels``: (n,) the classes.
        """
        return np.isin(labels, np.intersect1d(labels[self.removed], labels[self.left]))


def check_removed(moments: Moments, parts: Parts, alone: bool) -> None:
    """Refuse a removal if the sums of the removed samples, or of those that are left, show a
    feature of few samples of a class.

    Args:
        moments: the statistics of all samples of a sum, which say which features are hidden.
        parts: of the sum.
        alone: refuse if second moments of these show a sample alone, too.

    Raises:
        RefusedError: code ``removal-of-few``; it depends on samples.
    """
    parted = parts.parted(moments.labels.cpu().numpy())
    for some in (parts.removed, parts.left):
        few = moments.show_few(torch.from_numpy(np.flatnonzero(some & parted)))
        if few or (alone and moments.show_one(torch.from_numpy(np.flatnonzero(some)))):
            what = "features" if few else "second moments"
            raise RefusedError(
                f"the {what} of {counted(int(parts.removed.sum()), 'removed sample')}, or of the "
                "others, can show some of them: remove more at once, or whole classes, or consent "
                "to the removal if the owner agrees",
                "removal-of-few",
            )


def check_removed_cells(
    benchmark: Benchmark, settings: object, parts: Parts, scaler: RoundingScaler | None
) -> None:
    """Refuse a removal if the removed rows of a table, or those that are left, have a cell of few
    rows of a class.

    Args:
        benchmark: with the cells that sums have.
        settings: of ``[data]``.
        parts: of the sum.
        scaler: what makes whole numbers of features; None: sums are of features.

    Raises:
        RefusedError: code ``removal-of-few``; it depends on samples.
    """
    rows = parts.rows
    parted = parts.parted(benchmark.labels[rows])
    minimum = parts.minimum
    for some in (rows[parts.removed & parted], rows[parts.left & parted]):
        labels = benchmark.labels[some]
        alone = without_small_cells(benchmark, settings, some, labels, minimum, scaler)
        if not np.array_equal(alone.features[some], benchmark.features[some]):
            raise RefusedError(
                f"the removed rows, or the others, have cells that fewer than {minimum} of these "
                "rows of a class have, or lack: remove more at once, or whole classes, or consent "
                "to the removal if the owner agrees",
                "removal-of-few",
            )


def check_known(lost: Collection[bytes], released: Collection[frozenset[bytes]]) -> None:
    """Refuse a removal from sums of which the party does not know which features they hide.

    Otherwise a feature that is hidden in one of the two alone would stay in their difference, with
    the sample that it is of.

    Args:
        lost: digests of samples of the sums that the party has no more, also of removed ones.
        released: digests of the samples of each sum that has some of the removed ones.

    Raises:
        RefusedError: code ``removal-of-few``; it depends on samples.
    """
    why = ""
    if lost:
        why = f"{counted(len(lost), 'sample')} of the sums are here no more"
    elif len(released) > 1:
        why = "sums of several plans have these samples, and different others"
    if why:
        raise RefusedError(
            f"{why}, so that what stays of the sums cannot be checked: restore deleted files and "
            "rows, or consent to the removal if the owner agrees",
            "removal-of-few",
        )


def check_saved_once(held: int, different: int) -> None:
    """Refuse to remove samples that a folder has more than once: a ledger does not count how often
    a sum has them, and one too many or too few would stay in the sum alone.

    Args:
        held: how often the folder has the removed samples.
        different: how many of them are different.

    Raises:
        RefusedError: code ``removal-of-few``; it depends on samples.
    """
    if held > different:
        raise RefusedError(
            f"the folder has {counted(held - different, 'removed sample')} once more, and it is "
            "not known how often the sums have them: take out copies that came since, leave these "
            "samples in, or consent to the removal if the owner agrees",
            "removal-of-few",
        )


def stand_ins(
    scaler: Scaler, features: NDArray[Any], rows: NDArray[np.int64], labels: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return (n,) whose features are summed for each of the samples ``rows``: its own, or
    those of another of its class where it is near the mean (:meth:`Scaler.near_mean`).

    Left out, such a sample would change what can be seen: a class's count, or whether it is there.
    Which one stands in follows from the samples that are not near alone.

    Args:
        scaler: the coordinator's.
        features: (N, d) before scaling.
        rows: (n,) places of different samples among them.
        labels: (n,) their classes.
    """
    summed = rows.copy()
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        near = scaler.near_mean(features, rows[places])
        if near.any():
            others = rows[places[~near]].tolist()
            others.sort(key=lambda row: hashlib.sha256(features[row].tobytes()).digest())
            summed[places[near]] = np.resize(others, int(near.sum()))
    return summed


def check_stand_ins(
    rows: NDArray[np.int64], summed: NDArray[np.int64], removed: NDArray[np.int64]
) -> None:
    """Refuse to remove a sample that stands in for another, and not that one, or the reverse.

    Args:
        rows: (n,) samples.
        summed: (n,) which are in the sums for them (:func:`stand_ins`).
        removed: the samples to remove.

    Raises:
        RefusedError: it depends on samples.
    """
    apart = np.isin(rows, removed) != np.isin(summed, removed)
    if apart.any():
        pair = int(rows[apart][0]), int(summed[apart][0])
        raise RefusedError(
            f"in the sums, sample {pair[1]} stands in for sample {pair[0]}, which is near the mean "
            "that the coordinator takes off: remove both, or none of them"
        )


@dataclass(frozen=True, eq=False)
class InSums:
    """Which of a party's samples are in sums.

    Attributes:
        rows: (n,) their ids.
        summed: (n,) whose features are in the sums for each of them (:func:`stand_ins`).
        few: the other classes: class -> its samples.
    """

    rows: NDArray[np.int64]
    summed: NDArray[np.int64]
    few: Mapping[int, int]

    def among(self, some: NDArray[np.int64]) -> InSums:
        """Return those of the samples that are among ``some``."""
        mask = np.isin(self.rows, some)
        return InSums(self.rows[mask], self.summed[mask], self.few)


def agreed_data(run: StoredRun, owner: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an owner states of a run's ``[data]``, by key: as the run has it.

    Args:
        run: of the coordinator.
        owner: ``{"data.key": value}``.

    Raises:
        ExperimentError: a setting is not of ``[data]``, or the run has another.
    """
    agreed = within("data.", owner)
    if len(agreed) < len(owner):
        raise ExperimentError("--set of sums states settings of data alone: leave out others")
    data = run.experiment.data
    fields = data.model_dump(mode="json", exclude_none=True)
    given = validated(type(data), "data", {**fields, **agreed})
    for key in agreed:
        if getattr(given, key) != getattr(data, key):
            raise ExperimentError(
                f"--set data.{key} is not what the run has, and its sums are of that: leave it "
                "out, or state the same"
            )
    return agreed


def samples_in_sums(
    run: StoredRun,
    benchmark: Benchmark,
    min_samples: int,
    clip_norm: float | None = None,
    stated: Mapping[str, Any] | None = None,
) -> InSums:
    """Return which of a party's samples are in sums of a run whose directory a coordinator sent.

    ``min_samples``: samples that a class must have; 1 is the owner's consent to show single ones.
    ``clip_norm``: to what length samples are shortened. ``stated``: of ``[data]``, by the owner.

    Raises:
        RefusedError: the run's scaling is out of bounds, or can show single samples.
        RunDirectoryError: the model's file has other classes than the class table.
    """
    check_same_classes(run.path, run.space, run.method.space)
    rows = summed = benchmark.train
    if min_samples > 1:
        features = run.features_of(benchmark, rows)
        shape = features.shape[1:]
        statistics = {n: torch.from_numpy(v) for n, v in run.scaler.statistics.items()}
        check_statistics(statistics, list(shape), "")
        asked = int(getattr(run.experiment.method, "min_samples", 1))
        check_scaling(run.experiment, shape, statistics, clip_norm, asked)
        check_stated(run.experiment.data, stated or {}, asked)
        labels = benchmark.labels[rows]
        summed = rows[stand_ins(run.scaler, features, np.arange(len(rows)), labels)]
    enough, few = in_large_classes(benchmark, rows, min_samples)
    return InSums(rows[enough], summed[enough], few)


def coded(
    run: StoredRun, benchmark: Benchmark, rows: NDArray[np.int64], ids: NDArray[np.int64]
) -> tuple[CodedRows, Tensor]:
    """Return samples as a run's method sums them, and their classes: ``ids[label]``."""
    originals = None if benchmark.originals is None else benchmark.originals[rows]
    features = run.features_of(benchmark, rows)
    samples = ScaledSamples(features, torch.device("cpu"), run.scaler, originals)
    labels = torch.from_numpy(ids[benchmark.labels[rows]])
    return CodedRows(samples, torch.arange(len(rows))), labels
