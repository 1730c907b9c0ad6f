"""Connections to an HTTP service: how long the head of a request may take, how long an answer may
lie unread, and how many connections there are at once.

uvicorn limits neither the time nor the size of a head, and refuses new clients once idle ones hold
all connections. The event loop that it runs in does so here, for it opens every connection.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

try:  # what uvicorn takes
    from uvloop import Loop as _FastestLoop
except ImportError:  # on Windows
    from asyncio import SelectorEventLoop as _FastestLoop  # type: ignore[assignment]

HEAD_BYTES = 2**16
"""Bytes of a request's head, or of what follows a request that has no answer yet."""
_Address = tuple[str, int]


class Connections:
    """The open connections of a service, and ASGI middleware that notes what each one waits for.

    Attributes:
        most: connections at once; one more, and the oldest that does not wait for an answer is
            closed: it has sent no whole request, or does not read.
        head_seconds: seconds for TLS, and for the head of each request.
        unread_seconds: seconds in which a client has to read some of an answer.
    """

    head_seconds = 10.0
    unread_seconds = 30.0

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app = app
        self.most = most
        self._open: dict[_Address, Connection] = {}  # the oldest first

    def add(self, address: _Address, connection: "Connection") -> None:
        """Add a new connection, and close another where there would be too many."""
        self._open[address] = connection
        if len(self._open) > self.most:
            next(other for other in self._open.values() if not other.waits_for_answer).abort()

    def remove(self, address: _Address) -> None:
        """Remove a connection that has ended."""
        self._open.pop(address, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note the begin of a request, the end of its body, and its answer."""
        connection = self._open.get(scope.get("client"))  # type: ignore[arg-type]
        if connection is None:
            return await self.app(scope, receive, send)

        async def noted() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                connection.end_body()
            return message

        async def sent(message: Message) -> None:
            try:
                await send(message)
            except (
                RuntimeError
            ):  # uvicorn does not look whether an earlier request's client is gone
                if not connection.closed:
                    raise

        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        number = connection.begin_request(
            int(length) if length.isascii() and length.isdecimal() else 0,
            "transfer-encoding" in headers,
        )
        try:
            await self.app(scope, noted, sent)
        finally:
            connection.end_request(number)


class Connection(asyncio.Protocol):
    """A connection: passes everything on to the server's own protocol, within limits."""

    def __init__(self, server: asyncio.Protocol, connections: Connections) -> None:
        self._server = server
        self._connections = connections
        self._head = 0  # bytes that no request has taken
        self._length = 0  # of the body of the last request, as its head declares it
        self._in_body = False
        self._requests = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._waits = False

    @property
    def waits_for_answer(self) -> bool:
        """Whether the whole request is there, and the client reads what is sent."""
        return self._waits and self._unread is None

    @property
    def closed(self) -> bool:
        """Whether either end has closed the connection."""
        return bool(self._transport.is_closing())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new connection."""
        self._transport: Any = transport
        self._address: _Address = tuple(transport.get_extra_info("peername")[:2])
        self._await_head()
        self._server.connection_made(transport)
        self._connections.add(self._address, self)

    def data_received(self, data: bytes) -> None:
        """Pass on what the client sends, until a head is too large."""
        if self._head > HEAD_BYTES:
            self.abort()
        if self._transport.is_closing():
            return
        if not self._in_body:
            self._head += len(data)
        self._server.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on the client's end."""
        return self._server.eof_received()

    def pause_writing(self) -> None:
        """Pass on that the client reads too slowly, and close the connection unless it reads on."""
        loop = asyncio.get_running_loop()
        self._unread = loop.call_later(self._connections.unread_seconds, self.abort)
        self._server.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the client reads again."""
        self._stop_unread()
        self._server.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Remove the connection."""
        self._stop_timer()
        self._stop_unread()
        self._connections.remove(self._address)
        self._server.connection_lost(error)

    def begin_request(self, length: int, chunked: bool) -> int:
        """Note that the head of a request is there, and how long its body is; return its number."""
        self._stop_timer()
        self._head = 0
        self._length = length
        self._in_body = length > 0 or chunked
        self._waits = not self._in_body
        self._requests += 1
        return self._requests

    def end_body(self) -> None:
        """Note that the whole request is there."""
        self._in_body = False
        self._waits = True

    def end_request(self, number: int) -> None:
        """Note that a request was answered, perhaps before all of its body came."""
        if number != self._requests:  # the next one is there already
            return
        if self._in_body:
            self._in_body = False
            self._head = -self._length
        self._waits = False
        if not self._transport.is_closing():
            self._await_head()

    def abort(self) -> None:
        """Close the connection at once."""
        self._connections.remove(self._address)
        self._transport.abort()

    def _await_head(self) -> None:
        self._stop_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._connections.head_seconds, self.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class _EventLoop(_FastestLoop):
    """An event loop whose servers limit their connections."""

    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self._connections = connections

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        *,
        ssl: ssl.SSLContext | None = None,
        **options: Any,
    ) -> asyncio.AbstractServer:
        """Listen; without a limit TLS may take a minute."""
        if ssl is not None:
            options |= {"ssl": ssl, "ssl_handshake_timeout": self._connections.head_seconds}
        return await super().create_server(
            lambda: Connection(protocol_factory(), self._connections), **options
        )


class BoundedServer(uvicorn.Server):
    """A uvicorn that limits its connections.

    Args:
        app: the ASGI application.
        most: connections at once.
        grace: seconds in which answers that are under way are finished, at the end.
        certificate: the certificate chain for TLS.
        key: its private key.
        log_level: what uvicorn logs.

    Raises:
        OSError: if certificate and key are not a pair.
    """

    def __init__(
        self,
        app: ASGIApp,
        most: int,
        grace: int,
        certificate: Path | None = None,
        key: Path | None = None,
        log_level: str = "warning",
    ) -> None:
        trusted = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")
        proxied: Any = ProxyHeadersMiddleware(app, trusted)  # type: ignore[arg-type]
        self.connections = Connections(proxied, most)
        config = uvicorn.Config(
            self.connections,
            lifespan="off",
            ws="none",
            log_config=None,  # uvicorn's own would close the handlers of every other library
            log_level=log_level,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # connections are found by their own addresses
            limit_concurrency=2 * most,  # beyond it uvicorn refuses
            timeout_graceful_shutdown=grace,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        config.load()
        super().__init__(config)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the process is asked to end."""
        with asyncio.Runner(loop_factory=lambda: _EventLoop(self.connections)) as runner:
            runner.run(self.serve(sockets))
