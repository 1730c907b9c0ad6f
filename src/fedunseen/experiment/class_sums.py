"""Classes that a party adds to a finished run: it sends their sums, and its samples stay where they are.

A file of sums is in the safetensors format. Its metadata, JSON under ``classes``, name the classes and the attributes;
its tensors, all float64, are ``count`` (K,), ``total`` (K, d) and ``semantics`` (K, a), the descriptions. The metadata
``made``, JSON too, hold a digest of all that the sums depend on beside the samples: how features are scaled, which
encoder made them, and the seen classes of the run. Sums of others mean something else, and are refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.files import write_tensors
from fedunseen.data.class_space import check_semantics
from fedunseen.data.names import composed
from fedunseen.experiment.client_data import PartyData
from fedunseen.experiment.result.run import Run
from fedunseen.methods.closed_form.gaussian import Gaussian
from fedunseen.tasks.any_shot import summed
from fedunseen.tasks.base import ClassSum

_TENSORS = ("count", "semantics", "total")


def write_class_sums(run: Run, folder: Path, out: Path) -> dict[str, int]:
    """Write the sums over a party's samples, as the run's model sees these, for each class that it has some of."""
    method = _gaussian(run)
    if out.exists():
        raise ExperimentError(f"{out} exists already: name another file with --out")
    party = PartyData(folder, settings=run.experiment.data.model_dump(exclude_none=True))
    benchmark = party.benchmark
    space, rows = benchmark.space, benchmark.train
    _check_attributes(str(folder / "classes.csv"), run, space.attribute_names)
    labels = benchmark.labels[rows]
    names, sums = [], []
    for c in np.unique(labels).tolist():
        chosen = rows[labels == c]
        names.append(space.names[c])
        sums.append(summed(run, method, names[-1], run.features_of(benchmark, chosen)))
    tensors = {
        "count": torch.tensor([part.count for part in sums], dtype=torch.float64),
        "total": torch.stack([part.total for part in sums]),
        "semantics": torch.from_numpy(space.semantics[np.unique(labels)].astype(np.float64)),
    }
    about = {"classes": {"names": names, "attributes": space.attribute_names}, "made": _digests(run)}
    write_tensors(out, tensors, {key: json.dumps(value) for key, value in about.items()})
    return {name: int(part.count) for name, part in zip(names, sums, strict=True)}


def read_class_sums(run: Run, path: Path) -> tuple[dict[str, list[float]], dict[str, ClassSum]]:
    """Return the descriptions of classes that the run does not know yet, and the sums of all classes of a file."""
    width = _gaussian(run).width
    damaged = DataError(
        f"{path} is not a file of sums, or is damaged: let the party write it again with fedunseen sums"
    )
    try:
        with safe_open(str(path), "pt") as file:
            metadata = file.metadata() or {}
            saved, made = json.loads(metadata["classes"]), dict(json.loads(metadata["made"]))
            names, attributes = saved["names"], saved["attributes"]
            count, semantics, total = (file.get_tensor(name) for name in _TENSORS)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError):
        raise damaged from None
    if not all(isinstance(some, list) and all(isinstance(one, str) and one for one in some) for some in saved.values()):
        raise damaged
    classes = len(names)
    shapes = [(classes,), (classes, len(attributes)), (classes, total.shape[-1] if total.ndim else 0)]
    parts = (count, semantics, total)
    fits = all(part.shape == shape and part.dtype == torch.float64 for part, shape in zip(parts, shapes, strict=True))
    if not fits or not classes or len(set(names)) < classes:
        raise damaged
    _check_attributes(str(path), run, attributes)
    own = _digests(run)
    if different := [what for what in own if made.get(what) != own[what]]:
        raise DataError(
            f"{path}: the sums were made with another run: it differs in {' and '.join(different)}: let the party make "
            "them with this run, or a copy of it"
        )
    if total.shape[1] != width:
        raise DataError(
            f"{path}: the sums are over features of {total.shape[1]} numbers, but this run's model takes {width}: let "
            "the party make them with this run"
        )
    for name, n, s in zip(names, count.tolist(), total, strict=True):
        if not (1 <= n <= 2**53 and n == int(n) and bool(torch.isfinite(s).all())):
            raise DataError(f"{path}: the sums of the class {name!r} hold numbers that cannot be sums: leave it out")
    check_semantics(names, semantics.numpy())
    new = {}
    for name, row in zip(names, semantics.numpy(), strict=True):
        known = _place(run, name)
        if known is None or not bool(run.params["described"][known]):
            new[name] = row.tolist()
        elif not np.allclose(row, run.space.semantics[known], rtol=1e-5, atol=1e-8):
            raise DataError(
                f"{path}: the class {name!r} is described otherwise than in this run: give the party the run's "
                "classes.csv, or rename the class if it is another"
            )
    return new, {name: ClassSum(n, s) for name, n, s in zip(names, count.tolist(), total, strict=True)}


def read_all_class_sums(run: Run, paths: Sequence[Path]) -> tuple[dict[str, list[float]], dict[str, ClassSum]]:
    """Return what :func:`read_class_sums` does, of the files of several parties, whose sums of one class are added."""
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
                    f"{path}: the class {name!r} is described otherwise than in {where[name]}: let both parties use "
                    "one description, or rename one of the classes"
                )
            described.setdefault(name, row)
            where.setdefault(name, path)
        for name, own in sums.items():
            before = added.get(name)
            added[name] = own if before is None else ClassSum(before.count + own.count, before.total + own.total)
    return described, added


def _digests(run: Run) -> dict[str, str]:
    """Return what sums depend on beside the samples, each as a digest, under the words that a message has for it.

    Classes that a run has learned since are unseen ones: they change none of it.
    """
    steps = run.scaler
    scaling = json.dumps(steps.steps).encode()
    for name, value in sorted(steps.statistics.items()):
        scaling += name.encode() + value.tobytes()
    space, encoder = run.space, run.manifest.get("encoder") or {}
    seen = json.dumps([[space.names[c] for c in space.seen], space.attribute_names]).encode()
    parts = {
        "how features are scaled": scaling,
        "the encoder": json.dumps([run.experiment.encoder.name, encoder.get("digest")]).encode(),
        "the seen classes": seen + space.semantics[space.seen].astype(np.float64).tobytes(),
    }
    return {what: hashlib.sha256(value).hexdigest() for what, value in parts.items()}


def _gaussian(run: Run) -> Gaussian:
    if not isinstance(run.method, Gaussian) or "described" not in run.params:
        raise ExperimentError(
            f"method.name = {run.method_name!r} cannot learn from sums once it is trained: run method.name = "
            "'gaussian', on the same features or on those of this run (encoder.name = 'run')"
        )
    return run.method


def _check_attributes(place: str, run: Run, attributes: object) -> None:
    if list(attributes) != list(run.space.attribute_names):  # type: ignore[call-overload]
        raise DataError(
            f"{place}: the attributes are not those of this run, in their order: start from the run's classes.csv and "
            "add a line for each new class"
        )


def _place(run: Run, name: str) -> int | None:
    """Return the place of a class among the run's; None if it is new."""
    if name in run.space.names:
        return run.space.names.index(name)
    for other in run.space.names:
        if composed(other).casefold() == composed(name).casefold():
            raise DataError(
                f"the sums are of {name!r}, and there is a class {other!r}: let the party name it {other!r} if they "
                "are the same, and otherwise something else"
            )
    return None
