"""The coordinator's side of engine "websocket": who may connect, who is there, and what has no
answer yet.

All of it runs in one thread's event loop; :meth:`Connections.present` and :meth:`Connections.ask`
are for any thread.
"""

import asyncio
import contextlib
import itertools
import logging
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as websocket_server
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from fedunseen.core import validity
from fedunseen.core.addresses import bracketed
from fedunseen.core.array_cache import FileStamp, file_stamp
from fedunseen.core.errors import ConnectionLost, RefusedError
from fedunseen.core.files import parse_json, write_json
from fedunseen.core.log_files import LogFile
from fedunseen.core.validity import Validity
from fedunseen.deploy.remote.link import (
    SPOOLED,
    Host,
    Letter,
    Link,
    MessageLost,
    PartyGone,
    Spooled,
    complete,
)
from fedunseen.deploy.websocket import kit, messages
from fedunseen.deploy.websocket.messages import pieces

# bytes of an answer: so many, or so many times the message's, if that is more
ALLOWED = 2**30
TIMES = 8
GRACE = 4.0  # seconds for a party to connect again after its connection broke
_OTHER_KEY = (
    "who came under its name has another key than these credentials hold: if it was that party, "
    "copy the newer files to the end that lacks them"
)
WATCH = 2.0  # seconds between two looks at the credentials and at the time
SETTLED = 5.0  # seconds without a key after which a party is revoked: files are copied one by one
UNREAD = 2**20  # bytes that may wait for a side that does not read them
_log = logging.getLogger("fedunseen.federation")
_library = logging.getLogger("fedunseen.deploy.websocket")

Watch = Callable[[], Awaitable[None]]
"""What goes on beside the connections for as long as they last."""


