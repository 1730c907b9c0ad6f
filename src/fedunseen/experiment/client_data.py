"""What a party of a distributed run trains on: its own folder in a deployment, all data in a simulation."""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import DataError, ExperimentError, RefusedError
from fedunseen.core.files import existing_folder
from fedunseen.core.parameters import Params, finite, within
from fedunseen.core.registry import find
from fedunseen.data import Benchmark, ClassSpace, Scaler
from fedunseen.data.class_space import same_text
from fedunseen.engines.local.in_process import InProcess
from fedunseen.engines.remote.party import Ready, stand_in
from fedunseen.engines.remote.wire import SEMANTICS, WireError, plain, read_farewell
from fedunseen.evaluation.diagnosis import misplaced_pictures
from fedunseen.evaluation.misplaced import misplaced_files
from fedunseen.evaluation.summary import listed
from fedunseen.experiment.assemble import COORDINATORS, assemble, in_process, prepared
from fedunseen.experiment.class_descriptions import names_in
from fedunseen.experiment.encoding import encode
from fedunseen.experiment.manifest import bring_home
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.federation import Federation
from fedunseen.federation.growth import check_new_name, described_as, read_space, seen_through
from fedunseen.federation.partition import Partition
from fedunseen.methods.closed_form.base import ClosedFormSettings

# Of [data]: the coordinator decides.
_TAKEN = ("features", "semantics", "size", "resize", "text_encoder", "prompt", "unlabelled")
_FILES = (
    "model",
    "weights",
    "text",
    "text_encoder",
    "vectors",
    "words",
)  # settings that may name a file by its name alone
_WORDING = ("name", "prompt")  # settings that open nothing
# Fewer samples need consent; a coordinator's own number is only its word.
_REMOVAL_BATCH = int(ClosedFormSettings.model_fields["removal_batch"].default)


@dataclass(frozen=True)
class Removal:
    """What a party's owner agrees to remove from a finished run: samples by position, none named: all."""

    samples: Sequence[int] = ()
    consent: bool = False


