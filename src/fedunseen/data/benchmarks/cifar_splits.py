"""The benchmarks ``fc100`` and ``cifar-fs``: the two few-shot splits of CIFAR-100's 60,000 photos of 32 x 32 pixels.

- ``fc100``: Oreshkin et al., "TADAM" (2018). Whole superclasses are training, validation or novel ones: 60 / 20 / 20
  classes, so that a novel class looks like none of the training classes.
- ``cifar-fs``: Bertinetto et al., "Meta-learning with differentiable closed-form solvers" (2019). 64 / 16 / 20 classes
  drawn at random, published as three lists of names. A novel class may have close relatives among the training
  classes, which makes it the easier of the two.

Both take all 600 images of each class, CIFAR-100's own training and test images alike. The images lie in one of the
layouts of ``cifar100``, or in that of Bertinetto's archive: ``data/CLASS/*.png`` and ``splits/bertinetto/train.txt``,
``val.txt``, ``test.txt``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.benchmarks import cifar100
from fedunseen.data.benchmarks.cifar100 import SIDE, Cifar100, class_images, find_source
from fedunseen.data.benchmarks.digits import few_shot_benchmark, few_shot_space
from fedunseen.data.io.csv_io import did_you_mean, plain, read_lines
from fedunseen.data.io.images import UNREADABLE, cached, open_image, read_image, to_rgb

__all__ = ["SUPERCLASSES", "CifarFs", "Fc100"]

SUPERCLASSES = {
    "aquatic mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit and vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household electrical devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large man-made outdoor things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large natural outdoor scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large omnivores and herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles 1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles 2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}
"""CIFAR-100's superclasses in the order of their numbers, 0 to 19."""

# numbers of superclasses, as TADAM gives them
FC100_VALIDATION = (8, 11, 13, 16)
FC100_NOVEL = (0, 7, 12, 14)

# as published; all other classes are trained on
CIFAR_FS_VALIDATION = (
    "beaver", "beetle", "butterfly", "camel", "cattle", "crab", "crocodile", "flatfish", "lamp", "maple_tree",
    "motorcycle", "otter", "sea", "shark", "television", "tractor",
)  # fmt: skip
CIFAR_FS_NOVEL = (
    "baby", "bed", "bicycle", "chimpanzee", "fox", "leopard", "man", "pickup_truck", "plain", "poppy", "rocket", "rose",
    "snail", "sweet_pepper", "table", "telephone", "wardrobe", "whale", "woman", "worm",
)  # fmt: skip

PARTS = ("train", "val", "test")
LISTS = Path("splits") / "bertinetto"

Split = Mapping[str, Sequence[str]]
"""Names of the classes of ``train``, ``val`` and ``test``."""


class _CifarSplit(BenchmarkLoader):
    """What the two splits share."""

    name: ClassVar[str]
    folders = ("cifar100", "cifar-fs", "CIFAR-FS", "cifar-100")

    @classmethod
    def split(cls, settings: Any, root: Path) -> tuple[Split, str]:
        """Return the classes of each part, and what names them, for messages."""
        raise TypeError(f"{cls.__name__} must say how it is split")

    @classmethod
    def load(cls, settings: Any, seed: int) -> Benchmark:
        """Return the benchmark, images (n, 3, 32, 32), 600 a class; ``seed`` is not used.

        Raises:
            DataError: if a file is missing or damaged, an image has another size, or a list names another class.
        """
        root = settings.root.expanduser()
        archive = _archive(root)
        split, said = cls.split(settings, archive or root)
        source = None if archive is not None else find_source(root)
        names = _class_folders(archive) if archive is not None else [] if source is None else list(source.names)
        known = {plain(name): i for i, name in enumerate(names)}
        part_of: dict[int, str] = {}
        for part in PARTS:
            for name in split[part]:
                if plain(name) not in known:
                    where = archive / "data" if archive is not None else root
                    hint = did_you_mean(name, names) or ": unpack its images there"
                    raise DataError(f"{said} names the class {name!r}, which {where} does not have{hint}")
                if (c := known[plain(name)]) in part_of:
                    raise DataError(f"{said} names the class {name!r} more than once: mend its lists")
                part_of[c] = part
        kept = sorted(part_of)
        if archive is not None:
            images = _from_archive(archive, [names[c] for c in kept])
        else:
            assert source is not None  # one of the two is there, or `find_source` refused
            images = class_images(source, kept)
        ids = {part: [i for i, c in enumerate(kept) if part_of[c] == part] for part in PARTS}
        space = few_shot_space([names[c] for c in kept], ids["train"], ids["val"], ids["test"])
        labels = np.repeat(np.arange(len(kept), dtype=np.int64), cifar100.TRAIN + cifar100.TEST)
        return few_shot_benchmark(cls.name, space, images, labels, image_shape=(3, SIDE, SIDE))

    @classmethod
    def read(cls, path: Path, settings: Any) -> NDArray[np.uint8]:
        """Read an image of any size as the benchmark's own are, shape (1, 3, 32, 32).

        Raises:
            DataError: if the file is missing or not a readable image.
        """
        return read_image(Path(path), SIDE, SIDE)

    @classmethod
    def find(cls, folder: Path) -> list[Path]:
        """Return the folder of the images in a folder, in one of the three layouts."""
        archive = _archive(folder)
        return [archive] if archive is not None else Cifar100.find(folder)


