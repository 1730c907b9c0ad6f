"""What a party of a distributed run trains on: its own folder in a deployment, all data in a
simulation.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.array_cache import FileStamp, file_stamp
from fedunseen.core.bounds import check_greeting, check_statistics
from fedunseen.core.errors import DataError, ExperimentError, RefusedError
from fedunseen.core.extensions import kept_sections
from fedunseen.core.parameters import Params, finite, within
from fedunseen.core.registry import find
from fedunseen.core.samples import CodedRows, ScaledSamples, first_of_equal
from fedunseen.core.small_cells import MIN_SAMPLES, left_out_sentence, near_mean_sentence
from fedunseen.core.text import printable
from fedunseen.data import Benchmark, ClassSpace, Scaler
from fedunseen.data.class_space import same_text
from fedunseen.data.io.images import first_shown
from fedunseen.data.names import by_folded
from fedunseen.deploy.remote.party import Ready, stand_in
from fedunseen.deploy.remote.refusals import MESSAGE
from fedunseen.deploy.remote.wire import PLAN_BEFORE, SEMANTICS, WireError, read_farewell
from fedunseen.deploy.site import planned
from fedunseen.encoders.hub import named_by_others
from fedunseen.evaluation.diagnosis import CLIPPED, misplaced_pictures
from fedunseen.evaluation.misplaced import misplaced_files
from fedunseen.experiment.assemble import assemble, in_process, prepared
from fedunseen.experiment.encoding import encode
from fedunseen.experiment.manifest import bring_home
from fedunseen.experiment.own_samples import (
    REMOVAL_BATCH,
    TAKEN,
    OwnSamples,
    check_leftovers,
    check_removed_classes,
    named_samples,
)
from fedunseen.experiment.party_sums import (
    REFUSED,
    Parts,
    check_known,
    check_removed,
    check_removed_cells,
    check_saved_once,
    check_scaling,
    check_stand_ins,
    check_stated,
    stand_ins,
    without_alone,
)
from fedunseen.experiment.run_model import parted
from fedunseen.experiment.schema import Experiment
from fedunseen.experiment.small_cells import without_small_cells
from fedunseen.federation.federation import Federation
from fedunseen.federation.growth import check_new_name, described_as, read_space, seen_through
from fedunseen.federation.in_process import InProcess
from fedunseen.federation.partition import Partition
from fedunseen.federation.worker import SoftWorker, Worker
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.set_apart import Moments
from fedunseen.methods.closed_form.statistics import in_large_classes

if TYPE_CHECKING:  # the libraries of cryptography are loaded where they are used
    from fedunseen.deploy.secagg.ledger import Ledger, Sample

_HUB = ("weights", "text", "text_encoder", "words")
"""Settings that name an encoder of a hub, or a folder or a file; those of EfficientNet a file."""
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?(@[\w-][\w./-]*)?", re.ASCII)
_FILE_NAME = re.compile(r".*\.(npy|npz|txt|gz|vec|pth?|bin|safetensors|tflite|onnx|json)")
_FRAME = re.compile(r"(.*)\[(\d+)\]", re.DOTALL)
"""The name of a frame of a file."""
_PACKAGED = {"vectors": ("minilm",), "words": ("one-hot",)}
"""What settings may say that name a file by its name alone, and no file."""
_WORDING = ("name", "prompt", "label", "columns", "missing")  # settings that open nothing
# code of what depends on no sample, as REFUSED
_SPACE = "refused-space"
OTHER_SAMPLES = "other-samples"
"""Code where a folder has other samples than those that were read or counted."""
# epsilon and delta up to which noise is taken to hide single samples
_HIDES = 10.0
_HIDES_DELTA = 1e-4


@dataclass(frozen=True)
class Removal:
    """What a party's owner agrees to remove from a finished run: samples by position, none named:
    all.
    """

    samples: Sequence[int] = ()
    consent: bool = False


@dataclass(frozen=True, eq=False)
class Cells:
    """The samples that take part.

    Attributes:
        taking: their ids, those of small classes too.
        few: of these the ones that are left out: of small classes.
        minimum: samples that a class must have.
        left_out: the sentence about what is left out, for the owner alone.
        features: of all samples, as they are summed; None where single samples may be shown.
        among: returns the samples as they would be summed, if some were all.
        summed: the ids of those that are in sums of all, or would be.
    """

    taking: NDArray[np.int64]
    few: NDArray[np.int64]
    minimum: int
    left_out: str = ""
    features: NDArray[Any] | None = None
    among: Callable[[NDArray[np.int64]], Benchmark] | None = None
    summed: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Reading:
    """What a party has read and made for a greeting.

    Attributes:
        experiment: the coordinator's, as the party runs it.
        benchmark: the samples as they are trained on.
        federation: of the party alone.
        party_benchmark: the samples as their owner has them.
        cells: which of them take part.
        client: the party's number.
    """

    experiment: Experiment
    benchmark: Benchmark
    federation: Federation
    party_benchmark: Benchmark
    cells: Cells
    client: int


class PartyData(OwnSamples):
    """A party's own samples, and the settings that it decides itself.

    Attributes:
        consent: to what its owner has consented, in the words of ``--consent``.
    """

    consent: Collection[str] = ()
    plan_before = ""  # of the run from which a coordinator says that samples are removed
    reading: bytes = b""  # how the owner reads samples otherwise than the coordinator says

    def __init__(
        self,
        folder: Path,
        owner_settings: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        home: Path | None = None,
        masked: bool = False,
        removal: Removal | None = None,
        min_samples: int = MIN_SAMPLES,
    ) -> None:
        self.home = home
        self.masked = masked
        self.removal = removal
        self.min_samples = min_samples
        super().__init__(folder, owner_settings, settings)
        if "method.min_samples" in self.owner_settings:
            raise ExperimentError(
                "method.min_samples is the coordinator's: a party sets its own with --min-samples"
            )

    def prepare(self, header: Mapping[str, Any], statistics: Params) -> Ready:
        """Make the party's client ready for the experiment that a coordinator's greeting
        describes.
        """
        check_greeting(header)
        check_statistics(statistics, header.get("shape"), SEMANTICS)
        client, clients = _place_of(header)
        sections = _received(header["experiment"])
        with named_by_others({text for *_, text in _foreign(sections, self.owner_settings)}):
            return self._prepare(header, statistics, client, clients)

    def _prepare(
        self, header: Mapping[str, Any], statistics: Params, client: int, clients: int
    ) -> Ready:
        self.plan_before = str(header.get(PLAN_BEFORE, ""))
        tree = self._tree(header, statistics)
        party_benchmark = self.benchmark
        taking = self._taking_part(party_benchmark.train, header, client)
        experiment = self._experiment(tree, header, clients)
        benchmark = self._encoded(experiment, party_benchmark, tuple(header["shape"]))
        scaler = _scaler(experiment, statistics, benchmark.kind)
        exact = experiment.privacy.name != "sample-level"
        if exact and getattr(experiment.method, "min_samples", 1) > 1:
            shape = benchmark.features.shape[1:]
            clip_norm = getattr(experiment.method, "clip_norm", None)
            asked = header["experiment"]["method"].get("min_samples", 1)
            check_scaling(experiment, shape, statistics, clip_norm, asked)
            check_stated(self.settings, within("data.", self.owner_settings), asked)
        self._advise(experiment, benchmark, None)
        if "validation" in header:
            benchmark = self._without(benchmark, header["validation"], experiment)
        benchmark, space = self._in_space(benchmark, header, statistics.get(SEMANTICS))
        benchmark, cells = self._without_few(benchmark, experiment, taking, scaler)
        benchmark = experiment.task.client_data(benchmark)
        if list(benchmark.features.shape[1:]) != list(header["shape"]):
            raise RefusedError(
                f"{self.folder}: a sample has the shape {benchmark.features.shape[1:]}, but the "
                f"coordinator's model takes {tuple(header['shape'])}: give features of the same "
                "kind",
                "refused-shape",
            )
        if space is not None:
            if (new := _bringing(benchmark, space, cells.left_out)) is not None:
                return replace(new, **self._read_again(party_benchmark, taking))
            benchmark = seen_through(benchmark, space)
        federation = _federation(experiment, benchmark, scaler, client, clients)
        self._advise(experiment, benchmark, scaler)
        read = Reading(experiment, benchmark, federation, party_benchmark, cells, client)
        ready = self._ready(read)
        return ready if space is None else replace(ready, held=ready.names)

    def _encoded(
        self, experiment: Experiment, benchmark: Benchmark, shape: tuple[int, ...]
    ) -> Benchmark:
        """Return the party's samples as features; ``shape`` is the one that a model takes."""
        return encode(experiment, benchmark)

    def _advise(self, experiment: Experiment, benchmark: Benchmark, scaler: Scaler | None) -> None:
        """Warn the owner alone of pictures in wrong folders, and once the scaling is known, of
        features that it clips.
        """
        if scaler is not None:
            _warn_of_clipped(experiment, benchmark, scaler)
            return
        for finding in misplaced_pictures(**misplaced_files(benchmark), listed_in=""):
            warnings.warn(f"{finding.what} {finding.remedy}", stacklevel=3)

    def _tree(self, header: Mapping[str, Any], statistics: Params) -> dict[str, Any]:
        """Return the coordinator's sections with this party's ``[data]``, with which its samples
        are read again.
        """
        tree = _received(header["experiment"])
        _check_privacy(tree.get("privacy", {}), "growing" in header, self.masked)
        _check_places(tree, self.owner_settings)
        _check_shared(tree.get("data", {}), self.owner_settings, statistics)
        mine = within("data.", self.owner_settings)
        self.reading = _reading(mine, tree["data"])
        data = {**tree.pop("data"), **mine}
        self.stamps = stamps_of(self.folder, self.benchmark)
        try:
            self.benchmark = self._read(data)
        except ExperimentError as error:  # it depends on settings alone
            raise RefusedError(str(error), REFUSED) from None
        return tree

    def _experiment(
        self, tree: Mapping[str, Any], header: Mapping[str, Any], clients: int
    ) -> Experiment:
        """Return the coordinator's experiment as this party runs it."""
        tree = {
            **tree,
            "data": self.settings.model_dump(mode="json", exclude_none=True),
            "partition": {"clients": clients},
            "engine": {**tree["engine"], "mode": "one-at-a-time"},
        }
        overrides = {
            key: value for key, value in self.owner_settings.items() if not key.startswith("data.")
        }
        try:
            return self._hiding_few(Experiment.from_dict(tree, overrides), header)
        except ExperimentError as error:  # it depends on settings alone
            raise RefusedError(str(error), REFUSED) from None

    def _in_space(
        self, benchmark: Benchmark, header: Mapping[str, Any], semantics: Tensor | None
    ) -> tuple[Benchmark, ClassSpace | None]:
        """Return the benchmark in the coordinator's class space; and that space, if it grows."""
        announced = header.get("growing")
        if announced is not None:
            return benchmark, self._known(benchmark, announced, semantics)
        if semantics is not None:
            space = benchmark.space.with_bits_of(semantics.double().numpy())
            benchmark = replace(benchmark, space=space)
        self._compare(benchmark, header["space"])
        return benchmark, None

    def _ready(self, read: Reading) -> Ready:
        """Return the party with its engine, which trains on the samples that take part."""
        closed = isinstance(read.federation.method, ClosedForm)
        if self.removal is not None and not closed:  # no rule of sums would be applied
            raise RefusedError(
                "the coordinator asks to remove samples by a method that is trained, which would "
                "train on them again: sums of a method in closed form alone are subtracted",
                REFUSED,
            )
        if closed and read.cells.minimum > 1 and "moments" not in self.consent:
            read = self._without_alone(read)
        benchmark = read.benchmark
        party_benchmark = read.party_benchmark
        cells = read.cells
        client = read.client
        engine = _in_process(read.federation)
        if engine.masks is None and cells.minimum > 1:  # perhaps no ledger knows what is in sums
            self._check_folder(engine.worker, benchmark, engine.worker.samples[client], cells)
        samples = engine.worker.restrict(client, np.setdiff1d(cells.taking, cells.few))
        cells = replace(cells, summed=engine.worker.held[client])
        classes = np.unique(benchmark.labels[samples])
        inputs = engine.worker.trainer.inputs
        if isinstance(engine.worker, SoftWorker) and isinstance(inputs, ScaledSamples):
            engine.worker.as_summed = partial(self._sorted_as_summed, read, inputs)
        rows = party_benchmark.unlabelled if self._soft else np.setdiff1d(cells.taking, cells.few)
        keep = None
        if self.home is not None:
            keep = partial(_keep, read.experiment, benchmark, read.federation, self.home)
        return Ready(
            engine,
            len(classes),
            len(samples),
            keep,
            **self._read_again(party_benchmark, rows),
            names=() if self._soft else tuple(benchmark.space.names[c] for c in classes),
            left_out=cells.left_out,
            check_removal=partial(self._check_removal, engine, party_benchmark, cells, client),
        )

    def _read_again(self, benchmark: Benchmark, rows: NDArray[np.int64]) -> dict[str, Any]:
        """Return what :class:`Ready` has to compare samples with those of earlier sums."""
        how = self.stamps, self.reading
        return {
            "raw": partial(raw_samples, self.folder, benchmark, rows, *how),
            "present": partial(_present, self.folder, benchmark, *how),
        }

    def _without_alone(self, read: Reading) -> Reading:
        """Leave out samples that second moments would show alone, and hide cells of which the
        others have few.
        """
        cells = read.cells
        client = read.client
        method = read.federation.method
        assert isinstance(method, ClosedForm)
        held = _in_process(read.federation).worker.samples[client]
        numbers = cells.minimum, self.min_samples
        last = read

        def moments(some: NDArray[np.int64]) -> Moments:
            nonlocal last
            if len(some) < len(held):
                last = _with_cells_of(read, some)
            return method.moments(*_in_process(last.federation).worker.read(some), *numbers)

        kept, sentence = without_alone(held, moments, cells.taking, self.folder)
        _in_process(last.federation).worker.restrict(client, kept)
        few = np.union1d(cells.few, np.intersect1d(np.setdiff1d(held, kept), cells.taking))
        left_out = "; ".join(filter(None, (cells.left_out, sentence)))
        return replace(last, cells=replace(last.cells, few=few, left_out=left_out))

    def _check_removal(
        self,
        engine: InProcess,
        party_benchmark: Benchmark,
        cells: Cells,
        client: int,
        ledger: Ledger,
        plan: str,
        content: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Refuse a removal that shows few samples, or leaves some of them in a sum.

        Counted are samples that the ledger has released, not today's. ``content``: of the plan.
        """
        raw = partial(
            raw_samples, self.folder, party_benchmark, stamps=self.stamps, reading=self.reading
        )
        removed = ledger.digests(raw(np.setdiff1d(cells.taking, cells.few)))
        alone = ledger.removed_from(self.plan_before, content, removed)
        ledger.check_removed_whole(plan, ledger.digests(raw(cells.few)), alone)
        if self.removal is None or not removed:
            return
        train = party_benchmark.train
        here = ledger.digests_in_order(raw(train))
        of_class = dict(zip(here, party_benchmark.labels[train].tolist(), strict=True))
        allows_few = self.removal.consent or cells.minimum == 1
        if not allows_few:
            different = ledger.contents(removed)
            copies = (bool(different & ledger.contents([sample])) for sample in here)
            check_saved_once(sum(copies), len(different))
        sums_of_plans = ledger.remaining(plan, removed, alone)
        names = party_benchmark.space.names
        if "leftovers" not in self.consent:
            known = frozenset[bytes]().union(*(sums for _, sums in sums_of_plans))
            # samples that no sum knows as they are may be those of any, written anew
            all_sums = sums_of_plans if removed <= known else ledger.remaining(plan, None)
            _check_leftovers(names, removed, of_class, [sums for _, sums in all_sums])
        for released, sums in sums_of_plans:
            in_sums = np.array([sample in released for sample in here])
            if cells.minimum > 1:  # the removal must hide the features that these sums have hidden
                engine.worker.held[client] = train[in_sums]
            if allows_few:
                continue
            outside = {
                of_class[sample] for sample in removed - sums
            }  # not known apart from these sums
            held_labels, removed_labels = (
                np.array([c for c in map(of_class.__getitem__, which) if c not in outside], int)
                for which in (sums & of_class.keys(), removed & sums)
            )
            summed_as = self._checked_as_summed(cells, train, in_sums)
            check_removed_classes(names, held_labels, removed_labels, cells.minimum)
            are_removed, stay = (
                np.array([x in part for x in here])[in_sums]
                for part in (removed & sums, sums - removed)
            )
            parts = Parts(train[in_sums], are_removed, stay, cells.minimum)
            self._check_parts(engine.worker, summed_as, parts)
            if "moments" not in self.consent:
                check_known(released - of_class.keys(), {every for every, _ in sums_of_plans})

    def _checked_as_summed(
        self, cells: Cells, train: NDArray[np.int64], in_sums: NDArray[np.bool_]
    ) -> Benchmark:
        """Return samples with the features that sums have of them.

        Refuse to remove some with others: samples that came since change which cells are hidden,
        and which sample stands in for another.
        """
        assert cells.among is not None
        assert cells.features is not None
        assert cells.summed is not None
        rows = train[in_sums]
        if self.benchmark.originals is None:  # those left out were there when others stood in
            rows = train[in_sums | ~np.isin(train, cells.summed)]
        removed = np.intersect1d(cells.taking, train[in_sums])
        summed_as = cells.among(rows)
        if not np.array_equal(summed_as.features[removed], cells.features[removed]):
            raise RefusedError(
                "samples that came since the sums, or are here no more, change what is hidden of "
                "the removed ones: let the folder hold those of the sums until it is done, "
                "or consent to the removal if the owner agrees",
                "removal-of-few",
            )
        return summed_as

    def _check_folder(
        self, worker: Worker, benchmark: Benchmark, held: NDArray[np.int64], cells: Cells
    ) -> None:
        """Refuse a removal from the sums of the folder's samples that shows few of them."""
        removed = np.isin(held, cells.taking)
        if self.removal is None or self.removal.consent or not removed.any():
            return
        all_labels, removed_labels = (
            benchmark.labels[some[first_of_equal(benchmark.told_apart(some))]]
            for some in (held, held[removed])
        )
        check_removed_classes(benchmark.space.names, all_labels, removed_labels, cells.minimum)
        parts = Parts(held, removed, ~removed, cells.minimum)
        self._check_parts(worker, benchmark, parts)

    def _check_parts(self, worker: Worker, summed_as: Benchmark, parts: Parts) -> None:
        """Refuse a removal if sums of what is removed, or left, show few samples."""
        method = worker.method
        if isinstance(method, ClosedForm):
            read, labels = worker.read(parts.rows)
            scaler = read.samples.scaler if isinstance(read, CodedRows) else None
            check_removed_cells(summed_as, self.settings, parts, scaler)
            moments = method.moments(read, labels, parts.minimum, self.min_samples)
            check_removed(moments, parts, alone="moments" not in self.consent)

    @property
    def _soft(self) -> bool:
        """Whether unlabelled samples are asked for."""
        return getattr(self.settings, "unlabelled", False) == "summed"

    def _hiding_few(self, experiment: Experiment, header: Mapping[str, Any]) -> Experiment:
        """Return the experiment with this party's own ``method.min_samples``, where that is more.

        Under sample-level privacy noise hides single samples. Its guarantee is about sums over all
        samples: leaving classes out by their exact counts would undo it. So the noise must hide
        something.
        """
        minimum = getattr(experiment.method, "min_samples", None)
        if minimum is None or minimum >= self.min_samples:
            return experiment
        if experiment.privacy.name != "sample-level":
            return experiment.with_overrides({"method.min_samples": self.min_samples})
        masked = {**header["experiment"]["privacy"], "aggregation": "masked"}
        _, (epsilon, delta), _ = planned(
            {**header, "experiment": {**header["experiment"], "privacy": masked}}
        )
        for name, value, most in (("epsilon", epsilon, _HIDES), ("delta", delta, _HIDES_DELTA)):
            if value > most:
                raise RefusedError(
                    f"{name} is {value:.3g}, whose noise hides no single sample: ask the "
                    f"coordinator for {most:g} at most, or give --min-samples 1 if the owner "
                    "agrees",
                    REFUSED,
                )
        return experiment

    def _without_few(
        self,
        benchmark: Benchmark,
        experiment: Experiment,
        taking: NDArray[np.int64],
        scaler: Scaler,
    ) -> tuple[Benchmark, Cells]:
        """Leave out classes with fewer than ``method.min_samples``, and let others of their class
        stand in for samples near the coordinator's mean
        (:func:`~fedunseen.experiment.party_sums.stand_ins`).

        Returns:
            What is left to train on, and the samples that take part or would otherwise.

        Raises:
            RefusedError: no sample is left.
        """
        minimum = getattr(experiment.method, "min_samples", 1)
        if minimum == 1:
            return benchmark, Cells(taking, taking[:0], minimum)
        if self._soft:  # a model sorts them into classes, in each round: _sorted_as_summed
            return benchmark, Cells(taking, taking[:0], 1)
        rows = benchmark.train

        def as_summed(some: NDArray[np.int64]) -> tuple[Benchmark, str]:
            of_class = benchmark.labels[some]
            return self._as_summed(benchmark, minimum, taking, scaler, some, of_class)

        stood_in, nearby = as_summed(rows)
        enough, small = in_large_classes(benchmark, rows, minimum)
        kept = rows[enough]
        few = np.intersect1d(np.setdiff1d(rows, kept), taking)
        cells = Cells(
            taking,
            few,
            minimum,
            nearby,
            stood_in.features,
            lambda some: as_summed(some)[0],
        )
        if not len(few):
            return stood_in, cells
        if not len(np.intersect1d(kept, taking)):
            raise RefusedError(
                f"no class here has {minimum} samples, and classes with fewer are left out of all "
                "sums: give more samples, or a smaller --min-samples if the owner agrees (a "
                "smaller method.min_samples, if the coordinator asks for so many)",
                "too-few-samples",
            )
        counts = {benchmark.space.names[c]: count for c, count in small.items()}
        sentence = "; ".join(filter(None, (left_out_sentence(counts, minimum), nearby)))
        return replace(stood_in, train=kept), replace(cells, left_out=sentence)

    def _as_summed(
        self,
        benchmark: Benchmark,
        minimum: int,
        taking: NDArray[np.int64],
        scaler: Scaler,
        rows: NDArray[np.int64],
        labels: NDArray[np.int64],
    ) -> tuple[Benchmark, str]:
        """Return the samples ``rows`` of some classes with the features that sums of them have,
        and what the owner reads of that.
        """
        benchmark = without_small_cells(benchmark, self.settings, rows, labels, minimum, scaler)
        return self._stood_in(benchmark, rows, labels, taking, scaler)

    def _sorted_as_summed(
        self,
        read: Reading,
        inputs: ScaledSamples,
        rows: NDArray[np.int64],
        labels: NDArray[np.int64],
    ) -> tuple[ScaledSamples, str]:
        """Return unlabelled samples with the features that sums of them have, if a model has sorted
        them into the classes ``labels``, and what the owner reads of that.
        """
        minimum = getattr(read.experiment.method, "min_samples", 1)
        taking = read.cells.taking
        scaler = read.federation.scaler
        benchmark, said = self._as_summed(read.benchmark, minimum, taking, scaler, rows, labels)
        summed = replace(
            inputs,
            rows=benchmark.features,
            originals=benchmark.originals,
            repeats=benchmark.repeats,
        )
        return summed, said

    def _stood_in(
        self,
        benchmark: Benchmark,
        rows: NDArray[np.int64],
        labels: NDArray[np.int64],
        taking: NDArray[np.int64],
        scaler: Scaler,
    ) -> tuple[Benchmark, str]:
        """Return samples with the features that are in sums for them, and what the owner reads of
        that.
        """
        if benchmark.kind != "vectors":
            return benchmark, ""
        summed = stand_ins(scaler, benchmark.features, rows, labels)
        near = summed != rows
        if not near.any():
            return benchmark, ""
        if not self._soft:
            check_stand_ins(rows, summed, taking)
        summed_as = np.arange(len(benchmark.features))
        summed_as[rows] = summed
        repeats = np.zeros_like(summed_as)
        for other in np.unique(summed[near]):
            places = rows[near & (summed == other)]
            repeats[places] = np.arange(1, len(places) + 1)
        stood_in = replace(
            benchmark,
            features=benchmark.features[summed_as],
            originals=benchmark.originals and benchmark.originals[summed_as],
            repeats=repeats,
        )
        return stood_in, near_mean_sentence(int(near.sum()))

    def _taking_part(
        self, held: NDArray[np.int64], header: Mapping[str, Any], client: int
    ) -> NDArray[np.int64]:
        """Return the samples that take part: all, or of a removal those that are removed."""
        removing = list(header.get("removing", ()))
        agreed = self.removal
        if not removing and agreed is None:
            return held
        if not removing:
            raise RefusedError(
                "the coordinator does not ask to remove samples: leave out --removal", REFUSED
            )
        if agreed is None:
            raise RefusedError(
                "the coordinator asks to remove samples of a finished run: join with --removal to "
                "agree",
                REFUSED,
            )
        if "validation" in header or "growing" in header or self._soft:
            raise RefusedError(
                "the removal leaves classes out, or is of unlabelled samples: ask for another plan",
                REFUSED,
            )
        if (
            "names" in header and header["names"][client] not in removing
        ):  # it hides the others, with sums of no sample
            if agreed.samples:
                raise RefusedError(
                    "--samples are for a removal of samples of this party: leave them out",
                    REFUSED,
                )
            return held[:0]
        return named_samples(REMOVAL_BATCH, held, agreed.samples, agreed.consent)

    def _known(
        self, benchmark: Benchmark, announced: Mapping[str, Any], semantics: Tensor | None
    ) -> ClassSpace:
        """Return the class space that a coordinator describes, once it agrees with what is held
        here.
        """
        space = benchmark.space
        table = self.folder / "classes.csv"
        if semantics is None:
            raise RefusedError(
                "the coordinator's greeting describes no classes: start it again with `fedunseen "
                "host`",
                MESSAGE,
            )
        try:
            known_space = read_space(announced, semantics.numpy())
            former = dict(announced["former"])
            tested = set(announced["tested"])
            is_open = bool(announced["open"])
        except (DataError, KeyError, TypeError, ValueError) as error:
            raise RefusedError(
                f"the coordinator's greeting describes no class space: {error}", MESSAGE
            ) from None
        same_names = space.attribute_names == known_space.attribute_names
        if not same_names or dict(space.attribute_groups) != dict(known_space.attribute_groups):
            raise RefusedError(
                f"the attributes of {table} are not those of the coordinator, in their order: copy "
                "the coordinator's classes.csv and add a line for each new class",
                _SPACE,
            )
        known_names = by_folded(known_space.names)
        for name in _held(benchmark):
            row = space.semantics[space.names.index(name)]
            if name not in known_space.names:
                if not is_open:
                    raise RefusedError(
                        f"{self.folder} holds samples of {name!r}, which the coordinator does not "
                        "know, and this federation takes no new classes (growth.name = 'unknown'): "
                        "leave them out"
                    )
                try:
                    check_new_name(name, known_names)
                except DataError as error:
                    raise RefusedError(f"{table}: {error}") from None
                continue
            if name in tested:
                raise RefusedError(
                    f"{self.folder} holds samples of {name!r}, which the coordinator tests as a "
                    "class that no one holds: leave them out, or let the coordinator mark the "
                    "class as seen"
                )
            known_row = known_space.semantics[known_space.names.index(name)]
            alike = space.from_texts and same_text(row, known_row)
            descriptions = (described_as(known_row), *former.get(name, ()))
            if not alike and described_as(row) not in descriptions:
                raise RefusedError(
                    f"{table} describes the class {name!r} otherwise than the coordinator does: "
                    "copy its line, or give the class another name if it is another"
                )
        return known_space

    def _without(
        self, benchmark: Benchmark, validation: object, experiment: Experiment
    ) -> Benchmark:
        """Return what is left to train on while the coordinator's validation classes play the
        unseen ones.
        """
        seen = set(benchmark.space.seen.tolist())
        if not isinstance(validation, list) or not all(
            type(c) is int and c in seen for c in validation
        ):
            raise RefusedError(
                "the coordinator's greeting names validation classes that are not seen classes",
                MESSAGE,
            )
        marked = sorted(benchmark.space.validation.tolist())
        if experiment.privacy.aggregation == "masked" and sorted(validation) != marked:
            # it could leave a party, or all but one, without samples, and read a sum of one
            raise RefusedError(
                "the coordinator's validation classes are not those that "
                f"{self.folder / 'classes.csv'} marks, which masked sums need: mark them alike in "
                "all class tables, or set evaluation.selection = 'last'",
                _SPACE,
            )
        closed = issubclass(find("method", experiment.method.name), ClosedForm)
        if closed and experiment.privacy.aggregation == "masked":
            # less a run's sums, they would show what is held out: a fifth of each class
            raise RefusedError(
                "under masks, a method in closed form is not trained on validation classes: let it "
                "choose from its own sums, with evaluation.selection = 'last'",
                MESSAGE,
            )
        space = replace(
            benchmark.space, validation=np.array(sorted(set(validation)), dtype=np.int64)
        )
        remaining = replace(benchmark, space=space).for_selection(experiment.run.seed)
        if not len(remaining.train):
            raise RefusedError(
                f"{self.folder}: all samples to train on are of the coordinator's validation "
                "classes: let it choose on classes that leave each party one to train on, or not "
                "at all (evaluation.selection = 'last')"
            )
        return remaining

    def _compare(self, benchmark: Benchmark, space: Mapping[str, str]) -> None:
        hashes = benchmark.space.hashes()
        if different := [part for part, value in hashes.items() if space.get(part) != value]:
            raise RefusedError(
                f"{self.folder / 'classes.csv'} is not the coordinator's class space: they differ "
                f"in the {' and the '.join(different)}: copy the coordinator's classes.csv",
                _SPACE,
            )


def _check_leftovers(
    names: Sequence[str],
    removed: frozenset[bytes],
    of_class: Mapping[bytes, int],
    sums_of_plans: Sequence[frozenset[bytes]],
) -> None:
    """Refuse a removal that leaves samples of sums that are here no more (digests)."""
    for sums in sums_of_plans:
        staying, leaving = (
            np.array([*map(of_class.__getitem__, which)], dtype=np.int64)
            for which in ((sums & of_class.keys()) - removed, removed)
        )
        check_leftovers(names, staying, leaving, len(sums - of_class.keys()))


def _place_of(header: Mapping[str, Any]) -> tuple[int, int]:
    """Return which client of how many a greeting makes this party; the table of bounds has checked
    the numbers.
    """
    client = header.get("client")
    clients = header.get("clients")
    names = header.get("names")
    if (
        type(client) is not int
        or type(clients) is not int
        or not client < clients
        or (names is not None and (not isinstance(names, list) or len(names) != clients))
    ):
        raise RefusedError(
            "the coordinator's greeting does not say which of its parties this one is: start it "
            "again with `fedunseen host`",
            MESSAGE,
        )
    return client, clients


def _check_privacy(privacy: Mapping[str, Any], space_grows: bool, masked: bool) -> None:
    """Refuse a coordinator that would learn more than it says, or than the party allows."""
    if masked and privacy.get("aggregation") != "masked":
        raise RefusedError(
            "the coordinator would see this party's updates one by one: ask it to set "
            "privacy.aggregation = 'masked', or join without --masked",
            REFUSED,
        )
    if space_grows and privacy.get("aggregation") == "masked":
        raise RefusedError(
            "the coordinator's class space grows, so that it would see which classes this party "
            "holds: ask it to leave out growth, or privacy.aggregation = 'masked'",
            REFUSED,
        )
    if privacy.get("name", "none") != "none" and privacy.get("noise_from", "seed") != "system":
        raise RefusedError(
            "the coordinator could draw the noise that this party adds, and take it off "
            "(privacy.noise_from = 'seed'): ask it to set privacy.noise_from = 'system'",
            REFUSED,
        )


def _with_cells_of(read: Reading, rows: NDArray[np.int64]) -> Reading:
    """Return what was read with the cells hidden that few of the samples ``rows`` have."""
    benchmark = read.benchmark
    if benchmark.originals is None:
        return read
    assert read.cells.among is not None
    summed_as = read.cells.among(rows)
    features = summed_as.features
    benchmark = replace(benchmark, features=features, originals=summed_as.originals)
    clients = len(_in_process(read.federation).worker.samples)
    federation = _federation(
        read.experiment, benchmark, read.federation.scaler, read.client, clients
    )
    cells = replace(read.cells, features=features)
    return replace(read, benchmark=benchmark, federation=federation, cells=cells)


def _bringing(benchmark: Benchmark, known_space: ClassSpace, left_out: str) -> Ready | None:
    """Return a party whose classes a growing class space does not have as seen ones yet; None if it
    does.
    """
    names = _held(benchmark)
    if all(
        name in known_space.names and known_space.names.index(name) in known_space.seen
        for name in names
    ):
        return None
    space = benchmark.space
    brought = {
        name: space.semantics[space.names.index(name)]
        for name in names
        if name not in known_space.names
    }
    held = len(names), len(benchmark.train)
    return Ready(None, *held, None, names, brought, names=names, left_out=left_out)


def _warn_of_clipped(experiment: Experiment, benchmark: Benchmark, scaler: Scaler) -> None:
    """Warn the owner alone of features beyond the range, whose number is not sent."""
    if getattr(experiment.method, "min_samples", 1) == 1 or benchmark.kind != "vectors":
        return
    share = scaler.share_clipped(benchmark.features, benchmark.train)
    if share > CLIPPED:
        warnings.warn(
            f"{100 * share:.1f} % of this party's features are beyond the range of quantization "
            "and were clipped: ask the coordinator for a larger data.quantization_range or other "
            "data.bounds",
            stacklevel=2,
        )


def _scaler(experiment: Experiment, statistics: Params, kind: str) -> Scaler:
    """Return the coordinator's scalings; refuse those of vectors that lack a part."""
    fitted = {name: value.numpy() for name, value in statistics.items() if name != SEMANTICS}
    scaler = Scaler(experiment.data.features or (), fitted)
    if kind == "vectors" and scaler.missing:
        raise RefusedError(
            f"the coordinator sends no {scaler.missing[0]}, which scales features: ask it to send "
            "all that it has fitted",
            MESSAGE,
        )
    return scaler


def _federation(
    experiment: Experiment, benchmark: Benchmark, scaler: Scaler, client: int, clients: int
) -> Federation:
    """Return the federation in which this party alone has samples, scaled as the coordinator
    says.
    """
    empty = np.zeros(0, dtype=np.int64)
    partition = Partition.of([benchmark.train if k == client else empty for k in range(clients)])
    return assemble(experiment, benchmark, partition, scaler=scaler)


def _held(benchmark: Benchmark) -> tuple[str, ...]:
    """Return the names of the classes that there are samples of."""
    return tuple(benchmark.space.names[c] for c in np.unique(benchmark.labels[benchmark.train]))


def _keep(
    experiment: Experiment,
    benchmark: Benchmark,
    federation: Federation,
    home: Path,
    farewell: Mapping[str, Any],
    brought: Params,
) -> Path:
    """Write the merged model that came with a farewell as a run directory of the party's own."""
    try:
        model, sure = parted(brought)
    except ValueError as error:
        raise WireError(str(error)) from None
    result = read_farewell(farewell, model, federation.first if federation.method.trained else {})
    _check_solved(federation, model)
    bring_home(experiment, benchmark, federation, result, model, home, sure)
    return home


Stamps = Mapping[str, FileStamp | None]
"""Files -> what changes when another file takes their place, or is written there."""


def stamps_of(folder: Path, benchmark: Benchmark) -> Stamps:
    """Return the stamps of the files of all samples; take them before samples are read."""
    places = {_path_of(folder, name)[0] for name in benchmark.files or ()}
    return {str(place): _stamp(place) for place in places}


def _stamp(path: Path) -> FileStamp | None:
    try:
        return file_stamp(path)
    except OSError:
        return None


def _reading(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> bytes:
    """Return which settings an owner reads samples with in place of the coordinator's, as a digest:
    with others, a file or a row is another sample of a sum. Empty if there are none.
    """
    keys = {*TAKEN} - {"semantics", "prompt"}
    own = {key: mine[key] for key in sorted(keys & mine.keys()) if mine[key] != theirs.get(key)}
    text = json.dumps(own, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).digest() if own else b""


def raw_samples(
    folder: Path,
    benchmark: Benchmark,
    rows: NDArray[np.int64],
    stamps: Stamps | None = None,
    reading: bytes = b"",
) -> Iterator[Sample]:
    """Yield samples as the owner has them, which no setting of a coordinator changes: their rows of
    a table, or their files, or their features before any scaling; each with its class, and with how
    it is read.

    Raises:
        DataError: code ``other-samples``: a file is not the one that was there when samples were
            read (``stamps``), so that sums have another sample than a ledger would.
    """
    for row in rows:
        written = b""
        if benchmark.originals is not None:
            content = benchmark.originals.digests[row].tobytes()
            written = benchmark.originals.exact[row].tobytes()
        elif benchmark.files is not None:
            content = _of_file(folder, benchmark.files[row], stamps)
        else:
            content = np.ascontiguousarray(benchmark.features[row]).tobytes()
        label = benchmark.labels[row]
        name = "" if label < 0 else benchmark.space.names[label]
        how = written + reading
        yield content, name.encode(errors="surrogateescape") + (how and b"\0" + how)


def _present(
    folder: Path, benchmark: Benchmark, stamps: Stamps, reading: bytes
) -> Iterator[Sample]:
    """Yield all samples that there are now: where one of an earlier plan is gone, another may be
    the same, written anew.
    """
    rows = np.union1d(benchmark.train, benchmark.unlabelled)
    if benchmark.originals is not None:  # rows of tests, too
        rows = np.arange(len(benchmark.labels))
    yield from raw_samples(folder, benchmark, rows, stamps, reading)


def _path_of(folder: Path, name: str) -> tuple[Path, int | None]:
    """Return the file of a sample, and which of its frames the sample is; None: it is a file."""
    frame = None if (folder / name).exists() else _FRAME.fullmatch(name)
    return (folder / name, None) if frame is None else (folder / frame[1], int(frame[2]))


def _of_file(folder: Path, name: str, stamps: Stamps | None) -> bytes:
    """Return the digest of a sample's file; of a frame beside the file's own picture, with its
    number.
    """
    path, frame = _path_of(folder, name)
    try:
        digest = hashlib.sha256(path.read_bytes()).digest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): restore it") from None
    if stamps is not None and _stamp(path) != stamps.get(str(path)):
        raise DataError(
            f"{path} is another file than the one that was read: start again, with the samples as "
            "they are now",
            OTHER_SAMPLES,
        )
    number = frame or 0
    whole_file = frame is None or number == first_shown(path)
    return digest if whole_file else digest + number.to_bytes(8, "little")


def _check_solved(federation: Federation, model: Params) -> None:
    """Refuse what a closed form cannot score a sample with: its solution has other tensors than its
    sums.
    """
    if federation.method.trained:
        return
    try:
        with torch.no_grad():
            # zeros in place of a sample: the answer says nothing about one
            nothing = torch.zeros_like(federation.inputs[:1])
            scores = federation.method.scores(model, nothing, federation.semantics)
    except (IndexError, KeyError, RuntimeError, TypeError, ValueError):
        scores = torch.empty(0)
    if scores.shape != (1, len(federation.semantics)) or not finite({"scores": scores}):
        raise WireError("its model cannot score a sample of this party")


def _check_shared(
    settings: Mapping[str, Any], owner_settings: Mapping[str, Any], statistics: Params
) -> None:
    """Refuse a quantization or a window that the parties would not share: their sums would be of
    other units.
    """
    for key in ("quantization", "quantization_range", "window", "frames"):
        if (mine := owner_settings.get(f"data.{key}", settings.get(key))) != settings.get(key):
            raise RefusedError(
                f"data.{key} = {mine} is not the coordinator's, {settings.get(key)}, and all "
                "parties share one: leave it out, or ask the coordinator to change it",
                REFUSED,
            )
    bits = statistics.get("quantize.bits")
    said = settings.get("quantization")
    if bits is not None and bits.tolist() != [said]:
        raise RefusedError(
            f"the coordinator scales features to {printable(bits.tolist(), 40)} bits, and "
            f"data.quantization = {printable(said, 20)}: ask it which of the two all parties share",
            REFUSED,
        )


def _received(experiment: object) -> dict[str, Any]:
    """Return a coordinator's sections, unless it sends some that are its own affair."""
    if not isinstance(experiment, dict):
        raise RefusedError(
            "the coordinator's greeting holds no experiment: start it again with `fedunseen host`",
            MESSAGE,
        )
    if foreign := sorted(experiment.keys() & set(kept_sections())):
        raise RefusedError(
            f"the coordinator sends [{foreign[0]}], which parties do not take: ask it to leave "
            "that out",
            REFUSED,
        )
    return dict(experiment)


def _check_places(sections: Mapping[str, Any], owner_settings: Mapping[str, Any]) -> None:
    """Refuse to open a file that the coordinator names: what the party then sends would say
    something of the file. The text alone decides, and never whether there is such a file.
    """
    encoder = sections.get("encoder")
    of_file = isinstance(encoder, Mapping) and encoder.get("name") == "efficientnet-lite"
    for section, key, text in _foreign(sections, owner_settings):
        packaged = text in _PACKAGED.get(key, ())
        of_hub = (
            key in _HUB
            and _HUB_NAME.fullmatch(text) is not None
            and _FILE_NAME.fullmatch(text.lower()) is None
            and not (of_file and section == "encoder")
        )
        opens = key in (*_HUB, *_PACKAGED, "model")
        outside = os.sep in text[:2] or text[0] == "~" or any(sign in text for sign in "\\:")
        if outside or ".." in text or (opens and not packaged and not of_hub):
            raise RefusedError(
                f"the coordinator names the file {printable(text, 80)!r} for {section}.{key}, "
                f"and a party opens its own files only: give --set {section}.{key}=FILE",
                REFUSED,
            )


def _foreign(
    sections: Mapping[str, Any], owner_settings: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """Yield the section, the key and each text of what the coordinator and not the owner has set,
    but for settings that open nothing.
    """
    for section, content in sections.items():
        for key, value in content.items() if isinstance(content, Mapping) else ():
            if (section, key) == ("evaluation", "choose") and isinstance(value, Mapping):
                for setting, candidates in value.items():
                    of, _, name = str(setting).partition(".")
                    yield from ((of, name, text) for text in _texts(candidates))
            elif f"{section}.{key}" not in owner_settings and key not in _WORDING:
                yield from ((section, key, text) for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a setting, at any depth, but empty ones."""
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, (list, dict)):
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts(item)


def simulated() -> Callable[[str, bytes], bytes]:
    """Return what answers for any client of a simulation; every worker process calls this once."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the coordinator has said it already

    def make(settings: Mapping[str, Any]) -> InProcess:
        experiment = in_process(Experiment.from_dict(settings["experiment"]))
        benchmark, partition = prepared(experiment, settings["selection"])
        return _in_process(assemble(experiment, benchmark, partition))

    return stand_in(make)


def _in_process(federation: Federation) -> InProcess:
    assert isinstance(federation.engine, InProcess)
    return federation.engine
