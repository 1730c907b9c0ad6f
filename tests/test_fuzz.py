"""Mutated files and settings: each is read, or one sentence; never a traceback, and never a huge allocation.

Which mutations are tried is fixed: the failure names the number, which ``benchmarks/fuzz.py`` repeats.
"""

import importlib.util
import sys
import zipfile
from pathlib import Path

import pytest

from fedunseen.data.benchmarks.folder import Folder

SPEC = importlib.util.spec_from_file_location("fuzz", Path(__file__).parents[1] / "benchmarks" / "fuzz.py")
fuzz = importlib.util.module_from_spec(SPEC)
sys.modules["fuzz"] = fuzz
SPEC.loader.exec_module(fuzz)

COUNTS = {"experiment": 200, "wild_setting": 40, "own_pictures": 60}  # of other kinds 300


@pytest.mark.slow
@pytest.mark.parametrize("kind", fuzz.KINDS, ids=lambda kind: kind.__name__)
def test_mutations_are_read_or_refused(kind, one_thread):
    numbers = range(COUNTS.get(kind.__name__, 300))
    with fuzz.bounded_memory(fuzz.MEMORY):
        outcomes = {number: fuzz.attempt(number, 34, kind) for number in numbers}
    assert {n: outcome for n, outcome in outcomes.items() if outcome not in ("read", "refused")} == {}
    assert set(outcomes.values()) == {"read", "refused"}  # some mutations do no harm


def test_a_member_of_an_archive_that_is_not_asked_for_is_not_read(tmp_path, make_folder):
    """It says that it has 2 GiB, and its bytes are not what its checksum says: reading it would fail."""
    make_folder(tmp_path)
    path, whole = tmp_path / "features.npz", Folder.load(Folder.Settings(root=tmp_path), 0)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("unasked.npy", b"x" * 1000)
    content = bytearray(path.read_bytes())
    content[content.index(b"x" * 1000) + 500] = 0
    entry = content.rindex(b"unasked.npy") - 46  # in the central directory, with its size of 4 bytes at place 24
    content[entry + 24 : entry + 28] = (2**31).to_bytes(4, "little")
    path.write_bytes(content)
    assert Folder.load(Folder.Settings(root=tmp_path), 0).fingerprint() == whole.fingerprint()
    with zipfile.ZipFile(path) as archive, pytest.raises(zipfile.BadZipFile):
        archive.read("unasked.npy")
