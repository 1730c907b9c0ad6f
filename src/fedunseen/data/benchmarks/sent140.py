"""The benchmark ``sent140`` (Go et al. 2009; LEAF; FedFSL): is a tweet negative or positive, from few examples.

The answers are always the same, and it is the *users* that are new: the class space has a class for each answer and
group of users, ``Benchmark.answers`` says what each stands for. 0.6 / 0.2 / 0.2 of the users are for training,
validation and tests. Neutral tweets, and those without a word that has a vector, are left out and counted.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedunseen.core.errors import DataError
from fedunseen.core.random import stream
from fedunseen.data.benchmark import DataSettings
from fedunseen.data.benchmarks.few_shot import FewShotBenchmark, Samples
from fedunseen.data.io.csv_io import read_lines
from fedunseen.data.io.word_sequences import PADDING, WordIds, look_up, sequences

PUBLISHED = ("training.1600000.processed.noemoticon.csv", "testdata.manual.2009.06.14.csv")
NEGATIVE, NEUTRAL, POSITIVE = "0", "2", "4"
COLUMNS = 6
GROUPS = ("", " (validation users)", " (new users)")
SHARES = (0.6, 0.8)  # of the users: up to the first for training, up to the second for validation
SHOWN = 60  # characters of a tweet in a message
WORDS = 20


class Sent140(FewShotBenchmark):
    """Tweets as sequences of word vectors, few-shot: negative or positive, of new users."""

    title = "Sentiment140: negative or positive tweets, few-shot, users disjoint"
    page = "http://help.sentiment140.com/for-students"
    layout = f"{PUBLISHED[0]}, {PUBLISHED[1]}; or one CSV file of its six columns"
    folders = ("sentiment140", "sent140", "Sentiment140", "trainingandtestdata")

    class Settings(DataSettings):
        """``[data] name = "sent140"``."""

        name: Literal["sent140"] = "sent140"
        root: Path
        """The folder of Sentiment140's two CSV files, or a CSV file of its six columns."""
        tweets: int | None = Field(None, ge=1)
        """Take whole users, drawn once for all runs, until so many tweets are together; unset takes all."""
        min_per_user: int = Field(1, ge=1)
        """Leave out users with fewer tweets, negative and positive ones together."""
        words: int = Field(WORDS, ge=1, le=200)
        """The first so many words of a tweet that have a vector are its sample."""
        vectors: str = "minilm"
        """`"minilm"` (word pieces, 384-d, offline), or a file of word vectors as text, such as `glove.6B.300d.txt`."""

    @classmethod
    def samples(cls, settings: Settings) -> Samples:
        """Read the tweets, features (n, words, width); see :meth:`FewShotBenchmark.samples`."""
        files = _files(settings.root.expanduser())
        texts, positive, authors = _read(files)
        order = _chosen_users(authors, settings, files[0])
        group_of = np.full(int(authors.max()) + 1, -1)
        group_of[order] = np.searchsorted(np.rint(np.array(SHARES) * len(order)), np.arange(len(order)), side="right")
        kept = np.flatnonzero(group_of[authors] >= 0)
        words = look_up([texts[i] for i in kept.tolist()], settings.vectors, settings.words)
        empty = words.ids[:, 0] == PADDING
        if empty.all():
            raise DataError(
                f"{files[0]}: none of {len(kept):,} tweets has a word with a vector in {settings.vectors}: name other "
                "vectors in data.vectors"
            )
        if empty.any():
            warnings.warn(
                f"sent140: {int(empty.sum()):,} of {len(kept):,} tweets are left out: none of their words has a vector",
                stacklevel=3,
            )
        kept = kept[~empty]
        users = authors[kept]
        names = [answer + group for group in GROUPS for answer in ("negative", "positive")]
        return Samples(
            "sent140",
            names,
            roles=((0, 1), (2, 3), (4, 5)),
            features=sequences(WordIds(words.ids[~empty], words.table)),
            labels=2 * group_of[users] + positive[kept],
            users=np.unique(users, return_inverse=True)[1].astype(np.int64),
            answers=np.arange(len(names)) % 2,
            remedy=": take more tweets (data.tweets) or more users (data.min_per_user)",
        )

    @staticmethod
    def read_texts(texts: Sequence[str], settings: Settings) -> NDArray[np.float16]:
        """Turn texts into samples, as the benchmark's own are made."""
        if not texts:
            raise DataError("there is no text to read: give at least one")
        words = look_up(texts, settings.vectors, settings.words)
        empty = np.flatnonzero(words.ids[:, 0] == PADDING)
        if len(empty):
            first = int(empty[0])
            raise DataError(
                f"{len(empty)} of {len(texts)} texts have no word with a vector, the first is text {first + 1} "
                f"({texts[first][:SHOWN]!r}): leave them out"
            )
        return np.where(words.ids[:, :, None] == PADDING, np.float16(0), words.table[words.ids])

    @classmethod
    def read(cls, path: Path, settings: Settings) -> NDArray[np.float16]:
        """Read a text file, a tweet a line."""
        lines = read_lines(Path(path), "save it in UTF-8, a tweet a line", blank=True)
        if "" in lines:
            raise DataError(f"{path}: a line between tweets is empty: leave it out, so that every line is a tweet")
        return cls.read_texts(lines, settings)

    @classmethod
    def holds(cls, folder: Path) -> bool:
        """Say whether a folder has the published CSV files, or one that looks like them."""
        return bool(_csv_files(folder))


