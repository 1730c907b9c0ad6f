"""A benchmark: a class space, the samples of its classes, and who may look at which sample."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator

from fedunseen.core.arrays import to_float32
from fedunseen.core.bounds import limits
from fedunseen.core.errors import DataError, ExperimentError, counted
from fedunseen.core.originals import Originals
from fedunseen.core.random import stream
from fedunseen.core.settings import NamedSettings
from fedunseen.data.class_space import ClassSpace, draw_validation
from fedunseen.data.kernel import FEATURES
from fedunseen.data.names import class_name, did_you_mean
from fedunseen.data.scaling import FeatureScaling, Scaling, blocks

FEWEST_UNLABELLED = 10
_End = Annotated[float, limits("data.bounds")]
HELD_OUT = 0.2  # of a class's training samples, where something is chosen


class DataSettings(NamedSettings):
    """What every ``[data]`` section may say; a benchmark's own ``Settings`` add to it."""

    features: tuple[FeatureScaling, ...] | None = None
    """Scalings of the features, in order, fitted on training samples only: `l2` (unit length),
    `centre`, `standard` (zero mean, unit deviation), `min-max`, `x10` (ten times as long). Unset:
    what keeps the method stable for any features' length, `["centre", "l2"]` for most trained
    methods; gray values in [0, 1] stay. None at all: `[]`. `kernel`, as the last one, lets
    boundaries between classes curve: `["standard", "kernel"]`."""
    kernel_features: Annotated[int, limits("data.kernel_features")] = FEATURES
    """How many random Fourier features the scaling `kernel` makes of a sample. Twice as many fit
    finer boundaries, and make sums four times as large."""
    quantization: Annotated[int, limits("data.quantization")] | Literal["none"] | None = None
    """Bits of a feature in a method in closed form, which adds up whole numbers: exact in any
    order, half the upload. `none`: float64. Unset: 8 for feature vectors. Features are then brought
    to unit length, unless `features` is set. Features that do not end with `l2` get bounds of their
    own, fitted to training samples; gray values have [0, 1]."""
    quantization_range: Annotated[float, limits("data.quantization_range")] = 12.0
    """Where features are clipped: in root mean squares at unit length, in standard deviations with
    bounds for each.
    """
    bounds: tuple[tuple[_End, _End], ...] = ()
    """Lowest and highest value of each feature, agreed beforehand: `[[0, 100], [-40, 60]]`. One
    pair is for all. `min-max` and quantization take these, so that no sample moves them."""
    semantics: tuple[Scaling, ...] = ()
    """The same scalings for the semantics, in order, fitted on seen classes only."""

    @field_validator("bounds")
    @classmethod
    def _check_bounds(cls, bounds: tuple[tuple[float, float], ...]) -> Any:
        for low, high in bounds:
            if not np.float32(low) < np.float32(high):
                raise ExperimentError(
                    f"data.bounds: [{low:g}, {high:g}] is not a range: give the lowest value, then a "
                    "higher one",
                    "bounds-of-no-range",
                )
        return bounds


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Samples of a class space, split as the benchmark's authors split them.

    Attributes:
        name: for people, for example ``"xlsa17/CUB"``.
        space: the classes.
        features: one of four kinds, any real numeric type, finite: ``vectors`` (samples, d),
            ``sequences`` (samples, steps, width) such as word vectors, feature ``maps`` (samples,
            channels, height, width), or ``images``: such an array of bytes together with
            ``image_shape``.
        labels: shape (samples,), class ids; -1 for samples, in no split, of classes that the space
            does not have yet.
        train: sorted ids of the samples that clients train on; seen classes only, and some of each.
        test_seen: sorted ids of the test samples of seen classes, none of them in ``train``. There
            may be none where nothing describes the classes.
        test_unseen: sorted ids of the test samples of unseen classes. An unseen class may have
            none.
        image_shape: (height, width) if the features are flattened gray images in [0, 1]; (channels,
            height, width) if they are images.
        pictures: (samples, channels, height, width) the images that the features were made of, if
            an encoder did.
        files: (samples,) the file of each sample, as a path in the data's folder, if each has one.
        users: (samples,) who each sample comes from, counted from 0, if the source says.
        answers: (classes,) what a class stands for in every episode, counted from 0, where that is
            fixed: the negative tweets of new users are a class of their own, and still negative.
        unlabelled: ids of samples without a label, in no split: their label is -1.
        reading: how samples were read, in sentences for people.
        originals: what the samples were before settings made these features of them, where that is
            no file of each.
        repeats: (samples,) 0, but k for the k-th sample whose features are those of another one,
            which stands in for it; None: none is.
        part: only some of the classes have samples here, or no training or no test samples: what
            one party, or the coordinator of a deployment, holds. Then any split may be empty, a
            seen class need not have a training sample, and training samples may all be alike; some
            sample there must be.

    Raises:
        DataError: if any of this does not hold, or every training sample has the same features.
    """

    name: str
    space: ClassSpace
    features: NDArray[Any]
    labels: NDArray[np.int64]
    train: NDArray[np.int64]
    test_seen: NDArray[np.int64]
    test_unseen: NDArray[np.int64]
    image_shape: tuple[int, ...] | None = None
    pictures: NDArray[Any] | None = None
    files: tuple[str, ...] | None = None
    users: NDArray[np.int64] | None = None
    answers: NDArray[np.int64] | None = None
    part: bool = False
    unlabelled: NDArray[np.int64] = field(default_factory=lambda: np.array([], dtype=np.int64))
    reading: tuple[str, ...] = ()
    originals: Originals | None = None
    repeats: NDArray[np.int64] | None = None

    @classmethod
    def from_arrays(
        cls,
        inputs: Any,
        labels: Any,
        classes: Any,
        *,
        test: tuple[Any, Any] | None = None,
        groups: Any = None,
        validation: Sequence[Any] | int = (),
        seed: int = 0,
    ) -> "Benchmark":
        """Return a benchmark of arrays in memory. Classes that ``labels`` name are seen, all others
        are unseen.

        Images need their shape: ``dataclasses.replace(benchmark, image_shape=(3, 32, 32))``.

        Args:
            inputs: the training samples (n, d), or sequences or maps as in ``features`` above.
            labels: (n,) the class name of each training sample, as ``classes`` has it.
            classes: name -> attributes, which are numbers or a mapping of attribute name -> number;
                or a data frame with a class a row and an attribute a column. It may have more
                classes than ``labels``.
            test: inputs and labels of test samples, of seen and unseen classes. Without them the
                benchmark can be trained on but not evaluated (``part``).
            groups: (n,) who holds each training sample, by any name. They become ``users``, counted
                from 0 in sorted order; all test samples belong to one more.
            validation: names of seen classes that are set aside when something is chosen, or how
                many ``seed`` draws.
            seed: draws the validation classes.

        Raises:
            DataError: if the arrays do not fit each other, a label is not a class, a group has no
                name, or as :class:`Benchmark`.

        Example:
            >>> animals = {"horse": [1, 0], "tiger": [0, 1], "zebra": [1, 1]}
            >>> made = Benchmark.from_arrays([[0.0, 1], [1, 0]], ["horse", "tiger"], animals, groups=["me", "you"])
            >>> [made.space.names[c] for c in made.space.unseen], made.users.tolist(), made.train.tolist()
            (['zebra'], [0, 1], [0, 1])
        """
        ids, attribute_names, semantics = described(classes)
        features, label, in_test = _joined(inputs, labels, test, ids)
        seen = np.unique(label[~in_test])
        chosen = _validation_ids(validation, seen, ids, seed)
        unseen = np.setdiff1d(np.arange(len(ids)), seen)
        names = tuple(class_name(key) for key in ids)
        space = ClassSpace(names, semantics, attribute_names, seen, chosen, unseen)
        benchmark = cls(
            name="arrays",
            space=space,
            features=features,
            labels=label,
            users=None if groups is None else _users(groups, in_test),
            part=test is None,
            **split_ids(space, label, in_test),
        )
        benchmark._check_varied()
        return benchmark

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", np.asarray(self.labels, dtype=np.int64))
        for split in ("train", "test_seen", "test_unseen"):
            object.__setattr__(
                self, split, np.sort(np.asarray(getattr(self, split), dtype=np.int64))
            )
        self._check_labels()
        self._check_splits()
        self._check_features()

    def _check_labels(self) -> None:
        if self.features.ndim not in (2, 3, 4) or 0 in self.features.shape[1:]:
            raise DataError(
                f"{self.name}: the features have the shape {self.features.shape}, neither "
                "(samples, numbers) nor (samples, steps, width) nor (samples, channels, height, "
                "width)"
            )
        if self.labels.shape != self.features.shape[:1]:
            raise DataError(
                f"{self.name}: {len(self.features)} samples have features, but {self.labels.size} "
                "a label"
            )
        if self.part and not len(self.labels):
            raise DataError(
                f"{self.name} has no sample at all: a part of a benchmark needs one at least"
            )
        classes = len(self.space.names)
        outside = (self.labels < -(self.part or len(self.unlabelled) > 0)) | (
            self.labels >= classes
        )
        if outside.any():
            first = int(np.argmax(outside))
            raise DataError(
                f"{self.name}: the label {self.labels[first]} of sample {first} is outside the "
                f"class space (0..{classes - 1})"
            )

    def _check_splits(self) -> None:
        samples = len(self.labels)
        for split in ("train", "test_seen", "test_unseen"):
            ids = getattr(self, split)
            classes, word = (
                (self.space.unseen, "an unseen")
                if split == "test_unseen"
                else (self.space.seen, "a seen")
            )
            if not len(ids):
                if self.part or (split == "test_seen" and not self.space.attributes):
                    continue
                raise DataError(empty_split(self.name, split))
            if ids[0] < 0 or ids[-1] >= samples:
                outside = ids[0] if ids[0] < 0 else ids[-1]
                raise DataError(
                    f"{self.name}: the sample id {outside} in {split} is outside 0..{samples - 1}"
                )
            if (ids[1:] == ids[:-1]).any():  # they are sorted
                raise DataError(f"{self.name}: the split {split} names a sample more than once")
            if len(stray := np.setdiff1d(self.labels[ids], classes)):
                raise DataError(
                    f"{self.name}: {split} holds samples of {self.space.names[stray[0]]!r}, which "
                    f"is not {word} class"
                )
        if len(
            shared := np.intersect1d(self.train, self.test_seen, assume_unique=True)
        ):  # test_unseen has other classes
            raise DataError(f"{self.name}: {len(shared)} samples are in both train and test_seen")
        without = np.setdiff1d(self.space.seen, self.labels[self.train])
        if len(without) and not self.part:
            raise DataError(
                f"{self.name}: the seen class {self.space.names[without[0]]!r} has no training "
                "sample"
            )

    def _check_features(self) -> None:
        if self.features.dtype.kind not in "fiub":
            kind = self.features.dtype
            raise DataError(
                f"{self.name}: the features are of type {kind}, not real numbers: save numbers"
            )
        if self.features.dtype.kind == "f":
            self._check_finite()
        if not self.part:
            self._check_varied()

    def _check_varied(self) -> None:
        """Refuse training samples that are all alike: nothing can be learned from them."""
        first = self.features[self.train[0]]
        parts = np.array_split(self.train, -(-len(self.train) // 1024))
        if not any((self.features[ids] != first).any() for ids in parts):
            raise DataError(
                f"{self.name}: all training samples have the same features: nothing can be learned "
                "from them"
            )

    def _check_finite(self) -> None:
        bad = first = 0
        for block in blocks(self.features):
            numbers = to_float32(block, self.name, first).reshape(len(block), -1)
            bad = bad + int((~np.isfinite(numbers).all(axis=1)).sum())
            first = first + len(block)
        if bad:
            problem = f"{self.name}: the features of {bad} of {len(self.labels)} samples"
            raise DataError(f"{problem} hold NaN or infinity: leave those out")

    @property
    def kind(self) -> Literal["vectors", "sequences", "maps", "images"]:
        """What a sample is."""
        if self.features.ndim < 4:
            return "vectors" if self.features.ndim == 2 else "sequences"
        return "images" if self.image_shape else "maps"

    def sketch(self) -> NDArray[np.int64]:
        """Return the ids of training samples that stand for all: spread evenly, at most 1,000
        vectors or 64 others.
        """
        most = (
            1000 if self.kind == "vectors" else 64
        )  # of images, maps and sequences a network makes features first
        return self.train[np.unique(np.linspace(0, len(self.train) - 1, most).astype(np.int64))]

    def images(self) -> NDArray[Any] | None:
        """Return the images (samples, channels, height, width) that the samples are or were made
        of, if any.
        """
        if self.pictures is not None or self.image_shape is None:
            return self.pictures
        shape = self.image_shape if len(self.image_shape) == 3 else (1, *self.image_shape)
        return self.features.reshape(-1, *shape)

    def told_apart(self, rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Yield arrays that are the same for the same sample alone, also where the settings of
        others make the same features of different ones, or one stands in for others.
        """
        samples = self.features if self.pictures is None else self.pictures
        if self.originals is not None:
            samples = self.originals.unlabelled
        repeats = np.zeros(len(samples), np.int64) if self.repeats is None else self.repeats
        numbered = zip(rows, repeats[rows], strict=True)
        return (np.append(samples[row], k) if k else samples[row] for row, k in numbered)

    def fingerprint(self) -> str:
        """Return the SHA-256 of everything that a result can depend on."""
        digest = hashlib.sha256()
        digest.update("\0".join([*self.space.names, "", *self.space.attribute_names]).encode())
        arrays = [self.space.semantics, self.space.seen, self.space.validation, self.space.unseen]
        arrays += [self.labels, self.train, self.test_seen, self.test_unseen]
        arrays += [array for array in (self.users, self.answers) if array is not None]
        arrays += [self.unlabelled] if len(self.unlabelled) else []
        for array in [*arrays, self.features]:
            digest.update(f"{array.dtype.str} {array.shape}".encode())
            for block in blocks(array):
                digest.update(np.ascontiguousarray(block).data)
        return digest.hexdigest()

    def for_selection(self, seed: int) -> "Benchmark":
        """Return the benchmark on which rounds, calibration and settings are chosen.

        The validation classes play the unseen ones. The real unseen classes and every test sample
        vanish from the splits, so that no choice has seen either. Class ids, sample ids and the
        features array stay the same. ``seed`` draws a fifth of each training class's training
        samples as ``test_seen``: at least one, and at least one stays.

        Raises:
            DataError: if there are no validation classes, or nothing but validation classes.
        """
        space = self.space
        if not len(space.validation):
            raise DataError(
                f"{self.name} has no validation classes to choose on: mark some seen classes as "
                "validation"
            )
        if not len(space.train):
            raise DataError(
                f"{self.name}: every seen class is a validation class: leave some to train on"
            )
        labels = self.labels[self.train]
        held_out = draw_test(labels, space.train, HELD_OUT, seed, "selection split")
        return replace(
            self,
            name=f"{self.name} (selection)",
            space=replace(
                space,
                seen=space.train,
                validation=np.array([], dtype=np.int64),
                unseen=space.validation,
            ),
            train=self.train[np.isin(labels, space.train) & ~held_out],
            test_seen=self.train[held_out],
            test_unseen=self.train[np.isin(labels, space.validation)],
        )

    def without(self, rows: NDArray[np.int64]) -> "Benchmark":
        """Return the benchmark with some training samples in no split and without a label.

        Class ids and sample ids stay the same. A seen class may be left without a training sample.
        """
        labels = self.labels.copy()
        labels[rows] = -1
        return replace(self, labels=labels, train=np.setdiff1d(self.train, rows), part=True)


