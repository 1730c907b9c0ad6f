"""Sums that a party has counted before it is asked: by then its samples need not be encoded.

``fedunseen offline count`` prepares a party as an answer to a plan does. All rules that need its
features are applied then: classes of few samples, hidden features, samples that stand in for others
or that second moments would show. Its file says by what rules the sums were made, and of which
samples. ``join`` and ``offline answer`` take it where all of that is what they would count by now.
Whatever they refuse or write to the ledger and the history without it, they do with it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from numpy.typing import NDArray
from torch import from_numpy

from fedunseen import __version__
from fedunseen.core.array_cache import files_digest
from fedunseen.core.errors import DataError, RefusedError
from fedunseen.core.files import write_tensors
from fedunseen.core.model_file import read_tensor_file, refusing_damage
from fedunseen.core.parameters import Params, under, within
from fedunseen.core.trainer import LocalResult
from fedunseen.data import Benchmark, Scaler
from fedunseen.deploy.client_data import OTHER_SAMPLES, Cells, PartyData, Reading, raw_samples
from fedunseen.deploy.remote.party import Ready
from fedunseen.experiment.encoding import make_encoder
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.worker import Work, Worker
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.statistics import space_hash
from fedunseen.strategies import Instruction

FORMAT = 1
"""The version of the file; a reader refuses a later one."""

OTHER_PLAN = "other-plan"
DAMAGED = "statistics-file"
NEWER = "statistics-version"
NOT_COUNTED = "not-counted"

_KEY = "fedunseen counted"
_AGAIN = "count again with fedunseen offline count"


@dataclass(frozen=True, eq=False)
class Counted:
    """Sums of one party, and how they were made.

    Attributes:
        facts: what the sums depend on -> its value; a later answer compares all of them.
        samples: the SHA-256 of all samples of the folder and of their classes.
        rows: (n,) ids of the samples that are in the sums.
        left_out: the sentence about the others, for the owner alone.
        sums: of the samples (:mod:`fedunseen.methods.closed_form.statistics`).
    """

    facts: Mapping[str, str]
    samples: str
    rows: NDArray[np.int64]
    left_out: str
    sums: Params

    @property
    def _digest(self) -> str:
        content = hashlib.sha256(json.dumps([dict(self.facts), self.samples]).encode())
        for _, value in sorted({"rows": from_numpy(self.rows), **self.sums}.items()):
            content.update(value.numpy().tobytes())
        return content.hexdigest()

    def save(self, path: Path) -> None:
        """Write one safetensors file, whole or not at all, which no one else may read."""
        note = {
            "format": FORMAT,
            "facts": dict(self.facts),
            "samples": self.samples,
            "left_out": self.left_out,
            "sha256": self._digest,
        }
        tensors = under("sums/", self.sums) | {"rows": from_numpy(self.rows)}
        write_tensors(path, tensors, {_KEY: json.dumps(note)}, follow=True, private=True)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            DataError: the file is missing, damaged or of another kind (``statistics-file``), or a
                later version wrote it (``statistics-version``).
        """
        what = "sums for an answer, to which all rules of privacy were applied"
        about, tensors = read_tensor_file(path, (_KEY,), what, FORMAT, (DAMAGED, NEWER))
        with refusing_damage(path, _AGAIN, DAMAGED):
            facts = {str(name): str(value) for name, value in about["facts"].items()}
            rows = tensors["rows"].numpy()
            told = str(about["samples"]), rows, str(about["left_out"])
            counted = cls(facts, *told, within("sums/", tensors))
            if counted._digest != about["sha256"]:
                raise DataError(f"its sums are not those that were saved: {_AGAIN}", DAMAGED)
        return counted


