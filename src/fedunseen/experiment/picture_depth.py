"""Pictures of more than 8 bits in a folder: which values they use, and the window that suits."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedunseen.core.errors import counted
from fedunseen.data.benchmarks.image_benchmark import few_levels
from fedunseen.data.io.depth import (
    BITS,
    FEW_LEVELS,
    SETTING,
    Window,
    deep_values,
    eight_bits,
    stated,
)
from fedunseen.data.io.images import UNREADABLE, open_image
from fedunseen.experiment.dataset_checks import Remark

PERCENTILES = (0.5, 99.5)  # of values: black and white, as is usual for computed tomography
_PICTURES = 256  # that are measured, evenly spaced
_VALUES = 4096  # of each


@dataclass
class Depths:
    """What the headers of pictures say about their values.

    Attributes:
        kinds: files by format and bits.
        sources: how many deep pictures state a window, by where it stands; "" where nowhere.
        whole: the range of the deep pictures' bits; None where one does not say.
    """

    kinds: dict[str, list[Path]] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    whole: Window | None = (math.inf, -math.inf)

    def add(self, path: Path, image: Image.Image) -> None:
        """Note an opened picture."""
        said = stated(image)
        if said is None or not said.deep:
            self.kinds.setdefault("8 bits", []).append(path)
            return
        bits = "more than 16 bits" if said.window is None else "more than 8 bits"
        self.kinds.setdefault(f"{bits} ({image.format})", []).append(path)
        source = said.source if said.window is not None else ""
        self.sources[source] = self.sources.get(source, 0) + 1
        if said.window is None:
            self.whole = None
        elif self.whole is not None:
            low, high = said.window
            self.whole = min(self.whole[0], low), max(self.whole[1], high)

    @property
    def deep(self) -> list[Path]:
        """The files of more than 8 bits."""
        return [path for kind, files in self.kinds.items() if kind != "8 bits" for path in files]


def suited_window(depths: Depths) -> Window | None:
    """Return black and white for the pictures of a folder; None where what their files say suits:
    all state a window, or use most of their bits.
    """
    if not depths.sources or not set(depths.sources) & {BITS, ""}:
        return None
    pooled = _pooled(depths.deep)
    if not len(pooled):
        return None
    low, high = (float(value) for value in np.percentile(pooled, PERCENTILES))
    if (pooled == np.rint(pooled)).all():
        low = math.floor(low)
        high = math.ceil(high)
    if low >= high:
        return None
    if depths.whole is not None and high - low >= (depths.whole[1] - depths.whole[0]) / 2:
        return None
    return float(f"{low:.6g}"), float(f"{high:.6g}")


def _pooled(files: Sequence[Path]) -> NDArray[np.float64]:
    """Return some values of some of the files."""
    step = max(1, math.ceil(len(files) / _PICTURES))
    pooled: list[NDArray[np.float64]] = [np.zeros(0)]
    for path in files[::step]:
        with suppress(*UNREADABLE), open_image(path) as image:
            if (said := stated(image)) is not None:
                values = deep_values(image, said).reshape(-1)
                spaced = np.linspace(0, len(values) - 1, min(_VALUES, len(values)))
                pooled.append(values[spaced.astype(np.int64)].astype(np.float64))
    return np.concatenate(pooled)


def depth_remarks(depths: Depths, window: Window | None) -> list[Remark]:
    """Say by which window pictures of more than 8 bits are shown, and what looks odd about it."""
    deep = depths.deep
    if not deep:
        return []
    sources = depths.sources
    if window is not None:
        shown = f"values up to {window[0]:g} are black, from {window[1]:g} on white ({SETTING})"
    elif set(sources) == {BITS}:
        shown = f"shown by their {BITS}"
    else:
        shown = ", ".join(f"{n} by {source or 'nothing'}" for source, n in sources.items())
    remarks = [Remark(f"{counted(len(deep), 'picture')} of more than 8 bits", shown)]
    if len(depths.kinds) > 1:
        listed = ", ".join(
            f"{len(files)} of {kind} such as {files[0]}" for kind, files in depths.kinds.items()
        )
        why = f"{listed}: keep one depth, or look whether a value means the same in all"
        remarks.append(Remark("look at the depths of pictures", why))
    if lost := _losing(deep, window):
        remarks.append(Remark("look at the window", few_levels([str(path) for path in lost])))
    return remarks


def _losing(files: Sequence[Path], window: Window | None) -> list[Path]:
    """Return those of some of the files that have few gray levels under a window."""
    step = max(1, math.ceil(len(files) / _PICTURES))
    lost = []
    for path in files[::step]:
        with suppress(*UNREADABLE), open_image(path) as image:
            if eight_bits(image, window).info.get(FEW_LEVELS):
                lost.append(path)
    return lost
