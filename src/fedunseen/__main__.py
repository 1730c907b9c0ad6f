"""``fedunseen`` and ``python -m fedunseen``: the command, in a process of its own."""

import atexit
import os
import sys
import threading

from fedunseen.cli.main import main


def command() -> None:
    """Run the command and end its process at once.

    Freeing all that PyTorch has loaded takes as long as a twelfth of a short run. Functions of ``atexit`` are called,
    and where other threads still run, or output cannot be written, Python ends as usual.
    """
    status: object = 0
    try:
        main()
    except SystemExit as end:
        status = end.code
    if isinstance(status, int) and threading.active_count() == 1:
        atexit._run_exitfuncs()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            sys.exit(status)
        os._exit(status)
    sys.exit(status)  # type: ignore[arg-type]


if __name__ == "__main__":
    command()
