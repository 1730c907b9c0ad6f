"""The folders of certificates and keys of a deployment on NVFlare: one for the coordinator, one for each party.

NVFlare's own tools make them. Each certificate says whether it is for the coordinator or for a party.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedunseen.core.errors import FedUnseenError, MissingDependencyError, RefusedError
from fedunseen.core.files import free_folder, write_json
from fedunseen.engines.remote.authority import check_today, read_certificate, write_secret

if TYPE_CHECKING:
    from cryptography import x509

PROJECT = "fedunseen"
SERVER = "fedunseen-coordinator"  # the name in the coordinator's certificate, beside that of its machine
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
TAKEN = frozenset({"server", "client", "coordinator", "relay", "admin", "all", SERVER})  # names with another meaning


def needed() -> None:
    """Raise MissingDependencyError if NVFlare is not installed."""
    if find_spec("nvflare") is None:
        raise MissingDependencyError(
            "engine 'nvflare' needs NVIDIA FLARE; install it: pip install 'fedunseen[nvflare]'"
        )


def check_names(parties: Sequence[str]) -> None:
    """Raise FedUnseenError if parties cannot be named like this; NVFlare gives some names a meaning."""
    for name in parties:
        if not NAME.fullmatch(name) or name.lower() in TAKEN:
            raise FedUnseenError(
                f"a party cannot be named {name!r}: take up to 63 letters, digits, - and _, and none of "
                f"{', '.join(sorted(TAKEN))}"
            )


def check_kit(kit: Path, side: str) -> None:
    """Raise RefusedError if a file is missing or the certificate is not valid today."""
    for name in (f"{side}.key", f"{side}.crt", "rootCA.pem"):
        if not (kit / name).is_file():
            raise RefusedError(f"{kit} has no {name}; name a folder that 'fedunseen certs' made for engine 'nvflare'")
        if not name.endswith(".key"):
            check_today(kit / name)


def check_name(kit: Path, name: str) -> None:
    """Raise RefusedError if a party's certificate is for another name."""
    from cryptography.x509.oid import NameOID

    subject = read_certificate(kit / "client.crt").subject
    names = [str(entry.value) for entry in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if names != [name]:
        raise RefusedError(f"the certificate in {kit} is for party {', '.join(names)!r}, not {name!r}")


def certificates(out: Path, host: str, parties: Sequence[str], days: int, authority: Path | None = None) -> None:
    """Make a kit for the coordinator and for each party, with NVFlare's own tools.

    ``out/coordinator`` and ``out/NAME`` each get a certificate, its private key (mode 0600) and the root certificate.
    The root's private key is not kept: NVFlare checks no list of revoked certificates, so that one alone cannot change.
    """
    needed()
    from nvflare.lighter.utils import Identity, generate_cert, generate_keys

    check_names(parties)
    if host in parties:
        raise FedUnseenError(f"a party cannot be named like the coordinator's machine, {host!r}; choose another name")
    free_folder(out)

    key, public = generate_keys()
    issuer = Identity("FedUnseen", None)
    root = generate_cert(issuer, issuer, key, public, valid_days=days, ca=True)
    _site(out / "coordinator", "server", SERVER, root, key, host)
    write_json(out / "coordinator" / "parties.json", {"engine": "nvflare", "parties": list(parties)})
    for name in parties:
        _site(out / name, "client", name, root, key)


def _site(folder: Path, side: str, common: str, root: x509.Certificate, key: Any, host: str = "") -> None:
    """Write the folder of a side, ``server`` or ``client``."""
    from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert, serialize_pri_key

    own, public = generate_keys()
    hosts = {"server_default_host": host, "server_additional_hosts": [SERVER]} if side == "server" else {}
    # As NVFlare's own certificates they are for either end of a connection: a job's processes use their parents'.
    certificate: x509.Certificate = generate_cert(
        Identity(common, PROJECT),
        Identity("FedUnseen", None),
        key,
        public,
        not_valid_after=root.not_valid_after_utc,
        **hosts,
    )
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    (folder / "rootCA.pem").write_bytes(serialize_cert(root))
    (folder / f"{side}.crt").write_bytes(serialize_cert(certificate))
    write_secret(folder / f"{side}.key", serialize_pri_key(own))
    if side == "client":
        write_json(folder / "party.json", {"engine": "nvflare", "name": common})