class CountingParty(PartyData):
    """Counts what an answer would send."""

    facts: Mapping[str, str]
    left_out: str

    def count(self, header: Mapping[str, Any], statistics: Params) -> Counted:
        """Return the sums that a greeting asks for, once all rules have been applied.

        Raises:
            RefusedError: as an answer; or the plan asks for something else than sums (code
                ``not-counted``).
        """
        _check_countable(header)
        engine = self.prepare({**header, "client": 0}, statistics).engine
        assert engine is not None
        sums = engine.worker.sums(Work(0, Instruction({}), {})).params
        rows = engine.worker.samples[0]
        samples = _digest_of(self, self.benchmark)
        return Counted(self.facts, samples, rows, self.left_out, dict(sums))

    def _ready(self, read: Reading) -> Ready:
        ready = super()._ready(read)
        self.facts = _facts_of(self, read)
        self.left_out = ready.left_out
        return ready


class CountedParty(PartyData):
    """Answers with sums that were counted before, and reads its samples for nothing but the ledger.

    What asks how sure the model is needs features: it is answered as without counted sums.

    Args:
        held: the party, as it would count now.
        counted: its sums.
        source: the file that they come from, for messages.
    """

    def __init__(self, held: PartyData, counted: Counted, source: Path) -> None:
        vars(self).update(vars(held))
        self.held = held
        self.counted = counted
        self.source = source

    def prepare(self, header: Mapping[str, Any], statistics: Params) -> Ready:
        """Make the party ready; see :meth:`PartyData.prepare`.

        Raises:
            RefusedError: the sums are of another plan, by other rules (code ``other-plan``) or of
                other samples (``other-samples``), or something else is asked for
                (``not-counted``).
        """
        if _asks_confidence(header):
            return self.held.prepare(header, statistics)
        _check_countable(header)
        return super().prepare(header, statistics)

    def _encoded(
        self, experiment: Experiment, benchmark: Benchmark, shape: tuple[int, ...]
    ) -> Benchmark:
        """Return samples with numbers that tell them apart, in place of their features."""
        if _digest_of(self, benchmark) != self.counted.samples:
            raise RefusedError(
                f"{self.source} is of other samples than {self.folder} has now: {_AGAIN}",
                OTHER_SAMPLES,
            )
        numbers = np.arange(len(benchmark.labels) + math.prod(shape), dtype=np.float64)
        windows = sliding_window_view(numbers, math.prod(shape))[: len(benchmark.labels)]
        steps = np.empty(shape).strides  # of one sample; the next one begins a number later
        rows = as_strided(windows, (len(windows), *shape), (8, *steps), writeable=False)
        return replace(benchmark, features=rows, image_shape=None, pictures=None)

    def _advise(self, experiment: Experiment, benchmark: Benchmark, scaler: Scaler | None) -> None:
        """Do nothing: the owner has read it when the sums were counted."""

    def _without_few(
        self,
        benchmark: Benchmark,
        experiment: Experiment,
        taking: NDArray[np.int64],
        scaler: Scaler,
    ) -> tuple[Benchmark, Cells]:
        """Return the samples that are in the sums."""
        rows = self.counted.rows
        minimum = getattr(experiment.method, "min_samples", 1)
        cells = Cells(taking, np.setdiff1d(taking, rows), minimum, self.counted.left_out)
        return replace(benchmark, train=rows), cells

    def _without_alone(self, read: Reading) -> Reading:
        """Return the samples as they are: those that would stand alone are in no sum."""
        return read

    def _ready(self, read: Reading) -> Ready:
        now = _facts_of(self, read)
        wrong = [name for name, value in now.items() if self.counted.facts.get(name) != value]
        if wrong:
            raise RefusedError(
                f"{self.source} was counted with another {wrong[0]} than this answer needs: "
                f"{_AGAIN}, with this plan and these options",
                OTHER_PLAN,
            )
        method = read.federation.method
        assert isinstance(method, ClosedForm)
        if why := method.validate_statistics(self.counted.sums):
            raise RefusedError(f"{self.source}: no samples can have its sums ({why}): {_AGAIN}")
        ready = super()._ready(read)
        assert ready.engine is not None
        ready.engine.worker = _CountedWorker(ready.engine.worker, self.counted.sums)
        return ready


