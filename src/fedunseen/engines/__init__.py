"""Engines: where clients run. They share two functions: a client's round and the strategy's merge.

``local`` runs all clients in this process, ``remote`` has them in other processes, on this machine or elsewhere,
``carriers`` bring the messages there and back, and ``offline`` has files in their place.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedunseen.engines.local.in_process import EngineSettings, InProcess
    from fedunseen.engines.local.worker import Worker
    from fedunseen.engines.remote.coordinator import Distributed, DistributedSettings
    from fedunseen.engines.round import RoundResult

ENGINES = {
    "in-process": "fedunseen.engines.local.in_process:InProcess",
    "buffered": "fedunseen.engines.local.buffered:Buffered",
    "flower": "fedunseen.engines.remote.coordinator:Flower",
    "nvflare": "fedunseen.engines.remote.coordinator:NVFlare",
    "offline": "fedunseen.engines.offline.coordinator:Offline",
}

__all__ = [
    "ENGINES",
    "Distributed",
    "DistributedSettings",
    "EngineSettings",
    "InProcess",
    "RoundResult",
    "Worker",
]

_HOMES = {
    "Distributed": "remote.coordinator",
    "DistributedSettings": "remote.coordinator",
    "EngineSettings": "local.in_process",
    "InProcess": "local.in_process",
    "RoundResult": "round",
    "Worker": "local.worker",
}


def __getattr__(name: str) -> object:
    """Import what is asked for: a carrier's process needs neither PyTorch nor the other engines."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
