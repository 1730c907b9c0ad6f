"""``fedunseen host`` and ``join``: a federation between organizations."""

from __future__ import annotations

import logging
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import (
    check_consent,
    finish,
    overrides_of,
    say,
    write_pages,
)
from fedunseen.cli.logs import logged
from fedunseen.cli.watching import Watching, watched, with_options
from fedunseen.core.addresses import bracketed, host_and_port
from fedunseen.core.errors import (
    ArgumentError,
    DataError,
    ExperimentError,
    FedUnseenError,
    RunDirectoryError,
    counted,
)
from fedunseen.core.files import existing_folder, free_folder, parse_json
from fedunseen.core.party_names import FEDERATION, party_names
from fedunseen.core.small_cells import MIN_SAMPLES
from fedunseen.deploy.cli.own_overrides import own_overrides

if TYPE_CHECKING:
    from fedunseen.deploy.rosters import Roster
    from fedunseen.experiment.result.run import Run

PORT = 8850
ENGINE = "websocket"
_CONSENT = frozenset(
    {"again", "dropouts", "federations", "leftovers", "moments", "moved", "removal"}
)
_log = logging.getLogger("fedunseen.federation")

Kit = Annotated[
    Path | None, typer.Option(help="Your credentials folder, made by `fedunseen certs`.")
]
Removing = Annotated[
    bool,
    typer.Option(
        "--removal", help="Take part in a removal from a finished run, and in nothing else."
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Plain text, no certificates: for trying out alone.")
]


@with_options("live_page", "tracking", "metrics")
def host(
    experiment: opt.ExperimentName,
    overrides: opt.Overrides = None,
    plugins: opt.Plugins = None,
    out: opt.Out = None,
    resume: opt.Resume = False,
    address: Annotated[
        str, typer.Option(help="Where to listen: HOST or HOST:PORT.")
    ] = f"127.0.0.1:{PORT}",
    kit: Kit = None,
    insecure: Insecure = False,
    parties: Annotated[
        str | None, typer.Option(help="--insecure: names of all parties that may join: a,b,c.")
    ] = None,
    as_json: opt.Json = False,
    *,
    watching: Mapping[str, Watching],
) -> None:
    """Coordinate a federation: wait for parties, train with them, measure on your own test
    samples.
    """
    from fedunseen.experiment.parsing import glance

    settings = overrides_of(overrides)
    listed = None if parties is None else parties.split(",")
    names = _credentials(kit, insecure, "--parties", listed)
    if (engine := settings.get("engine.name", ENGINE)) != ENGINE:
        raise ExperimentError(
            f"engine.name = {engine!r} is not for parties elsewhere: leave it out, or set "
            f"{ENGINE!r}"
        )
    at, port = host_and_port(address, PORT)
    if resume and out is None:
        raise RunDirectoryError("--resume needs --out: say which run directory to continue with")
    fixed: dict[str, Any] = {"engine.name": ENGINE, "engine.mode": "deployment"}
    glance(experiment, {**settings, **fixed, "partition.clients": len(names)})
    roster = _enrolled(kit, names)  # PyTorch comes with it
    before = settings
    if resume and out is not None and (out / "manifest.json").exists():
        from fedunseen.deploy import websocket
        from fedunseen.deploy.remote.link import Host
        from fedunseen.deploy.rosters import continued

        # a run is opened for further rounds only by a command that can listen
        websocket.check(Host(out / "engine", at, port, kit, tuple(names)))
        roster, settings = continued(out, roster, settings)
    else:
        roster = replace(roster, parties=roster.expected)
    names = list(roster.parties)
    fixed["partition.clients"] = len(names)
    from fedunseen.cli.progress import (
        client_table,
    )  # now: PyTorch comes with it, which takes seconds
    from fedunseen.deploy import websocket
    from fedunseen.deploy.deployed import deployed, notes
    from fedunseen.deploy.remote.link import Counted, Host
    from fedunseen.deploy.rosters import record, shut_out
    from fedunseen.experiment.manifest import free_directory
    from fedunseen.experiment.running import run as run_experiment
    from fedunseen.experiment.schema import Experiment
    from fedunseen.federation.engine import PartyStatus, Session

    chosen = deployed(Experiment.load(experiment, {**settings, **fixed}), settings)
    out = out or free_directory(chosen)
    place = Host(out / "engine", at, port, kit, tuple(names))
    websocket.check(
        place
    )  # now, because a manifest that is written stands in the way of the corrected command
    said = notes(chosen)
    if settings is not before and roster.round:
        here = ", ".join(roster.expected)
        said = [*said, f"From round {roster.round + 1} on the parties are: {here}."]
    say(*(f"note: {note}" for note in said))
    if chosen.privacy.aggregation == "masked" and chosen.privacy.dropouts == "allow":
        say(_DROPOUTS)
    members = [PartyStatus(name) for name in names]

    @contextmanager
    def meet() -> Iterator[Session]:
        with logged(place.folder), websocket.host(place) as link:
            _log.info(
                "listening at %s:%d%s", bracketed(at), port, " in plain text" if insecure else ""
            )
            record(out, roster)

            def gone(names: Set[str]) -> None:
                shut_out(out, _newest(kit, roster), names)

            yield Session(Counted(link, members), members, kit=kit, shut_out=gone)

    with (
        terminable(),
        client_table(members) as shown,
        watched(watching, chosen, out, shown) as (on_round, present),
    ):
        done = run_experiment(chosen, out, resume, on_round, meet, present)
    finish(done, write_pages(done), as_json, said=said)


def _newest(kit: Path | None, roster: Roster) -> Roster:
    """Return a run's list with the serial of the credentials as they are now, by which an older one
    is refused later; while files are copied, with its own.
    """
    with suppress(FedUnseenError, OSError):
        return replace(roster, serial=max(roster.serial, _enrolled(kit, roster.parties).serial))
    return roster


def _enrolled(kit: Path | None, names: Sequence[str]) -> Roster:
    """Return who is in a coordinator's credentials, and who of them was not shut out."""
    from fedunseen.deploy.rosters import Roster

    if kit is None:
        return Roster(0, tuple(names), tuple(names))
    from fedunseen.deploy import websocket

    websocket.check_installed("cryptography")
    from fedunseen.deploy.secagg.enrolment import Enrolment
    from fedunseen.deploy.websocket.kit import registered

    serial = Enrolment.load(kit).serial if (kit / FEDERATION).exists() else 0
    return Roster(0, tuple(names), tuple(registered(kit, names)), serial)


def host_removal(run: Run, removing: str, kit: Path | None, address: str, out: Path) -> Run:
    """Remove samples of parties from a run: wait for all that took part in it, and take their
    masked sum out.
    """
    names = _credentials(kit, False, "--parties", None)
    at, port = host_and_port(address, PORT)
    free_folder(out)
    from fedunseen.deploy import websocket
    from fedunseen.deploy.by_file import Removing
    from fedunseen.deploy.remote.link import Host
    from fedunseen.federation.engine import PartyStatus, Session

    asking = Removing(run, names, True, party_names(removing.split(",")))
    folder = out.with_name(
        f"{out.name}.removal"
    )  # the same command opens the sum that a killed one has stored
    place = Host(folder / "engine", at, port, kit, tuple(names))
    with (
        terminable(),
        websocket.host(place) as link,
        logged(place.folder),
    ):  # first what may be refused
        _log.info("listening at %s:%d", bracketed(at), port)
        parties = [PartyStatus(name) for name in names]
        done = asking.over(Session(link, parties, kit=kit, folder=folder / "secagg"), out)
    shutil.rmtree(folder)
    return done


_DROPOUTS = (
    "note: privacy.dropouts is 'allow': the difference of two sums can reveal one party's update "
    "to a coordinator that lies, so every party has to join with --consent dropouts"
)


@with_options("live_page", "metrics")
def join(
    address: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", help=f"The coordinator's: HOST or HOST:PORT ({PORT})."),
    ],
    data: opt.Data,
    kit: Kit = None,
    state: opt.State = None,
    out: Annotated[
        Path | None, typer.Option(help="The merged model's run directory (default: runs/NAME).")
    ] = None,
    masked: Annotated[
        bool, typer.Option("--masked", help="Refuse a coordinator that would see your updates.")
    ] = False,
    consent: opt.Consent = None,
    removal: Removing = False,
    samples: opt.Removed = None,
    insecure: Insecure = False,
    name: Annotated[str | None, typer.Option(help="--insecure: your name.")] = None,
    min_samples: opt.MinSamples = MIN_SAMPLES,
    statistics: opt.Counted = None,
    overrides: opt.Own = None,
    plugins: opt.Plugins = None,
    epsilon_limit: opt.EpsilonLimit = None,
    delta_limit: opt.DeltaLimit = 1e-4,
    patience: Annotated[
        float, typer.Option(help="Seconds to look for a coordinator that is gone.")
    ] = 300.0,
    *,
    watching: Mapping[str, Watching],
) -> None:
    """Take part in a federation with your own data, which stay here."""
    at, port = host_and_port(address, PORT)
    party_settings = own_overrides(overrides)
    (who, *_) = _credentials(kit, insecure, "--name", None if name is None else [name])
    check_consent(consent, _CONSENT)
    if samples and not removal:
        raise ArgumentError("--samples are for a removal: give --removal, or leave them out")
    existing_folder(data, "correct --data")
    from fedunseen.deploy import websocket
    from fedunseen.deploy.client_data import PartyData, Removal
    from fedunseen.deploy.counted import with_counted
    from fedunseen.deploy.remote.link import (
        Join,
    )  # now: PyTorch comes with some of these, which takes seconds
    from fedunseen.deploy.remote.party import Party
    from fedunseen.deploy.site import ONE_STATE, Owner, at_site
    from fedunseen.experiment.manifest import unused

    state = state or Path(f"fedunseen-{who}")
    out = free_folder(out) if out is not None else unused(Path("runs") / who)
    owner = Owner(data, kit, tuple(consent or ()), masked or removal, epsilon_limit, delta_limit)
    with terminable(), logged(), at_site(state, owner, _log.info, ONE_STATE) as site:
        agreed = Removal(samples or (), "removal" in (consent or ())) if removal else None
        held = PartyData(
            data,
            party_settings,
            home=out,
            masked=owner.masked,
            removal=agreed,
            min_samples=min_samples,
        )
        held.consent = owner.consent
        held = with_counted(held, statistics)
        rows = held.benchmark.train
        owner.check(len(rows))
        classes = len(set(held.benchmark.labels[rows].tolist()))
        held.tell_left_out(say)
        say(
            f"{who}: {counted(len(rows), 'sample')} of {counted(classes, 'class')}; looking for "
            f"{bracketed(at)}:{port}"
        )
        party = Party(held.prepare, site)
        if epsilon_limit is not None:
            say(site.releases.balance)

        with ExitStack() as stack:
            for watcher in watching.values():
                stack.enter_context(watcher.of_site(who, len(rows), classes, site))
            where = Join(state / "engine", at, port, kit, who, patience, site.told)
            websocket.join(where, party.answer, party.done)
            if party.error is not None:
                raise party.error
    _say_home(party.home)


