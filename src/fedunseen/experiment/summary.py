"""What the report draws, as tensors: answers on the test samples, who held what, similarities, sample images."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.class_similarity import correlation
from fedunseen.core.parameters import Params
from fedunseen.experiment.federation import Federation

__all__ = ["summary_tensors"]

_IMAGES = 60  # test samples of unseen classes shown in the report


def summary_tensors(federation: Federation, params: Params, factor: float) -> dict[str, NDArray[Any]]:
    """Summarise a finished run.

    Returns:
        ``labels``, ``zsl_answers``, ``gzsl_answers`` (n,): true class, answer among the unseen and among all classes,
        of every test sample; ``client_counts`` (K, C): training samples of each class at each client; ``similarity``
        (C, C): correlation of the classes' semantics; ``model_similarity`` (C, C): correlation of the mean scores of
        each class's test samples, NaN for classes without; for images ``images`` (m, h, w), ``image_labels`` (m,),
        ``image_answers`` (m, 5): test samples of unseen classes and the best five classes among the unseen.
    """
    benchmark, space = federation.benchmark, federation.benchmark.space
    classes = len(space.names)
    tensors: dict[str, NDArray[Any]] = {
        "client_counts": federation.partition.counts(benchmark.labels, classes),
    }
    varied = np.ptp(space.semantics, axis=1) > 0
    similarity = np.full((classes, classes), np.nan)
    similarity[np.ix_(varied, varied)] = correlation(space.semantics[varied])
    tensors["similarity"] = similarity.astype(np.float32)
    if not federation.engine.strategy.merges:
        return tensors
    answers = federation.answers(params)
    tensors |= {
        "labels": answers.labels,
        "zsl_answers": answers.best_unseen,
        "gzsl_answers": answers.generalised(factor),
    }
    rows = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    profiles = np.zeros((classes, classes))
    counts = np.bincount(answers.labels, minlength=classes)
    with torch.no_grad():
        for start in range(0, len(rows), 4096):
            part = torch.from_numpy(rows[start : start + 4096]).to(federation.device)
            scores = federation.method.scores(params, federation.inputs[part], federation.semantics)
            np.add.at(profiles, answers.labels[start : start + 4096], scores.double().cpu().numpy())
    tested = counts > 0
    model_similarity = np.full((classes, classes), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        model_similarity[np.ix_(tested, tested)] = np.corrcoef(profiles[tested] / counts[tested, None])
    tensors["model_similarity"] = model_similarity.astype(np.float32)
    if benchmark.image_shape:
        tensors |= _images(federation, params)
    return tensors


def _images(federation: Federation, params: Params) -> dict[str, NDArray[Any]]:
    """Take test samples of the unseen classes in turn, evenly, and the model's best five answers for each."""
    benchmark, space = federation.benchmark, federation.benchmark.space
    assert benchmark.image_shape is not None
    by_class = [benchmark.test_unseen[benchmark.labels[benchmark.test_unseen] == c] for c in space.unseen]
    rows = [own[i] for i in range(max(map(len, by_class))) for own in by_class if i < len(own)][:_IMAGES]
    chosen = np.sort(np.array(rows))
    chosen = chosen[np.argsort(benchmark.labels[chosen], kind="stable")]
    with torch.no_grad():
        inputs = federation.inputs[torch.from_numpy(chosen).to(federation.device)]
        scores = federation.method.scores(params, inputs, federation.semantics).cpu()
    unseen = torch.from_numpy(space.unseen)
    best = scores[:, unseen].topk(min(5, len(unseen)), dim=1).indices
    return {
        "images": benchmark.features[chosen].reshape(-1, *benchmark.image_shape).astype(np.float32),
        "image_labels": benchmark.labels[chosen],
        "image_answers": unseen[best].numpy(),
    }
