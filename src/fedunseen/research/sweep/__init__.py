"""Sweeps: a grid of experiments from one file, run in parallel, resumable, beside the paper's
figures.
"""

from fedunseen.research.sweep.results import Row, rows, write_csv
from fedunseen.research.sweep.runner import run_sweep
from fedunseen.research.sweep.schema import Cell, Sweep, read_sweep

__all__ = ["Cell", "Row", "Sweep", "read_sweep", "rows", "run_sweep", "write_csv"]
