"""A federation, its training loop and the callbacks, without an experiment file."""

from fedunseen.federation.federation import Federation, State
from fedunseen.federation.loop import Callback, Loop, fit

__all__ = ["Callback", "Federation", "Loop", "State", "fit"]
