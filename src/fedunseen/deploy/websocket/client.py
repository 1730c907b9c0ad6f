"""A party's side of engine "websocket": it connects, again where the connection breaks, and
answers.

A thread's event loop keeps the connection and its signs of life while the caller's thread computes
an answer.
"""

import asyncio
import contextlib
import json
import logging
import math
import os
import re
import secrets
import ssl
import threading
import time
from collections import deque
from pathlib import Path
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509 import load_der_x509_certificate
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidMessage,
    InvalidStatus,
    ProxyError,
    WebSocketException,
)
from websockets.proxy import get_proxy
from websockets.uri import parse_uri

from fedunseen.core import validity
from fedunseen.core.addresses import bracketed, is_loopback
from fedunseen.core.errors import ConnectionLost, RefusedError
from fedunseen.core.files import write_text
from fedunseen.core.text import printable
from fedunseen.core.validity import Validity
from fedunseen.deploy.remote.link import Answer, Join
from fedunseen.deploy.websocket import kit, messages
from fedunseen.deploy.websocket.messages import SILENCE, pieces

STRANGE = 5.0  # seconds to continue trying where something else than a coordinator seems to listen
WORD = 4.0  # seconds to the first line that a coordinator is gone; the next takes twice as long
QUIET = 300.0  # seconds that one takes at most
WATCH = 60.0  # seconds between two looks at the time
# what OpenSSL calls a certificate, of the coordinator or its authority, that is not valid now
_TIMES = {9: "is not valid yet", 10: "has ended"}
_ANY_TIME = ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL
_log = logging.getLogger("fedunseen.federation")  # what the party's people read


def proxy_to(place: Join) -> str | None:
    """Return the proxy that the environment names for a coordinator's address."""
    url = parse_uri(f"{'ws' if place.kit is None else 'wss'}://{_where(place)}")
    return None if is_loopback(place.address) else get_proxy(url)


def _where(place: Join) -> str:
    return f"{bracketed(place.address)}:{place.port}"


def dial(place: Join, context: ssl.SSLContext | None) -> connect:
    """Connect to a coordinator."""
    return connect(
        f"{'ws' if context is None else 'wss'}://{_where(place)}",
        ssl=context,
        compression=None,
        user_agent_header=None,
        proxy=proxy_to(place),
        open_timeout=messages.CALL,
        ping_interval=None,
        close_timeout=messages.LEAVE,
        max_size=messages.CHUNK,
    )


async def told_clock(place: Join) -> None:
    """Tell the coordinator what this machine's clock shows, by which a certificate is not valid, if
    it can be reached.

    All of its certificate but the times is checked, and what is signed lets nobody in. So whose
    certificate has ended, and is perhaps in other hands, learns the name and the time alone.
    """
    assert place.kit is not None
    with contextlib.suppress(OSError, WebSocketException, ValueError, ImportError, RefusedError):
        context = ssl.create_default_context(cafile=place.kit / "ca.crt")
        context.verify_flags |= _ANY_TIME
        key = kit.party_key(place.kit, place.name, valid=False)
        async with asyncio.timeout(messages.CALL), dial(place, context) as link:
            challenge = await messages.heard(link)
            if not isinstance(challenge, bytes):
                return
            clock = kit.now().isoformat(timespec="seconds")
            signed = messages.clock_statement(challenge, place.name, clock)
            signature = key.sign(signed, ec.ECDSA(SHA256())).hex()
            said = {"name": place.name, "clock": clock, "signature": signature}
            await link.send(json.dumps(said))


