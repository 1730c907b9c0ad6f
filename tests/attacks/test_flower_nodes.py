"""A coordinator asks a Flower node for a folder that the node's owner has not given: only a worker of
Flower's simulation opens the folders of an experiment.
"""

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="pip install 'fedunseen[flower]'")

from flwr.app import ConfigRecord, Context, Message, RecordDict
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
