"""Class tables for your own images: names with attributes, or names alone, which a text encoder describes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, unknown
from fedunseen.data.class_space import SPLITS, ClassSpace
from fedunseen.data.io.csv_io import read_csv
from fedunseen.data.names import check_collisions

__all__ = ["PROMPT", "class_names", "describe", "read_class_table"]

PROMPT = "a photo of a {}."


def describe(names: Sequence[str], encoder: str, prompt: str) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return the embedding of each class's name in the sentence ``prompt``, and names for its columns.

    Args:
        names: of the classes; ``_`` and ``+`` count as spaces.
        encoder: a text encoder of ``fedunseen.encoders.text``: ``"minilm"``, a hub name or a folder.
        prompt: the sentence, with ``{}`` for the name.

    Returns:
        Shape (classes, numbers), and one name a column.
    """
    from fedunseen.encoders.text import class_prompts, embed_texts  # takes seconds to import

    semantics = embed_texts(class_prompts(names, prompt), encoder).astype(np.float64)
    return semantics, tuple(f"text {i}" for i in range(semantics.shape[1]))


def class_names(path: Path, text_encoder: str | None) -> tuple[str, ...]:
    """Check a class table as far as that needs no text encoder, which takes seconds to import, and return its names.

    Args:
        path: as :func:`read_class_table` takes it.
        text_encoder: likewise.

    Raises:
        DataError: as :func:`read_class_table`.
    """
    (_, header), *rows = read_csv(path)
    for column in ("name", "split"):
        if header.count(column) != 1:
            times = "no column" if column not in header else "more than one column"
            raise DataError(f"{path} has {times} {column!r} in its first line")
    names = tuple(row[header.index("name")] for _, row in rows)
    check_collisions(names, f"{path}: the classes")
    if len(header) > 2:
        return ClassSpace.load(path).names
    if text_encoder is None:
        raise DataError(
            f"{path} has no attributes: add a column for each, or describe the classes by their names with "
            'data.text_encoder = "minilm"'
        )
    for (line, row), name in zip(rows, names, strict=True):
        word = row[header.index("split")]
        if word not in SPLITS:
            raise DataError(f"{path}, line {line}: {unknown('split', word, SPLITS[:3])}")
        if not name:
            raise DataError(f"{path}, line {line}: the class has no name")
    return names


def read_class_table(path: Path, text_encoder: str | None, prompt: str = PROMPT) -> ClassSpace:
    """Read ``classes.csv``; without attribute columns, a text encoder describes the classes.

    Args:
        path: CSV with ``name``, ``split`` and any number of attributes; see ``fedunseen.data.class_space``.
        text_encoder: used if there is no attribute column.
        prompt: the sentence for the text encoder.

    Raises:
        DataError: if the file is missing or damaged, names collide, or there are neither attributes nor an encoder.
    """
    names = class_names(path, text_encoder)
    (_, header), *rows = read_csv(path)
    if text_encoder is None or len(header) > 2:
        return ClassSpace.load(path)
    ids: dict[str, list[int]] = {word: [] for word in SPLITS}
    for i, (_, row) in enumerate(rows):
        ids[row[header.index("split")]].append(i)
    semantics, attributes = describe(names, text_encoder, prompt)
    seen, validation = ids["seen"] + ids["validation"], ids["validation"]
    try:
        return ClassSpace(
            names=names,
            semantics=semantics,
            attribute_names=attributes,
            seen=np.array(seen, dtype=np.int64),
            validation=np.array(validation, dtype=np.int64),
            unseen=np.array(ids["unseen"], dtype=np.int64),
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
