"""A calibration factor that few validation classes would leave to chance: every seen class plays the unseen one once.

Of nine seen classes two are for validation, and whether these two lie near the others decides by how much seen classes
are lowered. A method in closed form is solved in no time, so that all seen classes can take turns: as many at a time as
there are validation classes, the harmonic mean being averaged over the turns.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedunseen.core.random import stream
from fedunseen.data import Benchmark

__all__ = ["FEW", "turns"]

FEW = 5  # validation classes from which on one turn says enough
MOST = 8  # turns


def turns(benchmark: Benchmark, seed: int) -> list[Benchmark]:
    """Return the benchmark once for each turn, with other validation classes each time; the first has its own.

    Args:
        benchmark: with fewer than :data:`FEW` validation classes; with more, there is one turn.
        seed: the run's.
    """
    space = benchmark.space
    if len(space.validation) >= FEW:
        return [benchmark]
    others = stream(seed, "turns of validation classes").permutation(space.train)
    groups = [others[i : i + len(space.validation)] for i in range(0, len(others), len(space.validation))]
    if len(groups) > 1 and len(groups[-1]) < len(space.validation):
        groups[-2:] = [np.concatenate(groups[-2:])]  # a rest of fewer classes would have an easier turn
    spaces = [replace(space, validation=np.sort(group)) for group in groups[: MOST - 1]]
    return [benchmark, *(replace(benchmark, space=one) for one in spaces)]
