"""``fedunseen offline plan | count | answer | merge | withdraw | show``: a federation whose
messages are files.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from fedunseen.cli.learn import say_adapted, say_forgotten
from fedunseen.core.errors import ArgumentError, FedUnseenError, RefusedError
from fedunseen.core.files import existing_folder, free_folder, parse_json, write_json
from fedunseen.core.party_names import party_names
from fedunseen.core.small_cells import MIN_SAMPLES
from fedunseen.core.text import shown
from fedunseen.deploy.cli import texts
from fedunseen.deploy.cli.own_overrides import own_overrides

if TYPE_CHECKING:
    from fedunseen.deploy.by_file import Adapting, Counting, Removing
    from fedunseen.deploy.offline.coordinator import Offline
    from fedunseen.deploy.offline.files import Signed
    from fedunseen.deploy.secagg.enrolment import Credentials, Enrolment
    from fedunseen.deploy.secagg.ledger import Ledger
    from fedunseen.deploy.site import Owner, Site
    from fedunseen.experiment.schema import Experiment

offline_app = typer.Typer(
    help="A federation by file: no connection, one message from each party.", no_args_is_help=True
)

_CONSENT = frozenset(
    {"again", "dropouts", "federations", "leftovers", "moments", "moved", "removal"}
)
_CLEAR = "in clear: anyone with a party's answer sees the sums of its samples"

PlanFile = Annotated[
    Path, typer.Argument(metavar="PLAN", help="The file that `fedunseen offline plan` wrote.")
]
Kit = Annotated[
    Path, typer.Option("--credentials", help="Your credentials folder, made by `fedunseen certs`.")
]


@offline_app.command("plan")
def plan_(
    credentials: Kit,
    parties: Annotated[str, typer.Option(help="Who is asked: a,b,c.")],
    out: Annotated[Path, typer.Option(help="The file to write, for every party the same.")],
    experiment: opt.ExperimentName = "",
    adapt: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="In place of EXPERIMENT: adapt a run to unlabelled samples."
        ),
    ] = None,
    forget: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="In place of EXPERIMENT: remove samples of --removing parties."
        ),
    ] = None,
    confidence: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="In place of EXPERIMENT: ask how sure the run's answers are."
        ),
    ] = None,
    removing: Annotated[str, typer.Option(help="Whose samples are removed: a,b.")] = "",
    overrides: opt.Overrides = None,
    plugins: opt.Plugins = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Ask for sums in clear, which the coordinator sees.")
    ] = False,
    withdrawals: Annotated[
        list[Path] | None,
        typer.Option("--withdrawal", help="A file of a party that has withdrawn; repeatable."),
    ] = None,
) -> None:
    """Coordinator: write what all parties are asked for."""
    names = party_names(parties.split(","))
    settings = overrides_of(overrides)
    purposes = sum(map(bool, (adapt, forget, confidence, experiment)))
    if purposes != 1 or bool(removing) != bool(forget):
        raise ArgumentError(
            "give an EXPERIMENT, --adapt RUN, --confidence RUN, or --forget RUN with --removing, "
            "and one of them alone"
        )
    _check_new(out)
    if run := adapt or forget or confidence:
        leaving = party_names(removing.split(",")) if forget else None
        kept: dict[str, Any] = {"run": str(run.resolve()), "settings": settings, "rounds": []}
        kept |= {"removing": leaving, "counts": confidence is not None}
        _plan_run(kept, credentials, names, out, not plain, withdrawals or ())
        return
    from fedunseen.experiment.parsing import glance

    fixed: dict[str, Any] = {
        "engine.name": "offline", "engine.mode": "deployment", "partition.clients": len(names), "strategy.rounds": 1,
        "privacy.aggregation": "plain" if plain else "masked",
    }  # fmt: skip
    glance(experiment, {**settings, **fixed})
    from fedunseen.deploy.deployed import deployed, notes
    from fedunseen.deploy.offline import coordinator
    from fedunseen.experiment.schema import Experiment

    enrolment, key, withdrawn = _federation(credentials, names, not plain, withdrawals or ())
    chosen = deployed(Experiment.load(experiment, {**settings, **fixed}), settings)
    later = getattr(chosen.data, "unlabelled", False)
    chosen = chosen.with_overrides({"data.unlabelled": False}) if later else chosen
    content = coordinator.make_plan(_engine(chosen, out), enrolment, key, names, withdrawn)
    say(*(f"note: {note}" for note in notes(chosen)))
    if chosen.evaluation.confidence in ("auto", "histograms"):
        say(
            "note: probabilities follow from draws until: fedunseen offline plan --confidence RUN, "
            "with the merged run"
        )
    if later:
        say(
            "note: unlabelled samples follow: fedunseen offline plan --adapt RUN, with the merged "
            "run"
        )
    _write_plan(out, content, {"experiment": chosen.to_dict()}, names, plain)


def _plan_run(
    kept: dict[str, Any],
    credentials: Path,
    names: list[str],
    out: Path,
    masked: bool,
    withdrawals: Sequence[Path],
) -> None:
    """Write the plan in which parties change a finished run, of its first round."""
    from fedunseen.deploy.offline import coordinator

    enrolment, key, withdrawn = _federation(credentials, names, masked, withdrawals)
    asking = _asking(kept, names, masked)
    content = coordinator.make_plan(
        asking.engine, enrolment, key, names, withdrawn, asking.instruction
    )
    say(
        *(
            [f"round:  1 of {asking.total}; each merge but the last writes the next plan"]
            if asking.total > 1
            else []
        )
    )
    _write_plan(out, content, kept, names, not masked)


def _asking(
    kept: Mapping[str, Any], names: Sequence[str], masked: bool
) -> Adapting | Counting | Removing:
    """Return what asks parties to change a finished run, from what the coordinator keeps of the
    plan.
    """
    from fedunseen.deploy.by_file import Adapting, Counting, Removing
    from fedunseen.experiment.result.run import load_run

    run = load_run(kept["run"], overrides=kept["settings"])
    removing = kept["removing"]
    if kept.get("counts"):
        return Counting(run, len(names), masked)
    return (
        Adapting(run, len(names), masked)
        if removing is None
        else Removing(run, names, masked, removing)
    )


def _federation(
    credentials: Path, names: list[str], masked: bool, withdrawals: Sequence[Path]
) -> tuple[Enrolment, bytes, list[Signed]]:
    """Return the list of parties, the coordinator's key and the withdrawals, once a plan can ask
    these parties.
    """
    from fedunseen.deploy.offline import coordinator
    from fedunseen.deploy.secagg.enrolment import coordinator as read_coordinator

    enrolment, key = read_coordinator(credentials)
    withdrawn = coordinator.withdrawn(withdrawals, enrolment)
    coordinator.check_parties(enrolment, names, masked, withdrawn)
    return enrolment, key, withdrawn


def _write_plan(
    out: Path, content: bytes, kept: dict[str, Any], names: list[str], plain: bool
) -> None:
    from fedunseen.deploy.offline import files

    _check_new(out)
    write_json(_beside(out), kept)
    files.write(out, content)
    say(*([f"warning: the plan asks for sums {_CLEAR}"] if plain else []))
    say(
        f"plan:   {out}, for {', '.join(names)}",
        f"keep:   {_beside(out)}, which the merge needs, and no party",
    )


def _check_new(out: Path) -> None:
    if out.exists():
        raise RefusedError(f"{out} is there already: choose another --out")


def _beside(plan: Path) -> Path:
    """Return where the coordinator's own part of a plan is: its experiment, with the names of its
    files.
    """
    return plan.with_suffix(".coordinator.json")


def _engine(experiment: Experiment, out: Path) -> Offline:
    """Return the engine of an experiment by file."""
    from fedunseen.deploy.offline.coordinator import Offline
    from fedunseen.deploy.rules import OFFLINE
    from fedunseen.experiment.rules import StartFacts, check
    from fedunseen.experiment.setup import Setup

    check(StartFacts(experiment, deployed_here=True), OFFLINE)
    setup = Setup.of(experiment, out.with_suffix(""), lambda *messages: None).assembled()
    engine = setup.federation.engine
    assert isinstance(engine, Offline)
    return engine


@contextmanager
def at_party(
    credentials: Path, state: Path | None, owner: Owner, choices: Collection[str] = _CONSENT
) -> Iterator[tuple[Credentials, Ledger, Site]]:
    """Yield a party's credentials, its ledger and its site, which no other process has.

    Args:
        credentials: its folder.
        state: where its site keeps what left; None: a folder of its name.
        owner: what its owner has decided.
        choices: what the owner may consent to.
    """
    from fedunseen.deploy.secagg.enrolment import Credentials
    from fedunseen.deploy.secagg.ledger import Ledger
    from fedunseen.deploy.site import ONE_STATE, at_site

    assert owner.data is not None
    check_consent(list(owner.consent), choices)
    existing_folder(owner.data, "correct --data")
    party_credentials = Credentials.load(credentials)
    state = state or Path(f"fedunseen-{party_credentials.name}")
    with at_site(state, owner, say, ONE_STATE) as site:
        where = str(owner.data.resolve())
        yield party_credentials, Ledger(state / "ledger", where, "moved" in owner.consent), site


@offline_app.command()
def count(
    plan: PlanFile,
    data: opt.Data,
    out: Annotated[Path, typer.Option(help="The file to write, which stays here.")],
    consent: opt.Consent = None,
    min_samples: opt.MinSamples = MIN_SAMPLES,
    overrides: opt.Own = None,
    plugins: opt.Plugins = None,
) -> None:
    """Party: count the sums of your answer beforehand, for `answer --statistics` or `join
    --statistics`. Nothing is sent.
    """
    from fedunseen.cli.bars import preparation_bars
    from fedunseen.deploy.counted import CountingParty
    from fedunseen.deploy.offline.files import read

    check_consent(list(consent or ()), _CONSENT)
    existing_folder(data, "correct --data")
    _check_new(out)
    signed = read(plan, "plan")
    with preparation_bars():
        party = CountingParty(data, own_overrides(overrides), min_samples=min_samples)
        party.consent = consent or ()
        counted = party.count(signed["hello"], signed.greeting)
    party.tell_left_out(say)
    counted.save(out)
    say(
        *filter(None, [counted.left_out]),
        f"counted: {out}, {len(counted.rows)} samples; whoever has it sees their sums",
    )


@offline_app.command()
def answer(
    plan: PlanFile,
    data: opt.Data,
    credentials: Kit,
    out: Annotated[Path, typer.Option(help="The file to write, for the coordinator.")],
    statistics: opt.Counted = None,
    state: opt.State = None,
    consent: opt.Consent = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Agree to sums in clear if the plan asks for them.")
    ] = False,
    samples: opt.Removed = None,
    min_samples: opt.MinSamples = MIN_SAMPLES,
    epsilon_limit: opt.EpsilonLimit = None,
    delta_limit: opt.DeltaLimit = 1e-4,
    overrides: opt.Own = None,
    plugins: opt.Plugins = None,
) -> None:
    """Party: write your one answer to a plan, from your own data, which stay here."""
    from fedunseen.cli.bars import preparation_bars
    from fedunseen.deploy.offline.files import read, write
    from fedunseen.deploy.offline.party import Answering
    from fedunseen.deploy.site import Owner

    party_settings = own_overrides(overrides)
    signed = read(plan, "plan")
    owner = Owner(
        data, credentials, tuple(consent or ()), signed["masked"], epsilon_limit, delta_limit
    )
    with at_party(credentials, state, owner) as (party_credentials, ledger, site):
        answering = Answering(signed, party_credentials, ledger, site, plain)
        content = answering.stored()
        again = content is not None
        if content is None:
            from fedunseen.deploy.client_data import PartyData, Removal
            from fedunseen.deploy.counted import with_counted

            with preparation_bars():
                agreed = Removal(samples or (), "removal" in (consent or ()))
                removal = agreed if samples or signed.plan.removing else None
                held = PartyData(
                    data,
                    party_settings,
                    masked=signed["masked"],
                    removal=removal,
                    min_samples=min_samples,
                )
                held.consent = consent or ()
                held = with_counted(held, statistics)
                owner.check(len(held.benchmark.train))
                hello = {
                    **signed["hello"],
                    "client": signed["parties"].index(party_credentials.name),
                }
                ready = held.prepare(hello, signed.greeting)
            held.tell_left_out(site.say)
            answering.check_classes(ready.names)
            answering.check(ready)
            site.releases.check(answering.spent(ready))
            if epsilon_limit is not None:
                say(site.releases.balance)
            content = answering.answer(ready)
            counts = answering.counts(ready)
            if signed.adapts and not counts["unlabelled"]:
                say(
                    f"note: {data} has no sample without a label: leave its label empty, or "
                    "put it in unlabelled/"
                )
            summary = (
                "{unlabelled} unlabelled samples"
                if signed.adapts
                else "{samples} samples of {classes} classes"
            )
            say(f"{party_credentials.name}: {summary.format_map(counts)}, which stay here")
        write(out, content)
        site.finished(f"answered {plan.name} by file, which needs no process")
        if not signed["masked"]:
            say(f"warning: the sums are {_CLEAR}")
    say(f"answer: {out}{', the same bytes as before' if again else ''}, for the coordinator")


@offline_app.command()
def withdraw(
    plan: PlanFile,
    data: opt.Data,
    credentials: Kit,
    out: Annotated[Path, typer.Option(help="The file to write, for the coordinator's next plan.")],
    state: opt.State = None,
    consent: opt.Consent = None,
) -> None:
    """Party: sign that you have not answered a plan and never will, so that the others may answer
    one without you.
    """
    from fedunseen.deploy.offline import party
    from fedunseen.deploy.offline.files import read, write
    from fedunseen.deploy.site import Owner

    signed = read(plan, "plan")
    owner = Owner(data, credentials, tuple(consent or ()))
    with at_party(credentials, state, owner) as (party_credentials, ledger, site):
        write(out, party.withdraw(signed, party_credentials, ledger, site))
        site.finished(f"withdrew from {plan.name}")
    say(f"withdrawal: {out}; the coordinator plans again with --withdrawal {quote(out.name)}")
    if signed["masked"] and len(signed["parties"]) <= party_credentials.enrolment.threshold:
        say(
            f"note: a masked sum takes {party_credentials.enrolment.threshold} parties, so that "
            "only a plan with --plain can follow"
        )


@offline_app.command()
def merge(
    plan: PlanFile,
    answers: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="The answers of all parties.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The run directory to write; of a round but the last, the next round's plan."
        ),
    ],
    credentials: Annotated[
        Path | None,
        typer.Option("--credentials", help="Your folder: it signs the next round's plan."),
    ] = None,
    plugins: opt.Plugins = None,
    as_json: opt.Json = False,
) -> None:
    """Coordinator: add up the answers of all parties, and write the run."""
    from fedunseen.deploy.offline import coordinator, files

    free_folder(out)
    signed = files.read(plan, "plan")
    signed_answers = coordinator.gather(signed, answers)
    beside = _beside(plan)
    try:
        kept = dict(parse_json(beside.read_bytes()))
        tree = (
            None
            if {"run", "settings", "rounds", "removing"} <= kept.keys()
            else dict(kept["experiment"])
        )
    except (OSError, ValueError, TypeError, KeyError):
        raise RefusedError(
            f"{beside} is missing or damaged: merge where the plan was written"
        ) from None
    if tree is None:
        _merge_round(plan, signed, signed_answers, kept, out, credentials, as_json)
        return
    from fedunseen.experiment.running import run as run_experiment
    from fedunseen.experiment.schema import Experiment
    from fedunseen.federation.engine import PartyStatus
    from fedunseen.strategies import Instruction

    experiment = Experiment.from_dict(tree)
    engine = _engine(experiment, out)
    coordinator.check_same(engine, signed, Instruction({}), plan)
    brought = engine.read(signed, signed_answers)

    @contextmanager
    def meet() -> Iterator[coordinator.Table]:
        members = [PartyStatus(name) for name in signed["parties"]]
        yield coordinator.Table(parties=members, brought=brought)

    try:
        done = run_experiment(experiment, out, meeting=meet)
        coordinator.keep_plan(out, signed)
    except (FedUnseenError, OSError):
        shutil.rmtree(out, ignore_errors=True)  # the answers are there to be merged again
        raise
    finish(done, write_pages(done), as_json)


def _merge_round(
    plan: Path,
    signed: Signed,
    signed_answers: Mapping[str, Signed],
    kept: dict[str, Any],
    out: Path,
    credentials: Path | None,
    as_json: bool,
) -> None:
    """Add up a round, and write the plan of the next round or, after the last, the changed run."""
    from fedunseen.deploy.offline import coordinator
    from fedunseen.deploy.secagg.enrolment import coordinator as read_coordinator

    last = signed["k"] + 1 == signed.plan.sums
    if credentials is None and not last:
        raise ArgumentError("the next round's plan is signed: give --credentials")
    asking = _asking(kept, signed["parties"], signed["masked"])
    try:
        asking.replay(kept["rounds"])
    except (KeyError, TypeError, ValueError):
        raise RefusedError(f"{_beside(plan)} is damaged: merge the round before again") from None
    coordinator.check_same(asking.engine, signed, asking.instruction, plan)
    asking.merge(signed, asking.engine.read(signed, signed_answers))
    if last:
        done = asking.finish(out)
        if signed.counts:
            finish(done, write_pages(done), as_json)
        else:
            (say_adapted if signed.adapts else say_forgotten)(done, as_json)
        return
    assert credentials is not None
    enrolment, key = read_coordinator(credentials)
    if enrolment.digest != signed.enrolment.digest:
        raise RefusedError(
            f"{plan} is of another federation.json than {credentials}: name the folder that signed "
            "it"
        )
    say(f"round:  {signed['k'] + 2} of {signed.plan.sums}")
    content = coordinator.next_round(signed, asking.instruction, key)
    kept = {**kept, "rounds": asking.rounds}
    _write_plan(out, content, kept, signed["parties"], not signed["masked"])


@offline_app.command()
def show(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A plan, an answer or a withdrawal.")
    ],
) -> None:
    """Say what a file holds, who has signed it, and what it would reveal."""
    from fedunseen.deploy.offline.files import read

    print(shown(texts.signed_file(file, read(file), _CLEAR)))