class Fc100(_CifarSplit):
    """Photos of 32 x 32 pixels, few-shot: the novel classes are of other superclasses."""

    name = "fc100"
    title = "FC100: CIFAR-100 split by superclasses, few-shot"
    page = Cifar100.page
    layout = "as cifar100; or data/CLASS/*.png"

    class Settings(DataSettings):
        """``[data] name = "fc100"``."""

        name: Literal["fc100"] = "fc100"
        root: Path
        """The folder with CIFAR-100 in one of the layouts of `cifar100`, or with `data/CLASS/*.png`."""

    @classmethod
    def split(cls, settings: Settings, root: Path) -> tuple[Split, str]:
        """Return the classes of each part (see the top of this file)."""
        parts: dict[str, list[str]] = {part: [] for part in PARTS}
        for number, names in enumerate(SUPERCLASSES.values()):
            part = "val" if number in FC100_VALIDATION else "test" if number in FC100_NOVEL else "train"
            parts[part] += names
        return parts, "FC100"


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
        """Return the classes of each part (see the top of this file)."""
        folder = settings.splits.expanduser() if settings.splits is not None else root / LISTS
        if settings.splits is not None or folder.is_dir():
            for part in PARTS:
                if not (folder / f"{part}.txt").is_file():
                    raise DataError(
                        f"{folder / f'{part}.txt'} is missing: get the archive's splits/bertinetto ({cls.page}), or "
                        "leave data.splits out"
                    )
            return {part: read_lines(folder / f"{part}.txt") for part in PARTS}, str(folder)
        every = [name for names in SUPERCLASSES.values() for name in names]
        held = (*CIFAR_FS_VALIDATION, *CIFAR_FS_NOVEL)
        training = [name for name in every if name not in held]
        return {"train": training, "val": CIFAR_FS_VALIDATION, "test": CIFAR_FS_NOVEL}, "CIFAR-FS"


def _archive(root: Path) -> Path | None:
    """Return the folder that holds ``data/CLASS``: ``root``, or one of the usual names in it."""
    for folder in (root, *(root / name for name in _CifarSplit.folders)):
        # the name of a class tells it from any other folder named data
        if any((folder / "data" / name).is_dir() for name in ("apple", "baby")):
            return folder
    return None


def _class_folders(archive: Path) -> list[str]:
    return sorted(path.name for path in (archive / "data").iterdir() if path.is_dir() and path.name[0] != ".")


def _from_archive(archive: Path, names: Sequence[str]) -> NDArray[np.uint8]:
    """Return the 600 images of each class, in the order of their file names; kept in the cache."""
    each = cifar100.TRAIN + cifar100.TEST
    files: list[Path] = []
    for name in names:
        mine = sorted((archive / "data" / name).glob("*.png"))
        if len(mine) != each:
            raise DataError(f"{archive / 'data' / name} has {len(mine)} images, not {each}: unpack the archive again")
        files += mine
    stamps = [(str(path.relative_to(archive)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]

    def produce() -> Iterator[NDArray[Any]]:
        for path in files:
            yield _picture(path)[None]

    return cached("cifar-fs", stamps, (len(files), 3, SIDE, SIDE), produce)


def _picture(path: Path) -> NDArray[np.uint8]:
    try:
        with open_image(path) as file:
            width, height = file.size
            pixels = np.asarray(to_rgb(file)) if (width, height) == (SIDE, SIDE) else None
    except UNREADABLE:
        raise DataError(f"{path} is not a readable image: unpack the archive again") from None
    if pixels is None:
        raise DataError(f"{path} has {width} x {height} pixels, not {SIDE} x {SIDE}: unpack the archive again")
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
