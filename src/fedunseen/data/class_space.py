"""The class space: which classes exist, what describes them, and which of them are seen, validation
or unseen.

``classes.csv`` holds one, a class a line: ``name``, ``split`` (empty: described, neither trained on
nor tested) and a column per attribute. ``group: attribute`` (the first colon and space count) puts
a column in a group; ``: split`` is an attribute of a reserved name. All cells of a class that a run
has learned from examples alone are empty.
"""

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, unknown
from fedunseen.core.random import stream
from fedunseen.data.io.csv_io import number, read_csv, write_csv
from fedunseen.data.names import LONG, LONGEST, composed, did_you_mean, grouped

SPLITS = ("seen", "validation", "unseen", "")
# of a row's length: what two processors make of one text differs by less, another text by far more
ROUNDING = 1e-3
LARGEST = 1e12
"""The size of an attribute at most: float32 holds squares of sums of them, and float64 those of
ordinary numbers beside them."""
Describe = Callable[[Sequence[str]], tuple[NDArray[np.float64], Sequence[str]]]
"""Names of classes -> their semantics (classes, attributes) and the attributes' names."""
SEPARATOR = ": "  # between group and attribute in a column's header


@dataclass(frozen=True, eq=False)
class ClassSpace:
    """Names, semantics and the seen / validation / unseen ids of all classes.

    Attributes:
        names: one a class, all different; a class's id is its place here.
        semantics: shape (classes, attributes), raw as the source gives them; of no attributes where
            nothing describes the classes, which are then learned from examples alone (few-shot).
        attribute_names: one a column, all different.
        seen: sorted ids of the training classes, validation classes included.
        validation: sorted ids, a subset of ``seen``, set aside when rounds or settings are chosen.
        unseen: sorted ids of the classes that no one has examples of. A class may be neither seen
            nor unseen.
        attribute_groups: group name -> attribute columns; a column is in one group at most.
        undescribed: sorted ids of classes that a run has learned from examples alone. Their rows of
            ``semantics`` are placeholders, which follow from the name: they tell classes apart, and
            describe nothing.

    Raises:
        DataError: if any of this does not hold, or if semantics are not finite.

    Example:
        >>> space = ClassSpace(("cat", "dog", "ant"), np.eye(3), ("fur", "bark", "legs"), [0, 1], [1], [2])
        >>> space.train.tolist(), space.attributes
        ([0], 3)
    """

    names: tuple[str, ...]
    semantics: NDArray[np.float64]
    attribute_names: tuple[str, ...]
    seen: NDArray[np.int64]
    validation: NDArray[np.int64]
    unseen: NDArray[np.int64]
    attribute_groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    undescribed: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        set_ = object.__setattr__  # the dataclass is frozen for everyone else
        set_(self, "names", tuple(self.names))
        set_(self, "attribute_names", tuple(self.attribute_names))
        set_(self, "semantics", np.ascontiguousarray(self.semantics, dtype=np.float64))
        for split in ("seen", "validation", "unseen", "undescribed"):
            set_(self, split, np.sort(np.asarray(getattr(self, split), dtype=np.int64)))
        set_(
            self,
            "attribute_groups",
            {g: tuple(map(int, c)) for g, c in self.attribute_groups.items()},
        )
        self._check_names()
        shape = (len(self.names), len(self.attribute_names))
        if self.semantics.shape != shape:
            raise DataError(
                f"the semantics have the shape {self.semantics.shape}, but there are {shape[0]} "
                f"classes with {shape[1]} attributes"
            )
        self._check_ids()
        if len(self.undescribed):  # placeholders, spread as the seen classes are
            semantics = self.semantics.copy()
            seen_rows = self.semantics[self.seen]
            center = seen_rows.mean(0)
            spread = seen_rows.std(0)
            for c in self.undescribed:
                drawn = stream(0, "placeholder", zlib.crc32(self.names[c].encode())).normal(
                    size=self.attributes
                )
                semantics[c] = center + spread * drawn
            set_(self, "semantics", semantics)
        check_semantics(self.names, self.semantics, self.attribute_names)

    def _check_names(self) -> None:
        for kind, names in (
            ("class", self.names),
            ("attribute", self.attribute_names),
            ("attribute group", tuple(self.attribute_groups)),
        ):
            for name, times in Counter(names).items():
                if times > 1:
                    raise DataError(
                        f"the {kind} name {name!r} occurs {times} times: give each {kind} its own "
                        "name"
                    )
                if not name or name != name.strip():
                    raise DataError(
                        f"the {kind} name {name!r} is empty or has space around it: rename it"
                    )
                if len(name) > LONGEST:
                    raise DataError(
                        f"the {kind} name {name[:20]!r}... has {len(name):,} characters, and "
                        f"{LONGEST:,} are the most: rename it",
                        LONG,
                    )
        if len({composed(name) for name in self.names}) < len(self.names):
            twice = next(
                name for name, times in Counter(map(composed, self.names)).items() if times > 1
            )
            raise DataError(
                f"two class names look alike, {twice!r}: their accents are written differently: "
                "rename one"
            )
        for group in self.attribute_groups:
            if SEPARATOR in group:
                raise DataError(
                    f"the attribute group name {group!r} holds a colon and a space: rename it"
                )
        columns = [column for group in self.attribute_groups.values() for column in group]
        for column, times in Counter(columns).items():
            if not 0 <= column < len(self.attribute_names):
                raise DataError(
                    f"an attribute group names column {column}, but there are "
                    f"{len(self.attribute_names)} attributes"
                )
            if times > 1:
                raise DataError(
                    f"the attribute {self.attribute_names[column]!r} is in more than one group"
                )

    def _check_ids(self) -> None:
        for split in ("seen", "validation", "unseen", "undescribed"):
            ids = getattr(self, split)
            if ids.ndim != 1 or len(np.unique(ids)) != len(ids):
                raise DataError(
                    f"the ids of the {split} classes are not a list of different numbers"
                )
            if len(ids) and not (ids[0] >= 0 and ids[-1] < len(self.names)):
                outside = ids[0] if ids[0] < 0 else ids[-1]
                raise DataError(
                    f"the {split} class id {outside} is outside 0..{len(self.names) - 1}"
                )
        if not len(self.seen):
            raise DataError("no class is seen: at least one class must have training samples")
        if len(shared := np.intersect1d(self.seen, self.unseen)):
            raise DataError(f"the class {self.names[shared[0]]!r} is both seen and unseen")
        if len(stray := np.setdiff1d(self.validation, self.seen)):
            raise DataError(
                f"the validation class {self.names[stray[0]]!r} is not among the seen classes"
            )

    def hashes(self) -> dict[str, str]:
        """Return what each part but the choice of validation classes hashes to, to compare without
        sending them.
        """
        parts = {
            "names of the classes": json.dumps(self.names).encode(),
            "names of the attributes": json.dumps(self.attribute_names).encode(),
            "groups of the attributes": json.dumps(sorted(self.attribute_groups.items())).encode(),
            "attributes of the classes": self.semantics.tobytes(),
            "split into seen and unseen classes": json.dumps(
                [self.seen.tolist(), self.unseen.tolist()]
            ).encode(),
        }
        return {part: hashlib.sha256(value).hexdigest()[:16] for part, value in parts.items()}

    @property
    def attributes(self) -> int:
        """How many attributes describe a class."""
        return len(self.attribute_names)

    @property
    def from_texts(self) -> bool:
        """A text encoder describes the classes: two processors give the same numbers but for their
        last bits.
        """
        return self.attributes > 0 and self.attribute_names == tuple(
            f"text {i}" for i in range(self.attributes)
        )

    @property
    def names_say_something(self) -> bool:
        """Attributes have names of their own, not numbers that a source without names was given."""
        numbered = tuple(f"attribute {i}" for i in range(self.attributes))
        return self.attributes > 0 and not self.from_texts and self.attribute_names != numbered

    def with_bits_of(self, semantics: NDArray[np.float64]) -> "ClassSpace":
        """Return this class space with another's description of the same texts, if it differs by
        rounding alone.
        """
        if (
            not self.from_texts
            or semantics.shape != self.semantics.shape
            or not np.isfinite(semantics).all()
        ):
            return self
        return (
            replace(self, semantics=semantics)
            if same_text(self.semantics, semantics).all()
            else self
        )

    @property
    def train(self) -> NDArray[np.int64]:
        """Ids of the seen classes without the validation classes, sorted."""
        return np.setdiff1d(self.seen, self.validation)

    def save(self, path: Path) -> None:
        """Write ``classes.csv`` (see the top of this file); ``load`` gives back the same bits."""
        splits = {}
        for split in (
            "seen",
            "validation",
            "unseen",
        ):  # validation classes are seen too: the later word wins
            splits.update(dict.fromkeys(getattr(self, split).tolist(), split))
        rows = [["name", "split", *_headers(self)]]
        undescribed = set(self.undescribed.tolist())
        for i, (name, row) in enumerate(zip(self.names, self.semantics.tolist(), strict=True)):
            values = [""] * len(row) if i in undescribed else map(repr, row)
            rows.append([name, splits.get(i, ""), *values])
        write_csv(Path(path), rows, follow=True)

    @staticmethod
    def load(path: Path, of_run: bool = False, describe: Describe | None = None) -> "ClassSpace":
        """Read ``classes.csv`` (see the top of this file).

        Args:
            path: the file.
            of_run: it is a finished run's, so that classes without attributes may be there.
            describe: returns semantics and attribute names of the classes by name, for a file
                without attributes.
        """
        path = Path(path)
        (_, header), *rows = read_csv(path)
        name = _column(path, header, "name")
        split = _column(path, header, "split")
        columns = [i for i in range(len(header)) if i not in (name, split)]
        headers = [header[column].split(SEPARATOR, 1) for column in columns]
        attribute_names: Sequence[str] = [parts[-1] for parts in headers]
        for line, row in rows:
            if row[split] not in SPLITS:
                raise DataError(f"{path}, line {line}: {unknown('split', row[split], SPLITS[:3])}")
        names = tuple(row[name] for _, row in rows)
        splits = np.array([row[split] for _, row in rows])
        undescribed = [
            i for i, (_, row) in enumerate(rows) if columns and not any(row[c] for c in columns)
        ]
        if undescribed and not of_run:
            line, row = rows[undescribed[0]]
            raise DataError(
                f"{path}, line {line}: the class {row[name]!r} has no attributes: describe it, or "
                "leave it out"
            )
        semantics = np.zeros((len(rows), len(columns)))
        described = np.setdiff1d(np.arange(len(rows)), undescribed)
        semantics[described] = _numbers(
            path, header, [rows[i] for i in described.tolist()], columns
        )
        if describe is not None and not columns:
            semantics, attribute_names = describe(names)
        try:
            return ClassSpace(
                names=names,
                semantics=semantics,
                attribute_names=tuple(attribute_names),
                seen=np.flatnonzero(np.isin(splits, ("seen", "validation"))),
                validation=np.flatnonzero(splits == "validation"),
                unseen=np.flatnonzero(splits == "unseen"),
                attribute_groups=grouped("".join(parts[:-1]) for parts in headers),
                undescribed=np.array(undescribed, dtype=np.int64),
            )
        except DataError as error:
            message = str(error)
            raise DataError(
                message if message.startswith(str(path)) else f"{path}: {message}"
            ) from None


