"""Class tables for your own images: names with attributes, or names alone, which a text encoder
describes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedunseen.core.errors import DataError
from fedunseen.core.settings import FolderOrName
from fedunseen.data.benchmark import DataSettings
from fedunseen.data.class_space import ClassSpace, draw_validation
from fedunseen.data.names import check_collisions

PROMPT = "a photo of a {}."
Prompt = Annotated[str, Field(pattern=r"^[^{}]*\{\}[^{}]*$")]


class OwnData(DataSettings):
    """Settings of your own data, whose classes a text encoder may describe by their names."""

    text_encoder: FolderOrName | None = None
    """Describes classes by their names, unless the class table has attributes: `minilm`, a hub name
    or a folder."""
    prompt: Prompt = PROMPT
    """The sentence that the text encoder reads, with `{}` for the class's name."""
    part: bool = False
    """The samples are what one party of a deployment, or its coordinator, holds: classes may have
    none, or none to train on, or none for tests; the validation classes are those that the class
    table marks. Images without the folders `train` and `test` are to train on where their class is
    seen."""
    unlabelled: bool | Literal["summed"] = False
    """Adapt the trained model to the samples without a label: those with an empty one, or the
    pictures in the folder `unlabelled` beside the classes' folders; for `method.name = "gaussian"`.
    A run sets `"summed"` itself while it adapts."""


def describe(
    names: Sequence[str], encoder: str, prompt: str
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return the embedding of each class's name in the sentence ``prompt``, and names for its
    columns.
    """
    from fedunseen.encoders.text import class_prompts, embed_texts  # takes seconds to import

    semantics = embed_texts(class_prompts(names, prompt), encoder).astype(np.float64)
    return semantics, tuple(f"text {i}" for i in range(semantics.shape[1]))


def class_names(path: Path, text_encoder: str | None) -> tuple[str, ...]:
    """Return the names of a class table, checked as far as that needs no text encoder: one takes
    seconds to import.
    """
    return read_class_table(
        path, text_encoder, describe=lambda names, *_: (np.ones((len(names), 1)), ("text 0",))
    ).names


def own_class_space(settings: OwnData, root: Path, seed: int) -> ClassSpace:
    """Return the classes of ``classes.csv`` in a folder of samples; without validation classes
    ``seed`` draws a fifth of the seen classes (not of a part).
    """
    path = root / "classes.csv"
    encoder = settings.text_encoder
    space = (
        ClassSpace.load(path)
        if encoder is None
        else read_class_table(path, encoder, settings.prompt)
    )
    if not len(space.validation) and not settings.part:
        space = replace(space, validation=draw_validation(space.seen, None, seed))
    return space


def read_class_table(
    path: Path,
    text_encoder: str | None,
    prompt: str = PROMPT,
    describe: Callable[..., Any] = describe,
) -> ClassSpace:
    """Read ``classes.csv``; without attribute columns, a text encoder describes the classes."""
    by_name = None if text_encoder is None else lambda names: describe(names, text_encoder, prompt)
    space = ClassSpace.load(path, describe=by_name)
    check_collisions(space.names, f"{path}: the classes")
    if not space.attributes:
        raise DataError(
            f"{path} has no attributes: add a column for each, or describe the classes by their "
            "names with "
            'data.text_encoder = "minilm"'
        )
    return space
