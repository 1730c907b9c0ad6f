"""A simulation on Flower: its simulation on Ray in a process of its own, and a relay there.

Ray's own processes pickle between each other, on one machine or on a cluster of one's own. The coordinator receives
nothing but bytes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedunseen.core.errors import FedUnseenError
from fedunseen.engines.remote.link import Link, Simulate, address, found
from fedunseen.engines.remote.relay import ENDED, Channel, Port, RelayServer, dial
from fedunseen.engines.remote.supervisor import Child, Progress

log = logging.getLogger("fedunseen.engines.carriers.flower")

PLACE = "FEDUNSEEN_SIMULATION"  # in the environment: what to simulate
POLL = 0.05  # seconds between looks at Flower's answers
START = 60.0  # seconds in which Ray has to make progress while it starts
RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # all processes see the accelerators
}


@contextlib.contextmanager
def simulated(place: Simulate) -> Iterator[Link]:
    """Run the parties; see :func:`fedunseen.engines.carriers.flower.simulate`."""
    board, ended = RelayServer(), threading.Event()
    # Sockets have short names, and a run directory may have a long one.
    temporary = Path(tempfile.mkdtemp(prefix="ray-"))
    settings = {"parties": place.parties, "processes": place.processes, "factory": address(place.factory)}
    settings |= {"argument": place.argument, "temporary": str(temporary)}
    path = place.folder / "simulation.log"
    command = [sys.executable, "-c", f"from {__name__} import main; main()"]
    with Port(place.folder, board.serve) as port:
        environment = {**os.environ, **RAY, **port.environment, PLACE: json.dumps(settings)}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # the same modules as here
        children = [Child(command, path, environment)]

        def tend() -> None:
            """Start the simulation again if it ends; messages under way are lost."""
            while not ended.wait(0.5):
                if children[0].status is not None:
                    log.warning("the simulation ended and is started again")
                    children[0].stop()
                    children[0] = Child(command, path, environment)

        tending = threading.Thread(target=tend, daemon=True)
        try:
            _wait(board, children[0], place.parties, path)
            tending.start()
            yield board
        finally:
            ended.set()
            if tending.is_alive():
                tending.join()
            children[0].stop()
            shutil.rmtree(temporary, ignore_errors=True)


def _wait(board: RelayServer, child: Child, parties: int, path: Path) -> None:
    progress = Progress(child, START)
    while len(board.present()) < parties:
        if child.status is not None or progress.stalled:
            raise FedUnseenError(f"Flower's simulation did not start: {path} says why")
        time.sleep(0.05)


def main() -> None:
    """Be the process of Flower's simulation."""
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    settings = json.loads(os.environ[PLACE])
    channel = dial()
    client, server = ClientApp(), ServerApp()
    client.query()(functools.partial(_answer, factory=settings["factory"], argument=settings["argument"]))
    server.main()(lambda grid, context: _carry(channel, grid, settings["parties"]))
    address = os.environ.get("RAY_ADDRESS")
    start: dict[str, Any] = {"num_cpus": settings["processes"], "_temp_dir": settings["temporary"]}
    run_simulation(
        server,
        client,
        settings["parties"],
        backend_config={
            "init_args": {"address": address} if address else {**start, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


def _carry(channel: Channel, grid: Any, parties: int) -> None:
    """Carry messages and answers until our process ends."""
    from flwr.app import ConfigRecord, Message, RecordDict

    from fedunseen.engines.carriers.flower.content import packed, unpacked

    nodes: list[int] = []
    while len(nodes) < parties:
        nodes = sorted(grid.get_node_ids())
        time.sleep(POLL)
    for reply in grid.send_and_receive([Message(RecordDict(), nodes[0], "query")]):  # comes when Ray is up
        if reply.has_error():
            raise RuntimeError(reply.error.reason)
    open_: dict[str, int] = {}
    ended = threading.Event()

    def receive() -> None:
        try:
            while True:
                head, body = channel.receive()
                if head.get("drop"):  # Flower takes nothing back, and keeps an answer until it is fetched
                    continue
                content = RecordDict({"body": packed(body), "to": ConfigRecord({"party": head["to"]})})
                for number in grid.push_messages([Message(content, nodes[int(head["to"])], "query")]):
                    open_[number] = head["id"]
        except ENDED:
            pass
        finally:
            ended.set()

    threading.Thread(target=receive, daemon=True).start()
    token = os.urandom(8).hex()
    channel.send({"parties": {str(party): token for party in range(parties)}})
    while not ended.is_set():
        for reply in grid.pull_messages(list(open_)) if open_ else ():
            number = open_.pop(reply.metadata.reply_to_message_id)
            if reply.has_error():
                print(reply.error.reason, flush=True)
                channel.send({"id": number, "lost": True})
                if "ray.exceptions" in reply.error.reason:  # Flower never replaces a worker process that ended
                    os._exit(1)  # our process starts this one again
            else:
                channel.send({"id": number}, unpacked(reply))
        ended.wait(POLL if open_ else POLL / 2)


def _answer(message: Any, context: Any, factory: str, argument: str) -> Any:
    """Answer for a party, in a worker process."""
    from flwr.app import Message, RecordDict

    from fedunseen.engines.carriers.flower.content import packed, unpacked

    if "to" not in message.content:
        return Message(RecordDict(), reply_to=message)
    party = str(message.content.config_records["to"]["party"])
    return Message(RecordDict({"body": packed(_made(factory, argument)(party, unpacked(message)))}), reply_to=message)


@functools.cache
def _made(factory: str, argument: str) -> Callable[[str, bytes], bytes]:
    """Make the function that answers, once in a process."""
    return found(factory)(argument)
