import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from fedunseen.core.errors import FedUnseenError
from fedunseen.core.memory import enough_memory, free_pages, libraries_set_aside


def in_memory(kind):
    """Return how many bytes of this process are in memory, of a kind that Linux counts."""
    return int(Path("/proc/self/status").read_text().split(f"{kind}:")[1].split()[0]) * 1024


@pytest.mark.slow
def test_garbage_of_the_block_is_found_and_what_was_there_before_is_set_aside_and_comes_back():
    class Node:
        def __init__(self):
            self.itself = self

    gc.collect()
    with libraries_set_aside():
        before = gc.get_freeze_count()
        assert before > 1000
        assert not any(one is Node for one in gc.get_objects())
        later = [[] for _ in range(10_000)]
        with libraries_set_aside():  # objects set aside may end meanwhile, but none join them
            assert gc.get_freeze_count() < before + len(later) // 2
        gone = weakref.ref(Node())
        gc.collect()
        assert gone() is None
        assert 1000 < gc.get_freeze_count() < before + len(later) // 2
    assert gc.get_freeze_count() == 0
    assert any(one is Node for one in gc.get_objects())


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="only Linux says how much memory is a file's"
)
def test_pages_of_a_view_of_a_file_are_given_back(tmp_path):
    np.save(tmp_path / "rows.npy", np.ones((2**15, 256), dtype=np.float32))  # 32 MiB
    rows = np.asarray(np.load(tmp_path / "rows.npy", mmap_mode="r"))[1:].T
    before = in_memory("RssFile")
    assert rows.sum() > 0
    assert in_memory("RssFile") - before > 24 * 2**20
    free_pages(rows)
    assert in_memory("RssFile") - before < 8 * 2**20
    free_pages(np.ones(3))  # of no file


@pytest.mark.parametrize("mode", ["c", "r+"])
def test_what_was_written_to_a_memory_map_stays(tmp_path, mode):
    np.save(tmp_path / "rows.npy", np.zeros((2000, 8), dtype=np.float32))
    rows = np.load(tmp_path / "rows.npy", mmap_mode=mode)
    rows[:] = 1
    free_pages(np.asarray(rows)[10:])
    assert (rows == 1).all()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no room"),
        torch.OutOfMemoryError("no room"),
        RuntimeError("you tried to allocate memory: no room"),
    ],
)
def test_too_little_memory_is_one_sentence(error):
    with (
        pytest.raises(FedUnseenError, match=r"more memory than there is \(.*no room\): take less"),
        enough_memory("take less"),
    ):
        raise error
    with pytest.raises(RuntimeError, match="something else"), enough_memory("take less"):
        raise RuntimeError("something else")
