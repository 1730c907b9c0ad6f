"""A Flower app on Flower's public interfaces: a link over the grid of a ServerApp, and a ClientApp
that answers.

At a party the app passes each message on to a process that stays. In a simulation Flower's workers
stay, and answer themselves.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import pkgutil
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedunseen.core.errors import RefusedError
from fedunseen.core.text import printable
from fedunseen.deploy.flower.staying import PARTITION, ask_party
from fedunseen.deploy.remote.link import PartyGone, complete

POLL = 0.1  # seconds between looks for answers
LOOK = 1.0  # seconds between looks for nodes
WHOLE = (
    8 * 2**20
)  # bytes of a body that is sent in one piece; Flower cuts a large array into pieces of 5 MiB

NO_DATA = "node-without-data"
EXCEPTION = re.compile(r"\A<class '[\w.]+'>:<'(.*)'>\Z", re.DOTALL)
"""How Flower writes an exception of a node's app; the group is its text."""

_log = logging.getLogger("fedunseen.federation")


def packed(body: bytes) -> ArrayRecord | ConfigRecord:
    """Put bytes into a record."""
    if len(body) <= WHOLE:
        return ConfigRecord({"bytes": body})
    return ArrayRecord({"bytes": Array("uint8", (len(body),), "bytes", body)})


def unpacked(record: object) -> bytes:
    """Take bytes out again; raises KeyError or ValueError if it is another record."""
    if isinstance(record, ConfigRecord) and isinstance(whole := record["bytes"], bytes):
        return whole
    if not isinstance(record, ArrayRecord):
        raise ValueError("no bytes")
    array = record["bytes"]
    if tuple(array.shape) != (len(array.data),):
        raise ValueError("incomplete bytes")
    content: bytes = array.data
    return content


