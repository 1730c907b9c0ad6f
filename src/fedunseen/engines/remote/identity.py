"""Who signs what between machines: a party by the key of its kit, for others that know the federation's authority.

Under masks the coordinator passes the parties' one-time keys on, and could pass on its own in their place. So each
party signs its keys of a round, and the others believe none that is not signed by a certificate of the authority that
is in their own kit, on the name that the party has in the greeting's list. What is signed says what it is for, in which
run, round and session, and for which party, so that it is good for nothing else.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedunseen.core.errors import RefusedError
from fedunseen.engines.remote.authority import revoked

if TYPE_CHECKING:  # the library of cryptography is loaded where it is used
    from cryptography import x509

__all__ = ["Forged", "Identity", "Signer", "Trust"]

_FILES = {"nvflare": ("rootCA.pem", "client.crt", "client.key"), "flower": ("ca.crt", "node.crt", "node.key")}
_LARGEST = 16_384  # hexadecimal digits of a certificate, or of a signature
_PURPOSE = "fedunseen: keys of a masked round"
_KEYS = ("reading", "pairs", "own")


class Forged(Exception):
    """What is said to come from a party does not, or cannot be told; the message says why."""


def _files(kit: Path) -> tuple[Path, Path, Path]:
    """Return where a kit has the authority's certificate, the party's own, and its private key."""
    for top, certificate, key in _FILES.values():
        if (kit / top).is_file():
            return kit / top, kit / certificate, kit / key
    raise RefusedError(f"{kit} lacks the certificate of the federation's authority: make new kits by `fedunseen certs`")


def _certificate(path: Path) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RefusedError(
            f"{path}: no certificate ({error}), which masks need: make new kits by `fedunseen certs`"
        ) from None


def _name(certificate: x509.Certificate) -> str:
    from cryptography.x509.oid import NameOID

    names = [str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return names[0] if len(names) == 1 else ""


def _of_a_party(certificate: x509.Certificate) -> bool:
    """Say whether a certificate tells that it is for a party, and for nothing of a coordinator's."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return False
    return ExtendedKeyUsageOID.CLIENT_AUTH in usage and ExtendedKeyUsageOID.SERVER_AUTH not in usage


@dataclass(frozen=True)
class Trust:
    """Whose signatures hold.

    Attributes:
        authority: the certificate that has to have signed all others.
        revoked: serial numbers of certificates that hold no more.
    """

    authority: x509.Certificate
    revoked: frozenset[int]

    @classmethod
    def load(cls, kit: Path) -> Trust:
        """Read whom a kit trusts, a party's or the coordinator's.

        Raises:
            RefusedError: a file is missing or damaged.
        """
        authority = _certificate(_files(kit)[0])
        return cls(authority, revoked(kit, authority))

    def check(self, text: bytes, name: str, told: Mapping[str, Any]) -> None:
        """Refuse what a party has not signed.

        Args:
            text: that it is to have signed.
            name: of the party.
            told: ``certificate`` (DER) and ``signature``, in hexadecimal digits.

        Raises:
            Forged: says why.
        """
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature

        both = told.get("certificate"), told.get("signature")
        if both == (None, None):
            raise Forged(f"nobody has signed the keys of {name}")
        try:
            if max(map(len, both)) > _LARGEST:  # type: ignore[arg-type]
                raise ValueError
            certificate = x509.load_der_x509_certificate(bytes.fromhex(both[0]))  # type: ignore[arg-type]
            signature, public = bytes.fromhex(both[1]), certificate.public_key()  # type: ignore[arg-type]
            of_whom, now = _name(certificate), datetime.datetime.now(datetime.UTC)
        except (ValueError, TypeError):
            raise Forged(f"what is to be the certificate and signature of {name} is damaged") from None
        try:
            certificate.verify_directly_issued_by(self.authority)
        except (ValueError, TypeError, InvalidSignature):
            raise Forged(
                f"the certificate that is to be that of {name} is not of this federation's authority"
            ) from None
        if of_whom != name:
            raise Forged(f"the keys of {name} are signed by another, {of_whom!r}")
        if not _of_a_party(certificate):  # or a coordinator could take part in its own sums
            raise Forged(
                f"the certificate that is to be that of {name} is not a party's, but a coordinator's or another"
            )
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise Forged(f"the certificate of {name} is not valid today")
        if certificate.serial_number in self.revoked:
            raise Forged(f"the certificate of {name} is revoked")
        try:
            _verify(public, signature, text)
        except InvalidSignature:
            raise Forged(
                f"the signature of {name} is not of these keys: they are forged, or of another round or run"
            ) from None