class Guarded(ServerConnection):
    """A connection that ends if its other side does not say in time who it is.

    TLS, the opening and the signature share one deadline, ``messages.CALL`` after the connection
    was accepted. The connection also ends if the other side asks for more, by pings, than it reads.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._until = self.loop.time() + messages.CALL
        self._stranger: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, after TLS, with what is left of the time."""
        super().connection_made(transport)
        self._stranger = self.loop.call_at(self._until, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self.identified()
        super().connection_lost(exc)

    def identified(self) -> None:
        """Take the deadline away: the other side has said who it is."""
        if self._stranger is not None:
            self._stranger.cancel()

    def data_received(self, data: bytes) -> None:
        """Handle bytes."""
        super().data_received(data)
        if self.transport.get_write_buffer_size() > UNREAD:
            self.transport.abort()


class _Refused(Exception):
    """The connection is closed with a code."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


@dataclass(eq=False)
class _Party:
    """A party's process, and its connection."""

    name: str
    token: str
    connection: ServerConnection
    turn: asyncio.Lock = field(
        default_factory=asyncio.Lock
    )  # messages are sent one after the other


class Holders:
    """Which state folder holds the name of each party, kept over restarts of the coordinator.

    After a lost connection and after a restart, a name stays reserved for ``messages.CALL``
    seconds: a process that is alive connects again within them, and no other may be quicker.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.names: dict[str, str] = {}
        if path is not None and path.exists():
            self.names = {str(name): str(holder) for name, holder in _stored(path).items()}
        self._reserved_until = dict.fromkeys(self.names, time.monotonic() + messages.CALL)

    def may_connect(self, name: str, token: str) -> bool:
        """Return whether a process may take a name now."""
        reserved = time.monotonic() < self._reserved_until.get(name, 0.0)
        return not reserved or self.names[name] == messages.holder_of(token)

    def connected(self, name: str, token: str) -> None:
        """Reserve a name for the state folder of a process that has connected."""
        self._reserved_until[name] = float("inf")
        if self.names.get(name) != messages.holder_of(token):
            self.names[name] = messages.holder_of(token)
            if self.path is not None:
                write_json(self.path, self.names)

    def gone(self, name: str, leaves: bool) -> None:
        """Take note that a connection has ended; a process that leaves gives up its name."""
        self._reserved_until[name] = 0.0 if leaves else time.monotonic() + messages.CALL


def _stored(path: Path) -> dict[str, Any]:
    try:
        names = parse_json(path.read_bytes())
    except (OSError, ValueError):
        names = None
    if not isinstance(names, dict):
        raise RefusedError(f"{path} cannot be read: remove it, and no party's name is reserved")
    return names


@dataclass(frozen=True, eq=False)
class _Ask:
    """A message that has no answer yet."""

    party: _Party
    message: bytes | Letter
    future: Future[Any]


class Connections:
    """A :class:`~fedunseen.deploy.remote.link.Link` over the connections of parties.

    Large answers are written to ``folder`` as they arrive, so that memory holds none of them.
    """

    letters = True

    def __init__(
        self,
        parties: tuple[str, ...],
        keys: Mapping[str, ec.EllipticCurvePublicKey] | None = None,
        valid: Mapping[str, Validity] | None = None,
        holders: Holders | None = None,
        folder: Path | None = None,
    ) -> None:
        self.folder = folder
        self.parties = parties
        self.holders = holders or Holders()
        self.keys = keys
        self.valid = dict(valid or {})
        self._keyless = {} if keys is None else dict.fromkeys(set(parties) - set(keys), -SETTLED)
        self.seen: dict[str, _Party] = {}
        self.off: dict[str, str] = {}  # party -> why it could not come: its clock, its key
        self.open: dict[int, _Ask] = {}
        self.numbers = itertools.count()
        self.clock = kit.now
        self._latest = datetime.min.replace(tzinfo=UTC)  # that the clock has shown
        self.loop = asyncio.new_event_loop()
        self.over = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()
        self.waiting: set[Future[Any]] = set()

    def present(self) -> Mapping[str, str]:
        """Return the parties that are connected now: name -> a token that changes when the party
        starts again.
        """
        return {
            name: party.token
            for name in self.parties
            if (party := self.seen.get(name)) and not self.fault(name)
        }

    def barred(self) -> Mapping[str, str]:
        """Return the parties whose certificates are not valid, that say so by their own clocks, or
        under whose names others have come: name -> why.
        """
        faults = {name: self.fault(name) for name in self.parties}
        return self.off | {name: f"its certificate {why}" for name, why in faults.items() if why}

    def revoked(self) -> Collection[str]:
        """Return the parties whose keys the coordinator's credentials hold no more."""
        now = time.monotonic()
        return {name for name, since in self._keyless.items() if now - since >= SETTLED}

    def ask(self, name: str, message: bytes | Letter) -> Future[Any]:
        """Send a party a message; see :class:`~fedunseen.deploy.remote.link.Link`."""
        future: Future[Any] = Future()
        self.waiting.add(future)
        future.add_done_callback(self.waiting.discard)
        try:
            self.loop.call_soon_threadsafe(self._ask, name, message, future)
        except RuntimeError:  # the loop has ended
            complete(future, PartyGone(name))
        return future

    def _ask(self, name: str, message: bytes | Letter, future: Future[Any]) -> None:
        party = self.seen.get(name)
        if party is None or self.fault(name):
            complete(future, PartyGone(name))
            return
        number = next(self.numbers)
        self.open[number] = _Ask(party, message, future)
        future.add_done_callback(lambda done: self.open.pop(number, None))
        self._start(self._send(party, number))

    def _start(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _send(self, party: _Party, number: int) -> None:
        async with party.turn:
            if (ask := self.open.get(number)) is None:
                return  # given up while others were sent
            try:
                for piece in pieces(number, ask.message):
                    async with asyncio.timeout(messages.CALL):
                        await party.connection.send(piece)
            except TimeoutError:  # it takes nothing: it may connect again
                messages.cut_soon(party.connection)
            except ConnectionClosed:
                pass  # the party connects again and is asked again, or is gone

    async def serve(self, connection: ServerConnection) -> None:
        """Run a connection until it ends."""
        assert isinstance(connection, Guarded)
        try:
            party = await self._identified(connection)
            connection.identified()
        except _Refused as error:
            await connection.close(error.code, str(error))
            return
        except (ConnectionClosed, ValueError, TypeError, KeyError, OverflowError):
            return
        before = self.seen.get(party.name)
        self.seen[party.name] = party
        self.off = {name: why for name, why in self.off.items() if name != party.name}
        self.holders.connected(party.name, party.token)
        again = before is not None and before.token == party.token
        self._fail(party.name, MessageLost(party.name) if again else PartyGone(party.name))
        if before is not None:
            messages.cut_soon(before.connection)
            self._start(before.connection.close())
        try:
            async with messages.alive(connection):
                while True:
                    await self._take(party)
        except (ConnectionClosed, TimeoutError):
            pass
        except ValueError as error:  # after any message of a party, the others continue
            _log.warning("party %s sent what cannot be read: %s", party.name, error)
            self._fail(party.name, PartyGone(party.name))
        finally:
            leaves = connection.close_code == 1000
            if self.seen.get(party.name) is party:
                self.holders.gone(party.name, leaves)
            self.loop.call_later(0.0 if leaves else GRACE, self._forget, party)

    async def _identified(self, connection: ServerConnection) -> _Party:
        """Return who has connected; raises _Refused for a stranger."""
        challenge = secrets.token_bytes(32)
        await connection.send(challenge)
        said = parse_json(await connection.recv())
        name = str(said["name"])
        signature = bytes.fromhex(said["signature"])
        if "clock" in said:
            shown = str(said["clock"])
            self._verify(name, signature, messages.clock_statement(challenge, name, shown))
            self._hear_clock(name, datetime.fromisoformat(shown).astimezone(UTC))
            raise _Refused(messages.ENDED, "")
        token = str(said["token"])[:64]
        try:
            self._verify(name, signature, messages.statement(challenge, name, token))
        except _Refused:
            self._hear_stranger(name)
            raise
        if name not in self.parties:
            raise _Refused(messages.REFUSED, "not registered")
        if why := self.fault(name):  # said to who has the key alone
            raise _Refused(messages.ENDED, why)
        earlier = self.seen.get(name)
        taken = (
            earlier is not None
            and earlier.token != token
            and earlier.connection.state is State.OPEN
        )
        if taken or not self.holders.may_connect(name, token):
            raise _Refused(messages.TAKEN, "another process is connected as this party")
        return _Party(name, token, connection)

    def _verify(self, name: str, signature: bytes, statement: bytes) -> None:
        """Raise _Refused unless a party has signed this."""
        if self.keys is None:
            return
        try:
            self.keys[name].verify(signature, statement, ec.ECDSA(SHA256()))
        except (KeyError, InvalidSignature):
            raise _Refused(messages.REFUSED, "not registered") from None

    def _hear_clock(self, name: str, clock: datetime) -> None:
        """Take note of the clock of a party by which a certificate is not valid."""
        if self.keys is not None and name in self.parties and name not in self.seen:
            shown = f"by its clock, {clock.isoformat()}, a certificate is not valid"
            here = self.clock().isoformat(timespec="seconds")
            self.off |= {name: f"{shown}, and this machine's says {here}: {kit.SET}"}

    def _hear_stranger(self, name: str) -> None:
        """Take note that someone has come under a party's name with another key than its own: a
        stranger, or that party while new credentials are at one end alone.
        """
        if name in (self.keys or {}) and name not in self.seen:
            self.off = {name: _OTHER_KEY} | self.off

    async def _take(self, party: _Party) -> None:
        """Receive an answer, and complete its future; one for which no one waits any more is thrown
        away.
        """
        number, size = messages.read_head(await messages.heard(party.connection))
        ask = self.open.get(number)
        if ask is not None and ask.party.name != party.name:
            raise ValueError("an answer to a message to another party")
        if not 0 <= size <= max(ALLOWED, 0 if ask is None else TIMES * len(ask.message)):
            raise ValueError(f"{size:,} bytes are too many")
        content = bytearray()
        spool: Spooled | None = None
        large = size >= SPOOLED
        while size > 0:
            piece = await messages.heard(party.connection)
            if isinstance(piece, str) or not 0 < len(piece) <= size:
                raise ValueError("a message with a piece too many")
            size -= len(piece)
            if ask is None or ask.future.done():
                continue
            if not large:
                content += piece
                continue
            try:
                spool = spool or Spooled(self.folder)
                spool.add(piece)
            except OSError as error:  # a full disk, which someone may empty: it is asked again
                _log.warning("the answer of %s cannot be stored: %s", party.name, error)
                complete(ask.future, PartyGone(party.name))
        if ask is not None:
            complete(ask.future, spool or bytes(content))

    def fault(self, name: str) -> str:
        """Say why a party's certificate is not valid; "" if it is, or if it has none."""
        now = self.clock()
        self._latest = max(self._latest, now)  # a clock moved back revives no certificate
        valid = self.valid.get(name)
        return "" if valid is None else valid.fault(now) or valid.fault(self._latest)

    def admit(
        self, keys: Mapping[str, ec.EllipticCurvePublicKey], valid: Mapping[str, Validity]
    ) -> None:
        """Let parties in by these keys from now on, and shut out who has come with another."""
        before = self.keys or {}
        now = time.monotonic()
        self._keyless = {
            name: self._keyless.get(name, now) for name in self.parties if name not in keys
        }
        self.keys = keys
        self.valid = dict(valid)
        for name, party in list(self.seen.items()):
            if keys.get(name) != before.get(name):
                self._start(party.connection.close(messages.REFUSED, "not registered"))
                self._forget(party)

    def cut_ended(self) -> None:
        """End connections whose party's certificate has ended, and tell it so."""
        for name, party in list(self.seen.items()):
            if (why := self.fault(name)) and party.connection.state is State.OPEN:
                self._start(party.connection.close(messages.ENDED, why))

    def _fail(self, name: str, error: Exception) -> None:
        """Complete what has no answer yet from a party."""
        for ask in [ask for ask in self.open.values() if ask.party.name == name]:
            complete(ask.future, error)

    def _forget(self, party: _Party) -> None:
        """Take note that a party has gone, unless it has connected again."""
        if self.seen.get(party.name) is party:
            del self.seen[party.name]
            self._fail(party.name, PartyGone(party.name))

    def run(
        self,
        listener: socket.socket,
        context: ssl.SSLContext | None,
        started: Future[None],
        watch: Watch | None = None,
    ) -> None:
        """Listen, in a thread, until ``over`` is set, while ``watch`` goes on beside it."""
        try:
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.run(self._listen(listener, context, started, watch))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)
        finally:
            for future in list(self.waiting):
                complete(future, PartyGone("the coordinator has ended"))

    async def _listen(
        self,
        listener: socket.socket,
        context: ssl.SSLContext | None,
        started: Future[None],
        watch: Watch | None,
    ) -> None:
        server = await websocket_server(
            self.serve,
            sock=listener,
            ssl=context,
            ssl_handshake_timeout=context and messages.CALL,
            origins=[None],  # no page of a browser
            compression=None,
            server_header=None,
            open_timeout=messages.CALL,
            ping_interval=None,
            close_timeout=messages.LEAVE,
            max_size=messages.CHUNK,
            max_queue=8,
            logger=_library,
            create_connection=Guarded,
        )
        started.set_result(None)
        if watch is not None:
            self._start(watch())
        await self.over.wait()
        for connection in server.connections:
            messages.cut_soon(connection)
        server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * messages.LEAVE):
                await server.wait_closed()


