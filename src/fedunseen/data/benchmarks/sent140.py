"""The benchmark ``sent140`` (Go et al. 2009; LEAF; FedFSL): is a tweet negative or positive, from
few examples.

The answers are always the same, and it is the *users* that are new: the class space has a class for
each answer and group of users, ``Benchmark.answers`` says what each stands for. 0.6 / 0.2 / 0.2 of
the users are for training, validation and tests. Neutral tweets, and those without a word that has
a vector, are left out and counted.

A tweet becomes the vectors of its first words, then zeros: **a step of all zeros is padding**,
which is how a recurrent network learns the length. Words are LEAF's (Caldas et al. 2018), in lower
case, as GloVe's are; their vectors are those of MiniLM's own table, offline, or of a GloVe file.
"""

import csv
import html
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedunseen.core.array_cache import array_digest, cached_blocks
from fedunseen.core.errors import DataError
from fedunseen.core.random import stream
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.benchmarks.few_shot import FewShotBenchmark
from fedunseen.data.io.csv_io import read_lines
from fedunseen.encoders.word_vectors import minilm_folder, read_vectors

PUBLISHED = ("training.1600000.processed.noemoticon.csv", "testdata.manual.2009.06.14.csv")
NEGATIVE = "0"
NEUTRAL = "2"
POSITIVE = "4"
COLUMNS = 6
GROUPS = ("", " (validation users)", " (new users)")
SHARES = (0.6, 0.8)  # of the users: up to the first for training, up to the second for validation
SHOWN = 60  # characters of a tweet in a message
WORDS = 20

PADDING = -1  # the id of a step after the last word
BLOCK = 4096  # texts at a time
TABLE = "embeddings.word_embeddings.weight"


class Sent140(FewShotBenchmark, name="sent140"):
    """Tweets as sequences of word vectors, few-shot: negative or positive, of new users."""

    sample = "tweet"
    title = "Sentiment140: negative or positive tweets, few-shot, users disjoint"
    page = "http://help.sentiment140.com/for-students"
    layout = f"{PUBLISHED[0]}, {PUBLISHED[1]}; or one CSV file of its six columns"
    remedy = ": take more tweets (data.tweets) or more users (data.min_per_user)"
    folders = ("sentiment140", "sent140", "Sentiment140", "trainingandtestdata")

    class Settings(DataSettings):
        """Settings of ``sent140``."""

        root: Path
        """The folder of the data set, or of several for `xlsa17`, with the files that `fedunseen
        data list` names."""
        tweets: int | None = Field(None, ge=1)
        """Take whole users, drawn once for all runs, until so many tweets are together; unset takes
        all.
        """
        min_per_user: int = Field(1, ge=1)
        """Leave out users with fewer tweets, negative and positive ones together."""
        vectors: str = "minilm"
        """`"minilm"` (word pieces, 384-d, offline), or a file of word vectors as text, such as
        `glove.6B.300d.txt`.
        """

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Read the tweets, features (n, words, width)."""
        files = _files(settings.root.expanduser())
        texts, positive, authors = _read(files)
        order = _chosen_users(authors, settings, files[0])
        group_of = np.full(int(authors.max()) + 1, -1)
        group_of[order] = np.searchsorted(
            np.rint(np.array(SHARES) * len(order)), np.arange(len(order)), side="right"
        )
        kept = np.flatnonzero(group_of[authors] >= 0)
        words = look_up([texts[i] for i in kept.tolist()], settings.vectors, WORDS)
        empty = words.ids[:, 0] == PADDING
        if empty.all():
            raise DataError(
                f"{files[0]}: none of {len(kept):,} tweets has a word with a vector in "
                f"{settings.vectors}: name other vectors in data.vectors"
            )
        if empty.any():
            warnings.warn(
                f"sent140: {int(empty.sum()):,} of {len(kept):,} tweets are left out: none of "
                "their words has a vector",
                stacklevel=2,
            )
        kept = kept[~empty]
        users = authors[kept]
        names = [answer + group for group in GROUPS for answer in ("negative", "positive")]
        return cls.build(
            "sent140",
            names,
            roles=((0, 1), (2, 3), (4, 5)),
            features=sequences(WordIds(words.ids[~empty], words.table)),
            labels=2 * group_of[users] + positive[kept],
            users=np.unique(users, return_inverse=True)[1].astype(np.int64),
            answers=np.arange(len(names)) % 2,
        )

    @staticmethod
    def read_texts(texts: Sequence[str], settings: Settings) -> NDArray[np.float16]:
        """Turn texts into samples, as the benchmark's own are made."""
        if not texts:
            raise DataError("there is no text to read: give at least one")
        words = look_up(texts, settings.vectors, WORDS)
        empty = np.flatnonzero(words.ids[:, 0] == PADDING)
        if len(empty):
            first = int(empty[0])
            raise DataError(
                f"{len(empty)} of {len(texts)} texts have no word with a vector, the first is text "
                f"{first + 1} ({texts[first][:SHOWN]!r}): leave them out"
            )
        return np.where(words.ids[:, :, None] == PADDING, np.float16(0), words.table[words.ids])

    @classmethod
    def read(cls, path: Path, settings: Settings) -> NDArray[np.float16]:  # type: ignore[override]
        """Read a text file, a tweet a line."""
        lines = read_lines(Path(path), "save it in UTF-8, a tweet a line", blank=True)
        if "" in lines:
            raise DataError(
                f"{path}: a line between tweets is empty: leave it out, so that every line is a "
                "tweet"
            )
        return cls.read_texts(lines, settings)

    @classmethod
    def holds(cls, folder: Path) -> bool:
        """Say whether a folder has the published CSV files, or one that looks like them."""
        return bool(_csv_files(folder))