class Connection:
    """A party's connection to its coordinator, and the messages that have come."""

    def __init__(self, place: Join) -> None:
        self.place = place
        self.token = f"{_holder(place.folder)}.{secrets.token_hex(12)}"
        self.where = _where(place)
        self.inbox: deque[tuple[ClientConnection, int, bytes] | Exception] = deque(
            maxlen=1
        )  # the newest counts
        self.came = threading.Event()
        self.loop = asyncio.new_event_loop()
        self.link: ClientConnection | None = None
        self.accepted = False
        self.proxy: str | None = None  # that the environment names for this address
        self.lost = self.strange = self.taken_since = (
            0.0  # since when; strange: something else than a coordinator answers
        )
        self.key: ec.EllipticCurvePrivateKey | None = None
        self.context: ssl.SSLContext | None = None
        self.valid: dict[str, Validity] = {}
        self.known = False  # the coordinator has accepted this party once
        self._told_clock = -math.inf  # when the coordinator was told what the clock shows
        self._said: dict[str, str] = {}
        self._take_credentials()
        self.keeping = self.loop.create_task(self._keep())
        self.keeping.add_done_callback(self._ended)

    def _take_credentials(self) -> None:
        """Read key and certificates, which may be others than at the last try."""
        place = self.place
        if place.kit is None:
            return
        self.key = kit.party_key(place.kit, place.name)
        try:
            self.context = ssl.create_default_context(cafile=place.kit / "ca.crt")
        except (OSError, ssl.SSLError) as error:
            raise RefusedError(
                f"{place.kit}/ca.crt: no certificate ({error}); {kit.REMEDY}"
            ) from error
        files = {place.name: "node.crt", "authority": "ca.crt"}
        self.valid |= kit.own_validity(place.kit, files)

    def _warn(self) -> None:
        """Say which certificates end soon, or have ended; the days once a day, the hours once an
        hour.
        """
        with contextlib.suppress(OSError):
            validity.write(self.place.folder, self.valid)
        said = validity.warnings(self.valid, kit.now())
        for who, why in said.items():
            if self._said.get(who) != why:
                words = f"the certificate of {who} {why}: {kit.RENEW}"
                _log.warning("%s", words)
                self.place.told(self.accepted, words)
        self._said = said

    async def _watch(self) -> None:
        while True:
            self._warn()
            await asyncio.sleep(WATCH)

    def run(self) -> None:
        """Be connected until :meth:`end`; an error that ends it before is put into the inbox."""
        self.loop.run_forever()
        self.loop.close()

    def end(self) -> None:
        """Leave the coordinator; for any thread."""

        async def leave() -> None:
            if self.link is not None:
                messages.cut_soon(self.link)
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

    def _put(self, came: tuple[ClientConnection, int, bytes] | Exception) -> None:
        self.inbox.append(came)
        self.came.set()

    def _ended(self, keeping: asyncio.Task[None]) -> None:
        if not keeping.cancelled() and isinstance(error := keeping.exception(), Exception):
            self._put(error)

    async def _keep(self) -> None:
        self.lost = said = time.monotonic()
        lines = 0
        while True:
            try:
                if self.known:
                    self._take_credentials()
                await self._receive()
            except RefusedError as error:  # new ones may be on their way
                await self._tell_clock(error)
                end = self.lost + self.place.patience
                reason = str(error)
            except (OSError, WebSocketException, ValueError, ImportError) as error:
                if self.accepted:
                    self.accepted = False
                    self.strange = 0.0
                    self.taken_since = 0.0
                    self.lost = said = time.monotonic()
                    lines = 0
                await self._tell_clock(error)
                end, reason = self._judged(error)
            now = time.monotonic()
            if now >= end:
                raise ConnectionLost(f"no coordinator at {self.where}: {reason}")
            if now - said >= min(WORD * 2.0**lines, QUIET) and end < math.inf:
                said = now
                lines = min(lines + 1, 16)
                remaining = f"trying for {end - now:.0f} s more"
                words = f"no coordinator at {self.where} ({reason}): {remaining}"
                _log.warning("%s", words)
                self.place.told(False, words)
            await asyncio.sleep(min(0.1 if now - self.lost < 1 else 0.5, end - now))

    async def _tell_clock(self, error: Exception) -> None:
        """Tell the coordinator, once a minute, where this machine's clock is why."""
        if _of_time(error) and time.monotonic() >= self._told_clock + WATCH:
            self._told_clock = time.monotonic()
            await told_clock(self.place)

    async def _receive(self) -> None:
        """Connect, and receive messages until the connection ends."""
        self.proxy = proxy_to(self.place)
        async with dial(self.place, self.context) as self.link:
            challenge = await messages.heard(self.link)
            if not isinstance(challenge, bytes):
                raise ValueError("no challenge")
            signed = messages.statement(challenge, self.place.name, self.token)
            signature = b"" if self.key is None else self.key.sign(signed, ec.ECDSA(SHA256()))
            identity = {"name": self.place.name, "token": self.token, "signature": signature.hex()}
            await self.link.send(json.dumps(identity))
            if await messages.heard(self.link, beats=True) != "":
                raise ValueError("no welcome")
            self.accepted = self.known = True
            self._see_certificate(self.link)
            self.place.told(True, f"connected to {self.where}")
            async with messages.alive(self.link), messages.beside(self._watch()):
                while True:
                    await self._take(self.link)

    def _see_certificate(self, link: ClientConnection) -> None:
        """Take note of when the coordinator's certificate is valid, which came with TLS."""
        secured: ssl.SSLObject | None = link.transport.get_extra_info("ssl_object")
        shown = None if secured is None else secured.getpeercert(binary_form=True)
        if shown:
            self.valid["coordinator"] = kit.validity_of(load_der_x509_certificate(shown))
        self._warn()

    async def _take(self, link: ClientConnection) -> None:
        """Receive a message."""
        (number, size), content = messages.read_head(await messages.heard(link)), bytearray()
        while len(content) < size:
            piece = await messages.heard(link)
            if isinstance(piece, str):
                raise ValueError("a message with a piece too few")
            content += piece
        self._put((link, number, bytes(content)))

    def _judged(self, error: Exception) -> tuple[float, str]:
        """Return until when to try again after an error, and why; raise if another try cannot
        help.
        """
        now = time.monotonic()
        code = (
            error.rcvd.code if isinstance(error, ConnectionClosed) and error.rcvd is not None else 0
        )
        if code == messages.REFUSED:
            if self.known:  # renewed or revoked meanwhile: a new key may be on its way
                return self.lost + self.place.patience, str(self._unknown())
            raise self._unknown() from error
        if code == messages.ENDED and isinstance(error, ConnectionClosed) and error.rcvd:
            why = f"the certificate of {self.place.name} {printable(error.rcvd.reason, 200)}"
            if not self.known:
                words = f"{why}, by the clock of the coordinator at {self.where}: {kit.RENEW}"
                raise RefusedError(words, kit.NOT_VALID) from error
            return self.lost + self.place.patience, f"{why}: {kit.RENEW}"
        if code == messages.TAKEN:
            # Perhaps the party's last process, on a machine that is gone: the coordinator waits for
            # its time-out, and then keeps the name for its return.
            self.taken_since = self.taken_since or now
            if now - self.taken_since > SILENCE + messages.CALL + 2:
                raise RefusedError(
                    f"another process is connected to {self.where} as party {self.place.name!r}: "
                    "end it, or join under another name and with its key"
                ) from error
            return math.inf, ""
        tls = None if isinstance(error, ConnectionError) else _tls_error(error)
        if isinstance(tls, ssl.SSLCertVerificationError) and tls.verify_code in _TIMES:
            why = f"the certificate of the coordinator at {self.where} {_TIMES[tls.verify_code]}"
            words = f"{why} by this machine's clock, {kit.now().isoformat(timespec='seconds')}"
            if not self.known:
                raise RefusedError(
                    f"{words}: its people renew it with `fedunseen certs renew`, or set the clock",
                    kit.NOT_VALID,
                ) from error
            return self.lost + self.place.patience, words
        if isinstance(tls, ssl.SSLCertVerificationError):
            raise RefusedError(
                f"the certificate of the coordinator at {self.where} is not accepted: "
                f"{tls.verify_message.rstrip('.')}; take the folder that was made with the "
                "coordinator's and an address that its certificate names, or make new ones with "
                "`fedunseen certs`"
            ) from error
        cut = self._is_cut(error, tls)
        behind = isinstance(error, ProxyError)
        if not cut and not behind and (reason := _foreign(error, tls)):
            self.strange = self.strange or now
            return self.strange + min(STRANGE, self.place.patience), reason
        self.strange = 0.0
        end = self.lost + self.place.patience
        reason = "it hangs up while the connection is secured" if cut else _reason(error)
        if self.proxy is not None and not self.known:
            place = urlsplit(self.proxy)
            named = f"{bracketed(place.hostname or '')}:{place.port}"  # without a password
            reason += f", through the proxy {named} of https_proxy or all_proxy: fix or unset it"
        return end, reason

    def _unknown(self) -> RefusedError:
        """Return the error of a party that the coordinator lacks."""
        name = self.place.name
        reason = (
            f"does not know this key of {name!r}" if self.place.kit else f"has no party {name!r}"
        )
        return RefusedError(
            f"the coordinator at {self.where} {reason}: take the name and the folder that were "
            "made with the coordinator's, or ask for them to be added"
        )

    def _is_cut(self, error: Exception, tls: ssl.SSLError | None) -> bool:
        """Return whether a coordinator that ends or begins, or a proxy, has cut the connection."""
        if isinstance(tls, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return True
        cut = isinstance(error, InvalidMessage) and isinstance(error.__cause__, EOFError)
        return cut and self.context is not None


def _foreign(error: Exception, tls: ssl.SSLError | None) -> str:
    """Return why what listens is not a coordinator; "" if it may be one that is not ready."""
    if isinstance(error, InvalidStatus) and error.response.status_code in (500, 502, 503, 504):
        return ""
    if tls is not None:
        tried = f"does not speak TLS ({tls.reason or tls}): is it --insecure?"
        return f"what listens there {tried}"
    if isinstance(error, InvalidHandshake | ValueError):
        return "what listens there speaks something else: TLS, or no coordinator"
    return ""


def _reason(error: Exception) -> str:
    """Return why a connection failed; of the first address, where there are several."""
    number = re.search(r"\[Errno (\d+)\]", str(error))
    if number:
        return os.strerror(int(number[1]))
    return re.sub(r"^\[Errno \S+\] ", "", str(error)) or type(error).__name__


def answer_messages(place: Join, answer: Answer, done: threading.Event) -> None:
    """Connect a party and answer until done; see :func:`fedunseen.deploy.websocket.join`."""
    try:
        connection = Connection(place)
    except RefusedError as error:
        if _of_time(error):
            asyncio.run(told_clock(place))
        raise
    thread = threading.Thread(target=connection.run, name="websocket", daemon=True)
    thread.start()
    try:
        while not done.is_set():
            if not connection.came.wait(0.1):
                continue
            connection.came.clear()
            came = connection.inbox.pop()
            if isinstance(came, Exception):
                raise came
            link, number, message = came
            connection.send(link, number, answer(message))
    finally:
        connection.end()
        thread.join(2)


def _holder(folder: Path) -> str:
    """Return what tells a party's state folder from others; it is drawn once."""
    path = folder / "holder"
    with contextlib.suppress(OSError, ValueError):
        if re.fullmatch("[0-9a-f]{32}", holder := path.read_text("ascii")):
            return holder
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, holder := secrets.token_hex(16))
    return holder


def _of_time(error: Exception) -> bool:
    """Return whether a certificate is not valid by this machine's clock."""
    if isinstance(error, RefusedError):
        return error.code == kit.NOT_VALID
    tls = _tls_error(error)
    return isinstance(tls, ssl.SSLCertVerificationError) and tls.verify_code in _TIMES


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None
