"""How a column of texts becomes numbers between 0 and 1.

A sentence encoder makes a vector of each text. At unit length a coordinate of d is about
``1 / sqrt(d)`` long; five times that, to either side, become 0 and 1. So bounds depend on the
encoder alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.data.columns.settings import Column
from fedunseen.data.columns.treatment import CellError, is_missing, text_of
from fedunseen.data.io.texts import encode_texts, text_fault

ENCODER = "minilm"
"""Reads texts where no other is named."""
_WIDEST = 5.0  # times 1 / sqrt(d)


def encode_cells(
    column: Column, cells: Sequence[Any] | NDArray[Any], words: Sequence[str], encoder: str
) -> NDArray[np.float32]:
    """Return the features of texts, each as if it were alone.

    Args:
        column: of the kind ``text``.
        cells: (n,) values.
        words: texts that stand for a missing cell.
        encoder: ``minilm``, a hub name or a folder.

    Returns:
        Shape (n, d), or (n, d + 1) with an indicator, within [0, 1]. A missing cell has 0.5 in all
        d.

    Raises:
        CellError: a cell is no text, is missing without an indicator, or cannot be read.
        MissingDependencyError: the encoder needs a library.
    """
    if isinstance(cells, np.ndarray):
        stored = "dates" if cells.dtype.kind == "M" else "numbers"
        raise CellError(
            0, f"the cells are {stored}", "save texts, or state that kind", "wrong-type"
        )
    missing = np.array([is_missing(value, words) for value in cells], dtype=np.bool_)
    if missing.any() and not column.indicator:
        raise CellError(
            int(np.argmax(missing)),
            "there is no text",
            "write one, or state indicator = true for the column",
            "text-empty",
        )
    texts = ["-" if gone else text_of(value) for value, gone in zip(cells, missing, strict=True)]
    for place in np.flatnonzero(~missing).tolist():
        if fault := text_fault(texts[place]):
            raise CellError(place, f"the text {fault.problem}", fault.remedy, fault.code)
    vectors = encode_texts(texts, encoder)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(length, np.float32(1e-12))
    features = np.clip(0.5 + unit * np.sqrt(unit.shape[1]) / (2 * _WIDEST), 0, 1)
    features[missing] = 0.5
    if column.indicator:
        features = np.column_stack([features, missing])
    return np.asarray(features, dtype=np.float32)
