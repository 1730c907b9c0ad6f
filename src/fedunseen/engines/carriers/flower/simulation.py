"""A simulation on Flower: its simulation on Ray in a process of its own, and a relay there.

Ray's own processes pickle between each other, on one machine or on a cluster of one's own. The coordinator receives
nothing but bytes.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

from fedunseen.core.errors import FedUnseenError
from fedunseen.engines.remote.link import Link, Simulate
from fedunseen.engines.remote.processes import Child, Kept
from fedunseen.engines.remote.relay import ENDED, Channel, Port, RelayServer, dial, forward

if TYPE_CHECKING:
    from flwr.serverapp import Grid

PLACE = "FEDUNSEEN_SIMULATION"  # in the environment: what to simulate
POLL = 0.05  # seconds between looks at Flower's answers
START = 600.0  # seconds in which Ray starts, on a machine of any speed
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # 15 by default, which starves workers on a busy machine
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # all processes see the accelerators
}


@contextlib.contextmanager
def simulated(place: Simulate) -> Iterator[Link]:
    """Run the parties; see :func:`fedunseen.engines.carriers.flower.simulate`."""
    board, path = RelayServer(), place.folder / "simulation.log"
    temporary = tempfile.mkdtemp(prefix="ray-")  # sockets have short names, and a run directory may have a long one
    settings = {"parties": place.parties, "processes": place.processes, "factory": place.factory}
    settings |= {"argument": place.argument, "temporary": temporary}
    command = [sys.executable, "-c", f"from {__name__} import main; main()"]
    with Port(place.folder, board.serve) as port, contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        environment = {**os.environ, **QUIET, "FLWR_HOME": str(place.folder.resolve()), **port.environment}
        environment[PLACE] = json.dumps(settings)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # the same modules as here
        kept = Kept(lambda: Child(command, path, environment))
        stack.callback(kept.stop)
        if not kept.ready(lambda: len(board.present()) == place.parties, START):
            raise FedUnseenError(f"Flower's simulation did not start: {path} says why")
        yield board


def main() -> None:
    """Be the process of Flower's simulation."""
    try:
        from flwr.simulation import run_simulation  # deprecated: what replaces it starts three more processes
    except ImportError:
        sys.exit("Flower has no run_simulation: pip install 'flwr<1.43', or simulate with the app (docs/flower.md)")
    from fedunseen.engines.carriers.flower.app import client_app, server_app

    settings, cluster = json.loads(os.environ[PLACE]), os.environ.get("RAY_ADDRESS")
    channel, parties = dial(), settings["parties"]
    start = {"num_cpus": settings["processes"], "_temp_dir": settings["temporary"], "include_dashboard": False}
    run_simulation(
        server_app(lambda grid, config: _carry(channel, grid, parties)),
        client_app("", settings["factory"], settings["argument"]),
        parties,
        backend_config={
            "init_args": {"address": cluster} if cluster else start,
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


def _carry(channel: Channel, grid: "Grid", parties: int) -> None:
    """Carry messages and answers until our process ends."""
    from fedunseen.engines.carriers.flower.app import GridLink

    names = [str(party) for party in range(parties)]

    def watched(done: Future[bytes]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            print(error, flush=True)
            if "ray.exceptions" in str(error):  # Flower never replaces a worker process that ended
                os._exit(1)  # our process starts this one again

    def ask(name: str, message: bytes) -> Future[bytes]:
        future = link.ask(name, message)
        future.add_done_callback(watched)
        return future

    with GridLink(grid, simulated=parties, poll=POLL).carried() as link, contextlib.suppress(*ENDED):
        while not link.present():  # until Ray is up
            time.sleep(POLL)
        channel.send({"parties": dict.fromkeys(names, os.urandom(8).hex())})
        forward(channel, ask)
