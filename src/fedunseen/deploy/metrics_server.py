"""Where ``--metrics`` offers numbers: one request at a time, of this machine's own names alone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from fedunseen.deploy.metrics import Numbers

_SECONDS = 5.0
"""What a request and its answer may take: half a request holds nothing of the run meanwhile."""


class _Handler(WSGIRequestHandler):
    """Answers a request, and ends the connection of one that takes too long."""

    def setup(self) -> None:
        self.end = threading.Timer(_SECONDS, self._cut_off)
        self.end.daemon = True
        self.end.start()
        super().setup()

    def finish(self) -> None:
        self.end.cancel()
        super().finish()

    def _cut_off(self) -> None:
        with suppress(OSError):  # it has ended meanwhile
            self.request.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: requests come every few seconds."""


class MetricsServer(WSGIServer):
    """Offers numbers for Prometheus at 127.0.0.1.

    A page of another origin, or a name that is bound to this address, is refused: a browser would
    hand the numbers to who has made the page.

    Args:
        port: 0 takes a free one.
        numbers: what is offered.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, port: int, numbers: Numbers) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        registry = CollectorRegistry()
        registry.register(numbers)
        self._offer = make_wsgi_app(registry)
        self._names = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}
        self.set_app(self._guarded)
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    def _guarded(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("HTTP_HOST") in self._names and "HTTP_ORIGIN" not in environ:
            answer: Iterable[bytes] = self._offer(environ, start)
            return answer
        start("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"ask 127.0.0.1 or localhost, from no page\n"]

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: whoever asked has gone."""

    def close(self) -> None:
        """End the offer."""
        self.shutdown()
        self.server_close()
        self._thread.join(_SECONDS)
