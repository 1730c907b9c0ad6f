"""Engine "flower": Flower carries what FedUnseen sends, on its public interfaces alone.

In an existing federation of Flower, and in its simulation, FedUnseen is an app (``app.py``). ``fedunseen run`` uses
Flower's simulation on Ray (``simulation.py``).
"""

import importlib.util
from contextlib import AbstractContextManager

from fedunseen.core.errors import MissingDependencyError
from fedunseen.engines.remote.link import Link, Simulate

__all__ = ["simulate"]


def simulate(place: Simulate) -> AbstractContextManager[Link]:
    """Run a simulation's parties in processes of Ray: on this machine, or on the cluster that ``RAY_ADDRESS`` names."""
    if None in map(importlib.util.find_spec, ("flwr", "ray")):
        raise MissingDependencyError("Flower's simulation needs Flower and Ray: pip install 'fedunseen[flower]'")
    from fedunseen.engines.carriers.flower.simulation import simulated

    return simulated(place)
