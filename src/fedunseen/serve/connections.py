"""Connections to an HTTP service: how long a request's head may take, and how many connections there are at once."""

import asyncio
import time
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class _OneWrite:
    """A transport that sends the head of an answer with the first of its body: every write wakes the client."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head = transport, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Keep a head until :meth:`flush`, and send other bytes at once."""
        if self._head or not data.startswith(b"HTTP/1.1 ") or data.startswith(b"HTTP/1.1 100 "):
            data, self._head = self._head + data, b""
            self._transport.write(data)
        else:
            self._head = data

    def flush(self) -> None:
        """Send what is kept."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Send what is kept, and close."""
        self.flush()
        self._transport.close()


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits for the head of a request, and room for new clients when all connections are taken."""

    head_seconds = 10.0
    head_bytes = 2**16

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection, and drop another where there would be too many."""
        self._sending = _OneWrite(transport)
        super().connection_made(self._sending)  # type: ignore[arg-type]
        self._begun, self._head = time.monotonic(), 0
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency // 2:
            waiting = [
                connection
                for connection in self.connections
                if isinstance(connection, BoundedProtocol) and connection.receiving
            ]
            oldest = min(waiting, key=lambda connection: connection._begun)
            self.connections.discard(oldest)
            oldest.transport.abort()
        self._timer: asyncio.TimerHandle | None = None
        self._watch_head()

    @property
    def receiving(self) -> bool:
        """Whether the client has not sent a whole request that waits for its answer."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        if self._timer is None:
            self._watch_head()
        before, in_body = self.cycle, self.cycle is not None and self.cycle.more_body
        super().data_received(data)
        self._head = 0 if in_body or self.cycle is not before else self._head + len(data)
        if self._head > self.head_bytes:
            self.transport.abort()

    def on_response_complete(self) -> None:
        """Send a head without a body."""
        self._sending.flush()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._timer = self.loop.call_later(self.head_seconds, self._expire, self.cycle)

    def _expire(self, before: object) -> None:
        self._timer = None
        if self.cycle is before:
            self.transport.abort()
        else:
            self._watch_head()


class _Proxied(ProxyHeadersMiddleware):
    """Takes the client's address from a proxy's headers; without any, it need not look whom to trust."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        forwarded = any(name.startswith(b"x-forwarded-") for name, _ in scope["headers"])
        await (super().__call__ if forwarded else self.app)(scope, receive, send)


def server_config(
    app: ASGIApp,
    most: int,
    grace: int,
    certificate: Path | None = None,
    key: Path | None = None,
    log_level: str = "warning",
) -> uvicorn.Config:
    """Return the settings of a server."""
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        lifespan="off",
        ws="none",
        log_config=None,  # uvicorn's own would close the handlers of every other library
        log_level=log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # as _Proxied reads them
        limit_concurrency=2 * most,  # beyond it uvicorn refuses; the tasks of connections that gave way end in between
        timeout_graceful_shutdown=grace,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    config.app = _Proxied(app, config.forwarded_allow_ips)  # type: ignore[arg-type]
    config.load()
    return config