def _say_home(home: Path | None) -> None:
    if home is None:
        say("the coordinator gives no model (engine.deliver)")
    else:
        say(f"run:    {home}", f"next:   fedunseen predict {quote(str(home))} FILE")


def _credentials(
    kit: Path | None, insecure: bool, option: str, names: Sequence[str] | None
) -> list[str]:
    """Return the names of all parties, or of this one."""
    if insecure:
        if kit is not None or names is None:
            raise ExperimentError(f"--insecure goes with {option} instead of --kit: give {option}")
        return party_names(names)
    if kit is None:
        raise ExperimentError(
            "--kit is missing: name your credentials folder made by `fedunseen certs`"
        )
    file, key = ("parties.json", "parties") if option == "--parties" else ("party.json", "name")
    try:
        who: Any = parse_json((kit / file).read_bytes())[key]
        if not who:
            raise ValueError
    except (OSError, ValueError, TypeError, KeyError):
        whose = "the coordinator's" if option == "--parties" else "a party's"
        raise DataError(
            f"{kit / file} is missing or damaged: --kit names {whose} credentials folder made by "
            "`fedunseen certs`"
        ) from None
    return [str(who)] if isinstance(who, str) else [str(name) for name in who]


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end the process in order: what it has started ends too, and it says
    why it ends.
    """

    class Terminated(BaseException):
        """SIGTERM came. Not a KeyboardInterrupt, because the exit statuses differ."""

    def end(number: int, frame: object) -> None:
        signal.signal(
            signal.SIGTERM, signal.SIG_IGN
        )  # a second one would stop this one's work half done
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except Terminated:
        say("ended by SIGTERM")
        raise SystemExit(128 + signal.SIGTERM) from None
    except KeyboardInterrupt:
        say("interrupted")
        raise SystemExit(128 + signal.SIGINT) from None
    finally:
        signal.signal(signal.SIGTERM, before)
