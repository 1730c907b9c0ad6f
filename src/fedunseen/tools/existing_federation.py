"""What the Flower app and the NVFlare job share: the coordinator and the party of ``fedunseen host`` and ``join``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from fedunseen.engines.remote.coordinator import Session
    from fedunseen.engines.remote.party import Party
    from fedunseen.experiment.result.run import Run

log = logging.getLogger("fedunseen.federation")


@contextmanager
def logged_to(place: Path | TextIO) -> Iterator[None]:
    """Write what the federation logs to a file, or to a stream."""
    if isinstance(place, Path):
        place.parent.mkdir(parents=True, exist_ok=True)
        handler: logging.Handler = logging.FileHandler(place, encoding="utf-8")
    else:
        handler = logging.StreamHandler(place)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()


def coordinated(
    session: Session,
    source: str,
    settings: Mapping[str, Any],
    out: Path,
    progress: Callable[..., None] | None = None,
    file: Path | None = None,
) -> Run:
    """Run an experiment with the parties of a link, or continue it; ``file`` gets the log."""
    from fedunseen.experiment.deployed import deployed, notes
    from fedunseen.experiment.running import run
    from fedunseen.experiment.schema import Experiment

    settings = {**settings, "engine.mode": "deployment"}
    experiment = Experiment.load(source, {**settings, "partition.clients": len(session.parties)})
    experiment = deployed(experiment, settings)
    for note in notes(experiment):
        log.info("note: %s", note)

    @contextmanager
    def meet() -> Iterator[Session]:
        with nullcontext() if file is None else logged_to(file):
            yield session

    done = run(experiment, out, resume=True, progress=progress, meeting=meet)
    log.info("%s; run: %s", done.headline(), done.path)
    return done


def answering(place: Mapping[str, Any], settings: Mapping[str, Any], state: Path, out: Path) -> Party:
    """Return a party as its site describes it: ``data``, ``masked``, ``credentials`` and ``consent``, paths in full."""
    from fedunseen.engines.remote.party import Party
    from fedunseen.experiment.client_data import PartyData
    from fedunseen.experiment.manifest import unused

    data, kit = Path(str(place["data"])), place.get("credentials")
    state.mkdir(parents=True, exist_ok=True)
    state.chmod(0o700)  # what a client keeps says something of its data
    held = PartyData(data, settings, home=unused(out), masked=bool(place.get("masked")))  # it takes part in many runs
    consent = place.get("consent") or ()
    words = consent.replace(",", " ").split() if isinstance(consent, str) else consent
    return Party(held.prepare, state, log.info, {"DATA": data}, Path(str(kit)) if kit else None, words)
