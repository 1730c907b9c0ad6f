"""The report, one self-contained HTML page about a run, and its model card: made from its run
directory alone.
"""

from pathlib import Path

from fedunseen.experiment.result.run import Run
from fedunseen.pages.report.card import model_card, write_card
from fedunseen.pages.report.page import write_report

__all__ = ["model_card", "write_card", "write_pages", "write_report"]


def write_pages(run: Run) -> Path:
    """Write the model card and the report of a finished run; return the path of the report."""
    report = write_report(run)
    write_card(run)
    return report
