"""Engine "flower": Flower carries what FedUnseen sends.

A deployment has Flower's SuperLink (``superlink.py``) and its Fleet interface over HTTPS (``client.py``) inside our two
kinds of processes: no app, that is code, is shipped. A simulation uses Flower's simulation on Ray (``simulation.py``).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from fedunseen.core.errors import MissingDependencyError
from fedunseen.engines.remote.link import Answer, Host, Join, Link, Simulate

if TYPE_CHECKING:
    from cryptography import x509

    from fedunseen.engines.remote.authority import Authority

__all__ = ["certificates", "check_private", "host", "join", "renewed", "simulate"]

FIRST, BEYOND = (1, 41), (1, 43)  # versions with which the tests of private.py were run


def host(place: Host) -> AbstractContextManager[Link]:
    """Listen for the parties of a federation."""
    _prepare(place.folder)
    check_private()
    from fedunseen.engines.carriers.flower.superlink import serve

    return serve(place)


def join(place: Join, answer: Answer, done: threading.Event) -> None:
    """Be a party: answer messages until ``done`` is set."""
    _prepare(place.folder)
    check_private()
    from fedunseen.engines.carriers.flower.client import answer_messages

    answer_messages(place, answer, done)


def simulate(place: Simulate) -> AbstractContextManager[Link]:
    """Run a simulation's parties in processes of Ray: on this machine, or on the cluster that ``RAY_ADDRESS`` names."""
    _prepare(place.folder)
    if importlib.util.find_spec("ray") is None:
        raise MissingDependencyError("Flower's simulation needs Ray: pip install 'fedunseen[flower]'")
    from fedunseen.engines.carriers.flower.simulation import simulated

    return simulated(place)


def certificates(out: Path, host: str, parties: Sequence[str], days: int, authority: Path | None = None) -> None:
    """Write ``out/coordinator/`` and ``out/NAME/`` for each party; see :func:`make`."""
    _library()
    from fedunseen.engines.carriers.flower.kit import make

    make(out, host, parties, days, authority)


def renewed(authority: Authority, name: str, out: Path) -> x509.Certificate:
    """Write ``out/NAME/`` with a new key, and what the coordinator needs of it; return the certificate."""
    _library()
    from fedunseen.engines.carriers.flower.kit import renew

    return renew(authority, name, out)


def _library() -> str:
    """Return the version of Flower."""
    try:
        return importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingDependencyError("engine 'flower' needs Flower: pip install 'fedunseen[flower]'") from error


def check_private() -> None:
    """Refuse a version of Flower whose inner interfaces are not those that ``host`` and ``join`` use."""
    version, lacks = _library(), ""
    try:
        importlib.import_module(f"{__name__}.private")
    except ImportError as error:
        lacks = f" ({error})"
    if lacks or not FIRST <= tuple(int(part) for part in version.split(".")[:2]) < BEYOND:
        raise MissingDependencyError(
            f"`host` and `join` use inner interfaces of Flower 1.41 and 1.42, and {version} is installed{lacks}: "
            "pip install 'flwr<1.43', or use the Flower app (docs/federation.md)"
        )


def _prepare(folder: Path) -> None:
    """Import Flower quietly: no telemetry, no update check, no files elsewhere, its log in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
    os.environ["FLWR_HOME"] = str(folder.resolve())
    for name in ("FLWR_DATABASE", "FLWR_ENABLE_EVENT_LOG", "FLWR_OIDC_ENABLED"):  # meant for other SuperLinks
        os.environ.pop(name, None)
    _library()
    import flwr  # noqa: F401  (sets up its logger, which is then changed)

    handler = logging.FileHandler(folder / "flower.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("flwr", "uvicorn", "uvicorn.error", "fedunseen.engines.carriers.flower"):
        logger = logging.getLogger(name)
        for old in list(logger.handlers):
            logger.removeHandler(old)
            old.close()
        logger.propagate = name == "uvicorn.error"
        if not logger.propagate:
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
