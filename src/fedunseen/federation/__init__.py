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
__getattr__, __dir__ = lazily(
    __name__,
    {
        "Callback": "fedunseen.federation.loop:Callback",
        "Federation": "fedunseen.federation.federation:Federation",
        "Loop": "fedunseen.federation.loop:Loop",
        "Partition": "fedunseen.federation.partition:Partition",
        "Parts": "fedunseen.federation.federation:Parts",
        "Sampling": "fedunseen.federation.federation:Sampling",
        "State": "fedunseen.federation.federation:State",
        "fit": "fedunseen.federation.loop:fit",
    },
)
