"""Carriers: how messages reach parties in other processes, by WebSockets, by Flower or by NVFlare."""

import importlib
from types import ModuleType

from fedunseen.core.registry import find

__all__ = ["carrier"]


def carrier(engine: str) -> ModuleType:
    """Import the module that carries a distributed engine's messages."""
    return importlib.import_module(find("engine", engine).adapter)
