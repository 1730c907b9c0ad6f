"""What ``fedunseen certs`` does: make a federation's credentials, give a party new ones, shut a
party out.

There is a folder for the coordinator and one for each party: certificates and keys for connections,
which :mod:`fedunseen.deploy.websocket.kit` reads, and those of masked sums
(:mod:`fedunseen.deploy.secagg.enrolment`).

The authority's key is not kept unless it is asked for. It gives a party another key, or shuts one
out. Anyone who has it can make himself any party, so it belongs with someone who neither runs the
coordinator nor wants to read updates.
"""

import contextlib
import csv
import datetime
import ipaddress
import os
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedunseen.core.errors import ArgumentError, DataError, FedUnseenError
from fedunseen.core.files import free_folder, parse_json, replacing, write_json
from fedunseen.deploy.secagg import enrolment
from fedunseen.deploy.websocket.kit import REVOKED, revoked, serial_of

_ABOUT = "authority.json"
_CERTIFICATE = "authority.crt"
_KEY = "authority.key"
_PEM = form.Encoding.PEM
_PLAIN = form.NoEncryption()


Classes = Mapping[str, Sequence[str]]
"""Party -> names of the classes that it may send."""


def read_classes(options: Sequence[str]) -> dict[str, list[str]]:
    """Read who may send which class from ``PARTY=CLASS,CLASS``, the classes being a line of CSV.

    Example:
        >>> read_classes(['north=wolf,"fox, red"', "south=seal"])
        {'north': ['wolf', 'fox, red'], 'south': ['seal']}

    Raises:
        ArgumentError: an option has no party or a quote is not closed.
    """
    classes: dict[str, list[str]] = {}
    for option in options:
        party, sign, line = option.partition("=")
        try:
            rows = list(csv.reader([line], skipinitialspace=True, strict=True))
        except csv.Error:
            rows = []
        if not (sign and len(rows) == 1):
            raise ArgumentError(
                f"--classes {option}: write PARTY=CLASS,CLASS, and a name that has a comma in "
                'double quotes: north=wolf,"fox, red"'
            )
        names = [unicodedata.normalize("NFC", name.strip()) for name in rows[0]]
        classes.setdefault(party.strip(), []).extend(names)
    return classes


def make(
    out: Path,
    host: str,
    parties: Sequence[str],
    days: int,
    authority: Path | None = None,
    classes: Classes | None = None,
) -> None:
    """Write ``out/coordinator/`` and ``out/NAME/`` for each party, and a folder of the authority if
    it is kept.

    ``classes``: who may send which class; None: any party may send any.
    """
    enrolment.checked_classes(classes, parties)  # before anything is written
    free_folder(out)
    top = ec.generate_private_key(ec.SECP384R1())
    root, certificate, key = _certificates(top, host, days)
    coordinator = _folder(out / "coordinator")  # now, because host or days may be refused
    _public(coordinator / "ca.crt", root)
    _public(coordinator / "server.crt", certificate)
    _secret(coordinator / "server.key", key.private_bytes(_PEM, form.PrivateFormat.PKCS8, _PLAIN))
    write_json(coordinator / "parties.json", {"parties": list(parties)})
    private = {name: ec.generate_private_key(ec.SECP384R1()) for name in parties}
    for name, party_key in private.items():
        _party(out, name, party_key, root, top)
    issued = {name: [serial_of(party_key.public_key())] for name, party_key in private.items()}
    enrolment.enrol(out, parties, authority, classes)
    if authority is not None:
        _secret(
            _folder(authority) / _KEY, top.private_bytes(_PEM, form.PrivateFormat.PKCS8, _PLAIN)
        )
        _public(authority / _CERTIFICATE, root)
        Authority(authority, root, top, issued).write()


def change(
    authority: Path,
    out: Path,
    names: Sequence[str],
    renew: bool,
    classes: Classes | None = None,
) -> None:
    """Give parties new keys, or shut them out; either way their certificates so far are revoked.

    ``out/coordinator/`` gets the lists that the coordinator and every party need, ``out/NAME/`` a
    party's new keys. ``classes``: who may send which class from now on; None: as before.
    """
    before = now = Authority.load(authority)
    before.check(names)
    if renew:
        now.check_valid()
    enrolment.change(authority, out, names if renew else (), () if renew else names, classes)
    for name in names if renew else ():
        now = now.renew(name, out)
    (out / "coordinator" / REVOKED).write_bytes(before.revoke(names))


def _party(
    out: Path,
    name: str,
    key: ec.EllipticCurvePrivateKey,
    root: x509.Certificate,
    top: ec.EllipticCurvePrivateKey,
) -> None:
    """Write a party's folder, and what the coordinator needs of it."""
    folder = _folder(out / name)
    coordinator = out / "coordinator"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(
        subject,
        key.public_key(),
        root.subject,
        top,
        root.not_valid_before_utc,
        root.not_valid_after_utc,
    )
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False)
    certificate = builder.sign(top, SHA256())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    _public(folder / "ca.crt", root)
    for path in (folder / "node.crt", coordinator / f"{name}.crt"):
        _public(path, certificate)
    _secret(folder / "node.key", key.private_bytes(_PEM, form.PrivateFormat.OpenSSH, _PLAIN))
    write_json(folder / "party.json", {"name": name})
    (coordinator / f"{name}.pub").write_bytes(public + f" {name}\n".encode())


