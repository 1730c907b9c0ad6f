"""What the Flower app and the NVFlare job share: the coordinator and the party of
``fedunseen host`` and ``join``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from fedunseen.core.errors import ExperimentError, shortened, unknown
from fedunseen.core.log_files import LogFile
from fedunseen.core.small_cells import MIN_SAMPLES
from fedunseen.deploy.own_settings import check_own

if TYPE_CHECKING:
    from fedunseen.deploy.remote.party import Party
    from fedunseen.deploy.site import Owner
    from fedunseen.experiment.result.run import Run
    from fedunseen.federation.engine import Session

log = logging.getLogger("fedunseen.federation")

OPTIONS = (
    "data", "credentials", "masked", "consent", "min_samples", "epsilon_limit", "delta_limit", "set", "state", "out",
)  # fmt: skip
"""What a site's own configuration may hold."""
CONSENT = ("again", "dropouts", "federations", "look", "moments", "moved", "names")
"""What the owner of a site may agree to, for runs and looks; it holds while it is written there."""
OWN_STATE = "give each party its own state"


@contextmanager
def logged_to(place: Path | TextIO) -> Iterator[None]:
    """Write what the federation logs to a file, or to a stream."""
    if isinstance(place, Path):
        place.parent.mkdir(parents=True, exist_ok=True)
        handler: logging.Handler = LogFile(place)
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
) -> Run:
    """Run an experiment with the parties of a link, or continue it, and write its report.

    The log has what each round has measured, and the run directory keeps it. The report comes
    before parties are told that the run is over: they may be slow, and an engine that hears nothing
    of its process for a minute ends it.
    """
    from fedunseen.cli.console import write_pages
    from fedunseen.cli.progress import round_log
    from fedunseen.deploy.deployed import deployed, notes
    from fedunseen.deploy.rosters import Roster, continued, record
    from fedunseen.experiment.result.run import load_run
    from fedunseen.experiment.running import run
    from fedunseen.experiment.schema import Experiment
    from fedunseen.federation.engine import PartyStatus

    settings = {**settings, "engine.mode": "deployment"}
    names = tuple(party.name for party in session.parties)
    roster = Roster(0, names, names)
    if (out / "manifest.json").exists():
        roster, settings = continued(out, roster, settings)
        session.parties[:] = [PartyStatus(name) for name in roster.parties]
    experiment = Experiment.load(source, {**settings, "partition.clients": len(session.parties)})
    experiment = deployed(experiment, settings)
    for note in notes(experiment):
        log.info("note: %s", note)

    @contextmanager
    def meet() -> Iterator[Session]:
        record(out, roster)
        with logged_to(out / "engine" / "federation.log"):
            yield session

    pages: list[str] = []

    def write(path: Path) -> None:
        if path == out:  # and not one of several seeds
            with suppress(Exception):  # which is raised below, once parties have been told
                pages.extend(write_pages(load_run(path)))

    session.written = write
    done = run(experiment, out, resume=True, progress=round_log(session.parties), meeting=meet)
    for words in (done.headline(), *(pages or write_pages(done))):
        log.info("%s", words)
    return done


def check_options(place: Iterable[str], options: Sequence[str] = OPTIONS) -> None:
    """Raise an ExperimentError for an option that a site does not have: a misspelled limit would
    limit nothing.
    """
    if stray := [key for key in place if key not in options]:
        raise ExperimentError(unknown("option of this site", stray[0], options), "site-option")


def owner_of(place: Mapping[str, Any]) -> Owner:
    """Return what the owner of a site has decided, from its description.

    Raises:
        ExperimentError: an option is not as it must be.
    """
    from fedunseen.deploy.site import Owner

    kit = place.get("credentials")
    return Owner(
        Path(str(place["data"])),
        Path(str(kit)) if kit else None,
        _consent_of(place),
        flag(place, "masked"),
        _number(place, "epsilon_limit"),
        _number(place, "delta_limit") or 1e-4,
    )


@contextmanager
def taking_part(
    place: Mapping[str, Any],
    settings: Mapping[str, Any],
    state: Path,
    out: Path,
    say: Callable[[str], None] = log.info,
) -> Iterator[Party]:
    """Yield the party that its site describes; no other process takes its folder meanwhile.

    Args:
        place: with the names of :data:`OPTIONS`, as those of ``fedunseen join``; paths in full.
        settings: that the site decides itself, by dotted key.
        state: what the party keeps.
        out: where the merged model goes.
        say: takes what the party's owner may read, and no one else.

    Raises:
        FedUnseenError: an option, the data or a limit are not as they must be.
    """
    from fedunseen.deploy.client_data import PartyData
    from fedunseen.deploy.remote.party import Party
    from fedunseen.deploy.site import at_site
    from fedunseen.experiment.manifest import unused

    check_options(place)
    check_own(settings)
    few = few_of(place)
    owner = owner_of(place)
    assert owner.data is not None
    with at_site(state, owner, say, OWN_STATE) as site:
        held = PartyData(
            owner.data, settings, home=unused(out), masked=owner.masked, min_samples=few
        )
        held.consent = owner.consent
        owner.check(len(held.benchmark.train))
        yield Party(held.prepare, site)


def _consent_of(place: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of a site's consent."""
    given = place.get("consent")
    given = () if given is None else given
    words = given.replace(",", " ").split() if isinstance(given, str) else given
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise ExperimentError(
            f"consent = {shortened(repr(given))} of this site must be a list of words: choose "
            f"among {', '.join(CONSENT)}",
            "site-consent",
        )
    for word in words:
        if word == "refusals":
            raise ExperimentError(
                "consent = 'refusals' of this site would count them from zero again in each "
                "process, which a coordinator's message can start: leave it out, and give "
                "`fedunseen ledger STATE --consent refusals` once",
                "site-consent",
            )
        if word not in CONSENT:
            raise ExperimentError(unknown("consent of this site", word, CONSENT), "site-consent")
    return tuple(words)


def few_of(place: Mapping[str, Any]) -> int:
    """Return the fewest samples that a site shows.

    Raises:
        ExperimentError: it is no whole number from 1.
    """
    few = place.get("min_samples", MIN_SAMPLES)
    if type(few) is not int or few < 1:
        raise ExperimentError(f"min_samples = {few!r} of this site must be a whole number from 1")
    return few


def flag(place: Mapping[str, Any], key: str) -> bool:
    """Return whether a site's description sets an option; raises ExperimentError for other
    values.
    """
    value = place.get(key, False)
    if type(value) is not bool:
        raise ExperimentError(f"{key} = {value!r} of this site must be true or false")
    return value


def _number(place: Mapping[str, Any], key: str) -> float | None:
    """Return a positive number of a site's description; None where there is none."""
    value = place.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ExperimentError(f"{key} = {value!r} of this site must be a positive number")
    return float(value)
