"""Where tasks run: one after another in this process, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from fedunseen.core.errors import ArgumentError, unknown
from fedunseen.core.extensions import at

Task = Callable[[Any], Any]
"""Does an item, which is JSON, as is what it returns."""


class Engine(Protocol):
    """Maps tasks over items."""

    def map(self, make: Callable[[], Task], items: Sequence[Any]) -> Iterator[Any]:
        """Yield the result for each item, in any order.

        Args:
            make: makes a task, once for each worker: the task may hold what takes long to load.
            items: JSON values.
        """

    def close(self) -> None:
        """End what was started for the tasks."""


class Loop:
    """Does one item after another in this process."""

    def __init__(self, address: str = "", workers: int = 0) -> None:
        if address or workers:
            raise ArgumentError("--address and --workers are for --engine ray: leave them out")

    def map(self, make: Callable[[], Task], items: Sequence[Any]) -> Iterator[Any]:
        """Yield the results in order."""
        task = make()
        for item in items:
            yield task(item)

    def close(self) -> None:
        """Do nothing."""


ENGINES = {
    "loop": "fedunseen.deploy.engines.engine:Loop",
    "ray": "fedunseen.deploy.engines.ray_engine:RayEngine",
}


def engine_of(name: str, address: str = "", workers: int = 0) -> Engine:
    """Return an engine by its name.

    Args:
        name: ``loop`` or ``ray``.
        address: of a Ray cluster; "": one is started here, and ends with the work.
        workers: processes that work at once; 0: as many as the cluster has processors.

    Raises:
        ArgumentError: there is no such engine, or it has no cluster.
        MissingDependencyError: the library is not installed.
    """
    if name not in ENGINES:
        raise ArgumentError(f"--engine: {unknown('engine', name, ENGINES)}")
    engine: Engine = at(ENGINES[name])(address, workers)
    return engine
