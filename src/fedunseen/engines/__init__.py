"""Engines: where clients run. They share two functions: a client's round and the strategy's merge."""

from fedunseen.engines.distributed import Distributed, DistributedSettings
from fedunseen.engines.in_process import EngineSettings, InProcess, RoundResult
from fedunseen.engines.worker import Worker

ENGINES = {
    "in-process": "fedunseen.engines.in_process:InProcess",
    "flower": "fedunseen.engines.distributed:Flower",
    "nvflare": "fedunseen.engines.distributed:NVFlare",
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
