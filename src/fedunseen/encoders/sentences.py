"""How the library sentence-transformers says that a model makes a vector of a sentence: in
``modules.json`` and the files that it names, beside the weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedunseen.core.errors import DataError
from fedunseen.core.files import parse_json
from fedunseen.encoders.hub import read_json

POOLING = "encoder-pooling"
"""Code of a model that makes its vectors in a way that is not known here."""

_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
}
_WITHOUT_VECTOR = ("Transformer", "Dropout")  # parts that change nothing after training


class Sentence(NamedTuple):
    """How tokens become the vector of a sentence.

    Attributes:
        pooling: ``mean``, ``cls``, ``max`` or ``lasttoken``.
        unit: the vector is brought to unit length.
        limit: tokens of a text that are read; None: as many as the tokenizer says.
        lower: texts are put into lower case.
        prompt: stands before each text.
    """

    pooling: str = "mean"
    unit: bool = False
    limit: int | None = None
    lower: bool = False
    prompt: str = ""


def pooling_files(folder: Path) -> list[Path]:
    """Return the files in folders of a model that say how it pools tokens."""
    return [
        path
        for part in _parts(folder)
        if part.kind == "Pooling" and (path := folder / part.folder / "config.json").is_file()
    ]


def sentence_of(folder: Path) -> Sentence:
    """Return what a folder says; the mean of all tokens where it says nothing.

    Raises:
        DataError: it has parts that are not known here, or a damaged file.
    """
    parts = _parts(folder)
    if not parts:
        return Sentence()
    pooling = ""
    unit = False
    for part in parts:
        if part.kind == "Pooling" and not pooling:
            pooling = _pooling(folder, read_json(folder / part.folder / "config.json"))
        elif part.kind == "Normalize" and pooling:
            unit = True
        elif part.kind not in _WITHOUT_VECTOR:
            raise _not_known(folder, f"a part {part.kind}")
    if not pooling:
        raise _not_known(folder, "no part Pooling")
    about = _optional(folder / "sentence_bert_config.json")
    limit = about.get("max_seq_length")
    return Sentence(
        pooling,
        unit,
        limit if type(limit) is int and limit > 0 else None,
        about.get("do_lower_case") is True,
        _prompt(_optional(folder / "config_sentence_transformers.json")),
    )


def pooled(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Return a vector (n, d) for each text.

    Args:
        states: (n, tokens, d) of the last layer.
        mask: (n, tokens) 1 where a token is no padding.
        pooling: of :class:`Sentence`.
    """
    rows = torch.arange(len(states))
    if pooling == "cls":
        return states[rows, mask.argmax(1)]
    if pooling == "lasttoken":
        return states[rows, mask.shape[1] - 1 - mask.flip(1).argmax(1)]
    kept = mask.unsqueeze(-1)
    if pooling == "max":
        return states.masked_fill(kept == 0, -torch.inf).amax(1)
    return (states * kept).sum(1) / kept.sum(1)


class _Part(NamedTuple):
    kind: str
    folder: str


def _parts(folder: Path) -> list[_Part]:
    """Return the parts of a model in order; none where it is not of this library."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    try:
        listed = parse_json(path.read_text("utf-8"))
        parts = [_Part(item["type"].rsplit(".", 1)[-1], item["path"]) for item in listed]
        if any(Path(part.folder).name != part.folder or part.folder == ".." for part in parts):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            f"{path} is damaged: get the model again, or name another text encoder",
            "encoder-damaged",
        ) from None
    return parts


def _pooling(folder: Path, config: dict[str, Any]) -> str:
    """Return the one way in which a configuration says that tokens are pooled."""
    stated = config.get("pooling_mode")
    if stated is None:
        chosen = [
            _POOLINGS.get(key, key)
            for key, value in config.items()
            if key.startswith("pooling_mode_") and value is True
        ]
        stated = chosen if len(chosen) > 1 else (chosen or ["mean"])[0]
    if stated not in _POOLINGS.values():
        raise _not_known(folder, f"the pooling {stated!r}")
    return str(stated)


def _prompt(config: dict[str, Any]) -> str:
    """Return the words that stand before a text where none are asked for."""
    prompts = config.get("prompts")
    prompt = prompts.get(config.get("default_prompt_name")) if isinstance(prompts, dict) else None
    return prompt if isinstance(prompt, str) else ""


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _not_known(folder: Path, what: str) -> DataError:
    known = ", ".join(_POOLINGS.values())
    return DataError(
        f"{folder} makes a vector of a text by {what}, which is not known here (known: the "
        f"poolings {known}, and Normalize): name another text encoder, or encode the texts "
        "yourself and give features.npz",
        POOLING,
    )
