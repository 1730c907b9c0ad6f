"""The folders of certificates and keys of a deployment on Flower: one for the coordinator, one for each party.

A party trusts the coordinator because its certificate is signed by ``ca.crt``; the coordinator trusts a party because
it signs with the key whose public half lies in the coordinator's folder under the party's name. The
authority's key is thrown away, unless it is to be kept: no one can make another certificate then. Under masks parties
know each other by ``federation.json`` (:mod:`fedunseen.secagg.enrolment`), on either carrier.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedunseen.core.errors import FedUnseenError, RefusedError
from fedunseen.core.files import free_folder, parse_json
from fedunseen.engines.remote.authority import REVOKED, Authority, keep, revoked

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
MEND = "make a new kit with `fedunseen certs`"


def make(out: Path, host: str, parties: Sequence[str], days: int, authority: Path | None = None) -> None:
    """Write ``out/coordinator/`` and ``out/NAME/`` for each party."""
    for name in parties:
        if not NAME.fullmatch(name) or name == "coordinator":
            raise FedUnseenError(
                f"party name {name!r}: take letters, digits, '_', '.' and '-' (64 at most), and not 'coordinator'"
            )
    if len({name.lower() for name in parties}) < len(parties):
        raise FedUnseenError(f"two parties have one name: {', '.join(parties)}; give each its own")
    if days < 1:
        raise FedUnseenError(f"certificates for {days} days: give at least 1")
    free_folder(out)
    coordinator = _folder(out / "coordinator")
    top = ec.generate_private_key(ec.SECP384R1())
    root, certificate, key = _certificates(top, host, days)
    _write(coordinator / "ca.crt", root.public_bytes(Encoding.PEM))
    _write(coordinator / "server.crt", certificate.public_bytes(Encoding.PEM))
    _write(coordinator / "server.key", _private(key, PrivateFormat.PKCS8), secret=True)
    _write(coordinator / "parties.json", _json({"engine": "flower", "parties": list(parties)}))
    issued = {name: _party(out, name, root, top) for name in parties}
    if authority is not None:
        keep(authority, "flower", root, top, issued)


def renew(authority: Authority, name: str, out: Path) -> x509.Certificate:
    """Write a party's folder with a new key, and ``out/coordinator/NAME.pub``; return its certificate."""
    (out / "coordinator").mkdir(parents=True, exist_ok=True)
    return _party(out, name, authority.certificate, authority.key)


def _party(out: Path, name: str, root: x509.Certificate, top: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    folder = _folder(out / name)
    own = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _begin(subject, own.public_key(), root.subject, top, root.not_valid_before_utc, root.not_valid_after_utc)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False)
    certificate = builder.sign(top, hashes.SHA256())
    public = own.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(folder / "ca.crt", root.public_bytes(Encoding.PEM))
    _write(folder / "node.crt", certificate.public_bytes(Encoding.PEM))
    _write(out / "coordinator" / f"{name}.crt", certificate.public_bytes(Encoding.PEM))
    _write(folder / "node.key", _private(own, PrivateFormat.OpenSSH), secret=True)
    _write(folder / "party.json", _json({"engine": "flower", "name": name}))
    _write(out / "coordinator" / f"{name}.pub", public + f" {name}\n".encode())
    return certificate


def registered(kit: Path, parties: Sequence[str]) -> dict[str, ec.EllipticCurvePublicKey]:
    """Read the public keys of parties from a coordinator's folder: name -> key. Keys that are revoked are left out."""
    _check_engine(kit / "parties.json")
    gone = _revoked(kit)
    keys: dict[str, ec.EllipticCurvePublicKey] = {}
    for name in parties:
        path = kit / f"{name}.pub"
        try:
            key = load_ssh_public_key(path.read_bytes())
        except (OSError, ValueError) as error:
            raise RefusedError(f"{path}: no public key of party {name!r} ({error}); {MEND}") from error
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise RefusedError(f"{path}: not an elliptic curve key; make one with `ssh-keygen -t ecdsa -b 384`")
        for other, known in keys.items():
            if known == key:
                raise RefusedError(f"{path}: parties {other!r} and {name!r} have the same key; give each its own")
        keys[name] = key
    return {name: key for name, key in keys.items() if _serial(key) not in gone}


