"""``fedunseen`` and ``python -m fedunseen``: the command, in a process of its own."""

import atexit
import os
import sys
import threading


def command() -> None:
    """Run the command and end its process at once.

    Freeing all that PyTorch has loaded takes as long as a twelfth of a short run. Functions of ``atexit`` are called,
    and where threads are to be waited for, or output cannot be written, Python ends as usual.
    """
    status: object = 0
    try:
        from fedunseen.cli.main import main  # here, because Ctrl-C may come while it is loaded

        main()
    except SystemExit as end:
        status = end.code
    except KeyboardInterrupt:
        status = 130
    if isinstance(status, int) and all(t.daemon or t is threading.main_thread() for t in threading.enumerate()):
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
