"""Tasks on a Ray cluster (extra ``ray``): actors of Ray Data that each hold a task.

Items and results are small: what a task makes goes to files that all nodes reach. If a node dies,
Ray gives the items that it was at to another one.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import secrets
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any

from fedunseen import __version__
from fedunseen.core.errors import DataError, ExperimentError, FedUnseenError, MissingDependencyError
from fedunseen.deploy.engines.engine import Task

NO_CLUSTER = "no-cluster"
OTHER_RAY = "other-ray"
FAILED = "worker-failed"

_PATIENCE = 10.0  # seconds to reach a cluster
_STORE = 2**27  # bytes of the object store of a cluster that is started here: items are small


def _ray() -> Any:
    try:
        return importlib.import_module("ray"), importlib.import_module("ray.data")
    except ImportError as error:
        raise MissingDependencyError(
            f"--engine ray needs Ray ({error}): pip install 'fedunseen[ray]'"
        ) from None


def _keep_others_out(address: str) -> None:
    """Let a cluster that this process starts serve who has its token: Ray listens at all addresses
    of the machine, and runs the code of whoever asks.

    Ray reads this when it is imported. Who has imported it before has settings of their own.
    """
    if not address and "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _check_reached(address: str) -> None:
    """Raise an OSError where nothing answers at HOST:PORT: Ray itself would look for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()


def _not_reached(address: str, error: Exception) -> ExperimentError:
    """Return the error for a cluster that Ray does not connect to."""
    text = str(error).strip()
    versions = re.findall(r"Ray: (\S+)\s+Python: (\S+)", text)
    if text.startswith("Version mismatch") and len(versions) == 2:
        there, here = (f"Ray {ray} on Python {python}" for ray, python in versions)
        return ExperimentError(
            f"the Ray cluster {address} has {there}, and this process has {here}: install the "
            "same versions here and on all nodes, or leave out --address",
            OTHER_RAY,
        )
    why = text.partition("\n")[0]
    return ExperimentError(
        f"the Ray cluster {address or 'on this machine'} cannot be used ({why}): start one with "
        "`ray start --head`, with the same versions of Ray and Python on all nodes, or leave out "
        "--engine",
        NO_CLUSTER,
    )


class _Actor:
    """Holds a task in a worker process, and does one item after another."""

    def __init__(self, make: Callable[[], Task], version: str) -> None:
        self.problem = ""
        if version != __version__:
            self.problem = (
                f"a node of the cluster has fedunseen {__version__}, and this is {version}: "
                "install the same version everywhere"
            )
            return
        try:
            self.task = make()
        except FedUnseenError as error:
            self.problem = str(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Do the items of a batch; a refusal is a part of the answer."""
        return {"answer": [json.dumps(self._answer(json.loads(item))) for item in batch["item"]]}

    def _answer(self, item: Any) -> dict[str, Any]:
        if self.problem:
            return {"problem": self.problem}
        try:
            return {"result": self.task(item)}
        except FedUnseenError as error:
            return {"problem": str(error)}


def actors_for(resources: Mapping[str, float], workers: int, items: int) -> tuple[int, int]:
    """Return how many actors a cluster gets, and how many GPUs each of them holds.

    Args:
        resources: of the cluster, as Ray names them.
        workers: that the user asks for; 0: as many as fit.
        items: that there are.

    Example:
        >>> actors_for({"CPU": 16.0, "GPU": 2.0}, 0, 100), actors_for({"CPU": 4.0}, 0, 3)
        ((2, 1), (3, 0))
    """
    gpus = int(resources.get("GPU", 0))
    places = gpus or max(1, int(resources.get("CPU", 1)))
    return min(workers or places, items), min(gpus, 1)


class RayEngine:
    """Maps tasks over items on a Ray cluster."""

    def __init__(self, address: str = "", workers: int = 0) -> None:
        _keep_others_out(address)
        self.ray, self.data = _ray()
        self.workers = workers
        self._started = not self.ray.is_initialized()
        if self._started:
            self._connect(address, workers)
        context = self.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)

    def _connect(self, address: str, workers: int) -> None:
        quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
        # "local": not a cluster of others that Ray would find on this machine
        here: dict[str, Any] = {"address": "local", "object_store_memory": _STORE}
        here |= {"include_dashboard": False}
        here |= {"num_cpus": workers} if workers else {}
        try:
            _check_reached(address)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what Ray will do in a later version
                self.ray.init(**quiet, **({"address": address} if address else here))
        except (OSError, ValueError, RuntimeError) as error:
            raise _not_reached(address, error) from None

    def map(self, make: Callable[[], Task], items: Sequence[Any]) -> Iterator[Any]:
        """Yield the results as they come.

        After a refusal the other items are done first: Ray ends this process without a word where
        it is closed in the midst of its work.
        """
        if not items:
            return
        problem = ""
        most, gpus = actors_for(self.ray.cluster_resources(), self.workers, len(items))
        rows = [{"item": json.dumps(item)} for item in items]
        answers = self.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _Actor,
            batch_size=1,
            fn_constructor_args=(make, __version__),
            compute=self.data.ActorPoolStrategy(min_size=1, max_size=most, initial_size=most),
            num_cpus=1,
            num_gpus=gpus,
        )
        try:
            for row in answers.iter_rows():
                answer = json.loads(row["answer"])
                problem = problem or answer.get("problem", "")
                if "result" in answer:
                    yield answer["result"]
        except (self.ray.exceptions.RayError, ValueError) as error:
            why = str(error).strip().rpartition("\n")[2]
            raise DataError(
                f"a worker has failed ({why}): repeat the command, which continues behind the "
                "blocks that are done",
                FAILED,
            ) from None
        if problem:
            raise DataError(problem)

    def close(self) -> None:
        """End the cluster that was started here, or leave the one that was there."""
        if self._started:
            with suppress(Exception):  # what has ended already
                self.ray.shutdown()


class RayExecutor(Executor):
    """Calls functions on a Ray cluster, as ``concurrent.futures`` has them.

    Args:
        address: of the cluster; "": one is started here, and ends with the executor.
    """

    def __init__(self, address: str = "") -> None:
        self._engine = RayEngine(address)
        self._call = self._engine.ray.remote(_call).options(max_retries=0)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return what a call on any node will return."""
        future: Future[Any] = self._call.remote(fn, args, kwargs).future()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End a cluster that was started here."""
        self._engine.close()


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)
