"""NVIDIA FLARE as the carrier of messages.

NVFlare's own unit of work is a job. A job takes seconds to start and to end, is lost with its server, ends when one
client process dies, and is closed to sites that come later. So a deployment runs no jobs. NVFlare's system components
live in the parent processes of server and sites, which stay connected, registered and authenticated without any job and
exchange auxiliary messages, each with a time-out. A component of ours
(:mod:`~fedunseen.engines.carriers.nvflare.components`) in each of these processes passes bytes on to our processes.
A side effect is that a coordinator cannot ship code: a site answers no command and accepts no job.

NVFlare's processes hold no state that a run needs. One that ends, or has lost its peer, is replaced.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedunseen.core.errors import ConnectionLost, FedUnseenError, RefusedError
from fedunseen.engines.carriers.nvflare.kit import (
    PROJECT,
    SERVER,
    certificates,
    check_kit,
    check_name,
    check_names,
    needed,
    renewed,
    revoked_in,
)
from fedunseen.engines.carriers.nvflare.workspace import home, secured, start, write_workspace
from fedunseen.engines.remote.keeper import Child, Progress
from fedunseen.engines.remote.link import LOOKING, Answer, Host, Join, Link, Simulate, address
from fedunseen.engines.remote.relay import ENDED, Channel, Port, Switchboard

__all__ = ["certificates", "host", "join", "renewed", "simulate"]

COMPONENTS = f"{__name__}.components"  # the module of ours that NVFlare's processes load
SILENT = 20.0  # s after which a party is told that it is not let in yet
NOT_IN = "the coordinator at %s has not let this party in yet: NVFlare is slow to start, or the certificate was revoked"
START = 60.0  # s in which NVFlare's processes have to make progress while they start
_log = logging.getLogger("fedunseen.federation")  # what the party's people read
TELL = 5.0  # s between two lines that say what join waits for


# The coordinator


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _may_listen(address: str, port: int) -> None:
    """Raise ConnectionLost if one cannot listen there; gRPC would share a port with another process and say nothing."""
    try:
        where = socket.getaddrinfo(address, port, socket.AF_INET, socket.SOCK_STREAM)[0][4]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            probe.listen(1)
    except OSError as error:
        raise ConnectionLost(
            f"cannot listen at {address}:{port}: {error.strerror or error}; choose another address or port"
        ) from None


@contextlib.contextmanager
def host(place: Host) -> Iterator[Link]:
    """Run NVFlare's server as long as the context lasts; see :class:`Host`.

    Raises:
        MissingDependencyError: NVFlare is not installed.
        RefusedError: the certificate has expired, or the kit lacks a file.
        ConnectionLost: one cannot listen at the address.
        FedUnseenError: a party's name cannot be used, or NVFlare does not start.
    """
    needed()
    check_names(place.parties)
    if place.kit is not None:
        check_kit(place.kit, "server")
    end = time.monotonic() + 5  # the server of a coordinator that was killed just now may still be ending
    while True:
        try:
            _may_listen(place.address, place.port)
            break
        except ConnectionLost:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
    folder = place.folder / "nvflare"
    folder.mkdir(parents=True, exist_ok=True)
    board = Switchboard()
    with Port(folder, board.serve) as port, contextlib.ExitStack() as stack:
        keeper = _Kept(lambda: _server(place, folder, port))
        stack.callback(keeper.stop)
        _wait_for(board, keeper, folder)
        yield board


def _server(place: Host, folder: Path, port: Port) -> Child:
    """Start NVFlare's server."""
    # NVFlare binds its service to all interfaces unless it is loopback, but what it calls the administrators' listener,
    # where sites may connect just as well, to the address that it is given. So the service gets a port of its own on
    # loopback, and the other listener is the one that parties know.
    server = {
        "name": PROJECT,
        "service": {"target": f"127.0.0.1:{_free_port()}", "scheme": "grpc"},
        "admin_host": socket.gethostbyname(place.address),
        "admin_port": place.port,
        **secured(place.kit, "server"),
    }
    limits = {"max_num_clients": 10_000, "heart_beat_timeout": 60, "admin_storage": "transfer", "shutdown_period": 1}
    gone = [] if place.kit is None else revoked_in(place.kit)
    component = {"path": f"{COMPONENTS}.CoordinatorRelay", "args": {"parties": list(place.parties), "revoked": gone}}
    write_workspace(folder, "server", {"servers": [server]}, {"servers": [limits]}, place.kit, component)
    return start(folder, "server", place.kit, port.environment)


