"""A job of NVFlare that carries messages: its controller at the server, its executor at each site.

NVFlare builds these classes from their paths, so a job ships no code. Auxiliary messages of one
topic carry a question with its number, or the number alone once the site has it; the site holds the
reply back for :data:`HOLD` seconds at most. A message without a number asks who is there. Tasks are
slower, since sites fetch them at intervals. Large answers that a site sends itself cost the server
four times the processor time of replies (2 x 300 MB: 5.8 s, not 1.4 s).

NVFlare passes on auxiliary messages of any site of the job, and the sender itself writes who it is.
So each site first fetches a key from the server, as a task, and answers only messages with it.
"""

import contextlib
import hmac
import logging
import queue
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import Task
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import EventScope, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.apis.signal import Signal

from fedunseen.core.errors import ExperimentError, FedUnseenError
from fedunseen.core.files import parse_json
from fedunseen.deploy.remote.link import Answer, PartyGone, complete
from fedunseen.deploy.remote.refusals import code_of, described
from fedunseen.deploy.site import MESSAGES, keep_refusal

TOPIC = "fedunseen"
KEY_TASK = "fedunseen-key"
KEY = "key"  # of a message or of the task: what only the server and this site have
_log = logging.getLogger("fedunseen.federation")
SETTINGS = "fedunseen.json"  # a site's own file, in the folder `local` of its workspace
STATE = "fedunseen-state"  # a site's folder in its workspace, unless its file names another
BEAT = 1.0  # s between two looks at who is there
HOLD = 10.0  # s for which a site holds a reply back
PATIENCE = 15.0  # s without progress after which a message counts as lost
# bytes of an answer: so many, or so many times the message's, if that is more
ALLOWED = 2**30
TIMES = 8
# s until a silent site whose connection stands is gone; messages of hundreds of MB hold up looks
SILENCE = 60.0


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

    def path(self, key: str) -> Path | None:
        """Return a path of the site's file, relative to its workspace."""
        value = self.settings.get(key)
        return self.folder / str(value) if value else None

    @property
    def state(self) -> Path:
        """What the site keeps."""
        return self.path("state") or self.folder / STATE

    @classmethod
    def of(cls, fl_ctx: FLContext, name: str = "") -> "Place":
        """Return where this process works; raises FedUnseenError if the site's file is damaged."""
        workspace = fl_ctx.get_engine().get_workspace()
        name = name or str(fl_ctx.get_identity_name())
        path = Path(workspace.get_site_config_dir()) / SETTINGS
        try:
            settings = dict(parse_json(path.read_bytes().replace(b"{site}", name.encode())))
        except FileNotFoundError:
            settings = {}
        except (OSError, ValueError, TypeError) as error:
            raise FedUnseenError(f"{path} is damaged ({error}): write a JSON object") from None
        config = Path(workspace.get_app_config_dir(fl_ctx.get_job_id()))
        return cls(name, Path(workspace.get_root_dir()), config, settings)


def quiet(text: str) -> None:
    """Leave what is said to the site's own file: NVFlare can stream its log to the server."""


def note_refusal(error: BaseException) -> None:
    """Write the code of a refusal to NVFlare's log, which can be streamed to the server: the site's
    own file says why.
    """
    _log.error("refused [%s]: %s of the site's state says why", code_of(error), MESSAGES)


@dataclass(frozen=True)
class Question:
    """What a site is asked, or rather the process there that has this token."""

    site: str
    token: str
    message: bytes
    answer: Future[bytes] = field(default_factory=Future)