class PartyData:
    """A party's own samples, and the settings that it decides itself."""

    def __init__(
        self,
        folder: Path,
        own: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        home: Path | None = None,
        masked: bool = False,
        removal: Removal | None = None,
    ) -> None:
        self.folder, self.own, self.home, self.masked = folder, dict(own or {}), home, masked
        self.removal = removal
        self.kind = "folder" if (folder / "features.npz").exists() else "images"
        table, first = folder / "classes.csv", {}
        if self.kind == "images" and table.is_file() and names_in(table) is not None:
            first["text_encoder"] = "minilm"  # no one has said yet what describes names alone
        self.benchmark = self._read({**first, **(settings or {}), **within("data.", self.own)})

    def tell_left_out(self, say: Callable[[str], object]) -> None:
        """Say which samples are of classes that the class table marks as unseen: no party trains on them."""
        names = sorted({self.benchmark.space.names[c] for c in self.benchmark.labels[self.benchmark.test_unseen]})
        if names:
            count, table = len(self.benchmark.test_unseen), self.folder / "classes.csv"
            say(f"note: {count} samples are left out, of {listed(names)}: {table} marks these classes as unseen")

    def _read(self, settings: Mapping[str, Any]) -> Benchmark:
        """Read the folder, with those of the coordinator's settings of data that apply to it."""
        existing_folder(self.folder, "fix --data")
        loader = find("data", self.kind)
        fields = {
            key: value for key, value in settings.items() if key in _TAKEN and key in loader.Settings.model_fields
        }
        self.settings = loader.Settings(**{**fields, "name": self.kind, "root": self.folder, "part": True})
        benchmark: Benchmark = loader.load(self.settings, 0)
        if not len(benchmark.train):
            raise DataError(f"{self.folder} holds no sample to train on: all of them are marked 'test'")
        return benchmark

    def prepare(self, header: Mapping[str, Any], statistics: Params) -> Ready:
        """Make the party's client ready for the experiment that a coordinator's greeting describes."""
        client, clients = int(header["client"]), int(header["clients"])
        tree = _received(header["experiment"])
        _check_privacy(tree.get("privacy", {}), "growing" in header, self.masked)
        _check_places(tree, self.own)
        _check_quantization(tree.get("data", {}), self.own, statistics)
        self.benchmark = own = self._read({**tree.pop("data"), **within("data.", self.own)})
        taking = self._taking_part(own.train, header, client)
        tree["data"] = self.settings.model_dump(mode="json", exclude_none=True)
        tree["partition"] = {"clients": clients}
        tree["engine"] = {**tree["engine"], "mode": "one-at-a-time"}
        experiment = Experiment.from_dict(tree, {k: v for k, v in self.own.items() if not k.startswith("data.")})
        benchmark = encode(experiment, own)
        for finding in misplaced_pictures(misplaced_files(benchmark)):
            warnings.warn(f"{finding.what} {finding.remedy}", stacklevel=2)  # said to the party alone
        if "validation" in header:
            benchmark = self._without(benchmark, header["validation"], experiment)
        growing, semantics = header.get("growing"), statistics.get(SEMANTICS)
        if growing is not None:
            known = self._known(benchmark, growing, semantics)
        else:
            if semantics is not None:
                benchmark = replace(benchmark, space=benchmark.space.with_bits_of(semantics.double().numpy()))
            self._compare(benchmark, header["space"])
        benchmark = experiment.task.client_data(benchmark)
        if list(benchmark.features.shape[1:]) != list(header["shape"]):
            raise RefusedError(
                f"{self.folder}: a sample has the shape {benchmark.features.shape[1:]}, but the coordinator's model "
                f"takes {tuple(header['shape'])}: give features of the same kind"
            )
        names: tuple[str, ...] = ()
        if growing is not None:
            names = _held(benchmark)
            if any(name not in known.names or known.names.index(name) not in known.seen for name in names):
                new = {name: benchmark.space.semantics[benchmark.space.names.index(name)] for name in names}
                brought = {name: row for name, row in new.items() if name not in known.names}
                return Ready(None, len(names), len(benchmark.train), None, names, brought)
            benchmark = seen_through(benchmark, known)
        empty = np.zeros(0, dtype=np.int64)
        partition = Partition.of([benchmark.train if k == client else empty for k in range(clients)])
        fitted = {name: value.numpy() for name, value in statistics.items() if name != SEMANTICS}
        scaler = Scaler(experiment.data.features or (), fitted)
        federation = assemble(experiment, benchmark, partition, scaler=scaler)
        engine = _in_process(federation)
        samples = engine.worker.restrict(client, taking)
        classes = len(np.unique(benchmark.labels[samples]))
        rows = own.unlabelled if getattr(self.settings, "unlabelled", False) == "summed" else taking
        keep = partial(_keep, experiment, benchmark, federation, self.home) if self.home is not None else None
        raw = partial(_raw, self.folder, own, rows)
        return Ready(engine, classes, len(samples), keep, names, raw=raw)

    def _taking_part(self, held: NDArray[np.int64], header: Mapping[str, Any], client: int) -> NDArray[np.int64]:
        """Return the samples that take part: all, or of a removal those that are removed."""
        removing, agreed = list(header.get("removing", ())), self.removal
        if not removing and agreed is None:
            return held
        if not removing:
            raise RefusedError("the coordinator does not ask to remove samples: leave out --removal")
        if agreed is None:
            raise RefusedError("the coordinator asks to remove samples of a finished run: join with --removal to agree")
        if "validation" in header or "growing" in header or getattr(self.settings, "unlabelled", False) == "summed":
            raise RefusedError("the removal leaves classes out, or is of unlabelled samples: ask for another plan")
        if "names" in header and header["names"][client] not in removing:  # it hides the others, with sums of no sample
            if agreed.samples:
                raise RefusedError("--samples are for a removal of samples of this party: leave them out")
            return held[:0]
        return named_samples(_REMOVAL_BATCH, held, agreed.samples, agreed.consent)

    def _known(self, benchmark: Benchmark, growing: Mapping[str, Any], semantics: Tensor | None) -> ClassSpace:
        """Return the class space that a coordinator describes, once it agrees with what is held here."""
        space, table = benchmark.space, self.folder / "classes.csv"
        if semantics is None:
            raise RefusedError("the coordinator's greeting describes no classes: start it again with `fedunseen host`")
        try:
            known = read_space(growing, semantics.numpy())
            former, tested, is_open = dict(growing["former"]), set(growing["tested"]), bool(growing["open"])
        except (DataError, KeyError, TypeError, ValueError) as error:
            raise RefusedError(f"the coordinator's greeting describes no class space: {error}") from None
        same = space.attribute_names == known.attribute_names
        if not same or dict(space.attribute_groups) != dict(known.attribute_groups):
            raise RefusedError(
                f"the attributes of {table} are not those of the coordinator, in their order: copy the coordinator's "
                "classes.csv and add a line for each new class"
            )
        for name in _held(benchmark):
            row = space.semantics[space.names.index(name)]
            if name not in known.names:
                if not is_open:
                    raise RefusedError(
                        f"{self.folder} holds samples of {name!r}, which the coordinator does not know, and this "
                        "federation takes no new classes (growth.name = 'unknown'): leave them out"
                    )
                try:
                    check_new_name(name, known.names)
                except DataError as error:
                    raise RefusedError(f"{table}: {error}") from None
                continue
            if name in tested:
                raise RefusedError(
                    f"{self.folder} holds samples of {name!r}, which the coordinator tests as a class that no one "
                    "holds: leave them out, or let the coordinator mark the class as seen"
                )
            there = known.semantics[known.names.index(name)]
            alike = space.from_texts and same_text(row, there)
            if not alike and described_as(row) not in (described_as(there), *former.get(name, ())):
                raise RefusedError(
                    f"{table} describes the class {name!r} otherwise than the coordinator does: copy its line, or give "
                    "the class another name if it is another"
                )
        return known

    def _without(self, benchmark: Benchmark, validation: object, experiment: Experiment) -> Benchmark:
        """Return what is left to train on while the coordinator's validation classes play the unseen ones."""
        seen = set(benchmark.space.seen.tolist())
        if not isinstance(validation, list) or not all(type(c) is int and c in seen for c in validation):
            raise RefusedError("the coordinator's greeting names validation classes that are not seen classes")
        marked = sorted(benchmark.space.validation.tolist())
        if experiment.privacy.aggregation == "masked" and sorted(validation) != marked:
            raise RefusedError(  # it could leave a party, or all but one, without samples, and read a sum of one
                f"the coordinator's validation classes are not those that {self.folder / 'classes.csv'} marks, which "
                "masked sums need: mark them alike in all class tables, or set evaluation.selection = 'last'"
            )
        space = replace(benchmark.space, validation=np.array(sorted(set(validation)), dtype=np.int64))
        left = replace(benchmark, space=space).for_selection(experiment.run.seed)
        if not len(left.train):
            raise RefusedError(
                f"{self.folder}: all samples to train on are of the coordinator's validation classes: let it choose on "
                "classes that leave each party one to train on, or not at all (evaluation.selection = 'last')"
            )
        return left

    def _compare(self, benchmark: Benchmark, space: Mapping[str, str]) -> None:
        own = benchmark.space.hashes()
        if different := [what for what, value in own.items() if space.get(what) != value]:
            raise RefusedError(
                f"{self.folder / 'classes.csv'} is not the coordinator's class space: they differ in the "
                f"{' and the '.join(different)}: copy the coordinator's classes.csv"
            )


