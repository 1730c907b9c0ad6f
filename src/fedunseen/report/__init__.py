"""The report, one self-contained HTML page about a run, and its model card: made from its run directory alone."""

from fedunseen.report.card import model_card, write_card
from fedunseen.report.page import write_report

__all__ = ["model_card", "write_card", "write_report"]
