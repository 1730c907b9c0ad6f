"""The coordinator's side of a deployment on Flower: Flower's SuperLink inside our process, behind a gate.

The SuperLink keeps the register of parties, checks their signatures, and holds messages until they are fetched. Flower
serves three interfaces at one port: Fleet (for parties), and Control and Runtime, through which anybody who reaches
the port may register keys and start code. So the gate lets through what a party needs of Fleet, for parties that are
registered, and nothing else. No app is shipped, and no code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import uvicorn
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID, TIMESTAMP_HEADER, SubStatus
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    NOOP_FEDERATION_ID,
    TaskType,
)
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, public_key_to_bytes, verify_signature
from flwr.superlink.main import create_app

from fedunseen.core.errors import ConnectionLost, RefusedError
from fedunseen.core.files import parse_json
from fedunseen.engines.carriers.flower import kit
from fedunseen.engines.carriers.flower.content import HOLD, PARTY, SILENCE, TOKEN, packed, unpacked
from fedunseen.engines.remote.link import Host, Link

__all__ = ["serve"]

log = logging.getLogger("fedunseen.engines.carriers.flower")

LARGEST = 16 * 2**20  # bytes of a request; Flower cuts what is larger into pieces of 5 MiB
ALLOWED, TIMES = 2**30, 8  # bytes of an answer: so many, or so many times the message's, if that is more
GRACE = 1.5  # seconds for a party to say something after its connection broke
AGAIN = 20  # times that a party is asked what it has lost, in one exchange
POLL = 0.02  # seconds between looks at what has come
FETCHED = ("pull-messages", "pull-object", "confirm-message-received", "push-messages", "push-object")
PATHS = frozenset(f"/v1/fleet/{name}" for name in ("activate-node", "deactivate-node", "send-node-heartbeat", *FETCHED))

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass
class Presence:
    """A party's process, as last heard of.

    Attributes:
        token: of this process.
        key: the party's public key.
        heard: when it said something.
        idle: when it asked for a message and there was none; it does so only when it has answered all that it has.
    """

    token: str
    key: bytes
    heard: float
    idle: float = 0.0

    @property
    def alive(self) -> bool:
        """Whether it has said something lately."""
        return time.monotonic() - self.heard < SILENCE


class Gate:
    """An ASGI application before Flower's: who may speak, and who is there.

    Args:
        app: Flower's.
        state: Flower's register.
        parties: the names of all parties.
        keys: public key, as Flower's header has it -> name; None: plain text, the names are the parties' own word.
        ends: name -> until when a party's certificate is valid.
    """

    def __init__(
        self,
        app: Any,
        state: LinkState,
        parties: tuple[str, ...],
        keys: dict[bytes, str] | None,
        ends: Mapping[str, datetime] | None = None,
    ) -> None:
        self.app, self.state, self.parties, self.keys, self.ends = app, state, parties, keys, ends or {}
        self.paths = PATHS if keys is not None else PATHS | {"/v1/fleet/register-node"}
        self.seen: dict[str, Presence] = {}
        self.budget: dict[str, int] = {}  # bytes that a party may still send in this exchange

    def present(self) -> dict[str, Presence]:
        """Return who is there, in the order of the parties."""
        return {name: found for name in self.parties if (found := self.seen.get(name)) is not None and found.alive}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        key = headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER.encode(), b"")
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
        await self.app(scope, receive, watched)
        if pulled and pulled[0]["status"] == 200 and name in self.seen and self.seen[name].token == token:
            body = b"".join(event.get("body", b"") for event in pulled)
            if not PullMessagesResponse.FromString(body).messages_list:
                self.seen[name].idle = begin
        if held and held[0]["status"] == 200:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(receive(), HOLD)  # there is no more to receive: the connection broke
                self._broken(name, token)
        for event in held:
            await send(event)

    def _refusal(self, path: str, name: str, token: str, headers: Mapping[bytes, bytes]) -> tuple[int, str] | None:
        if path not in self.paths:
            return 404, "a coordinator of FedUnseen, for its parties only"
        if name not in self.parties or not token:
            return 403, "not registered"
        if name in self.ends and now() > self.ends[name]:
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

    def _heard(self, action: str, name: str, token: str, key: bytes) -> None:
        if action == "activate-node":
            self.seen[name] = Presence(token, b64decode(key), time.monotonic())
        elif action == "deactivate-node":
            self.seen.pop(name, None)
        elif name in self.seen and self.seen[name].token == token:
            self.seen[name].heard = time.monotonic()


def _signed(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request's time is signed by its key; Flower checks the time itself, after all has been read."""
    try:
        key, signature = (
            b64decode(headers[name.encode()], validate=True)
            for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
        )
        return verify_signature(bytes_to_public_key(key), headers[TIMESTAMP_HEADER.encode()], signature)
    except (KeyError, ValueError, TypeError):
        return False


