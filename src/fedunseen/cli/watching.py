"""Options of ``run``, ``host`` and ``join`` that other folders bring: a live page, curves for
trackers.

A folder lists in its ``extension.OPTIONS`` a function whose parameters are options of the command
line. It returns what watches a run, or None where no one asked for it. Without the folder a command
has no such option.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedunseen.cli.logs import Format, LogFormat, speak
from fedunseen.core.extensions import added, at

if TYPE_CHECKING:
    from fedunseen.experiment.schema import Experiment
    from fedunseen.experiment.stages import Present
    from fedunseen.federation.callbacks import Progress


class Watcher(Protocol):
    """What follows the rounds of a run."""

    def on_round(self, stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        """Take the metrics of a round."""


class Watching(Protocol):
    """What an option asked for."""

    def of_run(self, experiment: Experiment, out: Path) -> AbstractContextManager[Watcher]:
        """Follow a run while the block lasts."""

    def of_site(
        self, name: str, samples: int, classes: int, site: Any
    ) -> AbstractContextManager[object]:
        """Follow a party's part in a federation while the block lasts."""


Command = Callable[..., None]


def with_options(*names: str) -> Callable[[Command], Command]:
    """Give a command the options of these names, and that of the log.

    The command receives ``watching``: name -> what the option asked for; options that no one has
    used are left out.
    """

    def wrap(command: Command) -> Command:
        places = dict(added("OPTIONS"))
        kinds = {name: at(places[name]) for name in names if name in places}
        options = {
            name: inspect.signature(kind, eval_str=True).parameters for name, kind in kinds.items()
        }

        @wraps(command)
        def with_watching(log_format: Format, **arguments: Any) -> None:
            speak(log_format)
            watching = {}
            for name, kind in kinds.items():
                watcher = kind(**{option: arguments.pop(option) for option in options[name]})
                if watcher is not None:
                    watching[name] = watcher
            command(watching=watching, **arguments)

        parameters = dict(inspect.signature(command, eval_str=True).parameters)
        del parameters["watching"]
        log = inspect.Parameter(
            "log_format", inspect.Parameter.KEYWORD_ONLY, default=Format.text, annotation=LogFormat
        )
        combined = [
            part.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for part in (
                *parameters.values(),
                *(part for of_kind in options.values() for part in of_kind.values()),
                log,
            )
        ]
        with_watching.__signature__ = inspect.Signature(combined)  # type: ignore[attr-defined]
        return with_watching

    return wrap


@contextmanager
def watched(
    watching: Mapping[str, Watching], experiment: Experiment, out: Path, progress: Progress
) -> Iterator[tuple[Progress, Present | None]]:
    """Yield what is called after each round, and what is called with the clients before the first.

    Args:
        watching: what the options of the command asked for.
        experiment: the run's.
        out: its directory.
        progress: what the command itself shows.
    """
    with ExitStack() as stack:
        watchers = [stack.enter_context(kind.of_run(experiment, out)) for kind in watching.values()]

        def on_round(stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
            for each in (*(watcher.on_round for watcher in watchers), progress):
                each(stage, round, rounds, line)

        meeting = [watcher.meet for watcher in watchers if hasattr(watcher, "meet")]

        def present(parties: Any) -> None:
            for meet in meeting:
                meet(parties)

        yield on_round, present if meeting else None
