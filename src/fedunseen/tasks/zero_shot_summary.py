"""What a zero-shot run records beside its accuracies: what the report draws.

Tensors: answers, who held what, similarities, sample images, sums of features. Numbers: in lines of
metrics and in the result.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedunseen.core.class_similarity import correlation
from fedunseen.core.parameters import Params
from fedunseen.evaluation.plane import plane, silhouette
from fedunseen.federation.federation import Federation
from fedunseen.methods import Candidates

_IMAGES = 60  # test samples of unseen classes shown in the report
_PIXELS = 64  # the longer side of such an image, at most
_EMBEDDED = 300  # test samples of unseen classes in the picture of the plane
MAPPED = (1, 5, 10, 20)  # rounds whose similarities are kept (DistZSL, Fig. 5), beside the last
_MEASURED = 50  # clients whose own models are measured
_PER_CLASS = 20  # test samples of a class that its similarities are a mean of


def summary_tensors(
    federation: Federation, params: Params, offset: float, embedding: str | bool
) -> dict[str, NDArray[Any]]:
    """Summarize a finished run."""
    benchmark = federation.benchmark
    space = federation.benchmark.space
    classes = len(space.names)
    tensors: dict[str, NDArray[Any]] = {
        "client_counts": federation.partition.counts(benchmark.labels, classes),
        "similarity": semantics_correlation(space.semantics).astype(np.float32),
    }
    if not federation.strategy.one_model:
        return tensors
    answers = federation.answers(params)
    tensors |= {
        "labels": answers.labels,
        "zsl_answers": answers.zsl,
        "gzsl_answers": answers.generalised(offset),
        "uncalibrated_answers": answers.generalised(-federation.method.own_offset(params)),
    }
    if benchmark.images() is not None:
        tensors |= _images(federation, params)
    if embedding:
        tensors |= (_generated if federation.method.generates else _embedding)(
            federation, params, str(embedding)
        )
    return tensors


def model_outputs(
    federation: Federation, params: Params, rows: NDArray[np.int64], output: str
) -> NDArray[np.float64]:
    """Return (n, ...) what a model makes of samples, by name: ``scores``, ``attributes``,
    ``features``, ...
    """
    method = federation.method
    parts = []
    with torch.no_grad():
        for inputs in federation.batches(rows):
            if output in ("scores", "unseen_scores"):
                outputs = getattr(method, output)(params, inputs, federation.semantics)
            else:
                outputs = getattr(method, output)(params, inputs)
            parts.append(outputs.double().cpu())
    return np.asarray(torch.cat(parts).numpy())


def semantics_correlation(semantics: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (C, C) the correlation of the classes' semantics, NaN for classes whose semantics are
    constant.
    """
    varied = np.ptp(semantics, axis=1) > 0
    similarity = np.full((len(semantics),) * 2, np.nan)
    similarity[np.ix_(varied, varied)] = correlation(semantics[varied])
    return similarity


def compatibility(federation: Federation, params: Params) -> dict[str, NDArray[Any]]:
    """Return (m,) ``classes`` that have test samples and (m, m) how well their mean predicted
    attributes fit each.
    """
    benchmark = federation.benchmark
    tests = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    labels = benchmark.labels[tests]
    rows = np.concatenate([tests[labels == c][:_PER_CLASS] for c in np.unique(labels)])
    predicted = model_outputs(federation, params, rows, "attributes")
    tested, place, counts = np.unique(
        benchmark.labels[rows], return_inverse=True, return_counts=True
    )
    sums = np.zeros((len(tested), predicted.shape[1]))
    np.add.at(sums, place, predicted)
    semantics = federation.semantics.double().cpu().numpy()
    return {
        "classes": tested,
        "compatibility": (sums / counts[:, None] @ semantics[tested].T).astype(np.float32),
    }


