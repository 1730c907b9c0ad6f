"""Addresses of machines."""

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bracketed(host: str) -> str:
    """Return an address as it stands in a URI: one of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host
