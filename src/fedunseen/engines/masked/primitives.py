"""The cryptography of secure aggregation, by two kept libraries: ``cryptography`` (OpenSSL) and ``pycryptodome``.

Nothing here is a primitive of our own. Key agreement is X25519 (RFC 7748), derivation HKDF-SHA256 (RFC 5869),
encryption ChaCha20-Poly1305 (RFC 8439), a mask the key stream of AES-256 in counter mode, and secrets are shared by
Shamir's scheme over GF(2^128).

Flower's own ``flwr.common.secure_aggregation`` would be at hand, but its ``pseudo_rand_gen`` folds a seed of 256 bits
into 32 and draws from a Mersenne Twister: who knows how a masked vector should begin finds the mask by trying 2^32
seeds. So only what stands under it is used.

Secrets that are shared have 16 bytes, which is one piece of Shamir's scheme; a private key of 32 bytes is derived from
such a secret, so that one share gives back the whole key.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import MissingDependencyError

try:
    from Crypto.Protocol.SecretSharing import Shamir
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    raise MissingDependencyError(
        "privacy.aggregation = 'masked' needs two libraries of cryptography: pip install 'fedunseen[masked]'"
    ) from None

__all__ = [
    "SECRET",
    "MaskError",
    "agreed",
    "digest",
    "joined",
    "key_stream",
    "new_secret",
    "public",
    "seal",
    "split",
    "unseal",
]

SECRET = 16
"""Bytes of a secret that is shared."""

Words = NDArray[np.uint64]


class MaskError(Exception):
    """Somebody in a masked round lies, is too late, or asks for too much; the message says what is wrong."""


def new_secret() -> bytes:
    """Draw a secret from the operating system."""
    return secrets.token_bytes(SECRET)


def digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of parts, each with its length, so that no two lists of parts run into one."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()


def _derived(secret: bytes, about: bytes) -> bytes:
    return HKDF(SHA256(), 32, None, about).derive(secret)


def _private(secret: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(_derived(secret, b"fedunseen private key"))


def public(secret: bytes) -> bytes:
    """Return the public key that belongs to a secret: 32 bytes."""
    return _private(secret).public_key().public_bytes_raw()


def agreed(secret: bytes, other: bytes, about: bytes) -> bytes:
    """Return the key of 32 bytes that the owners of two secrets have in common, and nobody else.

    Args:
        secret: of one.
        other: the public key of the other.
        about: what the key is for; both have to say the same.

    Raises:
        MaskError: the public key is none.

    Example:
        >>> one, two = new_secret(), new_secret()
        >>> agreed(one, public(two), b"test") == agreed(two, public(one), b"test")
        True
    """
    try:
        shared = _private(secret).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise MaskError("a public key is none") from None
    return _derived(shared, about)


def seal(key: bytes, text: bytes, about: bytes) -> bytes:
    """Encrypt ``text`` so that it can be read with ``key`` and ``about`` alone, and not be changed."""
    nonce = secrets.token_bytes(12)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """Return what :func:`seal` was given.

    Raises:
        MaskError: key or ``about`` are others, or somebody has changed it.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:12], sealed[12:], about)
    except (InvalidTag, ValueError):
        raise MaskError("what was sealed cannot be opened") from None


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Share a secret among ``count`` holders: any ``threshold`` shares give it back, fewer say nothing of it."""
    return [share for _, share in sorted(Shamir.split(threshold, count, secret, ssss=False))]


def joined(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of which these are enough shares; something else if one of them is wrong.

    Args:
        shares: place of the share in what :func:`split` has returned -> the share.

    Example:
        >>> secret = new_secret()
        >>> shares = split(secret, 2, 3)
        >>> joined({0: shares[0], 2: shares[2]}) == secret
        True
    """
    return bytes(Shamir.combine([(place + 1, share) for place, share in shares.items()], ssss=False))


def key_stream(key: bytes, count: int) -> Words:
    """Return ``count`` uniform words of 64 bits, which are those of this key alone. Use a key for one stream only."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * count)), dtype="<u8")
