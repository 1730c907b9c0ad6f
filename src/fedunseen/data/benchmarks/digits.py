"""The benchmark ``digits``: scikit-learn's handwritten digits, 0-4 to train on, 5-9 to be learned from a few examples.

1,797 images of 8 x 8 gray values, in the shape of FedFSL's example on MNIST (section 5.3). Five classes are memorized:
a number on it says that an experiment runs, not that a method is good. The held-out fifth is always the same.
"""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError
from fedunseen.core.random import stream
from fedunseen.data.benchmarks.few_shot import DigitSettings, FewShotBenchmark, Samples

SIDE = 8
HELD_OUT = 0.2  # of each training digit's images


def scanned() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return scikit-learn's images (1797, 8, 8), gray values in [0, 16], and their digits (1797,).

    They are read from its folder: importing scikit-learn to load them takes as long as PyTorch.
    """
    spec = find_spec("sklearn")
    places = list(spec.submodule_search_locations or ()) if spec else []
    file = Path(places[0], "datasets", "data", "digits.csv.gz") if places else Path("digits.csv.gz")
    try:
        with gzip.open(file, "rt") as lines:
            table = np.loadtxt(lines, delimiter=",")
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error}): install scikit-learn again, which brings it") from None
    return table[:, :-1].reshape(-1, SIDE, SIDE), table[:, -1].astype(np.int64)


class Digits(FewShotBenchmark):
    """Handwritten digits of 8 x 8 pixels, few-shot: features (n, 64) in [0, 1]."""

    title = "handwritten digits, few-shot: 0-4 to train on, 5-9 novel"
    image_shape = (SIDE, SIDE)

    class Settings(DigitSettings):
        """``[data] name = "digits"``."""

        name: Literal["digits"] = "digits"

    @classmethod
    def samples(cls, settings: Settings) -> Samples:
        """Read the digits; see :meth:`FewShotBenchmark.samples`."""
        images, labels = scanned()
        held_out = []
        for c in settings.roles[0]:
            shuffled = stream(0, "digits held out", c).permutation(np.flatnonzero(labels == c))
            held_out.append(shuffled[: round(HELD_OUT * len(shuffled))])
        return Samples(
            name="digits",
            names=[str(digit) for digit in range(10)],
            roles=settings.roles,
            features=(images / 16).astype(np.float32).reshape(-1, SIDE * SIDE),
            labels=labels,
            held_out=np.concatenate(held_out),
        )
