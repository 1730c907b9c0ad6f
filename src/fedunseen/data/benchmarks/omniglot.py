"""The benchmark ``omniglot``: 1,623 handwritten characters of 50 alphabets, each drawn by 20 people.

Lake, Salakhutdinov and Tenenbaum, "Human-level concept learning through probabilistic program induction" (2015):
``images_background`` (964 characters of 30 alphabets) and ``images_evaluation`` (659 of the other 20), as zip files or
unpacked, ``ALPHABET/character01/0001_01.png``. A character is a class.

The drawings are black on white, 105 x 105 pixels of one bit. They become grey, 28 x 28 by Pillow's Lanczos filter, and
inverted: ink is 1 (255 in bytes), paper 0, as in learn2learn. (MAML's script asks for the same filter, but on images
of one bit, for which Pillow takes the nearest pixel instead.) Rotated characters as further classes are a matter of the
episodes.

======================== ================================= ============================ ===========================
data.split               training                          validation                   novel
======================== ================================= ============================ ===========================
alphabets, both sets     25 alphabets of the background    5 others of the background   all 20 of the evaluation
alphabets, background    20 alphabets                      5 others                     5 others
santoro, both sets       1,100 characters at random        100 others                   the other 423
======================== ================================= ============================ ===========================

``santoro`` is the split of Santoro et al. (2016) and MAML: 1,200 characters of any alphabet to train on, here without a
hundred of them to choose on. Which characters those authors drew is not published: ours are always the same. The
alphabets are chosen here too. Novel characters of alphabets that one has trained on are easier: name the split beside
any number.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedunseen.core.errors import DataError
from fedunseen.core.random import stream
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.benchmarks.digits import few_shot_benchmark, few_shot_space, read_strokes
from fedunseen.data.io.images import UNREADABLE, cached

__all__ = ["Omniglot"]

BACKGROUND, EVALUATION = "images_background", "images_evaluation"
CHARACTERS = {BACKGROUND: 964, EVALUATION: 659}

VALIDATION = ("Armenian", "Braille", "Burmese_(Myanmar)", "N_Ko", "Tagalog")
NOVEL = ("Bengali", "Futurama", "Hebrew", "Korean", "Tifinagh")  # without the evaluation set
TRAINING = (
    "Alphabet_of_the_Magi", "Anglo-Saxon_Futhorc", "Arcadian", "Asomtavruli_(Georgian)", "Balinese",
    "Blackfoot_(Canadian_Aboriginal_Syllabics)", "Cyrillic", "Early_Aramaic", "Grantha", "Greek", "Gujarati",
    "Inuktitut_(Canadian_Aboriginal_Syllabics)", "Japanese_(hiragana)", "Japanese_(katakana)", "Latin",
    "Malay_(Jawi_-_Arabic)", "Mkhedruli_(Georgian)", "Ojibwe_(Canadian_Aboriginal_Syllabics)", "Sanskrit",
    "Syriac_(Estrangelo)",
)  # fmt: skip
SANTORO = (1100, 100)  # characters for training and for validation

DRAWINGS = 20  # of each character
DRAWN, SIDE = 105, 28  # pixels, as published and as used
LARGEST = 2**16  # bytes of a drawing: they have some 250
MOST = 100_000  # files of a zip file: the larger one has 20,000

DAMAGED = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, NotImplementedError, ValueError)
"""What reading a damaged or encrypted zip file raises."""


class Drawings(NamedTuple):
    """The drawings of one of the two sets, sorted.

    Attributes:
        place: the folder or zip file.
        names: ``ALPHABET/character01/0001_01.png`` of each.
        stamp: what changes when the files do.
        contents: gives the bytes of each.
    """

    place: Path
    names: list[str]
    stamp: list[Any]
    contents: Callable[[], Iterator[bytes]]


class Omniglot(BenchmarkLoader):
    """Handwritten characters of many alphabets, few-shot."""

    title = "Omniglot: handwritten characters of 50 alphabets, few-shot"
    page = "https://github.com/brendenlake/omniglot/tree/master/python"
    layout = f"{BACKGROUND}.zip, {EVALUATION}.zip (or unpacked; the second may be missing)"
    folders = ("omniglot", "Omniglot", "omniglot-py", "omniglot/python", "python")

    class Settings(DataSettings):
        """``[data] name = "omniglot"``."""

        name: Literal["omniglot"] = "omniglot"
        root: Path
        """The folder with `images_background` and, if you have it, `images_evaluation`: zip files or unpacked."""
        split: Literal["alphabets", "santoro"] = "alphabets"
        """`alphabets`: the novel characters are of other alphabets. `santoro`: 1,200 characters at random to train on
        (100 of them for validation), 423 novel; needs both sets."""

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Return the benchmark, images (n, 1, 28, 28), ink 255; ``seed`` is not used (see the top of this file).

        Raises:
            DataError: if a file is missing or damaged, or a drawing has another size.
        """
        root = cls.home(settings.root)
        sets = [drawings for part in (BACKGROUND, EVALUATION) if (drawings := _drawings(root, part)) is not None]
        if not sets or not _is(sets[0], BACKGROUND):
            raise DataError(f"{root} has no {BACKGROUND} (.zip or folder): get it from {cls.page}, or mend data.root")
        if settings.split == "santoro" and len(sets) < 2:
            raise DataError(
                f'{root} has no {EVALUATION} (.zip or folder), which data.split = "santoro" needs: get it from '
                f'{cls.page}, or use "alphabets"'
            )
        in_set = [_characters(drawings) for drawings in sets]
        names = [name for own in in_set for name in own]
        training, validation, novel = _split(names, len(in_set[0]), settings.split)
        kind = settings.split if len(sets) > 1 else "background"
        return few_shot_benchmark(
            f"omniglot/{kind}",
            few_shot_space(names, training, validation, novel),
            np.concatenate([_images(drawings) for drawings in sets]) if len(sets) > 1 else _images(sets[0]),
            np.repeat(np.arange(len(names), dtype=np.int64), DRAWINGS),
            image_shape=(1, SIDE, SIDE),
        )

    @classmethod
    def read(cls, path: Path, settings: Settings) -> NDArray[np.uint8]:
        """Read a picture of a character as the benchmark's own are, shape (1, 1, 28, 28); see :func:`read_strokes`.

        Raises:
            DataError: if the file is missing or not a readable picture.
        """
        strokes = read_strokes(Path(path), (SIDE, SIDE), Image.Resampling.LANCZOS)
        return np.rint(255 * strokes).astype(np.uint8)[None, None]

    @classmethod
    def holds(cls, folder: Path) -> bool:
        """Say whether a folder has the background set, packed or not."""
        return (folder / BACKGROUND).is_dir() or (folder / f"{BACKGROUND}.zip").is_file()