Admission = (
    tuple[ssl.SSLContext, dict[str, ec.EllipticCurvePublicKey], dict[str, Validity]]
    | tuple[None, None, None]
)
"""The coordinator's side of TLS, the parties' keys, and when their certificates are valid; nothing
of it in plain text.
"""


class Credentials:
    """A coordinator's folder of certificates and keys, looked at again while it listens.

    Files that are copied into it count from then on: no restart, and who has a revoked key is shut
    out.
    """

    def __init__(self, place: Host, context: ssl.SSLContext, connections: Connections) -> None:
        assert place.kit is not None
        self.place = place
        self.kit = place.kit
        self.context = context
        self.connections = connections
        self._stamp = self._stamped()
        self._said: dict[str, str] = {}

    def _stamped(self) -> list[tuple[str, FileStamp]]:
        files = (path for path in sorted(self.kit.iterdir()) if path.is_file())
        # its own note is not news
        return [(path.name, file_stamp(path)) for path in files if path.name != kit.EVER_REVOKED]

    async def watch(self) -> None:
        """Look at the folder and at the time until the coordinator ends."""
        while True:
            # a full disk; a file that is being replaced, and is half there
            with contextlib.suppress(OSError, RefusedError):
                self.look()
            await asyncio.sleep(WATCH)

    def _taken(self, part: Callable[[], None]) -> bool:
        """Take a part of what is new; False where it cannot be read."""
        try:
            part()
        except (RefusedError, OSError) as error:  # half of it may be copied: the former one stays
            _log.warning("the credentials have changed and cannot be read yet: %s", error)
            return False
        return True

    def _shut_out(self) -> None:
        """Shut out who has come with a revoked key."""
        keys = kit.without_revoked(self.kit, self.connections.keys or {})
        valid = {name: span for name, span in self.connections.valid.items() if name in keys}
        self.connections.admit(keys, valid)

    def _admit(self) -> None:
        """Let parties in by the keys that are in the folder."""
        keys = kit.registered(self.kit, self.place.parties)
        self.connections.admit(keys, kit.validities(self.kit, keys))

    def _present(self) -> None:
        """Show the coordinator's certificate that is in the folder to who connects from now on."""
        self.context.load_cert_chain(*kit.server_files(self.kit))

    def look(self) -> None:
        """Take what is new in the folder, and say which certificates end soon, or have ended."""
        if (stamp := self._stamped()) != self._stamp:
            self._stamp = stamp
            # each by itself: damage to one does not keep a revoked party in
            taken = [self._taken(part) for part in (self._shut_out, self._admit, self._present)]
            if all(taken):
                _log.info("the credentials in %s are new, and count from now on", self.kit)
        self.connections.cut_ended()
        spans = kit.own_validity(self.kit, {"coordinator": "server.crt", "authority": "ca.crt"})
        spans |= self.connections.valid
        validity.write(self.place.folder, spans)
        said = validity.warnings(spans, self.connections.clock())
        for who, why in said.items():
            # the days that are left, once a day; the hours, once an hour
            if self._said.get(who) != why:
                _log.warning("the certificate of %s %s: %s", who, why, kit.RENEW)
        self._said = said


