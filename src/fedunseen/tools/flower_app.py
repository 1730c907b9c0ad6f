"""FedUnseen as a Flower app: ``deploy/flower`` is the folder that ``flwr run`` takes.

The configuration of a run names the experiment and the run directory at the coordinator; that of a node names the
party's folder. ``docs/federation.md`` lists both. What is learned and who is trusted is as with ``fedunseen host`` and
``join``: the same coordinator and the same party answer.
"""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedunseen.core.errors import ExperimentError, FedUnseenError
from fedunseen.core.files import holding, parse_json
from fedunseen.engines.carriers.flower.app import GridLink, client_app, serve_party, server_app

if TYPE_CHECKING:
    from fedunseen.experiment import Run

_log = logging.getLogger("fedunseen.federation")


def coordinate(grid: Any, told: Mapping[str, Any]) -> Run:
    """Run the experiment of a run's configuration with the nodes of a grid; continue it if its directory is there."""
    out, kit, names = Path(str(told["out"])), _path(told.get("credentials")), _names(told)
    with GridLink(grid, names).carried() as link, _logged(logging.StreamHandler(sys.stderr)):
        link.present()  # nodes start their parties while PyTorch is imported here
        from fedunseen.engines.carriers.flower import simulated_by
        from fedunseen.engines.remote.coordinator import PartyStatus, Session
        from fedunseen.experiment import Experiment, run
        from fedunseen.experiment.deployed import deployed, notes

        settings = {**_settings(told), "engine.name": "flower"}
        if not names:
            experiment = Experiment.load(str(told["experiment"]), {**settings, "engine.mode": "simulation"})
            with simulated_by(link):
                return run(experiment, out, resume=True, progress=_progress)
        settings |= {"engine.mode": "deployment", "partition.clients": len(names)}
        experiment = deployed(Experiment.load(str(told["experiment"]), settings), settings)
        for note in notes(experiment):
            _log.info("note: %s", note)

        @contextmanager
        def meet() -> Iterator[Session]:
            file = out / "engine" / "federation.log"
            file.parent.mkdir(parents=True, exist_ok=True)
            with _logged(logging.FileHandler(file, encoding="utf-8")):
                yield Session(link, [PartyStatus(name) for name in names], kit=kit, greeting=120.0)

        done = run(experiment, out, resume=True, progress=_progress, meeting=meet)
        _log.info("%s; run: %s", done.headline(), done.path)
        return done


def party() -> None:
    """Be the process of a party; its node's configuration is the first argument, as JSON.

    ``name`` and ``data`` are required; ``state``, ``out``, ``credentials``, ``masked``, ``consent`` and ``set`` are as
    the options of ``fedunseen join``.
    """
    told = json.loads(sys.argv[1])
    try:
        with _logged(logging.StreamHandler(sys.stderr)):
            _serve(told)
    except FedUnseenError as error:
        sys.exit(str(error))


def _serve(told: Mapping[str, Any]) -> None:
    from fedunseen.engines.remote.party import Party
    from fedunseen.experiment.client_data import PartyData
    from fedunseen.experiment.manifest import unused

    name, data, kit = str(told["name"]), Path(str(told["data"])), _path(told.get("credentials"))
    state = _path(told.get("state")) or Path(f"fedunseen-{name}")
    with holding(state) as held:
        if not held:
            raise FedUnseenError(f"{state} is in use by another process: give each party its own state=FOLDER")
        state.chmod(0o700)
        home = unused(_path(told.get("out")) or Path("runs") / name)  # a node takes part in many runs
        own = PartyData(data, _settings(told), home=home, masked=bool(told.get("masked", False)))
        consent = str(told.get("consent", "")).replace(",", " ").split()
        answering = Party(own.prepare, state, _log.info, {"DATA": data}, kit, consent)
        serve_party(state, answering.answer, answering.done, int(told["parent"]))
    if answering.error is not None:
        raise answering.error


def _names(told: Mapping[str, Any]) -> list[str]:
    """Return the names of the parties; none: a simulation."""
    from fedunseen.tools.names import party_names

    if given := str(told.get("parties") or ""):
        return party_names(given.split(","))
    if (kit := _path(told.get("credentials"))) is None:
        return []
    try:
        return [str(name) for name in parse_json((kit / "parties.json").read_bytes())["parties"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ExperimentError(
            f"{kit} is not a coordinator's folder made by `fedunseen certs` ({error}): give its path, or parties=a,b,c"
        ) from None


def _path(told: object) -> Path | None:
    return Path(str(told)) if told else None


def _settings(told: Mapping[str, Any]) -> dict[str, Any]:
    from fedunseen.experiment.parsing import parse_override

    return dict(parse_override(text) for text in shlex.split(str(told.get("set") or "")))


def _progress(stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
    if line is not None:
        _log.info("%s: round %d of %d", stage, round, rounds)


@contextmanager
def _logged(handler: logging.Handler) -> Iterator[None]:
    """Let a handler write what the federation logs."""
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        handler.close()


server = server_app(coordinate)
client = client_app(f"{__name__}:party", "fedunseen.experiment.client_data:simulated")
