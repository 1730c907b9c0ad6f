"""What ``fedunseen certs`` does: make a federation's credentials, give a party new ones, shut a
party out.

There is a folder for the coordinator and one for each party: certificates and keys for connections,
which :mod:`fedunseen.deploy.websocket.kit` reads, and those of masked sums
(:mod:`fedunseen.deploy.secagg.enrolment`).

The authority's key is not kept unless it is asked for. It extends certificates, gives a party
another key, adds one or shuts one out. A party can make its own keys, of which the authority gets a
request alone. Anyone who has it can make himself any party, so it belongs with someone who neither
runs the coordinator nor wants to read updates.
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
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedunseen.core.errors import ArgumentError, DataError, FedUnseenError
from fedunseen.core.files import free_folder, parse_json, replacing, write_json
from fedunseen.core.party_names import FEDERATION
from fedunseen.deploy.secagg import enrolment
from fedunseen.deploy.websocket.kit import REVOKED, revoked, serial_of

_ABOUT = "authority.json"
_CERTIFICATE = "authority.crt"
_KEY = "authority.key"
_SIGNED = "signed"  # folder of an authority: the certificates that are valid now
COORDINATOR = "coordinator"
"""The name of the coordinator's certificate among those of parties."""
_ROOT = 3650  # days that an authority is good for, so that it can extend certificates
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
    if COORDINATOR in parties:
        raise ArgumentError(
            f"a party cannot be called {COORDINATOR!r}, the name of another folder: choose another"
        )
    free_folder(out)
    top = ec.generate_private_key(ec.SECP384R1())
    root, certificate, key = _certificates(top, host, days)
    coordinator = _folder(out / "coordinator")  # now, because host or days may be refused
    _public(coordinator / "ca.crt", root)
    _public(coordinator / "server.crt", certificate)
    _secret(coordinator / "server.key", key.private_bytes(_PEM, form.PrivateFormat.PKCS8, _PLAIN))
    write_json(coordinator / "parties.json", {"parties": list(parties)})
    private = {name: ec.generate_private_key(ec.SECP384R1()) for name in parties}
    span = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    signed = {COORDINATOR: certificate}
    for name, party_key in private.items():
        signed[name] = _certificate(name, party_key.public_key(), root, top, span)
        _party(out, name, signed[name], root)
        _own_key(out / name, name, party_key)
    issued = {name: [serial_of(party_key.public_key())] for name, party_key in private.items()}
    enrolment.enrol(out, parties, authority, classes)
    if authority is not None:
        _secret(
            _folder(authority) / _KEY, top.private_bytes(_PEM, form.PrivateFormat.PKCS8, _PLAIN)
        )
        _public(authority / _CERTIFICATE, root)
        kept = Authority(authority, root, top, issued)
        kept.write()
        for name, kit_certificate in signed.items():
            kept.keep(name, kit_certificate)


