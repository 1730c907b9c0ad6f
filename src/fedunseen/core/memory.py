"""Memory: a sentence where there is too little, pages of files, and libraries kept from garbage
collection.
"""

import ctypes
import gc
import mmap
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from fedunseen.core.errors import FedUnseenError


@contextmanager
def enough_memory(remedy: str) -> Iterator[None]:
    """Turn an allocation that fails into one sentence."""
    try:
        yield
    except MemoryError as error:
        message = str(error)
    except RuntimeError as error:
        message = str(error)
        # PyTorch, which is not loaded here, has an exception of its own for devices, and none for
        # the CPU.
        if type(error).__name__ != "OutOfMemoryError" and "allocate memory" not in message:
            raise
    else:
        return
    task = " ".join(message.split())[:120]
    raise FedUnseenError(
        f"this takes more memory than there is{f' ({task})' if task else ''}: {remedy}"
    )


class Mapped(np.memmap[Any, Any]):
    """A copy-on-write memory map that is never written to, so that its pages may be freed."""


def free_pages(array: object) -> None:
    """Return the pages of an array on disk (``numpy.memmap``, or a view of one) to the system,
    where it takes them.

    They count as this process's memory until they are freed. Freed pages of a copy-on-write map
    lose what was written to them: of such maps, only a :class:`Mapped` is freed.
    """
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    pages = getattr(array, "_mmap", None)
    advice = getattr(mmap, "MADV_DONTNEED", None)
    written = getattr(array, "mode", "") == "c" and not isinstance(array, Mapped)
    if pages is not None and advice is not None and not written:
        pages.madvise(advice)


@cache
def _trim() -> Callable[[int], int]:
    """Return glibc's ``malloc_trim``; where there is none, what does nothing."""
    if not sys.platform.startswith("linux"):
        return lambda spare: 0
    trim: Callable[[int], int] = getattr(ctypes.CDLL(None), "malloc_trim", lambda spare: 0)
    return trim


def free_heap() -> None:
    """Return to the system what large arrays that are gone have left on the heap, where its C
    library does so.

    Small ones that stay lie in the holes, so that the next large ones do not fit and the heap
    grows. It takes some milliseconds.
    """
    _trim()(0)


def peak_memory() -> int:
    """Return the most memory that this process has taken, in bytes; 0 where the system does not
    say.
    """
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


@contextmanager
def libraries_set_aside() -> Iterator[None]:
    """Keep Python's search for garbage from the objects that exist when this begins, until it
    ends.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
