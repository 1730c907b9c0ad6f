"""Where HTTP services listen and who may come in; ``--dashboard`` of ``run``, ``host`` and
``join``: the live page.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from fedunseen.cli.console import say
from fedunseen.cli.logs import subscribed
from fedunseen.core.addresses import PublicAddress, bracketed, is_loopback
from fedunseen.core.errors import ArgumentError, DataError, ExperimentError, MissingDependencyError

if TYPE_CHECKING:
    from fedunseen.deploy.site import Site
    from fedunseen.experiment.schema import Experiment
    from fedunseen.pages.serve.run_monitor import Monitor, RunMonitor, SiteMonitor


_SHORTEST = 16  # characters of a token


@dataclass(frozen=True)
class BindAddress:
    """An address, and what others need to get in."""

    host: str
    port: int
    token_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool | None = None
    option: str = "--host"
    prefix: str = "--"
    public: PublicAddress | None = None

    @property
    def local(self) -> bool:
        """Only this machine can reach it."""
        return is_loopback(self.host)

    def token(self) -> str | None:
        """Return the token in its file, if others may come in at all."""
        token = None if self.token_file is None else read_token(self.token_file)
        place = f"{self.option} {self.host}"
        tls = f"{self.prefix}certificate and {self.prefix}key"
        if not self.local and token is None:
            raise ArgumentError(
                f"{place} lets other machines in: give {self.prefix}token-file FILE with a token "
                "for them"
            )
        if (self.certificate is None) != (self.key is None):
            raise ArgumentError(f"{tls} go together: give both")
        if not self.local and self.certificate is None and not self.insecure:
            proxy = (
                ""
                if self.insecure is None
                else f", or {self.prefix}insecure behind a proxy that speaks TLS"
            )
            raise ArgumentError(f"{place} would send the token in plain text: give {tls}{proxy}")
        for file in (self.certificate, self.key):
            if file is not None and not file.is_file():
                raise DataError(f"{file} is missing: correct its name")
        return token

    def no_certificate(self, error: OSError) -> DataError:
        """Return what to say where certificate and key are none, or of two pairs."""
        return DataError(
            f"{self.certificate} and {self.key} are not a certificate and its key: {error.strerror}"
        )

    def url(self, listening: socket.socket) -> str:
        """Return the address that a browser takes."""
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://{bracketed(self.host)}:{listening.getsockname()[1]}/"

    def told(self, listening: socket.socket) -> str:
        """Return the address for people, with the public one."""
        public = "" if self.public is None else f", in public {self.public}"
        return f"{self.url(listening)}{public}"

    def of_run(self, experiment: Experiment, out: Path) -> AbstractContextManager[RunMonitor]:
        """Show a run live while the block lasts, and yield its monitor."""

        def make() -> RunMonitor:
            from fedunseen.pages.serve.run_monitor import RunMonitor

            return RunMonitor(experiment, out)

        return live(self, make)

    def of_site(
        self, name: str, samples: int, classes: int, site: Site
    ) -> AbstractContextManager[SiteMonitor]:
        """Show a party's part in a federation while the block lasts, and yield its monitor."""

        def make() -> SiteMonitor:
            from fedunseen.pages.serve.run_monitor import SiteMonitor

            return SiteMonitor(name, samples, classes, site)

        return live(self, make)

    def listen(self) -> socket.socket:
        """Return a socket that listens."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # asyncio sends small answers without delay where the protocol is named
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((self.host, self.port))
            listening.listen(128)
        except OSError as error:
            listening.close()
            options = "--host or --port" if self.option == "--host" else self.option
            raise ArgumentError(
                f"{self.host}:{self.port} cannot be listened at ({error.strerror or error}): "
                f"choose another {options}"
            ) from None
        return listening


def read_token(file: Path) -> str:
    """Return the token in a file."""
    try:
        token = file.read_text("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if len(token) < _SHORTEST or not token.isprintable() or " " in token:
        raise DataError(
            f"{file} holds no token: write one line of {_SHORTEST} or more letters and digits"
        )
    return token


M = TypeVar("M", bound="Monitor")
PORT = 8322
_OPTION = "--dashboard-at"


def bind_address_of(
    dashboard: Annotated[
        bool,
        typer.Option(
            "--dashboard", help=f"Show the run live on a page, at http://127.0.0.1:{PORT}/."
        ),
    ] = False,
    dashboard_at: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Where the live page listens; port 0 takes a free one."
        ),
    ] = None,
    dashboard_token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with the token that readers must send."),
    ] = None,
    dashboard_certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TLS of the live page: the certificate chain (PEM)."),
    ] = None,
    dashboard_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="TLS of the live page: the certificate's private key (PEM)."
        ),
    ] = None,
    dashboard_public_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where a reverse proxy offers the live page."),
    ] = None,
) -> BindAddress | None:
    """Return where the live page listens, or None if no one asked for one."""
    if not dashboard and dashboard_at is None:
        return None
    host, colon, port = (dashboard_at or f"127.0.0.1:{PORT}").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port) >= 2**16:
        raise ExperimentError(
            f"{_OPTION} {dashboard_at} is not an address: write HOST:PORT, for example "
            f"127.0.0.1:{PORT}"
        )
    tls = dashboard_certificate, dashboard_key
    public = (
        None
        if dashboard_public_url is None
        else PublicAddress.parse(dashboard_public_url, "--dashboard-public-url")
    )
    return BindAddress(
        host, int(port), dashboard_token_file, *tls, None, _OPTION, "--dashboard-", public
    )


@contextmanager
def live(listen_at: BindAddress, make: Callable[[], M]) -> Iterator[M]:
    """Show a page of the monitor that ``make`` returns while the block lasts, and yield the
    monitor.
    """
    try:
        from fedunseen.pages.serve.dashboard import shown
    except ImportError as error:
        raise MissingDependencyError(
            f"--dashboard needs a library that is not installed ({error.name}): pip install "
            "'fedunseen[serve]'"
        ) from None
    token = listen_at.token()
    monitor = make()
    log = logging.getLogger("fedunseen.federation")
    with listen_at.listen() as listening:
        try:
            tls = listen_at.certificate, listen_at.key
            page = shown(monitor, listening, token, listen_at.local, *tls, listen_at.public)
        except OSError as error:
            raise listen_at.no_certificate(error) from None
        with page, subscribed(monitor.note):
            say(f"live page: {listen_at.told(listening)}")
            log.addHandler(monitor)
            try:
                yield monitor
            finally:
                log.removeHandler(monitor)
