"""Models in a hub: ``hf://OWNER/NAME@REVISION``, of the Hugging Face hub or of the server that
``HF_ENDPOINT`` names. Nothing else downloads a model.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from fedunseen.core.errors import DataError, MissingDependencyError

SCHEME = "hf://"
MODEL_FILE = "model.safetensors"
BAD_NAME = "hub-name"
"""Code of an address that names no repository."""
FAILED = "hub"
"""Code of what the hub does not do."""

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_ADDRESS = re.compile(rf"(?P<name>{_PART}/{_PART})(@(?P<revision>[\w./-]{{1,200}}))?")


class HubAddress(NamedTuple):
    """A repository, and the commit, tag or branch of it; "" for its latest state."""

    name: str
    revision: str = ""


def hub_address(text: str) -> HubAddress:
    """Return what ``OWNER/NAME`` or ``OWNER/NAME@REVISION`` names, with or without ``hf://``.

    Raises:
        DataError: it names no repository.
    """
    parts = _ADDRESS.fullmatch(text.removeprefix(SCHEME))
    if parts is None:
        raise DataError(
            f"{text!r} names no repository of a hub: write OWNER/NAME, or OWNER/NAME@REVISION",
            BAD_NAME,
        )
    return HubAddress(parts["name"], parts["revision"] or "")


def endpoint() -> str | None:
    """Return the server that takes the place of the Hugging Face hub, if one is named."""
    return os.environ.get("HF_ENDPOINT") or None


def hub_library() -> ModuleType:
    """Return ``huggingface_hub``."""
    try:
        import huggingface_hub
    except ImportError:
        raise MissingDependencyError(
            "models of a hub need huggingface_hub: pip install 'fedunseen[hub]'"
        ) from None
    return huggingface_hub


@contextmanager
def refused_by_hub(what: str) -> Iterator[None]:
    """Raise a DataError for what the hub or its library says: names, rights, network."""
    try:
        yield
    except Exception as error:  # a dozen classes of three libraries
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise DataError(
            f"{what}: the hub refuses or does not answer ({lines[0].strip().rstrip('.')}): check "
            "the name, `hf auth login` and the connection",
            FAILED,
        ) from None


def fetched_model(address: str) -> Path:
    """Return the local copy of the model's file of a repository, downloaded if need be.

    Raises:
        DataError: the address or the hub's answer is wrong.
        MissingDependencyError: ``huggingface_hub`` is not installed.
    """
    name, revision = hub_address(address)
    library = hub_library()
    with refused_by_hub(address):
        path = library.hf_hub_download(
            name, MODEL_FILE, revision=revision or None, endpoint=endpoint()
        )
    return Path(path)
