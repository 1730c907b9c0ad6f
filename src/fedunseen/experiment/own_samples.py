"""The samples of one folder that belong to one owner: a party's, or those that are removed or
learned from.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, ExperimentError, RefusedError
from fedunseen.core.files import existing_folder
from fedunseen.core.parameters import within
from fedunseen.core.registry import find
from fedunseen.data import Benchmark
from fedunseen.data.benchmarks.image_benchmark import WindowWarning
from fedunseen.evaluation.summary import listed
from fedunseen.experiment.class_descriptions import names_in
from fedunseen.experiment.parsing import validated
from fedunseen.methods.closed_form.base import ClosedFormSettings

TAKEN = (
    "features", "semantics", "size", "resize", "window", "frames", "text_encoder", "prompt",
    "unlabelled", "label", "columns", "missing",
)  # fmt: skip
"""Keys of ``[data]`` that a party takes from its coordinator."""

REMOVAL_BATCH = int(ClosedFormSettings.model_fields["removal_batch"].default)
"""Fewer samples of a party need its consent to a removal; a coordinator's own number is only its
word.
"""


class OwnSamples:
    """The samples of a folder, read with the settings of a run that apply to them.

    Args:
        folder: of arrays (``features.npz``), of a table, or of pictures.
        owner_settings: ``{"section.key": value}`` that the folder's owner decides.
        settings: the run's ``[data]``.

    Raises:
        DataError: the folder is missing or damaged, or holds no training sample.
    """

    def __init__(
        self,
        folder: Path,
        owner_settings: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.owner_settings = dict(owner_settings or {})
        self.kind = "table" if find("data", "table").holds(folder) else "images"
        if (folder / "features.npz").exists():
            self.kind = "folder"
        table = folder / "classes.csv"
        stated = within("data.", self.owner_settings)
        first = {} if settings else find("data", self.kind).first_settings(folder, stated)
        if self.kind != "folder" and table.is_file() and names_in(table) is not None:
            first["text_encoder"] = "minilm"  # no one has said yet what describes names alone
        with warnings.catch_warnings():
            if not settings:  # pictures are read again in the coordinator's window
                warnings.simplefilter("ignore", WindowWarning)
            self.benchmark = self._read({**first, **(settings or {}), **stated})

    def tell_left_out(self, say: Callable[[str], object]) -> None:
        """Say which samples are of classes that the class table marks as unseen: no party trains on
        them.
        """
        names = sorted(
            {
                self.benchmark.space.names[c]
                for c in self.benchmark.labels[self.benchmark.test_unseen]
            }
        )
        if names:
            count = len(self.benchmark.test_unseen)
            table = self.folder / "classes.csv"
            say(
                f"note: {count} samples are left out, of {listed(names)}: {table} marks these "
                "classes as unseen"
            )

    def _read(self, settings: Mapping[str, Any]) -> Benchmark:
        """Read the folder, with those of the coordinator's settings of data that apply to it."""
        existing_folder(self.folder, "fix --data")
        loader = find("data", self.kind)
        fields = {
            key: value
            for key, value in settings.items()
            if key in TAKEN and key in loader.Settings.model_fields
        }
        fixed = {"name": self.kind, "root": self.folder, "part": True}
        self.settings = validated(loader.Settings, "data", {**fields, **fixed})
        benchmark: Benchmark = loader.load(self.settings, 0)
        if not len(benchmark.train):
            raise DataError(
                f"{self.folder} holds no sample to train on: all of them are marked 'test'"
            )
        return benchmark


def named_samples(
    batch: int, held: NDArray[np.int64], samples: Sequence[int], consent: bool
) -> NDArray[np.int64]:
    """Return the samples that a party names by their positions among those that it holds; none
    named: all.

    ``batch``: fewer need consent (``method.removal_batch``).
    """
    if not len(samples):
        return held
    chosen = np.unique(np.asarray(samples, dtype=np.int64))
    if chosen[0] < 0 or chosen[-1] >= len(held):
        raise ExperimentError(
            f"--samples {chosen[-1]}: the party has {len(held)} samples, counted from 0"
        )
    if len(chosen) < batch and not consent:
        raise ExperimentError(
            f"removing {len(chosen)} samples reveals their sums to anyone who kept the earlier "
            f"total: remove at least {batch} at once (method.removal_batch), or give --consent"
        )
    return held[chosen]


def check_removed_classes(
    names: Sequence[str],
    held: NDArray[np.int64],
    removed: NDArray[np.int64],
    minimum: int,
) -> None:
    """Refuse to remove, or leave, so few samples of a class that a difference of sums shows them.

    Whoever has the totals from before and after reads the sum of what is removed of each class, and
    the sum of what is left of it.

    Args:
        names: of the classes.
        held: (n,) the class of each sample in the sums.
        removed: (m,) the class of each sample that is removed from them.
        minimum: fewer samples of a class need the owner's consent.

    Raises:
        RefusedError: code ``removal-of-few``: a class has too few removed samples, or too few stay.
    """
    held_counts, removed_counts = (
        np.bincount(labels, minlength=len(names)) for labels in (held, removed)
    )
    remaining = held_counts - removed_counts
    remedy = (
        f"remove at least {minimum} of each class and leave as many or none, or give the consent "
        "to a removal of few samples"
    )
    shown = (removed_counts < minimum) | ((remaining > 0) & (remaining < minimum))
    if len(few := np.flatnonzero((removed_counts > 0) & shown)):
        c = int(few[0])
        raise RefusedError(
            f"{removed_counts[c]} samples of {names[c]!r} would be removed and "
            f"{remaining[c]} would stay, and the sums from before and after show fewer "
            f"than {minimum}: {remedy}",
            "removal-of-few",
        )


def check_leftovers(
    names: Sequence[str], staying: NDArray[np.int64], removed: NDArray[np.int64], missing: int
) -> None:
    """Refuse to remove all samples of a class that are here, where the sums have some that are not:
    these would stay in the model, where so many hid them, perhaps one alone.

    Args:
        names: of the classes.
        staying: (n,) the class of each sample here that is in the sums, and is not removed.
        removed: (m,) the class of each sample that is removed, also of those that the sums do not
            have as they are here.
        missing: samples in the sums that the party has no more, so that their classes are unknown.

    Raises:
        RefusedError: code ``removal-leaves``.
    """
    whole = np.setdiff1d(removed, staying)
    if missing and len(whole):
        raise RefusedError(
            f"all samples of {names[whole[0]]!r} here would be removed, and {missing} that the "
            "sums have are here no more, or are not as they were: they would stay in the model, "
            "perhaps one alone, whose features its readers could tell. Restore them until the "
            "removal is done, or give --consent leftovers if the owner agrees",
            "removal-leaves",
        )