def split_ids(
    space: ClassSpace, labels: NDArray[np.int64], test: NDArray[np.bool_]
) -> dict[str, Any]:
    """Return the ids of ``train``, ``test_seen`` and ``test_unseen``; all samples of unseen classes
    are for tests.
    """
    seen = np.isin(labels, space.seen)
    unseen = np.isin(labels, space.unseen)
    masks = {"train": seen & ~test, "test_seen": seen & test, "test_unseen": unseen}
    return {split: np.flatnonzero(mask) for split, mask in masks.items()}


def draw_test(
    labels: NDArray[np.int64],
    classes: NDArray[np.int64],
    share: float,
    seed: int,
    purpose: str = "test images",
) -> NDArray[np.bool_]:
    """Draw a share of the samples of each class for tests: at least one, but a class's only sample
    stays.
    """
    test = np.zeros(len(labels), dtype=bool)
    for c in classes.tolist():
        mine = np.flatnonzero(labels == c)
        if count := min(len(mine) - 1, max(1, round(share * len(mine)))) if len(mine) else 0:
            test[stream(seed, purpose, c).choice(mine, size=count, replace=False)] = True
    return test


def empty_split(name: str, split: str) -> str:
    """Return the sentence that says what a benchmark lacks whose split ``split`` is empty."""
    lacks = {
        "train": "training sample: give each seen class some",
        "test_seen": "test sample of a seen class: give some (a class with a single sample trains "
        "on it)",
        "test_unseen": "sample of an unseen class: give some, or mark a class that has samples as "
        "unseen; ask for a class with a name alone after training, by `fedunseen predict RUN INPUT "
        "--class NAME` (for described ones: --classes FILE)",
    }
    return f"{name} has no {lacks[split]}"


