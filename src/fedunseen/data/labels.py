"""Labels as people write them: which are missing, and whether classes are named alike."""

from collections.abc import Iterable
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import ArgumentError


def read_labels(labels: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return labels (n, ...) as an array, and (n,) which are missing: None, NaN or ``pandas.NA``.

    Example:
        >>> read_labels(["horse", None, "seal"])[1].tolist()
        [False, True, False]
    """
    # numpy would make NaN among names a name
    array = np.asarray(labels, dtype=object if isinstance(labels, (list, tuple)) else None)
    if array.ndim == 1 and array.dtype.kind == "O":
        missing = np.array([_is_missing(label) for label in array], dtype=bool)
        check_one_type(array[~missing])
    elif array.ndim == 1 and array.dtype.kind == "f":
        missing = np.isnan(array)
    else:
        missing = np.zeros(array.shape, dtype=bool)
    return (array if missing.any() else np.asarray(labels)), missing


def _is_missing(label: Any) -> bool:
    """Return whether a label is None or unequal to itself."""
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas.NA: its comparison is neither true nor false
        return True


def check_one_type(names: Iterable[Any]) -> None:
    """Refuse names of classes where some are text and others numbers: they have no order."""
    example: dict[str, Any] = {}
    for name in names:
        kind = "text" if isinstance(name, str) else "number" if isinstance(name, Number) else "else"
        example.setdefault(kind, name)
    if len(example) > 1:
        first, other = list(example.values())[:2]
        raise ArgumentError(
            f"the classes {first} and {other} have names of different types: name all by text, "
            "or all by numbers",
            "mixed-class-names",
        )
