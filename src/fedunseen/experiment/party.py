"""A party of a distributed federation: what answers the coordinator where the data are.

In a deployment (:class:`Party`) the data and all that a client remembers stay here; the coordinator sends the
experiment, parameters and what goes with them, and gets updates, counts of classes and samples, and losses. In a
simulation (:func:`simulated`) a worker process has all data and stands in for whichever client it is asked to be.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedunseen.core.errors import DataError, FedUnseenError, RefusedError, RunDirectoryError
from fedunseen.core.files import write_tensors
from fedunseen.core.parameters import Params, within
from fedunseen.data import Benchmark, Partition, Scaler
from fedunseen.data.episodes import for_episodes
from fedunseen.data.partition import NEVER
from fedunseen.engines import InProcess, Worker
from fedunseen.engines.local.worker import Work
from fedunseen.engines.remote.wire import (
    PROTOCOL,
    WireError,
    failure,
    installed,
    pack,
    plain,
    read_instruction,
    reply_message,
    unpack,
)
from fedunseen.experiment.directory import load_params
from fedunseen.experiment.encoding import encode
from fedunseen.experiment.federation import Federation
from fedunseen.experiment.orchestrator import in_process, prepared
from fedunseen.experiment.registry import find
from fedunseen.experiment.schema import Experiment
from fedunseen.strategies import Instruction, Reply

__all__ = ["Party", "simulated"]

_ROUND = "fedunseen/round"  # in a file of a client's state, beside it
_RUN = re.compile("[0-9a-f]{16}")  # names the folder of a run's states
_TAKEN = (
    "features",
    "semantics",
    "size",
    "text_encoder",
    "prompt",
)  # of the coordinator's [data]; everything else is the party's own affair
_KEPT = 4  # states that a client keeps: a coordinator may go back to its checkpoint before the last


class Party:
    """Answers the coordinator of a deployment.

    Args:
        data: the party's folder, in the layout of the benchmark ``folder`` or ``images``.
        own: settings of the experiment that this party has its own way, such as ``encoder.model``, a file here.
        state: folder in which the client keeps what it remembers between rounds.
        say: hears what happens, a line at a time.

    Attributes:
        done: set when the run is over, or when the party cannot take part.
        error: why it cannot; None if it can.
    """

    def __init__(
        self, data: Path, state: Path, say: Callable[[str], None], own: Mapping[str, Any] | None = None
    ) -> None:
        self.data, self.state, self.say, self.own = data, state, say, dict(own or {})
        self.done = threading.Event()
        self.error: FedUnseenError | None = None
        self._told: dict[str, Any] = {}
        self._federation: Federation | None = None
        self.kind = "folder" if (data / "features.npz").exists() else "images"
        self.benchmark = self._read({})

    def _read(self, told: Mapping[str, Any]) -> Benchmark:
        """Read the party's folder, with those of the coordinator's settings of data that apply to it.

        Raises:
            DataError: it is missing, damaged, or holds nothing to train on.
        """
        if not self.data.is_dir():
            raise DataError(f"the folder {self.data} is missing: mend --data")
        loader = find("data", self.kind)
        fields = {key: value for key, value in told.items() if key in _TAKEN and key in loader.Settings.model_fields}
        self.settings = loader.Settings(**{**fields, "name": self.kind, "root": self.data, "part": True})
        benchmark: Benchmark = loader.load(self.settings, 0)
        if not len(benchmark.train):
            raise DataError(f"{self.data} holds no sample to train on: all of them are marked 'test'")
        return benchmark

    def answer(self, message: bytes) -> bytes:
        """Do what the coordinator asks for; whatever goes wrong becomes part of the answer."""
        try:
            header, tensors = unpack(message)
            kind = header.get("kind")
            if kind == "hello":
                try:
                    return self._join(header, tensors)
                except FedUnseenError as error:
                    self.error = error
                    self.done.set()
                    return failure(self._discreet(str(error)))
            if kind == "round" and self._federation is not None:
                return self._round(self._federation, header, tensors)
            if kind == "stop":
                self.say("the run is over")
                self.done.set()
                return pack({})
            return failure("this party has not been greeted" if kind == "round" else f"{kind!r} is no request")
        except WireError as error:
            return failure(f"the message cannot be read: {error}")
        except Exception as error:
            # Whatever a library raises on this one message is the coordinator's to know and no reason to leave.
            self.say(f"this message could not be answered ({type(error).__name__}: {error})")
            return failure(self._discreet(f"{type(error).__name__}: {error}"))

    def _discreet(self, text: str) -> str:
        """Take the party's own folders out of what is sent."""
        for folder, name in ((self.data, "DATA"), (self.state, "STATE")):
            text = text.replace(str(folder), name)
        return text

    def _join(self, header: dict[str, Any], statistics: Params) -> bytes:
        """Check that coordinator and party speak of the same, and make everything ready."""
        told = {"header": header, "statistics": sorted(statistics)}
        if self._federation is None or told != self._told:
            if (header.get("protocol"), header.get("version")) != (PROTOCOL, installed()):
                other = plain(header.get("version"), 40)
                raise RefusedError(
                    f"this party has fedunseen {installed()} and the coordinator fedunseen {other}: "
                    "install the same version on both sides"
                )
            if not _RUN.fullmatch(str(header["run"])):
                raise RefusedError("the coordinator's greeting names no run: start it again with `fedunseen host`")
            self._federation = self._make(header, statistics)
            self._told = told
        samples = _worker(self._federation).samples[header["client"]]
        classes = len(np.unique(self._federation.benchmark.labels[samples]))
        self.say(f"joined with {len(samples)} samples of {classes} classes")
        return pack({"classes": classes, "samples": len(samples)})

    def _compare(self, benchmark: Benchmark, space: Mapping[str, str]) -> None:
        own = benchmark.space.hashes()
        if different := [what for what, value in own.items() if space.get(what) != value]:
            raise RefusedError(
                f"{self.data / 'classes.csv'} is not the coordinator's class space: they differ in the "
                f"{' and the '.join(different)}: copy the coordinator's classes.csv"
            )

    def _make(self, header: Mapping[str, Any], statistics: Params) -> Federation:
        client, clients = int(header["client"]), int(header["clients"])
        tree = dict(header["experiment"])
        places = {section: tree.get(section, {}) for section in ("data", "encoder", "method")}
        _check_places(places, self.own)
        self.benchmark = self._read({**tree.pop("data"), **within("data.", self.own)})
        tree["data"] = self.settings.model_dump(mode="json", exclude_none=True)
        tree["partition"] = {"clients": clients}
        tree["engine"] = {**tree["engine"], "mode": "one-at-a-time"}
        experiment = Experiment.from_dict(tree, {k: v for k, v in self.own.items() if not k.startswith("data.")})
        benchmark = encode(experiment, self.benchmark)
        if find("method", experiment.method.name).episodic:
            benchmark = for_episodes(benchmark)
        self._compare(benchmark, header["space"])
        if list(benchmark.features.shape[1:]) != list(header["shape"]):
            raise RefusedError(
                f"{self.data}: a sample has the shape {benchmark.features.shape[1:]}, but the coordinator's model "
                f"takes {tuple(header['shape'])}: give features of the same kind"
            )
        nobody = np.zeros(0, dtype=np.int64)
        held = tuple(benchmark.train if k == client else nobody for k in range(clients))
        partition = Partition(held, np.zeros(clients, dtype=np.int64), np.full(clients, NEVER))
        scaler = Scaler(experiment.data.features, {name: value.numpy() for name, value in statistics.items()})
        return Federation.make(experiment, benchmark, partition, scaler=scaler)

    def _round(self, federation: Federation, header: Mapping[str, Any], tensors: Params) -> bytes:
        client, round, after = int(header["client"]), int(header["round"]), int(header["after"])
        told = read_instruction(tensors, federation.device)
        before = self._remembered(after, federation.device)
        forgot = before is None
        before = before or {}
        began = time.monotonic()
        reply, now = _local(federation, client, told, before, round)
        seconds = time.monotonic() - began
        folder = self._folder()
        # Where nothing is remembered there is the round all the same: what is missing has been lost.
        write_tensors(folder / f"after-{round:06d}.safetensors", now | {_ROUND: torch.tensor(round)})
        # The newest by time, whatever their rounds: a message that was late may ask for a round that is long over.
        known = sorted(folder.glob("after-*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
        for path in known[:-_KEPT]:
            if int(path.stem.partition("-")[2]) != after:
                path.unlink()
        losses = ", ".join(f"{name} {value:.4g}" for name, value in sorted(reply.terms.items()))
        self.say(f"round {round + 1}: {seconds:.1f} s, {losses}")
        return reply_message(reply, None, round, round_seconds(seconds), forgot)

    def _remembered(self, after: int, device: torch.device) -> Params | None:
        """Return what this client knew after the last of its rounds that was merged; None if that is lost."""
        if after < 0:
            return {}
        path = self._folder() / f"after-{after:06d}.safetensors"
        try:
            state = load_params(path, device)
        except RunDirectoryError:
            self.say(f"warning: {path} is missing or damaged, so this party has forgotten what it knew and begins anew")
            return None
        return {name: value for name, value in state.items() if name != _ROUND}

    def _folder(self) -> Path:
        """Return where the state of this run's client is kept."""
        return self.state / str(self._told["header"]["run"])


def _check_places(told: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse to open files that the coordinator names: it could read them by what is said of them.

    Raises:
        RefusedError: says how the party names them itself.
    """
    for section, content in told.items():
        for key, value in content.items() if isinstance(content, Mapping) else ():
            # A name in a model hub has a slash too; what exists here under that name is a file of the party's.
            place = (
                isinstance(value, str)
                and value != ""
                and (os.sep in value[:2] or ".." in value or ":" in value or "\\" in value or Path(value).exists())
            )
            named = key == "model" or (place and key in ("weights", "text", "text_encoder"))
            if named and f"{section}.{key}" not in own:
                raise RefusedError(
                    f"the coordinator names the file {plain(value, 80)!r} for {section}.{key}, and a party opens its "
                    f"own files only: give --set {section}.{key}=FILE"
                )


def round_seconds(seconds: float) -> float:
    """Return seconds to the millisecond."""
    return round(seconds, 3)


def simulated(argument: str) -> Callable[[str, bytes], bytes]:
    """Return what answers for any client of a simulation, called by a worker process once.

    Args:
        argument: how many threads a worker process computes with.
    """
    torch.set_num_threads(max(1, int(argument)))
    warnings.simplefilter("ignore")  # the coordinator has said it already

    @lru_cache(maxsize=2)
    def federation(text: str) -> Federation:
        told = json.loads(text)
        experiment = in_process(Experiment.from_dict(told["experiment"]))
        benchmark, partition = prepared(experiment, told["selection"])
        return Federation.make(experiment, benchmark, partition)

    def answer(name: str, message: bytes) -> bytes:
        try:
            header, tensors = unpack(message)
            text = json.dumps({key: header[key] for key in ("experiment", "selection")}, sort_keys=True)
            made = federation(text)
            told, before = read_instruction(tensors, made.device), within("state/", tensors)
            began = time.monotonic()
            reply, now = _local(made, header["client"], told, before, header["round"])
            return reply_message(reply, now, header["round"], round_seconds(time.monotonic() - began))
        except (FedUnseenError, WireError) as error:
            return failure(str(error))
        except Exception as error:  # a library's: the worker goes on with the next client
            return failure(f"{type(error).__name__}: {error}")

    return answer


def _local(federation: Federation, client: int, told: Instruction, before: Params, round: int) -> tuple[Reply, Params]:
    """Do one client's round."""
    told = federation.engine.strategy.recall(told, before, round)
    return _worker(federation).round([Work(client, told, before)], round)[0]


def _worker(federation: Federation) -> Worker:
    assert isinstance(federation.engine, InProcess)
    return federation.engine.worker
