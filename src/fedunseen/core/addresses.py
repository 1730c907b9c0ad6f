"""Addresses of machines."""

import ipaddress
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from fedunseen.core.errors import ArgumentError


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_and_port(text: str, port: int) -> tuple[str, int]:
    """Return the host and the port of ``HOST`` or ``HOST:PORT``; an address of IPv6 with a port
    stands in brackets.

    Example:
        >>> [host_and_port(text, 8850) for text in ("fed.example", "10.0.0.1:9000")]
        [('fed.example', 8850), ('10.0.0.1', 9000)]
        >>> [host_and_port(text, 8850) for text in ("::1", "[::1]", "[fe80::1%eth0]:9000")]
        [('::1', 8850), ('::1', 8850), ('fe80::1%eth0', 9000)]

    Raises:
        ArgumentError: it is none of these.
    """
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        pass
    else:
        return text, port
    place, colon, given = text.rpartition(":")
    if text.endswith("]") or not colon:
        place = text
        given = str(port)
    host = place[1:-1] if place.startswith("[") and place.endswith("]") else place
    if ":" in host or host != place:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            host = ""
    if not given.isdecimal() or not 0 < int(given) < 2**16 or not host:
        raise ArgumentError(
            f"{text!r} is not an address: write HOST or HOST:PORT, for example 10.0.0.1:{port} or "
            f"[2001:db8::1]:{port}"
        )
    return host, int(given)


def bracketed(host: str) -> str:
    """Return an address as it stands in a URI: one of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


@dataclass(frozen=True)
class PublicAddress:
    """Where a reverse proxy offers a service.

    Attributes:
        origin: scheme and host as a browser sends them, with a port that is not the scheme's own.
        host: the name alone.
        prefix: the path, without a slash at its end; "" at the root.
    """

    origin: str
    host: str
    prefix: str

    @classmethod
    def parse(cls, text: str, option: str) -> "PublicAddress":
        """Return the address in a URL that was given with ``option``."""
        try:
            url = urlsplit(text)
            host = url.hostname or ""
            port = url.port
        except ValueError:  # such as "http://["
            host = ""
        usual = {"http": 80, "https": 443}
        if not host or url.scheme not in usual or "@" in url.netloc or url.query or url.fragment:
            raise ArgumentError(
                f"{option} {text} is not a public address: write it as a browser shows it, such as "
                "https://models.example/digits/"
            )
        place = bracketed(host)
        if port not in (None, usual[url.scheme]):
            place += f":{port}"
        return cls(f"{url.scheme}://{place}", host, url.path.rstrip("/"))

    def __str__(self) -> str:
        """Return the URL."""
        return f"{self.origin}{self.prefix}/"