def _files(root: Path) -> list[Path]:
    """Return the CSV files: ``root`` itself, or what lies in it or in a folder of the usual name there."""
    if root.is_file():
        return [root]
    files = _csv_files(Sent140.home(root))
    if not files:
        raise DataError(
            f"{root} holds no Sentiment140: unpack trainingandtestdata.zip ({Sent140.page}) there, or name a CSV file "
            "of its six columns in data.root"
        )
    return files


def _csv_files(folder: Path) -> list[Path]:
    """Return the published files in a folder, or its only CSV file if that looks like one of them."""
    published = [folder / name for name in PUBLISHED if (folder / name).is_file()]
    if published:
        return published
    others = sorted(path for path in folder.glob("*.csv") if path.is_file()) if folder.is_dir() else []
    return others if len(others) == 1 and _looks_right(others[0]) else []


def _looks_right(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            lines = file.read(4096).decode("latin-1").splitlines()[:2]
        rows = list(csv.reader(lines))
    except (OSError, csv.Error):
        return False
    return bool(rows) and all(len(row) == COLUMNS for row in rows) and rows[-1][0] in (NEGATIVE, NEUTRAL, POSITIVE)


def _read(files: Sequence[Path]) -> tuple[list[str], NDArray[np.bool_], NDArray[np.int64]]:
    """Return the texts of negative and positive tweets, which are positive, and who wrote each, counted from 0."""
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
                raise DataError(f"{where}: the polarity {polarity[:SHOWN]!r} is none of 0, 2 and 4: fix the line")
            texts.append(text)
            positive.append(polarity == POSITIVE)
            users.append(user)
    if not texts:
        raise DataError(f"{files[0]} has no negative or positive tweet: get it again ({Sent140.page})")
    if neutral:
        warnings.warn(f"sent140: {neutral:,} neutral tweets are left out", stacklevel=4)
    return texts, np.array(positive), np.unique(users, return_inverse=True)[1].astype(np.int64)


def _rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield where each tweet stands, for messages, and its six cells."""
    # the published files are in Latin-1, copies of them often in UTF-8; what is not UTF-8 is known before it is read
    try:
        encoding = "utf-8-sig" if _is_utf8(path) else "latin-1"
        with path.open(newline="", encoding=encoding) as file:
            reader = csv.reader(file)
            for i, row in enumerate(reader):
                where = f"{path}, line {reader.line_num}"
                if not row:
                    continue
                if any("\n" in cell.rstrip() for cell in row):  # the published files have one line for each tweet
                    raise DataError(f"{where}: a quote before it was left open: close it, or get the file again")
                if len(row) != COLUMNS:
                    raise DataError(
                        f"{where}: {len(row)} columns, not Sentiment140's six (polarity, id, date, query, user, text): "
                        f"get it again ({Sent140.page})"
                    )
                if i == 0 and not row[0].strip().isdecimal():
                    continue  # a header
                yield where, row
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): correct data.root") from None
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not a CSV file ({error}): get it again") from None


def _is_utf8(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            while file.read(2**20):
                pass
    except UnicodeDecodeError:
        return False
    return True


def _chosen_users(users: NDArray[np.int64], settings: Sent140.Settings, path: Path) -> NDArray[np.int64]:
    """Return the users that take part, shuffled, always alike; more tweets begin with the users of fewer."""
    counts = np.bincount(users)
    enough = np.flatnonzero(counts >= settings.min_per_user)
    if not len(enough):
        raise DataError(
            f"{path}: no user has {settings.min_per_user} tweets (the most has {counts.max()}): lower data.min_per_user"
        )
    order = stream(0, "sent140 users").permutation(enough)
    if settings.tweets is None:
        return order
    together = np.cumsum(counts[order])
    if together[-1] < settings.tweets:
        raise DataError(
            f"{path}: data.tweets = {settings.tweets}, but there are {together[-1]}: lower it, or leave it out"
        )
    return order[: int(np.searchsorted(together, settings.tweets)) + 1]
