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
    result = json.loads(done.stdout)
    assert (result["wrong"], sum(result["counts"].values())) == ([], count)
    assert result["peak_mib"] < 1536  # with all libraries
    kinds = {key.split()[0] for key in result["counts"]}
    assert count < 2000 or set(result["counts"]) == {f"{kind} {end}" for kind in kinds for end in ("read", "refused")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a finished run in it, and a table of a new class."""
    folder = tmp_path_factory.mktemp("disk")
    assert under_limits("run", "digit-pairs-gaussian", "--out", "run", folder=folder).returncode == 0
    head, first = (folder / "run" / "classes.csv").read_text().splitlines()[:2]
    cells = dict(zip(head.split(","), first.split(","), strict=True)) | {"name": "new", "split": "unseen"}
    (folder / "new.csv").write_text("\n".join([",".join(cells), ",".join(cells.values())]) + "\n")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("run", "digit-pairs-gaussian", "--out", "made"),
        ("data", "deal", "digit-pairs", "--out", "made"),
        ("export", "run", "--csv", "made"),
        ("export", "run", "--out", "made"),
        ("learn", "run", "--classes", "new.csv", "--out", "made"),
    ],
    ids=" ".join,
)
def test_a_full_disk(finished, tmp_path, words):
    """Files of more than 2 KiB cannot be written, as on a disk that is full."""
    (tmp_path / "run").symlink_to(finished / "run")
    (tmp_path / "new.csv").symlink_to(finished / "new.csv")
    sentence = refused(*words, folder=tmp_path, file_size=2048)
    assert "made" in sentence
    assert "writ" in sentence
    left = {path.name for path in tmp_path.iterdir()} - {"run", "new.csv"}
    assert left <= ({"made"} if words[0] == "run" or "--csv" in words else set())
    assert not list(tmp_path.rglob("*.tmp")) + list(tmp_path.rglob("model.*"))
    for table in tmp_path.glob("made/*.csv"):
        assert table.read_text().endswith("\n")


def test_standard_output_on_a_full_disk(tmp_path):
    code = "import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); sys.argv = ['fedunseen', 'presets']\n"
    done = under_limits(code=code + "from fedunseen.cli.main import main; main()", folder=tmp_path)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
