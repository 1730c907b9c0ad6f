"""Headers of a folder's pictures: how large they are, and which classes have none that can be
read.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedunseen.core.array_cache import Progress
from fedunseen.core.errors import DataError
from fedunseen.data.io.images import UNREADABLE, fault_of, open_image
from fedunseen.experiment.dataset_checks import Remark
from fedunseen.experiment.picture_depth import Depths


@dataclass(frozen=True)
class Scan:
    """What the headers of pictures say.

    Attributes:
        classes: the files of each class whose header can be read; () where there are none.
        side: the median shorter side in pixels.
        animated: files with several frames.
        depths: of their values.
    """

    classes: dict[str, list[Path]]
    side: int
    animated: list[Path]
    depths: Depths


def scan_pictures(classes: Mapping[str, Sequence[Path]]) -> Scan:
    """Read the headers of all pictures."""
    sides = []
    animated = []
    depths = Depths()
    readable: dict[str, list[Path]] = {name: [] for name in classes}
    progress = Progress("reading sizes of pictures", sum(map(len, classes.values())))
    for name, path in [(name, path) for name, files in classes.items() for path in files]:
        progress.add(1)
        with suppress(*UNREADABLE), open_image(path) as image:
            sides.append(min(image.size))
            readable[name].append(path)
            depths.add(path, image)
            if getattr(image, "is_animated", False):
                animated.append(path)
    if not sides:
        first = next((path for files in classes.values() for path in files), None)
        if first is None:
            raise DataError("all class folders are empty: put pictures into them")
        raise DataError(
            f"none of the files in the class folders can be read as a picture. The first: {first} "
            f"{fault_of(first)}. Repair them, or put JPEG or PNG files there"
        )
    return Scan(readable, max(8, int(np.median(sides))), animated, depths)


def without_pictures(
    classes: Mapping[str, Sequence[Path]], scan: Scan, again: bool = True
) -> list[Remark]:
    """Return a remark on each class that has no picture to learn from, and say what helps;
    ``again``: ``init`` has left it out.
    """
    left_out = []
    for name, files in classes.items():
        why = "its folder is empty"
        if files:
            count = "its file" if len(files) == 1 else f"none of its {len(files)} files"
            count += " cannot be read" if len(files) == 1 else " can be read"
            why = f"{count}: {files[0]} {fault_of(files[0])}"
        if not scan.classes[name]:
            why += "; put in pictures" + (", and call init again with --force" if again else "")
            what = f"warning: class {name} left out" if again else f"warning: class {name}"
            left_out.append(Remark(what, why))
    return left_out
