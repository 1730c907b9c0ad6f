"""The folders of certificates and keys of a deployment on Flower: one for the coordinator, one for each party.

A party trusts the coordinator because its certificate is signed by ``ca.crt``; the coordinator trusts a party because
it signs with the key whose public half lies in the coordinator's folder under the party's name. The key that signed
the certificate is thrown away: nobody can make another certificate that the parties would take for the coordinator's.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
from collections.abc import Sequence
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

__all__ = ["make", "party_key", "registered", "server_files"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
MEND = "make a new kit with `fedunseen certs`"


def make(out: Path, host: str, parties: Sequence[str], days: int) -> None:
    """Write ``out/coordinator/`` and ``out/NAME/`` for each party.

    Args:
        out: a folder that does not exist yet or is empty.
        host: the name or IP address by which parties reach the coordinator; localhost always works too.
        parties: their names.
        days: how long the coordinator's certificate is valid.

    Raises:
        FedUnseenError: if ``out`` is in use or a name cannot be a folder's.
    """
    for name in parties:
        if not NAME.fullmatch(name) or name == "coordinator":
            raise FedUnseenError(
                f"party name {name!r}: take letters, digits, '_', '.' and '-' (64 at most), and not 'coordinator'"
            )
    if len({name.lower() for name in parties}) < len(parties):
        raise FedUnseenError(f"two parties have one name: {', '.join(parties)}; give each its own")
    if days < 1:
        raise FedUnseenError(f"certificates for {days} days: give at least 1")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FedUnseenError(f"{out} is not an empty folder: choose one that does not exist yet")
    coordinator = _folder(out / "coordinator")
    authority, certificate, key = _certificates(host, days)
    _write(coordinator / "ca.crt", authority)
    _write(coordinator / "server.crt", certificate)
    _write(coordinator / "server.key", _private(key, PrivateFormat.PKCS8), secret=True)
    _write(coordinator / "parties.json", _json({"engine": "flower", "parties": list(parties)}))
    for name in parties:
        folder = _folder(out / name)
        own = ec.generate_private_key(ec.SECP384R1())
        public = own.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        _write(folder / "ca.crt", authority)
        _write(folder / "node.key", _private(own, PrivateFormat.OpenSSH), secret=True)
        _write(folder / "party.json", _json({"engine": "flower", "name": name}))
        _write(coordinator / f"{name}.pub", public + f" {name}\n".encode())


def registered(kit: Path, parties: Sequence[str]) -> dict[str, ec.EllipticCurvePublicKey]:
    """Read the public keys of parties from a coordinator's folder: name -> key.

    Raises:
        RefusedError: if a key is missing, damaged or two parties have the same.
    """
    _check_engine(kit / "parties.json")
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
    return keys


def server_files(kit: Path) -> tuple[Path, Path]:
    """Return a coordinator's certificate and key.

    Raises:
        RefusedError: if the certificate is missing, damaged or not valid today.
    """
    path, key = kit / "server.crt", kit / "server.key"
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        key.read_bytes()
    except (OSError, ValueError) as error:
        raise RefusedError(f"{kit}: no certificate and key of a coordinator ({error}); {MEND}") from error
    now = datetime.datetime.now(datetime.UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        raise RefusedError(f"{path}: valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}, not today; {MEND}")
    return path, key


def party_key(kit: Path, name: str) -> ec.EllipticCurvePrivateKey:
    """Read a party's private key from its folder.

    Raises:
        RefusedError: if it is missing, damaged or another party's.
    """
    about = _check_engine(kit / "party.json")
    if about.get("name", name) != name:
        raise RefusedError(f"{kit} is the folder of party {about['name']!r}, not of {name!r}: take the right one")
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
        about = json.loads(path.read_text())
        engine = about.get("engine")
    except FileNotFoundError:
        return {}  # keys and certificates of one's own
    except (OSError, ValueError, AttributeError) as error:
        raise RefusedError(f"{path}: cannot be read ({error}); {MEND}") from error
    if engine != "flower":
        raise RefusedError(f"{path}: made for engine {engine!r}, not for 'flower'; {MEND}")
    return dict(about)


def _certificates(host: str, days: int) -> tuple[bytes, bytes, ec.EllipticCurvePrivateKey]:
    """Make an authority, and a certificate signed by it."""
    top, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedUnseen federation")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedUnseen coordinator")])
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)  # clocks differ
    end = start + datetime.timedelta(days=days, hours=1)

    def begin(name: x509.Name, public: ec.EllipticCurvePublicKey, authority: bool) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder(issuer, name, public, x509.random_serial_number(), start, end)
        usage = x509.KeyUsage(not authority, False, False, False, False, authority, authority, False, False)
        builder = builder.add_extension(x509.BasicConstraints(authority, 0 if authority else None), True)
        builder = builder.add_extension(usage, True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
        above = x509.AuthorityKeyIdentifier.from_issuer_public_key(top.public_key())
        return builder.add_extension(above, False)

    names = [_general(name) for name in dict.fromkeys([host, "localhost", "127.0.0.1"])]
    own = begin(subject, key.public_key(), False).add_extension(x509.SubjectAlternativeName(names), False)
    own = own.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    signed = [b.sign(top, hashes.SHA256()) for b in (begin(issuer, top.public_key(), True), own)]
    return signed[0].public_bytes(Encoding.PEM), signed[1].public_bytes(Encoding.PEM), key


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise FedUnseenError(f"host {host!r} is neither an IP address nor a name in ASCII: mend it") from error


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