class _Kept:
    """A process that is started again whenever it ends."""

    def __init__(self, start: Callable[[], Child]) -> None:
        self.start = start
        self.failures = 0
        self.ended = threading.Event()
        self.child = start()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        while not self.ended.wait(0.1):
            if self.child.status is not None:
                self.failures += 1
                self.child.stop()
                if not self.ended.wait(min(5.0, 0.5 * self.failures)):
                    self.child = self.start()

    def stop(self) -> None:
        self.ended.set()
        self.thread.join(20)
        self.child.stop(0.5)


def _wait_for(board: Switchboard, keeper: _Kept, folder: Path) -> None:
    """Wait until the relay in NVFlare's process has dialled.

    Raises:
        FedUnseenError: it does not, or its process ends again and again.
    """
    progress = Progress(keeper.child, START)
    while board.channel is None:
        if progress.child is not keeper.child:
            progress = Progress(keeper.child, START)
        if keeper.failures > 2 or progress.stalled:
            raise FedUnseenError(f"NVFlare does not start; log.txt and output.txt in {folder} say why")
        time.sleep(0.02)


# A party


class _Cut(OSError):
    """The other side cut a new connection: its process is ending, or it refuses this party."""


def _probe(place: Join) -> None:
    """Connect to the coordinator and leave again.

    Raises:
        OSError: nobody is there, or (:class:`_Cut`) perhaps not the right one.
        RefusedError: it is not the right one, or does not accept the party's certificate.
    """
    there = f"{place.address}:{place.port}"
    with socket.create_connection((place.address, place.port), 5) as plain:
        if place.kit is None:
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            greeting = b""
            with contextlib.suppress(ConnectionError):
                greeting = plain.recv(4)
            if greeting[3:4] != b"\x04":  # HTTP/2 servers, so gRPC's, begin with their settings
                raise _Cut(
                    f"what listens at {there} is no coordinator without TLS; use its right address and port, "
                    "or TLS with the kit that its host gave you"
                )
            return
        context = ssl.create_default_context(cafile=str(place.kit / "rootCA.pem"))
        context.load_cert_chain(place.kit / "client.crt", place.kit / "client.key")
        context.set_alpn_protocols(["h2"])
        refusal = (
            f"the coordinator at {there} refuses a connection with the certificate in {place.kit} (%s); "
            "use certificates that were made together, and TLS on both sides or on neither"
        )
        try:
            with context.wrap_socket(plain, server_hostname=place.address) as secure:
                secure.settimeout(2)
                with contextlib.suppress(TimeoutError):
                    if not secure.recv(1):  # with TLS 1.3 the other side's verdict comes after the handshake
                        raise _Cut(refusal % "it hangs up")
        except ssl.SSLCertVerificationError as error:
            raise RefusedError(
                f"the coordinator at {there} shows a certificate that does not hold: {error.verify_message}; "
                "use its right address, and certificates that were made together"
            ) from None
        except (ssl.SSLEOFError, ConnectionError):
            raise _Cut(refusal % "it hangs up") from None
        except ssl.SSLError as error:
            raise RefusedError(refusal % error.reason) from None


