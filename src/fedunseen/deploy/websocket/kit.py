"""Read the folders of certificates and keys that :mod:`fedunseen.deploy.certs` makes.

A party trusts the coordinator's certificate, since ``ca.crt`` signed it; the coordinator trusts a
party's key, whose public half lies in its folder under the party's name. Revoked certificates are
in an X.509 revocation list (RFC 5280) that holds for good, and no one fetches a newer one. The
coordinator notes what each list has revoked, so that an older one readmits no one.
"""

import datetime
import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec

from fedunseen.core.errors import RefusedError
from fedunseen.core.files import parse_json, write_json
from fedunseen.core.validity import Validity

_log = logging.getLogger("fedunseen.federation")

REVOKED = "revoked.pem"
"""The name of the list of revoked certificates, in a kit and in the authority's folder."""
EVER_REVOKED = "revoked-ever.json"
"""The coordinator's note of all serial numbers that a list in its kit has ever revoked."""

REMEDY = "make a new kit with `fedunseen certs`"
RENEW = "renew it with `fedunseen certs renew`, or set the clock"
SET = "set the clock that is wrong, or renew the certificates with `fedunseen certs renew`"
_UNREADABLE = (OSError, ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)
NOT_VALID = "certificate-not-valid"
"""The code of a refusal of a certificate that has ended, or has not begun."""


def revoked(kit: Path, authority: x509.Certificate) -> frozenset[int]:
    """Return the serial numbers of the certificates that a kit's list says are revoked; none if it
    has no list.
    """
    path = kit / REVOKED
    try:
        revocations = x509.load_pem_x509_crl(path.read_bytes())
    except FileNotFoundError:
        return frozenset()
    except _UNREADABLE as error:
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
    keys: dict[str, ec.EllipticCurvePublicKey] = {}
    for name in parties:
        path = kit / f"{name}.pub"
        try:
            key = form.load_ssh_public_key(path.read_bytes())
        except _UNREADABLE as error:
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
    return without_revoked(kit, keys)


def without_revoked(
    kit: Path, keys: Mapping[str, ec.EllipticCurvePublicKey]
) -> dict[str, ec.EllipticCurvePublicKey]:
    """Return the keys that no list of revoked ones in a coordinator's kit has ever named."""
    serials = _ever_revoked(kit)
    return {name: key for name, key in keys.items() if serial_of(key) not in serials}


_noted: dict[Path, frozenset[int]] = {}  # of kits, for those that cannot be written


def _ever_revoked(kit: Path) -> frozenset[int]:
    """Return the serial numbers of a kit's list and of all that were there before, and note them:
    a copy of an older list, or one of an authority that was restored, lacks some.
    """
    now = revoked(kit, _certificate(kit / "ca.crt")) if (kit / REVOKED).exists() else frozenset()
    path = kit / EVER_REVOKED
    try:
        noted = [int(serial, 16) for serial in parse_json(path.read_bytes())]
    except FileNotFoundError:
        noted = []
    except (OSError, ValueError, TypeError) as error:
        raise RefusedError(
            f"{path} is damaged ({error}), and says which keys were revoked: restore it"
        ) from None
    ever = now.union(noted, _noted.get(kit, ()))
    if lacking := len(ever - now):
        _log.warning(
            "%s is older than one that was there before, and lacks %d revoked certificates, which "
            "stay shut out: copy the newest one, and restore the newest copy of the authority",
            kit / REVOKED,
            lacking,
        )
    _noted[kit] = ever
    if ever != frozenset(noted):
        with suppress(OSError):
            write_json(path, sorted(format(serial, "x") for serial in ever))
    return ever


def validities(kit: Path, keys: Mapping[str, ec.EllipticCurvePublicKey]) -> dict[str, Validity]:
    """Read when parties' certificates in a coordinator's folder are valid; a key without one has no
    end.
    """
    spans = {}
    for name, key in keys.items():
        path = kit / f"{name}.crt"
        if path.exists():
            certificate = _certificate(path)
            if certificate.public_key() != key:
                raise RefusedError(
                    f"{path}: not the certificate of {kit / f'{name}.pub'}: copy both from one kit"
                )
            spans[name] = validity_of(certificate)
    return spans


def validity_of(certificate: x509.Certificate) -> Validity:
    """Return when a certificate is valid."""
    return Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def own_validity(kit: Path, files: Mapping[str, str]) -> dict[str, Validity]:
    """Read when the certificates in a folder are valid: holder -> file; a file that is not there is
    left out.
    """
    return {
        who: validity_of(_certificate(kit / file))
        for who, file in files.items()
        if (kit / file).exists()
    }


def serial_of(public: ec.EllipticCurvePublicKey) -> int:
    """Return the serial number of a key's certificate: a digest, since the coordinator has the keys
    alone.
    """
    text = public.public_bytes(form.Encoding.DER, form.PublicFormat.SubjectPublicKeyInfo)
    return int.from_bytes(hashlib.sha256(text).digest()[:19], "big")


def server_files(kit: Path) -> tuple[Path, Path]:
    """Return a coordinator's certificate, which has to be valid now, and its key."""
    check_now(kit / "server.crt")
    return kit / "server.crt", kit / "server.key"


def party_key(kit: Path, name: str, valid: bool = True) -> ec.EllipticCurvePrivateKey:
    """Read a party's private key from its folder; ``valid``: its certificate has to be so now."""
    if valid and (kit / "node.crt").exists():
        check_now(kit / "node.crt")
    path = kit / "node.key"
    try:
        key = form.load_ssh_private_key(path.read_bytes(), None)
    except _UNREADABLE as error:
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
    except _UNREADABLE as error:
        raise RefusedError(f"{path}: no certificate ({error}); {REMEDY}") from error


def now() -> datetime.datetime:
    """Return the time of this machine's clock."""
    return datetime.datetime.now(datetime.UTC)


def check_now(path: Path) -> None:
    """Raise RefusedError if a kit's certificate is missing, damaged or not valid now."""
    moment = now()
    if why := validity_of(_certificate(path)).fault(moment):
        raise RefusedError(
            f"{path} {why}, and this machine's clock says {moment.isoformat(timespec='seconds')}: "
            f"{RENEW}",
            NOT_VALID,
        )
