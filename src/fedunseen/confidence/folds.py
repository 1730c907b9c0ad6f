"""Seen classes play unseen ones in turn, each once, in models that are solved from sums.

A share of the samples is held out of all models; of few samples several shares in turns. A fold's
model lacks all samples of the classes that play unseen ones: a covariance that knows how a class
varies recognizes it more often than an unseen one. Kernel and shrinkage are the final model's.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.confidence.held_out import HeldOut
from fedunseen.core.parameters import Params
from fedunseen.core.random import stream
from fedunseen.core.samples import CodedRows, Inputs, ScaledSamples
from fedunseen.encoders.backbone import Backbone
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.left_out import without_classes
from fedunseen.methods.closed_form.statistics import (
    Hidden,
    dequantized,
    few_threads,
    mirrored,
    scatter,
    statistics,
    subtract,
    unpacked,
)

TURNS = 5  # each holds out one part in so many of each class's samples
FOLDS = 5
LEAST = 3  # seen classes
_MOST = 10_000  # held-out samples
_FEWEST = 500
_DISTANCES = 1000  # of a fold, since they take the most time
_SCORES = 2**22  # of a fold
_WORK = 4 * 10**10  # folds times classes cubed, at most: of very many classes, one fold says enough


def closed_form_folds(
    method: ClosedForm,
    model: Params,
    sums: Params,
    inputs: Inputs,
    labels: Tensor,
    train: NDArray[np.int64],
    seed: int,
    times: NDArray[np.int64] | None = None,
) -> list[HeldOut]:
    """Return what models without some classes say of held-out samples.

    Nothing with fewer than three seen classes beside unseen ones, noise, or maps, and if no class
    has two samples or the others are all but alike. Without unseen classes there is one fold.

    Args:
        method: with its settings and classes.
        model: the final model, whose kernel and shrinkage the folds take.
        sums: merged statistics of the samples.
        inputs: (N, d) samples as the method takes them.
        labels: (N,) their classes.
        train: (n,) which samples the sums are of.
        seed: draws the samples and the folds.
        times: (n,) how often each is in the sums; None: once.
    """
    space = method.space
    few = len(space.seen) < LEAST and len(space.unseen)
    vectors = type(method.backbone) is Backbone
    if few or method.release is not None or not vectors or "square" not in sums:
        return []
    counted = sums["count"].cpu().numpy()
    known = labels.cpu().numpy()[train]
    times = np.ones_like(train) if times is None else times
    whole = np.bincount(known, times, len(counted)) == counted  # others left some samples out
    quick = method.quick(model)
    candidates = np.flatnonzero(counted > 0)
    parts = class_folds(candidates, len(space.unseen), seed)
    folds = []
    try:
        with torch.no_grad(), few_threads(method.width):
            for held in held_out_places(known, whole, seed):
                places = train[held]
                part = statistics_of(method, inputs, labels, np.repeat(places, times[held]))
                kept = opened(subtract(sums, part, space, method.quantization))
                if float(kept["count"].sum()) < 2 * len(candidates):
                    return []  # nothing is known of the covariance
                samples = inputs[torch.from_numpy(places).to(labels.device)].cpu()
                staying = ~np.isin(train, places) & whole[known]
                step = -(-len(places) // _DISTANCES)
                for k, out in enumerate(parts[: max(1, _WORK // len(candidates) ** 3)]):
                    gone = np.repeat(train, times * (staying & np.isin(known, out)))
                    part = statistics_of(method, inputs, labels, gone, matrix=True)
                    fold = without_samples(method, kept, part)
                    mine = slice(k % step, None, step)
                    answers = answered(quick, fold, samples, known[held], candidates, out, mine)
                    folds.append(replace(answers, places=places))
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return []
    return folds


def statistics_of(
    method: ClosedForm,
    inputs: Inputs,
    labels: Tensor,
    places: NDArray[np.int64],
    hidden: Hidden | None = None,
    matrix: bool = False,
) -> Params:
    """Return the statistics of some samples; ``hidden``: what is hidden in sums of all; ``matrix``:
    with second moments (d, d), of which the upper triangle counts.
    """
    rows = torch.from_numpy(places).to(labels.device)
    return statistics(
        read(inputs, rows),
        labels[rows],
        method.space,
        method.clip_norm,
        method.quantization,
        hidden,
        matrix,
    )


def read(inputs: Inputs, rows: Tensor) -> Tensor | CodedRows:
    """Return some samples as statistics take them."""
    return CodedRows(inputs, rows) if isinstance(inputs, ScaledSamples) else inputs[rows]


def opened(sums: Params) -> Params:
    """Return statistics with their second moments as a matrix (d, d)."""
    return {**sums, "square": unpacked(sums["square"], sums["total"].shape[1])}


def without_samples(method: ClosedForm, sums: Params, part: Params) -> Params:
    """Return the statistics without some samples', as numbers that a model is solved from. The
    second moments of both are matrices (d, d), of which the upper triangle counts.
    """
    kept = {**sums, **{name: sums[name] - part[name] for name in ("count", "total", "square")}}
    kept["total"][kept["count"] == 0] = 0  # not what rounding has left
    kept |= dequantized(kept, method.quantization, method.worth)
    mirrored(kept["square"])
    return kept


def answered(
    method: ClosedForm,
    sums: Params,
    samples: Tensor,
    labels: NDArray[np.int64],
    candidates: NDArray[np.int64],
    out: NDArray[np.int64],
    measured: slice = slice(None),
) -> HeldOut:
    """Return what the model without the classes ``out`` says of samples, and the distances of those
    that are ``measured`` and of other classes.

    Samples of these classes that are still in the sums leave them as
    :func:`~fedunseen.methods.closed_form.left_out.without_classes` has it.
    """
    gone = torch.from_numpy(out)
    if bool(sums["count"][gone].any()):
        count, square = without_classes(sums, gone, scatter(sums))
        total = sums["total"] * (count > 0)[:, None]
        sums = {**sums, "count": count, "total": total, "square": square}
    places = np.arange(len(samples))[measured]
    places = places[~np.isin(labels[places], out)]
    among = torch.from_numpy(candidates)
    scores, apart = method.answers_of_sums(sums, samples, among, torch.from_numpy(places))
    distance = None
    if apart is not None:
        distance = np.full(len(samples), np.nan)
        distance[places] = apart.double().numpy()
    return HeldOut(
        scores.double().numpy(),
        np.searchsorted(candidates, labels),
        np.isin(candidates, out),
        distance,
    )


def held_out_places(
    labels: NDArray[np.int64], usable: NDArray[np.bool_], seed: int
) -> list[NDArray[np.int64]]:
    """Return places of a fifth of each usable class's samples, of few samples in up to five turns;
    each class keeps a sample.

    Of many samples or classes fewer are drawn, so that their scores fit the memory.
    """
    rng = stream(seed, "held out for confidence")
    turns: list[list[NDArray[np.int64]]] = [[] for _ in range(TURNS)]
    for c in np.unique(labels):
        mine = np.flatnonzero(labels == c)
        if len(mine) > 1 and usable[c]:
            for turn, part in zip(turns, np.array_split(rng.permutation(mine), TURNS), strict=True):
                turn.append(part)
    drawn = [np.concatenate(turn) for turn in turns if turn]
    drawn = [places for places in drawn if len(places)]
    if not drawn:
        return []
    most = most_samples(len(usable))
    wanted = -(-_FEWEST // len(drawn[0]))
    return [
        np.sort(places if len(places) <= most else rng.choice(places, most, replace=False))
        for places in drawn[:wanted]
    ]


def most_samples(classes: int) -> int:
    """Return how many samples are held out at most, so that scores for all classes fit the
    memory.
    """
    return max(_FEWEST, min(_MOST, _SCORES // classes))


def class_folds(classes: NDArray[np.int64], unseen: int, seed: int) -> list[NDArray[np.int64]]:
    """Return the classes in folds, each class in one: about as many at once as there are unseen
    ones, but a fifth at most.
    """
    if not unseen:
        return [np.array([], dtype=np.int64)]
    size = min(unseen, -(-len(classes) // FOLDS))
    count = max(2, min(2 * FOLDS, round(len(classes) / size)))
    drawn = stream(seed, "folds of classes for confidence").permutation(classes)
    return [np.sort(part) for part in np.array_split(drawn, count)]
