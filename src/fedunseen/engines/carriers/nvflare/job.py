"""A job of NVFlare that carries messages: its controller at the server, its executor at each site.

NVFlare builds these classes from their paths, so a job ships no code. The messages are auxiliary ones of one topic.
The controller sends a question until the site has it, and the site its answer until the controller has it. A message
that holds no question asks who is there. (Sites fetch NVFlare's tasks at intervals, which adds to every message.)
"""

import queue
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
BEAT = 1.0  # s between two looks at who is there
PATIENCE = 15.0  # s without progress after which a message counts as lost
ALLOWED, TIMES = 2**30, 8  # bytes of an answer: so many, or so many times the message's, if that is more
SILENCE = 60.0  # s after which a silent site whose connection stands is gone; messages of hundreds of MB hold up looks


def in_thread(work: Callable[..., None], *arguments: Any) -> None:
    """Do something in a thread that ends with its process."""
    threading.Thread(target=work, args=arguments, daemon=True).start()


def send(engine: Any, sites: list[str], content: Mapping[str, Any], patience: float = PATIENCE) -> dict[str, Shareable]:
    """Send sites a message, or the server if there are none; return the replies, those of lost ones without a token."""
    message = Shareable()
    message.update(content)
    with engine.new_context() as context:
        return engine.send_aux_request(sites, TOPIC, message, patience, context, optional=True) or {}


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


@dataclass(frozen=True)
class Question:
    """What a site is asked, or rather the process there that has this token."""

    site: str
    token: str
    message: bytes
    answer: Future[bytes] = field(default_factory=Future)


class Coordinator(Controller, ABC):  # type: ignore[misc]  # NVFlare has no types
    """The job's controller: a :class:`~fedunseen.engines.remote.link.Link` to the sites of the job.

    A thread coordinates over it, and the job ends when that is done.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sites: Mapping[str, str] = {}  # those that are there -> the token of the process that answers
        self.open: dict[str, Question] = {}  # those without an answer

    @abstractmethod
    def coordinate(self, place: Place, sites: list[str]) -> None:
        """Coordinate the sites of the job; an error fails the job."""

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Take answers."""
        self.engine = fl_ctx.get_engine()
        self.engine.register_aux_message_handler(TOPIC, self.receive)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Look who is there until the coordinator is done, or the job is aborted."""
        seen = {client.name: 0.0 for client in self.engine.get_clients()}
        place = Place.of(fl_ctx, "server")  # which the simulator calls otherwise
        done: Future[None] = Future()

        def work() -> None:
            try:
                self.coordinate(place, sorted(seen))
                done.set_result(None)
            except Exception as error:
                done.set_exception(error)

        in_thread(work)
        while not (abort_signal.triggered or done.done()):
            self._look(seen)
            wait([done], BEAT if len(self.sites) == len(seen) else BEAT / 4)
        if done.done():
            done.result()

    def present(self) -> Mapping[str, str]:
        """Return the sites that are connected now: name -> a token that changes when its process starts again."""
        return self.sites

    def _look(self, seen: dict[str, float]) -> None:
        """See which sites are there, and end what the others were asked; ``seen`` holds when each answered last."""
        replies = send(self.engine, list(seen), {}, 5 * BEAT if len(self.sites) == len(seen) else BEAT)
        sites, now = {}, time.monotonic()
        for name, last in seen.items():
            reply = replies.get(name, make_reply(ReturnCode.COMMUNICATION_ERROR))
            if reply.get("token"):
                seen[name], sites[name] = now, str(reply["token"])[:64]
            elif name in self.sites and reply.get_return_code() == ReturnCode.TIMEOUT and now - last < SILENCE:
                sites[name] = self.sites[name]
        self.sites = sites
        for question in list(self.open.values()):
            if sites.get(question.site) != question.token:
                complete(question.answer, PartyGone(question.site))

    def ask(self, name: str, message: bytes) -> Future[bytes]:
        """Send a site a message; see :class:`~fedunseen.engines.remote.link.Link`."""
        key, question = secrets.token_hex(16), Question(name, self.sites.get(name, ""), message)
        self.open[key] = question
        question.answer.add_done_callback(lambda _: self.open.pop(key))
        if self.sites.get(name) == question.token:  # what changes from here on is seen by _look
            in_thread(self._ask, key, question)
        else:
            complete(question.answer, PartyGone(name))
        return question.answer

    def _ask(self, key: str, question: Question) -> None:
        """Send a site a question until its process has it, or no one waits for the answer any more."""
        content = {"id": key, "to": question.token, "body": question.message}
        while key in self.open:
            if send(self.engine, [question.site], content).get(question.site, {}).get("token") == question.token:
                return
            time.sleep(0.2)

    def receive(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Take a site's answer; one that no one waits for is dropped."""
        if (question := self.open.get(str(request.get("id")))) is not None:
            answer, most = request.get("body"), max(ALLOWED, TIMES * len(question.message))
            if isinstance(answer, bytes | bytearray | memoryview) and memoryview(answer).nbytes <= most:
                complete(question.answer, bytes(answer))
            else:
                self.logger.warning(f"an answer of {question.site!r} is too large, or not bytes, and is thrown away")
                complete(question.answer, PartyGone(question.site))
        return make_reply(ReturnCode.OK)


class Party(Executor, ABC):  # type: ignore[misc]
    """The job's executor: answers questions, one at a time in a thread of its own. It takes no tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.token = secrets.token_hex(8)
        self.lock = threading.Lock()
        self.known: set[str] = set()  # questions that have arrived
        self.questions: queue.SimpleQueue[Shareable] = queue.SimpleQueue()

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
            engine = fl_ctx.get_engine()
            engine.register_aux_message_handler(TOPIC, self.receive)
            in_thread(self._work, answer, engine)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Refuse a task: this job has none."""
        return make_reply(ReturnCode.TASK_UNKNOWN)

    def receive(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Take a question to this process, unless it has it already, and tell whose process this is."""
        with self.lock:
            if request.get("to") == self.token and request["id"] not in self.known:
                self.known.add(request["id"])
                self.questions.put(request)
        reply = make_reply(ReturnCode.OK)
        reply["token"] = self.token
        return reply

    def _work(self, answer: Answer, engine: Any) -> None:
        while True:
            question = self.questions.get()
            content = {"id": question["id"], "body": answer(question["body"])}
            while not any(reply.get_return_code() == ReturnCode.OK for reply in send(engine, [], content).values()):
                time.sleep(0.2)
