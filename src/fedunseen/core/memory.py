"""Keep the allocator's pages: why a batched round is fast.

Parameters, gradients and momenta of a whole round are tens of megabytes. The C library returns blocks of that size
to the system as soon as they are freed. Then every gradient of every step faults in fresh zeroed pages, which costs
more than the arithmetic. With a heap that is never trimmed, each step reuses the pages of the last one.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["keep_pages"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4


@contextmanager
def keep_pages() -> Iterator[bool]:
    """Keep freed memory within the process while training runs, and give it back at the end.

    Yields whether that worked: only the GNU C library has these options; elsewhere training is merely slower.
    """
    if platform.libc_ver()[0] != "glibc":
        yield False
        return
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
