"""``fedunseen`` and ``python -m fedunseen``: the command, in a process of its own."""

import os
import sys


def command() -> None:
    """Run the command; Ctrl-C ends it with exit code 130 and no traceback.

    It starts again where names of files and arguments would not be read as UTF-8: a class has the
    same name on the disk and in files, which are UTF-8. The terminal keeps its encoding.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"  # its processes have it, too
        if sys.stdout is not None:
            os.environ.setdefault("PYTHONIOENCODING", sys.stdout.encoding)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    if hasattr(sys.stdout, "reconfigure"):
        # a letter that the terminal lacks becomes an escape, as it does on standard error
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from fedunseen.cli.main import main  # here, because Ctrl-C may come while it is loaded

        main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    command()
