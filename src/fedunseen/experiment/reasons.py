"""What a run's report shows of single answers: how sure each test answer is, the most confident
wrong ones, and reasons.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.confidence.explanation import Explanation
from fedunseen.core.parameters import Params
from fedunseen.data import Benchmark
from fedunseen.encoders.backbone import FrozenEncoder
from fedunseen.experiment.encoding import as_images
from fedunseen.experiment.run_model import trained_model
from fedunseen.experiment.setup import Setup
from fedunseen.model import Model
from fedunseen.tasks.zero_shot_summary import small

SHOWN = 12  # wrong answers
NAMED = 3  # seen classes that speak for an answer
_BLOCK = 256  # samples at once: images may take much memory on their way

Tensors = dict[str, NDArray[Any]]


def model_of(setup: Setup, params: Params) -> Model:
    """Return the model of a run, with its offset and confidence so far."""
    return trained_model(
        setup.experiment,
        setup.federation,
        setup.benchmark.space,
        params,
        float(setup.result.get("calibration_factor", 0.0)),
        setup.confidence,
        setup.manifest.get("encoder"),
    )


def reason_tensors(
    model: Model, benchmark: Benchmark, drawn: Mapping[str, NDArray[Any]], encoder: Any = None
) -> Tensors:
    """Return what a report draws of single answers.

    Args:
        model: with a confidence.
        benchmark: its test samples.
        drawn: what the run records of its answers.
        encoder: the frozen encoder that made the features; None: none did.

    Returns:
        ``stated`` (n,) the probability of the answer to each test sample. Of the most confident
        wrong answers ``wrong`` (W,) their places among test samples, and of these and of the shown
        sample images reasons, where the method has any: ``..._by`` (W, 3) the classes that speak
        most and ``..._share`` (W, 3) how much, in percent; of pictures ``..._places`` (W, h, w).
    """
    rows = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    answers = drawn["gzsl_answers"].astype(np.int64)
    stated = np.concatenate(
        [
            model.probabilities(benchmark.features[rows[start : start + _BLOCK]])
            for start in range(0, len(rows), _BLOCK)
        ]
    )[np.arange(len(rows)), answers]
    mistaken = np.flatnonzero(answers != drawn["labels"])
    wrong = mistaken[np.argsort(-stated[mistaken], kind="stable")][:SHOWN]
    tensors: Tensors = {"stated": stated.astype(np.float32), "wrong": wrong}
    pictures = benchmark.images()
    if pictures is not None and len(wrong):
        tensors["wrong_images"] = np.stack([small(pictures[i]) for i in rows[wrong]])
    if not model.explains:
        return tensors
    to_explain = {"wrong": (rows[wrong], answers[wrong])}
    if "image_rows" in drawn:
        to_explain["image"] = (drawn["image_rows"], drawn["image_answers"][:, 0].astype(np.int64))
    for name, (places, classes) in to_explain.items():
        if len(places):
            explained = _explained(model, benchmark, places, classes, encoder)
            parts = _parts(model.space.names, explained)
            tensors |= {f"{name}_{key}": value for key, value in parts.items()}
    return tensors


def _explained(
    model: Model,
    benchmark: Benchmark,
    rows: NDArray[np.int64],
    classes: NDArray[np.int64],
    encoder: Any,
) -> list[Explanation]:
    """Return why samples would be of classes."""
    samples = benchmark.features[rows]
    maps = None
    if benchmark.pictures is not None:
        mapping = encoder.with_maps() if isinstance(encoder, FrozenEncoder) else None
        maps = None if mapping is None else mapping.compute(benchmark.pictures[rows])
    elif benchmark.image_shape is not None:
        maps = as_images(samples, benchmark.image_shape)
    names = [model.space.names[c] for c in classes.tolist()]
    return model.explain(samples, NAMED, names, maps)


def _parts(names: Sequence[str], explained: Sequence[Explanation]) -> Tensors:
    """Return explanations as arrays."""
    tensors: Tensors = {}
    if explained[0].parts:
        by = np.full((len(explained), NAMED), -1, dtype=np.int64)
        share = np.zeros((len(explained), NAMED), dtype=np.float32)
        for row, explanation in enumerate(explained):
            for place, (name, percent) in enumerate(explanation.shares()):
                by[row, place] = names.index(name)
                share[row, place] = percent
        tensors = {"by": by, "share": share}
    if explained[0].places is not None:
        heat = [
            explanation.places.values for explanation in explained if explanation.places is not None
        ]
        tensors["places"] = np.stack(heat).astype(np.float32)
    return tensors
