"""A job of NVFlare that carries messages: its controller at the server, its executor at each site.

NVFlare builds these classes from their paths, so a job ships no code. In auxiliary messages of one topic, ``do`` is
``ping`` (answered with the token of the site's process), ``ask`` (the site holds the reply back for :data:`HOLD`
seconds at most; the controller asks again by the question's number) or ``taken`` (it has the answer).
"""

import contextlib
import queue
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedunseen.core.errors import FedUnseenError
from fedunseen.core.files import parse_json
from fedunseen.engines.remote.link import Answer, PartyGone, complete

TOPIC = "fedunseen"
SETTINGS = "fedunseen.json"  # a site's own file, in the folder `local` of its workspace
BEAT = 1.0  # s between two pings
HOLD = 10.0  # s for which a site holds a reply back
PATIENCE = 15.0  # s without progress after which a message counts as lost
ALLOWED, TIMES = 2**30, 8  # bytes of an answer: so many, or so many times the message's, if that is more
SILENCE = 60.0  # s after which a silent site whose connection stands is gone; messages of hundreds of MB hold up pings


def in_thread(work: Callable[..., None], *arguments: Any) -> None:
    """Do something in a thread that ends with its process."""
    threading.Thread(target=work, args=arguments, daemon=True).start()


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


class Coordinator(Controller, ABC):  # type: ignore[misc]  # NVFlare has no types
    """The job's controller: a :class:`~fedunseen.engines.remote.link.Link` to the sites of the job.

    A thread coordinates over it, and the job ends when that is done.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.sites: dict[str, str] = {}  # those that are there -> the token of the process that answers
        self.open: dict[Future[bytes], str] = {}  # questions without an answer -> their site
        self.ended = threading.Event()

    @abstractmethod
    def coordinate(self, place: Place, sites: list[str]) -> None:
        """Coordinate the sites of the job; an error fails the job."""

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Stop watching the sites."""
        self.ended.set()

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Carry messages until the coordinator is done, or the job is aborted."""
        self.engine = fl_ctx.get_engine()
        sites = sorted(client.name for client in self.engine.get_clients())
        place = Place.of(fl_ctx, "server")  # which the simulator calls otherwise
        done: Future[None] = Future()

        def work() -> None:
            try:
                self.coordinate(place, sites)
                done.set_result(None)
            except Exception as error:
                done.set_exception(error)

        for name in sites:
            in_thread(self._watch, name)
        in_thread(work)
        while not (abort_signal.triggered or done.done()):
            time.sleep(0.1)
        self.ended.set()
        if done.done():
            done.result()

    def present(self) -> Mapping[str, str]:
        """Return the sites that are connected now: name -> a token that changes when its process starts again."""
        with self.lock:
            return dict(self.sites)

    def ask(self, name: str, message: bytes) -> Future[bytes]:
        """Send a site a message; see :class:`~fedunseen.engines.remote.link.Link`."""
        future: Future[bytes] = Future()
        with self.lock:
            token = self.sites.get(name)
            if token is not None:
                self.open[future] = name
        if token is None:
            complete(future, PartyGone(name))
        else:
            future.add_done_callback(self._close)
            in_thread(self._ask, future, name, token, message)
        return future

    def _close(self, future: Future[bytes]) -> None:
        with self.lock:
            self.open.pop(future, None)

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
        """Record who is at a site; what it was asked before gets no answer any more if that has changed."""
        with self.lock:
            if self.sites.get(name) == token:
                return
            others = {site: its for site, its in self.sites.items() if site != name}
            self.sites = {**others, name: token} if token else others
            lost = [future for future, site in self.open.items() if site == name]
        for future in lost:
            complete(future, PartyGone(name))

    def _ask(self, future: Future[bytes], name: str, token: str, body: bytes) -> None:
        """Ask a site until it answers, its process has changed, or no one waits for the answer any more."""
        key = secrets.token_hex(16)
        sent: dict[str, Any] = {"body": body}
        while not future.done():
            reply = self._call(name, {"do": "ask", "id": key, "token": token, **sent}) or {}
            sent = {"body": body} if reply.get("unknown") else {} if reply.get("known") else sent
            if "body" in reply:
                answer, most = reply["body"], max(ALLOWED, TIMES * len(body))
                if isinstance(answer, bytes | bytearray | memoryview) and memoryview(answer).nbytes <= most:
                    complete(future, bytes(answer))
                    self._call(name, {"do": "taken", "id": key})
                else:
                    self.logger.warning(f"an answer of {name!r} is too large, or not bytes, and is thrown away")
                    complete(future, PartyGone(name))
            elif not reply.get("known"):
                time.sleep(0.2)

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Do nothing: there are no tasks."""


class Party(Executor, ABC):  # type: ignore[misc]
    """The job's executor: answers questions, one at a time in a thread of its own. It takes no tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.token = secrets.token_hex(8)
        self.lock = threading.Lock()
        self.questions: queue.SimpleQueue[tuple[Future[bytes], bytes]] = queue.SimpleQueue()
        self.answers: dict[str, Future[bytes]] = {}  # question -> its answer, once there is one

    @abstractmethod
    def answering(self, place: Place) -> Answer:
        """Return what answers."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start with the job."""
        if event_type == EventType.START_RUN:
            try:
                answer = self.answering(Place.of(fl_ctx))
            except FedUnseenError as error:
                self.system_panic(str(error), fl_ctx)
                return
            fl_ctx.get_engine().register_aux_message_handler(TOPIC, self.receive)
            in_thread(self._work, answer)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Refuse a task: this job has none."""
        return make_reply(ReturnCode.TASK_UNKNOWN)

    def receive(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Handle a message of the controller."""
        reply, what, key = make_reply(ReturnCode.OK), request.get("do"), request.get("id")
        if what == "ping":
            reply["token"] = self.token
        elif what == "taken":
            self.answers.pop(key, None)
        elif what == "ask" and request["token"] == self.token:
            reply.update(self._answer(key, request.get("body")))
        return reply

    def _answer(self, key: str, question: bytes | None) -> dict[str, Any]:
        """Put a question into the queue unless that has been done, and wait for its answer."""
        with self.lock:
            if key not in self.answers:
                if question is None:
                    return {"unknown": True}
                self.answers[key] = Future()
                self.questions.put((self.answers[key], question))
            answer = self.answers[key]
        with contextlib.suppress(TimeoutError):
            return {"known": True, "body": answer.result(HOLD)}
        return {"known": True}

    def _work(self, answer: Answer) -> None:
        while True:
            future, question = self.questions.get()
            complete(future, answer(question))