def expiry(kit: Path, keys: Mapping[str, ec.EllipticCurvePublicKey]) -> dict[str, datetime.datetime]:
    """Read until when parties' certificates in a coordinator's folder are valid; a key without one has no end."""
    ends = {}
    for name, key in keys.items():
        path = kit / f"{name}.crt"
        if path.exists():
            certificate = _certificate(path)
            if certificate.public_key() != key:
                raise RefusedError(f"{path}: not the certificate of {kit / f'{name}.pub'}: copy both from one kit")
            ends[name] = certificate.not_valid_after_utc
    return ends


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path}: no certificate ({error}); {MEND}") from error


def _check_today(path: Path, certificate: x509.Certificate) -> None:
    now = datetime.datetime.now(datetime.UTC)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= now <= last:
        raise RefusedError(f"{path}: valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}, not today; {MEND}")


def _revoked(kit: Path) -> frozenset[int]:
    if not (kit / REVOKED).exists():
        return frozenset()
    return revoked(kit, _certificate(kit / "ca.crt"))


def _serial(public: ec.EllipticCurvePublicKey) -> int:
    """Return the serial number of a key's certificate: a digest, since the coordinator has the keys alone."""
    text = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return int.from_bytes(hashlib.sha256(text).digest()[:19], "big")


def server_files(kit: Path) -> tuple[Path, Path]:
    """Return a coordinator's certificate and key."""
    path, key = kit / "server.crt", kit / "server.key"
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        key.read_bytes()
    except (OSError, ValueError) as error:
        raise RefusedError(f"{kit}: no certificate and key of a coordinator ({error}); {MEND}") from error
    _check_today(path, certificate)
    return path, key


def party_key(kit: Path, name: str) -> ec.EllipticCurvePrivateKey:
    """Read a party's private key from its folder."""
    about = _check_engine(kit / "party.json")
    if about.get("name", name) != name:
        raise RefusedError(f"{kit} is the folder of party {about['name']!r}, not of {name!r}: take the right one")
    if (kit / "node.crt").exists():
        _check_today(kit / "node.crt", _certificate(kit / "node.crt"))
    path = kit / "node.key"
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path}: no private key of party {name!r} ({error}); {MEND}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise RefusedError(f"{path}: not an elliptic curve key; make one with `ssh-keygen -t ecdsa -b 384`")
    return key


def _check_engine(path: Path) -> dict[str, object]:
    try:
        about = parse_json(path.read_text())
        engine = about.get("engine")
    except FileNotFoundError:
        return {}  # keys and certificates of one's own
    except (OSError, ValueError, AttributeError) as error:
        raise RefusedError(f"{path}: cannot be read ({error}); {MEND}") from error
    if engine != "flower":
        raise RefusedError(f"{path}: made for engine {engine!r}, not for 'flower'; {MEND}")
    return dict(about)


def _certificates(
    top: ec.EllipticCurvePrivateKey, host: str, days: int
) -> tuple[x509.Certificate, x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Make an authority's certificate, and the coordinator's, signed by it."""
    key = ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedUnseen federation")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedUnseen coordinator")])
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)  # clocks differ
    end = start + datetime.timedelta(days=days, hours=1)
    names = [_general(name) for name in dict.fromkeys([host, "localhost", "127.0.0.1"])]
    own = _begin(subject, key.public_key(), issuer, top, start, end)
    own = own.add_extension(x509.SubjectAlternativeName(names), False)
    own = own.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    root = _begin(issuer, top.public_key(), issuer, top, start, end, authority=True)
    return root.sign(top, hashes.SHA256()), own.sign(top, hashes.SHA256()), key


def _begin(
    name: x509.Name,
    public: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    top: ec.EllipticCurvePrivateKey,
    start: datetime.datetime,
    end: datetime.datetime,
    authority: bool = False,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(issuer, name, public, _serial(public), start, end)
    usage = x509.KeyUsage(not authority, False, False, False, False, authority, authority, False, False)
    builder = builder.add_extension(x509.BasicConstraints(authority, 0 if authority else None), True)
    builder = builder.add_extension(usage, True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
    above = x509.AuthorityKeyIdentifier.from_issuer_public_key(top.public_key())
    return builder.add_extension(above, False)


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise FedUnseenError(f"host {host!r} is neither an IP address nor a name in ASCII: fix it") from error


def _private(key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def _json(content: dict[str, object]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    path.chmod(0o700)
    return path


def _write(path: Path, content: bytes, secret: bool = False) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb") as out:
        out.write(content)