class SuperLink:
    """A :class:`Link` over Flower's register of nodes and messages."""

    def __init__(self, state: LinkState, gate: Gate) -> None:
        self.state, self.gate = state, gate
        self.tasks: set[int] = set()  # of the exchanges that are under way

    def parties(self) -> Mapping[str, str]:
        """Return the parties that are connected now: name -> a token that changes when the party starts anew."""
        return {name: presence.token for name, presence in self.gate.present().items()}

    def exchange(self, messages: Mapping[str, bytes], timeout: float) -> Iterator[tuple[str, bytes | None]]:
        """Send each party its message and give the answers as they come, as a ``Link`` does."""
        end = time.monotonic() + timeout
        run, task = self._begin()
        times: dict[str, int] = {}
        # Once an exchange: a party that is asked again has no more.
        self.gate.budget |= {name: _allowed(sent) for name, sent in messages.items()}
        try:
            waiting, absent = self._send(run, messages, timeout)
            sent = dict.fromkeys(messages, time.monotonic())
            for name in absent:
                yield name, None
            arriving: dict[str, tuple[str, Message]] = {}
            while waiting or arriving:
                # Looked at before the answers are: whoever has asked for more by then has sent all that it will.
                idle = {name: presence.idle for name, presence in self.gate.present().items()}
                for reply in self._replies(set(waiting), run):
                    # An error says that Flower takes the party for gone, as it does while one connects again: the gate
                    # knows better who is there.
                    if not reply.has_error():
                        name, _ = waiting.pop(reply.metadata.reply_to_message_id)
                        arriving[reply.metadata.message_id] = (name, reply)
                for number, (name, _) in list(arriving.items()):
                    try:
                        body = self._body(run, number, _allowed(messages[name]))
                    except Exception as error:  # whatever a party sent, the others go on
                        log.warning("party %s sent what cannot be read: %s", name, error)
                        del arriving[number]
                        yield name, None
                        continue
                    if body is not None:
                        del arriving[number]
                        yield name, body
                tokens = self.parties() if time.monotonic() < end else {}
                for number, (name, token) in list(waiting.items()):
                    if tokens.get(name) != token:
                        del waiting[number]
                        yield name, None
                for number, (name, reply) in list(arriving.items()):
                    if tokens.get(name) != reply.metadata.group_id:
                        del arriving[number]
                        yield name, None
                # Flower hands a message out once. A party that asks for more without having answered has lost the
                # message, or its answer, with a connection.
                left = {number: name for number, (name, _) in (*waiting.items(), *arriving.items())}
                for number, name in left.items():
                    if idle.get(name, 0.0) <= sent[name]:
                        continue
                    waiting.pop(number, None)
                    arriving.pop(number, None)
                    times[name] = times.get(name, 0) + 1
                    log.warning("party %s lost a message or its answer: it is asked again", name)
                    again = self._send(run, {name: messages[name]}, timeout)[0] if times[name] <= AGAIN else {}
                    sent[name] = time.monotonic()
                    waiting |= again
                    if not again:
                        yield name, None
                if waiting or arriving:
                    time.sleep(POLL)
        finally:
            self.tasks.discard(task)
            self.state.finish_task(task, SubStatus.COMPLETED, "")
            self.state.cleanup_run(run)

    def tend(self, ended: threading.Event) -> None:
        """Keep the exchanges that are under way from expiring, which Flower's tasks do after a minute."""
        while not ended.wait(5):
            for task in list(self.tasks):
                self.state.acknowledge_task_heartbeat(task)

    def _begin(self) -> tuple[int, int]:
        """Start a Flower run for one exchange. When the run is removed, late answers are removed with it."""
        run = self.state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP)
        task = self.state.get_run_info(run_ids=[run])[0].primary_task_id
        assert task is not None
        self.state.claim_task(task)
        self.state.activate_task(task)
        self.tasks.add(task)
        return run, task

    def _send(
        self, run: int, messages: Mapping[str, bytes], timeout: float
    ) -> tuple[dict[str, tuple[str, str]], list[str]]:
        """Store the messages: message id -> (party, token), and who is not there to fetch one."""
        waiting: dict[str, tuple[str, str]] = {}
        absent: list[str] = []
        records: dict[int, ArrayRecord] = {}  # most messages of a round are the same bytes
        for name, body in messages.items():
            presence = self.gate.present().get(name)
            node = None if presence is None else self.state.get_node_id_by_public_key(presence.key)
            if presence is None or node is None:
                absent.append(name)
                continue
            if id(body) not in records:
                records[id(body)] = packed(body)
            metadata = Metadata(
                run_id=run,
                message_id="",
                src_node_id=SUPERLINK_NODE_ID,
                dst_node_id=node,
                reply_to_message_id="",
                group_id=presence.token,
                created_at=now().timestamp(),
                ttl=timeout + 3600,
                message_type="query",
            )
            message = make_message(metadata=metadata, content=RecordDict({"body": records[id(body)]}))
            with no_object_id_recompute():
                number = message.object_id
                message.metadata.__dict__["_message_id"] = number
                tree, objects = get_object_tree(message), get_all_nested_objects(message)
                session = self.state.start_session(run)
                bare = make_message(metadata=metadata, content=RecordDict())
                stored, missing = self.state.store_message_and_object_tree(bare, tree, session)
                for item in missing if stored else ():
                    self.state.store_object(run, session, item, objects[item].deflate())
            if stored:
                waiting[number] = (name, presence.token)
            else:
                absent.append(name)
        return waiting, absent

    def _replies(self, numbers: set[str], run: int) -> list[Message]:
        if not numbers:
            return []
        found = self.state.get_message_res(message_ids=set(numbers), run_id=run)  # it empties the set
        return [reply for reply in found if reply.metadata.reply_to_message_id in numbers]

    def _body(self, run: int, number: str, most: int) -> bytes | None:
        """Return an answer of ``most`` bytes at most, once all its pieces are there."""
        tree = self.state.object_store.get_object_tree(number)
        pieces: dict[str, bytes] = {}
        for node in iterate_object_tree(tree):
            piece = self.state.get_object(run, node.object_id)
            if not piece:
                return None
            pieces[node.object_id] = piece
        _check_inflated(pieces, most)
        message = inflate_object_from_contents(number, pieces)
        self.state.object_store.delete(number)
        if not isinstance(message, Message):
            raise TypeError("not a message")
        return unpacked(message)


