"""``fedunseen serve``: a run's model behind HTTP, with a page to try it on."""

import logging
import signal
from pathlib import Path
from typing import Annotated

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import open_run, print_json, say
from fedunseen.cli.dashboard import BindAddress, read_token
from fedunseen.cli.logs import Format, LogFormat, logged, speak
from fedunseen.core.errors import ArgumentError, MissingDependencyError

PORT = 8321
_GRACE = 5  # seconds in which answers that are under way are finished


def serve(
    path: opt.RunPath,
    host: Annotated[str, typer.Option(help="Address to listen at; anything but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = PORT,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the token that clients must send.")
    ] = None,
    write_token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with another token, without which no class is added or removed."),
    ] = None,
    certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="TLS: the certificate chain (PEM).")] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="TLS: the certificate's private key (PEM).")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Plain text off loopback: behind a proxy that speaks TLS.")
    ] = False,
    adapt: Annotated[
        bool, typer.Option("--adapt", help="Adapt the model to what it is asked about, without keeping it.")
    ] = False,
    client: opt.Client = None,
    log_format: LogFormat = Format.text,
    plugins: opt.Plugins = None,
    as_json: opt.Json = False,
) -> None:
    """Serve a run's model over HTTP, and a page to try it on; Ctrl-C or SIGTERM ends it."""
    speak(log_format)
    listen_at = BindAddress(host, port, token_file, certificate, key, insecure)
    token, write_token = listen_at.token(), None if write_token_file is None else read_token(write_token_file)
    if write_token is not None and write_token == token:
        raise ArgumentError("--write-token-file and --token-file hold one token: make another for writing")
    listen_at.listen().close()  # now, because libraries and the model take seconds
    try:
        import uvicorn

        from fedunseen.serve.app import create_app
        from fedunseen.serve.connections import server_config
        from fedunseen.serve.guard import Limits
    except ImportError as error:
        raise MissingDependencyError(
            f"serving needs a library that is not installed ({error.name}): pip install 'fedunseen[serve]'"
        ) from None
    from fedunseen.core.memory import libraries_set_aside
    from fedunseen.serve import Recognizer

    limits = Limits()
    app = create_app(Recognizer(open_run(path, client), adapt), token, listen_at.local, limits, write_token)
    try:
        config = server_config(app, limits.waiting + 64, _GRACE, certificate, key)
    except OSError as error:
        raise listen_at.no_certificate(error) from None
    failures, requests = logged(name="uvicorn.error", least=logging.WARNING), logged(name="fedunseen.requests")
    with listen_at.listen() as listening, failures, requests, libraries_set_aside():
        url = listen_at.url(listening)
        for name in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises what ended it once more, when all is closed
            signal.signal(name, lambda *_: None)
        say(f"serving {path} at {url} (Ctrl-C ends it)")
        print_json(as_json, {"run": str(path), "url": url})
        # libuv takes one connection of a socket between two rounds of answers: take sixteen.
        uvicorn.Server(config).run([listening, *(listening.dup() for _ in range(15))])
    say("stopped")