class _Inbox:
    """What arrives from a party's NVFlare processes: each one that is started has a channel of its own."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[tuple[str, Channel, dict[str, Any], bytes]] = queue.SimpleQueue()

    def serve(self, channel: Channel) -> None:
        while True:
            head, body = channel.receive()
            self.events.put(("message" if "id" in head else str(head.get("state", "delivered")), channel, head, body))


def join(place: Join, answer: Answer, done: threading.Event) -> None:
    """Answer the coordinator's messages until ``done`` is set, or the coordinator is gone for too long.

    Raises:
        MissingDependencyError: NVFlare is not installed.
        RefusedError: a certificate is not accepted, the coordinator does not know the party, or another has joined
            under its name since: the newest is let in, and the other one is told.
        ConnectionLost: nobody has been there for ``patience`` seconds.
    """
    needed()
    if place.kit is not None:
        check_kit(place.kit, "client")
        check_name(place.kit, place.name)
    folder = place.folder / "nvflare"
    folder.mkdir(parents=True, exist_ok=True)
    inbox = _Inbox()
    client = {"fqsn": place.name, "is_leaf": True, **secured(place.kit, "client")}
    service = {"target": f"{place.address}:{place.port}", "scheme": "grpc"}
    startup = {"servers": [{"name": PROJECT, "service": service, "identity": SERVER}], "client": client}
    component = {"path": f"{COMPONENTS}.PartyRelay", "args": {}}
    token = {"FEDUNSEEN_TOKEN": secrets.token_hex(8)}
    with Port(folder, inbox.serve) as port:
        gone, told = time.monotonic(), time.monotonic()
        first, before = True, False
        while not done.is_set():
            try:
                _probe(place)
            except OSError as error:
                # A coordinator that is ending hangs up, and a proxy until the coordinator has started; so does one that
                # refuses this party, which cannot be told apart.
                cut = isinstance(error, _Cut)
                why = "it hangs up" if cut else error.strerror or str(error)
                now = time.monotonic()
                if now - gone >= place.patience:
                    if cut and not before:
                        raise RefusedError(str(error)) from None
                    raise ConnectionLost(
                        f"no coordinator answers at {place.address}:{place.port} ({why}); "
                        "check address and port, or start it"
                    ) from None
                if first or now - told >= TELL:
                    first, told = False, now
                    where = f"{place.address}:{place.port}"
                    why = str(error) if cut and not before else why
                    _log.warning("waiting for the coordinator at %s: %s", where, why, extra=LOOKING)
                time.sleep(min(0.5, place.patience))
                continue
            write_workspace(
                folder, "client", startup, {"client": {"client_register_interval": 0.2}}, place.kit, component
            )
            child = start(folder, "client", place.kit, {**port.environment, **token}, f"uid={place.name}")
            try:
                connected = _serve(place, inbox, child, answer, done)
            finally:
                child.stop(0.3)
            if done.is_set():
                return
            if connected:
                gone, first, before = time.monotonic(), True, True
            elif time.monotonic() - gone >= max(place.patience, START):
                raise ConnectionLost(
                    f"NVFlare does not get through to the coordinator at {place.address}:{place.port}; "
                    f"{folder / 'log.txt'} says why, or the party's certificate has been revoked"
                )


def _serve(place: Join, inbox: _Inbox, child: Child, answer: Answer, done: threading.Event) -> bool:
    """Answer messages of one NVFlare process until it ends or loses the coordinator; return if it ever reached it.

    Of messages that wait while another is answered, only the newest counts: the coordinator has dropped the others.
    """
    connected = False
    channel: Channel | None = None
    asked, starting = time.monotonic(), Progress(child, START)
    waiting: tuple[str, bytes] | None = None
    sent: str | None = None  # the answer that is on its way
    while True:
        try:
            what, source, head, body = inbox.events.get(timeout=0.0 if waiting else 0.1)
        except queue.Empty:
            if waiting is not None and channel is not None:
                (key, message), waiting = waiting, None
                reply = answer(message)
                sent = key
                with contextlib.suppress(*ENDED):
                    channel.send({"id": key}, reply)
                continue
            late = not connected and starting.stalled
            if child.status is not None or late or (done.is_set() and sent is None):
                return connected
            if not connected and time.monotonic() - asked > TELL:
                asked = time.monotonic()
                try:
                    _probe(place)
                except OSError:  # gone while NVFlare was starting
                    return False
                if time.monotonic() - starting.began > SILENT:
                    where = f"{place.address}:{place.port}"
                    _log.warning(NOT_IN, where, extra=LOOKING)
            continue
        if what == "connected":
            connected, channel = True, source
        if source is not channel and what != "refused":
            continue  # from a process that has been replaced
        if what == "refused":
            raise RefusedError(f"{head['why']}; join under a name from the coordinator's list, one party for each")
        if what == "message":
            waiting = head["id"], body
        if what == "delivered" and head["delivered"] == sent:
            sent = None
        if what == "lost":
            return True


# Simulation


@contextlib.contextmanager
def simulate(place: Simulate) -> Iterator[Link]:
    """Run parties in the client processes of a job of NVFlare's simulator, as long as the context lasts.

    A process that dies takes the job with it; another one is started, and its parties have new tokens.

    Raises:
        MissingDependencyError: NVFlare is not installed.
        FedUnseenError: the simulator does not start.
    """
    needed()
    folder = place.folder / "nvflare"
    folder.mkdir(parents=True, exist_ok=True)
    processes = min(place.processes, place.parties)
    board = Switchboard()
    with Port(folder, board.serve) as port, contextlib.ExitStack() as stack:
        environment = {**os.environ, **port.environment, **home(folder)}
        job = [
            str(folder.resolve() / "job"),
            str(place.parties),
            str(processes),
            address(place.factory),
            place.argument,
        ]
        command = [sys.executable, "-c", f"from {__name__}.simulation import main; main(*{job})"]
        keeper = _Kept(lambda: Child(command, folder / "output.txt", environment, folder))
        stack.callback(keeper.stop)
        _wait_for(board, keeper, folder)
        yield board
