"""A log file whose disk may be full."""

import contextlib
import logging
import sys
from logging.handlers import WatchedFileHandler
from pathlib import Path


class LogFile(WatchedFileHandler):
    """A log file that ends nothing where it cannot be written: one line on the other handlers says
    so, and its own lines are missing until there is room. One that was moved is opened anew.

    Args:
        path: the file.
        says: the logger that says so.
    """

    def __init__(self, path: Path, says: str = "fedunseen.federation") -> None:
        super().__init__(path, encoding="utf-8")
        self.says = says
        self.lacking = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        failed = self.lacking
        self.lacking = False
        try:
            super().emit(record)
        except OSError:  # where the file has to be opened anew
            self._lacks(failed)
            return
        if self.lacking:
            self._lacks(failed)

    def handleError(self, record: logging.LogRecord) -> None:
        """Take note that the disk is full; any other error is a mistake of ours."""
        if isinstance(sys.exc_info()[1], OSError):
            self.lacking = True
        else:
            super().handleError(record)

    def _lacks(self, failed: bool) -> None:
        self.lacking = True
        if not failed:
            words = "%s cannot be written: lines are missing there until its disk has room"
            logging.getLogger(self.says).warning(words, self.baseFilename)

    def close(self) -> None:
        """Close the file, without what found no room."""
        with contextlib.suppress(OSError):
            super().close()
