"""``--track`` of ``run`` and ``host``: curves for TensorBoard and MLflow."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedunseen.experiment.schema import Experiment
    from fedunseen.federation.callbacks import Progress


@dataclass(frozen=True)
class Following:
    """What is called after each round."""

    on_round: "Progress"


@dataclass(frozen=True)
class Trackers:
    """The trackers that a user has named."""

    names: tuple[str, ...]

    @contextmanager
    def of_run(self, experiment: "Experiment", out: Path) -> Iterator[Following]:
        """Write the curves of a run while the block lasts."""
        from fedunseen.pages.tracking import tracked

        with tracked(None, self.names, out, experiment) as on_round:
            assert on_round is not None
            yield Following(on_round)


def trackers_of(
    track: Annotated[
        list[str] | None,
        typer.Option("--track", help="Write curves for tensorboard or mlflow too."),
    ] = None,
) -> Trackers | None:
    """Return the trackers that are asked for, or None."""
    return Trackers(tuple(track)) if track else None
