"""The coordinator's side of a deployment on Flower: Flower's SuperLink inside our process, behind a gate.

Flower serves three interfaces at one port: Fleet (for parties), and Control and Runtime, through which anybody who
reaches the port may register keys and start code. The gate lets through what a registered party needs of Fleet alone.
"""

import asyncio
import contextlib
import logging
import queue
import socket
import ssl
import threading
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import uvicorn
from flwr.app import Array, Message, RecordDict

from fedunseen.core.errors import ConnectionLost, RefusedError
from fedunseen.core.files import parse_json
from fedunseen.engines.carriers.flower import kit, private
from fedunseen.engines.carriers.flower.content import HOLD, PARTY, SILENCE, TOKEN, packed, record_of, unpacked
from fedunseen.engines.remote.authority import REMEDY
from fedunseen.engines.remote.link import Host, Link, MessageLost, PartyGone, complete

log = logging.getLogger("fedunseen.engines.carriers.flower")

LARGEST = 16 * 2**20  # bytes of a request; Flower cuts what is larger into pieces of 5 MiB
ALLOWED, TIMES = 2**30, 8  # bytes of an answer: so many, or so many times the message's, if that is more
GRACE = 1.5  # seconds for a party to say something after its connection broke
_KEPT = 30 * 86400.0  # seconds for which Flower keeps a message
FETCHED = ("pull-messages", "pull-object", "push-messages", "push-object")
PATHS = frozenset(f"/v1/fleet/{name}" for name in ("activate-node", "deactivate-node", "send-node-heartbeat", *FETCHED))

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass
class Presence:
    """A party's process, as of its last message."""

    token: str
    key: bytes
    heard: float
    idle: float = 0.0

    @property
    def alive(self) -> bool:
        """Whether it has said something lately."""
        return time.monotonic() - self.heard < SILENCE