def _split(names: list[str], background: int, kind: str) -> tuple[list[int], list[int], list[int]]:
    """Return the ids of the training, validation and novel characters; the first ``background`` are of that set."""
    if kind == "santoro":
        order = stream(0, "omniglot santoro").permutation(len(names)).tolist()
        cut = SANTORO[0]
        return order[:cut], order[cut : sum(SANTORO)], order[sum(SANTORO) :]
    alphabet = [name.partition("/")[0] for name in names]
    for wanted in (*TRAINING, *VALIDATION, *NOVEL):
        if wanted not in alphabet[:background]:
            raise DataError(f"omniglot: {BACKGROUND} lacks the alphabet {wanted!r}: get it again ({Omniglot.page})")
    validation = [c for c in range(background) if alphabet[c] in VALIDATION]
    if len(names) > background:
        novel = list(range(background, len(names)))
    else:
        novel = [c for c in range(background) if alphabet[c] in NOVEL]
    held = {*validation, *novel}
    return [c for c in range(background) if c not in held], validation, novel


def _is(drawings: Drawings, part: str) -> bool:
    return drawings.place.name.removesuffix(".zip") == part


def _drawings(root: Path, part: str) -> Drawings | None:
    """List the drawings of a set, from its folder or its zip file; None if neither is there."""
    folder, packed = root / part, root / f"{part}.zip"
    if folder.is_dir():
        files = {path.relative_to(folder).as_posix(): path for path in folder.glob("*/character*/*.png")}
        names = sorted(name for name in files if "/." not in name)
        stats = [files[name].stat() for name in names]
        stamp = [(name, one.st_size, one.st_mtime_ns) for name, one in zip(names, stats, strict=True)]
        return Drawings(folder, names, stamp, lambda: (_bounded(files[name]) for name in names))
    if not packed.is_file():
        return None
    pattern = re.compile(rf"(?:{part}/)?([^/.][^/]*/character\d+/[^/.][^/]*\.png)")
    try:
        with zipfile.ZipFile(packed) as file:
            entries = file.infolist()
            if len(entries) > MOST:
                raise DataError(f"{packed} has {len(entries):,} files, far too many: get it again ({Omniglot.page})")
            inside = {found[1]: one for one in entries if (found := pattern.fullmatch(one.filename))}
    except DAMAGED:
        raise DataError(f"{packed} is cut short, or not a zip file: get it again ({Omniglot.page})") from None
    for name, one in inside.items():
        if one.file_size > LARGEST:
            raise DataError(
                f"{packed}: {name} has {one.file_size:,} bytes, far too many: get it again ({Omniglot.page})"
            )
    state = packed.stat()
    names = sorted(inside)

    def contents() -> Iterator[bytes]:
        with zipfile.ZipFile(packed) as file:
            for name in names:
                try:
                    content = file.read(inside[name])  # no more than the size that was checked
                except DAMAGED:
                    raise _damaged(packed, name) from None
                yield content

    return Drawings(packed, names, [part, state.st_size, state.st_mtime_ns], contents)


