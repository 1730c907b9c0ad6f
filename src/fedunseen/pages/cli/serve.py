"""``fedunseen serve``: a run's model behind HTTP, with a page to try it on."""

import logging
import signal
from pathlib import Path
from typing import Annotated

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import open_run, print_json, say
from fedunseen.cli.logs import Format, LogFormat, logged, speak
from fedunseen.core.addresses import PublicAddress
from fedunseen.core.errors import ArgumentError, MissingDependencyError
from fedunseen.pages.cli.live_page import BindAddress, read_token

PORT = 8321
_GRACE = 5  # seconds in which answers that are under way are finished


def serve(
    path: opt.RunPath,
    host: Annotated[
        str, typer.Option(help="Address to listen at; anything but loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")
    ] = PORT,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with the token that clients must send."),
    ] = None,
    write_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file with another token, without which no class comes or goes and nothing "
            "adapts.",
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TLS: the certificate chain (PEM).")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TLS: the certificate's private key (PEM).")
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Plain text off loopback: behind a proxy that speaks TLS."),
    ] = False,
    public_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where a reverse proxy offers the service."),
    ] = None,
    adapt: Annotated[
        bool,
        typer.Option(
            "--adapt", help="Adapt the model to what writers ask about, without keeping it."
        ),
    ] = False,
    client: opt.Client = None,
    log_format: LogFormat = Format.text,
    plugins: opt.Plugins = None,
    as_json: opt.Json = False,
) -> None:
    """Serve a run's model over HTTP, and a page to try it on; Ctrl-C or SIGTERM ends it."""
    speak(log_format)
    public = None if public_url is None else PublicAddress.parse(public_url, "--public-url")
    listen_at = BindAddress(host, port, token_file, certificate, key, insecure, public=public)
    token = listen_at.token()
    write_token = None if write_token_file is None else read_token(write_token_file)
    if write_token is not None and write_token == token:
        raise ArgumentError(
            "--write-token-file and --token-file hold one token: make another for writing"
        )
    if adapt and token is not None and write_token is None:
        raise ArgumentError(
            "--adapt lets everyone who has the token move the model: give --write-token-file, the "
            "token that adapts"
        )
    listen_at.listen().close()  # now, because libraries and the model take seconds
    try:
        from fedunseen.pages.serve.app import create_app
        from fedunseen.pages.serve.connections import BoundedServer
        from fedunseen.pages.serve.guard import Limits
    except ImportError as error:
        raise MissingDependencyError(
            f"serving needs a library that is not installed ({error.name}): pip install "
            "'fedunseen[serve]'"
        ) from None
    from fedunseen.core.memory import libraries_set_aside
    from fedunseen.pages.serve import Recognizer

    limits = Limits()
    app = create_app(
        Recognizer(open_run(path, client), adapt),
        token,
        listen_at.local,
        limits,
        write_token,
        public,
    )
    try:
        server = BoundedServer(app, limits.waiting + 64, _GRACE, certificate, key)
    except OSError as error:
        raise listen_at.no_certificate(error) from None
    failures = logged(name="uvicorn.error", least=logging.WARNING)
    requests = logged(name="fedunseen.requests")
    with listen_at.listen() as listening, failures, requests, libraries_set_aside():
        url = listen_at.url(listening)
        for name in (
            signal.SIGINT,
            signal.SIGTERM,
        ):  # uvicorn raises what ended it once more, when all is closed
            signal.signal(name, lambda *_: None)
        say(f"serving {path} at {listen_at.told(listening)} (Ctrl-C ends it)")
        if public is not None and token is None:
            say("note: without --token-file, everyone whom the proxy lets in may ask")
        print_json(as_json, {"run": str(path), "url": url})
        server.run([listening])
    say("stopped")
