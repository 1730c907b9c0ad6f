"""Find what looks odd in a folder of pictures or texts for each class; the owner looks at it, and
nothing is refused.
"""

import difflib
import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedunseen.core.array_cache import Progress
from fedunseen.core.errors import DataError, counted
from fedunseen.data.io.depth import Window, eight_bits
from fedunseen.data.io.images import UNREADABLE, open_image, upright
from fedunseen.data.io.texts import read_text
from fedunseen.evaluation.summary import few_classes

_MANY = 5000  # pictures: of more, only copies byte for byte are looked for
_SIDE = 8  # of the thumbnails that are compared
_ALIKE = 4.0  # of 255: root mean square difference of two thumbnails of one picture, saved twice
_FLAT = 8.0  # of 255: deviation of a thumbnail below which it is one color, and like many others
_NAMED = 3  # pairs of files that are named
_SYSTEM = 5  # pairs of names that differ in a letter: more are meant so


_File = tuple[str, Path]
"""A class and a file of it."""


class Remark(NamedTuple):
    """Something to look at, or that was decided: in a few words, and why."""

    what: str
    why: str


def remarks(classes: Mapping[str, Sequence[Path]], window: Window | None = None) -> list[Remark]:
    """Return what looks odd: the same picture in two classes' folders, two names that may be
    one.
    """
    return [*_in_both(_twins(classes, window), "picture"), *_spelled_alike(classes)]


def text_remarks(classes: Mapping[str, Sequence[Path]]) -> list[Remark]:
    """Return what looks odd in folders of texts: the same words in two classes' folders, two names
    that may be one.
    """
    first: dict[str, _File] = {}
    twins = []
    for name, paths in classes.items():
        for path in paths:
            try:
                words = " ".join(re.findall(r"\w+", read_text(path).casefold()))
            except DataError:  # said where it is read for good
                continue
            other = first.setdefault(hashlib.sha256(words.encode()).hexdigest(), (name, path))
            if other[0] != name:
                twins.append((other, (name, path)))
    return [*_in_both(twins, "text"), *_spelled_alike(classes)]


def _in_both(twins: Iterable[tuple[_File, _File]], sample: str) -> list[Remark]:
    """Return a remark on each two classes that share samples."""
    pairs: dict[tuple[str, str], list[tuple[Path, Path]]] = defaultdict(list)
    for (first_class, first_path), (second_class, second_path) in twins:
        pairs[min(first_class, second_class), max(first_class, second_class)].append(
            (first_path, second_path)
        )
    remarks = []
    for (first_class, second_class), copies in sorted(pairs.items()):
        count = f"{len(copies)} {sample}s lie" if len(copies) > 1 else f"a {sample} lies"
        named = [f"{first} and {second}" for first, second in copies[:_NAMED]]
        further = f"; and {len(copies) - _NAMED} more" if len(copies) > _NAMED else ""
        remarks.append(
            Remark(
                f"look at {first_class} and {second_class}",
                f"{count} in both: {'; '.join(named)}{further}",
            )
        )
    return remarks


def _spelled_alike(names: Iterable[str]) -> list[Remark]:
    return [
        Remark(f"look at {first_class} and {second_class}", "perhaps two spellings of one class")
        for first_class, second_class in alike_spellings(names)
    ]


def few_samples(classes: Mapping[str, Sequence[Path]], sample: str = "picture") -> list[Remark]:
    """Return remarks on classes with one sample, which cannot both train and test, and on classes
    with far fewer than the others.
    """
    single = [name for name, files in classes.items() if len(files) == 1]
    few = few_classes(list(classes), [len(files) for files in classes.values()])
    remarks = []
    if few := [item for item in few if item.name not in single]:
        of_each = ", ".join(f"{item.name} has {item.samples}" for item in few[:_NAMED])
        more = f" and {len(few) - _NAMED} more" if len(few) > _NAMED else ""
        remarks.append(
            Remark(
                f"few {sample}s of {counted(len(few), 'class')}",
                f"{of_each}{more}, the others {few[0].usual} (median): add some; a model learns "
                "little from so few, and hardly any are left to test with",
            )
        )
    if not single:
        return remarks
    return [
        *remarks,
        Remark(
            f"{counted(len(single), 'class')} with a single {sample} ({', '.join(single[:3])}"
            f"{', ...' if len(single) > 3 else ''})",
            f"one {sample} says little of a class and nothing can be tested: put in at least eight",
        ),
    ]