class Coordinator(Controller, ABC):  # type: ignore[misc]  # NVFlare has no types
    """The job's controller: a :class:`~fedunseen.deploy.remote.link.Link` to the sites of the job.

    A thread coordinates over it, and the job ends when that is done.
    """

    may_return = False  # a site's process lives as long as the job

    def __init__(self) -> None:
        super().__init__()
        self.sites: Mapping[
            str, str
        ] = {}  # those that are there -> the token of the process that answers
        self.open: dict[str, Question] = {}  # those without an answer
        self.keys = defaultdict[str, str](lambda: secrets.token_hex(32))  # site -> its key
        self.key_tasks: dict[str, Task] = {}  # site -> the last that brings it its key

    @abstractmethod
    def coordinate(self, place: Place, sites: list[str]) -> None:
        """Coordinate the sites of the job; an error fails the job."""

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Look who is there until the coordinator is done, or the job is aborted."""
        self.engine = fl_ctx.get_engine()
        seen = {client.name: 0.0 for client in self.engine.get_clients()}
        for name in seen:
            self._hand_key(name)
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
        """Return the sites that are connected now: name -> a token that changes when its process
        starts again.
        """
        return self.sites

    def _look(self, seen: dict[str, float]) -> None:
        """See which sites are there, and end what the others were asked; ``seen`` holds when each
        answered last.
        """
        patience = 5 * BEAT if len(self.sites) == len(seen) else BEAT
        with ThreadPoolExecutor(max(len(seen), 1)) as pool:  # each gets another key
            answers = pool.map(lambda name: self._send(name, {}, patience), seen)
            replies = dict(zip(seen, answers, strict=True))
        sites = {}
        now = time.monotonic()
        for name, last in seen.items():
            reply = replies[name]
            if reply.get_return_code() == ReturnCode.BAD_REQUEST_DATA:  # a process without the key
                self._hand_key(name)
            if reply.get("token"):
                seen[name] = now
                sites[name] = str(reply["token"])[:64]
            elif (
                name in self.sites
                and reply.get_return_code() == ReturnCode.TIMEOUT
                and now - last < SILENCE
            ):
                sites[name] = self.sites[name]
        self.sites = sites
        for question in list(self.open.values()):
            if sites.get(question.site) != question.token:
                complete(question.answer, PartyGone(question.site))

    def _hand_key(self, site: str) -> None:
        """Offer a site its key as a task, unless one already waits for it."""
        task = self.key_tasks.get(site)
        if task is None or task.completion_status is not None:
            task = self.key_tasks[site] = Task(KEY_TASK, Shareable({KEY: self.keys[site]}))
            with self.engine.new_context() as context:
                self.send(task, context, [site])

    def ask(self, name: str, message: bytes) -> Future[bytes]:
        """Send a site a message; see :class:`~fedunseen.deploy.remote.link.Link`."""
        key = secrets.token_hex(16)
        question = Question(name, self.sites.get(name, ""), message)
        self.open[key] = question
        question.answer.add_done_callback(lambda _: self.open.pop(key))
        if self.sites.get(name) == question.token:  # what changes from here on is seen by _look
            in_thread(self._ask, key, question)
        else:
            complete(question.answer, PartyGone(name))
        return question.answer

    def _ask(self, key: str, question: Question) -> None:
        """Ask a site until it answers, its process has changed, or no one waits for the answer any
        more.
        """
        content = {"id": key, "to": question.token, "body": question.message}
        most = max(ALLOWED, TIMES * len(question.message))
        while key in self.open:
            reply = self._send(question.site, content, PATIENCE)
            if "body" in reply:
                answer = reply["body"]
                if (
                    isinstance(answer, bytes | bytearray | memoryview)
                    and memoryview(answer).nbytes <= most
                ):
                    complete(question.answer, bytes(answer))
                else:
                    self.logger.warning(
                        f"{question.site!r} sent what is too large, or not bytes: it is thrown away"
                    )
                    complete(question.answer, PartyGone(question.site))
            elif reply.get("known"):
                content.pop("body", None)
            else:
                time.sleep(0.2)
        self._send(question.site, {"forget": key}, 0.0)  # without waiting for a reply

    def _send(self, site: str, content: Mapping[str, Any], patience: float) -> Shareable:
        """Send a site a message with its key, and return its reply; none if malformed."""
        message = Shareable({**content, KEY: self.keys[site]})
        with self.engine.new_context() as context:
            replies = self.engine.send_aux_request(
                [site], TOPIC, message, patience, context, optional=True
            )
        reply = (replies or {}).get(site)
        if isinstance(reply, Shareable) and isinstance(reply.get(ReservedHeaderKey.HEADERS), dict):
            return reply
        return make_reply(ReturnCode.COMMUNICATION_ERROR)


class Party(Executor):  # type: ignore[misc]
    """The job's executor: answers questions, one at a time in a thread of its own. Its only task is
    to take the key that a question has to have.
    """

    def __init__(self) -> None:
        super().__init__()
        self.token = secrets.token_hex(8)
        self.held = contextlib.ExitStack()  # what is given back at the end of the job
        self.key = ""
        self.runner = 0  # the thread that fetches tasks from the server
        self.lock = threading.Lock()
        self.questions: queue.SimpleQueue[tuple[Future[bytes], bytes]] = queue.SimpleQueue()
        self.answers: dict[str, Future[bytes]] = {}  # question -> its answer, once there is one

    def party(self, place: Place, tree: Mapping[str, Any]) -> AbstractContextManager[Any]:
        """Return what answers, for as long as the job lasts.

        Args:
            place: where it works.
            tree: the site's settings, with paths in full.
        """
        raise NotImplementedError

    def answering(self, place: Place) -> Answer:
        """Return what answers; raises FedUnseenError if the site's file or data are not as they
        must be.
        """
        if (data := place.path("data")) is None:
            raise ExperimentError(
                f'local/{SETTINGS} of site {place.name} names no data: add "data": "FOLDER"'
            )
        tree = {**place.settings, "data": data, "credentials": place.path("credentials")}
        party = self.held.enter_context(self.party(place, tree))

        def answer(question: bytes) -> bytes:
            before = party.error
            reply: bytes = party.answer(question)
            if party.error is not None and party.error is not before:
                note_refusal(party.error)
            return reply

        return answer

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start and end with the job; any site can send the others an event of that name."""
        sent = fl_ctx.get_prop(FLContextKey.EVENT_SCOPE) == EventScope.FEDERATION
        if event_type == EventType.END_RUN and not sent:
            self.held.close()
        if event_type == EventType.START_RUN and not sent:
            self.runner = threading.get_ident()
            place = None
            try:
                place = Place.of(fl_ctx)
                answer = self.answering(place)
            except Exception as error:  # the server is sent a code, and the text stays at the site
                root = Path(fl_ctx.get_engine().get_workspace().get_root_dir())
                keep_refusal(root / STATE if place is None else place.state, error)
                note_refusal(error)
                self.system_panic(described(code_of(error)), fl_ctx)
                return
            fl_ctx.get_engine().register_aux_message_handler(TOPIC, self.receive)
            in_thread(self._work, answer)

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Take the key of a task, and refuse other tasks.

        Any site can send a task as an auxiliary message, which another thread handles. Only what
        the runner's own thread brings was fetched from the server.
        """
        key = shareable.get(KEY)
        fetched = threading.get_ident() == self.runner
        if task_name != KEY_TASK or not fetched or not isinstance(key, str) or not key:
            _log.warning("a task is refused that is not the server's key: %r", task_name[:80])
            return make_reply(ReturnCode.TASK_UNKNOWN)
        self.key = key
        return make_reply(ReturnCode.OK)

    def receive(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Handle a message of the controller; each reply names this process by its token. Without
        the key nothing is done, and the reply is empty.
        """
        if not self._has_key(request):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        reply = make_reply(ReturnCode.OK)
        key = request.get("id")
        reply["token"] = self.token
        self.answers.pop(request.get("forget"), None)
        if request.get("to") == self.token:
            with self.lock:
                if key not in self.answers:
                    future: Future[bytes] = Future()
                    self.questions.put((future, request["body"]))
                    self.answers[key] = future
                future = self.answers[key]
            reply["known"] = True
            with contextlib.suppress(TimeoutError):
                reply["body"] = future.result(HOLD)
        return reply

    def _has_key(self, request: Shareable) -> bool:
        given = request.get(KEY)
        if not self.key or not isinstance(given, str):
            return False
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.key.encode())

    def _work(self, answer: Answer) -> None:
        while True:
            future, question = self.questions.get()
            complete(future, answer(question))
