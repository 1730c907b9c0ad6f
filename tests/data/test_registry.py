import importlib
from typing import get_args

import pytest

from fedunseen.data import BENCHMARKS, DataSettings


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_where_the_registry_says(name):
    module, kind = BENCHMARKS[name].split(":")
    benchmark = getattr(importlib.import_module(module), kind)
    assert issubclass(benchmark.Settings, DataSettings)
    assert get_args(benchmark.Settings.model_fields["name"].annotation) == (name,)
    assert callable(benchmark.load)
    assert callable(benchmark.read)