def _files(root: Path) -> list[Path]:
    """Return the CSV files: ``root`` itself, or what lies in it or in a folder of the usual name
    there.
    """
    if root.is_file():
        return [root]
    files = _csv_files(Sent140.home(root))
    if not files:
        raise DataError(
            f"{root} holds no Sentiment140: unpack trainingandtestdata.zip ({Sent140.page}) there, "
            "or name a CSV file of its six columns in data.root"
        )
    return files


def _csv_files(folder: Path) -> list[Path]:
    """Return the published files in a folder, or its only CSV file if that looks like one of
    them.
    """
    published = [folder / name for name in PUBLISHED if (folder / name).is_file()]
    if published:
        return published
    unpublished = (
        sorted(path for path in folder.glob("*.csv") if path.is_file()) if folder.is_dir() else []
    )
    return unpublished if len(unpublished) == 1 and _looks_right(unpublished[0]) else []


def _looks_right(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            lines = file.read(4096).decode("latin-1").splitlines()[:2]
        rows = list(csv.reader(lines))
    except (OSError, csv.Error):
        return False
    return (
        bool(rows)
        and all(len(row) == COLUMNS for row in rows)
        and rows[-1][0] in (NEGATIVE, NEUTRAL, POSITIVE)
    )


def _read(files: Sequence[Path]) -> tuple[list[str], NDArray[np.bool_], NDArray[np.int64]]:
    """Return the texts of negative and positive tweets, which are positive, and who wrote each,
    counted from 0.
    """
    texts: list[str] = []
    positive: list[bool] = []
    users: list[str] = []
    neutral = 0
    for path in files:
        for where, (polarity, _, _, _, user, text) in _rows(path):
            if polarity == NEUTRAL:
                neutral += 1
                continue
            if polarity not in (NEGATIVE, POSITIVE):
                raise DataError(
                    f"{where}: the polarity {polarity[:SHOWN]!r} is none of 0, 2 and 4: fix the "
                    "line"
                )
            texts.append(text)
            positive.append(polarity == POSITIVE)
            users.append(user)
    if not texts:
        raise DataError(
            f"{files[0]} has no negative or positive tweet: get it again ({Sent140.page})"
        )
    if neutral:
        warnings.warn(f"sent140: {neutral:,} neutral tweets are left out", stacklevel=3)
    return texts, np.array(positive), np.unique(users, return_inverse=True)[1].astype(np.int64)


def _rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield where each tweet stands, for messages, and its six cells."""
    # the published files are in Latin-1, copies of them often in UTF-8; what is not UTF-8 is known
    # before it is read
    try:
        encoding = "utf-8-sig" if _is_utf8(path) else "latin-1"
        with path.open(newline="", encoding=encoding) as file:
            reader = csv.reader(file)
            for i, row in enumerate(reader):
                where = f"{path}, line {reader.line_num}"
                if not row:
                    continue
                if any(
                    "\n" in cell.rstrip() for cell in row
                ):  # the published files have one line for each tweet
                    raise DataError(
                        f"{where}: a quote before it was left open: close it, or get the file again"
                    )
                if len(row) != COLUMNS:
                    raise DataError(
                        f"{where}: {len(row)} columns, not Sentiment140's six (polarity, id, date, "
                        f"query, user, text): get it again ({Sent140.page})"
                    )
                if i == 0 and not row[0].strip().isdecimal():
                    continue  # a header
                yield where, row
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): correct data.root") from None
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: not a CSV file ({error}): get it again"
        ) from None


def _is_utf8(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            while file.read(2**20):
                pass
    except UnicodeDecodeError:
        return False
    return True


def _chosen_users(
    users: NDArray[np.int64], settings: Sent140.Settings, path: Path
) -> NDArray[np.int64]:
    """Return the users that take part, shuffled, always alike; more tweets begin with the users of
    fewer.
    """
    counts = np.bincount(users)
    enough = np.flatnonzero(counts >= settings.min_per_user)
    if not len(enough):
        raise DataError(
            f"{path}: no user has {settings.min_per_user} tweets (the most has {counts.max()}): "
            "lower data.min_per_user"
        )
    order = stream(0, "sent140 users").permutation(enough)
    if settings.tweets is None:
        return order
    together = np.cumsum(counts[order])
    if together[-1] < settings.tweets:
        raise DataError(
            f"{path}: data.tweets = {settings.tweets}, but there are {together[-1]}: lower it, or "
            "leave it out"
        )
    return order[: int(np.searchsorted(together, settings.tweets)) + 1]


class WordIds(NamedTuple):
    """What :func:`look_up` returns."""

    ids: NDArray[np.int32]
    table: NDArray[np.float16]


def split_words(text: str) -> list[str]:
    """Return LEAF's words of a text, in lower case; ``&quot;`` and the like are read as what they
    stand for.
    """
    return re.findall(r"[\w']+|[.,!?;]", html.unescape(text).lower())


def look_up(texts: Sequence[str], vectors: str, words: int) -> WordIds:
    """Return which vectors stand for each text."""
    split = [split_words(text) for text in texts]
    if vectors == "minilm":
        pieces, table = _minilm(split)
    else:
        places, table = read_vectors(Path(vectors).expanduser(), set(chain.from_iterable(split)))
        pieces = [
            [places[word] for word in words_of_text if word in places] for words_of_text in split
        ]
    has_vector = np.asarray(table.any(axis=1))
    ids = np.full((len(texts), words), PADDING, dtype=np.int32)
    for i, words_of_text in enumerate(pieces):
        kept = [piece for piece in words_of_text if has_vector[piece]][:words]
        ids[i, : len(kept)] = kept
    return WordIds(ids, table)


def sequences(looked_up: WordIds) -> NDArray[np.float16]:
    """Return texts as sequences of vectors: a memory map of a file in the cache folder, made on the
    first call.
    """
    ids, table = looked_up
    used, places = np.unique(ids, return_inverse=True)
    places = places.reshape(ids.shape)
    rows = np.where(
        used[:, None] == PADDING, np.float16(0), table[used]
    )  # PADDING is the last row meanwhile

    def produce() -> Iterator[NDArray[np.float16]]:
        for start in range(0, len(ids), BLOCK):
            yield rows[places[start : start + BLOCK]]

    depends = [array_digest(ids), array_digest(rows)]
    return cached_blocks(
        "words", depends, (*ids.shape, table.shape[1]), produce, np.float16, "looking up words"
    )


def _minilm(split: Sequence[Sequence[str]]) -> tuple[list[list[int]], NDArray[np.float16]]:
    """Return the ids of the word pieces of each text, and the table of all pieces."""
    folder = minilm_folder("data.vectors =")
    from safetensors import safe_open
    from tokenizers import Tokenizer  # not through transformers, which takes seconds to import

    with safe_open(folder / "model.safetensors", "numpy") as file:
        table = file.get_tensor(TABLE).astype(np.float16)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    unknown = tokenizer.token_to_id("[UNK]")
    # one by one: batches would start threads, which processes that are forked later are warned of
    encodings = (tokenizer.encode(" ".join(words), add_special_tokens=False) for words in split)
    return [[piece for piece in encoding.ids if piece != unknown] for encoding in encodings], table
