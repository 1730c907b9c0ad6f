"""A first look as a Flower app: ``deploy/flower-look`` is the folder that ``flwr run`` takes.

The configuration of a run names the plan and the folder to write; that of a node is as for a run,
with ``consent="look"``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedunseen.core.command_line import typed
from fedunseen.core.errors import RefusedError
from fedunseen.deploy.existing_federation import logged_to
from fedunseen.deploy.flower.app import NO_DATA, GridLink, client_app, server_app
from fedunseen.deploy.flower.staying import be_party, options_of, serve_party, state_of
from fedunseen.deploy.look.over_links import FEW, PATIENCE, ask, looking_on
from fedunseen.deploy.look.question import FORM, LIMIT, PLAN
from fedunseen.deploy.offline.files import read
from fedunseen.federation.engine import PartyStatus, Session


def coordinate(grid: Any, config: Mapping[str, Any]) -> None:
    """Ask the nodes of a grid.

    Args:
        grid: Flower's.
        config: ``plan`` and ``out``; ``few`` and ``patience`` if they are not the defaults.
    """
    with typed(["flwr", "run", "deploy/flower-look"]), logged_to(sys.stderr):
        plan = read(Path(str(config["plan"])), PLAN, LIMIT, FORM)
        names = [str(name) for name in plan["parties"]]
        link = GridLink(grid, names)
        with link.carried():
            session = Session(link, [PartyStatus(name) for name in names])
            few = int(config.get("few", FEW))
            ask(
                session,
                plan,
                Path(str(config["out"])),
                few,
                float(config.get("patience", PATIENCE)),
            )


def party() -> None:
    """Be the process of a party."""
    be_party(_serve)


def _serve(config: Mapping[str, Any]) -> None:
    state = state_of(config)
    with looking_on(options_of(config), state, _say) as looking:
        serve_party(state, looking.answer, looking.done, int(config["parent"]))
    if looking.error is not None:
        raise looking.error


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def simulated() -> Callable[[str, bytes], bytes]:
    """Refuse: no one's data are looked at in Flower's simulation."""
    raise RefusedError(
        "a look needs nodes with data of their own: start them with --node-config", NO_DATA
    )


server = server_app(coordinate)
client = client_app(f"{__name__}:party", f"{__name__}:simulated")
