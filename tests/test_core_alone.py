"""The core works without the folders beside it: deleted in a copy, one by one and together."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedunseen

pytestmark = pytest.mark.slow

BESIDE = ("safety", "deploy", "research", "pages")
ROOT = Path(__file__).parents[1]
PICTURE = next((ROOT / "examples" / "digit-pairs").glob("*.png"))
FIRST = (
    "core",
    "data",
    "evaluation",
    "model",
    "test_losses.py",
    "test_metrics.py",
    "test_partitions.py",
)
"""Tests that pass without any one folder; without all of them every one of the core's own does."""
OWN_TESTS = (
    *FIRST,
    "confidence",
    "encoders",
    "federation",
    "methods",
    "strategies",
    "tasks",
    "test_estimator.py",
    "test_estimator_arguments.py",
    "test_statistics.py",
)
CLASSIFY = """
import numpy as np
from fedunseen import ZeroShotClassifier

animals = {"horse": [0, 1, 0], "tiger": [1, 0.8, 0], "seal": [0, 0, 1], "eel": [1, 0, 1], "zebra": [1, 1, 0.3]}
y = np.repeat(["horse", "tiger", "seal", "eel"], 10)
rng = np.random.default_rng(0)
X = np.array([animals[name] for name in y]) + 0.1 * rng.normal(size=(40, 3))
print(ZeroShotClassifier().fit(X, y, classes=animals).predict([animals["zebra"]], classes=["zebra", "seal"])[0])
"""


@pytest.fixture(params=[*BESIDE, "all"])
def without(request, tmp_path):
    """Return what runs Python on a copy of the package without a folder, and the folder's name."""
    package = tmp_path / "src" / "fedunseen"
    gone = BESIDE if request.param == "all" else (request.param,)
    shutil.copytree(
        Path(fedunseen.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    for folder in gone:
        shutil.rmtree(package / folder)

    def python(*words):
        return subprocess.run(
            [sys.executable, *map(str, words)],
            env={**os.environ, "PYTHONPATH": str(package.parent)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    return python, gone


def refused(done):
    """Return the sentence of a command that was refused; a traceback is not one."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_the_core_trains_predicts_and_refuses_what_is_missing(without):
    python, gone = without
    assert python("-c", "import fedunseen").returncode == 0
    helped = python("-m", "fedunseen", "--help")
    assert helped.returncode == 0, helped.stderr
    assert ("host" in helped.stdout) == ("deploy" not in gone)
    done = python("-m", "fedunseen", "run", "digit-pairs-gaussian", "--out", "run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["zsl"] > 90
    assert ("there is no report" in done.stderr) == ("pages" in gone)
    ranked = python("-m", "fedunseen", "predict", "run", PICTURE, "--top", "1", "--json")
    assert ranked.returncode == 0, ranked.stderr
    assert PICTURE.stem in ranked.stdout
    classified = python("-c", CLASSIFY)
    assert classified.stdout.strip() == "zebra", classified.stderr
    keys = {
        "safety": ("defence.name=median", "defence"),
        "deploy": ("privacy.aggregation=masked", "aggregation"),
        "research": ("attack.name=nan", "attack"),
    }
    for folder, (key, name) in keys.items():
        if folder in gone:
            words = ("-m", "fedunseen", "run", "digit-pairs", "--set", key, "--out", "refused")
            assert name in refused(python(*words))


def test_the_core_s_own_tests_pass(without):
    python, gone = without
    names = OWN_TESTS if len(gone) == len(BESIDE) else FIRST
    places = [ROOT / "tests" / name for name in names]
    assert all(place.exists() for place in places)
    done = python("-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *places)
    assert done.returncode == 0, done.stdout[-3000:]