def _admission(place: Host) -> Admission:
    if place.kit is None:
        return None, None, None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(*kit.server_files(place.kit))
    except (OSError, ssl.SSLError) as error:
        raise RefusedError(
            f"{place.kit}: server.crt and server.key do not fit ({error}); {kit.REMEDY}"
        ) from error
    keys = kit.registered(place.kit, place.parties)
    return context, keys, kit.validities(place.kit, keys)


def check(place: Host) -> None:
    """Raise what :func:`serve` would because of credentials or address, and write nothing."""
    _admission(place)
    _listener(place.address, place.port).close()


@contextlib.contextmanager
def serve(place: Host) -> Iterator[Link]:
    """Listen for parties, and give a link to them."""
    context, keys, valid = _admission(place)
    with _listener(place.address, place.port) as listener, _logged(place):
        holders = Holders(place.folder / "holders.json")
        connections = Connections(place.parties, keys, valid, holders, place.folder)
        started: Future[None] = Future()
        watch = None if context is None else Credentials(place, context, connections).watch
        given = (listener, context, started, watch)
        thread = threading.Thread(target=connections.run, args=given, name="websocket", daemon=True)
        thread.start()
        started.result()
        try:
            yield connections
        finally:
            connections.loop.call_soon_threadsafe(connections.over.set)
            thread.join(5)


@contextlib.contextmanager
def _logged(place: Host) -> Iterator[None]:
    """Write what the library says of connections that fail to a file."""
    place.folder.mkdir(parents=True, exist_ok=True)
    handler = LogFile(place.folder / "connections.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    _library.addHandler(handler)
    _library.propagate = False
    try:
        yield
    finally:
        _library.removeHandler(handler)
        handler.close()


def _listener(address: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[
            0
        ]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(128)
    except OSError as error:
        reason = error.strerror or error
        raise ConnectionLost(
            f"cannot listen at {bracketed(address)}:{port} ({reason}): choose another address or "
            "port"
        ) from error
    return listener
