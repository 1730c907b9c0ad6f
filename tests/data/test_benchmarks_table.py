import importlib
from typing import get_args

import pytest

from fedunseen.data import BENCHMARKS, BenchmarkLoader, DataSettings


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_where_the_registry_says(name):
    module, kind = BENCHMARKS[name].split(":")
    benchmark = getattr(importlib.import_module(module), kind)
    assert issubclass(benchmark.Settings, DataSettings)
    assert get_args(benchmark.Settings.model_fields["name"].annotation) == (name,)
    assert issubclass(benchmark, BenchmarkLoader)
    assert benchmark.title in benchmark.describe()
    assert benchmark.files() in benchmark.describe()
    assert ("root" in benchmark.Settings.model_fields) == (benchmark.files() != "nothing to download")
