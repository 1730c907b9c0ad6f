"""Who belongs to a federation: ``federation.json``, signed by its authority, and each party's
private keys.

A party takes the list of parties, their keys and the threshold from this file alone, never from an
experiment.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedunseen.core.errors import DataError, ExperimentError, RefusedError, shortened
from fedunseen.core.files import parse_json, replacing
from fedunseen.core.party_names import FEDERATION, party_names
from fedunseen.deploy.secagg import primitives
from fedunseen.deploy.secagg.primitives import (
    SecAggError,
    canonical,
    digest,
    from_hex,
    sign,
    verify,
)

SECRET = "secagg.key"
"""The name of a party's private keys, in its credentials folder."""
_AUTHORITY = "federation.key"  # of the authority's private key, in its folder
_PURPOSE = b"fedunseen federation"
_REQUEST = b"fedunseen request"
VERSIONS = "versions"
"""The folder of an authority with the versions of the list before the newest, by serial number."""
CLASS_NOT_ALLOWED = "class-not-allowed"
"""The code of a party's refusal to send a class."""


def colluders(parties: int) -> int:
    """Return how many parties may work with the coordinator, by default: fewer than a third.

    Example:
        >>> [colluders(n) for n in (3, 4, 6, 10)]
        [0, 1, 1, 3]
    """
    return max(0, -(-parties // 3) - 1)


def threshold(parties: int, colluding: int) -> int:
    """Return t: how many parties a sum takes at least, and how many shares restore a seed.

    Two openings of one sum take 2t shares. Honest parties give one each, so that n + c < 2t forbids
    a second one.

    Example:
        >>> [threshold(n, colluders(n)) for n in (3, 4, 5, 10)]
        [3, 3, 4, 7]
    """
    return max(3, (parties + colluding) // 2 + 1)


@dataclass(frozen=True)
class Enrolment:
    """The parties of a federation."""

    parties: Mapping[str, tuple[bytes, bytes]]  # name -> Ed25519 and X25519 public keys
    colluding: int
    serial: int  # grows with each change of the list
    authority: bytes
    signature: str = ""
    coordinator: bytes = b""  # signs plans by file; empty in lists made before there were any
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Party -> names of the classes that it may send, in order; empty: any party may send any."""

    @property
    def threshold(self) -> int:
        """How many parties a sum takes at least."""
        return threshold(len(self.parties), self.colluding)

    @property
    def names(self) -> list[str]:
        """The names of the parties, in order."""
        return sorted(self.parties)

    def content(self) -> dict[str, Any]:
        """Return what the authority signs."""
        keys = {
            name: {"ed25519": a.hex(), "x25519": b.hex()} for name, (a, b) in self.parties.items()
        }
        return {
            "parties": keys, "n": len(keys), "c": self.colluding, "t": self.threshold,
            "serial": self.serial, "authority": self.authority.hex(),
            **({"coordinator": self.coordinator.hex()} if self.coordinator else {}),
            **({"classes": self._classes()} if self.classes else {}),
        }  # fmt: skip

    def _classes(self) -> dict[str, list[str]]:
        return {name: list(allowed) for name, allowed in sorted(self.classes.items())}

    @property
    def classes_digest(self) -> str:
        """What identifies who may send which class; "" where that is not fixed."""
        return (
            digest(_PURPOSE, b"classes", canonical(self._classes())).hex() if self.classes else ""
        )

    def check_classes(self, name: str, held: Iterable[str], where: str = "") -> None:
        """Raise RefusedError if a party holds samples of a class that it must not send."""
        allowed = set(self.classes.get(name, ()))
        if self.classes and (
            stray := [class_name for class_name in held if class_name not in allowed]
        ):
            raise RefusedError(
                f"{where or 'this party'} holds samples of {shortened(stray[0])!r}, a class that "
                f"{FEDERATION} does not let {name} send: leave these samples out, or ask the "
                "authority to allow the class with `fedunseen certs --classes`",
                CLASS_NOT_ALLOWED,
            )

    @cached_property
    def digest(self) -> str:
        """What identifies this list."""
        return digest(_PURPOSE, canonical(self.content())).hex()

    def signed(self, private: bytes) -> Enrolment:
        """Return the list with the authority's signature."""
        return replace(self, signature=sign(private, _PURPOSE + canonical(self.content())))

    def verify(self, name: str, signature: object, text: bytes) -> bool:
        """Return whether a party has signed ``text``."""
        return name in self.parties and verify(self.parties[name][0], signature, text)

    def text(self) -> bytes:
        """Return the content of ``federation.json``."""
        return (
            json.dumps({**self.content(), "signature": self.signature}, indent=2).encode() + b"\n"
        )

    @classmethod
    def load(cls, folder: Path) -> Enrolment:
        """Read ``federation.json`` from a credentials folder."""
        path = folder / FEDERATION
        try:
            return cls.read(path.read_bytes(), str(path))
        except FileNotFoundError:
            raise RefusedError(
                f"{path} is missing, and masked sums need it: name another folder, or make new "
                "credentials with `fedunseen certs`"
            ) from None
        except OSError as error:
            raise RefusedError(
                f"{path} is damaged ({error}): copy it again from the authority"
            ) from None

    @classmethod
    def read(cls, text: bytes, path: str) -> Enrolment:
        """Read the content of ``federation.json``; ``path`` says in messages where it stands."""
        try:
            tree = parse_json(text)
            keys = {
                str(name): (from_hex(public["ed25519"], 32), from_hex(public["x25519"], 32))
                for name, public in tree["parties"].items()
            }
            enrolment = cls(
                keys,
                int(tree["c"]),
                int(tree["serial"]),
                from_hex(tree["authority"], 32),
                tree["signature"],
            )
            if "coordinator" in tree:
                enrolment = replace(enrolment, coordinator=from_hex(tree["coordinator"], 32))
            if "classes" in tree:
                enrolment = replace(enrolment, classes=_allowed(tree["classes"], keys))
            if enrolment.content() != {
                key: value for key, value in tree.items() if key != "signature"
            }:
                raise ValueError("its numbers do not fit together")
            party_names(list(keys))  # they are shown
            if not 0 <= 3 * enrolment.colluding < max(1, len(keys)):
                raise ValueError(
                    f"c = {enrolment.colluding} of n = {len(keys)} parties is not below a third"
                )
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            SecAggError,
            ExperimentError,
        ) as error:
            raise RefusedError(
                f"{path} is damaged ({shortened(str(error))}): copy it again from the authority"
            ) from None
        if not verify(
            enrolment.authority, enrolment.signature, _PURPOSE + canonical(enrolment.content())
        ):
            raise RefusedError(
                f"{path} is not signed by its authority: copy it again from the authority"
            )
        return enrolment


@dataclass(frozen=True)
class Credentials:
    """A party's own keys and the federation it belongs to."""

    name: str
    enrolment: Enrolment
    signing: bytes
    exchange: bytes

    @classmethod
    def load(cls, folder: Path) -> Credentials:
        """Read a party's credentials folder."""
        enrolment = Enrolment.load(folder)
        path = folder / SECRET
        try:
            tree = parse_json(path.read_bytes())
            credentials = cls(
                str(tree["name"]),
                enrolment,
                from_hex(tree["ed25519"], 32),
                from_hex(tree["x25519"], 32),
            )
        except (OSError, ValueError, TypeError, KeyError, SecAggError) as error:
            raise RefusedError(
                f"{path}: no private keys ({error}): make new ones with `fedunseen certs`"
            ) from None
        public = (
            primitives.signing_public(credentials.signing),
            primitives.exchange_public(credentials.exchange),
        )
        if enrolment.parties.get(credentials.name) != public:
            raise RefusedError(
                f"{path}: the keys of {credentials.name!r} are not those in {FEDERATION}: copy the "
                f"newest {FEDERATION}, or take the credentials that were made together"
            )
        return credentials

    def sign(self, text: bytes) -> str:
        """Return the party's signature."""
        return sign(self.signing, text)


def _allowed(classes: object, parties: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return who may send which class, once every party is named with visible names of classes.

    Raises:
        ValueError: says what is wrong.
    """
    if not isinstance(classes, Mapping):
        raise ValueError("its classes are not a table")
    if stray := sorted(set(classes) - set(parties)):
        raise ValueError(f"classes are given to {stray[0]!r}, which is not a party")
    if missing := sorted(set(parties) - set(classes)):
        raise ValueError(f"{missing[0]!r} is given no classes, and every party or none must be")
    for party, names in classes.items():
        if not isinstance(names, list | tuple) or not names:
            raise ValueError(f"the classes of {party!r} are not a list of names")
        for name in names:
            if not isinstance(name, str) or not name.strip() or not name.isprintable():
                raise ValueError(f"{name!a} of {party!r} cannot be the name of a class")
        if len(set(names)) < len(names):
            raise ValueError(f"a class of {party!r} is named twice")
    return {party: tuple(sorted(names)) for party, names in classes.items()}


def in_memory(
    names: Sequence[str], classes: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Credentials]:
    """Return the credentials of a new federation, for simulations and tests: name ->
    credentials.
    """
    return _new(names, classes)[0]


def coordinator(folder: Path) -> tuple[Enrolment, bytes]:
    """Read a coordinator's credentials folder: the list of parties, and its own private key, which
    signs plans.
    """
    enrolment = Enrolment.load(folder)
    path = folder / SECRET
    try:
        key = from_hex(parse_json(path.read_bytes())["ed25519"], 32)
    except (OSError, ValueError, TypeError, KeyError, SecAggError) as error:
        raise RefusedError(
            f"{path}: no private key ({error}): make new credentials with `fedunseen certs`"
        ) from None
    if primitives.signing_public(key) != enrolment.coordinator:
        raise RefusedError(
            f"{path}: this key is not the coordinator's in {FEDERATION}: name the folder "
            "`coordinator` that `fedunseen certs` has made"
        )
    return enrolment, key


def _new(
    names: Sequence[str], classes: Mapping[str, Sequence[str]] | None = None
) -> tuple[dict[str, Credentials], bytes, bytes]:
    """Return the credentials of all parties, and the private keys of the authority and the
    coordinator.
    """
    allowed = checked_classes(classes, names)
    private = {name: (secrets.token_bytes(32), secrets.token_bytes(32)) for name in names}
    authority = secrets.token_bytes(32)
    leading = secrets.token_bytes(32)
    public = {
        name: (primitives.signing_public(a), primitives.exchange_public(b))
        for name, (a, b) in private.items()
    }
    c = colluders(len(names))
    signer = primitives.signing_public(authority)
    enrolment = Enrolment(
        public, c, 1, signer, coordinator=primitives.signing_public(leading), classes=allowed
    ).signed(authority)
    return (
        {name: Credentials(name, enrolment, *key_pair) for name, key_pair in private.items()},
        authority,
        leading,
    )


def checked_classes(
    classes: Mapping[str, Sequence[str]] | None, parties: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """Return who may send which class, as it is signed; {} where nothing is fixed.

    Raises:
        ExperimentError: a party is missing or unknown, or a name is wrong.
    """
    try:
        return _allowed(classes, parties) if classes else {}
    except ValueError as error:
        raise ExperimentError(
            f"--classes: {error}: give --classes PARTY=CLASS,CLASS for each party"
        ) from None


def enrol(
    out: Path,
    names: Sequence[str],
    authority: Path | None = None,
    classes: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write the federation's files into the folders that ``fedunseen certs`` has made."""
    by_party, key, leading = _new(names, classes)
    for credentials in by_party.values():
        _hand_over(out / credentials.name, credentials)
    enrolment = next(iter(by_party.values())).enrolment
    _write(out / "coordinator" / FEDERATION, enrolment.text())
    own_key = json.dumps({"name": "coordinator", "ed25519": leading.hex()}).encode() + b"\n"
    _write(out / "coordinator" / SECRET, own_key, secret=True)
    if authority is not None:
        keep(authority, enrolment, key)


def keep(authority: Path, enrolment: Enrolment, key: bytes) -> None:
    """Write the authority's own files: its private key (mode 0600) and the newest list."""
    authority.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(authority / _AUTHORITY, key.hex().encode() + b"\n", secret=True)
    _write(authority / FEDERATION, enrolment.text())


def change(
    authority: Path,
    out: Path,
    renew: Sequence[str] = (),
    remove: Sequence[str] = (),
    classes: Mapping[str, Sequence[str]] | None = None,
    given: Mapping[str, tuple[bytes, bytes]] | None = None,
) -> None:
    """Sign a new version of the list, with new keys for some parties or new parties, or without
    some: ``out/coordinator/federation.json``. The authority keeps the versions before.

    ``classes``: who may send which class from now on; None: what the list before says of it.
    ``given``: public keys of parties that have made their own.

    Every party and the coordinator must replace their ``federation.json`` by it. The folders of
    renewed parties get it with their new keys.
    """
    try:
        key = from_hex((authority / _AUTHORITY).read_text().strip(), 32)
    except (OSError, SecAggError):
        raise DataError(
            f"{authority / _AUTHORITY} is missing or damaged: the list of parties cannot be changed"
        ) from None
    old = Enrolment.load(authority)
    if primitives.signing_public(key) != old.authority:
        raise DataError(
            f"{authority / _AUTHORITY} is not the key that signed {authority / FEDERATION}: "
            "restore the authority's folder from one copy"
        )
    private = {name: (secrets.token_bytes(32), secrets.token_bytes(32)) for name in renew}
    public = {name: keys for name, keys in old.parties.items() if name not in remove}
    public |= {
        name: (primitives.signing_public(a), primitives.exchange_public(b))
        for name, (a, b) in private.items()
    } | dict(given or {})
    c = min(old.colluding, colluders(len(public)))
    remaining = {name: allowed for name, allowed in old.classes.items() if name in public}
    if classes is not None and set(classes) <= public.keys() - old.parties.keys():
        classes = {**remaining, **classes}  # of a new party alone
    new = replace(
        old,
        parties=public,
        colluding=c,
        serial=old.serial + 1,
        classes=checked_classes(remaining if classes is None else classes, public),
    ).signed(key)
    Enrolment.read(new.text(), FEDERATION)  # nothing is written that could not be read again
    for name, key_pair in private.items():
        _hand_over(out / name, Credentials(name, new, *key_pair))
    _write(out / "coordinator" / FEDERATION, new.text())
    _write(authority / VERSIONS / f"{old.serial:06d}.json", old.text())
    _write(authority / FEDERATION, new.text())


def own_keys(folder: Path, name: str, tls: str) -> dict[str, str]:
    """Write a party's new private keys into its folder; return a request with the public ones and
    that of TLS, signed.
    """
    signing = secrets.token_bytes(32)
    exchange = secrets.token_bytes(32)
    _write_secret(folder, name, signing, exchange)
    asked = {
        "name": name, "tls": tls, "ed25519": primitives.signing_public(signing).hex(),
        "x25519": primitives.exchange_public(exchange).hex(),
    }  # fmt: skip
    return {**asked, "signature": sign(signing, _REQUEST + canonical(asked))}


def read_request(tree: Mapping[str, Any]) -> tuple[str, tuple[bytes, bytes]]:
    """Return the name and the public keys of a request.

    Raises:
        DataError: it is damaged, or not signed by its own key.
    """
    try:
        asked = {key: str(tree[key]) for key in ("name", "tls", "ed25519", "x25519")}
        (name,) = party_names([asked["name"]])
        keys = from_hex(asked["ed25519"], 32), from_hex(asked["x25519"], 32)
        if not verify(keys[0], tree["signature"], _REQUEST + canonical(asked)):
            raise ValueError("it is not signed by its own key")
    except (KeyError, TypeError, ValueError, SecAggError, ExperimentError) as error:
        raise DataError(
            f"the request is damaged ({shortened(str(error))}): ask for it again"
        ) from None
    return name, keys


def fingerprint(tree: Mapping[str, Any]) -> str:
    """Return what people compare of a request: the digest of its public keys."""
    text = digest(_REQUEST, str(tree["tls"]).encode(), str(tree["ed25519"]).encode(),
                  str(tree["x25519"]).encode()).hex()[:32]  # fmt: skip
    return " ".join(text[i : i + 4] for i in range(0, len(text), 4))


def _hand_over(folder: Path, credentials: Credentials) -> None:
    _write_secret(folder, credentials.name, credentials.signing, credentials.exchange)
    _write(folder / FEDERATION, credentials.enrolment.text())


def _write_secret(folder: Path, name: str, signing: bytes, exchange: bytes) -> None:
    tree = {"name": name, "ed25519": signing.hex(), "x25519": exchange.hex()}
    _write(folder / SECRET, json.dumps(tree, indent=2).encode() + b"\n", secret=True)


def _write(path: Path, content: bytes, secret: bool = False) -> None:
    with replacing(path) as temporary:
        temporary.touch(0o600 if secret else 0o644)
        temporary.write_bytes(content)