def some(clients: Sequence[int]) -> Sequence[int]:
    """Return at most 50 clients, evenly spaced: those whose own models are measured."""
    return clients[:: max(1, -(-len(clients) // _MEASURED))]


def spread_tests(federation: Federation, most: int) -> NDArray[np.int64]:
    """Return as many test samples of each unseen class, class by class, evenly spaced among them:
    the first files of a folder may be alike.
    """
    benchmark = federation.benchmark
    space = federation.benchmark.space
    by_class = [
        benchmark.test_unseen[benchmark.labels[benchmark.test_unseen] == c] for c in space.unseen
    ]
    turns = [
        k
        for i in range(max(map(len, by_class)))
        for k in range(len(by_class))
        if i < len(by_class[k])
    ]
    taken = np.bincount(turns[:most], minlength=len(by_class))
    return np.concatenate(
        [rows[np.arange(n) * len(rows) // n] for rows, n in zip(by_class, taken, strict=True) if n]
    )


def _images(federation: Federation, params: Params) -> dict[str, NDArray[Any]]:
    """Take test samples of the unseen classes and the model's best five answers for each."""
    benchmark = federation.benchmark
    unseen = federation.benchmark.space.unseen
    pictures = benchmark.images()
    assert pictures is not None
    chosen = spread_tests(federation, _IMAGES)
    scores = torch.from_numpy(model_outputs(federation, params, chosen, "unseen_scores")[:, unseen])
    best = scores.topk(min(5, len(unseen)), dim=1).indices
    return {
        "images": np.stack([small(pictures[i]) for i in chosen]),
        "image_rows": chosen,
        "image_labels": benchmark.labels[chosen],
        "image_answers": unseen[best.numpy()],
    }


def small(image: NDArray[Any]) -> NDArray[np.float32]:
    """Return an image (channels, h, w), bytes or in [0, 1], as (h, w) or (h, w, 3) in [0, 1],
    small.
    """
    pixels = image[0] if len(image) == 1 else np.moveaxis(image[:3], 0, -1)
    if max(pixels.shape[:2]) > _PIXELS:
        if pixels.dtype != np.uint8:
            pixels = np.round(255 * np.clip(pixels, 0, 1)).astype(np.uint8)
        shrunk = Image.fromarray(np.ascontiguousarray(pixels))
        shrunk.thumbnail((_PIXELS, _PIXELS))
        pixels = np.asarray(shrunk)
    scale = 255.0 if pixels.dtype == np.uint8 else 1.0
    return np.asarray(pixels, dtype=np.float32) / np.float32(scale)


def _embedding(federation: Federation, params: Params, kind: str) -> dict[str, NDArray[Any]]:
    """Lay out test samples of unseen classes in the plane, by what the model makes of them and as
    they come in.
    """
    rows = spread_tests(federation, _EMBEDDED)
    labels = federation.benchmark.labels[rows]
    if len(rows) < 5 or not 1 < len(np.unique(labels)) < len(rows):
        return {}
    coming = (
        torch.cat([_flat(inputs).cpu() for inputs in federation.batches(rows)]).double().numpy()
    )
    spaces = {"model": model_outputs(federation, params, rows, "represent"), "inputs": coming}
    if not all(
        np.isfinite(points).all() and points.std(axis=0).max() > 1e-12 for points in spaces.values()
    ):
        return {}  # features that have collapsed to one point have no picture
    return {
        "embedding_labels": labels,
        **{f"embedding_{name}": plane(points, kind) for name, points in spaces.items()},
        "silhouettes": np.array([silhouette(points, labels) for points in spaces.values()]),
    }


def _generated(federation: Federation, params: Params, kind: str) -> dict[str, NDArray[Any]]:
    """Lay out real test samples of unseen classes and as many generated ones in one plane."""
    method = federation.method
    space = federation.benchmark.space
    rows = spread_tests(federation, _EMBEDDED // 2)
    labels = federation.benchmark.labels[rows]
    among = Candidates(space.names, federation.semantics, space.seen, space.unseen)
    generated = []
    with torch.no_grad():
        for c in np.unique(labels).tolist():
            count = int((labels == c).sum())
            generated.append(method.generated(params, among, c, count, federation.seed))
    real = model_outputs(federation, params, rows, "represent")
    points = np.concatenate(
        [real, torch.cat(generated).double().cpu().numpy()]
    )  # rows are class by class too
    if len(rows) < 5 or not np.isfinite(points).all() or points.std(axis=0).max() < 1e-12:
        return {}  # what has collapsed to one point has no picture
    answers = federation.answers(params)
    of_class = [answers.labels == c for c in space.unseen]
    right = [
        100 * float((answers.zsl[in_class] == c).mean()) if in_class.any() else np.nan
        for in_class, c in zip(of_class, space.unseen, strict=True)
    ]
    return {
        "generated_labels": np.concatenate([labels, labels]),
        "generated_kind": np.repeat(np.array([0, 1]), len(rows)),
        "generated_plane": plane(points, kind),
        "generated_accuracy": np.array(right, dtype=np.float32),
    }


def _flat(inputs: Tensor) -> Tensor:
    """Return samples as vectors (n, d): maps and images are shrunk to at most 16 x 16 cells
    first.
    """
    if len(inputs.shape) == 2:
        return inputs.float()
    height, width = (min(16, length) for length in inputs.shape[2:])
    return torch.nn.functional.adaptive_avg_pool2d(inputs.float(), (height, width)).flatten(1)
