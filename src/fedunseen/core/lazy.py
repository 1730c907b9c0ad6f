"""Packages whose classes are imported when they are first asked for, so that one method does not load all others."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, table: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package (PEP 562)."""

    def find(name: str) -> Any:
        for place in table.values():
            module, _, attribute = place.partition(":")
            if attribute == name:
                return getattr(importlib.import_module(module), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *(place.partition(":")[2] for place in table.values())})

    return find, names
