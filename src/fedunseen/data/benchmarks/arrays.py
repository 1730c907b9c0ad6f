"""The benchmark ``arrays``: samples that a Python program holds in memory, which no file can name."""

from __future__ import annotations

from typing import Any, Literal

from fedunseen.core.errors import DataError
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, DataSettings


class Arrays(BenchmarkLoader):
    """Arrays in memory: :func:`fedunseen.experiment.running.run` is given their benchmark."""

    class Settings(DataSettings):
        """``[data] name = "arrays"``."""

        name: Literal["arrays"] = "arrays"

    title = "Arrays of a Python program"
    page = "your own"
    mixed_units = True

    @classmethod
    def load(cls, settings: Any, seed: int) -> Benchmark:
        """Refuse: the arrays were those of another process."""
        raise DataError(
            "data.name = 'arrays' stands for arrays in memory, which are in no file: give them from Python, "
            "fedunseen.run(experiment, benchmark=Benchmark.from_arrays(...))"
        )
