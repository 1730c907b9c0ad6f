"""A disk that is full, and mutations of all that is read: one sentence each, nothing half-written, nothing hangs."""

import json
from pathlib import Path

import pytest

from limits import refused, under_limits

FUZZ = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"


@pytest.mark.parametrize("count", [240, pytest.param(2000, marks=pytest.mark.slow)])
def test_mutations(count):
    done = under_limits(
        "--count", count, code=f"exec(compile(open({str(FUZZ)!r}).read(), 'fuzz', 'exec'))", seconds=900
    )
    told = json.loads(done.stdout)
    assert told["wrong"] == []
    assert sum(told["counts"].values()) == count
    assert told["peak_mib"] < 1536  # with all libraries


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (("run", "digit-pairs-gaussian", "--out", "made"), "model.safetensors"),
        (("data", "deal", "digit-pairs", "--out", "made"), "features.npz"),
    ],
)
def test_a_full_disk(tmp_path, words, left):
    """Files of more than 2 KiB cannot be written, as on a disk that is full."""
    sentence = refused(*words, folder=tmp_path, file_size=2048)
    assert "writ" in sentence
    assert not list((tmp_path / "made").rglob(left))
    assert not list(tmp_path.rglob("*.tmp"))


def test_standard_output_on_a_full_disk(tmp_path):
    code = "import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); sys.argv = ['fedunseen', 'presets']\n"
    done = under_limits(code=code + "from fedunseen.cli.main import main; main()", folder=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
