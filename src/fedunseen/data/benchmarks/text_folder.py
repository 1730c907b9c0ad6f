"""The benchmark ``texts``: your own texts, ``CLASS NAME/*.txt``, as vectors of a sentence encoder.

Folders, splits, parties and the class table are those of ``images``. One text encoder reads the
samples and, where ``classes.csv`` has names alone, the classes: both then lie in one space.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedunseen.core.errors import DataError
from fedunseen.core.settings import FolderOrName
from fedunseen.data.base import count
from fedunseen.data.benchmark import Benchmark, empty_split
from fedunseen.data.benchmarks.image_folder import TEXT, ImageFolder, holds_texts
from fedunseen.data.class_table import OwnData, Prompt
from fedunseen.data.io.images import list_images
from fedunseen.data.io.texts import check_text, encode_texts, read_text


class TextFolder(ImageFolder, name="texts"):
    """Your own texts and classes."""

    title = "your own texts"
    layout = "classes.csv, CLASS/TEXT.txt or train/CLASS/TEXT.txt and test/CLASS/TEXT.txt"
    sample = "text"

    class Settings(OwnData):
        """Settings of ``texts``."""

        root: Path
        """The folder of the data set, or of several for `xlsa17`, with the files that `fedunseen
        data list` names."""
        classes: Path | None = None
        """The class table; unset, `classes.csv` in the root."""
        folders: Literal["classes", "parties"] = "classes"
        """What the folders in `root` are: classes, or parties, each with folders of classes."""
        test_share: float = Field(0.2, gt=0, lt=1)
        """Share of each seen class's images that is drawn for tests, where there are no folders
        `train` and `test`.
        """
        train_per_class: int | None = Field(None, ge=1)
        """At most so many training images of each class, drawn once for all runs; unset takes
        all."""
        test_per_class: int | None = Field(None, ge=1)
        """At most so many test images of each class, drawn once for all runs; unset takes all."""
        text_encoder: FolderOrName | None = "minilm"
        """Describes classes by their names, unless the class table has attributes: `minilm`, a hub
        name or a folder."""
        prompt: Prompt = "{}"
        """The sentence that the text encoder reads, with `{}` for the class's name."""

    @classmethod
    def load(cls, settings: Any, seed: int) -> Benchmark:
        """Read and encode the texts, unless that was done before."""
        listing = cls.listing(settings, seed)
        ids = listing.ids(settings) | {"unlabelled": np.flatnonzero(listing.labels < 0)}
        kept = np.sort(np.concatenate(list(ids.values())))
        files = [listing.files[i] for i in kept.tolist()]
        texts = [read_text(listing.root / file) for file in files]
        splits: dict[str, Any] = {split: np.searchsorted(kept, ids[split]) for split in ids}
        return Benchmark(
            name=listing.name,
            space=listing.space,
            features=cls.read_texts(texts, settings) if texts else np.zeros((0, 1), np.float32),
            labels=listing.labels[kept],
            files=tuple(files),
            users=None if listing.users is None else listing.users[kept],
            part=listing.part,
            **splits,
        )

    @staticmethod
    def read_texts(texts: Sequence[str], settings: Any) -> NDArray[np.float32]:
        """Return texts as samples (n, d).

        Raises:
            DataError: a text has no letter and no digit, or there is no text.
        """
        if not texts:
            raise DataError("there is no text to read: give at least one", "text-empty")
        for number, text in enumerate(texts, 1):
            check_text(text, f"text {number}" if len(texts) > 1 else "the text")
        if settings.text_encoder is None:
            raise DataError(
                "data.text_encoder is missing: name one, such as minilm", "text-encoder"
            )
        return encode_texts(texts, settings.text_encoder)

    @classmethod
    def read(cls, path: Any, settings: Any) -> NDArray[Any]:
        """Read a file as one text, shape (1, d)."""
        if not isinstance(path, Path):
            raise DataError(f"{path}: this run takes texts, not pictures: give text", "text-type")
        return cls.read_texts([read_text(path)], settings)

    @classmethod
    def inspect(cls, settings: Any, everything: bool = False) -> dict[str, Any]:
        """Count the texts that are listed; read them if ``everything`` is asked for."""
        listing = cls.listing(settings, seed=0)
        ids = listing.ids(settings)
        empty = [split for split, mine in ids.items() if not len(mine) and not listing.part]
        problems = [empty_split(listing.name, split) for split in empty]
        for file in listing.files if everything else ():
            try:
                read_text(listing.root / file)
            except DataError as error:
                problems.append(str(error))
        facts = count(listing.space, listing.labels, ids, "vectors")
        return facts | {"problems": problems}

    @classmethod
    def files_of(cls, folder: Path) -> list[str]:
        """Return the texts of a class's folder, relative to it."""
        return [file for file in list_images(folder) if file.lower().endswith(TEXT)]

    @classmethod
    def readable(cls, path: Path) -> bool:
        """Say whether a file looks like a text."""
        return path.name.lower().endswith(TEXT)

    @classmethod
    def holds(cls, folder: Path) -> bool:
        """Say whether a folder has a class table, and folders of texts alone."""
        return (folder / "classes.csv").is_file() and holds_texts(folder)

    @classmethod
    def resembles(cls, folder: Path) -> float:
        """Say whether there are folders of texts alone."""
        return 0.02 if holds_texts(folder) else 0.0
