"""A finished run that changes without training: by new classes, their sums, or unlabelled samples.

A file of sums is in the safetensors format. Its metadata, JSON under ``classes``, name the classes
and the attributes; its tensors, all float64, are ``count`` (K,), ``total`` (K, d) and ``semantics``
(K, a), the descriptions. The metadata ``made``, JSON too, hold a digest of all that the sums depend
on beside the samples: how features are scaled, which encoder made them, and the seen classes of the
run. Sums of others mean something else, and are refused.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedunseen.core.errors import DataError, ExperimentError, FedUnseenError
from fedunseen.core.files import (
    check_tensor_header,
    check_unlinked,
    parse_json,
    whole_folder,
    write_json,
    write_tensors,
)
from fedunseen.core.parameters import Params
from fedunseen.core.samples import CodedRows
from fedunseen.data import Benchmark, ClassSpace
from fedunseen.data.class_space import check_semantics
from fedunseen.data.names import lookalike
from fedunseen.evaluation.diagnosis import adapted as diagnosed
from fedunseen.evaluation.diagnosis import lost_classes
from fedunseen.evaluation.summary import by_description
from fedunseen.experiment.assemble import assemble, dealt
from fedunseen.experiment.measured_again import (
    answers_to_tests,
    confidence_of,
    digests,
    recorded,
    tested_benchmark,
)
from fedunseen.experiment.own_samples import OwnSamples
from fedunseen.experiment.party_sums import agreed_data, coded, samples_in_sums
from fedunseen.experiment.result.stored import StoredRun
from fedunseen.experiment.run_model import MODEL_FILES
from fedunseen.experiment.small_cells import without_small_cells
from fedunseen.experiment.space_versions import versions_of
from fedunseen.federation.evaluator import Evaluator
from fedunseen.federation.federation import Federation
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.methods.closed_form.gaussian import Gaussian
from fedunseen.methods.closed_form.statistics import hidden_features
from fedunseen.methods.closed_form.unlabelled import Adapted
from fedunseen.metrics import Answers, accuracies, over_all, per_class
from fedunseen.model import Calibration, ClassSum, Model
from fedunseen.tasks.any_shot import summed

R = TypeVar("R", bound=StoredRun)
_BLOCK = 4096  # samples scored at once


def adapt_run(run: R, rows: NDArray[Any], folder: Path | None, among: str) -> R:
    """Return the run adapted to unlabelled samples (n, ...); see :meth:`fedunseen.Run.adapt`."""
    _, adapted = run.model.adapted([rows], among)
    return write_adapted(run, adapted, folder, rows, {"among": among})


def write_adapted(
    run: R,
    adapted: Adapted,
    folder: Path | None,
    rows: NDArray[Any] | None,
    traffic: Mapping[str, Any],
) -> R:
    """Measure an adapted run where its test samples are here, and write it."""
    offset = run.model.calibration.offset
    adapted_offset = offset * adapted.offset_share
    adapted_model = replace(
        run.model, params=adapted.params, calibration=Calibration(adapted_offset)
    )
    if rows is not None:
        adapted_model = adapted_model.no_surer_than(run.model, [rows])
    outdated = {"confidence", "learn_effect"}
    result = {name: value for name, value in run.result.items() if name not in outdated}
    drawn = answers = None
    try:
        if run.brought_home:
            raise DataError("they are at the coordinator")
        benchmark = tested_benchmark(run)
        learned_since = len(run.space.names) > len(benchmark.space.names)
        federation, task, _ = judged(run, benchmark, int(run.result["rounds"]), adapted.params)
    except FedUnseenError as error:
        note = adaptation_note(adapted, run.space.names)
        result |= {"calibration_factor": adapted_offset, "adapted": note}
        warnings.warn(
            f"the adapted run keeps the accuracies of {run.path}: its test samples are not here "
            f"({error})",
            stacklevel=4,
        )
    else:
        both = [federation.answers(params) for params in (run.params, adapted.params)]
        if learned_since:  # its classes compete
            both = [answers_to_tests(benchmark, model) for model in (run.model, adapted_model)]
        own_offset = federation.method.own_offset(adapted.params)
        names = task.accuracies
        result |= adapted_numbers(both[0], both[1], own_offset, run.space, adapted, offset, names)
        if rows is not None:
            result["adapted"]["test_share"] = test_share(rows, benchmark)
        drawn = None if learned_since else task.summary(adapted.params, result)
        answers = recorded(both[1], adapted_offset, own_offset) if learned_since else {}
        numbers, reasons = confidence_of(
            run, adapted_model, benchmark, drawn or {**run.evaluation, **answers}
        )
        result |= numbers
        answers |= reasons
        answers |= {name: v for name, v in run.evaluation.items() if name == "left_out_tests"}
    result["adapted"] |= {**traffic, "shown": sorted(run.result.get("shown", {}))}
    if rows is not None:
        result["adapted"]["classes"] |= pool_answers(run.model, adapted_model, rows)
    result["adapted"]["lost"] = lost_classes(result["adapted"])
    if folder is not None:
        write_changed(run, adapted_model, folder, result, drawn, answers)
    for sign in diagnosed(result["adapted"]):
        warnings.warn(f"{sign.what} {sign.remedy}", stacklevel=4)
    return run.of_model(adapted_model, result=result) if folder is None else run.reopened(folder)


def pool_answers(before: Model, after: Model, rows: NDArray[Any]) -> dict[str, list[int]]:
    """Return to how many unlabelled samples each class is the answer, before and after."""
    classes = len(before.space.names)
    counts = {}
    for key, model in (("answers_before", before), ("answers_after", after)):
        parts = np.split(rows, range(_BLOCK, len(rows), _BLOCK))
        answers = np.concatenate([model.scores(part).argmax(1) for part in parts])
        counts[key] = np.bincount(answers, minlength=classes).tolist()
    return counts


_MADE_ANEW = (  # or left out; the rest is copied
    "adapting", "labelled.safetensors", "checkpoints", "selection", "engine", "further",
    "report.html", "README.md", "result.json", "personal.safetensors", *MODEL_FILES,
)  # fmt: skip


def write_changed(
    run: StoredRun,
    learned: Model,
    folder: Path,
    result: Mapping[str, Any],
    drawn: Mapping[str, NDArray[Any]] | None = None,
    answers: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """Write the directory of a run with a changed model beside its final place and move it there
    whole.

    ``drawn`` is what the report draws; None: what it draws of ``run``, with new ``answers``.
    """
    learnt = [*run.manifest.get("learnt", ()), *result.get("learnt", ())]
    manifest = {**run.manifest, "learnt": list(dict.fromkeys(learnt))}  # a result keeps older ones
    check_unlinked(run.path, set(_MADE_ANEW) - set(MODEL_FILES))  # what they hold is in the new one
    with whole_folder(folder, run.path, _MADE_ANEW) as partial:
        write_json(
            partial / "manifest.json",
            manifest if run.client is None else {**manifest, "client": run.client},
        )
        learned.space.save(partial / "classes.csv")
        learned.save(partial / MODEL_FILES[0])
        if not run.brought_home:
            drawn = drawn or _expanded(
                run.evaluation, len(learned.space.names) - len(run.space.names)
            )
            write_tensors(partial / "evaluation.safetensors", {**drawn, **(answers or {})})
        before = by_description(run.result)
        kept = {} if before is None else {"gzsl_unseen_by_description": before}
        RunDirectory(partial).finish({**result, **kept, "run": str(folder)})


_CLASS_AXES = {
    "client_counts": (1,), "similarity": (0, 1), "support_classes": (0,), "support_weights": (0,),
    "prototype_deviation": (0,),
}  # fmt: skip
"""Of what the report draws: the axes that classes run along."""


def _expanded(tensors: Mapping[str, NDArray[Any]], new_classes: int) -> dict[str, NDArray[Any]]:
    """Add empty places for new classes to what the report draws: no one trained on them and no test
    had them.
    """
    expanded = dict(tensors)
    for name in _CLASS_AXES.keys() & tensors.keys():
        value = tensors[name]
        wide = [(0, new_classes if axis in _CLASS_AXES[name] else 0) for axis in range(value.ndim)]
        expanded[name] = np.pad(
            value, wide, constant_values=np.nan if value.dtype.kind == "f" else 0
        )
    return expanded


def judged(
    run: StoredRun, benchmark: Benchmark, rounds: int, params: Params
) -> tuple[Federation, Evaluator, ClassSpace]:
    """Return what solves and measures the sums that are left, and the class space.

    Where the class space has grown, a class without samples is unseen again.
    """
    experiment = run.experiment
    kind = run.experiment.task
    benchmark, partition = dealt(experiment, benchmark)
    versions = versions_of(experiment, benchmark, partition, RunDirectory(run.path))
    if versions is None:
        held = kind.client_data(benchmark)
        federation = assemble(experiment, held, partition, scaler=run.scaler)
        task = kind.evaluator(federation, benchmark, experiment.evaluation)
        return federation, task, run.space
    versions.scaler = run.scaler
    federation, task = versions.at(rounds)
    without_samples = torch.nonzero(params["count"] == 0)[:, 0].numpy()
    without_samples = np.intersect1d(without_samples, versions.version.space.seen)
    if len(without_samples):
        federation, task = versions.without(without_samples)
    return federation, task, versions.version.space


def adaptation_note(
    adapted: Adapted, names: Sequence[str], **accuracy: tuple[Answers, float]
) -> dict[str, Any]:
    """Return what each class got of the samples."""
    ids = np.arange(len(names))
    seen = adapted.params["seen_mask"] > 0
    table: dict[str, list[Any]] = {
        "class": list(names),
        "seen": seen.tolist(),
        "samples": [round(count, 2) for count in adapted.samples.tolist()],
    }
    for key, (answers, offset) in accuracy.items():
        right = per_class(answers.labels, answers.generalised(offset), ids)
        table[key] = [None if np.isnan(value) else round(float(value), 2) for value in right]
    refused = [names[c] for c in torch.nonzero(adapted.refused)[:, 0].tolist()]
    return {
        "samples": adapted.pool,
        "refused": refused,
        "measured": bool(accuracy),
        "classes": table,
    }


def adapted_numbers(
    old: Answers,
    new: Answers,
    own_offset: float,
    space: ClassSpace,
    adapted: Adapted,
    offset: float,
    names: Sequence[str],
) -> dict[str, Any]:
    """Return the numbers of an adapted run, among them ``adapted``, its report.

    Args:
        old: answers before, under ``offset``.
        new: answers after.
        own_offset: that of the adapted model's method.
        space: the class space.
        adapted: what was learned from unlabelled samples.
        offset: the calibration before.
        names: the accuracies that the run states.
    """
    adapted_offset = offset * adapted.offset_share
    first = asdict(accuracies(old, offset))
    numbers = asdict(accuracies(new, adapted_offset))
    plain = asdict(accuracies(new, -own_offset))
    note = adaptation_note(adapted, space.names, before=(old, offset), after=(new, adapted_offset))
    note |= {"before": {name: first[name] for name in names}}
    uncalibrated = {f"uncalibrated_{name}": plain[name] for name in names if name != "zsl"}
    return (
        {name: numbers[name] for name in names}
        | uncalibrated
        | {"gzsl_accuracy": over_all(new, adapted_offset)}
        | {"calibration_factor": adapted_offset, "adapted": note}
    )


def test_share(rows: NDArray[Any], benchmark: Benchmark) -> float:
    """Return which share of samples (n, ...) are test samples of a benchmark, by content."""
    tests = benchmark.features[np.concatenate([benchmark.test_unseen, benchmark.test_seen])]
    test_digests = set(digests(tests)) if tests.shape[1:] == rows.shape[1:] else set()
    return float(np.mean([digest in test_digests for digest in digests(rows)]))


_TENSORS = ("count", "semantics", "total")


def write_class_sums(
    run: StoredRun,
    folder: Path,
    out: Path,
    min_samples: int = 1,
    owner: Mapping[str, Any] | None = None,
) -> tuple[dict[str, int], dict[str, int]]:
    """Write the sums over a party's samples, as the run's model sees these, for each class that it
    has enough of.

    ``min_samples`` is how many are enough; more, if the run asks for more (``method.min_samples``).
    ``owner``: what the owner states of the run's data settings (:func:`~.party_sums.agreed_data`).

    Returns:
        Class -> its samples: of those in the file, and of those that are left out.
    """
    method = _gaussian(run)
    if out.exists():
        raise ExperimentError(f"{out} exists already: name another file with --out")
    party = OwnSamples(folder, settings=run.experiment.data.model_dump(exclude_none=True))
    benchmark = party.benchmark
    agreed = agreed_data(run, owner or {})
    space = benchmark.space
    _check_attributes(str(folder / "classes.csv"), run, space.attribute_names)
    minimum = max(min_samples, int(getattr(run.experiment.method, "min_samples", 1)))
    held = samples_in_sums(run, benchmark, minimum, stated=agreed)
    labels = benchmark.labels[benchmark.train]
    data = run.experiment.data
    benchmark = without_small_cells(benchmark, data, benchmark.train, labels, minimum, run.scaler)
    rows = held.summed
    if not len(rows):
        raise DataError(
            f"{folder} has fewer than {minimum} samples of each class, and sums of few samples "
            "nearly show them: give --min-samples 1 to write every class"
        )
    sums = _sums_of_classes(run, method, benchmark, rows, minimum)
    classes = np.unique(benchmark.labels[rows])
    tensors = {
        "count": torch.tensor([part.count for part in sums.values()], dtype=torch.float64),
        "total": torch.stack([part.total for part in sums.values()]),
        "semantics": torch.from_numpy(space.semantics[classes].astype(np.float64)),
    }
    about = {
        "classes": {"names": list(sums), "attributes": space.attribute_names},
        "made": _made_of(run),
    }
    notes = {key: json.dumps(value) for key, value in about.items()}
    write_tensors(out, tensors, notes, follow=True)
    written = {name: int(part.count) for name, part in sums.items()}
    return written, {space.names[c]: count for c, count in held.few.items()}


def _sums_of_classes(
    run: StoredRun,
    method: Gaussian,
    benchmark: Benchmark,
    rows: NDArray[np.int64],
    min_samples: int,
) -> dict[str, ClassSum]:
    """Return the sum of each class's samples, in the order of classes; features that would show
    fewer than ``min_samples`` of them are hidden.
    """
    names = benchmark.space.names
    samples, labels = coded(run, benchmark, rows, np.arange(len(names)))
    quantization = method.quantization if len(samples.shape) == 2 else None
    hidden = hidden_features(samples, labels, len(names), quantization, min_samples)
    sums = {}
    for c in np.unique(labels.numpy()).tolist():
        of_class = torch.nonzero(labels == c)[:, 0]
        if quantization is None:
            features = run.features_of(benchmark, rows[of_class.numpy()])
            sums[names[c]] = summed(run.model, method, names[c], features)
            continue
        # the very numbers by which features are hidden, not what a model makes of the samples
        codes = CodedRows(samples.samples, samples.rows[of_class]).codes(slice(None))[0]
        if hidden is not None:
            codes = hidden.applied(codes, labels[of_class])
        scaled = codes.float() * torch.from_numpy(quantization.step)  # as a scaler does
        sums[names[c]] = ClassSum(len(of_class), scaled.double().sum(0))
    return sums


def read_class_sums(
    run: StoredRun, path: Path
) -> tuple[dict[str, list[float]], dict[str, ClassSum]]:
    """Return the descriptions of classes that the run does not know yet, and the sums of all
    classes of a file.
    """
    width = _gaussian(run).width
    file = _ClassSums.read(path)
    _check_attributes(str(path), run, file.attributes)
    digests = _made_of(run)
    if different := [part for part in digests if file.digests.get(part) != digests[part]]:
        raise DataError(
            f"{path}: the sums were made with another run: it differs in "
            f"{' and '.join(different)}: let the party make them with this run, or a copy of it"
        )
    if file.total.shape[1] != width:
        raise DataError(
            f"{path}: the sums are over features of {file.total.shape[1]} numbers, but this run's "
            f"model takes {width}: let the party make them with this run"
        )
    sums = file.sums()
    check_semantics(file.names, file.semantics.numpy())
    return _new_descriptions(run, file), sums


@dataclass(frozen=True, eq=False)
class _ClassSums:
    """A file of sums: of each class its name, its samples, its description and the sum of its
    features.

    Attributes:
        count: (C,) samples.
        semantics: (C, attributes).
        total: (C, d).
        digests: what the sums were made of (:func:`_made_of`).
    """

    path: Path
    names: list[str]
    attributes: list[str]
    digests: dict[str, Any]
    count: Tensor
    semantics: Tensor
    total: Tensor

    @staticmethod
    def read(path: Path) -> _ClassSums:
        """Read a file; raise a DataError where its names, shapes or types do not go together."""
        damaged = DataError(
            f"{path} is not a file of sums, or is damaged: let the party write it again with "
            "fedunseen sums"
        )
        try:
            check_tensor_header(path)
            with safe_open(str(path), "pt") as file:
                metadata = file.metadata() or {}
                saved = parse_json(metadata["classes"])
                digests = dict(parse_json(metadata["made"]))
                names = saved["names"]
                attributes = saved["attributes"]
                count, semantics, total = (file.get_tensor(name) for name in _TENSORS)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError):
            raise damaged from None
        if not all(
            isinstance(entries, list) and all(isinstance(entry, str) and entry for entry in entries)
            for entries in saved.values()
        ):
            raise damaged
        classes = len(names)
        width = total.shape[-1] if total.ndim else 0
        shapes = (
            (count, (classes,)),
            (semantics, (classes, len(attributes))),
            (total, (classes, width)),
        )
        fits = all(part.shape == shape and part.dtype == torch.float64 for part, shape in shapes)
        if not fits or not classes or len(set(names)) < classes:
            raise damaged
        return _ClassSums(path, names, attributes, digests, count, semantics, total)

    def sums(self) -> dict[str, ClassSum]:
        """Return the sum of each class; raise a DataError where numbers cannot be sums."""
        sums = {}
        for name, n, s in zip(self.names, self.count.tolist(), self.total, strict=True):
            if not (1 <= n <= 2**53 and n == int(n) and bool(torch.isfinite(s).all())):
                raise DataError(
                    f"{self.path}: the sums of the class {name!r} hold numbers that cannot be "
                    "sums: leave it out"
                )
            sums[name] = ClassSum(n, s)
        return sums


def _new_descriptions(run: StoredRun, file: _ClassSums) -> dict[str, list[float]]:
    """Return the descriptions of classes that the run does not know; those that it knows must be
    the same.
    """
    new = {}
    for name, row in zip(file.names, file.semantics.numpy(), strict=True):
        place = _place(run, name)
        if place is None or not bool(run.params["described"][place]):
            new[name] = row.tolist()
        elif not np.allclose(row, run.space.semantics[place], rtol=1e-5, atol=1e-8):
            raise DataError(
                f"{file.path}: the class {name!r} is described otherwise than in this run: give "
                "the party the run's classes.csv, or rename the class if it is another"
            )
    return new


def read_all_class_sums(
    run: StoredRun, paths: Sequence[Path]
) -> tuple[dict[str, list[float]], dict[str, ClassSum]]:
    """Return what :func:`read_class_sums` does, of the files of several parties, whose sums of one
    class are added.
    """
    described: dict[str, list[float]] = {}
    added: dict[str, ClassSum] = {}
    where: dict[str, Path] = {}
    if len({path.resolve() for path in paths}) < len(paths):
        raise DataError("--sums names a file twice: its samples would count twice, so give it once")
    for path in paths:
        new, sums = read_class_sums(run, path)
        for name, row in new.items():
            if name in described and not np.allclose(row, described[name], rtol=1e-5, atol=1e-8):
                raise DataError(
                    f"{path}: the class {name!r} is described otherwise than in {where[name]}: let "
                    "both parties use one description, or rename one of the classes"
                )
            described.setdefault(name, row)
            where.setdefault(name, path)
        for name, class_sum in sums.items():
            before = added.get(name)
            added[name] = (
                class_sum
                if before is None
                else ClassSum(before.count + class_sum.count, before.total + class_sum.total)
            )
    return described, added


def _made_of(run: StoredRun) -> dict[str, str]:
    """Return what sums depend on beside the samples, each as a digest, under the words that a
    message has for it.

    Classes that a run has learned since are unseen ones: they change none of it.
    """
    space = run.space
    encoder = run.manifest.get("encoder") or {}
    seen = json.dumps([[space.names[c] for c in space.seen], space.attribute_names]).encode()
    parts = {
        "the encoder": json.dumps([run.experiment.encoder.name, encoder.get("digest")]).encode(),
        "the seen classes": seen + space.semantics[space.seen].astype(np.float64).tobytes(),
    }
    digests = {part: hashlib.sha256(value).hexdigest() for part, value in parts.items()}
    return {"how features are scaled": run.scaler.digest(), **digests}


def _gaussian(run: StoredRun) -> Gaussian:
    if not isinstance(run.method, Gaussian) or "described" not in run.params:
        raise ExperimentError(
            f"method.name = {run.method_name!r} cannot learn from sums once it is trained: run "
            "method.name = 'gaussian', on the same features or on those of this run (encoder.name "
            "= 'run')"
        )
    return run.method


def _check_attributes(place: str, run: StoredRun, attributes: object) -> None:
    if list(attributes) != list(run.space.attribute_names):  # type: ignore[call-overload]
        raise DataError(
            f"{place}: the attributes are not those of this run, in their order: start from the "
            "run's classes.csv and add a line for each new class"
        )


def _place(run: StoredRun, name: str) -> int | None:
    """Return the place of a class among the run's; None if it is new."""
    if name in run.space.names:
        return run.space.names.index(name)
    if similar := lookalike(name, run.space.names):
        raise DataError(
            f"the sums are of {name!r}, and there is a class {similar!r}: let the party name it "
            f"{similar!r} if they are the same, and otherwise something else"
        )
    return None
