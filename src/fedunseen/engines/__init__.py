"""Engines: where clients run. They share two functions: a client's round and the strategy's merge.

``local`` runs all clients in this process, ``remote`` has them in other processes, on this machine or elsewhere,
``carriers`` bring the messages there and back, and ``offline`` has files in their place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedunseen.core.registry import lazily

if TYPE_CHECKING:
    from fedunseen.engines.local.in_process import EngineSettings, InProcess
    from fedunseen.engines.local.worker import Worker
    from fedunseen.engines.remote.coordinator import Distributed, DistributedSettings
    from fedunseen.engines.round import RoundResult

ENGINES = {
    "in-process": "fedunseen.engines.local.in_process:InProcess",
    "buffered": "fedunseen.engines.local.buffered:Buffered",
    "websocket": "fedunseen.engines.remote.coordinator:WebSocket",
    "flower": "fedunseen.engines.remote.coordinator:Flower",
    "nvflare": "fedunseen.engines.remote.coordinator:NVFlare",
    "offline": "fedunseen.engines.offline.coordinator:Offline",
}

__all__ = ["ENGINES", "Distributed", "DistributedSettings", "EngineSettings", "InProcess", "RoundResult", "Worker"]

_REMOTE = {name: f"fedunseen.engines.remote.coordinator:{name}" for name in ("Distributed", "DistributedSettings")}
_LOCAL = {name: f"fedunseen.engines.local.in_process:{name}" for name in ("EngineSettings", "InProcess")}
_OTHERS = {"RoundResult": "fedunseen.engines.round:RoundResult", "Worker": "fedunseen.engines.local.worker:Worker"}
# A carrier's process needs neither PyTorch nor the other engines.
__getattr__, __dir__ = lazily(__name__, {**_REMOTE, **_LOCAL, **_OTHERS})
