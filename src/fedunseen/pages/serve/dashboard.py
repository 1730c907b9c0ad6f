"""The live page of a run: read-only, asked by a browser, by monitoring and by health checks."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from fedunseen import __version__
from fedunseen.core.addresses import PublicAddress
from fedunseen.pages.report.parts import render
from fedunseen.pages.serve.connections import BoundedServer
from fedunseen.pages.serve.guard import Guard, Limits, Measured
from fedunseen.pages.serve.run_monitor import Monitor

_RECENT = 10.0  # seconds: who has asked since then is looking at the page
_LAST_LOOK = 3.0  # seconds that the page of a finished run stays for its last readers
_log = logging.getLogger("fedunseen.federation")


def create_app(
    monitor: Monitor,
    token: str | None = None,
    local: bool = True,
    public: PublicAddress | None = None,
) -> Starlette:
    """Return the page's service as an ASGI application."""
    html = render("serve/dashboard.html", {})
    measured = Measured()
    ends = _gauges(monitor, measured)

    async def read(request: Request) -> Response:
        return HTMLResponse(html)

    async def state(request: Request) -> Response:
        since = request.query_params.get("since", "0")
        if not (since.isascii() and since.isdecimal() and len(since) < 18):
            return JSONResponse({"detail": "since is the number of an event: 0 or more"}, 422)
        return JSONResponse(monitor.state(int(since)))

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__, "phase": monitor.phase()})

    async def metrics(request: Request) -> Response:
        for holder, valid in monitor.certificates().items():
            ends.labels(holder).set(valid.last.timestamp())
        return Response(generate_latest(measured.registry), media_type=CONTENT_TYPE_LATEST)

    routes = [
        Route("/", read),
        Route("/state", state),
        Route("/health", health),
        Route("/metrics", metrics),
    ]
    guard = Middleware(
        Guard,
        token=token,
        local=local,
        limits=Limits(body=0),
        measured=measured,
        public=public,
        option="--dashboard-public-url",
    )
    return Starlette(routes=routes, middleware=[guard])


def _gauges(monitor: Monitor, measured: Measured) -> Gauge:
    """Register the run's numbers, and return the gauge of when certificates end."""
    for name, key, words in (
        ("round", "round", "Rounds done in this stage."),
        ("rounds", "rounds", "Rounds of this stage."),
        ("parties_connected", "connected", "Parties that are there."),
        ("parties", "clients", "Parties that may take part."),
        (
            "replies_left_out",
            "left_out",
            "Replies of this stage that were refused or did not come.",
        ),
    ):
        Gauge(f"fedunseen_{name}", words, registry=measured.registry).set_function(
            partial(_number, monitor, key)
        )
    return Gauge(
        "fedunseen_certificate_ends_seconds",
        "When a certificate ends, in Unix time.",
        ["holder"],
        registry=measured.registry,
    )


def _number(monitor: Monitor, key: str) -> float:
    return monitor.numbers()[key]


def shown(
    monitor: Monitor,
    listening: socket.socket,
    token: str | None = None,
    local: bool = True,
    certificate: Path | None = None,
    key: Path | None = None,
    public: PublicAddress | None = None,
) -> AbstractContextManager[None]:
    """Return a block in which the page is served at a socket that listens; a reader sees how it
    ended.
    """
    app = create_app(monitor, token, local, public)
    server = BoundedServer(app, 64, 1, certificate, key, "critical")
    return _beside(monitor, server, listening)


@contextmanager
def _beside(monitor: Monitor, server: uvicorn.Server, listening: socket.socket) -> Iterator[None]:
    def serve() -> None:
        try:
            server.run([listening])
        except Exception as error:  # the page is gone, and the run continues
            _log.warning(
                "the live page has ended (%s: %s); the run continues", type(error).__name__, error
            )

    thread = threading.Thread(target=serve, name="live page", daemon=True)
    thread.start()
    try:
        try:
            yield
        except BaseException as error:
            monitor.end(error)
            raise
        monitor.end(None)
    finally:
        if time.monotonic() - monitor.last_request < _RECENT and thread.is_alive():
            monitor.end_was_shown.wait(_LAST_LOOK)
        server.should_exit = True
        thread.join(_LAST_LOOK)
