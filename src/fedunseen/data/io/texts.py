"""Texts as samples: what can be read, and what a sentence encoder makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError

MOST_BYTES = 2**20
"""Bytes of a text: an encoder reads a few hundred words."""
_SHOWN = 60  # characters of a text in a message


class Fault(NamedTuple):
    """Why a text cannot be read, as the end of a sentence, what to do, and the code."""

    problem: str
    remedy: str
    code: str


def text_fault(text: str) -> Fault | None:
    """Return what is wrong with a text in which there is nothing to read, or too much."""
    if not any(letter.isalnum() for letter in text):
        shown = repr(text.strip()[:_SHOWN])
        return Fault(
            f"has no letter and no digit ({shown})",
            "leave it out, or write something",
            "text-empty",
        )
    if len(text) > MOST_BYTES:
        return Fault(
            f"has {len(text):,} characters", f"give at most {MOST_BYTES:,}", "text-too-long"
        )
    return None


def check_text(text: str, where: str) -> None:
    """Refuse a text in which there is nothing to read, or too much."""
    if fault := text_fault(text):
        raise DataError(f"{where} {fault.problem}: {fault.remedy}", fault.code)


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        DataError: there is no such file, or it is empty, too long or not UTF-8.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): correct the path") from None
    if len(content) > MOST_BYTES:
        raise DataError(
            f"{path} is longer than {MOST_BYTES:,} bytes, and a text encoder reads a few hundred "
            "words: split it into texts of their own",
            "text-too-long",
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8: save it as UTF-8", "text-encoding") from None
    check_text(text, str(path))
    return text


def encode_texts(texts: Sequence[str], encoder: str) -> NDArray[np.float32]:
    """Return what a sentence encoder makes of texts (n, d), one at a time: its bits do not depend
    on who holds what.
    """
    from fedunseen.encoders.text import embed_texts  # takes seconds to import

    return embed_texts(list(texts), encoder, apart=True)