def foreign_names(names: Sequence[str]) -> list[str]:
    """Return the names most of whose letters are not Latin: a text encoder of English knows little
    of them.
    """
    foreign = []
    for name in names:
        letters = [letter for letter in name if letter.isalpha()]
        latin = sum(unicodedata.name(letter, "").startswith("LATIN") for letter in letters)
        if letters and latin < len(letters) / 2:
            foreign.append(name)
    return foreign


def _twins(
    classes: Mapping[str, Sequence[Path]], window: Window | None
) -> list[tuple[tuple[str, Path], tuple[str, Path]]]:
    """Return pairs of files of two classes with the same content, or that show the same."""
    files = [(name, path) for name, paths in classes.items() for path in paths]
    by_size: dict[int, list[int]] = defaultdict(list)
    for i, (_, path) in enumerate(files):
        by_size[path.stat().st_size].append(i)
    pairs: set[tuple[int, int]] = set()
    for group in by_size.values():
        if len({files[i][0] for i in group}) < 2:
            continue
        first: dict[str, int] = {}
        for i in group:
            j = first.setdefault(hashlib.sha256(files[i][1].read_bytes()).hexdigest(), i)
            if files[j][0] != files[i][0]:
                pairs.add((j, i))
    if len(files) <= _MANY:
        pairs |= _alike(files, window)
    return [(files[i], files[j]) for i, j in sorted(pairs)]


def _alike(files: Sequence[tuple[str, Path]], window: Window | None) -> set[tuple[int, int]]:
    """Return pairs of two classes whose thumbnails are the same but for how they were saved."""
    rows = []
    ids = []
    progress = Progress("comparing pictures", len(files))
    for i, (_, path) in enumerate(files):
        small = _thumbnail(path, window)
        progress.add(1)
        if small is not None and small.std() >= _FLAT:
            rows.append(small.ravel())
            ids.append(i)
    if not rows:
        return set()
    table = np.stack(rows)
    norms = (table**2).sum(1)
    pairs = set()
    for start in range(0, len(table), 512):
        block = table[start : start + 512]
        square = norms[start : start + 512, None] + norms - 2 * block @ table.T
        for a, b in zip(*np.nonzero(square <= _ALIKE**2 * table.shape[1]), strict=True):
            i = ids[start + int(a)]
            j = ids[int(b)]
            if i < j and files[i][0] != files[j][0]:
                pairs.add((i, j))
    return pairs


def _thumbnail(path: Path, window: Window | None) -> NDArray[np.float64] | None:
    """Return a picture of a few pixels; None of what is none."""
    try:
        with open_image(path) as image:
            image.draft("RGB", (64, 64))  # a JPEG is decoded small, which is quick
            shown = upright(eight_bits(image, window))
            return np.asarray(shown.resize((_SIDE, _SIDE), Image.Resampling.BOX), dtype=np.float64)
    except UNREADABLE:
        return None


def alike_spellings(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return pairs of names that differ in so little that they may be one: a plural, a letter of
    many.
    """
    plain = sorted((re.sub(r"[\W_]+", " ", name).strip().casefold(), name) for name in names)
    pairs = []
    for i, (first_plain, first) in enumerate(plain):
        for second_plain, second in plain[i + 1 : i + 4]:
            if any(letter.isdigit() for letter in first_plain + second_plain):
                continue
            plural = second_plain in (f"{first_plain}s", f"{first_plain}es")
            if plural or difflib.SequenceMatcher(None, first_plain, second_plain).ratio() >= 0.9:
                pairs.append((first, second))
    return pairs if len(pairs) <= _SYSTEM else []
