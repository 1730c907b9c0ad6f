import gc
import platform
import weakref

import pytest
import torch

from fedunseen.core.memory import keep_pages, libraries_set_aside


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the GNU C library can keep pages")
def test_pages_are_kept_and_given_back():
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    size = 256 * 2**20
    before = resident()
    with keep_pages() as kept:
        assert kept
        del_me = torch.ones(size // 4)
        del del_me
        assert resident() - before > size // 2  # freed, yet still with the process
    assert resident() - before < size // 2


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    with keep_pages() as kept:
        assert kept is False


def test_garbage_of_the_block_is_found_and_what_was_there_before_is_set_aside_and_comes_back():
    class Node:
        pass

    def cycle():
        one = Node()
        one.itself = one
        return weakref.ref(one)

    gc.collect()
    with libraries_set_aside():
        before = gc.get_freeze_count()
        assert before > 1000
        assert not any(one is Node for one in gc.get_objects())
        later = [[] for _ in range(10_000)]
        with libraries_set_aside():  # objects set aside may end meanwhile, but none join them
            assert gc.get_freeze_count() < before + len(later) // 2
        gone = cycle()
        gc.collect()
        assert gone() is None
        assert 1000 < gc.get_freeze_count() < before + len(later) // 2
    assert gc.get_freeze_count() == 0
    assert any(one is Node for one in gc.get_objects())
