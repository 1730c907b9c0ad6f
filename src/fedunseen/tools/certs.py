"""What ``fedunseen certs`` does: make a federation's credentials, give a party new ones, shut a party out.

There is a folder for the coordinator and one for each party: certificates and keys for connections, which
:mod:`fedunseen.engines.carriers.websocket.kit` reads, and those of masked sums (:mod:`fedunseen.secagg.enrolment`).

The authority's key is not kept unless it is asked for. It gives a party another key, or shuts one out. Anyone who has
it can make himself any party, so it belongs with someone who neither runs the coordinator nor wants to read updates.
"""

import contextlib
import datetime
import ipaddress
import os
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
from fedunseen.engines.carriers.websocket.kit import REVOKED, revoked, serial_of
from fedunseen.secagg import enrolment

_ABOUT, _CERTIFICATE, _KEY = "authority.json", "authority.crt", "authority.key"
_PEM, _PLAIN = form.Encoding.PEM, form.NoEncryption()


def make(out: Path, host: str, parties: Sequence[str], days: int, authority: Path | None = None) -> None:
    """Write ``out/coordinator/`` and ``out/NAME/`` for each party, and a folder of the authority if it is kept."""
    free_folder(out)
    top = ec.generate_private_key(ec.SECP384R1())
    root, certificate, key = _certificates(top, host, days)
    coordinator = _folder(out / "coordinator")  # now, because host or days may be refused
    _public(coordinator / "ca.crt", root)
    _public(coordinator / "server.crt", certificate)
    _secret(coordinator / "server.key", key.private_bytes(_PEM, form.PrivateFormat.PKCS8, _PLAIN))
    write_json(coordinator / "parties.json", {"parties": list(parties)})
    issued = {name: [_party(out, name, root, top)] for name in parties}
    enrolment.enrol(out, parties, authority)
    if authority is not None:
        _secret(_folder(authority) / _KEY, top.private_bytes(_PEM, form.PrivateFormat.PKCS8, _PLAIN))
        _public(authority / _CERTIFICATE, root)
        Authority(authority, root, top, issued).write()


def change(authority: Path, out: Path, names: Sequence[str], renew: bool) -> None:
    """Give parties new keys, or shut them out; either way their certificates so far are revoked.

    ``out/coordinator/`` gets the lists that the coordinator and every party need, ``out/NAME/`` a party's new keys.
    """
    before = now = Authority.load(authority)
    before.check(names)
    enrolment.change(authority, out, names if renew else (), () if renew else names)
    for name in names if renew else ():
        now = now.renew(name, out)
    (out / "coordinator" / REVOKED).write_bytes(before.revoke(names))


def _party(out: Path, name: str, root: x509.Certificate, top: ec.EllipticCurvePrivateKey) -> int:
    """Write a party's folder, and what the coordinator needs of it; return the serial number of its certificate."""
    folder, coordinator = _folder(out / name), out / "coordinator"
    own = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(
        subject, own.public_key(), root.subject, top, root.not_valid_before_utc, root.not_valid_after_utc
    )
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False)
    certificate = builder.sign(top, SHA256())
    public = own.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    _public(folder / "ca.crt", root)
    for path in (folder / "node.crt", coordinator / f"{name}.crt"):
        _public(path, certificate)
    _secret(folder / "node.key", own.private_bytes(_PEM, form.PrivateFormat.OpenSSH, _PLAIN))
    write_json(folder / "party.json", {"name": name})
    (coordinator / f"{name}.pub").write_bytes(public + f" {name}\n".encode())
    return certificate.serial_number


@dataclass(frozen=True)
class Authority:
    """An authority that someone has kept; ``issued``: party -> serial numbers of the certificates that it was given."""

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
            issued = {str(name): [int(one, 16) for one in serials] for name, serials in about["issued"].items()}
            return cls(folder, certificate, key, issued)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"{folder} is not an authority's folder ({error}): name the one that `fedunseen certs --parties ... "
                "--authority FOLDER` has made"
            ) from None

    def write(self) -> None:
        """Write down what was signed for whom."""
        serials = {name: [format(serial, "x") for serial in given] for name, given in self.issued.items()}
        write_json(self.folder / _ABOUT, {"issued": serials})

    def check(self, names: Sequence[str]) -> None:
        """Refuse names of parties for which this authority has signed nothing."""
        if stray := [name for name in names if name not in self.issued]:
            raise DataError(f"{self.folder} has signed nothing for {stray[0]!r}: it knows {', '.join(self.issued)}")

    def renew(self, name: str, out: Path) -> "Authority":
        """Write a party's folder with a new key, and ``out/coordinator/NAME.pub``; return the authority that knows."""
        serial = _party(out, name, self.certificate, self.key)
        now = replace(self, issued={**self.issued, name: [*self.issued[name], serial]})
        now.write()
        return now

    def revoke(self, names: Sequence[str]) -> bytes:
        """Return the list of revoked certificates with all that these parties have been given so far added to it."""
        self.check(names)
        serials = set(revoked(self.folder, self.certificate)) | {one for name in names for one in self.issued[name]}
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.certificate.subject).last_update(now)
        builder = builder.next_update(self.certificate.not_valid_after_utc)
        for serial in sorted(serials):
            one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            builder = builder.add_revoked_certificate(one)
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
        raise ArgumentError(f"--days {days}: certificates have to end before the year 10000: give fewer") from None
    names = [_general(name) for name in dict.fromkeys([host, "localhost", "127.0.0.1"])]
    own = _builder(subject, key.public_key(), issuer, top, start, end)
    own = own.add_extension(x509.SubjectAlternativeName(names), False)
    own = own.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    root = _builder(issuer, top.public_key(), issuer, top, start, end, authority=True)
    return root.sign(top, SHA256()), own.sign(top, SHA256()), key


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
    usage = x509.KeyUsage(not authority, False, False, False, False, authority, authority, False, False)
    builder = builder.add_extension(x509.BasicConstraints(authority, 0 if authority else None), True)
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
        raise FedUnseenError(f"host {host!r} is neither an IP address nor a name in ASCII: fix it") from error


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
