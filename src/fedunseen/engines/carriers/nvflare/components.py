"""Two components that run inside NVFlare's processes and carry messages between NVFlare and our processes.

NVFlare's configuration, which :mod:`fedunseen.engines.carriers.nvflare` writes, names these classes, and NVFlare
imports them from this package; PyTorch is not imported. Messages are NVFlare's auxiliary messages, with one topic;
``do`` says what a message is about:

- coordinator to party: ``ping``, answered with the party's token and the number of its NVFlare process; ``ask``, a
  message for the party; ``refuse``, that it is not wanted, and why;
- party to coordinator: ``here``, whether the coordinator is there; ``answer``, to a message.

A ping reaches the process that NVFlare has connected under a party's name, by its certificate; a digest of the token
that NVFlare gave it shows whether it is the one that registered last. An answer carries the number
that its question came with, 128 random bits that nobody else has seen: who sends it need not be believed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from fedunseen.engines.remote.relay import ENDED, dial

__all__ = ["CoordinatorRelay", "PartyRelay"]

TOPIC = "fedunseen"
BEAT = 1.0  # s between two pings
PATIENCE = 5.0  # s to wait for the answer to a small message
SILENCE = 60.0  # s after which a silent peer with an open connection is taken for dead. It is long because messages of
# hundreds of megabytes hold up small ones for many seconds; a process that ends closes its connection at once.
SLOWEST = 50e3  # bytes/s; a message that takes longer is sent again
ALLOWED, TIMES = 2**30, 8  # bytes of an answer: so many, or so many times the message's, if that is more
TOKEN = "FEDUNSEEN_TOKEN"  # in the environment of a party's NVFlare process: its party's token


def _told(**content: Any) -> Shareable:
    message = Shareable()
    message.update(content)
    return message


def _number(token: str) -> str:
    """Return what stands for an NVFlare process: a digest of the token that the server gave it, which is secret."""
    return hashlib.sha256(token.encode()).hexdigest()[:32]


def _patience(size: int) -> float:
    return SILENCE + size / SLOWEST


class _Relay(FLComponent, ABC):  # type: ignore[misc]  # NVFlare has no types
    """What both sides share: a channel to our process. Without it the NVFlare process ends."""

    def __init__(self) -> None:
        super().__init__()
        self.channel: Any = None
        self.engine: Any = None

    def start(self, engine: Any) -> None:
        self.engine, self.channel = engine, dial()
        engine.register_aux_message_handler(TOPIC, self.receive)
        for work in (self.listen, self.watch):
            threading.Thread(target=self._for_good, args=(work,), daemon=True).start()

    def _for_good(self, work: Any) -> None:
        try:
            work()
        except ENDED:
            os._exit(0)  # our process has gone
        except BaseException:
            self.logger.exception("the relay failed")
            os._exit(1)

    @abstractmethod
    def receive(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Take a message of the other side's relay, and answer it."""

    @abstractmethod
    def listen(self) -> None:
        """Take what comes from our process, in a thread."""

    @abstractmethod
    def watch(self) -> None:
        """Look after what does not come by itself, in a thread."""


