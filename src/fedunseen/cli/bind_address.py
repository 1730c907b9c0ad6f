"""Where an HTTP service of a command listens, and who may come in: one rule for ``serve`` and for the live page."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from fedunseen.core.errors import ArgumentError, DataError

_SHORTEST = 16  # characters of a token


@dataclass(frozen=True)
class BindAddress:
    """An address, and what others need to get in."""

    host: str
    port: int
    token_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool | None = None
    option: str = "--host"
    prefix: str = "--"

    @property
    def local(self) -> bool:
        """Only this machine can reach it."""
        from fedunseen.serve.guard import is_loopback

        return is_loopback(self.host)

    def token(self) -> str | None:
        """Return the token in its file, if others may come in at all."""
        token = None if self.token_file is None else read_token(self.token_file)
        given, tls = f"{self.option} {self.host}", f"{self.prefix}certificate and {self.prefix}key"
        if not self.local and token is None:
            raise ArgumentError(
                f"{given} lets other machines in: give {self.prefix}token-file FILE with a token for them"
            )
        if (self.certificate is None) != (self.key is None):
            raise ArgumentError(f"{tls} go together: give both")
        if not self.local and self.certificate is None and not self.insecure:
            proxy = "" if self.insecure is None else f", or {self.prefix}insecure behind a proxy that speaks TLS"
            raise ArgumentError(f"{given} would send the token in plain text: give {tls}{proxy}")
        for file in (self.certificate, self.key):
            if file is not None and not file.is_file():
                raise DataError(f"{file} is missing: correct its name")
        return token

    def no_certificate(self, error: OSError) -> DataError:
        """Return what to say where certificate and key are none, or of two pairs."""
        return DataError(f"{self.certificate} and {self.key} are not a certificate and its key: {error.strerror}")

    def url(self, listening: socket.socket) -> str:
        """Return the address that a browser takes."""
        at = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.certificate is None else 'https'}://{at}:{listening.getsockname()[1]}/"

    def listen(self) -> socket.socket:
        """Return a socket that listens."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((self.host, self.port))
            listening.listen(128)
        except OSError as error:
            listening.close()
            other = "--host or --port" if self.option == "--host" else self.option
            raise ArgumentError(
                f"{self.host}:{self.port} cannot be listened at ({error.strerror or error}): choose another {other}"
            ) from None
        return listening


def read_token(file: Path) -> str:
    """Return the token in a file."""
    try:
        token = file.read_text("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if len(token) < _SHORTEST or not token.isprintable() or " " in token:
        raise DataError(f"{file} holds no token: write one line of {_SHORTEST} or more letters and digits")
    return token
