"""The benchmark ``omniglot`` (Lake et al. 2015): 1,623 characters of 50 alphabets, each drawn by 20 people.

The drawings of 105 x 105 bits become gray, 28 x 28 by Pillow's Lanczos filter, ink 255, as in learn2learn. The split
``santoro`` is that of Santoro et al. (2016) and MAML: 1,200 characters of any alphabet to train on, 100 of them here
for validation. Which characters those authors drew is not published: ours, as the alphabets, are always the same.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedunseen.core.array_cache import cached_blocks, file_stamps
from fedunseen.core.errors import DataError
from fedunseen.core.random import stream
from fedunseen.data.benchmark import DataSettings
from fedunseen.data.benchmarks.few_shot import FewShotBenchmark, Samples
from fedunseen.data.io.images import opened_image

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


class Omniglot(FewShotBenchmark):
    """Handwritten characters of many alphabets, few-shot: images (n, 1, 28, 28), ink 255."""

    title = "Omniglot: handwritten characters of 50 alphabets, few-shot"
    page = "https://github.com/brendenlake/omniglot/tree/master/python"
    needs = (f"{BACKGROUND}|{BACKGROUND}.zip",)
    layout = f"{BACKGROUND}.zip, {EVALUATION}.zip (or unpacked; the second may be missing)"
    folders = ("omniglot", "Omniglot", "omniglot-py", "omniglot/python", "python")
    image_shape = (1, SIDE, SIDE)
    resample = Image.Resampling.LANCZOS

    class Settings(DataSettings):
        """``[data] name = "omniglot"``."""

        name: Literal["omniglot"] = "omniglot"
        root: Path
        """The folder with `images_background` and, if you have it, `images_evaluation`: zip files or unpacked."""
        split: Literal["alphabets", "santoro"] = "alphabets"
        """`alphabets`: the novel characters are of other alphabets. `santoro`: 1,200 characters at random to train on
        (100 of them for validation), 423 novel; needs both sets."""

    @classmethod
    def samples(cls, settings: Settings) -> Samples:
        """Read the drawings of the sets that are there; see :meth:`FewShotBenchmark.samples`."""
        root, _ = cls.parts(settings.root)
        sets = [drawings for part in CHARACTERS if (drawings := cls._set(root, part)) is not None]
        if settings.split == "santoro" and len(sets) < 2:
            raise DataError(
                f'{root} has no {EVALUATION} (.zip or folder), which data.split = "santoro" needs: get it from '
                f'{cls.page}, or use "alphabets"'
            )
        names = [name for characters, _ in sets for name in characters]
        images = [drawings() for _, drawings in sets]
        return Samples(
            f"omniglot/{settings.split if len(sets) > 1 else 'background'}",
            names,
            cls._split(names, len(sets[0][0]), settings.split),
            images[0] if len(sets) == 1 else np.concatenate(images),
            np.repeat(np.arange(len(names), dtype=np.int64), DRAWINGS),
        )

    @classmethod
    def _split(cls, names: list[str], background: int, kind: str) -> tuple[list[int], list[int], list[int]]:
        """Return the ids of the training, validation and novel characters; the first ``background`` are of that set."""
        if kind == "santoro":
            order = stream(0, "omniglot santoro").permutation(len(names)).tolist()
            return order[: SANTORO[0]], order[SANTORO[0] : sum(SANTORO)], order[sum(SANTORO) :]
        alphabet = [name.partition("/")[0] for name in names]
        for expected in (*TRAINING, *VALIDATION, *NOVEL):
            if expected not in alphabet[:background]:
                raise cls.damaged("omniglot:", f"{BACKGROUND} lacks the alphabet {expected!r}")
        validation = [c for c in range(background) if alphabet[c] in VALIDATION]
        if len(names) > background:
            novel = list(range(background, len(names)))
        else:
            novel = [c for c in range(background) if alphabet[c] in NOVEL]
        return [c for c in range(background) if c not in {*validation, *novel}], validation, novel

    @classmethod
    def _set(cls, root: Path, part: str) -> tuple[list[str], Callable[[], NDArray[np.uint8]]] | None:
        """Return the sorted characters of a set, and what gives their drawings; None if the set is not there."""
        place, packed = root / part, root / f"{part}.zip"
        stamp: list[Any]
        contents: Iterator[bytes]
        if place.is_dir():
            names = sorted(path.relative_to(place).as_posix() for path in place.glob("*/character*/*.png"))
            names = [name for name in names if "/." not in name]
            stamp = [names, file_stamps(place / name for name in names)[0]]
            contents = (_bounded(place / name) for name in names)
        elif packed.is_file():
            place, stamp = packed, [part, file_stamps([packed])[0]]
            names, contents = cls._unpack(packed, part)
        else:
            return None
        counts = Counter(name.rpartition("/")[0] for name in names)
        for name, count in counts.items():
            if count != DRAWINGS:
                raise cls.damaged(f"{place}: {name}", f"has {count} drawings, not {DRAWINGS}")
        if len(counts) != CHARACTERS[part]:
            raise cls.damaged(place, f"has {len(counts)} characters, not {CHARACTERS[part]}")

        def produce() -> Iterator[NDArray[np.uint8]]:
            for name, content in zip(names, contents, strict=True):
                where = f"{place}: {name}"
                with opened_image(content, where, f": get it again ({cls.page})") as file:
                    if file.size != (DRAWN, DRAWN):
                        raise cls.damaged(where, f"has {file.width} x {file.height} pixels, not {DRAWN} x {DRAWN}")
                    small = file.convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
                yield 255 - np.asarray(small)[None, None]

        shape, depends = (len(names), 1, SIDE, SIDE), [str(place.resolve()), *stamp]
        return sorted(counts), lambda: cached_blocks("omniglot", depends, shape, produce)

    @classmethod
    def _unpack(cls, packed: Path, part: str) -> tuple[list[str], Iterator[bytes]]:
        """Return the names of the drawings in a zip file, sorted, and their bytes."""
        pattern = re.compile(rf"(?:{part}/)?([^/.][^/]*/character\d+/[^/.][^/]*\.png)")
        try:
            with zipfile.ZipFile(packed) as file:
                entries = file.infolist()
        except DAMAGED:
            raise cls.damaged(packed, "is cut short, or not a zip file") from None
        if len(entries) > MOST:
            raise cls.damaged(packed, f"has {len(entries):,} files, far too many")
        inside = {match[1]: entry for entry in entries if (match := pattern.fullmatch(entry.filename))}
        for name, entry in inside.items():
            if entry.file_size > LARGEST:
                raise cls.damaged(f"{packed}: {name}", f"has {entry.file_size:,} bytes, far too many")

        def contents() -> Iterator[bytes]:
            with zipfile.ZipFile(packed) as file:
                for name in sorted(inside):
                    try:
                        yield file.read(inside[name])  # no more than the size that was checked
                    except DAMAGED:
                        raise cls.damaged(f"{packed}: {name}", "is not a readable image") from None

        return sorted(inside), contents()


def _bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(LARGEST)
