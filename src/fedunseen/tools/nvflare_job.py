"""FedUnseen as a job of an NVFlare federation: ``deploy/nvflare`` is the folder that ``nvflare job submit`` takes.

The job's configuration names the experiment. What a site decides itself is in ``local/fedunseen.json`` of its
workspace, and ``docs/federation.md`` lists its keys. What is learned and who is trusted is as with ``fedunseen host``
and ``join``: the same coordinator and the same party answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedunseen.core.errors import ExperimentError
from fedunseen.engines.carriers.nvflare.job import SETTINGS, LocalCoordinator, LocalParty, Place
from fedunseen.engines.remote.link import Link

_log = logging.getLogger("fedunseen.federation")  # NVFlare writes it into the job's log


class Coordinator(LocalCoordinator):
    """The job's controller: coordinates an experiment, or continues it if its run directory is there."""

    def __init__(
        self,
        experiment: str,
        parties: Sequence[str] = (),
        out: str = "fedunseen-run",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.experiment, self.names, self.out, self.settings = experiment, parties, out, dict(settings or {})

    def coordinate(self, link: Link, sites: list[str], place: Place) -> None:
        """Run the experiment."""
        from fedunseen.engines.remote.coordinator import PartyStatus, Session
        from fedunseen.experiment import Experiment, run
        from fedunseen.experiment.deployed import deployed, notes

        names, out, shipped = list(self.names) or sites, place.folder / self.out, place.config / self.experiment
        settings = {**self.settings, **_settings(place), "engine.name": "nvflare", "engine.mode": "deployment"}
        source = str(shipped) if shipped.is_file() else self.experiment
        chosen = deployed(Experiment.load(source, {**settings, "partition.clients": len(names)}), settings)
        for note in notes(chosen):
            _log.info("note: %s", note)

        @contextmanager
        def meet() -> Iterator[Session]:
            yield Session(link, [PartyStatus(name) for name in names], kit=_path(place, "credentials"))

        done = run(chosen, out, resume=True, meeting=meet)
        _log.info("%s; run: %s", done.headline(), done.path)


class Party(LocalParty):
    """The job's executor: takes part with the data that the site's file names."""

    def answering(self, place: Place) -> Callable[[str, bytes], bytes]:
        """Return what answers; raises FedUnseenError if the site's file or data are not as they must be."""
        from fedunseen.engines.remote.party import Party as Answering
        from fedunseen.experiment.client_data import PartyData
        from fedunseen.experiment.manifest import unused

        if (data := _path(place, "data")) is None:
            raise ExperimentError(f'local/{SETTINGS} of site {place.name} names no data: add "data": "FOLDER"')
        state = _path(place, "state") or place.folder / "fedunseen-state"
        state.mkdir(parents=True, exist_ok=True)
        state.chmod(0o700)  # what a client keeps says something of its data
        home = unused(_path(place, "out") or place.folder / "fedunseen-model")
        masked, consent = bool(place.settings.get("masked")), place.settings.get("consent", ())
        held = PartyData(data, _settings(place), home=home, masked=masked)
        party = Answering(held.prepare, state, _log.info, {"DATA": data}, _path(place, "credentials"), consent)

        def answer(name: str, question: bytes) -> bytes:
            known, reply = party.error, party.answer(question)
            if party.error is not known:
                _log.error("%s", party.error)
            return reply

        return answer


def _path(place: Place, key: str) -> Path | None:
    """Return a path of the site's file, relative to its workspace."""
    value = place.settings.get(key)
    return place.folder / str(value) if value else None


def _settings(place: Place) -> dict[str, Any]:
    return dict(place.settings.get("set", {}))
