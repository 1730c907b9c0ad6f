"""``fedunseen look plan | answer | read | host | join``: a first look before an experiment is
agreed, by file or over a WebSocket.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import print_json, say
from fedunseen.cli.logs import logged
from fedunseen.core.addresses import bracketed, host_and_port
from fedunseen.core.errors import RefusedError
from fedunseen.core.files import free_folder
from fedunseen.core.party_names import party_names
from fedunseen.core.small_cells import MIN_SAMPLES
from fedunseen.core.text import shown
from fedunseen.deploy.cli.deployment import PORT, terminable
from fedunseen.deploy.cli.offline import Kit, at_party

look_app = typer.Typer(
    help="A first look before a run: classes, samples, ranges, as coarse counts.",
    no_args_is_help=True,
)
_CONSENT = frozenset({"again", "federations", "look", "moved", "names"})

Label = Annotated[
    str, typer.Option(metavar="COLUMN", help="Of a table: the column with the classes.")
]
Consent = Annotated[
    list[str] | None,
    typer.Option(
        help="Agree to: look (send what is listed), names (of classes and columns that the "
        "plan does not list), again (a second look; counts in clear and under masks, which show "
        "what others have), federations (counts that differ by parties of two federations), moved "
        "(the data folder)."
    ),
]
Clear = Annotated[
    bool, typer.Option("--plain", help="Agree to counts in clear if the plan asks for them.")
]
MinSamples = Annotated[
    int,
    typer.Option(
        min=1, help="Round all counts down to multiples of it: smaller ones are not sent."
    ),
]
Data = Annotated[
    Path, typer.Option(help="Your data: a table, features.npz, or folders of pictures or texts.")
]
Seen = Annotated[Path, typer.Option(help="The folder to write: look.html and look.json.")]
Few = Annotated[
    int,
    typer.Option(min=1, help="Warn of a class that one party alone holds with fewer samples."),
]

PlanFile = Annotated[
    Path, typer.Argument(metavar="PLAN", help="The file that `fedunseen look plan` wrote.")
]


@look_app.command("plan")
def plan_(
    credentials: Kit,
    parties: Annotated[str, typer.Option(help="Who is asked: a,b,c.")],
    out: Annotated[Path, typer.Option(help="The file to write, for every party the same.")],
    classes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ask about the classes of a class table or a list."),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="NAME", help="Ask about a column; repeatable."),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Ask for each party's counts in clear, not for their sum."),
    ] = False,
) -> None:
    """Coordinator: write what all parties are asked for."""
    names = party_names(parties.split(","))
    _check_new(out)
    from fedunseen.deploy.look.question import Question, make_plan, names_asked
    from fedunseen.deploy.offline import files
    from fedunseen.deploy.offline.coordinator import check_parties
    from fedunseen.deploy.secagg.enrolment import coordinator as read_coordinator

    enrolment, key = read_coordinator(credentials)
    check_parties(enrolment, names, not plain)
    question = Question(*names_asked(classes, columns or ()))
    files.write(out, make_plan(enrolment, key, names, not plain, question))
    if plain:
        say("warning: the plan asks for counts in clear: anyone with an answer sees its party's")
    say(
        f"plan:   {out}, for {', '.join(names)}: {len(question.classes)} classes and "
        f"{len(question.columns)} columns"
    )


@look_app.command()
def answer(
    plan: PlanFile,
    data: Data,
    credentials: Kit,
    out: Annotated[Path, typer.Option(help="The file to write, for the coordinator.")],
    label: Label = "",
    state: opt.State = None,
    consent: Consent = None,
    plain: Clear = False,
    min_samples: MinSamples = MIN_SAMPLES,
) -> None:
    """Party: list what would leave; with --consent look, write it."""
    from fedunseen.deploy.look.party import Looking
    from fedunseen.deploy.look.question import FORM, LIMIT, PLAN
    from fedunseen.deploy.offline.files import read, write
    from fedunseen.deploy.site import Owner

    signed = read(plan, PLAN, LIMIT, FORM)
    owner = Owner(data, credentials, tuple(consent or ()), signed["masked"])
    with at_party(credentials, state, owner, _CONSENT) as (party_credentials, ledger, site):
        looking = Looking(signed, party_credentials, ledger, site, plain)
        content, again = looking.given(data, label, min_samples, say)
        write(out, content)
        site.finished(f"answered the look {plan.name} by file, which needs no process")
    say(f"answer: {out}{', the same bytes as before' if again else ''}, for the coordinator")


@look_app.command("read")
def read_(
    plan: PlanFile,
    answers: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="The answers of the parties.")
    ],
    out: Seen,
    few: Few = 20,
    as_json: opt.Json = False,
) -> None:
    """Coordinator: read the answers, and write a page with warnings."""
    free_folder(out)
    from fedunseen.deploy.look.over_links import write_look
    from fedunseen.deploy.look.question import ANSWER, FORM, LIMIT, PLAN
    from fedunseen.deploy.offline.files import read

    files = [(path, read(path, ANSWER, LIMIT, FORM)) for path in answers]
    facts = write_look(read(plan, PLAN, LIMIT, FORM), files, out, few)
    _show(facts, out, as_json)


@look_app.command()
def host(
    plan: PlanFile,
    credentials: Kit,
    out: Seen,
    address: Annotated[
        str, typer.Option(help="Where to listen: HOST or HOST:PORT.")
    ] = f"127.0.0.1:{PORT}",
    few: Few = 20,
    patience: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait for all parties.")
    ] = 3600.0,
    as_json: opt.Json = False,
) -> None:
    """Coordinator: ask all parties over a WebSocket, and write a page with warnings."""
    free_folder(out)
    at, port = host_and_port(address, PORT)
    from fedunseen.deploy import websocket
    from fedunseen.deploy.look.over_links import ask
    from fedunseen.deploy.look.question import FORM, LIMIT, PLAN
    from fedunseen.deploy.offline.files import read
    from fedunseen.deploy.remote.link import Host
    from fedunseen.federation.engine import PartyStatus, Session

    signed = read(plan, PLAN, LIMIT, FORM)
    names = tuple(map(str, signed["parties"]))
    folder = out.with_name(f"{out.name}.look")
    place = Host(folder / "engine", at, port, credentials, names)
    websocket.check(place)
    try:
        with terminable(), logged(place.folder), websocket.host(place) as link:
            say(f"listening at {bracketed(at)}:{port} for {', '.join(names)}")
            facts = ask(
                Session(link, [PartyStatus(name) for name in names]), signed, out, few, patience
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _show(facts, out, as_json)


@look_app.command()
def join(
    address: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", help=f"The coordinator's: HOST or HOST:PORT ({PORT})."),
    ],
    data: Data,
    credentials: Kit,
    label: Label = "",
    state: opt.State = None,
    consent: Consent = None,
    plain: Clear = False,
    min_samples: MinSamples = MIN_SAMPLES,
    patience: Annotated[
        float, typer.Option(min=0.0, help="Seconds to look for a coordinator that is gone.")
    ] = 300.0,
) -> None:
    """Party: list what would leave to a `look host`; with --consent look, send it."""
    at, port = host_and_port(address, PORT)
    from fedunseen.deploy import websocket
    from fedunseen.deploy.look.over_links import LookingParty
    from fedunseen.deploy.remote.link import Join
    from fedunseen.deploy.site import Owner

    owner = Owner(data, credentials, tuple(consent or ()), not plain)
    with (
        terminable(),
        logged(),
        at_party(credentials, state, owner, _CONSENT) as (mine, ledger, site),
    ):
        party = LookingParty(mine, ledger, site, label, min_samples, plain)
        where = Join(site.state / "engine", at, port, credentials, mine.name, patience, site.told)
        websocket.join(where, party.answer, party.done)
        if party.error is not None:
            raise party.error
    say("the look is over: the coordinator has this party's answer")


def _show(facts: Mapping[str, Any], out: Path, as_json: bool) -> None:
    say(*(shown(f"warning: {each['what']} {each['remedy']}") for each in facts["warnings"]))
    say(f"look:   {len(facts['classes'])} classes, {len(facts['warnings'])} warnings")
    say(f"wrote {out / 'look.json'}", *(f"page:   {page}" for page in out.glob("*.html")))
    print_json(as_json, dict(facts))


def _check_new(out: Path) -> None:
    if out.exists():
        raise RefusedError(f"{out} is there already: choose another --out")