def change(
    authority: Path,
    out: Path,
    names: Sequence[str],
    renew: bool,
    classes: Classes | None = None,
    days: int = 365,
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
        key = ec.generate_private_key(ec.SECP384R1())
        now = now.issue(name, key.public_key(), out, days)
        _own_key(out / name, name, key)
    (out / COORDINATOR / REVOKED).write_bytes(before.revoke(names))


def extend(authority: Path, out: Path, names: Sequence[str], days: int) -> dict[str, str]:
    """Give certificates a later end, and leave all keys as they are: no secret is written, and no
    party's part in masked sums changes.

    ``out/NAME/`` gets what a party copies into its folder, ``out/coordinator/`` what the
    coordinator does.

    Args:
        authority: the folder of the authority.
        out: a new folder.
        names: parties, and :data:`COORDINATOR`; none: all that were not shut out.
        days: how long the certificates are good for, from now.

    Returns:
        Name -> the new end of its certificate, in ISO 8601.

    Raises:
        DataError: the authority is unknown, or has kept no certificate of a name.
    """
    now = Authority.load(authority)
    gone = now.gone
    known = [COORDINATOR, *(n for n, serials in now.issued.items() if serials[-1] not in gone)]
    names = list(names) or known
    if stray := [name for name in names if name not in known]:
        raise DataError(f"{stray[0]!r} is not in {authority}, or was shut out: it knows {known}")
    certificates = {name: now.kept(name) for name in names}
    now = now.lasting(days)
    ends = {}
    for name, old in certificates.items():
        certificate = now.prolonged(old, days)
        if name == COORDINATOR:
            _public(_folder(out / COORDINATOR) / "server.crt", certificate)
        else:
            _party(out, name, certificate, now.certificate)
        now.keep(name, certificate)
        ends[name] = certificate.not_valid_after_utc.isoformat()
    _public(_folder(out / COORDINATOR) / "ca.crt", now.certificate)
    return ends


def request(name: str, folder: Path) -> tuple[Path, str]:
    """Make a party's own keys in its new folder, and a request that an authority can sign.

    The request has public keys alone, signed by the private ones. Returns its path, and the digest
    that the party's people read to the authority's, since whoever carries it could exchange it.
    """
    free_folder(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    asked = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, SHA256())
    tree = enrolment.own_keys(_folder(folder), name, asked.public_bytes(_PEM).decode())
    _own_key(folder, name, key)
    path = folder / f"{name}.request"
    write_json(path, tree)
    return path, enrolment.fingerprint(tree)


def admit(
    authority: Path,
    out: Path,
    tree: Mapping[str, Any],
    days: int,
    new: bool,
    classes: Classes | None = None,
) -> None:
    """Sign a party's request: its keys replace those that it had, which are revoked, or, if it is
    ``new``, it joins the list of parties.

    ``out/NAME/`` gets what the party copies beside its keys: certificates and lists, and no secret.
    """
    name, public = enrolment.read_request(tree)
    try:
        asked = x509.load_pem_x509_csr(tree["tls"].encode())
        key: Any = asked.public_key()
    except (ValueError, AttributeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise DataError(f"the request of {name!r} is damaged ({error}): ask for it again") from None
    if not asked.is_signature_valid or not isinstance(key, ec.EllipticCurvePublicKey):
        raise DataError(f"the request of {name!r} is not signed by its own key: ask for it again")
    now = Authority.load(authority)
    now.check_new(name) if new else now.check([name])
    now.check_valid()
    enrolment.change(authority, out, (), (), classes, {name: public})
    # first, so that a command that was killed leaves no old key valid; and not the key itself, so
    # that it may be said again
    outdated = b"" if new else now.revoke([name], kept=serial_of(key))
    after = now.issue(name, key, out, days)
    write_json(out / COORDINATOR / "parties.json", {"parties": after.names})
    _write_list(out, name)
    if not new:
        (out / COORDINATOR / REVOKED).write_bytes(outdated)


def add(authority: Path, out: Path, name: str, days: int, classes: Classes | None = None) -> None:
    """Add a party to the list, with keys that are made here."""
    now = Authority.load(authority)
    now.check_new(name)
    now.check_valid()
    enrolment.change(authority, out, [name], (), classes)
    key = ec.generate_private_key(ec.SECP384R1())
    after = now.issue(name, key.public_key(), out, days)
    _own_key(out / name, name, key)
    write_json(out / COORDINATOR / "parties.json", {"parties": after.names})


def _write_list(out: Path, name: str) -> None:
    """Give a party the list of parties, where its keys were made elsewhere."""
    (out / name / FEDERATION).write_bytes((out / COORDINATOR / FEDERATION).read_bytes())


def _party(out: Path, name: str, certificate: x509.Certificate, root: x509.Certificate) -> None:
    """Write what is public of a party's folder, and what the coordinator needs of it."""
    folder = _folder(out / name)
    coordinator = _folder(out / COORDINATOR)
    public: Any = certificate.public_key()
    text = public.public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    _public(folder / "ca.crt", root)
    for path in (folder / "node.crt", coordinator / f"{name}.crt"):
        _public(path, certificate)
    (coordinator / f"{name}.pub").write_bytes(text + f" {name}\n".encode())


def _own_key(folder: Path, name: str, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a party's private key, and its name."""
    _secret(folder / "node.key", key.private_bytes(_PEM, form.PrivateFormat.OpenSSH, _PLAIN))
    write_json(folder / "party.json", {"name": name})


def _certificate(
    name: str,
    public: ec.EllipticCurvePublicKey,
    root: x509.Certificate,
    top: ec.EllipticCurvePrivateKey,
    span: tuple[datetime.datetime, datetime.datetime],
) -> x509.Certificate:
    """Return a party's certificate, valid from the first of ``span`` to the last."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, public, root.subject, top, *span)
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    return builder.add_extension(usage, False).sign(top, SHA256())


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

    @property
    def gone(self) -> set[int]:
        """The serial numbers of certificates that are revoked, also where the folder's list of
        these was lost, or is from an older copy: former ones of a party, and all of parties that
        the list of parties has no more.
        """
        listed = enrolment.Enrolment.load(self.folder).parties
        former = {
            serial
            for name, serials in self.issued.items()
            for serial in serials
            if name not in listed or serial != serials[-1]
        }
        return former | set(revoked(self.folder, self.certificate))

    def check_valid(self) -> None:
        """Refuse to sign for parties once the authority's own certificate has ended."""
        if (end := self.certificate.not_valid_after_utc) < datetime.datetime.now(datetime.UTC):
            raise DataError(
                f"{self.folder / _CERTIFICATE} ended at {end.isoformat()}: extend it with "
                "`fedunseen certs renew`, and copy the new ca.crt everywhere"
            )

    @property
    def names(self) -> list[str]:
        """The names of all parties that were ever signed for, in the order of the clients."""
        return list(self.issued)

    def check_new(self, name: str) -> None:
        """Refuse to add a party that is there, in capitals or not: names are folders, too."""
        if name.casefold() in {known.casefold() for known in self.issued}:
            raise DataError(
                f"{self.folder} has signed for {name!r} before: choose another name, or give that "
                "party new keys with `fedunseen certs renew --new-keys` or `certs sign`"
            )

    def kept(self, name: str) -> x509.Certificate:
        """Return the certificate that was signed for a name last."""
        path = self.folder / _SIGNED / f"{name}.crt"
        try:
            return x509.load_pem_x509_certificate(path.read_bytes())
        except (OSError, ValueError):
            raise DataError(
                f"{path} is missing, since an earlier version has kept no certificates: give the "
                "parties new keys (--new-keys), or copy the coordinator's NAME.crt there, and its "
                "server.crt as coordinator.crt"
            ) from None

    def keep(self, name: str, certificate: x509.Certificate) -> None:
        """Keep a certificate, which can be extended."""
        _public(_folder(self.folder / _SIGNED) / f"{name}.crt", certificate)

    def lasting(self, days: int) -> "Authority":
        """Return the authority with a certificate that outlasts those which it signs, for the same
        key: what it has signed stays signed.
        """
        start = _start()
        if self.certificate.not_valid_after_utc > start + datetime.timedelta(days=days + 31):
            return self
        root = _root(self.certificate.subject, self.key, start, days)
        _public(self.folder / _CERTIFICATE, root)
        return replace(self, certificate=root)

    def _span(self, days: int) -> tuple[datetime.datetime, datetime.datetime]:
        """Return from when until when a certificate is valid, within the authority's own."""
        start = max(_start(), self.certificate.not_valid_before_utc)
        end = start + datetime.timedelta(days=days, hours=1)
        return start, min(end, self.certificate.not_valid_after_utc)

    def prolonged(self, old: x509.Certificate, days: int) -> x509.Certificate:
        """Return a certificate of the same key, name and uses that ends later."""
        public: Any = old.public_key()
        builder = x509.CertificateBuilder(
            self.certificate.subject, old.subject, public, serial_of(public), *self._span(days)
        )
        for extension in old.extensions:
            builder = builder.add_extension(extension.value, extension.critical)
        return builder.sign(self.key, SHA256())

    def issue(
        self, name: str, public: ec.EllipticCurvePublicKey, out: Path, days: int
    ) -> "Authority":
        """Write a party's certificate of another key, and ``out/coordinator/NAME.pub``; return the
        changed authority.

        The new serial number is stored first: a key that left a killed command can be revoked.
        """
        serials = [*self.issued.get(name, ()), serial_of(public)]
        now = replace(self, issued={**self.issued, name: serials})
        now.write()
        certificate = _certificate(name, public, self.certificate, self.key, self._span(days))
        _party(out, name, certificate, self.certificate)
        now.keep(name, certificate)
        return now

    def revoke(self, names: Sequence[str], kept: int | None = None) -> bytes:
        """Return the list of revoked certificates with all that these parties have been given so
        far added to it, but the serial number ``kept``.
        """
        self.check(names)
        serials = self.gone | {
            serial for name in names for serial in self.issued[name] if serial != kept
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
    start = _start()
    try:
        end = start + datetime.timedelta(days=days, hours=1)
        root = _root(issuer, top, start, days)
    except OverflowError:
        raise ArgumentError(
            f"--days {days}: certificates have to end before the year 10000: give fewer"
        ) from None
    names = [_general(name) for name in dict.fromkeys([host, "localhost", "127.0.0.1"])]
    builder = _builder(subject, key.public_key(), issuer, top, start, end)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    return root, builder.sign(top, SHA256()), key


def _start() -> datetime.datetime:
    """Return when a certificate that is signed now begins to be valid: clocks differ."""
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)


def _root(
    issuer: x509.Name, top: ec.EllipticCurvePrivateKey, start: datetime.datetime, days: int
) -> x509.Certificate:
    """Return an authority's own certificate, which outlasts those that it signs."""
    end = start + datetime.timedelta(days=days + _ROOT)
    return _builder(issuer, top.public_key(), issuer, top, start, end, authority=True).sign(
        top, SHA256()
    )


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