def named_samples(batch: int, held: NDArray[np.int64], samples: Sequence[int], consent: bool) -> NDArray[np.int64]:
    """Return the samples that a party names by their positions among those that it holds; none named: all.

    ``batch``: fewer need consent (``method.removal_batch``).
    """
    if not len(samples):
        return held
    chosen = np.unique(np.asarray(samples, dtype=np.int64))
    if chosen[0] < 0 or chosen[-1] >= len(held):
        raise ExperimentError(f"--samples {chosen[-1]}: the party has {len(held)} samples, counted from 0")
    if len(chosen) < batch and not consent:
        raise ExperimentError(
            f"removing {len(chosen)} samples reveals their sums to anyone who kept the earlier total: remove at least "
            f"{batch} at once (method.removal_batch), or give --consent"
        )
    return held[chosen]


def _check_privacy(privacy: Mapping[str, Any], growing: bool, masked: bool) -> None:
    """Refuse a coordinator that would learn more than it says, or than the party allows."""
    if masked and privacy.get("aggregation") != "masked":
        raise RefusedError(
            "the coordinator would see this party's updates one by one: ask it to set privacy.aggregation = "
            "'masked', or join without --masked"
        )
    if growing and privacy.get("aggregation") == "masked":
        raise RefusedError(
            "the coordinator's class space grows, so that it would see which classes this party holds: ask it to "
            "leave out growth, or privacy.aggregation = 'masked'"
        )
    if privacy.get("name", "none") != "none" and privacy.get("noise_from", "seed") != "system":
        raise RefusedError(
            "the coordinator could draw the noise that this party adds, and take it off (privacy.noise_from = "
            "'seed'): ask it to set privacy.noise_from = 'system'"
        )