def described(classes: Any) -> tuple[dict[Any, int], tuple[str, ...], NDArray[np.float64]]:
    """Return the id of each class's name, the attributes' names, and the semantics of shape
    (classes, attributes).
    """
    if hasattr(classes, "columns"):  # a data frame of any library
        keys, columns, values = _of_frame(classes)
    elif isinstance(classes, Mapping) and classes:
        keys = list(classes)
        rows = list(classes.values())
        if isinstance(rows[0], Mapping):
            columns = [str(column) for column in rows[0]]
            for key, row in classes.items():
                if not isinstance(row, Mapping) or set(row) != set(rows[0]):
                    raise DataError(
                        f"the class {key!r} has other attributes than {keys[0]!r}: give all "
                        "classes the same"
                    )
            values = [[row[column] for column in rows[0]] for row in rows]
        else:
            for key, row in classes.items():
                if np.shape(row) != np.shape(rows[0]) or np.ndim(row) != 1:
                    raise DataError(
                        f"the class {key!r} has attributes of the shape {np.shape(row)}, but "
                        f"{keys[0]!r} of the shape {np.shape(rows[0])}: give every class as many "
                        "numbers"
                    )
            columns = [f"attribute {i}" for i in range(len(rows[0]))]
            values = rows
    else:
        raise DataError(
            "there is no class: give a mapping of name -> attributes, or a data frame with a class "
            "a row"
        )
    semantics = _semantics(values, columns)
    ids = {key: i for i, key in enumerate(keys)}
    if len(ids) < len(keys):
        raise DataError("two classes have the same name: rename one")
    return ids, tuple(columns), semantics


