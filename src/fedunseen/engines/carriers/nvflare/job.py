"""A job of NVFlare that carries messages: its controller at the server, its executor at each site.

NVFlare builds these classes from their paths, so a job ships no code. In auxiliary messages of one topic, ``do`` is
``ping`` (answered with the token of the party at the site), ``ask`` (the site holds the reply back for :data:`HOLD`
seconds at most; the controller asks again by the question's number), ``taken`` (it has the answer) or ``refuse``.
"""

import contextlib
import hashlib
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ReturnCode, SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedunseen.core.errors import FedUnseenError
from fedunseen.core.files import parse_json
from fedunseen.engines.remote.link import found
from fedunseen.engines.remote.relay import ENDED, Channel, dial

TOPIC = "fedunseen"
SETTINGS = "fedunseen.json"  # a site's own file, in the folder `local` of its workspace
TOKEN = "FEDUNSEEN_TOKEN"  # in the environment: the token of the party that `fedunseen join` runs
BEAT = 1.0  # s between two pings
HOLD = 10.0  # s for which a site holds a reply back
PATIENCE = 15.0  # s without progress after which a message counts as lost
ALLOWED, TIMES = 2**30, 8  # bytes of an answer: so many, or so many times the message's, if that is more
SILENCE = 60.0  # s after which a silent site whose connection stands is gone; messages of hundreds of MB hold up pings


def in_thread(work: Callable[..., None], *arguments: Any) -> None:
    """Do something in a thread that ends with its process."""
    threading.Thread(target=work, args=arguments, daemon=True).start()


class Coordinator(Controller):  # type: ignore[misc]  # NVFlare has no types
    """Passes messages between the coordinator's process and the sites of the job; see ``RelayServer`` for the frames.

    Subclasses may run the coordinator in this process: see :meth:`connect`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.sites: dict[str, str] = {}  # those that are there -> the token of the party that works there
        self.open: set[int] = set()  # questions that the coordinator waits for
        self.ended = threading.Event()

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Stop watching the sites."""
        self.ended.set()

    def connect(self, fl_ctx: FLContext, sites: list[str]) -> Channel:
        """Return the channel to the coordinator."""
        return dial()

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Carry messages until the coordinator closes its end, or the job is aborted."""
        self.engine = fl_ctx.get_engine()
        sites = sorted(client.name for client in self.engine.get_clients())
        self.channel = self.connect(fl_ctx, sites)
        self.channel.send({"job": fl_ctx.get_job_id()})
        self.channel.send({"parties": {}})
        for name in sites:
            in_thread(self._watch, name)
        with contextlib.suppress(*ENDED):
            while not abort_signal.triggered:
                if self.channel.connection.poll(0.2):
                    self._take(*self.channel.receive())
        self.ended.set()

    def _take(self, head: Mapping[str, Any], body: bytes) -> None:
        """Handle a frame from the coordinator."""
        if "end" in head:
            raise EOFError
        if "refuse" in head:
            in_thread(self._call, head["refuse"], {"do": "refuse", "why": head["why"]})
        elif head.get("drop"):
            self.open.discard(head["id"])
        else:
            self.open.add(head["id"])
            in_thread(self._ask, head["id"], head["to"], body)

    def _call(self, name: str, content: Mapping[str, Any], patience: float = PATIENCE) -> Shareable | None:
        """Send a site a message; return its reply, an empty one if there is none in time, None if it is gone."""
        message = Shareable()
        message.update(content)
        with self.engine.new_context() as context:
            replies = self.engine.send_aux_request([name], TOPIC, message, patience, context, optional=True) or {}
        reply = replies.get(name)
        code = None if reply is None else reply.get_return_code()
        if code == ReturnCode.OK:
            return reply
        return Shareable() if code == ReturnCode.TIMEOUT else None

    def _watch(self, name: str) -> None:
        """Ping a site as long as the job lives: its connection may be cut and come back."""
        last = 0.0
        while not self.ended.wait(BEAT if name in self.sites else BEAT / 4):
            reply = self._call(name, {"do": "ping"}, PATIENCE if name in self.sites else BEAT)
            now = time.monotonic()
            if reply is not None and reply.get("token"):
                last = now
                self._now(name, str(reply["token"])[:64])
            elif reply is None or now - last > SILENCE:
                self._now(name, None)

    def _now(self, name: str, token: str | None) -> None:
        """Record who is at a site, and tell the coordinator if that has changed."""
        with self.lock, contextlib.suppress(*ENDED):
            if self.sites.get(name) != token:
                others = {site: its for site, its in self.sites.items() if site != name}
                self.sites = {**others, name: token} if token else others
                self.channel.send({"parties": self.sites})

    def _ask(self, number: int, name: str, body: bytes) -> None:
        """Ask a site until it answers, its party has changed, or the coordinator drops the question."""
        key, token = secrets.token_hex(16), self.sites.get(name)
        sent: dict[str, Any] = {"body": body}
        while number in self.open and token is not None and self.sites.get(name) == token:
            reply = self._call(name, {"do": "ask", "id": key, "token": token, **sent}) or {}
            sent = {"body": body} if reply.get("unknown") else {} if reply.get("known") else sent
            if "body" in reply:
                answer, most = reply["body"], max(ALLOWED, TIMES * len(body))
                if isinstance(answer, bytes | bytearray | memoryview) and memoryview(answer).nbytes <= most:
                    self._resolve(number, {"id": number}, answer)
                    self._call(name, {"do": "taken", "id": key})
                    return
                self.logger.warning(f"an answer of {name!r} is too large, or not bytes, and is thrown away")
                break
            if not reply.get("known"):
                time.sleep(0.2)
        self._resolve(number, {"id": number, "lost": True})

    def _resolve(self, number: int, head: Mapping[str, Any], body: bytes | bytearray | memoryview = b"") -> None:
        if number in self.open:
            self.open.discard(number)
            with contextlib.suppress(*ENDED):
                self.channel.send(head, memoryview(body).cast("B"))

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Do nothing: there are no tasks."""


