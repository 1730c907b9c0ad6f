"""NVIDIA FLARE as the carrier of messages.

``host`` and ``join`` start the processes that a start-up kit's scripts start, and ``host`` submits a job for each site
that registers. The job (:mod:`~fedunseen.engines.carriers.nvflare.job`) passes bytes on to our processes, so a job or a
process that ends loses nothing, and is replaced. In an existing federation: :mod:`fedunseen.tools.nvflare_job`.
"""

import contextlib
import logging
import queue
import secrets
import socket
import ssl
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fedunseen.core.errors import ConnectionLost, FedUnseenError, RefusedError
from fedunseen.core.files import write_json
from fedunseen.engines.carriers.nvflare import kit, workspace
from fedunseen.engines.carriers.nvflare.kit import certificates
from fedunseen.engines.remote.link import LOOKING, Answer, Host, Join, Link, Simulate
from fedunseen.engines.remote.relay import ENDED, Channel, Port, RelayServer
from fedunseen.engines.remote.supervisor import Child, Kept

__all__ = ["certificates", "host", "join", "simulate"]

NOT_IN = "the coordinator at %s has not let this party in yet: NVFlare is slow to start, or does not accept it"
QUIET = 10.0  # s without a ping after which a party looks whether its coordinator is there
START = 60.0  # s in which jobs start, and a party's process
PATIENCE = 600.0  # s in which the server starts, on a machine of any speed
TELL = 5.0  # s between two lines that say what join waits for
_log = logging.getLogger("fedunseen.federation")  # what the party's people read


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
    """Run NVFlare's server as long as the context lasts; see :class:`Host`."""
    kit.needed()
    kit.check_names(place.parties)
    if place.kit is not None:
        kit.check_kit(place.kit, "server")
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
    jobs = _Jobs(place.parties)
    with Port(folder, jobs.serve) as port, contextlib.ExitStack() as stack:
        supervisor = Kept(lambda: _server(place, folder, port))
        stack.callback(supervisor.stop)
        _wait(supervisor, lambda: jobs.registry is not None, folder)
        threading.Thread(target=jobs.manage, daemon=True).start()
        stack.callback(jobs.ended.set)
        yield jobs


def _wait(supervisor: Kept, started: Callable[[], bool], folder: Path) -> None:
    if not supervisor.ready(started, PATIENCE):
        raise FedUnseenError(f"NVFlare does not start; log.txt and output.txt in {folder} say why")


def _server(place: Host, folder: Path, port: Port) -> Child:
    """Start NVFlare's server."""
    # NVFlare binds its service to all interfaces unless it is loopback, but what it calls the administrators' listener,
    # where sites may connect just as well, to the address that it is given. So the service gets a port of its own on
    # loopback, and the other listener is the one that parties know.
    server = {
        "name": kit.PROJECT,
        "service": {"target": f"127.0.0.1:{_free_port()}", "scheme": "grpc"},
        "admin_host": socket.gethostbyname(place.address),
        "admin_port": place.port,
        **workspace.secured(place.kit, "server"),
    }
    workspace.write_workspace(folder, "server", {"servers": [server]}, place.kit)
    return workspace.start(folder, "server", place.kit, port.environment)