@dataclass(frozen=True)
class Authority:
    """An authority that someone has kept; ``issued``: party -> serial numbers of the certificates
    that it was given.
    """

    folder: Path
    certificate: x509.Certificate
    key: Any
    issued: Mapping[str, Sequence[int]]

    @classmethod
    def load(cls, folder: Path) -> "Authority":
        """Read an authority's folder."""
        try:
            about = parse_json((folder / _ABOUT).read_bytes())
            certificate = x509.load_pem_x509_certificate((folder / _CERTIFICATE).read_bytes())
            key = form.load_pem_private_key((folder / _KEY).read_bytes(), None)
            if key.public_key() != certificate.public_key():
                raise ValueError(f"{_KEY} is not that of {_CERTIFICATE}")
            issued = {
                str(name): [int(serial, 16) for serial in serials]
                for name, serials in about["issued"].items()
            }
            return cls(folder, certificate, key, issued)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"{folder} is not an authority's folder ({error}): name the one that `fedunseen "
                "certs --parties ... --authority FOLDER` has made"
            ) from None

    def write(self) -> None:
        """Write down what was signed for whom."""
        serials = {
            name: [format(serial, "x") for serial in numbers]
            for name, numbers in self.issued.items()
        }
        write_json(self.folder / _ABOUT, {"issued": serials})

    def check(self, names: Sequence[str]) -> None:
        """Refuse names of parties for which this authority has signed nothing."""
        if stray := [name for name in names if name not in self.issued]:
            raise DataError(
                f"{self.folder} has signed nothing for {stray[0]!r}: it knows "
                f"{', '.join(self.issued)}"
            )

    def check_valid(self) -> None:
        """Refuse to sign for parties once the authority's own certificate has ended."""
        if (end := self.certificate.not_valid_after_utc) < datetime.datetime.now(datetime.UTC):
            raise DataError(
                f"{self.folder / _CERTIFICATE} ended on {end:%Y-%m-%d}: make new certificates with "
                "`fedunseen certs --parties`"
            )

    def renew(self, name: str, out: Path) -> "Authority":
        """Write a party's folder with a new key and ``out/coordinator/NAME.pub``; return the
        changed authority.

        The new serial number is stored first: a key that left a killed command can be revoked.
        """
        key = ec.generate_private_key(ec.SECP384R1())
        serials = [*self.issued[name], serial_of(key.public_key())]
        now = replace(self, issued={**self.issued, name: serials})
        now.write()
        _party(out, name, key, self.certificate, self.key)
        return now

    def revoke(self, names: Sequence[str]) -> bytes:
        """Return the list of revoked certificates with all that these parties have been given so
        far added to it.
        """
        self.check(names)
        serials = set(revoked(self.folder, self.certificate)) | {
            serial for name in names for serial in self.issued[name]
        }
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now)
        )
        builder = builder.next_update(self.certificate.not_valid_after_utc)
        for serial in sorted(serials):
            entry = (
                x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            )
            builder = builder.add_revoked_certificate(entry)
        content = builder.sign(self.key, SHA256()).public_bytes(_PEM)
        with replacing(self.folder / REVOKED) as beside:
            beside.write_bytes(content)
        return content


def _certificates(
    top: ec.EllipticCurvePrivateKey, host: str, days: int
) -> tuple[x509.Certificate, x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Make an authority's certificate, and the coordinator's, signed by it."""
    key = ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedUnseen federation")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedUnseen coordinator")])
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)  # clocks differ
    try:
        end = start + datetime.timedelta(days=days, hours=1)
    except OverflowError:
        raise ArgumentError(
            f"--days {days}: certificates have to end before the year 10000: give fewer"
        ) from None
    names = [_general(name) for name in dict.fromkeys([host, "localhost", "127.0.0.1"])]
    builder = _builder(subject, key.public_key(), issuer, top, start, end)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    root = _builder(issuer, top.public_key(), issuer, top, start, end, authority=True)
    return root.sign(top, SHA256()), builder.sign(top, SHA256()), key


def _builder(
    name: x509.Name,
    public: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    top: ec.EllipticCurvePrivateKey,
    start: datetime.datetime,
    end: datetime.datetime,
    authority: bool = False,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(issuer, name, public, serial_of(public), start, end)
    usage = x509.KeyUsage(
        not authority, False, False, False, False, authority, authority, False, False
    )
    builder = builder.add_extension(
        x509.BasicConstraints(authority, 0 if authority else None), True
    )
    builder = builder.add_extension(usage, True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
    above = x509.AuthorityKeyIdentifier.from_issuer_public_key(top.public_key())
    return builder.add_extension(above, False)


def _general(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise FedUnseenError(
            f"host {host!r} is neither an IP address nor a name in ASCII: fix it"
        ) from error


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def _public(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(_PEM))


def _secret(path: Path, content: bytes) -> None:
    """Write a new file that its owner alone may read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
