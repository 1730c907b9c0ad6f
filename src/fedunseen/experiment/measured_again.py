"""A run that has changed since, on the test samples of the run that it comes from."""

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.confidence import HeldOut
from fedunseen.confidence.measured import measured
from fedunseen.core.errors import DataError, FedUnseenError
from fedunseen.data import Benchmark
from fedunseen.evaluation import diagnosis
from fedunseen.evaluation.learn_effect import learn_effect
from fedunseen.evaluation.misplaced import lit_tests
from fedunseen.experiment.assemble import load_data
from fedunseen.experiment.manifest import encoder_of
from fedunseen.experiment.reasons import reason_tensors
from fedunseen.experiment.result.stored import StoredRun
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.metrics import Answers, accuracies, answers_of, over_all
from fedunseen.model import ClassSum, Examples, Model

_BLOCK = 1024  # samples scored at once


def measured_again(
    run: StoredRun, learned: Model, examples: Examples | None = None
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the accuracies of a model that has learned since, and its answers as a run records
    them.

    Classes that it has learned compete. Test samples that are among the ``examples`` are left out,
    with a warning. Both are empty where a run keeps no answers, or where its test samples are not
    here, with a warning.
    """
    from_clients = run.brought_home or run.client is not None
    if from_clients or not isinstance(learned.method, ClosedForm) or "labels" not in run.evaluation:
        return {}, {}
    try:
        benchmark = tested_benchmark(run)
    except FedUnseenError as error:
        warnings.warn(
            f"the new run keeps the accuracies of {run.path}: its test samples are not here "
            f"({error})",
            stacklevel=3,
        )
        return {}, {}
    rows = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    # classes that were learned before follow
    same_classes = benchmark.space.names == run.space.names[: len(benchmark.space.names)]
    if not same_classes or not np.array_equal(benchmark.labels[rows], run.evaluation["labels"]):
        return {}, {}
    left, notes, left_out = _without_examples(run, benchmark, examples or {})
    if left is None:
        return notes, left_out
    benchmark = left
    answers = answers_to_tests(benchmark, learned)
    offset = learned.calibration.offset
    own_offset = learned.method.own_offset(learned.params)
    numbers = asdict(accuracies(answers, offset))
    plain = asdict(accuracies(answers, -own_offset))
    numbers |= {f"uncalibrated_{name}": plain[name] for name in numbers if name != "zsl"}
    numbers["gzsl_accuracy"] = over_all(answers, offset)
    old = answers_to_tests(benchmark, run.model).generalised(run.model.calibration.offset)
    new = answers.generalised(offset)
    taught = _taught(run, learned, examples or {})
    notes["learn_effect"] = learn_effect(taught, learned.space.names, answers.labels, old, new)
    tensors: dict[str, NDArray[Any]] = {
        **left_out,
        **recorded(answers, offset, own_offset),
    }
    if "badly_lit" in run.result:
        notes |= lit_tests(run.result, benchmark, tensors)
    again = {name: numbers[name] for name in numbers if name in run.result}
    confidence, reasons = confidence_of(run, learned, benchmark, {**run.evaluation, **tensors})
    return again | notes | confidence, tensors | reasons


def _taught(run: StoredRun, learned: Model, examples: Examples) -> dict[str, int]:
    """Return the classes that a model has learned: class -> how many examples it was given, 0 for a
    description alone.
    """
    old = run.space.semantics
    new = learned.space.semantics
    described = np.append((new[: len(old)] != old).any(1), np.ones(len(new) - len(old), bool))
    taught = {learned.space.names[c]: 0 for c in np.flatnonzero(described)}
    return taught | counts_of(examples)


def counts_of(examples: Examples) -> dict[str, int]:
    """Return how many examples there are of each class."""
    return {
        name: int(value.count) if isinstance(value, ClassSum) else len(value)
        for name, value in examples.items()
    }


def tested_benchmark(run: StoredRun) -> Benchmark:
    """Return a run's benchmark, whose test samples are those that the run was measured on.

    Raises:
        FedUnseenError: its data are not here, or its accuracies are from before all test samples of
            a kind were shown as examples.
    """
    places = _left_out(run)
    if sum(run.result.get("shown_tests", {}).values()) > len(places):
        raise DataError("all those of seen or of unseen classes were shown as examples")
    benchmark = load_data(run.experiment, run.experiment.run.seed)
    tests = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    return _without(benchmark, tests[places[places < len(tests)]])


def _left_out(run: StoredRun) -> NDArray[np.int64]:
    """Return the places of the test samples that a run's accuracies leave out, among those of the
    run that it comes from, (n,).
    """
    return run.evaluation.get("left_out_tests", np.zeros(0, np.int64))


def _without(benchmark: Benchmark, rows: NDArray[np.int64]) -> Benchmark:
    """Return a benchmark without some test samples."""
    if not len(rows):
        return benchmark
    kept = {
        name: getattr(benchmark, name)[~np.isin(getattr(benchmark, name), rows)]
        for name in ("test_unseen", "test_seen")
    }
    return replace(benchmark, **kept)


def _without_examples(
    run: StoredRun, benchmark: Benchmark, examples: Examples
) -> tuple[Benchmark | None, dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the benchmark without test samples that are examples, by content, None where none of a
    kind are left; how many those are, for the result; and their places, for what the report draws.
    Those of before are included.
    """
    rows = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    shown = [value for value in examples.values() if not isinstance(value, ClassSum)]
    same_shape = [value for value in shown if value.shape[1:] == benchmark.features.shape[1:]]
    marks = {mark for value in same_shape for mark in digests(value)}
    known = [mark in marks for mark in digests(benchmark.features[rows])] if marks else []
    shown_rows = np.array(known, dtype=bool) if marks else np.zeros(len(rows), bool)
    taken = rows[shown_rows]
    notes = dict(run.result.get("shown_tests", {}))
    for c in benchmark.labels[taken].tolist():
        name = benchmark.space.names[c]
        notes[name] = notes.get(name, 0) + 1
    if not notes:
        return benchmark, {}, {}
    kinds = (benchmark.test_unseen, benchmark.test_seen)
    enough = all(len(np.setdiff1d(kind, taken)) for kind in kinds)
    sign = diagnosis.shown_tests(notes, enough)
    warnings.warn(f"{sign.what} {sign.remedy}", stacklevel=4)
    if not enough:
        return None, {"shown_tests": notes}, {}
    before = _left_out(run)
    kept = np.setdiff1d(np.arange(len(rows) + len(before)), before)
    places = np.union1d(before, kept[shown_rows])
    return _without(benchmark, taken), {"shown_tests": notes}, {"left_out_tests": places}


def digests(rows: NDArray[Any]) -> list[bytes]:
    """Return what identifies each sample (n, ...) by its content."""
    whole = rows if rows.dtype == np.uint8 else rows.astype(np.float32)
    return [
        hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).digest()
        for row in whole
    ]


