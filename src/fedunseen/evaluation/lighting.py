"""Classes of which some pictures are almost black or almost white, while those of others are not:
the model sees little in them.
"""

from collections.abc import Mapping, Sequence
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST = 5  # such pictures of a class
SHARE = 0.1  # of its pictures: of the 100 classes of CIFAR-100, none has 0.02
RARE = 0.02  # of the pictures of the median class, at most
DARKER = 4.0  # times darker than the median picture, at its brightest
PALE = 200.0  # of 255, at its darkest
TAIL = 0.01  # of the pixels, which do not count as the brightest or the darkest
STEP = 4  # pixels: every so many are read, in both directions
MANY = 20_000  # pictures: of more, none are looked at
BLOCK = 256  # pictures that are read at once
CHANCE = 0.05  # of a cause that is none, at most


def badly_lit(
    pictures: NDArray[Any], files: Sequence[str], labels: NDArray[np.int64], names: Sequence[str]
) -> dict[str, Any]:
    """Return ``badly_lit``, the classes with many pictures that are almost black (``dark``) or
    almost white (``pale``): ``class``, ``how``, ``files`` and ``of``, how many pictures it has.
    Empty where there are none.

    Args:
        pictures: (n, channels, height, width), of 256 levels.
        files: their names.
        labels: (n,) their classes, below 0 where that is unknown.
        names: of classes.
    """
    if pictures.dtype != np.uint8 or len(pictures) > MANY:
        return {}
    lightest, darkest = _extremes(pictures)
    masks = {"dark": lightest < np.median(lightest) / DARKER, "pale": darkest > PALE}
    classes = [c for c in np.unique(labels).tolist() if c >= 0]
    found = []
    for how, odd in masks.items():
        shares = {c: float(odd[labels == c].mean()) for c in classes}
        if not shares or np.median(list(shares.values())) > RARE:
            continue  # all are so: scans, or drawings on white
        for c, share in shares.items():
            rows = np.flatnonzero(odd & (labels == c)).tolist()
            if share >= SHARE and len(rows) >= LEAST:
                of = int((labels == c).sum())
                named = [files[i] for i in rows]
                found.append({"class": names[c], "how": how, "files": named, "of": of})
    return {"badly_lit": found} if found else {}


def answered(
    groups: Sequence[Mapping[str, Any]],
    files: Sequence[str],
    labels: Sequence[str],
    right: NDArray[np.bool_],
) -> list[dict[str, Any]]:
    """Return classes with badly lit pictures, with what a test says: ``tests``, how many test
    pictures of the class are lit so and how many are not, and ``wrong``, how many of each are
    answered wrong.

    Args:
        groups: what :func:`badly_lit` found.
        files: those of the test pictures.
        labels: names of their classes.
        right: which of them are answered right.
    """
    classes = np.array(labels)
    added = []
    for group in groups:
        mine = classes == group["class"]
        lit = np.isin(files, group["files"])
        sides = [mine & lit, mine & ~lit]
        tests = [int(side.sum()) for side in sides]
        wrong = [int((side & ~right).sum()) for side in sides]
        added.append({**group, "tests": tests, "wrong": wrong})
    return added


def is_cause(group: Mapping[str, Any]) -> bool:
    """Return whether badly lit test pictures of a class are clearly more often wrong than its other
    ones (Fisher's exact test, one-sided).
    """
    if "tests" not in group:
        return False
    lit, others = group["tests"]
    wrong, others_wrong = group["wrong"]
    all_wrong = wrong + others_wrong
    more = range(wrong, min(lit, all_wrong) + 1)
    ways = sum(comb(lit, k) * comb(others, all_wrong - k) for k in more)
    return ways < CHANCE * comb(lit + others, all_wrong)


def seems_easier(group: Mapping[str, Any]) -> bool:
    """Return whether badly lit test pictures of a class are less often wrong than its others."""
    if "tests" not in group:
        return False
    lit, others = group["tests"]
    wrong, others_wrong = group["wrong"]
    return bool(wrong * others < others_wrong * lit)


def _extremes(pictures: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how light the lightest and how dark the darkest pixels of pictures
    (n, channels, height, width) are, but for a few pixels.
    """
    ends = []
    for start in range(0, len(pictures), BLOCK):
        block = np.asarray(pictures[start : start + BLOCK, :, ::STEP, ::STEP])
        gray = block.mean(1).reshape(len(block), -1)
        ends.append(np.quantile(gray, (1 - TAIL, TAIL), axis=1))
    lightest, darkest = np.concatenate(ends, axis=1)
    return lightest, darkest