class Party(Executor):  # type: ignore[misc]
    """Passes questions to the party's process, ``fedunseen join``, and answers back; it takes no tasks.

    Subclasses may answer in this process: see :meth:`connect`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.token = os.environ.get(TOKEN) or secrets.token_hex(8)
        self.changed = threading.Condition()
        self.answers: dict[str, bytes | None] = {}  # question -> its answer, once there is one

    def connect(self, fl_ctx: FLContext) -> Channel:
        """Return the channel to what answers."""
        return dial()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start with the job."""
        if event_type == EventType.START_RUN:
            try:
                self.channel = self.connect(fl_ctx)
            except FedUnseenError as error:
                self.system_panic(str(error), fl_ctx)
                return
            fl_ctx.get_engine().register_aux_message_handler(TOPIC, self.receive)
            in_thread(self._listen)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Refuse a task: this job has none."""
        return make_reply(ReturnCode.TASK_UNKNOWN)

    def receive(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Handle a message of the controller."""
        reply, what, key = make_reply(ReturnCode.OK), request.get("do"), request.get("id")
        with contextlib.suppress(*ENDED):
            if what == "ping":
                reply["token"] = self.token
                self.channel.send({"pinged": True})
            elif what == "refuse":
                self.channel.send({"refused": str(request["why"])})
            elif what == "taken":
                self.answers.pop(key, None)
                self.channel.send({"delivered": key})
            elif what == "ask" and request["token"] == self.token:
                reply.update(self._answer(key, request.get("body")))
        return reply

    def _answer(self, key: str, question: bytes | None) -> dict[str, Any]:
        """Pass a question on unless that has been done, and wait for its answer."""
        with self.changed:
            if key not in self.answers:
                if question is None:
                    return {"unknown": True}
                self.answers[key] = None
                self.channel.send({"id": key}, question)
            self.changed.wait_for(lambda: self.answers.get(key) is not None, HOLD)
            answer = self.answers.get(key)
        return {"known": True} if answer is None else {"known": True, "body": answer}

    def _listen(self) -> None:
        """Take answers until the party's process ends."""
        with contextlib.suppress(*ENDED):
            while True:
                head, body = self.channel.receive()
                with self.changed:
                    if head["id"] in self.answers:
                        self.answers[head["id"]] = body
                        self.changed.notify_all()
        self.token = ""


