"""The benchmark ``omniglot`` (Lake et al. 2015): the background set, 964 characters of 30 alphabets by 20 people each.

The drawings of 105 x 105 bits become gray, 28 x 28 by Pillow's Lanczos filter, ink 255, as in learn2learn. Which
alphabets are novel is chosen here.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedunseen.core.array_cache import cached_blocks, file_stamps
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.benchmarks.few_shot import FewShotBenchmark
from fedunseen.data.io.images import opened_image

BACKGROUND = "images_background"
CHARACTERS = 964
VALIDATION = ("Armenian", "Braille", "Burmese_(Myanmar)", "N_Ko", "Tagalog")
NOVEL = ("Bengali", "Futurama", "Hebrew", "Korean", "Tifinagh")
TRAINING = (
    "Alphabet_of_the_Magi", "Anglo-Saxon_Futhorc", "Arcadian", "Asomtavruli_(Georgian)", "Balinese",
    "Blackfoot_(Canadian_Aboriginal_Syllabics)", "Cyrillic", "Early_Aramaic", "Grantha", "Greek", "Gujarati",
    "Inuktitut_(Canadian_Aboriginal_Syllabics)", "Japanese_(hiragana)", "Japanese_(katakana)", "Latin",
    "Malay_(Jawi_-_Arabic)", "Mkhedruli_(Georgian)", "Ojibwe_(Canadian_Aboriginal_Syllabics)", "Sanskrit",
    "Syriac_(Estrangelo)",
)  # fmt: skip

DRAWINGS = 20  # of each character
DRAWN, SIDE = 105, 28  # pixels, as published and as used
LARGEST = 2**16  # bytes of a drawing: they have some 250
MOST = 100_000  # files of a zip file: this one has 20,000

DAMAGED = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, NotImplementedError, ValueError)
"""What reading a damaged or encrypted zip file raises."""


class Omniglot(FewShotBenchmark):
    """Handwritten characters of many alphabets, few-shot: images (n, 1, 28, 28), ink 255."""

    title = "Omniglot: handwritten characters of 30 alphabets, few-shot"
    page = "https://github.com/brendenlake/omniglot/tree/master/python"
    needs = (f"{BACKGROUND}.zip",)
    folders = ("omniglot", "Omniglot", "omniglot-py", "omniglot/python", "python")
    image_shape = (1, SIDE, SIDE)
    resample = Image.Resampling.LANCZOS

    class Settings(DataSettings):
        """``[data] name = "omniglot"``."""

        name: Literal["omniglot"] = "omniglot"
        root: Path
        """The folder with `images_background.zip`."""

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Read the drawings; novel and validation characters are of other alphabets than those for training."""
        _, (packed,) = cls.parts(settings.root)
        inside = cls._drawings(packed)
        counts = Counter(name.rpartition("/")[0] for name in inside)
        for name, count in counts.items():
            if count != DRAWINGS:
                raise cls.damaged(f"{packed}: {name}", f"has {count} drawings, not {DRAWINGS}")
        if len(counts) != CHARACTERS:
            raise cls.damaged(packed, f"has {len(counts)} characters, not {CHARACTERS}")
        names = sorted(counts)
        alphabets = [name.partition("/")[0] for name in names]
        parts = (TRAINING, VALIDATION, NOVEL)
        for expected in (alphabet for part in parts for alphabet in part):
            if expected not in alphabets:
                raise cls.damaged("omniglot:", f"{BACKGROUND} lacks the alphabet {expected!r}")
        roles = [[c for c, alphabet in enumerate(alphabets) if alphabet in part] for part in parts]
        images = cached_blocks(
            "omniglot",
            [str(packed.resolve()), BACKGROUND, file_stamps([packed])[0]],
            (len(inside), 1, SIDE, SIDE),
            lambda: cls._images(packed, sorted(inside.items())),
        )
        return cls.build("omniglot/background", names, roles, images, np.repeat(np.arange(len(names)), DRAWINGS))

    @classmethod
    def _drawings(cls, packed: Path) -> dict[str, zipfile.ZipInfo]:
        """Return what holds each drawing, by its name without the set's."""
        pattern = re.compile(rf"(?:{BACKGROUND}/)?([^/.][^/]*/character\d+/[^/.][^/]*\.png)")
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
        return inside

    @classmethod
    def _images(cls, packed: Path, entries: Sequence[tuple[str, zipfile.ZipInfo]]) -> Iterator[NDArray[np.uint8]]:
        """Yield each drawing as an image (1, 1, 28, 28)."""
        with zipfile.ZipFile(packed) as archive:
            for name, entry in entries:
                where = f"{packed}: {name}"
                try:
                    content = archive.read(entry)  # no more than the size that was checked
                except DAMAGED:
                    raise cls.damaged(where, "is not a readable image") from None
                with opened_image(content, where, f": get it again ({cls.page})") as file:
                    if file.size != (DRAWN, DRAWN):
                        raise cls.damaged(where, f"has {file.width} x {file.height} pixels, not {DRAWN} x {DRAWN}")
                    small = file.convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
                yield 255 - np.asarray(small)[None, None]