def _held(benchmark: Benchmark) -> tuple[str, ...]:
    """Return the names of the classes that there are samples of."""
    return tuple(benchmark.space.names[c] for c in np.unique(benchmark.labels[benchmark.train]))


def _keep(
    experiment: Experiment,
    benchmark: Benchmark,
    federation: Federation,
    home: Path,
    farewell: Mapping[str, Any],
    model: Params,
) -> Path:
    """Write the merged model that came with a farewell as a run directory of the party's own."""
    result = read_farewell(farewell, model, federation.first if federation.method.trained else {})
    _check_solved(federation, model)
    bring_home(experiment, benchmark, federation.scaler, result, model, home)
    return home


def _raw(folder: Path, benchmark: Benchmark, rows: NDArray[np.int64]) -> Iterator[bytes]:
    """Yield the bytes of samples as the owner has them: their files, or their features before any scaling."""
    for row in rows:
        if benchmark.files is not None and (path := folder / benchmark.files[row]).is_file():
            yield hashlib.sha256(path.read_bytes()).digest()
        else:
            yield np.ascontiguousarray(benchmark.features[row]).tobytes()


def _check_solved(federation: Federation, model: Params) -> None:
    """Refuse what a closed form cannot score a sample with: its solution has other tensors than its sums."""
    if federation.method.trained:
        return
    try:
        with torch.no_grad():
            scores = federation.method.scores(model, federation.inputs[:1], federation.semantics)
    except (IndexError, KeyError, RuntimeError, TypeError, ValueError):
        scores = torch.empty(0)
    if scores.shape != (1, len(federation.semantics)) or not finite({"scores": scores}):
        raise WireError("its model cannot score a sample of this party")


def _check_quantization(settings: Mapping[str, Any], own: Mapping[str, Any], statistics: Params) -> None:
    """Refuse a quantization that the parties would not share: their sums would be of other units."""
    for key in ("quantization", "quantization_range"):
        if (mine := own.get(f"data.{key}", settings.get(key))) != settings.get(key):
            raise RefusedError(
                f"data.{key} = {mine} is not the coordinator's, {settings.get(key)}, and all parties share one: leave "
                "it out, or ask the coordinator to change it"
            )
    bits, said = statistics.get("quantize.bits"), settings.get("quantization")
    if bits is not None and bits.tolist() != [said]:
        raise RefusedError(
            f"the coordinator scales features to {plain(bits.tolist(), 40)} bits, and data.quantization = "
            f"{plain(said, 20)}: ask it which of the two all parties share"
        )


def _received(experiment: object) -> dict[str, Any]:
    """Return a coordinator's sections, unless it sends some that are its own affair."""
    if not isinstance(experiment, dict):
        raise RefusedError("the coordinator's greeting holds no experiment: start it again with `fedunseen host`")
    if foreign := sorted(experiment.keys() & set(COORDINATORS)):
        raise RefusedError(f"the coordinator sends [{foreign[0]}], which parties do not take: ask it to leave that out")
    return dict(experiment)


def _check_places(sections: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse to open a file that the coordinator names: what the party then sends would say something of the file."""
    for section, content in sections.items():
        for key, value in content.items() if isinstance(content, Mapping) else ():
            if f"{section}.{key}" in own or key in _WORDING:
                continue
            for text in _texts(value):
                # A name in a model hub has a slash too, so that makes no path; but a name that exists here does.
                known = key in _FILES and (key == "model" or Path(text).exists())
                if known or os.sep in text[:2] or text[0] == "~" or any(sign in text for sign in ("..", ":", "\\")):
                    raise RefusedError(
                        f"the coordinator names the file {plain(text, 80)!r} for {section}.{key}, and a party opens "
                        f"its own files only: give --set {section}.{key}=FILE"
                    )


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a setting, at any depth, but empty ones."""
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, (list, dict)):
        for one in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts(one)


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