def _verify(public: Any, signature: bytes, text: bytes) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.hashes import SHA256

    if isinstance(public, ec.EllipticCurvePublicKey):
        public.verify(signature, text, ec.ECDSA(SHA256()))
    elif isinstance(public, rsa.RSAPublicKey):
        salt = padding.PSS(padding.MGF1(SHA256()), padding.PSS.DIGEST_LENGTH)
        public.verify(signature, text, salt, SHA256())
    else:
        raise InvalidSignature


@dataclass(frozen=True)
class Identity:
    """A party's certificate and private key.

    Attributes:
        certificate: that the federation's authority has signed.
        key: its private key.
    """

    certificate: x509.Certificate
    key: Any

    @classmethod
    def load(cls, kit: Path) -> Identity:
        """Read a party's kit.

        Raises:
            RefusedError: a file is missing or damaged, or the key is not the certificate's.
        """
        from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

        _, path, secret = _files(kit)
        certificate = _certificate(path)
        try:
            text = secret.read_bytes()
            key: Any = (load_ssh_private_key if b"OPENSSH" in text[:40] else load_pem_private_key)(text, None)
            fits = key.public_key() == certificate.public_key()
        except (OSError, ValueError) as error:
            raise RefusedError(f"{secret}: no private key ({error}): make new kits by `fedunseen certs`") from None
        if not fits:
            raise RefusedError(f"{secret} is not the key of {path}: take the two that were made together")
        return cls(certificate, key)

    @property
    def name(self) -> str:
        """Of the party."""
        return _name(self.certificate)

    def signed(self, text: bytes) -> dict[str, str]:
        """Return a certificate and a signature, in hexadecimal digits."""
        from cryptography.hazmat.primitives.asymmetric import ec, padding
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import Encoding

        if isinstance(self.key, ec.EllipticCurvePrivateKey):
            signature = self.key.sign(text, ec.ECDSA(SHA256()))
        else:
            salt = padding.PSS(padding.MGF1(SHA256()), padding.PSS.DIGEST_LENGTH)
            signature = self.key.sign(text, salt, SHA256())
        return {"certificate": self.certificate.public_bytes(Encoding.DER).hex(), "signature": signature.hex()}


@dataclass(frozen=True)
class Signer:
    """Signs a party's keys under masks, and looks at the signatures of others. The coordinator only looks.

    Attributes:
        kit: the party's, or the coordinator's.
        run: the name of the run.
        names: of all parties, in the order of the clients.
    """

    kit: Path
    run: str
    names: Sequence[str]

    def _text(self, client: int, round: int, session: str, keys: Mapping[str, Any]) -> bytes:
        own = [keys.get(key) for key in _KEYS]
        return json.dumps([_PURPOSE, self.run, round, session, client, self.names[client], *own]).encode()

    def signed(self, client: int, round: int, session: str, keys: Mapping[str, Any]) -> dict[str, Any]:
        """Return a party's keys with its signature.

        Raises:
            RefusedError: the kit is damaged.
        """
        return {**keys, **Identity.load(self.kit).signed(self._text(client, round, session, keys))}

    def check(self, keys: Mapping[int, Mapping[str, Any]], round: int, session: str) -> None:
        """Refuse keys that are not signed by whose they are said to be.

        Args:
            keys: client -> its keys, with certificate and signature.
            round: counted from 0.
            session: its name.

        Raises:
            Forged: says whose keys are not signed, and why not.
            RefusedError: the kit is damaged.
        """
        trust = Trust.load(self.kit)
        for client, own in keys.items():
            if not 0 <= client < len(self.names):
                raise Forged("keys of a party that is not in the coordinator's list")
            trust.check(self._text(client, round, session, own), self.names[client], own)
