"""A party's side of engine "websocket": it connects, again where the connection breaks, and answers.

A thread's event loop keeps the connection and its signs of life while the caller's thread computes an answer.
"""

import asyncio
import contextlib
import json
import logging
import math
import os
import queue
import re
import secrets
import ssl
import threading
import time

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException

from fedunseen.core.addresses import bracketed, is_loopback
from fedunseen.core.errors import ConnectionLost, RefusedError
from fedunseen.engines.carriers.websocket import kit
from fedunseen.engines.carriers.websocket.messages import (
    CALL,
    CHUNK,
    REFUSED,
    SILENCE,
    TAKEN,
    beating,
    heard,
    pieces,
    read_head,
    statement,
)
from fedunseen.engines.remote.authority import REMEDY
from fedunseen.engines.remote.link import LOOKING, Answer, Join

STRANGE = 5.0  # seconds to continue trying where something else than a coordinator seems to listen
WORD = 4.0  # seconds between two lines on standard error
_log = logging.getLogger("fedunseen.federation")  # what the party's people read


class Connection:
    """A party's connection to its coordinator, and the messages that have come."""

    def __init__(self, place: Join) -> None:
        self.place = place
        self.token = secrets.token_hex(16)
        self.where = f"{bracketed(place.address)}:{place.port}"
        self.inbox: queue.SimpleQueue[tuple[ClientConnection, int, bytes] | Exception] = queue.SimpleQueue()
        self.loop = asyncio.new_event_loop()
        self.link: ClientConnection | None = None
        self.accepted, self.taken = False, 0.0  # since when another process is connected
        self.key: ec.EllipticCurvePrivateKey | None = None
        self.context: ssl.SSLContext | None = None
        if place.kit is not None:
            self.key = kit.party_key(place.kit, place.name)
            try:
                self.context = ssl.create_default_context(cafile=place.kit / "ca.crt")
            except (OSError, ssl.SSLError) as error:
                raise RefusedError(f"{place.kit}/ca.crt: no certificate ({error}); {REMEDY}") from error
        self.keeping = self.loop.create_task(self._kept())

    def run(self) -> None:
        """Be connected until :meth:`end`; an error that ends it before is put into the inbox."""
        self.loop.run_forever()
        self.loop.close()

    def end(self) -> None:
        """Leave the coordinator; for any thread."""

        async def leave() -> None:
            if self.link is not None:
                await self.link.close()
            self.keeping.cancel()
            await asyncio.wait([self.keeping])
            self.loop.stop()

        asyncio.run_coroutine_threadsafe(leave(), self.loop)

    def send(self, link: ClientConnection, number: int, message: bytes) -> None:
        """Send an answer, unless its connection has ended: the coordinator will ask again."""

        async def send() -> None:
            with contextlib.suppress(ConnectionClosed):
                for piece in pieces(number, message):
                    await link.send(piece)

        asyncio.run_coroutine_threadsafe(send(), self.loop).result()

    async def _kept(self) -> None:
        try:
            await self._keep()
        except Exception as error:
            self.inbox.put(error)

    async def _keep(self) -> None:
        begin = said = time.monotonic()
        while True:
            try:
                await self._receive()
            except (OSError, WebSocketException, ValueError, ImportError) as error:
                if self.accepted:
                    self.accepted, begin = False, time.monotonic()
                    said = begin
                patience, reason = self._judged(error)
            passed = time.monotonic() - begin
            if passed >= patience:
                raise ConnectionLost(f"no coordinator at {self.where}: {reason}")
            if time.monotonic() - said >= WORD and patience < math.inf:
                said = time.monotonic()
                more = f"trying for {patience - passed:.0f} s more"
                _log.warning("no coordinator at %s (%s): %s", self.where, reason, more, extra=LOOKING)
            await asyncio.sleep(min(0.1 if passed < 1 else 0.5, patience - passed))

    async def _receive(self) -> None:
        """Connect, and receive messages until the connection ends."""
        async with connect(
            f"{'ws' if self.context is None else 'wss'}://{self.where}",
            ssl=self.context,
            compression=None,
            user_agent_header=None,
            proxy=None if is_loopback(self.place.address) else True,
            open_timeout=CALL,
            ping_interval=None,
            close_timeout=1.0,
            max_size=CHUNK,
        ) as self.link:
            challenge = await heard(self.link)
            if not isinstance(challenge, bytes):
                raise ValueError("no challenge")
            signed = statement(challenge, self.place.name, self.token)
            signature = b"" if self.key is None else self.key.sign(signed, ec.ECDSA(SHA256()))
            own = {"name": self.place.name, "token": self.token, "signature": signature.hex()}
            await self.link.send(json.dumps(own))
            if await heard(self.link, beats=True) != "":
                raise ValueError("no welcome")
            self.accepted, self.taken = True, 0.0
            async with beating(self.link):
                while True:
                    await self._take(self.link)

    async def _take(self, link: ClientConnection) -> None:
        """Receive a message."""
        (number, size), content = read_head(await heard(link)), bytearray()
        while len(content) < size:
            piece = await heard(link)
            if isinstance(piece, str):
                raise ValueError("a message with a piece too few")
            content += piece
        self.inbox.put((link, number, bytes(content)))

    def _judged(self, error: Exception) -> tuple[float, str]:
        """Return for how long to try again after an error, and why; raise if another try cannot help."""
        place, where = self.place, self.where
        code = error.rcvd.code if isinstance(error, ConnectionClosed) and error.rcvd is not None else 0
        if code == REFUSED:
            known = f"has no party {place.name!r}" if place.kit is None else f"does not know this key of {place.name!r}"
            raise RefusedError(
                f"the coordinator at {where} {known}: take the name and the folder that were made with the "
                "coordinator's, or ask for them to be added"
            ) from error
        if code == TAKEN:
            # Perhaps the party's last process, on a machine that is gone: the coordinator waits for its time-out.
            self.taken = self.taken or time.monotonic()
            if time.monotonic() - self.taken > SILENCE + 2:
                raise RefusedError(
                    f"another process is connected to {where} as party {place.name!r}: end it, or join under another "
                    "name and with its key"
                ) from error
            return math.inf, ""
        tls = _tls_error(error)
        if isinstance(tls, ssl.SSLCertVerificationError):
            raise RefusedError(
                f"the certificate of the coordinator at {where} is not accepted: {tls.verify_message.rstrip('.')}; "
                "take the folder that was made with the coordinator's and an address that its certificate names, or "
                "make new ones with `fedunseen certs`"
            ) from error
        if isinstance(tls, ssl.SSLEOFError | ssl.SSLZeroReturnError):  # a coordinator that ends or begins, or a proxy
            return place.patience, "it hangs up while the connection is secured"
        if tls is not None:
            return STRANGE, f"what listens there does not speak TLS ({tls.reason or tls}): is it --insecure?"
        if isinstance(error, InvalidStatus) and error.response.status_code in (500, 502, 503, 504):
            return place.patience, f"it says {error.response.status_code}"
        if isinstance(error, InvalidHandshake | ValueError):
            return min(STRANGE, place.patience), "what listens there speaks something else: TLS, or no coordinator"
        number = re.search(r"\[Errno (\d+)\]", str(error))  # of the first address, where there are several
        reason = os.strerror(int(number[1])) if number else re.sub(r"^\[Errno \S+\] ", "", str(error))
        return place.patience, reason or type(error).__name__


def answer_messages(place: Join, answer: Answer, done: threading.Event) -> None:
    """Connect a party and answer until done; see :func:`fedunseen.engines.carriers.websocket.join`."""
    connection = Connection(place)
    thread = threading.Thread(target=connection.run, name="websocket", daemon=True)
    thread.start()
    try:
        while not done.is_set():
            try:
                came = connection.inbox.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(came, Exception):
                raise came
            link, number, message = came
            connection.send(link, number, answer(message))
    finally:
        connection.end()
        thread.join(2)


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None