class _Jobs:
    """A Link over jobs: one for each site, or for several that have registered at the same time."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names, self.lock, self.ended = frozenset(names), threading.Lock(), threading.Event()
        self.registry: Channel | None = None
        self.registered: dict[str, str] = {}  # site -> a number that changes when it registers again
        self.changed = 0.0  # when a site registered last
        self.boards: dict[str, tuple[RelayServer, Channel]] = {}  # job -> its messages
        self.assigned: dict[str, tuple[str, str, float]] = {}  # site -> its number, its job, when it was last there

    def serve(self, channel: Channel) -> None:
        """Run a connection to the server's process, or to one of a job, until it ends."""
        head, _ = channel.receive()
        if "job" not in head:
            with self.lock:  # a server that has just started has no jobs
                self.registry, self.registered = channel, {}
                self.assigned.clear()
            while True:
                self.registered, self.changed = dict(head["sites"]), time.monotonic()
                head, _ = channel.receive()
        board = RelayServer()
        self.boards[head["job"]] = board, channel
        try:
            board.serve(channel)
        finally:
            with self.lock:
                del self.boards[head["job"]]
                for site, (number, job, _) in self.assigned.items():
                    if job == head["job"]:
                        self.assigned[site] = number, job, -START

    def manage(self) -> None:
        """Submit jobs for sites that have none, and end jobs that no one needs any more."""
        while not self.ended.wait(0.1):
            with contextlib.suppress(*ENDED):
                if self.registry is not None and time.monotonic() - self.changed > 1:  # others may be about to register
                    self._submit(self.registry)
                for job, (board, channel) in list(self.boards.items()):
                    self._review(job, board, channel)

    def _submit(self, registry: Channel) -> None:
        with self.lock:
            now, job = time.monotonic(), str(uuid.uuid4())
            sites = {site: number for site, number in self.registered.items() if not self._carried(site, number, now)}
            self.assigned.update({site: (number, job, now) for site, number in sites.items()})
        if sites:
            registry.send(*workspace.submission(job, sorted(sites)))

    def _carried(self, site: str, number: str, now: float) -> bool:
        """Return whether a job carries a site's messages, or may still do so."""
        known, job, since = self.assigned.get(site, ("", "", 0.0))
        if known == number and job in self.boards and site in self.boards[job][0].present():
            self.assigned[site], since = (number, job, now), now
        return known == number and now - since < START

    def _review(self, job: str, board: RelayServer, channel: Channel) -> None:
        """Refuse strangers and replaced clients; end a job without clients."""
        current = self.present()
        here = board.present()
        for site, token in here.items():
            if site not in self.names:
                channel.send({"refuse": site, "why": f"the coordinator knows no party {site!r}"})
            elif current.get(site, token) != token:
                channel.send({"refuse": site, "why": f"another party has joined as {site!r} since"})
        if not here and all(own != job for _, own, _ in list(self.assigned.values())):
            channel.send({"end": True})

    def _board(self, name: str) -> RelayServer | None:
        """Return what carries a party's messages: the job of its newest registration."""
        found = self.boards.get(self.assigned.get(name, ("", "", 0.0))[1])
        return None if found is None else found[0]

    def present(self) -> Mapping[str, str]:
        """Return the parties that are connected now: name -> a token that changes when the party starts again."""
        boards = {name: board for name in self.names if (board := self._board(name)) is not None}
        here = {name: board.present().get(name) for name, board in boards.items()}
        return {name: token for name, token in sorted(here.items()) if token is not None}

    def ask(self, name: str, message: bytes) -> Future[bytes]:
        """Send a party a message; see :class:`~fedunseen.engines.remote.link.Link`."""
        return (self._board(name) or RelayServer()).ask(name, message)


# A party


class _Cut(OSError):
    """The other side cut a new connection: its process is ending, or it refuses this party."""


