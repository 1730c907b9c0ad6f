"""What parties may be called, and what signs their certificates, where someone keeps it.

An authority gives a party another key, or shuts one out.
Anyone who has the authority's key can make himself any party, so it belongs with someone who neither runs the
coordinator nor wants to read updates. Revoked certificates are in an X.509 revocation list (RFC 5280) that holds for
good: anyone who has one in the kit keeps to it, and no one fetches a newer one.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedunseen.core.errors import DataError, ExperimentError, RefusedError
from fedunseen.core.files import parse_json, replacing, write_json

if TYPE_CHECKING:  # the library of cryptography is loaded where it is used
    from cryptography import x509

REVOKED = "revoked.pem"
"""The name of the list of revoked certificates, in a kit and in the authority's folder."""

COORDINATOR = "coordinator"
"""The name of the folder that no party may have."""

REMEDY = "make a new kit with `fedunseen certs`"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")  # what may stand in a certificate, a folder's name and a host's
_ABOUT, _CERTIFICATE, _KEY = "authority.json", "authority.crt", "authority.key"


def party_names(names: Sequence[str]) -> list[str]:
    """Return the names of parties, checked: one rule for their folders and for their certificates."""
    found = [name.strip() for name in names]
    for name in found:
        if not _NAME.fullmatch(name) or name.casefold() == COORDINATOR:
            raise ExperimentError(
                f"{name!r} cannot be a party's name: take up to 63 letters, digits and hyphens, no hyphen at the "
                f"beginning, and not {COORDINATOR!r}"
            )
    if len({name.casefold() for name in found}) != len(found):
        raise ExperimentError(f"two of the parties {', '.join(found)} have the same name: rename one")
    return found


def keep(
    folder: Path, engine: str, certificate: x509.Certificate, key: Any, issued: Mapping[str, x509.Certificate]
) -> None:
    """Write an authority's folder: its certificate, its private key (mode 0600), and what it has signed for whom."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    write_secret(folder / _KEY, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (folder / _CERTIFICATE).write_bytes(certificate.public_bytes(Encoding.PEM))
    _write_about(folder, engine, {name: [one.serial_number] for name, one in issued.items()})


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that its owner alone may read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate of a kit; raises RefusedError."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path}: no certificate ({error}); {REMEDY}") from error


def check_today(path: Path) -> None:
    """Raise RefusedError if a kit's certificate is missing, damaged or not valid today."""
    certificate, now = read_certificate(path), datetime.datetime.now(datetime.UTC)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= now <= last:
        raise RefusedError(f"{path}: valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}, not today; {REMEDY}")


def _write_about(folder: Path, engine: str, issued: Mapping[str, Sequence[int]]) -> None:
    serials = {name: [format(serial, "x") for serial in given] for name, given in issued.items()}
    write_json(folder / _ABOUT, {"engine": engine, "issued": serials})


@dataclass(frozen=True)
class Authority:
    """An authority that someone has kept."""

    folder: Path
    engine: str
    certificate: x509.Certificate
    key: Any
    issued: Mapping[str, Sequence[int]]

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """Read an authority's folder."""
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            about = parse_json((folder / _ABOUT).read_bytes())
            certificate = x509.load_pem_x509_certificate((folder / _CERTIFICATE).read_bytes())
            key = load_pem_private_key((folder / _KEY).read_bytes(), None)
            issued = {str(name): [int(one, 16) for one in serials] for name, serials in about["issued"].items()}
            return cls(folder, str(about["engine"]), certificate, key, issued)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"{folder} is not an authority's folder ({error}): name the one that `fedunseen certs --parties ... "
                "--authority FOLDER` has made"
            ) from None

    def check(self, names: Sequence[str]) -> None:
        """Refuse names of parties for which this authority has signed nothing."""
        if stray := [name for name in names if name not in self.issued]:
            raise DataError(f"{self.folder} has signed nothing for {stray[0]!r}: it knows {', '.join(self.issued)}")

    def signed(self, name: str, certificate: x509.Certificate) -> Authority:
        """Write down that a party has been given a certificate; return the authority that knows it."""
        issued = {**self.issued, name: [*self.issued[name], certificate.serial_number]}
        _write_about(self.folder, self.engine, issued)
        return replace(self, issued=issued)

    def revoke(self, names: Sequence[str]) -> bytes:
        """Return the list of revoked certificates with all that these parties have been given so far added to it."""
        from cryptography import x509
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import Encoding

        self.check(names)
        serials = set(revoked(self.folder, self.certificate)) | {one for name in names for one in self.issued[name]}
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.certificate.subject).last_update(now)
        builder = builder.next_update(self.certificate.not_valid_after_utc)
        for serial in sorted(serials):
            one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            builder = builder.add_revoked_certificate(one)
        content = builder.sign(self.key, SHA256()).public_bytes(Encoding.PEM)
        with replacing(self.folder / REVOKED) as beside:
            beside.write_bytes(content)
        return content


def revoked(kit: Path, authority: x509.Certificate) -> frozenset[int]:
    """Return the serial numbers of the certificates that a kit's list says are revoked; none if it has no list."""
    from cryptography import x509

    path = kit / REVOKED
    try:
        found = x509.load_pem_x509_crl(path.read_bytes())
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path}: no list of revoked certificates ({error}); copy it again") from None
    public: Any = authority.public_key()
    if found.issuer != authority.subject or not found.is_signature_valid(public):
        raise RefusedError(f"{path} is not signed by this federation's authority; copy the one that it has made")
    return frozenset(one.serial_number for one in found)