def _damaged(place: Path, name: str) -> DataError:
    return DataError(f"{place}: {name} is not a readable image: get it again ({Omniglot.page})")


def _bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(LARGEST)


def _characters(drawings: Drawings) -> list[str]:
    """Return the names of the characters, sorted, with 20 drawings each."""
    counts = Counter(name.rpartition("/")[0] for name in drawings.names)
    wanted = next(count for part, count in CHARACTERS.items() if _is(drawings, part))
    for name, count in counts.items():
        if count != DRAWINGS:
            raise DataError(
                f"{drawings.place}: {name} has {count} drawings, not {DRAWINGS}: get it again ({Omniglot.page})"
            )
    if len(counts) != wanted:
        raise DataError(f"{drawings.place} has {len(counts)} characters, not {wanted}: get it again ({Omniglot.page})")
    return sorted(counts)


def _images(drawings: Drawings) -> NDArray[np.uint8]:
    """Return the drawings of a set, (n, 1, 28, 28), ink 255; kept in the cache."""

    def produce() -> Iterator[NDArray[np.uint8]]:
        for name, content in zip(drawings.names, drawings.contents(), strict=True):
            try:
                with Image.open(io.BytesIO(content)) as file:
                    width, height = file.size
                    fits = (width, height) == (DRAWN, DRAWN)
                    small = file.convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS) if fits else None
            except UNREADABLE:
                raise _damaged(drawings.place, name) from None
            if small is None:
                raise DataError(
                    f"{drawings.place}: {name} has {width} x {height} pixels, not {DRAWN} x {DRAWN}: get it again "
                    f"({Omniglot.page})"
                )
            yield 255 - np.asarray(small)[None, None]

    depends = [str(drawings.place.resolve()), *drawings.stamp]
    return cached("omniglot", depends, (len(drawings.names), 1, SIDE, SIDE), produce)
