"""Make a page of a run directory: the sections that the run's task lists."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedunseen.core.files import write_text
from fedunseen.report.parts import Facts, render_sections

if TYPE_CHECKING:
    from fedunseen.experiment.finished import Run

__all__ = ["write_report"]


def write_report(run: Run, path: Path | None = None) -> Path:
    """Write the report of a complete run: one HTML file that needs nothing else.

    Args:
        run: the run, of one seed or of several.
        path: where to; by default ``report.html`` in the run directory.

    Returns:
        Where it is.

    Raises:
        RunDirectoryError: what the run left behind is damaged.
    """
    facts = Facts.of(run)
    own = f"fedunseen.report.tasks.{facts.task.replace('-', '_')}"
    task = importlib.import_module(own if find_spec(own) else "fedunseen.report.tasks.other")
    target = path if path is not None else run.path / "report.html"
    write_text(target, render_sections(facts, task.SECTIONS))
    return target
