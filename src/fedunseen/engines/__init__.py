"""Engines: where clients run. They share two functions: a client's round and the strategy's merge."""

from fedunseen.engines.in_process import EngineSettings, InProcess, RoundResult
from fedunseen.engines.worker import Worker

__all__ = ["EngineSettings", "InProcess", "RoundResult", "Worker"]