def _allowed(body: bytes) -> int:
    return max(ALLOWED, TIMES * len(body))


def _check_inflated(pieces: Mapping[str, bytes], most: int) -> None:
    """Refuse pieces that take more than ``most`` bytes together: an array may name one piece many times.

    Raises:
        ValueError, KeyError, ...: they do, or are damaged.
    """
    total = 0
    for content in pieces.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        parts = parse_json(get_object_body(content, Array))["arraychunk_ids"] if kind == Array.__qualname__ else ()
        total += len(content) + sum(len(pieces[children[part]]) for part in parts)
        if total > most:
            raise ValueError(f"it takes more than {most:,} bytes")


@contextlib.contextmanager
def serve(place: Host) -> Iterator[Link]:
    """Listen for parties, and give a link to them."""
    files = None if place.kit is None else kit.server_files(place.kit)
    public = None if place.kit is None else kit.registered(place.kit, place.parties)
    app = create_app()
    app.state.enable_supernode_auth = public is not None
    state = app.state.linkstate_factory.state()
    keys: dict[bytes, str] | None = None if public is None else {}
    for name, key in (public or {}).items():
        pem = public_key_to_bytes(key)
        state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, pem, 0)
        assert keys is not None
        keys[b64encode(pem)] = name
    ends = None if place.kit is None or public is None else kit.expiry(place.kit, public)
    gate = Gate(app, state, place.parties, keys, ends)
    config = uvicorn.Config(
        gate,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        ssl_certfile=None if files is None else str(files[0]),
        ssl_keyfile=None if files is None else str(files[1]),
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise RefusedError(f"{place.kit}: server.crt and server.key do not fit ({error}); {kit.MEND}") from error
    server, listener = uvicorn.Server(config), _listener(place.address, place.port)
    link, ended = SuperLink(state, gate), threading.Event()
    threads = [
        threading.Thread(target=server.run, args=([listener],), name="superlink", daemon=True),
        threading.Thread(target=link.tend, args=(ended,), name="superlink-tasks", daemon=True),
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
