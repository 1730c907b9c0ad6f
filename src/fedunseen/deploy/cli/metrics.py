"""``--metrics PORT`` of ``host`` and ``join``: numbers for Prometheus, at 127.0.0.1 alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedunseen.cli.console import say
from fedunseen.core.errors import ArgumentError, MissingDependencyError

if TYPE_CHECKING:
    from fedunseen.deploy.metrics import Numbers, RunNumbers, SiteNumbers
    from fedunseen.deploy.site import Site
    from fedunseen.experiment.schema import Experiment


def metrics_of(
    metrics: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Numbers for Prometheus at http://127.0.0.1:PORT/metrics; 0 takes a free port.",
        ),
    ] = None,
) -> Metrics | None:
    """Return where numbers are offered, or None if no one asked for them."""
    return None if metrics is None else Metrics(metrics)


class Metrics:
    """Offers what is asked of it at a port."""

    def __init__(self, port: int) -> None:
        self.port = port

    @contextmanager
    def of_run(self, experiment: Experiment, out: Path) -> Iterator[RunNumbers]:
        """Offer a coordinator's numbers while the block lasts."""
        from fedunseen.deploy.metrics import RunNumbers  # now: PyTorch comes with it

        numbers = RunNumbers(out)
        with self._offered(numbers):
            yield numbers

    @contextmanager
    def of_site(self, name: str, samples: int, classes: int, site: Site) -> Iterator[SiteNumbers]:
        """Offer a party's numbers while the block lasts."""
        from fedunseen.deploy.metrics import SiteNumbers

        numbers = SiteNumbers(site)
        with self._offered(numbers):
            yield numbers

    @contextmanager
    def _offered(self, numbers: Numbers) -> Iterator[int]:
        try:
            from fedunseen.deploy.metrics_server import MetricsServer
        except ImportError:
            raise MissingDependencyError(
                "--metrics needs prometheus-client: pip install 'fedunseen[serve]'"
            ) from None
        try:
            server = MetricsServer(self.port, numbers)
        except OSError as error:
            raise ArgumentError(
                f"127.0.0.1:{self.port} cannot be listened at ({error.strerror or error}): choose "
                "another --metrics"
            ) from None
        try:
            say(f"metrics: http://127.0.0.1:{server.server_port}/metrics")
            yield server.server_port
        finally:
            server.close()
