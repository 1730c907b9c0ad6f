"""Read the folders of certificates and keys that :mod:`fedunseen.deploy.certs` makes.

A party trusts the coordinator's certificate, since ``ca.crt`` signed it; the coordinator trusts a
party's key, whose public half lies in its folder under the party's name. Revoked certificates are
in an X.509 revocation list (RFC 5280) that holds for good, and no one fetches a newer one.
"""

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec

from fedunseen.core.errors import RefusedError

REVOKED = "revoked.pem"
"""The name of the list of revoked certificates, in a kit and in the authority's folder."""

REMEDY = "make a new kit with `fedunseen certs`"


def revoked(kit: Path, authority: x509.Certificate) -> frozenset[int]:
    """Return the serial numbers of the certificates that a kit's list says are revoked; none if it
    has no list.
    """
    path = kit / REVOKED
    try:
        revocations = x509.load_pem_x509_crl(path.read_bytes())
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError) as error:
        raise RefusedError(
            f"{path}: no list of revoked certificates ({error}); copy it again"
        ) from None
    public: Any = authority.public_key()
    if revocations.issuer != authority.subject or not revocations.is_signature_valid(public):
        raise RefusedError(
            f"{path} is not signed by this federation's authority; copy the one that it has made"
        )
    return frozenset(certificate.serial_number for certificate in revocations)


def registered(kit: Path, parties: Sequence[str]) -> dict[str, ec.EllipticCurvePublicKey]:
    """Read the public keys of parties from a coordinator's folder: name -> key. Keys that are
    revoked are left out.
    """
    revoked_serials = (
        revoked(kit, _certificate(kit / "ca.crt")) if (kit / REVOKED).exists() else frozenset()
    )
    keys: dict[str, ec.EllipticCurvePublicKey] = {}
    for name in parties:
        path = kit / f"{name}.pub"
        try:
            key = form.load_ssh_public_key(path.read_bytes())
        except (OSError, ValueError) as error:
            raise RefusedError(
                f"{path}: no public key of party {name!r} ({error}); {REMEDY}"
            ) from error
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise RefusedError(
                f"{path}: not an elliptic curve key; make one with `ssh-keygen -t ecdsa -b 384`"
            )
        for other_name, other_key in keys.items():
            if other_key == key:
                raise RefusedError(
                    f"{path}: parties {other_name!r} and {name!r} have the same key; give each "
                    "its own"
                )
        keys[name] = key
    return {name: key for name, key in keys.items() if serial_of(key) not in revoked_serials}


def expiry(
    kit: Path, keys: Mapping[str, ec.EllipticCurvePublicKey]
) -> dict[str, datetime.datetime]:
    """Read until when parties' certificates in a coordinator's folder are valid; a key without one
    has no end.
    """
    ends = {}
    for name, key in keys.items():
        path = kit / f"{name}.crt"
        if path.exists():
            certificate = _certificate(path)
            if certificate.public_key() != key:
                raise RefusedError(
                    f"{path}: not the certificate of {kit / f'{name}.pub'}: copy both from one kit"
                )
            ends[name] = certificate.not_valid_after_utc
    return ends


def serial_of(public: ec.EllipticCurvePublicKey) -> int:
    """Return the serial number of a key's certificate: a digest, since the coordinator has the keys
    alone.
    """
    text = public.public_bytes(form.Encoding.DER, form.PublicFormat.SubjectPublicKeyInfo)
    return int.from_bytes(hashlib.sha256(text).digest()[:19], "big")


def server_files(kit: Path) -> tuple[Path, Path]:
    """Return a coordinator's certificate, which has to be valid today, and its key."""
    _check_today(kit / "server.crt")
    return kit / "server.crt", kit / "server.key"


def party_key(kit: Path, name: str) -> ec.EllipticCurvePrivateKey:
    """Read a party's private key from its folder."""
    if (kit / "node.crt").exists():
        _check_today(kit / "node.crt")
    path = kit / "node.key"
    try:
        key = form.load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise RefusedError(
            f"{path}: no private key of party {name!r} ({error}); {REMEDY}"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise RefusedError(
            f"{path}: not an elliptic curve key; make one with `ssh-keygen -t ecdsa -b 384`"
        )
    return key


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path}: no certificate ({error}); {REMEDY}") from error


def _check_today(path: Path) -> None:
    """Raise RefusedError if a kit's certificate is missing, damaged or not valid today."""
    certificate = _certificate(path)
    now = datetime.datetime.now(datetime.UTC)
    first = certificate.not_valid_before_utc
    last = certificate.not_valid_after_utc
    if not first <= now <= last:
        raise RefusedError(
            f"{path}: valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}, not today; {REMEDY}"
        )