class Gate:
    """An ASGI application before Flower's: who may speak, and who is there."""

    def __init__(
        self,
        app: Any,
        state: private.LinkState,
        parties: tuple[str, ...],
        keys: dict[bytes, str] | None,
        ends: Mapping[str, datetime] | None = None,
    ) -> None:
        self.app, self.state, self.parties, self.keys, self.ends = app, state, parties, keys, ends or {}
        self.paths = PATHS if keys is not None else PATHS | {"/v1/fleet/register-node"}
        self.seen: dict[str, Presence] = {}
        self.budget: dict[str, int] = {}  # bytes that a party may still send in answer to a message
        self.busy: Counter[str] = Counter()  # messages to a party that have no answer yet
        self.changed: queue.SimpleQueue[str] = queue.SimpleQueue()  # parties that have sent something
        self.waiting: dict[str, asyncio.Event] = {}  # parties that wait for a message
        self.loop: asyncio.AbstractEventLoop | None = None

    def present(self) -> dict[str, Presence]:
        """Return who is there, in the order of the parties."""
        return {name: found for name in self.parties if (found := self.seen.get(name)) is not None and found.alive}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        key = headers.get(private.FLEET_HTTP_PUBLIC_KEY_HEADER.encode(), b"")
        token = headers.get(TOKEN.encode(), b"").decode("latin-1")
        if self.keys is None:
            name = unquote(headers.get(PARTY.encode(), b"").decode("latin-1"))
        else:
            name = self.keys.get(key, "")
        action = scope["path"].removeprefix("/v1/fleet/")
        refusal = self._refusal(scope["path"], name, token, headers)
        if refusal is not None:
            await _say(send, *refusal)
            return
        if action == "activate-node":
            self._forget(name)

        held: list[MutableMapping[str, Any]] = []
        pulled: list[MutableMapping[str, Any]] = []

        async def watched(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start" and event["status"] == 200:  # Flower has checked the signature
                self._heard(action, name, token, key)
            if action == "pull-messages":
                pulled.append(event)
            if action == "send-node-heartbeat":
                held.append(event)
            else:
                await send(event)

        begin = time.monotonic()
        if action == "pull-messages":
            await self._wait(name)
        await self.app(scope, await _whole(receive), watched)
        if pulled and pulled[0]["status"] == 200 and name in self.seen and self.seen[name].token == token:
            body = b"".join(event.get("body", b"") for event in pulled)
            if not private.PullMessagesResponse.FromString(body).messages_list:
                self.seen[name].idle = begin
        if held and held[0]["status"] == 200:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(receive(), HOLD)  # there is no more to receive: the connection broke
                self._broken(name, token)
        for event in held:
            await send(event)
        if action != "send-node-heartbeat":
            self.changed.put(name)

    async def _wait(self, name: str) -> None:
        """Hold a party's question for messages until there may be one, so that neither side looks again and again."""
        self.loop, self.waiting[name] = asyncio.get_running_loop(), asyncio.Event()
        if not self.busy[name]:  # else it has lost what it was sent
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.waiting[name].wait(), HOLD)

    def notify(self, name: str) -> None:
        """Wake a party's question for messages, from any thread."""
        if self.loop is not None and name in self.waiting:
            self.loop.call_soon_threadsafe(self.waiting[name].set)

    def _refusal(self, path: str, name: str, token: str, headers: Mapping[bytes, bytes]) -> tuple[int, str] | None:
        if path not in self.paths:
            return 404, "a coordinator of FedUnseen, for its parties only"
        if name not in self.parties or not token:
            return 403, "not registered"
        if name in self.ends and datetime.now(UTC) > self.ends[name]:
            return 403, "the certificate has expired"
        if self.keys is not None and not _signed(headers):
            return 401, "not signed"
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or int(length) > LARGEST:
            return 413, "too large"
        other = self.seen.get(name)
        if other is not None and other.token != token:
            if other.alive:
                return 409, "another process is connected as this party"
            if path.endswith(("heartbeat", *FETCHED)):
                return 401, "connect again"
        if path.endswith("push-object"):  # charged to whom it is known to come from alone
            self.budget[name] = self.budget.get(name, 0) - int(length)
            if self.budget[name] < 0:
                return 413, "too much"
        return None

    def _forget(self, name: str) -> None:
        """Tell Flower, which waits longer, that a party's last process has gone."""
        last = self.seen.get(name)
        node = None if last is None else self.state.get_node_id_by_public_key(last.key)
        if node is not None:
            self.state.deactivate_node(node)

    def _broken(self, name: str, token: str) -> None:
        """Give a party little time to send something else: it will, unless its process has ended."""
        if name in self.seen and self.seen[name].token == token:
            self.seen[name].heard = min(self.seen[name].heard, time.monotonic() - SILENCE + GRACE)
            self.changed.put(name)

    def _heard(self, action: str, name: str, token: str, key: bytes) -> None:
        if action == "activate-node":
            self.seen[name] = Presence(token, b64decode(key), time.monotonic())
        elif action == "deactivate-node":
            self.seen.pop(name, None)
        elif name in self.seen and self.seen[name].token == token:
            self.seen[name].heard = time.monotonic()


async def _whole(receive: Receive) -> Receive:
    """Receive a request's body, and return what passes it on whole: each piece costs Flower's layers a millisecond."""
    pieces: list[bytes] = []
    event: MutableMapping[str, Any] = {"more_body": True}
    while event.get("more_body", False):
        event = await receive()
        pieces.append(event.get("body", b""))
    if event["type"] == "http.request":
        event = {"type": "http.request", "body": b"".join(pieces), "more_body": False}
    events = [event]

    async def replay() -> MutableMapping[str, Any]:
        return events.pop() if events else await receive()

    return replay


