import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedunseen.core import files
from fedunseen.core.errors import RunDirectoryError
from fedunseen.core.files import write_text

LINKS = ("there", "dangling")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file.txt"
    write_text(path, "old")

    def fail():
        with files.replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])


def test_links_keep_their_target_and_pipes_and_our_output_receive_what_is_written(tmp_path):
    (tmp_path / "target").mkdir()
    for name in LINKS:
        (tmp_path / name).symlink_to(Path("target") / name)
    write_text(tmp_path / "target" / "there", "old")
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = tmp_path / "log"
    log.write_text("before\n")
    saved, number = os.dup(2), os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(number, 2)
    try:
        for path in (tmp_path / "there", tmp_path / "dangling", pipe, log):
            write_text(path, f"{path.name}\n", follow=True)
        os.write(2, b"after\n")
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(number)
    assert (os.read(reader, 99), stat.S_ISFIFO(pipe.stat().st_mode)) == (b"pipe\n", True)
    os.close(reader)
    links = {
        name: ((tmp_path / name).is_symlink(), (tmp_path / "target" / name).read_text())
        for name in LINKS
    }
    assert links == {name: (True, f"{name}\n") for name in LINKS}
    assert log.read_text() == "before\nlog\nafter\n"
    assert {path.name for path in tmp_path.rglob("*")} == {*LINKS, "target", "pipe", "log"}


def test_a_terminal_receives_what_is_written(tmp_path):
    terminal, device = os.openpty()
    os.set_blocking(terminal, False)
    (tmp_path / "link").symlink_to(os.ttyname(device))
    try:
        write_text(tmp_path / "link", "row\n", follow=True)
        assert (os.read(terminal, 99), (tmp_path / "link").is_symlink()) == (b"row\r\n", True)
    finally:
        os.close(device)
        os.close(terminal)


def test_tensors_and_arrays_are_read_back_as_they_were(tmp_path):
    shared = torch.arange(6.0).reshape(2, 3)
    tensors = {
        "one": shared,
        "same": shared,  # safetensors itself refuses two names for one tensor
        "turned": shared.T,
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
    }
    arrays = {"array": np.array([[1.0, 2.0], [3.0, 4.0]]).T, "flag": np.array([True])}
    files.write_tensors(tmp_path / "t.safetensors", tensors | arrays)
    expected = tensors | {name: torch.from_numpy(array) for name, array in arrays.items()}
    torch.testing.assert_close(load_file(tmp_path / "t.safetensors"), expected, rtol=0, atol=0)


def test_tensors_are_written_from_where_they_are(tmp_path, monkeypatch):
    written = {}
    monkeypatch.setattr("safetensors.torch.save_file", lambda tensors, *_: written.update(tensors))
    one = torch.arange(6.0)
    tensors = {"one": one, "same": one, "alone": torch.ones(3), "part": torch.ones(4)[1:]}
    files.write_tensors(tmp_path / "t.safetensors", tensors)
    copied = {name for name in tensors if written[name].data_ptr() != tensors[name].data_ptr()}
    assert copied == {"same"}


def test_the_cache_folder_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDUNSEEN_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for variable, path in (
        ("HOME", ".cache/fedunseen"),
        ("XDG_CACHE_HOME", "fedunseen"),
        ("FEDUNSEEN_CACHE", ""),
    ):
        monkeypatch.setenv(variable, str(tmp_path / variable))
        assert files.cache_folder() == tmp_path / variable / path


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def write(fails):
        with files.whole_folder(tmp_path / "new", tmp_path / "old", ("left",)) as folder:
            write_text(folder / "more", "2")
            assert not fails, "half-way"

    write_text(tmp_path / "old" / "kept", "1")
    write_text(tmp_path / "old" / "left", "3")
    with pytest.raises(AssertionError, match="half-way"):
        write(True)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    files.free_folder(tmp_path / "new").mkdir()
    write(False)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["kept", "more"]


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_an_occupied_folder_is_refused(tmp_path, kind):
    place = tmp_path / "place"
    if kind == "folder":
        write_text(place / ".hidden", "")
    elif kind == "file":
        place.touch()
    else:
        place.symlink_to(tmp_path / "nowhere")
    with pytest.raises(RunDirectoryError, match=r"place is not an empty folder: empty it$"):
        files.free_folder(place, "empty it")
    assert files.is_occupied(place, lambda name: name == ".hidden") == (kind != "folder")
