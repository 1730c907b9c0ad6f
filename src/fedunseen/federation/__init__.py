"""A federation, its training loop and the callbacks, without an experiment file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedunseen.core.registry import lazily

if TYPE_CHECKING:
    from fedunseen.federation.federation import Federation, Parts, Sampling, State
    from fedunseen.federation.loop import Callback, Loop, fit
    from fedunseen.federation.partition import Partition

__all__ = ["Callback", "Federation", "Loop", "Partition", "Parts", "Sampling", "State", "fit"]

# so that the section [partition] is read without PyTorch
_HOMES = {
    "federation": ("Federation", "Parts", "Sampling", "State"),
    "loop": ("Callback", "Loop", "fit"),
    "partition": ("Partition",),
}
__getattr__, __dir__ = lazily(
    __name__, {name: f"fedunseen.federation.{home}:{name}" for home, names in _HOMES.items() for name in names}
)
