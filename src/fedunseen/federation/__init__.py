"""A federation and its rounds, without an experiment file."""

from fedunseen.federation.federation import Federation, State

__all__ = ["Federation", "State"]