@dataclass(frozen=True)
class Place:
    """Where a job's process works."""

    name: str
    folder: Path
    config: Path
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, fl_ctx: FLContext, name: str = "") -> "Place":
        """Return where this process works; raises FedUnseenError if the site's file is damaged."""
        workspace = fl_ctx.get_engine().get_workspace()
        name, path = name or str(fl_ctx.get_identity_name()), Path(workspace.get_site_config_dir()) / SETTINGS
        try:
            settings = dict(parse_json(path.read_bytes().replace(b"{site}", name.encode())))
        except FileNotFoundError:
            settings = {}
        except (OSError, ValueError, TypeError) as error:
            raise FedUnseenError(f"{path} is damaged ({error}): write a JSON object") from None
        config = Path(workspace.get_app_config_dir(fl_ctx.get_job_id()))
        return cls(name, Path(workspace.get_root_dir()), config, settings)


class LocalParty(Party, ABC):
    """An executor that answers in this process, one question at a time."""

    @abstractmethod
    def answering(self, place: Place) -> Callable[[bytes], bytes]:
        """Return what answers."""

    def connect(self, fl_ctx: FLContext) -> Channel:
        """Return the channel to a thread that answers."""
        ours, theirs = map(Channel, Pipe())
        answer = self.answering(Place.of(fl_ctx))

        def work() -> None:
            while True:
                head, question = theirs.receive()
                if "id" in head:
                    theirs.send({"id": head["id"]}, answer(question))

        in_thread(work)
        return ours


class Registry(FLComponent):  # type: ignore[misc]
    """Reports the registered sites to the coordinator's process, and submits jobs for it.

    A site's number, a digest of the token that the server has given to it, changes when it registers again. The server
    ends with the coordinator's process.
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start with the server."""
        if event_type == EventType.SYSTEM_START:
            self.engine, self.channel = fl_ctx.get_engine(), dial()
            for work in (self._listen, self._watch):
                in_thread(self._until_end, work)

    def _until_end(self, work: Callable[[], None]) -> None:
        try:
            work()
        except ENDED:
            os._exit(0)
        except BaseException:
            self.logger.exception("the registry failed")
            os._exit(1)

    def _watch(self) -> None:
        before = None
        while True:
            sites = {c.name: hashlib.sha256(c.token.encode()).hexdigest()[:32] for c in self.engine.get_clients()}
            if sites != before:
                self.channel.send({"sites": sites})
            before = sites
            time.sleep(0.2)

    def _listen(self) -> None:
        while True:
            meta, archive = self.channel.receive()
            with self.engine.new_context() as context:
                self.engine.get_component(SystemComponents.JOB_MANAGER).create(meta, archive, context)


# A simulation: one job, for the simulator alone, since no site allows these classes


class Switch(Coordinator):
    """The controller of a simulation's job; it ends with any client process, and our process starts another job."""

    def __init__(self, parties: int, processes: int) -> None:
        super().__init__()
        self.parties = {str(party): f"process-{party % processes}" for party in range(parties)}
        self.workers: dict[str, str] = {}  # processes that are there -> their tokens

    def _now(self, name: str, token: str | None) -> None:
        with self.lock, contextlib.suppress(*ENDED):
            if self.workers.get(name) == token:
                return
            if token is None:
                os._exit(1)
            self.workers[name] = token
            if self.workers.keys() == set(self.parties.values()):
                self.sites = {party: self.workers[process] for party, process in self.parties.items()}
                self.channel.send({"parties": self.sites})

    def _ask(self, number: int, name: str, body: bytes) -> None:
        super()._ask(number, name, name.encode() + b" " + body)

    def _call(self, name: str, content: Mapping[str, Any], patience: float = PATIENCE) -> Shareable | None:
        return super()._call(self.parties.get(name, name), content, patience)


class Worker(LocalParty):
    """The executor of a simulation's job: it answers for any party.

    Args:
        factory: the address of a function to call once.
        argument: what to call it with.
    """

    def __init__(self, factory: str, argument: str) -> None:
        super().__init__()
        self.factory, self.argument = factory, argument

    def answering(self, place: Place) -> Callable[[bytes], bytes]:
        """Return what answers: to a party's name, a space and a message."""
        answer = found(self.factory)(self.argument)

        def to(question: bytes) -> bytes:
            name, _, message = question.partition(b" ")
            return answer(name.decode(), message)

        return to
