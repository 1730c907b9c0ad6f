"""FedUnseen as a job of an NVFlare federation: ``deploy/nvflare`` is the folder that ``nvflare job submit`` takes.

The job's configuration names the experiment. What a site decides itself is in ``local/fedunseen.json`` of its
workspace, and ``docs/federation.md`` lists its keys. What is learned and who is trusted is as with ``fedunseen host``
and ``join``: the same coordinator and the same party answer.
"""

from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from fedunseen.core.errors import ExperimentError
from fedunseen.engines.carriers.nvflare import job
from fedunseen.engines.carriers.nvflare.job import SETTINGS, Place, in_thread
from fedunseen.engines.remote.link import Link
from fedunseen.engines.remote.relay import Channel, RelayServer
from fedunseen.tools.existing_federation import answering, coordinated, log


class Coordinator(job.Coordinator):
    """The job's controller: coordinates an experiment, or continues it if its run directory is there.

    The coordinator runs in a thread of the controller's process, and the job ends with it.
    """

    def __init__(
        self,
        experiment: str,
        parties: Sequence[str] = (),
        out: str = "fedunseen-run",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.experiment, self.names, self.out, self.settings = experiment, parties, out, dict(settings or {})
        self.error: Exception | None = None

    def connect(self, fl_ctx: Any, sites: list[str]) -> Channel:
        """Return the channel to a thread that coordinates."""
        ours, theirs = map(Channel, Pipe())
        board, place = RelayServer(), Place.of(fl_ctx, "server")  # which the simulator calls otherwise

        def work() -> None:
            try:
                self.coordinate(board, sites, place)
            except Exception as error:
                self.error = error
            ours.send({"end": True})

        def serve() -> None:
            ours.receive()  # the job's number
            board.serve(ours)

        in_thread(serve)
        in_thread(work)
        return theirs

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Carry messages until the coordinator is done; an error of its own fails the job."""
        super().control_flow(abort_signal, fl_ctx)
        if self.error is not None:
            raise self.error

    def coordinate(self, link: Link, sites: list[str], place: Place) -> None:
        """Run the experiment."""
        from fedunseen.engines.remote.coordinator import PartyStatus, Session

        shipped = place.config / self.experiment
        source = str(shipped) if shipped.is_file() else self.experiment
        settings = {**self.settings, **place.settings.get("set", {}), "engine.name": "nvflare"}
        session = Session(
            link, [PartyStatus(name) for name in list(self.names) or sites], kit=_path(place, "credentials")
        )
        coordinated(session, source, settings, place.folder / self.out)


class Party(job.LocalParty):
    """The job's executor: takes part with the data that the site's file names."""

    def answering(self, place: Place) -> Callable[[bytes], bytes]:
        """Return what answers; raises FedUnseenError if the site's file or data are not as they must be."""
        if (data := _path(place, "data")) is None:
            raise ExperimentError(f'local/{SETTINGS} of site {place.name} names no data: add "data": "FOLDER"')
        state = _path(place, "state") or place.folder / "fedunseen-state"
        tree = {**place.settings, "data": data, "credentials": _path(place, "credentials")}
        party = answering(
            tree, dict(place.settings.get("set", {})), state, _path(place, "out") or place.folder / "fedunseen-model"
        )

        def answer(question: bytes) -> bytes:
            known, reply = party.error, party.answer(question)
            if party.error is not known:
                log.error("%s", party.error)
            return reply

        return answer


def _path(place: Place, key: str) -> Path | None:
    """Return a path of the site's file, relative to its workspace."""
    value = place.settings.get(key)
    return place.folder / str(value) if value else None
