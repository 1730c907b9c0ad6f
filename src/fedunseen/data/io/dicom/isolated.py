"""Ask the process of ``decoder.py``, and start another one where it has died."""

import atexit
import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.data.io.dicom import decoder

_SECONDS = 60.0  # for one frame
_lock = threading.Lock()
_processes: dict[int, subprocess.Popen[bytes]] = {}  # by the process that started it


def decode_apart(elements: dict[str, Any], codestream: bytes) -> NDArray[Any]:
    """Return what :func:`fedunseen.data.io.dicom.decoder.decode` makes of a frame.

    Raises:
        ValueError: nothing, or the process died of it.
    """
    question = json.dumps({**elements, "bytes": len(codestream)}).encode() + b"\n" + codestream
    with _lock:
        process = _running()
        alarm = threading.Timer(_SECONDS, process.kill)
        alarm.start()
        try:
            said, pixels = _asked(_pipe(process.stdin), _pipe(process.stdout), question)
        except (OSError, ValueError):
            close()
            raise ValueError("the decoder died") from None
        except BaseException:  # an interrupt: what is left of the answer is not the next one's
            close()
            raise
        finally:
            alarm.cancel()
    if "error" in said:
        raise ValueError("the frame cannot be decoded")
    return np.frombuffer(pixels, dtype=said["dtype"]).reshape(said["shape"])


def _asked(questions: IO[bytes], answers: IO[bytes], question: bytes) -> tuple[Any, bytes]:
    questions.write(question)
    questions.flush()
    said = json.loads(answers.readline())
    pixels = answers.read(said["bytes"])
    if len(pixels) < said["bytes"]:
        raise ValueError("cut short")
    return said, pixels


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _running() -> subprocess.Popen[bytes]:
    process = _processes.get(os.getpid())
    if process is None or process.poll() is not None:
        close()
        process = subprocess.Popen(
            [sys.executable, "-P", str(Path(decoder.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        _processes[os.getpid()] = process
    return process


def close() -> None:
    """End the process that this one has started."""
    if (process := _processes.pop(os.getpid(), None)) is None:
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # what it did not read
            _pipe(pipe).close()


atexit.register(close)