def _signed(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request's time is signed by its key; Flower checks the time itself, after all has been read."""
    try:
        key, signature = (
            b64decode(headers[name.encode()], validate=True)
            for name in (private.FLEET_HTTP_PUBLIC_KEY_HEADER, private.FLEET_HTTP_SIGNATURE_HEADER)
        )
        return private.verify_signature(
            private.bytes_to_public_key(key), headers[private.TIMESTAMP_HEADER.encode()], signature
        )
    except (KeyError, ValueError, TypeError):
        return False


@dataclass(eq=False)
class _Ask:
    """A message that has no answer yet: its party and the party's process, its Flower run, and the answer so far."""

    name: str
    token: str
    run: int
    task: int
    number: str
    limit: int
    future: Future[bytes]
    sent: float = field(default_factory=time.monotonic)
    reply: Message | None = None


class SuperLink:
    """A :class:`Link` over Flower's register of nodes and messages."""

    def __init__(self, state: private.LinkState, gate: Gate) -> None:
        self.state, self.gate = state, gate
        self.open: dict[int, _Ask] = {}  # by run
        self.last: dict[str, bytes] = {}  # the last message to each party

    def present(self) -> Mapping[str, str]:
        """Return the parties that are connected now: name -> a token that changes when the party starts again."""
        return {name: presence.token for name, presence in self.gate.present().items()}

    def ask(self, name: str, message: bytes) -> Future[bytes]:
        """Send a party a message; see :class:`~fedunseen.engines.remote.link.Link`."""
        future: Future[bytes] = Future()
        presence = self.gate.present().get(name)
        node = None if presence is None else self.state.get_node_id_by_public_key(presence.key)
        if presence is None or node is None:
            complete(future, PartyGone(name))
            return future
        if self.last.get(name) != message:  # a party that is asked again may send no more
            self.last[name], self.gate.budget[name] = message, _allowed(message)
        run, task = self._start()
        self.gate.busy[name] += 1
        number = self._store(run, node, presence.token, message)
        self.open[run] = ask = _Ask(name, presence.token, run, task, number or "", _allowed(message), future)
        if number is None:
            self._close(ask, PartyGone(name))
        else:
            future.add_done_callback(lambda done: self.gate.changed.put(name))
            self.gate.notify(name)
        return future

    def carry(self, ended: threading.Event) -> None:
        """Complete messages until ``ended`` is set; keep their tasks from expiring, which Flower's do in a minute."""
        beat = time.monotonic()
        while not ended.is_set():
            try:
                name: str | None = self.gate.changed.get(timeout=0.25)
            except queue.Empty:
                name = None
            for ask in list(self.open.values()):
                if name in (None, ask.name) and (result := self._result(ask)) is not None:
                    self._close(ask, result)
            if time.monotonic() - beat > 5:
                beat = time.monotonic()
                for ask in list(self.open.values()):
                    self.state.acknowledge_task_heartbeat(ask.task)

    def _result(self, ask: _Ask) -> bytes | Exception | None:
        """Return the answer to a message, or why there is none; None: it may still come."""
        if ask.future.done():
            return PartyGone(ask.name)  # given up
        # Looked at before the answers are: a party that has asked for more by then has sent all that it will.
        presence = self.gate.present().get(ask.name)
        idle = 0.0 if presence is None else presence.idle
        # An error says that Flower takes the party for gone, as it does while one connects again; the gate decides.
        if ask.reply is None:
            replies = [one for one in self.state.get_message_res({ask.number}, ask.run) if not one.has_error()]
            ask.reply = replies[0] if replies else None
        if ask.reply is not None:
            try:
                body = self._body(ask.run, ask.reply.metadata.message_id, ask.limit)
            except Exception as error:  # after any message of a party, the others continue
                log.warning("party %s sent what cannot be read: %s", ask.name, error)
                return PartyGone(ask.name)
            if body is not None:
                return body
        if presence is None or presence.token != ask.token:
            return PartyGone(ask.name)
        # Flower hands a message out once. A party that asks for more without having answered has lost the message, or
        # its answer, with a connection.
        return MessageLost(ask.name) if idle > ask.sent else None

    def _close(self, ask: _Ask, result: bytes | Exception) -> None:
        """Complete a message, and remove all that Flower holds of it."""
        if self.open.pop(ask.run, None) is not None:
            self.gate.busy[ask.name] -= 1
            self.state.finish_task(ask.task, private.SubStatus.COMPLETED, "")
            self.state.cleanup_run(ask.run)
            complete(ask.future, result)

    def _start(self) -> tuple[int, int]:
        """Start a Flower run for one exchange. When the run is removed, late answers are removed with it."""
        run = self.state.create_run(
            None, None, None, {}, private.NOOP_FEDERATION_ID, None, private.NOOP_FLWR_AID, private.TaskType.SERVER_APP
        )
        task = self.state.get_run_info(run_ids=[run])[0].primary_task_id
        assert task is not None
        self.state.claim_task(task)
        self.state.activate_task(task)
        return run, task

    def _store(self, run: int, node: int, token: str, body: bytes) -> str | None:
        """Store a message for a party, and return its id; None if Flower does not take it."""
        metadata = private.Metadata(
            run_id=run,
            message_id="",
            src_node_id=private.SUPERLINK_NODE_ID,
            dst_node_id=node,
            reply_to_message_id="",
            group_id=token,
            created_at=datetime.now(UTC).timestamp(),
            ttl=_KEPT,
            message_type="query",
        )
        message = private.make_message(metadata=metadata, content=RecordDict({"body": packed(body)}))
        with private.no_object_id_recompute():
            number: str = message.object_id
            message.metadata.__dict__["_message_id"] = number
            tree, objects = private.get_object_tree(message), private.get_all_nested_objects(message.content["body"])
            session = self.state.start_session(run)
            bare = private.make_message(metadata=metadata, content=RecordDict())
            stored, missing = self.state.store_message_and_object_tree(bare, tree, session)
            for item in objects.keys() & missing if stored else ():
                self.state.store_object(run, session, item, objects[item].deflate())
        return number if stored else None

    def _body(self, run: int, number: str, most: int) -> bytes | None:
        """Return an answer of ``most`` bytes at most, once all its pieces are there."""
        body = record_of(self.state.object_store.get_object_tree(number))
        pieces: dict[str, bytes] = {}
        for node in private.iterate_object_tree(body):
            piece = self.state.get_object(run, node.object_id)
            if not piece:
                return None
            pieces[node.object_id] = piece
        _check_inflated(pieces, most)
        record = private.inflate_object_from_contents(body.object_id, pieces)
        self.state.object_store.delete(number)
        return unpacked(record)


def _allowed(body: bytes) -> int:
    return max(ALLOWED, TIMES * len(body))


def _check_inflated(pieces: Mapping[str, bytes], most: int) -> None:
    """Refuse pieces that take more than ``most`` bytes together: an array may name one piece many times."""
    total = 0
    for content in pieces.values():
        kind, children, _ = private.get_object_head_values_from_object_content(content)
        parts = (
            parse_json(private.get_object_body(content, Array))["arraychunk_ids"] if kind == Array.__qualname__ else ()
        )
        total += len(content) + sum(len(pieces[children[part]]) for part in parts)
        if total > most:
            raise ValueError(f"it takes more than {most:,} bytes")


@contextlib.contextmanager
def serve(place: Host) -> Iterator[Link]:
    """Listen for parties, and give a link to them."""
    secure = place.kit is not None
    certificate, private_key = kit.server_files(place.kit) if place.kit else (None, None)
    public = kit.registered(place.kit, place.parties) if place.kit else {}
    app = private.create_app()
    app.state.enable_supernode_auth = secure
    state = app.state.linkstate_factory.state()
    keys: dict[bytes, str] = {}
    for name, key in public.items():
        pem = private.public_key_to_bytes(key)
        state.create_node(private.NOOP_FLWR_AID, private.NOOP_ACCOUNT_NAME, pem, 0)
        keys[b64encode(pem)] = name
    ends = kit.expiry(place.kit, public) if place.kit else {}
    gate = Gate(app, state, place.parties, keys if secure else None, ends)
    config = uvicorn.Config(
        gate,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        ssl_certfile=certificate,
        ssl_keyfile=private_key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise RefusedError(f"{place.kit}: server.crt and server.key do not fit ({error}); {REMEDY}") from error
    server, listener = uvicorn.Server(config), _listener(place.address, place.port)
    link, ended = SuperLink(state, gate), threading.Event()
    threads = [
        threading.Thread(target=server.run, args=([listener],), name="superlink", daemon=True),
        threading.Thread(target=link.carry, args=(ended,), name="superlink-answers", daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        while not server.started and threads[0].is_alive():
            time.sleep(0.01)
        if not server.started:
            raise ConnectionLost(f"Flower's SuperLink did not start: {place.folder / 'flower.log'} says why")
        yield link
    finally:
        ended.set()
        server.should_exit = server.force_exit = True
        for thread in threads:
            thread.join(5)
        listener.close()


def _listener(address: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(128)
    except OSError as error:
        reason = error.strerror or error
        raise ConnectionLost(f"cannot listen at {address}:{port} ({reason}): choose another address or port") from error
    return listener


async def _say(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