class GridLink:
    """A :class:`~fedunseen.deploy.remote.link.Link` over the grid of a ServerApp.

    A party is known by the name with which its key was registered
    (``flwr supernode register --name``), else by the one in its node's configuration: the first
    node that says a name keeps it, until one comes that is registered with it. Without parties, any
    node answers for each of so many ``simulated`` clients.
    """

    def __init__(self, grid: Grid, parties: Sequence[str] = (), simulated: int = 0) -> None:
        self.grid = grid
        self.parties = tuple(parties)
        self.simulated = simulated
        self.lock = threading.RLock()  # of the grid, and of what follows
        self.names: dict[int, str | None] = {}  # node -> its name; None: it has been asked for it
        self.nodes: dict[
            str, tuple[int, str]
        ] = {}  # party -> its node, and a token of its connection
        self.open: dict[str, tuple[str, str, Future[bytes]]] = {}  # message -> party, token, answer
        self.name_requests: dict[str, int] = {}  # question for a name -> node
        self.looked = 0.0
        self._trouble = ""  # why the SuperLink did not answer the last look
        self.ended = threading.Event()

    @contextlib.contextmanager
    def carried(self) -> Iterator[GridLink]:
        """Carry messages while the context lasts."""
        thread = threading.Thread(target=self._carry, name="flower-grid", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.ended.set()
            thread.join(10)

    def present(self) -> Mapping[str, str]:
        """Return the parties that are connected now: name -> a token that changes when the party
        starts again.
        """
        with self.lock:
            if time.monotonic() - self.looked > LOOK:
                self._look_or_say()
                self.looked = time.monotonic()
            if not self.parties:
                return (
                    {str(client): "simulated" for client in range(self.simulated)}
                    if self.nodes
                    else {}
                )
            return {name: token for name, (_, token) in self.nodes.items()}

    def _look_or_say(self) -> None:
        """Look who is there; a SuperLink that is too busy to say so is asked again."""
        try:
            self._look()
            self._trouble = ""
        except Exception as error:  # Flower raises that of a TLS handshake that takes too long
            asked = self.name_requests.values()
            self.names = {k: v for k, v in self.names.items() if v is not None or k in asked}
            if (trouble := printable(error)) != self._trouble:
                _log.warning("the SuperLink does not say which nodes it has: %s", trouble)
            self._trouble = trouble

    def _look(self) -> None:
        nodes = {info.node_id: info for info in self.grid.get_nodes()}
        new = [node for node in nodes if node not in self.names]
        for node in new:
            registered = nodes[node].name if nodes[node].name in self.parties else None
            for other_node in [
                k for k, name in self.names.items() if registered and name == registered
            ]:
                if nodes.get(other_node) is None or nodes[other_node].name != registered:
                    self.names[other_node] = ""  # it has only said so
                    _log.warning("node %d is refused: node %d is %r", other_node, node, registered)
            self.names[node] = registered
        unnamed = [node for node in new if self.names[node] is None]
        questions = [Message(RecordDict(), node, "query") for node in unnamed]
        numbers = self.grid.push_messages(questions) if questions else ()
        self.name_requests |= dict(zip(numbers, unnamed, strict=True))
        self.nodes = {}
        for node, info in sorted(nodes.items()):
            name = self.names[node]
            if name and name not in self.nodes:
                self.nodes[name] = (node, f"{node} {info.last_activated_at}")
        for number, (name, token, future) in list(self.open.items()):
            if name in self.parties and self.nodes.get(name, (0, ""))[1] != token:
                del self.open[number]
                complete(future, PartyGone(name))

    def _name(self, node: int, reply: Mapping[str, Any]) -> None:
        """Record what a node says of itself."""
        name = str(reply.get("name", ""))
        if not self.parties:
            self.names[node] = str(node)
        elif name in self.parties and name not in self.names.values():
            self.names[node] = name
        else:
            self.names[node] = ""
            _log.warning("node %d is refused: it says that its name is %r", node, name[:80])
        self.looked = 0.0

    def ask(self, name: str, message: bytes) -> Future[bytes]:
        """Send a party a message; see :class:`~fedunseen.deploy.remote.link.Link`."""
        future: Future[bytes] = Future()
        with self.lock:
            place = self.nodes.get(name)
            if self.nodes and not self.parties:
                place = list(self.nodes.values())[int(name) % len(self.nodes)]
            if place is None:
                complete(future, PartyGone(name))
                return future
            content = RecordDict({"body": packed(message), "to": ConfigRecord({"party": name})})
            try:
                (number,) = self.grid.push_messages([Message(content, place[0], "query")])
            except Exception as error:  # as of a look
                _log.warning("%s could not be asked: %s", name, printable(error))
                complete(future, PartyGone(name))
                return future
            self.open[number] = (name, place[1], future)
        return future

    def _carry(self) -> None:
        while not self.ended.wait(POLL):
            with self.lock:
                for number in [
                    number for number, (_, _, future) in self.open.items() if future.done()
                ]:
                    del self.open[number]  # given up
                wanted = [*self.open, *self.name_requests]
                # Flower reads all replies of a call, or none: with parties, each has its own call
                for numbers in [[number] for number in wanted] if self.parties else [wanted]:
                    self._pull(numbers)

    def _pull(self, numbers: list[str]) -> None:
        """Take the replies to messages; one that nothing can read ends its own message alone."""
        try:
            replies = list(self.grid.pull_messages(numbers)) if numbers else []
        except Exception as error:
            for number in numbers:
                self._fail(number, error)
            return
        for reply in replies:
            number = reply.metadata.reply_to_message_id
            try:
                self._take(number, reply)
            except Exception as error:
                self._fail(number, error)

    def _take(self, number: str, reply: Message) -> None:
        if reply.has_error():
            raise ValueError(EXCEPTION.sub(r"\1", str(reply.error.reason)))
        if number in self.name_requests:
            who = reply.content.config_records["who"]
            self._name(self.name_requests.pop(number), who)
        elif number in self.open:
            body = unpacked(reply.content["body"])
            _, _, future = self.open.pop(number)
            complete(future, body)

    def _fail(self, number: str, error: Exception) -> None:
        reason = printable(error)  # a node has sent it
        if number in self.name_requests:
            node = self.name_requests.pop(number)
            _log.warning("node %d runs no app of FedUnseen: %s", node, reason)
            self.names.pop(node, None)  # it is asked again
        elif number in self.open:
            name, _, future = self.open.pop(number)
            _log.warning("%s could not answer: %s", name, reason)
            complete(future, PartyGone(f"{name}: {reason}"))


def server_app(coordinate: Callable[[Grid, Mapping[str, Any]], object]) -> ServerApp:
    """Return the app that coordinates: ``coordinate`` is called with the grid and the configuration
    of the run.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        coordinate(grid, context.run_config)

    return app


def _in_simulation(place: Mapping[str, Any]) -> bool:
    """Return whether this is a worker of Flower's simulation: an actor of Ray, at a node that no
    one has configured. It opens the folders that the coordinator names.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or set(place) != PARTITION:
        return False
    return ray.get_runtime_context().get_actor_id() is not None


@functools.cache
def _made(address: str) -> Callable[[str, bytes], bytes]:
    """Make the function that answers, once in a process."""
    answer: Callable[[str, bytes], bytes] = pkgutil.resolve_name(address)()
    return answer


def client_app(party: str, simulated: str) -> ClientApp:
    """Return the app that answers.

    ``party`` is the ``module:function`` of a party's process, as :func:`ask_party` takes it;
    ``simulated`` that of what makes what answers for any simulated client.
    """
    app = ClientApp()

    @app.query()
    def answer(message: Message, context: Context) -> Message:
        place = context.node_config
        if "body" not in message.content:
            who = ConfigRecord({"name": str(place.get("name", ""))})
            return Message(RecordDict({"who": who}), reply_to=message)
        body = unpacked(message.content["body"])
        if place.get("data"):
            reply = ask_party(party, place, body)
        elif _in_simulation(place):
            reply = _made(simulated)(str(message.content.config_records["to"]["party"]), body)
        else:  # Flower sends the text of an error, and no code
            raise RefusedError(
                "the configuration of this node names no data: start it with --node-config "
                f'\'name="NAME" data="FOLDER"\' [{NO_DATA}]',
                NO_DATA,
            )
        return Message(RecordDict({"body": packed(reply)}), reply_to=message)

    return app
