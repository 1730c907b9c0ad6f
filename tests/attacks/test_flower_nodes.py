"""A coordinator asks a Flower node for a folder that the node's owner has not given: only a worker of
Flower's simulation opens the folders of an experiment. A node sends odd replies: they end its own
messages alone.
"""

import sys
from types import SimpleNamespace

import pytest

from fedunseen.deploy.remote.link import PartyGone
from processes import GUARD, until

pytest.importorskip("flwr", reason="`make test-flower` runs this")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedunseen.core.errors import RefusedError
from fedunseen.deploy.flower import app as module

SIMULATED = {"partition-id": 0, "num-partitions": 3}


def ray(initialized=True, actor="actor"):
    """Return what Ray's package says in a process."""
    context = SimpleNamespace(get_actor_id=lambda: actor)
    return SimpleNamespace(is_initialized=lambda: initialized, get_runtime_context=lambda: context)


@pytest.fixture
def ask(monkeypatch):
    """Return a function that asks a node of a configuration; it returns who answered."""
    for name in ("_task_id", "_run_id", "_node_id"):  # Flower's messages need a run
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(module, "_made", lambda address: lambda name, body: b"simulated")
    monkeypatch.setattr(module, "ask_party", lambda party, place, body: b"party")
    client = module.client_app("party", "simulated")

    def asked(place, package):
        monkeypatch.setitem(sys.modules, "ray", package)
        content = {"body": module.packed(b"question"), "to": ConfigRecord({"party": "0"})}
        where = {"run_id": 1, "node_id": 1, "state": RecordDict(), "run_config": {}}
        reply = client(
            Message(RecordDict(content), 1, "query"), Context(node_config=dict(place), **where)
        )
        return module.unpacked(reply.content["body"])

    return asked


@pytest.mark.parametrize(
    "place",
    [
        {},
        SIMULATED,
        {"name": "north"},
        {"name": "north", "data": ""},
        {"masked": True},
        {**SIMULATED, "datas": "folder"},
        {**SIMULATED, "epsilon_limit": 1.0},
    ],
    ids=str,
)
def test_a_node_without_data_opens_no_folder_of_an_experiment(ask, place):
    outside = [None, ray(initialized=False), ray(actor=None)]
    for package in outside if place == SIMULATED else [*outside, ray()]:
        with pytest.raises(RefusedError, match=r"names no data.*node-without-data") as caught:
            ask(place, package)
        assert caught.value.code == "node-without-data"


def test_a_worker_of_the_simulation_and_a_party_answer(ask):
    assert ask(SIMULATED, ray()) == b"simulated"
    for package in (None, ray()):
        assert ask({"name": "north", "data": "folder"}, package) == b"party"


class Grid:
    """Flower's grid with one honest node, and one that sends an odd reply to everything; ``None``
    is one that Flower cannot read. As Flower does, a call takes all its replies before it reads
    them.
    """

    def __init__(self, odd, registered):
        nodes = {1: "north", 2: "west" if registered else ""}
        self.odd = odd
        self.nodes = [
            SimpleNamespace(node_id=k, name=name, last_activated_at="1")
            for k, name in nodes.items()
        ]
        self.sent = {}
        self.count = 0

    def get_nodes(self):
        return self.nodes

    def push_messages(self, messages):
        numbers = [str(self.count + k) for k in range(len(messages))]
        self.count += len(messages)
        self.sent |= dict(zip(numbers, messages, strict=True))
        return numbers

    def pull_messages(self, numbers):
        waiting = {
            number: self.sent.pop(number) for number in tuple(numbers) if number in self.sent
        }
        replies = []
        for number, message in waiting.items():
            honest = RecordDict({"body": module.packed(b"answer")})
            content = honest if message.metadata.dst_node_id == 1 else self.odd
            if content is None:
                raise ValueError("Object of type Odd is not supported.")
            about = SimpleNamespace(reply_to_message_id=number)
            replies.append(
                SimpleNamespace(metadata=about, has_error=lambda: False, content=content)
            )
        return replies


def array(shape):
    return ArrayRecord({"bytes": Array("uint8", shape, "bytes", b"abc")})


ODD = {
    "unreadable": None,
    "empty": RecordDict(),
    "another record": RecordDict({"who": array((3,)), "body": ConfigRecord({"bytes": 3})}),
    "no content": SimpleNamespace(),
    "no dimension": RecordDict({"body": array(())}),
    "two dimensions": RecordDict({"body": array((3, 1))}),
    "other length": RecordDict({"body": array((4,))}),
    "no bytes": RecordDict({"body": ConfigRecord({})}),
}


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_reply_ends_its_own_message_alone(odd, registered, monkeypatch):
    for name, value in (("_task_id", 1), ("_run_id", 1), ("_node_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)
    monkeypatch.setattr(module, "LOOK", 0.0)
    monkeypatch.setattr(module, "POLL", 0.01)
    grid = Grid(ODD[odd], registered)
    with module.GridLink(grid, ("north", "west")).carried() as link:
        for _ in range(3):
            with link.lock:  # both are sent before the next look for replies
                link.present()
                answers = [link.ask("west", b"question"), link.ask("north", b"question")]
            with pytest.raises(PartyGone):
                answers[0].result(GUARD)
            assert answers[1].result(GUARD) == b"answer"
        until(lambda: link.present() and not link.open)
        assert ("west" in link.present()) == registered
