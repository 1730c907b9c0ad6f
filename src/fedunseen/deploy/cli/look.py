"""``fedunseen look plan | answer | read``: a first look before an experiment is agreed, by file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import pages_of, print_json, say
from fedunseen.core.errors import RefusedError
from fedunseen.core.files import free_folder, whole_folder, write_json
from fedunseen.core.party_names import party_names
from fedunseen.core.small_cells import MIN_SAMPLES
from fedunseen.core.text import shown
from fedunseen.deploy.cli.offline import Kit, at_party

look_app = typer.Typer(
    help="A first look before a run, by file: classes, samples, ranges, as coarse counts.",
    no_args_is_help=True,
)
_CONSENT = frozenset({"again", "look", "moved", "names"})

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
    data: Annotated[
        Path,
        typer.Option(help="Your data: a table, features.npz, or folders of pictures or texts."),
    ],
    credentials: Kit,
    out: Annotated[Path, typer.Option(help="The file to write, for the coordinator.")],
    label: Annotated[
        str, typer.Option(metavar="COLUMN", help="Of a table: the column with the classes.")
    ] = "",
    state: opt.State = None,
    consent: Annotated[
        list[str] | None,
        typer.Option(
            help="Agree to: look (send what is listed), names (of classes and columns that the "
            "plan does not list), again (a second look), moved (the data folder)."
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Agree to counts in clear if the plan asks for them.")
    ] = False,
    min_samples: Annotated[
        int,
        typer.Option(
            min=1, help="Round all counts down to multiples of it: smaller ones are not sent."
        ),
    ] = MIN_SAMPLES,
) -> None:
    """Party: list what would leave; with --consent look, write it."""
    from fedunseen.deploy.look.holdings import holdings_of
    from fedunseen.deploy.look.party import Looking
    from fedunseen.deploy.look.question import FORM, LIMIT, PLAN
    from fedunseen.deploy.offline.files import read, write
    from fedunseen.deploy.site import Owner

    signed = read(plan, PLAN, LIMIT, FORM)
    owner = Owner(data, credentials, tuple(consent or ()), signed["masked"])
    with at_party(credentials, state, owner, _CONSENT) as (party_credentials, ledger, site):
        looking = Looking(signed, party_credentials, ledger, site, plain)
        content = looking.stored()
        again = content is not None
        if content is None:
            holdings = holdings_of(data, label, signed["classes"])
            say(*(shown(line) for line in looking.listed(holdings, min_samples)))
            content = looking.answer(holdings, min_samples)
        else:
            looking.record(content)
        write(out, content)
        site.finished(f"answered the look {plan.name} by file, which needs no process")
    say(f"answer: {out}{', the same bytes as before' if again else ''}, for the coordinator")


@look_app.command("read")
def read_(
    plan: PlanFile,
    answers: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="The answers of the parties.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write: look.html and look.json.")],
    few: Annotated[
        int,
        typer.Option(min=1, help="Warn of a class that one party alone holds with fewer samples."),
    ] = 20,
    as_json: opt.Json = False,
) -> None:
    """Coordinator: read the answers, and write a page with warnings."""
    free_folder(out)
    from fedunseen.deploy.look.coordinator import facts_of, read_look
    from fedunseen.deploy.look.findings import findings
    from fedunseen.deploy.look.question import FORM, LIMIT, PLAN
    from fedunseen.deploy.offline.files import read

    look = read_look(read(plan, PLAN, LIMIT, FORM), answers)
    facts: dict[str, Any] = facts_of(look, [each._asdict() for each in findings(look, few)])
    with whole_folder(out) as partial:
        write_json(partial / "look.json", facts)
        pages = pages_of("LOOK_PAGES", facts, partial)
    say(*(shown(f"warning: {each['what']} {each['remedy']}") for each in facts["warnings"]))
    say(f"look:   {len(facts['classes'])} classes, {len(facts['warnings'])} warnings")
    say(f"wrote {out / 'look.json'}", *(f"page:   {out / name}" for name in pages))
    print_json(as_json, facts)


def _check_new(out: Path) -> None:
    if out.exists():
        raise RefusedError(f"{out} is there already: choose another --out")
