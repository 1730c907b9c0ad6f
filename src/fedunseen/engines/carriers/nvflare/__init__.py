"""Engine "nvflare": NVIDIA FLARE carries what FedUnseen sends, on its public interfaces alone.

In an existing federation of NVFlare, FedUnseen is a job (:mod:`fedunseen.tools.nvflare_job`). ``fedunseen run`` uses a
job of its own in NVFlare's simulator. Both jobs are ``job.py``.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec

from fedunseen.core.errors import FedUnseenError, MissingDependencyError
from fedunseen.core.files import write_json
from fedunseen.engines.remote.link import Link, Simulate
from fedunseen.engines.remote.processes import Child, Kept
from fedunseen.engines.remote.relay import Port, RelayServer

__all__ = ["simulate"]

PATIENCE = 600.0  # s in which the simulator starts, on a machine of any speed


@contextlib.contextmanager
def simulate(place: Simulate) -> Iterator[Link]:
    """Run parties in the client processes of a job of NVFlare's simulator, as long as the context lasts.

    A process that dies takes the job with it; another one is started, and its parties have new tokens.
    """
    if find_spec("nvflare") is None:
        raise MissingDependencyError(
            "engine 'nvflare' needs NVIDIA FLARE; install it: pip install 'fedunseen[nvflare]'"
        )
    folder, processes, board = place.folder / "nvflare", min(place.processes, place.parties), RelayServer()
    classes = f"{__name__}.job"
    controller = {"path": f"{classes}.Switch", "args": {"parties": place.parties, "processes": processes}}
    executor = {"path": f"{classes}.Worker", "args": {"factory": place.factory, "argument": place.argument}}
    server = {"workflows": [{"id": "fedunseen", **controller}]}
    client = {"executors": [{"tasks": ["*"], "executor": executor}]}
    for name, content in {
        "job/meta.json": {"name": "fedunseen", "min_clients": 1, "deploy_map": {"app": ["@ALL"]}},
        "job/app/config/config_fed_server.json": {"format_version": 2, **server},
        "job/app/config/config_fed_client.json": {"format_version": 2, **client},
        "simulator/local/resources.json": {
            "class_list_enforcement_mode": "enforce",
            "class_allow_list": [controller["path"], executor["path"]],
        },
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_json(folder / name, content)
    names = ",".join(f"process-{k}" for k in range(processes))
    command = [sys.executable, "-u", "-m", "nvflare.cli", "simulator", "job", "-w", "simulator"]
    command += ["-c", names, "-n", str(processes), "-t", str(processes)]
    with Port(folder, board.serve) as port, contextlib.ExitStack() as stack:
        # NVFlare writes into this folder alone, and imports this package.
        own = {"HOME": str(folder.resolve()), "PYTHONDONTWRITEBYTECODE": "1", "GRPC_VERBOSITY": "ERROR"}
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        kept = Kept(
            lambda: Child(command, folder / "output.txt", {**os.environ, **port.environment, **own, **paths}, folder)
        )
        stack.callback(kept.stop)
        if not kept.ready(lambda: bool(board.present()), PATIENCE):
            raise FedUnseenError(f"NVFlare does not start: {folder / 'output.txt'} says why")
        yield board
