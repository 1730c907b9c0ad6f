"""What held-out samples say of a federation's model, on which confidence is fitted."""

from dataclasses import replace

import numpy as np
import torch

from fedunseen.confidence import HeldOut, closed_form_folds
from fedunseen.confidence.confidence import log_lengths
from fedunseen.core.parameters import Params
from fedunseen.federation.federation import Federation
from fedunseen.methods.closed_form.base import ClosedForm


def folds_of(federation: Federation, sums: Params, model: Params) -> list[HeldOut]:
    """Return what models without some seen classes say of held-out training samples, in closed
    form; none where that is impossible.

    Args:
        federation: with all samples in this process.
        sums: merged statistics.
        model: solved from them.
    """
    method = federation.method
    if not isinstance(method, ClosedForm):
        return []
    train = federation.benchmark.train
    dealt = np.concatenate(federation.partition.clients)
    times = np.bincount(dealt, minlength=len(federation.benchmark.labels))[train]
    folds = closed_form_folds(
        method,
        model,
        sums,
        federation.inputs,
        federation.labels,
        train,
        seed=0,  # all classes take turns, whatever a run draws
        times=times.clip(min=1),
    )
    samples = federation.benchmark.features
    if not folds or folds[0].distance is None or samples.ndim != 2:
        return folds
    held = np.unique(np.concatenate([fold.places for fold in folds]))  # folds share samples
    lengths = np.empty(len(samples))
    lengths[held] = log_lengths(samples[held])
    return [replace(fold, lengths=lengths[fold.places]) for fold in folds]


def held_out_of(federation: Federation, params: Params) -> HeldOut:
    """Return what a complete model says of a benchmark's test samples.

    Of a benchmark that is for choosing, these are held-out training samples and those of validation
    classes, which play unseen ones.
    """
    benchmark = federation.benchmark
    rows = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    space = benchmark.space
    candidates = np.sort(np.concatenate([space.seen, space.unseen]))
    method = federation.method
    semantics = federation.semantics
    scores = []
    distances = []
    with torch.no_grad():
        for inputs in federation.batches(rows):
            scores.append(method.scores(params, inputs, semantics).double().cpu().numpy())
            apart = None
            if isinstance(method, ClosedForm):
                apart = method.distances(params, inputs, semantics)
            distances += [] if apart is None else [apart.double().cpu().numpy()]
    return HeldOut(
        np.concatenate(scores)[:, candidates],
        np.searchsorted(candidates, benchmark.labels[rows]),
        np.isin(candidates, space.unseen),
        np.concatenate(distances) if distances else None,
        lengths=log_lengths(benchmark.features[rows]) if distances else None,
    )
