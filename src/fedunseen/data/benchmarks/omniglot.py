"""The benchmark ``omniglot`` (Lake et al. 2015): 1,623 characters of 50 alphabets, each drawn by 20
people.

The drawings of 105 x 105 bits become gray, 28 x 28 by Pillow's Lanczos filter, ink 255, as in
learn2learn. The split ``santoro`` is that of Santoro et al. (2016) and MAML: 1,200 characters of
any alphabet to train on, 100 of them here for validation. Those authors published no draw: ours, as
the alphabets, is always the same.
"""

import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedunseen.core.array_cache import cached_blocks, file_stamps
from fedunseen.core.arrays import DAMAGED
from fedunseen.core.errors import DataError
from fedunseen.core.random import stream
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.benchmarks.few_shot import FewShotBenchmark
from fedunseen.data.io.images import ImageBytes, opened_image

BACKGROUND = "images_background"
EVALUATION = "images_evaluation"
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
# pixels, as published and as used
DRAWN = 105
SIDE = 28
LARGEST = 2**16  # bytes of a drawing: they have some 250
MOST = 100_000  # files of a zip file: the larger one has 20,000


class Omniglot(FewShotBenchmark, name="omniglot"):
    """Handwritten characters of many alphabets, few-shot: images (n, 1, 28, 28), ink 255."""

    title = "Omniglot: handwritten characters of 50 alphabets, few-shot"
    page = "https://github.com/brendenlake/omniglot/tree/master/python"
    needs = (f"{BACKGROUND}.zip",)
    layout = f"{BACKGROUND}.zip, and {EVALUATION}.zip if it is there"
    folders = ("omniglot", "Omniglot", "omniglot-py", "omniglot/python", "python")
    image_shape = (1, SIDE, SIDE)
    resample = Image.Resampling.LANCZOS

    class Settings(DataSettings):
        """Settings of ``omniglot``."""

        root: Path
        """The folder of the data set, or of several for `xlsa17`, with the files that `fedunseen
        data list` names."""
        split: Literal["alphabets", "santoro"] = "alphabets"
        """`alphabets`: the novel characters are of other alphabets. `santoro`: 1,200 characters at
        random to train on (100 of them for validation), 423 novel; needs both sets."""

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Read the drawings of the sets that are there."""
        root, (packed,) = cls.parts(settings.root)
        sets = [cls._set(packed, BACKGROUND)]
        if (evaluation_set := root / f"{EVALUATION}.zip").is_file():
            sets.append(cls._set(evaluation_set, EVALUATION))
        elif settings.split == "santoro":
            raise DataError(
                f'{evaluation_set} is missing, which data.split = "santoro" needs: get it '
                f'({cls.page}), or use "alphabets"'
            )
        names = [name for characters, _ in sets for name in characters]
        roles = cls._roles(names, len(sets[0][0]), settings.split)
        images = (
            sets[0][1] if len(sets) == 1 else np.concatenate([drawings for _, drawings in sets])
        )
        name = f"omniglot/{settings.split if len(sets) > 1 else 'background'}"
        return cls.build(name, names, roles, images, np.repeat(np.arange(len(names)), DRAWINGS))

    @classmethod
    def _roles(cls, names: list[str], background: int, split: str) -> list[list[int]]:
        """Return the ids of the training, validation and novel characters; the first ``background``
        are of that set.
        """
        if split == "santoro":
            order, (training, validation) = (
                stream(0, "omniglot santoro").permutation(len(names)).tolist(),
                SANTORO,
            )
            return [
                order[:training],
                order[training : training + validation],
                order[training + validation :],
            ]
        alphabets = [name.partition("/")[0] for name in names]
        for expected in (*TRAINING, *VALIDATION, *NOVEL):
            if expected not in alphabets[:background]:
                raise cls.damaged("omniglot:", f"{BACKGROUND} lacks the alphabet {expected!r}")
        evaluation_alphabets = alphabets[background:]
        parts = (
            (*TRAINING, *NOVEL) if evaluation_alphabets else TRAINING,
            VALIDATION,
            evaluation_alphabets or NOVEL,
        )
        return [[c for c, alphabet in enumerate(alphabets) if alphabet in part] for part in parts]

    @classmethod
    def _set(cls, packed: Path, part: str) -> tuple[list[str], NDArray[np.uint8]]:
        """Return the sorted characters of a set and their drawings, in the same order."""
        inside = cls._drawings(packed, part)
        counts = Counter(name.rpartition("/")[0] for name in inside)
        for name, count in counts.items():
            if count != DRAWINGS:
                raise cls.damaged(f"{packed}: {name}", f"has {count} drawings, not {DRAWINGS}")
        if len(counts) != CHARACTERS[part]:
            raise cls.damaged(packed, f"has {len(counts)} characters, not {CHARACTERS[part]}")
        images = cached_blocks(
            "omniglot",
            [str(packed.resolve()), part, file_stamps([packed])[0]],
            (len(inside), 1, SIDE, SIDE),
            lambda: cls._images(packed, sorted(inside.items())),
        )
        return sorted(counts), images

    @classmethod
    def _drawings(cls, packed: Path, part: str) -> dict[str, zipfile.ZipInfo]:
        """Return what holds each drawing, by its name without the set's."""
        pattern = re.compile(rf"(?:{part}/)?([^/.][^/]*/character\d+/[^/.][^/]*\.png)")
        try:
            with zipfile.ZipFile(packed) as file:
                entries = file.infolist()
        except DAMAGED:
            raise cls.damaged(packed, "is cut short, or not a zip file") from None
        if len(entries) > MOST:
            raise cls.damaged(packed, f"has {len(entries):,} files, far too many")
        inside = {
            match[1]: entry for entry in entries if (match := pattern.fullmatch(entry.filename))
        }
        for name, entry in inside.items():
            if entry.file_size > LARGEST:
                raise cls.damaged(
                    f"{packed}: {name}", f"has {entry.file_size:,} bytes, far too many"
                )
        return inside

    @classmethod
    def _images(
        cls, packed: Path, entries: Sequence[tuple[str, zipfile.ZipInfo]]
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield each drawing as an image (1, 1, 28, 28)."""
        with zipfile.ZipFile(packed) as archive:
            for name, entry in entries:
                where = f"{packed}: {name}"
                try:
                    content = archive.read(entry)  # no more than the size that was checked
                except DAMAGED:
                    raise cls.damaged(where, "is not a readable image") from None
                with opened_image(
                    ImageBytes(content, where), f": get it again ({cls.page})"
                ) as file:
                    if file.size != (DRAWN, DRAWN):
                        raise cls.damaged(
                            where, f"has {file.width} x {file.height} pixels, not {DRAWN} x {DRAWN}"
                        )
                    small = file.convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
                yield 255 - np.asarray(small)[None, None]