def _probe(place: Join) -> None:
    """Connect to the coordinator and leave again."""
    there = f"{place.address}:{place.port}"
    with socket.create_connection((place.address, place.port), 5) as plain:
        if place.kit is None:
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            greeting = b""
            with contextlib.suppress(ConnectionError):
                greeting = plain.recv(4)
            if greeting[3:4] != b"\x04":  # HTTP/2 servers, so gRPC's, begin with their settings
                raise _Cut(
                    f"what listens at {there} is not a coordinator without TLS; use its right address and port, "
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


class _Site:
    """A party's NVFlare process, which is started again whenever it ends, and what comes from its jobs."""

    def __init__(self, place: Join, folder: Path, port: Port) -> None:
        self.place, self.folder = place, folder
        self.environment = {**port.environment, "FEDUNSEEN_TOKEN": secrets.token_hex(8)}
        self.child: Child | None = None
        self.began = self.heard = self.said = time.monotonic()
        self.met = False  # the coordinator has been there

    def start(self) -> None:
        """Start NVFlare's process instead of the one that ran."""
        self.stop()
        client = {"fqsn": self.place.name, "is_leaf": True, **workspace.secured(self.place.kit, "client")}
        service = {"target": f"{self.place.address}:{self.place.port}", "scheme": "grpc"}
        startup = {"servers": [{"name": kit.PROJECT, "service": service, "identity": kit.SERVER}], "client": client}
        workspace.write_workspace(self.folder, "client", startup, self.place.kit)
        self.child = workspace.start(self.folder, "client", self.place.kit, self.environment, f"uid={self.place.name}")
        self.began = time.monotonic()

    def stop(self) -> None:
        """End NVFlare's process."""
        if self.child is not None:
            self.child.stop(0.3)

    def closing(self) -> bool:
        """Return whether the coordinator still takes connections, so that it may confirm the last answer."""
        try:
            _probe(self.place)
        except (OSError, RefusedError):
            return False
        if self.child is None or self.child.status is not None:
            self.start()
        if self.said <= self.heard and time.monotonic() - self.heard > QUIET:
            self.said = time.monotonic()
            _log.info("the run is over; up to %d s are left for the coordinator to confirm the last answer", START)
        return True

    def look(self) -> None:
        """See whether the coordinator can be reached, and NVFlare's process runs."""
        now, where = time.monotonic(), f"{self.place.address}:{self.place.port}"
        if self.child is not None and now - max(self.heard, self.said) < (QUIET if self.met else TELL):
            if self.child.status is not None:
                self.start()
            return
        try:
            _probe(self.place)
        except OSError as error:
            # A coordinator that is ending hangs up, and a proxy until the coordinator has started; so does one that
            # refuses this party, which looks the same.
            cut = isinstance(error, _Cut)
            why = "it hangs up" if cut else error.strerror or str(error)
            if now - self.heard >= self.place.patience:
                if cut and not self.met:
                    raise RefusedError(str(error)) from None
                raise ConnectionLost(
                    f"no coordinator answers at {where} ({why}); check address and port, or start it"
                ) from None
            if self.said <= self.heard or now - self.said >= TELL:
                self.said = now
                _log.warning(
                    "waiting for the coordinator at %s: %s",
                    where,
                    error if cut and not self.met else why,
                    extra=LOOKING,
                )
            time.sleep(min(0.5, self.place.patience))
            return
        if self.child is None or self.child.status is not None or now - max(self.heard, self.began) > START:
            self.start()
        if self.said <= self.heard or now - self.said >= TELL:
            self.said = now
            if now - self.heard > 2 * QUIET:
                _log.warning(NOT_IN, where, extra=LOOKING)
        if now - self.heard > max(self.place.patience, 2 * START):
            raise ConnectionLost(
                f"NVFlare does not get through to the coordinator at {where}; {self.folder / 'log.txt'} says why"
            )


def join(place: Join, answer: Answer, done: threading.Event) -> None:
    """Answer the coordinator's messages until ``done`` is set, or the coordinator is gone for too long.

    Of messages that wait while another is answered, only the newest counts: the coordinator has dropped the others.
    """
    kit.needed()
    if place.kit is not None:
        kit.check_kit(place.kit, "client")
        kit.check_name(place.kit, place.name)
    folder = place.folder / "nvflare"
    folder.mkdir(parents=True, exist_ok=True)
    events: queue.SimpleQueue[tuple[Channel, dict[str, Any], bytes]] = queue.SimpleQueue()

    def serve(channel: Channel) -> None:
        while True:
            events.put((channel, *channel.receive()))

    with Port(folder, serve) as port, contextlib.ExitStack() as stack:
        site = _Site(place, folder, port)
        stack.callback(site.stop)
        waiting: tuple[Channel, str, bytes] | None = None
        sent, end = "", 0.0  # the answer that is on its way; until when
        while not (done.is_set() and (not sent or time.monotonic() > end)):
            try:
                channel, head, body = events.get(timeout=0.0 if waiting else 0.1)
            except queue.Empty:
                if waiting is None:
                    if not done.is_set():
                        site.look()
                    elif not site.closing():
                        break  # a coordinator that has ended confirms no last answer
                    continue
                (channel, sent, body), waiting = waiting, None
                reply, end = answer(body), time.monotonic() + START
                with contextlib.suppress(*ENDED):
                    channel.send({"id": sent}, reply)
                continue
            site.heard, site.met = time.monotonic(), True
            if "refused" in head:
                raise RefusedError(
                    f"{head['refused']}; join under a name from the coordinator's list, one party for each"
                )
            if "id" in head:
                waiting = channel, head["id"], body
            elif head.get("delivered") == sent:
                sent = ""


# Simulation


@contextlib.contextmanager
def simulate(place: Simulate) -> Iterator[Link]:
    """Run parties in the client processes of a job of NVFlare's simulator, as long as the context lasts.

    A process that dies takes the job with it; another one is started, and its parties have new tokens.
    """
    kit.needed()
    folder = place.folder / "nvflare"
    processes = min(place.processes, place.parties)
    controller = f"{workspace.JOB}.Switch", {"parties": place.parties, "processes": processes}
    executor = f"{workspace.JOB}.Worker", {"factory": place.factory, "argument": place.argument}
    files = {f"job/{name}": content for name, content in workspace.job_files(["@ALL"], controller, executor).items()}
    files["simulator/local/resources.json"] = workspace.allowed(controller[0], executor[0])
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_json(folder / name, content)
    board = RelayServer()

    def serve(channel: Channel) -> None:
        channel.receive()  # the job's number
        board.serve(channel)

    with Port(folder, serve) as port, contextlib.ExitStack() as stack:
        names = ",".join(f"process-{k}" for k in range(processes))
        command = [sys.executable, "-u", "-m", workspace.MODULES["simulator"], "job", "-w", "simulator"]
        command += ["-c", names, "-n", str(processes), "-t", str(processes)]
        variables = workspace.environment(folder, port.environment)
        supervisor = Kept(lambda: Child(command, folder / "output.txt", variables, folder))
        stack.callback(supervisor.stop)
        _wait(supervisor, lambda: board.channel is not None, folder)
        yield board