class CoordinatorRelay(_Relay):
    """The coordinator's side.

    Args:
        parties: the names of those that may join.
        revoked: serial numbers of certificates that NVFlare is not to accept, in hexadecimal digits.
    """

    def __init__(self, parties: list[str], revoked: list[str] | None = None) -> None:
        super().__init__()
        _refuse_revoked(frozenset(revoked or ()))  # NVFlare has not begun to listen yet; at any event it has
        self.names = frozenset(parties)
        self.session = secrets.token_hex(8)
        self.lock = threading.Lock()
        self.watched: set[str] = set()
        self.present: dict[str, tuple[str, str]] = {}  # name -> the party's token, the number of its NVFlare process
        # Question -> our process's number for it, name, process, bytes that the answer may have.
        self.open: dict[str, tuple[int, str, str, int]] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start with NVFlare's server."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            from nvflare.private.fed.server.server_cmd_modules import ServerCommandModules

            ServerCommandModules.cmd_modules.clear()  # no administrator can do anything here
        elif event_type == EventType.SYSTEM_START:
            self.start(fl_ctx.get_engine())

    def _call(self, name: str, message: Shareable, patience: float) -> Shareable | None:
        """Send a party a message; return its reply, an empty one if there is none in time, None if it has gone."""
        with self.engine.new_context() as context:
            replies = self.engine.send_aux_request([name], TOPIC, message, patience, context, optional=True) or {}
        reply = replies.get(name)
        if reply is None:
            return None
        code = reply.get_return_code()
        if code == ReturnCode.OK:
            return reply
        return _told() if code == ReturnCode.TIMEOUT else None

    def watch(self) -> None:
        """Find new parties."""
        self.channel.send({"parties": {}})
        while True:
            for client in self.engine.get_clients():
                if client.name not in self.watched:
                    self.watched.add(client.name)
                    work = self.ping if client.name in self.names else self.refuse
                    threading.Thread(
                        target=self._for_good, args=(lambda n=client.name, w=work: w(n),), daemon=True
                    ).start()
            time.sleep(0.2)

    def _registered(self, name: str) -> str | None:
        """Return the number of the process that registered last under a name."""
        client = self.engine.get_client_from_name(name)
        return _number(client.token) if client is not None else None

    def refuse(self, name: str) -> None:
        """Refuse a process that is not among the parties, again and again until it has gone."""
        why = f"the coordinator knows no party {name!r}"
        while self._call(name, _told(do="refuse", why=why, process=self._registered(name)), BEAT) is not None:
            time.sleep(BEAT / 4)
        self.watched.discard(name)

    def ping(self, name: str) -> None:
        """Watch one party as long as this process lives: it may go and come back."""
        patience, last = BEAT, time.monotonic()
        while True:
            reply = self._call(name, _told(do="ping", session=self.session), patience)
            now = time.monotonic()
            if reply is not None and "process" in reply:
                patience, last = PATIENCE, now
                if reply["process"] == self._registered(name):
                    self._now(name, (str(reply.get("token"))[:64], str(reply["process"])))
                else:  # NVFlare lets the newest of one name in, and keeps one connection for each name
                    why = f"another party has joined as {name!r} since"
                    self._call(name, _told(do="refuse", why=why, process=reply["process"]), patience)
            elif reply is None or now - last > SILENCE:
                patience = BEAT  # a ping that comes while NVFlare starts there is not answered
                self._now(name, None)
            else:
                patience = min(PATIENCE, 2 * patience)
            time.sleep(BEAT if name in self.present else BEAT / 4)

    def _now(self, name: str, who: tuple[str, str] | None) -> None:
        """Record who is connected under a name; questions to a process that was there before are lost."""
        with self.lock:
            if self.present.get(name) == who:
                return
            self.logger.info(f"party {name!r}: {'gone' if who is None else 'connected'}")
            if who is None:
                del self.present[name]
            else:
                self.present[name] = who
            own = [(key, process) for key, (_, to, process, _) in self.open.items() if to == name]
            lost = [key for key, process in own if who is None or process != who[1]]
            numbers = [self.open.pop(key)[0] for key in lost]
            # Send this first: whoever hears that a question is lost looks at once whom else to ask.
            self.channel.send({"parties": {party: token for party, (token, _) in self.present.items()}})
            for number in numbers:
                self.channel.send({"id": number, "lost": True})

    def listen(self) -> None:
        """Take messages from our process."""
        while True:
            head, body = self.channel.receive()
            if head.get("drop"):
                with self.lock:
                    for key in [key for key, (number, *_) in self.open.items() if number == head["id"]]:
                        del self.open[key]
                continue
            number, name, key = head["id"], head["to"], secrets.token_hex(16)
            with self.lock:
                who = self.present.get(name)
                if who is not None:
                    self.open[key] = (number, name, who[1], max(ALLOWED, TIMES * len(body)))
            if who is None:
                self.channel.send({"id": number, "lost": True})
                continue
            threading.Thread(
                target=self._for_good,
                args=(lambda k=key, n=name, p=who[1], b=body: self.ask(k, n, p, b),),
                daemon=True,
            ).start()

    def ask(self, key: str, name: str, process: str, body: bytes) -> None:
        """Send a message to a party until it confirms it, has gone, or the question is dropped."""
        while key in self.open:
            reply = self._call(name, _told(do="ask", id=key, process=process, body=body), _patience(len(body)))
            if reply is not None and reply.get("taken"):
                return
            time.sleep(0.2)

    def receive(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Handle a message of a party."""
        reply = make_reply(ReturnCode.OK)
        reply["session"] = self.session
        if request.get("do") == "answer":
            with self.lock:
                found = self.open.pop(str(request.get("id")), None)
            if found is not None:
                number, name, _, most = found
                body = request.get("body")
                good = isinstance(body, bytes | bytearray | memoryview) and memoryview(body).nbytes <= most
                if not good:
                    self.logger.warning(f"party {name!r}: an answer that is too large, or not bytes, is thrown away")
                with contextlib.suppress(*ENDED):  # our process has gone, which `listen` notices too
                    if good:
                        self.channel.send({"id": number}, body)
                    else:
                        self.channel.send({"id": number, "lost": True})
        return reply


def _refuse_revoked(serials: frozenset[str]) -> None:
    """Let NVFlare's server, which knows no list of revoked certificates, keep to one.

    Whoever only connects could already take the place of the party of that name, so the connection is refused. The
    registration is too, should NVFlare take connections in another way.
    """
    if not serials:
        return
    import grpc  # type: ignore[import-untyped]
    from cryptography import x509
    from nvflare.fuel.f3.drivers.grpc_driver import Servicer
    from nvflare.private.fed.utils.identity_utils import IdentityVerifier, InvalidAsserterCert

    stream = Servicer.Stream

    def connect(self: Any, requests: Any, context: Any) -> Any:
        for text in context.auth_context().get("x509_pem_cert", ()):
            certificate = x509.load_pem_x509_certificate(text)
            if format(certificate.serial_number, "x") in serials:
                whose = certificate.subject.rfc4514_string()
                logging.getLogger(__name__).warning("the certificate is revoked, and no connection made: %s", whose)
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "the certificate is revoked")
        yield from stream(self, requests, context)

    Servicer.Stream = connect

    real = IdentityVerifier.verify_common_name

    def verify(self: Any, *given: Any, asserter_cert: Any, **more: Any) -> bool:
        if format(asserter_cert.serial_number, "x") in serials:
            raise InvalidAsserterCert("the certificate is revoked")
        return bool(real(self, *given, asserter_cert=asserter_cert, **more))

    IdentityVerifier.verify_common_name = verify


class PartyRelay(_Relay):
    """A party's side. It refuses everything that the coordinator asks of this process but to carry messages."""

    def __init__(self) -> None:
        super().__init__()
        self.process = ""
        self.session: str | None = None
        self.pinged = 0.0  # when the last ping came
        self.seen: set[str] = set()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start once NVFlare's client is registered."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

            ClientRequestProcessors.request_processors.clear()  # no jobs, no code, no commands from the coordinator
        elif event_type == EventType.SYSTEM_START:
            engine = fl_ctx.get_engine()
            self.process = _number(engine.client.token)
            self.start(engine)

    def receive(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Handle a message of the coordinator."""
        reply = make_reply(ReturnCode.OK)
        what = request.get("do")
        if what == "ping":
            self.pinged = time.monotonic()
            if self.session is None:
                self.session = str(request["session"])
                self.channel.send({"state": "connected"})
            elif self.session != request["session"]:
                self.channel.send({"state": "lost"})  # another coordinator: this process does not belong to it
            reply.update(token=os.environ[TOKEN], process=self.process)
        elif what == "refuse" and request["process"] == self.process:
            self.channel.send({"state": "refused", "why": str(request["why"])})
        elif what == "ask" and request["process"] == self.process:
            if request["id"] not in self.seen:
                self.seen.add(request["id"])
                self.channel.send({"id": request["id"]}, request["body"])
            reply["taken"] = True
        return reply

    def _call(self, message: Shareable, patience: float) -> str:
        """Send the coordinator a message; return what became of it: ``OK``, ``TIMEOUT`` or something worse."""
        with self.engine.new_context() as context:
            reply = self.engine.send_aux_request(TOPIC, message, patience, context, optional=True)
        code = str(reply.get_return_code())
        return code if code != ReturnCode.OK or reply.get("session") == self.session else ReturnCode.ERROR

    def watch(self) -> None:
        """Notice that the coordinator has gone: no pings come, and it does not answer, or has forgotten us."""
        while True:
            time.sleep(BEAT / 2)
            silent = time.monotonic() - self.pinged if self.session else 0.0
            if silent < 2.5 * BEAT:
                continue
            what = self._call(_told(do="here"), PATIENCE)
            if silent > SILENCE or what not in (ReturnCode.OK, ReturnCode.TIMEOUT):
                self.channel.send({"state": "lost"})

    def listen(self) -> None:
        """Take answers from our process."""
        while True:
            head, body = self.channel.receive()
            threading.Thread(
                target=self._for_good, args=(lambda h=head, b=body: self.answer(h["id"], b),), daemon=True
            ).start()

    def answer(self, key: str, body: bytes) -> None:
        """Send an answer to the coordinator until it has it; our process ends this one if that never happens."""
        while self._call(_told(do="answer", id=key, body=body), _patience(len(body))) != ReturnCode.OK:
            time.sleep(0.2)
        self.channel.send({"delivered": key})
