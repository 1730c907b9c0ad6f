"""``fedunseen serve``: a run's model behind HTTP, with a page to try it on."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer

from fedunseen.cli.console import Json, RunPath, say
from fedunseen.core.errors import ArgumentError, DataError, MissingDependencyError

__all__ = ["serve"]

PORT = 8321
_SHORTEST = 16  # characters of a token
_GRACE = 5  # seconds in which answers that are under way are finished


def serve(
    path: RunPath,
    host: Annotated[str, typer.Option(help="Address to listen at; anything but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = PORT,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the token that clients must send.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="TLS: the certificate chain (PEM).")] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="TLS: the certificate's private key (PEM).")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Plain text off loopback: behind a proxy that speaks TLS.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Serve a run's model over HTTP, and a page to try it on; Ctrl-C or SIGTERM ends it."""
    try:
        import uvicorn

        from fedunseen.serve.app import create_app
        from fedunseen.serve.guard import Limits, is_loopback
    except ImportError as error:
        raise MissingDependencyError(
            f"serving needs a library that is not installed ({error.name}): pip install 'fedunseen[serve]'"
        ) from None
    from fedunseen.experiment import load_run
    from fedunseen.serve import Recogniser

    local = is_loopback(host)
    token = _token(token_file)
    if not local and token is None:
        raise ArgumentError(f"--host {host} lets other machines in: give --token-file FILE with a token for them")
    if (certificate is None) != (key is None):
        raise ArgumentError("--certificate and --key go together: give both")
    if not local and certificate is None and not insecure:
        raise ArgumentError(
            f"--host {host} would send the token in plain text: give --certificate and --key, or --insecure behind a "
            "proxy that speaks TLS"
        )
    for file in (certificate, key):
        if file is not None and not file.is_file():
            raise DataError(f"{file} is missing")
    model = Recogniser(load_run(path))
    limits = Limits()
    config = uvicorn.Config(
        create_app(model, token, local, limits),
        lifespan="off",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=limits.waiting + 64,
        timeout_graceful_shutdown=_GRACE,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    try:
        config.load()
    except OSError as error:  # a certificate that is none, or a key of another one
        raise DataError(f"{certificate} and {key} are no certificate with its key: {error.strerror}") from None
    with _listen(host, port) as listening:
        at = f"[{host}]" if ":" in host else host
        url = f"{'http' if certificate is None else 'https'}://{at}:{listening.getsockname()[1]}/"
        for name in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises what ended it once more, when all is closed
            signal.signal(name, lambda *_: None)
        say(f"serving {path} at {url} (Ctrl-C ends it)")
        if as_json:
            print(json.dumps({"run": str(path), "url": url}), flush=True)
        uvicorn.Server(config).run([listening])
    say("stopped")


def _token(file: Path | None) -> str | None:
    """Return the token in a file."""
    if file is None:
        return None
    try:
        token = file.read_text("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if len(token) < _SHORTEST or not token.isprintable() or " " in token:
        raise DataError(f"{file} holds no token: write one line of {_SHORTEST} or more letters and digits")
    return token


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ArgumentError: the address is not this machine's, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise ArgumentError(
            f"{host}:{port} cannot be listened at ({error.strerror or error}): choose another --host or --port"
        ) from None
    return listening
