"""The benchmarks ``fc100`` and ``cifar-fs``: the two few-shot splits of CIFAR-100's 60,000 photos of 32 x 32 pixels.

- ``fc100``: Oreshkin et al., "TADAM" (2018). Whole superclasses are training, validation or novel ones: 60 / 20 / 20
  classes, so that a novel class looks like none of the training classes.
- ``cifar-fs``: Bertinetto et al., "Meta-learning with differentiable closed-form solvers" (2019). 64 / 16 / 20 classes
  drawn at random, published as three lists of names. A novel class may have close relatives among the training
  classes, which makes it the easier of the two.

Both take all 600 images of each class, CIFAR-100's own training and test images alike, in one of the layouts of
``cifar_files``; Bertinetto's archive has lists of its own, ``splits/bertinetto/train.txt``, ``val.txt``, ``test.txt``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fedunseen.core.errors import DataError
from fedunseen.data.benchmark import DataSettings
from fedunseen.data.benchmarks import cifar_files
from fedunseen.data.benchmarks.cifar100 import Cifar100
from fedunseen.data.benchmarks.cifar_files import SIDE, archive_in, class_images, find_source, published_split
from fedunseen.data.benchmarks.few_shot import FewShotBenchmark, Samples
from fedunseen.data.io.csv_io import read_lines
from fedunseen.data.names import did_you_mean, plain

PARTS = ("train", "val", "test")
LISTS = Path("splits") / "bertinetto"

Split = Mapping[str, Sequence[str]]
"""Names of the classes of ``train``, ``val`` and ``test``."""


class _CifarSplit(FewShotBenchmark):
    """What the two splits share: images (n, 3, 32, 32), 600 a class."""

    name: ClassVar[str]
    folders = cifar_files.FOLDERS
    image_shape = (3, SIDE, SIDE)

    @classmethod
    def split(cls, settings: Any, root: Path) -> tuple[Split, str]:
        """Return the classes of each part, and what names them, for messages."""
        part_of = published_split(cls.name.replace("-", "_"))
        return {part: [name for name in part_of if part_of[name] == part] for part in PARTS}, cls.name

    @classmethod
    def samples(cls, settings: Any) -> Samples:
        """Read the images and the split; see :meth:`FewShotBenchmark.samples`."""
        root = settings.root.expanduser()
        source = find_source(root)
        split, origin = cls.split(settings, source.place)
        label_of = {plain(name): i for i, name in enumerate(source.names)}
        part_of: dict[int, str] = {}
        for part in PARTS:
            for name in split[part]:
                label = label_of.get(plain(name))
                if label is None:
                    hint = did_you_mean(name, source.names) or ": unpack its images there"
                    raise DataError(f"{origin} names the class {name!r}, which {source.place} does not have{hint}")
                if label in part_of:
                    raise DataError(f"{origin} names the class {name!r} more than once: fix its lists")
                part_of[label] = part
        kept = sorted(part_of)
        return Samples(
            cls.name,
            [source.names[label] for label in kept],
            [[i for i, label in enumerate(kept) if part_of[label] == part] for part in PARTS],
            class_images(source, kept),
            np.repeat(np.arange(len(kept), dtype=np.int64), cifar_files.TRAIN + cifar_files.TEST),
        )

    @classmethod
    def find(cls, folder: Path) -> list[Path]:
        """Return the folder of the images in a folder, in one of the three layouts."""
        archive = archive_in(folder)
        return [archive] if archive is not None else Cifar100.find(folder)


class Fc100(_CifarSplit):
    """Photos of 32 x 32 pixels, few-shot: the novel classes are of other superclasses."""

    name = "fc100"
    title = "FC100: CIFAR-100 split by superclasses, few-shot"
    page = cifar_files.PAGE
    layout = "as cifar100; or data/CLASS/*.png"

    class Settings(DataSettings):
        """``[data] name = "fc100"``."""

        name: Literal["fc100"] = "fc100"
        root: Path
        """The folder with CIFAR-100 in one of the layouts of `cifar100`, or with `data/CLASS/*.png`."""


class CifarFs(_CifarSplit):
    """Photos of 32 x 32 pixels, few-shot: the novel classes were drawn at random."""

    name = "cifar-fs"
    title = "CIFAR-FS: CIFAR-100 split at random, few-shot"
    page = "https://github.com/bertinetto/r2d2"
    layout = "data/CLASS/*.png, splits/bertinetto/train.txt, val.txt, test.txt; or as cifar100"

    class Settings(DataSettings):
        """``[data] name = "cifar-fs"``."""

        name: Literal["cifar-fs"] = "cifar-fs"
        root: Path
        """The folder with `data/CLASS/*.png`, or with CIFAR-100 in one of the layouts of `cifar100`."""
        splits: Path | None = None
        """The folder of `train.txt`, `val.txt` and `test.txt`; unset, `splits/bertinetto` in the root, or the same
        published lists from the source."""

    @classmethod
    def split(cls, settings: Settings, root: Path) -> tuple[Split, str]:
        """Return the classes of each part by the lists that are given or lie in the archive, else the published."""
        folder = settings.splits.expanduser() if settings.splits is not None else root / LISTS
        if settings.splits is None and not folder.is_dir():
            return super().split(settings, root)
        for path in (folder / f"{part}.txt" for part in PARTS):
            if not path.is_file():
                raise DataError(
                    f"{path} is missing: get the archive's splits/bertinetto ({cls.page}), or leave data.splits out"
                )
        return {part: read_lines(folder / f"{part}.txt") for part in PARTS}, str(folder)
