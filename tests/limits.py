"""Commands under limits of memory and time, for input that means harm."""

import os
import resource
import subprocess
import sys
from pathlib import Path

from processes import environment

SECONDS = 120
"""Of the clock: what hangs or takes minutes fails, and a machine that is busy does not."""


def under_limits(*words, code=None, memory=2**30, file_size=None, folder=None, seconds=SECONDS, **more):
    """Run ``fedunseen WORDS``, or ``python -c CODE WORDS``, within ``memory`` bytes beyond what its imports map.

    Args:
        words: of the command line.
        code: Python; None for the command.
        memory: bytes of address space beyond 3 GiB, which PyTorch's libraries take.
        file_size: bytes of the largest file that may be written; a longer one fails as on a full disk. None: any.
        folder: where it runs.
        seconds: after which it is taken for hung.
        more: of the environment.
    """

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (memory + 3 * 2**30,) * 2)
        if file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size,) * 2)

    start = ["-m", "fedunseen"] if code is None else ["-c", code]
    done = subprocess.run(
        [sys.executable, *start, *map(str, words)], preexec_fn=limit, timeout=seconds, cwd=folder or Path.cwd(),
        capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
        env={**environment(), "GOMP_SPINCOUNT": "0", **{key: os.fspath(value) for key, value in more.items()}},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


def refused(*words, **how):
    """Return the one sentence with which a command refuses what it gets."""
    done = under_limits(*words, **how)
    assert done.returncode == 2, (done.returncode, done.stdout[-500:], done.stderr[-500:])
    lines = done.stderr.strip().splitlines()
    assert [line[:7] for line in lines] == ["error: "], done.stderr[-2000:]
    return lines[0]
