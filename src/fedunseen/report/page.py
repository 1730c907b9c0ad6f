"""Make a page of a run directory: the same sections for each task, from what the task's view computes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedunseen.core.files import write_text
from fedunseen.report.adapted import ADAPTED
from fedunseen.report.attacked import ATTACKED
from fedunseen.report.chosen import CHOSEN
from fedunseen.report.class_similarity import EMBEDDING, GENERATED, LEARNT, SIMILARITY
from fedunseen.report.communication_cost import COMMUNICATION_COST
from fedunseen.report.data_distribution import PARTIES
from fedunseen.report.growing import GROWING
from fedunseen.report.merging import MERGING
from fedunseen.report.own_models import OWN_MODELS
from fedunseen.report.parts import Facts, Section, View, render_sections
from fedunseen.report.reproducibility import REPRODUCIBILITY
from fedunseen.report.shots import LATER, PROTOTYPES, SHOTS
from fedunseen.report.summary import WARNINGS
from fedunseen.report.tasks import few_shot, other, zero_shot
from fedunseen.report.tasks.few_shot import PLANE

if TYPE_CHECKING:
    from fedunseen.experiment.result.run import Run

VIEWS = {"zero-shot": zero_shot.VIEW, "any-shot": zero_shot.VIEW, "few-shot": few_shot.VIEW}


def main_sections(view: View) -> tuple[Section, ...]:
    """Return what a page shows, from top to bottom."""
    return (
        Section("header", view.header),
        WARNINGS,
        LATER,
        Section("summary", view.summary),
        Section("numbers", view.numbers),
        Section("seeds", view.seeds),
        Section("classes", view.classes),
        view.samples,
        PARTIES,
        Section("data_distribution", view.holdings),
        CHOSEN,
        REPRODUCIBILITY,
    )


def details(view: View) -> tuple[Section, ...]:
    """Return what a page folds away below."""
    curves = Section("learning", view.curves)
    alike = (SIMILARITY, LEARNT, EMBEDDING, GENERATED, PLANE)
    return (curves, ADAPTED, GROWING, OWN_MODELS, SHOTS, PROTOTYPES, *alike, ATTACKED, MERGING, COMMUNICATION_COST)


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
    view = VIEWS.get(facts.task)
    if view is None:
        text = render_sections(facts, (other.HEADER, WARNINGS, PARTIES, REPRODUCIBILITY), (COMMUNICATION_COST,))
    else:
        text = render_sections(facts, main_sections(view), details(view))
    target = path if path is not None else run.path / "report.html"
    write_text(target, text)
    return target