def _of_frame(frame: Any) -> tuple[list[Any], list[str], Any]:
    """Return the classes' names, the attributes' names and the values of a data frame.

    Names are the column of text that is called ``name``; or else the index; or else, where that is
    none of text, the only column of text.
    """
    columns = [str(column).strip() for column in frame.columns]
    values = np.asarray(frame.to_numpy())
    index = list(getattr(frame, "index", ()))
    texts = [
        i
        for i in range(len(columns))
        if values.dtype.kind in "OU" and any(isinstance(value, str) for value in values[:, i])
    ]
    named = [i for i in texts if columns[i].lower() == "name"]
    if not named and not any(isinstance(name, str) for name in index):
        named = texts
    if len(named) == 1:
        others = [i for i in range(len(columns)) if i != named[0]]
        keys = values[:, named[0]].tolist()
        return keys, [columns[i] for i in others], values[:, others]
    if not index:
        raise DataError(
            "the classes have no names: give the data frame of classes a column 'name' with them"
        )
    return index, columns, values


def _semantics(values: Any, columns: Sequence[str]) -> NDArray[np.float64]:
    """Return the values of attributes (classes, attributes) as numbers."""
    dates = isinstance(values, np.ndarray) and values.dtype.kind in "mM"
    try:
        semantics = np.array(values, dtype=None if dates else np.float64)
        return semantics.astype(np.float64, casting="safe").reshape(len(values), len(columns))
    except (TypeError, ValueError):
        pass
    name, value = next(
        (column, row[i])
        for i, column in enumerate(columns)
        for row in values
        if dates or not _is_number(row[i])
    )
    raise DataError(
        f"the attribute {name!r} has the value {value!s}: give numbers, or leave the attribute out"
    )


