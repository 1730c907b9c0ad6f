"""A small NumPy archive of very many members, or of one that its directory names many times: it is
refused before one is opened, and a late answer ends between two.
"""

import struct
import time
import zipfile

import numpy as np
import pytest

from fedunseen.core.arrays import (
    ARRAYS,
    array_names,
    declared_bytes,
    declared_shapes,
    listed_names,
    load_arrays,
)
from fedunseen.core.deadline import LateError, due
from fedunseen.data import read_features
from refusals import message_of

READERS = {
    "names": array_names,
    "bytes": declared_bytes,
    "shapes": declared_shapes,
    "arrays": lambda path: load_arrays(path, ["0"]),
    "features": read_features,
}


def archive(path, count):
    np.savez(path, **{str(i): np.ones((1, 2)) for i in range(count)})
    return path


def named_again(path, times):
    """Let the directory of an archive of one array name it so often."""
    whole = archive(path, 1).read_bytes()
    end = whole.rindex(b"PK\5\6")
    (start,) = struct.unpack("<I", whole[end + 16 : end + 20])
    entry = whole[start:end]
    directory = struct.pack("<HHHHIIH", 0, 0, times, times, times * len(entry), start, 0)
    path.write_bytes(whole[:start] + entry * times + b"PK\5\6" + directory)
    return path


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_many_arrays_are_refused_before_one_is_opened(tmp_path, monkeypatch, read):
    path = archive(tmp_path / "a.npz", ARRAYS)
    assert len(declared_shapes(path)) == ARRAYS
    many = archive(tmp_path / "b.npz", ARRAYS + 1)
    monkeypatch.setattr(zipfile.ZipFile, "open", None)
    assert message_of(read, many) == (
        f"{many} holds {ARRAYS + 1} arrays, more than {ARRAYS}: save those alone that are needed"
    )


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_an_array_that_is_named_twice_is_refused_before_it_is_opened(tmp_path, monkeypatch, read):
    read(named_again(tmp_path / "a.npz", 1))
    twice = named_again(tmp_path / "b.npz", 2)
    monkeypatch.setattr(zipfile.ZipFile, "open", None)
    assert "is damaged or not a NumPy file" in message_of(read, twice)


@pytest.mark.parametrize("name", ["bytes", "shapes", "arrays"])
def test_a_late_answer_ends_before_the_next_array_is_opened(tmp_path, monkeypatch, name):
    path = archive(tmp_path / "a.npz", 2)
    READERS[name](path)
    monkeypatch.setattr(zipfile.ZipFile, "open", None)
    with due(time.monotonic()), pytest.raises(LateError):
        READERS[name](path)


def test_names_of_arrays_are_shortened(tmp_path):
    np.savez(tmp_path / "a.npz", **{f"{i:02}{'x' * 1000}": np.ones(2) for i in range(20)})
    said = message_of(read_features, tmp_path / "a.npz")
    assert said.endswith(f", 11{'x' * 198}... and 8 more)")
    assert listed_names(archive(tmp_path / "b.npz", 2)) == "0, 1"
