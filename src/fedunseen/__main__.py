"""``fedunseen`` and ``python -m fedunseen``: the command, in a process of its own."""

import sys


def command() -> None:
    """Run the command; Ctrl-C ends it with exit code 130 and no traceback."""
    try:
        from fedunseen.cli.main import main  # here, because Ctrl-C may come while it is loaded

        main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    command()
