"""From when until when certificates are valid, said in time: by the second, with the zone, from 30
days before the end.

Both sides keep ``engine/certificates.json``, which ``fedunseen health``, the live page and its
metrics read.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedunseen.core.files import parse_json, write_json

FILE = "certificates.json"
WARNED = datetime.timedelta(days=30)
"""How long before the end both sides begin to say so."""


@dataclass(frozen=True)
class Validity:
    """When a certificate is valid.

    Example:
        >>> day = datetime.datetime(2030, 5, 1, tzinfo=datetime.UTC)
        >>> month = Validity(day, day + datetime.timedelta(days=31))
        >>> month.fault(day - datetime.timedelta(hours=1))
        'begins at 2030-05-01T00:00:00+00:00'
        >>> month.fault(day), month.fault(month.last + datetime.timedelta(seconds=1))
        ('', 'ended at 2030-06-01T00:00:00+00:00')
        >>> month.warning(day + datetime.timedelta(days=11, hours=2))
        'ends in 19 days, at 2030-06-01T00:00:00+00:00'
        >>> month.warning(month.last - datetime.timedelta(hours=5))
        'ends in 5 hours, at 2030-06-01T00:00:00+00:00'
    """

    first: datetime.datetime
    last: datetime.datetime

    def fault(self, now: datetime.datetime) -> str:
        """Say why a certificate is not valid; "" if it is."""
        if now < self.first:
            return f"begins at {self.first.isoformat()}"
        return f"ended at {self.last.isoformat()}" if now > self.last else ""

    def warning(self, now: datetime.datetime) -> str:
        """Say why a certificate is not valid, or will soon not be; "" for another 30 days."""
        if (why := self.fault(now)) or self.last - now > WARNED:
            return why
        left = self.last - now
        hours = int(left.total_seconds() // 3600)
        words = f"{left.days} days" if left.days > 1 else f"{hours} hours"
        return f"ends in {words if hours > 1 else 'less than 2 hours'}, at {self.last.isoformat()}"


def write(folder: Path, found: Mapping[str, Validity]) -> None:
    """Keep when the certificates of these holders are valid."""
    write_json(
        folder / FILE,
        {who: [span.first.isoformat(), span.last.isoformat()] for who, span in found.items()},
    )


def read(folder: Path) -> dict[str, Validity]:
    """Return what was kept last: holder -> when its certificate is valid; {} where nothing was."""
    try:
        tree: Any = parse_json((folder / FILE).read_bytes())
        return {
            str(who): Validity(*map(datetime.datetime.fromisoformat, times))
            for who, times in tree.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def warnings(found: Mapping[str, Validity], now: datetime.datetime) -> dict[str, str]:
    """Return what is to be said of certificates: holder -> when its own ends, or has ended."""
    return {who: why for who, span in found.items() if (why := span.warning(now))}