def _is_number(value: Any) -> bool:
    try:
        np.float64(value)
    except (TypeError, ValueError):
        return False
    return True


def _validation_ids(
    validation: Sequence[Any] | int, seen: NDArray[np.int64], ids: Mapping[Any, int], seed: int
) -> NDArray[np.int64]:
    """Return the ids of validation classes that are named, or that ``seed`` draws."""
    if isinstance(validation, int):
        return draw_validation(seen, validation, seed)
    return _class_ids(validation, ids)


def _joined(
    inputs: Any, labels: Any, test: tuple[Any, Any] | None, ids: Mapping[Any, int]
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the features, class ids and whether it is a test sample of training and test samples,
    one after other.
    """
    parts = [(inputs, labels)] if test is None else [(inputs, labels), test]
    rows = [_rows(samples) for samples, _ in parts]
    if len({array.shape[1:] for array in rows}) > 1:
        raise DataError(
            f"the test samples have the shape {rows[1].shape[1:]}, the training samples "
            f"{rows[0].shape[1:]}"
        )
    classes = [_class_ids(names, ids) for _, names in parts]
    for array, label in zip(rows, classes, strict=True):
        if len(array) != len(label):
            raise DataError(
                f"there are {len(array)} samples, but {len(label)} labels: give one a sample"
            )
    label = np.concatenate(classes)
    return (
        rows[0] if test is None else np.concatenate(rows),
        label,
        np.arange(len(label)) >= len(classes[0]),
    )


def _users(groups: Any, in_test: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return who holds each sample, counted from 0 in sorted order; all test samples belong to one
    more.
    """
    for sample, group in enumerate(np.asarray(groups, dtype=object).ravel()):
        if group is None or group != group:
            raise DataError(f"groups: sample {sample} has {group!r}: name the party that holds it")
    holders, holder = np.unique(np.asarray(groups), return_inverse=True)
    train = np.flatnonzero(~in_test)
    if holder.shape != train.shape:
        raise DataError(
            f"groups have the shape {holder.shape}, but there are {len(train)} training samples"
        )
    users = np.full(len(in_test), len(holders), dtype=np.int64)
    users[train] = holder
    return users


def _rows(samples: Any) -> NDArray[Any]:
    """Return samples as an array; numbers become float32, which models are trained in, bytes stay
    bytes.
    """
    try:
        rows: NDArray[Any] = np.asarray(samples)
    except ValueError:
        raise DataError(
            "the samples must be an array: each needs as many numbers as the others"
        ) from None
    if not rows.ndim:
        raise DataError("there is no sample: give an array of shape (samples, numbers)")
    return to_float32(rows, "the samples") if rows.dtype.kind in "fib" else rows


def check_unlabelled(number: int, place: str = "") -> None:
    """Refuse fewer than ten unlabelled samples, which say too little; ``place`` is where they
    are.
    """
    if number < FEWEST_UNLABELLED:
        few = counted(number, "unlabelled sample") + (f" in {place}" if place else "")
        raise DataError(
            f"there {'is' if number == 1 else 'are'} {few}: give at least {FEWEST_UNLABELLED}"
        )


def _class_ids(names: Any, ids: Mapping[Any, int]) -> NDArray[np.int64]:
    """Return the ids of classes by name."""
    listed = np.ravel(names).tolist() if isinstance(names, np.ndarray) else list(names)
    for name in listed:
        if name not in ids:
            raise DataError(
                f"the label {name!r} is not a class of "
                f"`classes`{did_you_mean(str(name), map(str, ids))}"
            )
    return np.array([ids[name] for name in listed], dtype=np.int64)