def same_text(rows: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Say which rows (..., numbers) one text encoder may have made of the same text on two
    processors.

    Example:
        >>> same_text(np.array([[0.6, 0.8], [0.6, 0.8]]), np.array([[0.6000001, 0.8], [0.65, 0.76]])).tolist()
        [True, False]
    """
    distance: NDArray[np.float64] = np.linalg.norm(rows - other, axis=-1)
    return np.asarray(distance <= ROUNDING * np.linalg.norm(rows, axis=-1))


def read_classes(path: Path, space: ClassSpace) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Read classes that are to be recognized without any training.

    The file is CSV with the column ``name`` and a column for each attribute of ``space``, in any
    order, with or without its group (``colour: red`` or ``red``). A ``split`` column is ignored,
    and so are the undescribed classes of ``space``, so that a saved ``classes.csv`` is such a file.

    Returns:
        The names, and their semantics of shape (classes, ``space.attributes``) in the order of
        ``space``.

    Raises:
        DataError: if the file is missing, damaged or has no class, a column is missing, unknown or
            there twice, a value is not a finite number, or a class occurs twice.
    """
    path = Path(path)
    (_, header), *rows = read_csv(path)
    name = _column(path, header, "name")
    ids = {full: i for i, full in enumerate(_headers(space))}
    ids |= {
        attribute: i
        for i, attribute in enumerate(space.attribute_names)
        if attribute not in ("name", "split")
    }
    place: dict[int, int] = {}  # attribute -> column of the file
    for column, text in enumerate(header):
        if column == name or text == "split":
            continue
        if text not in ids:
            raise DataError(f"{path}: unknown attribute column {text!r}{did_you_mean(text, ids)}")
        if ids[text] in place:
            raise DataError(f"{path}: the attribute column {text!r} occurs twice")
        place[ids[text]] = column
    missing = [attribute for i, attribute in enumerate(space.attribute_names) if i not in place]
    if missing:
        further = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise DataError(f"{path}: the attribute column {missing[0]!r} is missing{further}")
    undescribed = {space.names[c] for c in space.undescribed}
    rows = [
        item
        for item in rows
        if item[1][name] not in undescribed or any(item[1][c] for c in place.values())
    ]
    if not rows:
        raise DataError(f"{path} describes no class: add a line for each")
    names = tuple(row[name] for _, row in rows)
    for class_name, times in Counter(names).items():
        if not class_name:
            raise DataError(f"{path}: a class has no name")
        if times > 1:
            raise DataError(f"{path}: the class {class_name!r} occurs {times} times")
    semantics = _numbers(path, header, rows, [place[i] for i in range(space.attributes)])
    try:
        check_semantics(names, semantics, space.attribute_names)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return names, semantics


def check_semantics(
    names: Sequence[str], semantics: NDArray[np.float64], attribute_names: Sequence[str] = ()
) -> None:
    """Refuse semantics that no model can use."""
    bad = ~np.isfinite(semantics).all(axis=1)
    if bad.any():
        raise DataError(f"the class {names[int(np.argmax(bad))]!r} has NaN or infinite attributes")
    if semantics.size and (sizes := np.abs(semantics)).max() > LARGEST:
        c, column = divmod(int(sizes.argmax()), semantics.shape[1])
        attribute = repr(attribute_names[column]) if attribute_names else f"number {column}"
        raise DataError(
            f"the class {names[c]!r}: {semantics[c, column]:g} is too large for the attribute "
            f"{attribute}: give at most {LARGEST:g}, in a larger unit, or leave the attribute out"
        )


def draw_validation(seen: NDArray[np.int64], count: int | None, seed: int) -> NDArray[np.int64]:
    """Draw validation classes for a source that names none."""
    if count is None:
        count = max(1, round(len(seen) / 5)) if len(seen) > 1 else 0
    if not 0 <= count < len(seen):
        raise DataError(
            f"{count} validation classes out of {len(seen)} seen classes leave none to train on: "
            "ask for fewer"
        )
    return np.sort(stream(seed, "validation classes").choice(seen, size=count, replace=False))


def _headers(space: ClassSpace) -> list[str]:
    """Return the column header of every attribute; ``_parse`` undoes it."""
    group_of = {
        column: group for group, columns in space.attribute_groups.items() for column in columns
    }
    headers = []
    for i, attribute in enumerate(space.attribute_names):
        needs_mark = i in group_of or SEPARATOR in attribute or attribute in ("name", "split")
        headers.append(f"{group_of.get(i, '')}{SEPARATOR}{attribute}" if needs_mark else attribute)
    return headers


def _column(path: Path, header: list[str], name: str) -> int:
    if header.count(name) != 1:
        times = "no column" if name not in header else "more than one column"
        raise DataError(f"{path} has {times} {name!r} in its first line")
    return header.index(name)


def _numbers(
    path: Path, header: list[str], rows: list[tuple[int, list[str]]], columns: list[int]
) -> NDArray[np.float64]:
    """Return the given columns as numbers, shape (rows, columns)."""
    values = [
        [number(row[c], "{}, line {}, column {!r}", path, line, header[c]) for c in columns]
        for line, row in rows
    ]
    return np.array(values, dtype=np.float64).reshape(len(rows), len(columns))