def with_counted(held: PartyData, source: Path | None) -> PartyData:
    """Return a party that answers with the sums of a file; without one, the party as it is.

    Raises:
        DataError: the file is damaged, or of another kind.
        RefusedError: the party takes part in a removal (code ``not-counted``).
    """
    if source is None:
        return held
    if held.removal is not None:
        raise RefusedError(
            "sums that were counted before answer no removal: leave out --statistics", NOT_COUNTED
        )
    return CountedParty(held, Counted.load(source), source)


class _CountedWorker(Worker):
    """Answers with sums that are there, whatever its features are."""

    def __init__(self, worker: Worker, counted: Params) -> None:
        vars(self).update(vars(worker))
        self.counted = counted

    def sums(self, work: Work) -> LocalResult:
        """Return the sums that were counted."""
        return LocalResult({name: value.clone() for name, value in self.counted.items()}, {}, 1)


def _asks_confidence(header: Mapping[str, Any]) -> bool:
    return bool(_section(header, "evaluation").get("confidence") == "asking")


def _section(header: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a greeting's experiment; of a greeting that a party refuses anyway, an
    empty one.
    """
    tree = header.get("experiment")
    section = tree.get(name) if isinstance(tree, Mapping) else None
    return section if isinstance(section, Mapping) else {}


def _check_countable(header: Mapping[str, Any]) -> None:
    """Refuse what is asked for if sums that were counted before do not answer it."""
    cases = (
        (_asks_confidence(header), "how sure the model is"),
        ("growing" in header, "classes that come later"),
        (bool(header.get("removing")), "a removal"),
        (header.get("validation") is not None, "sums without validation classes"),
        (bool(_section(header, "data").get("unlabelled")), "unlabelled samples"),
        (_section(header, "privacy").get("name", "none") != "none", "noise that samples bound"),
    )
    for applies, what in cases:
        if applies:
            raise RefusedError(
                f"the coordinator asks for {what}, which sums of labeled samples do not answer: "
                "answer without --statistics",
                NOT_COUNTED,
            )


def _digest_of(party: PartyData, benchmark: Benchmark) -> str:
    """Return the SHA-256 of samples as the owner has them, and of their classes."""
    digest = hashlib.sha256(json.dumps(benchmark.space.names).encode())
    digest.update(benchmark.labels[benchmark.train].astype("<i8").tobytes())
    for sample in raw_samples(party.folder, benchmark, benchmark.train, party.stamps):
        content = sample[0] if isinstance(sample, tuple) else sample  # labels are in it already
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def _facts_of(party: PartyData, read: Reading) -> dict[str, str]:
    """Return all that sums of the party's samples depend on."""
    method = read.federation.method
    experiment = read.experiment
    party_benchmark = read.party_benchmark
    if not isinstance(method, ClosedForm):
        raise RefusedError(
            f"method.name = {experiment.method.name!r} is trained, and has no sums to count: "
            "answer without --statistics",
            NOT_COUNTED,
        )
    kind = party_benchmark.kind
    sequences = kind == "sequences"
    shape = party_benchmark.features.shape[1:] if sequences else party_benchmark.image_shape
    encoder = make_encoder(experiment, shape, kind)
    weights = "" if encoder is None else files_digest(encoder.files())
    data = party.settings.model_dump(mode="json", exclude={"root", "name"})
    values: dict[str, Any] = {
        "version of fedunseen": __version__,
        "class table or quantization": space_hash(
            read.federation.benchmark.space, method.quantization
        ).tolist(),
        "scaling": read.federation.scaler.digest(),
        "method.clip_norm": method.clip_norm,
        "[encoder]": [experiment.encoder.model_dump(mode="json"), weights],
        "[data]": data,
        "shape of a sample": list(read.benchmark.features.shape[1:]),
        "number of samples that a class must have": [method.min_samples, party.min_samples],
        "--consent moments": "moments" in party.consent,
    }
    return {name: json.dumps(value, sort_keys=True) for name, value in values.items()}
