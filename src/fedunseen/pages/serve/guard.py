"""What stands before the service: who may ask, how much may be sent, and how long that may take."""

import asyncio
import hmac
import logging
import time
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedunseen.core.addresses import PublicAddress, is_loopback

OPEN = (
    "/",
    "/health",
    "/docs",
)  # need no token: the pages hold no secret, and who watches the service has none
# times the limit: so much of an upload that is too large is read, so that its sender gets the reason
_DISCARDED = 32
_SHOWN = 200  # characters of a path in the log
_log = logging.getLogger("fedunseen.requests")
_POLICY = (
    b"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: "
    b"blob:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
WRITES = "fedunseen.writes"
"""The key of a request's scope that says whether its sender may change the model."""
READS_ALONE = "reads-alone"
"""The code of a refusal: the token is for reading."""
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", _POLICY),
)


@dataclass(frozen=True)
class Limits:
    """How much a client may ask for."""

    body: int = 10 * 2**20
    upload: float = 20.0
    answer: float = 60.0
    waiting: int = 64


class Measured:
    """The requests' numbers for ``/metrics``; a service has its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._series: dict[tuple[str, str, str], tuple[Counter, Histogram]] = {}
        self.requests = Counter(
            "fedunseen_requests",
            "Requests that were answered.",
            ["method", "path", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "fedunseen_request_seconds", "From a request's first byte to its answer.", ["path"], registry=self.registry,
            buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
        )  # fmt: skip

    def count(self, method: str, path: str, status: str, seconds: float) -> None:
        """Count an answer."""
        key = method, path, status
        if key not in self._series:
            self._series[key] = self.requests.labels(*key), self.seconds.labels(path)
        requests, times = self._series[key]
        requests.inc()
        times.observe(seconds)


@dataclass(eq=False)
class Guard:
    """ASGI middleware: refuses a forbidden request before it reads any of it.

    It answers HEAD as GET: the server that runs it leaves the body out.
    """

    app: ASGIApp
    token: str | None
    local: bool
    limits: Limits
    measured: Measured
    write_token: str | None = None
    public: PublicAddress | None = None
    option: str = "--public-url"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.monotonic()
        status = 500
        method = scope["method"]
        scope = {**scope, "method": "GET" if method == "HEAD" else method}
        if self.public is not None and scope["path"].startswith(f"{self.public.prefix}/"):
            scope["path"] = scope["path"].removeprefix(self.public.prefix)

        async def respond(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*map(self._redirected, message["headers"]), *_HEADERS]
            await send(message)

        try:
            headers = Headers(scope=scope)
            code, why, name = self._refusal(scope, headers)
            if code:
                reply_headers = (
                    {"WWW-Authenticate": "Bearer"} if code == 401 else {"Connection": "close"}
                )
                if code == 413:
                    await self._discard(receive)
                answer = {"detail": why, **({"code": name} if name else {})}
                await JSONResponse(answer, code, reply_headers)(scope, receive, respond)
            else:
                await self.app(scope, self._bounded(receive), respond)
        finally:
            path = getattr(
                scope.get("route"), "path", "other"
            )  # the pattern: names of classes make no new series
            seconds = time.monotonic() - began
            self.measured.count(method, path, str(status), seconds)
            _note({**scope, "method": method}, status, seconds)

    def _redirected(self, header: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        """Return a header of an answer; a redirection stays below the public address."""
        name, value = header
        if name != b"location" or self.public is None:
            return header
        below = urlsplit(value)._replace(scheme=b"", netloc=b"").geturl()
        return name, self.public.prefix.encode() + below

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str, str]:
        """Return the status, the sentence and the code with which a request is refused; 0 if it is
        not.
        """
        host = headers.get("host", "")
        origin = headers.get("origin", f"//{host}")
        public = self.public
        try:
            name = urlsplit(f"//{host}").hostname or ""
            site = urlsplit(origin).netloc
        except ValueError:  # such as "["
            return 400, "the header Host or Origin is not an address", ""
        if self.local and not (is_loopback(name) or (public is not None and name == public.host)):
            return (
                421,
                "this service answers on its own machine only: ask for it as localhost or "
                f"127.0.0.1, or start it with {self.option} if a proxy offers it elsewhere",
                "",
            )
        if site != host and (public is None or origin != public.origin):
            return (
                403,
                "a page of another site asks: only this service's own page may; behind a proxy, "
                f"start the service with {self.option}",
                "",
            )
        said = headers.get("authorization", "")
        scope[WRITES] = self._sent(said, self.write_token or self.token)
        if refusal := self._token_refusal(scope["method"], scope["path"], said):
            return refusal
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            return 400, "the header Content-Length is not a number", ""
        if len(length) > 18 or int(length) > self.limits.body:
            return 413, self._too_large(), ""
        return 0, "", ""

    def _token_refusal(self, method: str, path: str, said: str) -> tuple[int, str, str] | None:
        if self.write_token is not None and method not in ("GET", "HEAD") and path != "/predict":
            if self.token is not None and self._sent(said, self.token):
                return (
                    403,
                    "this token only reads: adding and removing classes needs the token for "
                    "writing",
                    READS_ALONE,
                )
            needed = not self._sent(said, self.write_token)
        else:
            sent = self._sent(said, self.token) or self._sent(said, self.write_token or self.token)
            needed = path not in OPEN and not sent
        return (
            (401, "a token is needed: send it as Authorization: Bearer TOKEN", "")
            if needed
            else None
        )

    @staticmethod
    def _sent(said: str, token: str | None) -> bool:
        """Return whether a request holds a token; if there is none, every request does."""
        return token is None or hmac.compare_digest(said.encode(), f"Bearer {token}".encode())

    def _too_large(self) -> str:
        return f"the request is larger than {self.limits.body / 2**20:g} MiB: send less at a time"

    def _bounded(self, receive: Receive) -> Receive:
        received = 0
        end = time.monotonic() + self.limits.upload
        # the whole request is here: what comes then is the client's leaving, for which no one waits
        done = False

        async def bounded() -> Message:
            nonlocal received, done
            try:
                async with asyncio.timeout(max(0.0, end - time.monotonic()) if not done else None):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    408, "the request took too long to arrive: send it again"
                ) from None
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if not message.get("more_body", False):
                    done = True
            if received > self.limits.body:
                raise HTTPException(413, self._too_large())
            return message

        return bounded

    async def _discard(self, receive: Receive) -> None:
        """Read and drop a request that is too large: a sender that is cut off would get no
        answer.
        """
        received = 0
        try:
            async with asyncio.timeout(self.limits.upload):
                while received < _DISCARDED * self.limits.body:
                    message = await receive()
                    received += len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
        except TimeoutError:
            return


def _note(scope: Scope, status: int, seconds: float) -> None:
    """Log a request in one line: who, what, the answer's status, how long; nothing of what was
    sent.
    """
    # an address, unless a proxy passes on what a client says of itself
    client = quote((scope.get("client") or ("-",))[0], ":")[:_SHOWN]
    path = quote(scope["path"])[:_SHOWN]
    ms = round(1000 * seconds, 1)
    fields = {"client": client, "method": scope["method"], "path": path, "status": status, "ms": ms}
    _log.info("%s", " ".join(map(str, fields.values())) + " ms", extra={"fields": fields})