def confidence_of(
    run: StoredRun, changed: Model, benchmark: Benchmark, drawn: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return how the confidence of a changed model holds on test samples, as ``confidence``, and
    what the report shows of single answers; both empty where it has none.

    ``drawn``: what the new run records of its answers.
    """
    sure = changed.confidence
    if sure is None:
        return {}, {}
    rows = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    blocks = [benchmark.features[part] for part in np.split(rows, range(_BLOCK, len(rows), _BLOCK))]
    scores = np.concatenate([changed.scores(part) for part in blocks]).astype(np.float64)
    apart = [changed.distance(part) for part in blocks] if changed.finds_unfamiliar else []
    distance = np.concatenate([part for part in apart if part is not None]) if apart else None
    tests = HeldOut(scores, benchmark.labels[rows], ~changed.shown_mask, distance)
    of_unseen = np.repeat([True, False], [len(benchmark.test_unseen), len(benchmark.test_seen)])
    numbers = measured(tests, sure, 0.0, of_unseen)  # these scores are comparable already
    offset = changed.calibration.offset
    numbers |= origin(run.result)
    numbers["trade"] = [[extra_offset + offset, u, s] for extra_offset, u, s in numbers["trade"]]
    encoder = encoder_of(run.experiment, benchmark)
    return {"confidence": numbers}, reason_tensors(changed, benchmark, drawn, encoder)


def origin(result: Mapping[str, Any]) -> dict[str, str]:
    """Return what the confidence of a run was fitted to, for one with the same confidence."""
    before = result.get("confidence", {})
    return {name: before[name] for name in ("from",) if name in before}


def answers_to_tests(benchmark: Benchmark, learned: Model) -> Answers:
    """Return a model's answers to the test samples; all classes that it knows compete."""
    rows = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    semantics = learned.method.semantics
    scores = [
        learned.raw_scores(benchmark.features[rows[start : start + _BLOCK]], semantics)
        for start in range(0, len(rows), _BLOCK)
    ]
    space = learned.space
    return answers_of(np.concatenate(scores), benchmark.labels[rows], space.seen, space.unseen)


def recorded(answers: Answers, offset: float, own_offset: float) -> dict[str, NDArray[np.int64]]:
    """Return what a run records of its answers."""
    return {
        "labels": answers.labels,
        "zsl_answers": answers.zsl,
        "gzsl_answers": answers.generalised(offset),
        "uncalibrated_answers": answers.generalised(-own_offset),
    }
