"""The cryptography of secure aggregation, by the library ``cryptography`` (OpenSSL).

Signatures are Ed25519 (RFC 8032), key agreement X25519 (RFC 7748), derivation HKDF-SHA256 (RFC
5869), encryption ChaCha20-Poly1305 (RFC 8439), masks the key stream of AES-256 in counter mode, and
shares of secrets those of :mod:`~fedunseen.deploy.secagg.sharing`.

Flower's ``flwr.common.secure_aggregation`` folds a seed of 256 bits into 32 and draws masks from a
Mersenne Twister: 2^32 trials find a mask. Only fresh, full-length seeds are used here.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import MissingDependencyError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    raise MissingDependencyError(
        "privacy.aggregation = 'masked' needs the library cryptography: pip install "
        "'fedunseen[masked]'"
    ) from None

Elements = NDArray[np.uint64]
Operation = Callable[..., Elements]

_BLOCK = 2**15  # ring elements of a stream that are made at once


class SecAggError(Exception):
    """A message of a masked sum is refused; the text says why, and stays at the party.

    Attributes:
        code: what a party sends in its place.
    """

    code = "refused-sum"


def digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of parts, each with its length, so that two lists of parts never collide
    by concatenation.
    """
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big") + part)
    return hasher.digest()


def canonical(value: Any) -> bytes:
    """Return the one JSON text of a value, for digests and signatures."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def from_hex(text: object, length: int) -> bytes:
    """Return the bytes that a message holds as hexadecimal digits.

    Raises:
        SecAggError: it holds something else.
    """
    try:
        raw = bytes.fromhex(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raw = b""
    if len(raw) != length:
        raise SecAggError("a message of the masked sum is damaged")
    return raw


def sign(private: bytes, text: bytes) -> str:
    """Return the Ed25519 signature of ``text``, in hexadecimal digits."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(text).hex()


def verify(public: bytes, signature: object, text: bytes) -> bool:
    """Return whether ``signature`` (hexadecimal digits) is that of ``text``."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(from_hex(signature, 64), text)
    except (InvalidSignature, SecAggError, ValueError):
        return False
    return True


def signing_public(private: bytes) -> bytes:
    """Return the Ed25519 public key of 32 bytes."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def exchange_public(private: bytes) -> bytes:
    """Return the X25519 public key of 32 bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def exchange_key(private: bytes) -> X25519PrivateKey:
    """Return a private key as :func:`agree` takes it, for who agrees with many."""
    return X25519PrivateKey.from_private_bytes(private)


def agree(private: bytes | X25519PrivateKey, public: bytes, purpose: bytes) -> bytes:
    """Return the key of 32 bytes that only the owners of two X25519 keys can compute.

    Args:
        private: key of one, or what :func:`exchange_key` made of it.
        public: key of the other.
        purpose: what the key is for; both sides must use the same.

    Raises:
        SecAggError: the public key is invalid, for example zero.

    Example:
        >>> one, two = bytes(range(32)), bytes(range(1, 33))
        >>> agree(one, exchange_public(two), b"test") == agree(two, exchange_public(one), b"test")
        True
    """
    try:
        own = exchange_key(private) if isinstance(private, bytes) else private
        shared = own.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise SecAggError("a public key is invalid") from None
    return HKDF(SHA256(), 32, None, purpose).derive(shared)


def seal(key: bytes, text: bytes, associated: bytes) -> bytes:
    """Encrypt ``text``; reading it takes ``key`` and ``associated``."""
    nonce = secrets.token_bytes(12)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, associated)


def unseal(key: bytes, encrypted: bytes, associated: bytes) -> bytes:
    """Return what :func:`seal` encrypted.

    Raises:
        SecAggError: the key, the associated data or the text differ.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(encrypted[:12], encrypted[12:], associated)
    except (InvalidTag, ValueError):
        raise SecAggError("an encrypted share does not open") from None


def _scratch() -> tuple[bytes, bytearray]:
    return bytes(8 * _BLOCK), bytearray(8 * _BLOCK + 15)  # as much as the library wants to have


def stream_blocks(
    key: bytes, count: int, scratch: tuple[bytes, bytearray] | None = None
) -> Iterator[tuple[slice, Elements]]:
    """Yield ``count`` uniform ring elements of 64 bits that this key alone yields, in blocks that
    fit a processor's cache. Use a key for one stream only; a block is overwritten by the next.
    """
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    nothing, buffer = scratch or _scratch()
    block = np.frombuffer(buffer, dtype="<u8", count=_BLOCK)
    for first in range(0, count, _BLOCK):
        size = min(_BLOCK, count - first)
        cipher.update_into(memoryview(nothing)[: 8 * size], buffer)
        yield slice(first, first + size), block[:size]


def apply_streams(elements: Elements, streams: Iterable[tuple[bytes, Operation]]) -> None:
    """Add the streams of keys to ring elements in place (``np.add``), or subtract them
    (``np.subtract``). A block of elements takes all streams while it is in the processor's cache.
    """
    count = len(elements)
    scratch = _scratch()
    begun = [(stream_blocks(key, count, scratch), operation) for key, operation in streams]
    for _ in range(0, count, _BLOCK):
        for blocks, operation in begun:
            place, block = next(blocks)
            operation(elements[place], block, out=elements[place])


def key_stream(key: bytes, count: int) -> Elements:
    """Return the whole stream of a key."""
    elements = np.zeros(count, dtype=np.uint64)
    apply_streams(elements, [(key, np.add)])
    return elements
