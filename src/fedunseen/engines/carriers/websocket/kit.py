"""The folders of certificates and keys of a federation over WebSockets: one for the coordinator, one for each party.

A party trusts the coordinator's certificate, since ``ca.crt`` signed it; the coordinator trusts a party's key, whose
public half lies in its folder under the party's name. The authority's key is not kept unless it is asked for.
"""

import contextlib
import datetime
import hashlib
import ipaddress
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
from fedunseen.core.files import free_folder, parse_json, write_json
from fedunseen.engines.remote.authority import (
    REMEDY,
    REVOKED,
    Authority,
    check_today,
    keep,
    read_certificate,
    revoked,
    write_secret,
)


def make(out: Path, host: str, parties: Sequence[str], days: int, authority: Path | None = None) -> None:
    """Write ``out/coordinator/`` and ``out/NAME/`` for each party, and a folder of the authority if it is kept."""
    free_folder(out)
    coordinator = _folder(out / "coordinator")
    top = ec.generate_private_key(ec.SECP384R1())
    root, certificate, key = _certificates(top, host, days)
    _public(coordinator / "ca.crt", root)
    _public(coordinator / "server.crt", certificate)
    write_secret(coordinator / "server.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    write_json(coordinator / "parties.json", {"engine": "websocket", "parties": list(parties)})
    issued = {name: _party(out, name, root, top) for name in parties}
    if authority is not None:
        keep(authority, "websocket", root, top, issued)


def renew(authority: Authority, name: str, out: Path) -> x509.Certificate:
    """Write a party's folder with a new key, and ``out/coordinator/NAME.pub``; return its certificate."""
    (out / "coordinator").mkdir(parents=True, exist_ok=True)
    return _party(out, name, authority.certificate, authority.key)


def _party(out: Path, name: str, root: x509.Certificate, top: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    folder, coordinator = _folder(out / name), out / "coordinator"
    own = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(
        subject, own.public_key(), root.subject, top, root.not_valid_before_utc, root.not_valid_after_utc
    )
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False)
    certificate = builder.sign(top, hashes.SHA256())
    public = own.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _public(folder / "ca.crt", root)
    for path in (folder / "node.crt", coordinator / f"{name}.crt"):
        _public(path, certificate)
    write_secret(folder / "node.key", own.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    write_json(folder / "party.json", {"engine": "websocket", "name": name})
    (coordinator / f"{name}.pub").write_bytes(public + f" {name}\n".encode())
    return certificate


def registered(kit: Path, parties: Sequence[str]) -> dict[str, ec.EllipticCurvePublicKey]:
    """Read the public keys of parties from a coordinator's folder: name -> key. Keys that are revoked are left out."""
    _check_engine(kit / "parties.json")
    gone = revoked(kit, read_certificate(kit / "ca.crt")) if (kit / REVOKED).exists() else frozenset()
    keys: dict[str, ec.EllipticCurvePublicKey] = {}
    for name in parties:
        path = kit / f"{name}.pub"
        try:
            key = load_ssh_public_key(path.read_bytes())
        except (OSError, ValueError) as error:
            raise RefusedError(f"{path}: no public key of party {name!r} ({error}); {REMEDY}") from error
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
            certificate = read_certificate(path)
            if certificate.public_key() != key:
                raise RefusedError(f"{path}: not the certificate of {kit / f'{name}.pub'}: copy both from one kit")
            ends[name] = certificate.not_valid_after_utc
    return ends


def _serial(public: ec.EllipticCurvePublicKey) -> int:
    """Return the serial number of a key's certificate: a digest, since the coordinator has the keys alone."""
    text = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return int.from_bytes(hashlib.sha256(text).digest()[:19], "big")


def server_files(kit: Path) -> tuple[Path, Path]:
    """Return a coordinator's certificate, which has to be valid today, and its key."""
    check_today(kit / "server.crt")
    return kit / "server.crt", kit / "server.key"


def party_key(kit: Path, name: str) -> ec.EllipticCurvePrivateKey:
    """Read a party's private key from its folder."""
    about = _check_engine(kit / "party.json")
    if about.get("name", name) != name:
        raise RefusedError(f"{kit} is the folder of party {about['name']!r}, not of {name!r}: take the right one")
    if (kit / "node.crt").exists():
        check_today(kit / "node.crt")
    path = kit / "node.key"
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path}: no private key of party {name!r} ({error}); {REMEDY}") from error
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
        raise RefusedError(f"{path}: cannot be read ({error}); {REMEDY}") from error
    if engine != "websocket":
        raise RefusedError(f"{path}: made for engine {engine!r}, not for 'websocket'; {REMEDY}")
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
    own = _builder(subject, key.public_key(), issuer, top, start, end)
    own = own.add_extension(x509.SubjectAlternativeName(names), False)
    own = own.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    root = _builder(issuer, top.public_key(), issuer, top, start, end, authority=True)
    return root.sign(top, hashes.SHA256()), own.sign(top, hashes.SHA256()), key


def _builder(
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
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise FedUnseenError(f"host {host!r} is neither an IP address nor a name in ASCII: fix it") from error


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    path.chmod(0o700)
    return path


def _public(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(Encoding.PEM))
