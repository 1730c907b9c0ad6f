"""The report: one self-contained HTML page about a run, made from its run directory alone."""

from fedunseen.report.page import write_report

__all__ = ["write_report"]
