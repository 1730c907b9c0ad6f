"""``fedunseen certs``: certificates and keys, and what is changed of them while a federation
lives.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedunseen.cli.console import say
from fedunseen.core.addresses import host_and_port
from fedunseen.core.errors import DataError, ExperimentError, RunDirectoryError
from fedunseen.core.files import free_folder, parse_json
from fedunseen.core.party_names import FEDERATION, party_names
from fedunseen.deploy.cli.deployment import PORT

certs_app = typer.Typer(
    help="Make certificates and keys, or renew, revoke, request, sign and add some later.",
    invoke_without_command=True,
)

Out = Annotated[Path, typer.Option(help="A new folder for what is written.")]
Signer = Annotated[
    Path, typer.Option("--authority", help="The folder in which the authority's key is kept.")
]
Days = Annotated[int, typer.Option(min=1, help="How long the certificates are good for.")]
Allowed = Annotated[
    list[str] | None,
    typer.Option(
        help="The only classes that a party may send: north=wolf,fox; repeat it for each party."
    ),
]
Request = Annotated[
    Path, typer.Argument(metavar="FILE", help="What `fedunseen certs request` wrote.")
]


@certs_app.callback()
def certs(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(help="A new folder; it gets a folder for the coordinator and one a party."),
    ] = None,
    parties: Annotated[str | None, typer.Option(help="Names of all parties: a,b,c.")] = None,
    address: Annotated[
        str, typer.Option(help="Host name or address at which parties reach the coordinator.")
    ] = "127.0.0.1",
    days: Days = 365,
    authority: Annotated[
        Path | None,
        typer.Option(
            help="Keep the key that signs the certificates in this folder, for later changes."
        ),
    ] = None,
    classes: Allowed = None,
) -> None:
    """Make certificates and keys: give every party its folder, over a channel that you trust."""
    from fedunseen.deploy import websocket

    websocket.check_installed("cryptography")
    if context.invoked_subcommand is not None:
        if out or parties or authority or classes:
            raise ExperimentError(
                f"options of {context.invoked_subcommand} stand behind its name: write `fedunseen "
                f"certs {context.invoked_subcommand} ...`"
            )
        return
    from fedunseen.deploy.certs import make, read_classes

    allowed = read_classes(classes) if classes else None
    if out is None or (parties is None and not (allowed and authority)):
        raise ExperimentError(
            "give --parties and --out (new certificates for all), --classes with --authority and "
            "--out, or one of: renew, revoke, request, sign, add"
        )
    free_folder(out)
    if parties is None:
        assert authority is not None
        _changed(authority, out, [], False, allowed, days)
        return
    names = party_names(parties.split(","))
    if authority is not None and out.resolve() in (
        free_folder(authority, "name another with --authority").resolve(),
        *authority.resolve().parents,
    ):
        raise RunDirectoryError(
            "--authority is inside --out: choose a folder that is handed to no one"
        )
    make(out, host_and_port(address, PORT)[0], names, days, authority, allowed)
    say(f"coordinator: {out / 'coordinator'}", *(f"{name}: {out / name}" for name in names))
    if authority is not None:
        say(f"authority (for no one who runs the coordinator): {authority}")


@certs_app.command()
def renew(
    authority: Signer,
    out: Out,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Parties, or `coordinator`; all without a name."),
    ] = None,
    days: Days = 365,
    new_keys: Annotated[
        bool,
        typer.Option(
            "--new-keys", help="Give these parties other keys too, and revoke those before."
        ),
    ] = False,
) -> None:
    """Give certificates a later end, while the federation lives."""
    from fedunseen.deploy.certs import extend

    free_folder(out)
    chosen = [part for name in names or () for part in name.split(",")]
    if new_keys:
        _changed(authority, out, party_names(chosen), True, None, days)
        return
    for name, end in extend(authority, out, chosen, days).items():
        say(f"{name}: {out / name}, until {end}")
    say(f"for the coordinator's credentials folder, where they count at once: {out}/coordinator/*")


@certs_app.command()
def revoke(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Parties to shut out.")],
    authority: Signer,
    out: Out,
) -> None:
    """Shut parties out, while the federation lives."""
    free_folder(out)
    chosen = [part for name in names for part in name.split(",")]
    _changed(authority, out, party_names(chosen), False, None, 365)


@certs_app.command()
def request(
    name: Annotated[str, typer.Option(help="Your name in the federation.")],
    out: Annotated[Path, typer.Option(help="Your new credentials folder, which no one else gets.")],
) -> None:
    """Party: make your own keys, and a request for the authority."""
    from fedunseen.deploy.certs import request as make_request

    (who,) = party_names([name])
    path, digest = make_request(who, out)
    say(
        f"request: {path}, for the authority; the keys stay in {out}",
        f"digest: {digest}, which the authority's people have to see too: read it to them",
    )


@certs_app.command()
def sign(file: Request, authority: Signer, out: Out, days: Days = 365) -> None:
    """Sign the keys that a party has made itself, and revoke those that it had."""
    _admitted(file, authority, out, days, False, None)


@certs_app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new party.")],
    authority: Signer,
    out: Out,
    file: Annotated[
        Path | None,
        typer.Option("--request", help="Its own keys: what `fedunseen certs request` wrote."),
    ] = None,
    days: Days = 365,
    classes: Allowed = None,
) -> None:
    """Add a party to a federation that lives."""
    from fedunseen.deploy.certs import add as add_party
    from fedunseen.deploy.certs import read_classes

    (who,) = party_names([name])
    allowed = read_classes(classes) if classes else None
    if file is not None:
        _admitted(file, authority, out, days, True, allowed, who)
        return
    free_folder(out)
    add_party(authority, out, who, days, allowed)
    say(f"{who}: {out / who}")
    _say_lists(out, True)


def _admitted(
    file: Path,
    authority: Path,
    out: Path,
    days: int,
    new: bool,
    allowed: Mapping[str, Any] | None,
    name: str = "",
) -> None:
    from fedunseen.deploy.certs import admit
    from fedunseen.deploy.secagg.enrolment import fingerprint, read_request

    free_folder(out)
    try:
        tree = dict(parse_json(file.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{file} cannot be read ({error}): ask for the request again") from None
    asked, _ = read_request(tree)
    if name not in ("", asked):
        raise DataError(
            f"{file} is the request of {asked!r}, not of {name!r}: ask for the right one"
        )
    admit(authority, out, tree, days, new, allowed)
    say(
        f"digest: {fingerprint(tree)}: compare it with the one that {asked}'s people read to you",
        f"{asked}: {out / asked}, to be copied beside its keys",
    )
    _say_lists(out, new)


def _changed(
    authority: Path,
    out: Path,
    names: list[str],
    renewed: bool,
    allowed: Mapping[str, Any] | None,
    days: int,
) -> None:
    from fedunseen.deploy.certs import change

    change(authority, out, names, renewed, allowed, days)
    say(*(f"{name}: {out / name}" for name in names if renewed))
    _say_lists(out, False)


def _say_lists(out: Path, added: bool) -> None:
    """Say who gets which lists."""
    from fedunseen.deploy.websocket.kit import REVOKED

    folder = out / "coordinator"
    say(f"for the coordinator's credentials folder: {folder}/*")
    lists = [name for name in (REVOKED, FEDERATION) if (folder / name).exists()]
    say(*(f"for every party's credentials folder: {folder / name}" for name in lists))
    if added:
        say("then: fedunseen host ... --resume, with the new party or in a new run")
