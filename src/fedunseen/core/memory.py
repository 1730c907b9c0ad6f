"""Memory: a sentence where there is too little, and two reasons why a round of many clients is fast.

A heap that is never trimmed keeps the pages of large gradients from step to step. Libraries, which are never garbage,
are kept from Python's garbage collection.
"""

import gc
import mmap
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fedunseen.core.errors import FedUnseenError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4


@contextmanager
def enough_memory(remedy: str) -> Iterator[None]:
    """Turn an allocation that fails into one sentence."""
    try:
        yield
    except MemoryError as error:
        what = str(error)
    except RuntimeError as error:
        what = str(error)
        # PyTorch, which is not loaded here, has an exception of its own for devices, and none for the CPU.
        if type(error).__name__ != "OutOfMemoryError" and "allocate memory" not in what:
            raise
    else:
        return
    task = " ".join(what.split())[:120]
    raise FedUnseenError(f"this takes more memory than there is{f' ({task})' if task else ''}: {remedy}")


@contextmanager
def keep_pages() -> Iterator[bool]:
    """Keep freed memory within the process, and give it back at the end; from then on, keep up to 64 MiB of it."""
    if platform.libc_ver()[0] != "glibc":
        yield False
        return
    import ctypes

    libc = ctypes.CDLL(None)
    # No block is mapped on its own (M_MMAP_MAX 0; older releases refuse an M_MMAP_THRESHOLD above 32 MiB), and the top
    # of the heap is never trimmed (2 GiB - 1 is the most).
    kept = bool(libc.mallopt(_M_MMAP_MAX, 0)) and bool(libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
    try:
        yield kept
    finally:
        # Any of these calls ends glibc's own adaptation of the thresholds, so set them to where it would end up.
        libc.mallopt(_M_MMAP_MAX, 65536)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)
        libc.mallopt(_M_TRIM_THRESHOLD, 64 * 2**20)
        libc.malloc_trim(0)


class Mapped(np.memmap[Any, Any]):
    """A copy-on-write memory map that is never written to, so that its pages may be freed."""


def free_pages(array: object) -> None:
    """Return the pages of an array on disk (``numpy.memmap``, or a view of one) to the system, where it takes them.

    They count as this process's memory until they are freed. Freed pages of a copy-on-write map lose what was written
    to them: of such maps, only a :class:`Mapped` is freed.
    """
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    pages, advice = getattr(array, "_mmap", None), getattr(mmap, "MADV_DONTNEED", None)
    written = getattr(array, "mode", "") == "c" and not isinstance(array, Mapped)
    if pages is not None and advice is not None and not written:
        pages.madvise(advice)


def peak_memory() -> int:
    """Return the most memory that this process has taken, in bytes; 0 where the system does not say."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@contextmanager
def libraries_set_aside() -> Iterator[None]:
    """Let Python look for garbage, but not among the objects that exist when this begins, until it ends."""
    if gc.get_freeze_count():
        yield
        return
    collects = gc.isenabled()  # not where the command loads libraries
    gc.freeze()
    gc.enable()
    try:
        yield
    finally:
        gc.unfreeze()
        if not collects:
            gc.disable()
