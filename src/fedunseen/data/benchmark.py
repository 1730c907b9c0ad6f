"""A benchmark: a class space, the samples of its classes, and who may look at which sample."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError
from fedunseen.core.random import stream
from fedunseen.core.settings import NamedSettings
from fedunseen.data.class_space import ClassSpace
from fedunseen.data.scaling import Scaling, blocks

__all__ = ["Benchmark", "DataSettings"]


class DataSettings(NamedSettings):
    """What every ``[data]`` section may say; a benchmark's own ``Settings`` add to it."""

    features: tuple[Scaling, ...] = ()
    """Scalings of the features, in order, fitted on training samples only: `l2` (unit length), `centre`, `standard`
    (zero mean, unit deviation), `min-max`, `x10` (ten times as long)."""
    semantics: tuple[Scaling, ...] = ()
    """The same scalings for the semantics, in order, fitted on seen classes only."""


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Samples of a class space, split as the benchmark's authors split them.

    Attributes:
        name: for people, for example ``"xlsa17/CUB"``.
        space: the classes.
        features: one of four kinds, any real numeric type, finite: ``vectors`` (samples, d), ``sequences`` (samples,
            steps, width) such as word vectors, feature ``maps`` (samples, channels, height, width), or ``images``: such
            an array of bytes together with ``image_shape``.
        labels: shape (samples,), class ids.
        train: sorted ids of the samples that clients train on; seen classes only, and some of each.
        test_seen: sorted ids of the test samples of seen classes, none of them in ``train``. There may be none where
            nothing describes the classes.
        test_unseen: sorted ids of the test samples of unseen classes. An unseen class may have none.
        image_shape: (height, width) if the features are flattened grey images in [0, 1]; (channels, height, width) if
            they are images.
        pictures: (samples, channels, height, width) the images that the features were made of, if an encoder did.
        users: (samples,) who each sample comes from, counted from 0, if the source says.
        answers: (classes,) what a class stands for in every episode, counted from 0, where that is fixed: the negative
            tweets of new users are a class of their own, and still negative.
        part: only some of the classes have samples here, or no training or no test samples: what one party, or the
            coordinator of a deployment, holds. Then any split may be empty, a seen class need not have a training
            sample, and training samples may all be alike; some sample there must be.

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
    users: NDArray[np.int64] | None = None
    answers: NDArray[np.int64] | None = None
    part: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", np.asarray(self.labels, dtype=np.int64))
        for split in ("train", "test_seen", "test_unseen"):
            object.__setattr__(self, split, np.sort(np.asarray(getattr(self, split), dtype=np.int64)))
        self._check_labels()
        self._check_splits()
        self._check_features()

    def _check_labels(self) -> None:
        if self.features.ndim not in (2, 3, 4) or 0 in self.features.shape[1:]:
            raise DataError(
                f"{self.name}: the features have the shape {self.features.shape}, neither (samples, numbers) nor "
                "(samples, steps, width) nor (samples, channels, height, width)"
            )
        if self.labels.shape != self.features.shape[:1]:
            raise DataError(f"{self.name}: {len(self.features)} samples have features, but {self.labels.size} a label")
        if self.part and not len(self.labels):
            raise DataError(f"{self.name} has no sample at all: a part of a benchmark needs one at least")
        classes = len(self.space.names)
        outside = (self.labels < 0) | (self.labels >= classes)
        if outside.any():
            first = int(np.argmax(outside))
            raise DataError(
                f"{self.name}: the label {self.labels[first]} of sample {first} is outside the class space "
                f"(0..{classes - 1})"
            )

    def _check_splits(self) -> None:
        samples = len(self.labels)
        for split, classes, word in (
            ("train", self.space.seen, "seen"),
            ("test_seen", self.space.seen, "seen"),
            ("test_unseen", self.space.unseen, "unseen"),
        ):
            ids = getattr(self, split)
            if not len(ids):
                if self.part or (split == "test_seen" and not self.space.attributes):
                    continue
                raise DataError(f"{self.name}: the split {split} has no sample")
            if ids[0] < 0 or ids[-1] >= samples:
                outside = ids[0] if ids[0] < 0 else ids[-1]
                raise DataError(f"{self.name}: the sample id {outside} in {split} is outside 0..{samples - 1}")
            if len(np.unique(ids)) != len(ids):
                raise DataError(f"{self.name}: the split {split} names a sample more than once")
            stray = np.setdiff1d(self.labels[ids], classes)
            if len(stray):
                raise DataError(
                    f"{self.name}: {split} holds samples of {self.space.names[stray[0]]!r}, which is not "
                    f"{'a seen' if word == 'seen' else 'an unseen'} class"
                )
        both = np.intersect1d(self.train, self.test_seen)  # test_unseen is of other classes
        if len(both):
            raise DataError(f"{self.name}: {len(both)} samples are in both train and test_seen")
        without = np.setdiff1d(self.space.seen, self.labels[self.train])
        if len(without) and not self.part:
            raise DataError(f"{self.name}: the seen class {self.space.names[without[0]]!r} has no training sample")

    def _check_features(self) -> None:
        if self.features.dtype.kind not in "fiub":
            raise DataError(f"{self.name}: the features are of type {self.features.dtype}, not real numbers")
        if self.features.dtype.kind == "f":
            with np.errstate(over="ignore"):  # what overflows float32 is infinite to the model
                bad = sum(
                    int((~np.isfinite(block.astype(np.float32, copy=False)).reshape(len(block), -1).all(axis=1)).sum())
                    for block in blocks(self.features)
                )
            if bad:
                raise DataError(
                    f"{self.name}: the features of {bad} of {len(self.labels)} samples hold NaN or infinity"
                )
        if self.part:
            return
        first = self.features[self.train[0]]
        if not any((block != first).any() for block in self._training_blocks()):
            raise DataError(
                f"{self.name}: all training samples have the same features: nothing can be learnt from them"
            )

    def _training_blocks(self) -> Iterator[NDArray[Any]]:
        for ids in np.array_split(self.train, -(-len(self.train) // 1024)):
            yield self.features[ids]

    @property
    def kind(self) -> Literal["vectors", "sequences", "maps", "images"]:
        """What a sample is."""
        if self.features.ndim < 4:
            return "vectors" if self.features.ndim == 2 else "sequences"
        return "images" if self.image_shape else "maps"

    def images(self) -> NDArray[Any] | None:
        """Return the samples as images (samples, channels, height, width), bytes or floats in [0, 1], if they are any.

        For encoded samples they are the images that the features were made of.
        """
        if self.pictures is not None or self.image_shape is None:
            return self.pictures
        shape = self.image_shape if len(self.image_shape) == 3 else (1, *self.image_shape)
        return self.features.reshape(-1, *shape)

    def fingerprint(self) -> str:
        """Return the SHA-256 of everything that a result can depend on."""
        digest = hashlib.sha256()
        texts = [*self.space.names, "", *self.space.attribute_names]
        digest.update("\0".join(texts).encode())
        arrays = [self.space.semantics, self.space.seen, self.space.validation, self.space.unseen]
        arrays += [self.labels, self.train, self.test_seen, self.test_unseen]
        arrays += [array for array in (self.users, self.answers) if array is not None]
        for array in [*arrays, self.features]:
            digest.update(f"{array.dtype.str} {array.shape}".encode())
            for block in blocks(array):
                digest.update(np.ascontiguousarray(block).data)
        return digest.hexdigest()

    def for_selection(self, seed: int, held_out: float = 0.2) -> Benchmark:
        """Return the benchmark on which rounds, calibration and settings are chosen.

        The validation classes play the unseen ones. The real unseen classes and every test sample vanish from
        the splits: whatever is chosen here has seen neither. Class ids, sample ids and the features array
        stay the same.

        Args:
            seed: the run's seed.
            held_out: share of each training class's training samples that becomes ``test_seen``, in (0, 1);
                at least one sample, and at least one stays (a class with a single sample keeps it).

        Raises:
            DataError: if there are no validation classes, or nothing but validation classes.
        """
        space = self.space
        if not len(space.validation):
            raise DataError(f"{self.name} has no validation classes to choose on: mark some seen classes as validation")
        if not len(space.train):
            raise DataError(f"{self.name}: every seen class is a validation class: leave some to train on")
        labels = self.labels[self.train]
        held: list[NDArray[np.int64]] = []
        for c in space.train.tolist():
            samples = self.train[labels == c]
            count = max(0, min(len(samples) - 1, max(1, round(held_out * len(samples)))))  # a part may have none
            held.append(stream(seed, "selection split", c).choice(samples, size=count, replace=False))
        test_seen = np.sort(np.concatenate(held))
        of_train_classes = self.train[np.isin(labels, space.train)]
        return replace(
            self,
            name=f"{self.name} (selection)",
            space=replace(space, seen=space.train, validation=np.array([], dtype=np.int64), unseen=space.validation),
            train=np.setdiff1d(of_train_classes, test_seen),
            test_seen=test_seen,
            test_unseen=self.train[np.isin(labels, space.validation)],
        )
