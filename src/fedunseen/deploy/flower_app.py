"""FedUnseen as a Flower app: ``deploy/flower`` is the folder that ``flwr run`` takes.

The configuration of a run names the experiment and the run directory at the coordinator; that of a
node names the party's folder. ``docs/federation.md`` lists both. What is learned and who is trusted
is as with ``fedunseen host`` and ``join``: the same coordinator and the same party answer.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedunseen.core.command_line import typed
from fedunseen.core.errors import ExperimentError
from fedunseen.core.files import parse_json
from fedunseen.deploy.existing_federation import coordinated, log, logged_to, taking_part
from fedunseen.deploy.flower.app import GridLink, client_app, server_app
from fedunseen.deploy.flower.staying import be_party, options_of, serve_party, state_of

if TYPE_CHECKING:
    from fedunseen.experiment.result.run import Run


def coordinate(grid: Any, config: Mapping[str, Any]) -> Run:
    """Run the experiment of a run's configuration with the nodes of a grid; continue it if its
    directory is there.

    Args:
        grid: Flower's.
        config: ``experiment``, ``out``, ``parties``, ``credentials`` and ``set``.
    """
    settings = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
    with typed(["flwr", "run", "deploy/flower", "--run-config", settings]):
        return _coordinate(grid, config)


def _coordinate(grid: Any, config: Mapping[str, Any]) -> Run:
    out = Path(str(config["out"]))
    kit = _path(config.get("credentials"))
    names = _names(config)
    source = str(config["experiment"])
    settings = {**_settings(config), "engine.name": "flower"}
    link = GridLink(grid, names)
    with link.carried(), logged_to(sys.stderr):
        link.present()  # nodes start their parties while PyTorch is imported here
        from fedunseen.federation.engine import PartyStatus, Session

        if names:
            session = Session(link, [PartyStatus(name) for name in names], kit=kit, greeting=120.0)
            return coordinated(session, source, settings, out)
        from fedunseen.experiment.running import run
        from fedunseen.experiment.schema import Experiment

        experiment = Experiment.load(source, {**settings, "engine.mode": "simulation"})
        link.simulated = experiment.partition.clients
        session = Session(link, [PartyStatus(str(client)) for client in range(link.simulated)])
        return run(
            experiment, out, resume=True, progress=_progress, meeting=lambda: nullcontext(session)
        )


def party() -> None:
    """Be the process of a party; its node's configuration is the first argument, as JSON.

    ``name`` and ``data`` are required; the others are as the options of ``fedunseen join``.
    """
    be_party(_serve)


def _serve(config: Mapping[str, Any]) -> None:
    state = state_of(config)
    out = _path(config.get("out")) or Path("runs") / str(config["name"])
    with taking_part(options_of(config), _settings(config), state, out) as party:
        serve_party(state, party.answer, party.done, int(config["parent"]))
    if party.error is not None:
        raise party.error


def _names(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the parties; none: a simulation."""
    from fedunseen.core.party_names import party_names

    if listed := str(config.get("parties") or ""):
        return party_names(listed.split(","))
    if (kit := _path(config.get("credentials"))) is None:
        return []
    try:
        return [str(name) for name in parse_json((kit / "parties.json").read_bytes())["parties"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ExperimentError(
            f"{kit} is not a coordinator's folder made by `fedunseen certs` ({error}): give its "
            "path, or parties=a,b,c"
        ) from None


def _path(config: object) -> Path | None:
    return Path(str(config)) if config else None


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    from fedunseen.experiment.parsing import parse_override

    return dict(parse_override(text) for text in shlex.split(str(config.get("set") or "")))


def _progress(stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
    if line is not None:
        log.info("%s: round %d of %d", stage, round, rounds)


server = server_app(coordinate)
client = client_app(f"{__name__}:party", "fedunseen.deploy.client_data:simulated")
