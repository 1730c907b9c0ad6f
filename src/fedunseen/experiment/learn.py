"""Write a run that has learned classes as a run directory of its own."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import RunDirectoryError
from fedunseen.core.files import write_json, write_tensors
from fedunseen.federation.directory import RunDirectory
from fedunseen.tasks.base import Learnt

if TYPE_CHECKING:
    from fedunseen.experiment.finished import Run

__all__ = ["free_folder", "write_learned"]

_MADE_ANEW = (  # or left out; the rest is copied
    *("checkpoints", "selection", "engine", "report.html", "README.md", "result.json", "personal.safetensors"),
)


def free_folder(out: str | Path) -> Path:
    """Return the path of a folder that may be written.

    Raises:
        RunDirectoryError: it holds something already.
    """
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunDirectoryError(f"{folder} holds something already: name another directory with --out")
    return folder


def write_learned(run: Run, learnt: Learnt, folder: Path) -> None:
    """Write the directory of a run with new classes beside its final place and move it there whole."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(run.path, partial, ignore=shutil.ignore_patterns(*_MADE_ANEW))
    before, names = set(run.space.names), learnt.space.names
    added = [name for name in names if name not in before]
    told = {**run.manifest, "learnt": [*run.manifest.get("learnt", ()), *added]}
    write_json(partial / "manifest.json", told if run.client is None else {**told, "client": run.client})
    learnt.space.save(partial / "classes.csv")
    write_tensors(partial / "model.safetensors", learnt.params)
    if not run.brought_home:
        drawn = _widened(run.evaluation, len(run.space.names), len(names))
        write_tensors(partial / "evaluation.safetensors", drawn)
    RunDirectory(partial).finish({**run.result, "run": str(folder), "learnt": added})
    if folder.exists():
        folder.rmdir()
    partial.rename(folder)


def _widened(tensors: Mapping[str, NDArray[Any]], before: int, now: int) -> dict[str, NDArray[Any]]:
    """Add empty places for new classes to what the report draws: nobody trained on them and no test had them."""
    found = dict(tensors)
    for name, value in tensors.items():
        if name.startswith("curve_") or name.endswith(("labels", "answers", "images")):
            continue
        wide = [(0, now - before) if length == before else (0, 0) for length in value.shape]
        if any(after for _, after in wide):
            found[name] = np.pad(value, wide, constant_values=np.nan if value.dtype.kind == "f" else 0)
    return found
