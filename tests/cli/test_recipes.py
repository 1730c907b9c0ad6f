"""The recipes of docs/research/spread.md for other engines: the sums of one call."""

import re
from pathlib import Path

import pytest

from fedunseen import Statistics, load_run

PAGE = Path(__file__).parents[2] / "docs/research/spread.md"
pytestmark = pytest.mark.slow


def recipe(engine):
    return re.search(rf"```python {engine}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[1]


@pytest.fixture
def names(counting_run, run_samples):
    """What a recipe takes."""
    rows, labels = run_samples
    blocks = list(range(0, len(rows), 24))

    def read(block):
        return rows[block : block + 24], labels[block : block + 24].tolist()

    return {
        "Statistics": Statistics,
        "model": load_run(counting_run).model,
        "blocks": blocks,
        "read": read,
    }


def check(names, run_samples):
    rows, labels = run_samples
    whole = Statistics.plan(names["model"]).add(rows, labels.tolist())
    assert names["total"].sha256 == whole.sha256
    assert len(names["total"].marks) == 20


def test_dask(names, run_samples):
    distributed = pytest.importorskip("distributed", reason="pip install distributed")
    cluster = distributed.LocalCluster(
        1, threads_per_worker=2, processes=False, dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        names["client"] = client
        exec(recipe("dask"), names)
    check(names, run_samples)


def test_spark(names, run_samples, monkeypatch):
    pyspark = pytest.importorskip("pyspark", reason="pip install pyspark")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", __import__("sys").executable)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", __import__("sys").executable)
    settings = pyspark.SparkConf().set("spark.ui.enabled", "false").setMaster("local[2]")
    with pyspark.SparkContext(conf=settings.setAppName("recipe")) as context:
        names["context"] = context
        exec(recipe("spark"), names)
    check(names, run_samples)
