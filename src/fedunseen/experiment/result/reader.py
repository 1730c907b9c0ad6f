"""How a finished run reads what it is asked about: as its benchmark does, and without a download.

Its directory may be a stranger's, and names the text encoder that reads texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.io.images import ImageBytes
from fedunseen.encoders.hub import local_files_only


@dataclass(frozen=True)
class RunReader:
    """A run's benchmark and its settings: all that the run reads goes through here."""

    loader: type[BenchmarkLoader]
    settings: Any

    @property
    def takes_texts(self) -> bool:
        """Whether a sample is a text."""
        return hasattr(self.loader, "read_texts")

    @property
    def takes_pictures(self) -> bool:
        """Whether it reads picture files."""
        reads = self.loader.read.__func__ is not BenchmarkLoader.read.__func__  # type: ignore[attr-defined]
        return reads and not self.takes_texts

    def read(self, file: Path | ImageBytes) -> NDArray[Any]:
        """Return the samples of a file, as :meth:`BenchmarkLoader.read`."""
        with local_files_only():
            return np.asarray(self.loader.read(file, self.settings))  # type: ignore[arg-type]

    def read_texts(self, texts: Sequence[str]) -> NDArray[Any]:
        """Return texts as samples (n, d)."""
        loader: Any = self.loader
        with local_files_only():
            return np.asarray(loader.read_texts(texts, self.settings))

    def tabular(self, source: Any) -> Iterator[NDArray[Any]] | None:
        """Return the samples of a table block by block, as :meth:`BenchmarkLoader.tabular`; None
        where there is none.
        """
        if not self.loader.reads_tables:
            return None
        blocks = self.loader.tabular(source, self.settings)
        return None if blocks is None else _without_download(blocks)

    def examples(self, source: Any) -> dict[str, NDArray[Any]] | None:
        """Return class name -> samples of a table, as :meth:`BenchmarkLoader.examples`; None where
        there is none.
        """
        if not self.loader.reads_tables:
            return None
        with local_files_only():
            return self.loader.examples(source, self.settings)


def _without_download(blocks: Iterator[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    while True:
        with local_files_only():
            block = next(blocks, None)
        if block is None:
            return
        yield block
