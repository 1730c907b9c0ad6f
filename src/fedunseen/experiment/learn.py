"""Write a run that has learned classes as a run directory of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.files import whole_folder, write_json, write_tensors
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.tasks.base import Learnt

if TYPE_CHECKING:
    from fedunseen.experiment.result.run import Run

_MADE_ANEW = (  # or left out; the rest is copied
    "adapting", "labelled.safetensors", "checkpoints", "selection", "engine", "report.html", "README.md", "result.json",
    "personal.safetensors",
)  # fmt: skip


def write_changed(
    run: Run, learned: Learnt, folder: Path, result: Mapping[str, Any], drawn: Mapping[str, NDArray[Any]] | None = None
) -> None:
    """Write the directory of a run with a changed model beside its final place and move it there whole."""
    manifest = {**run.manifest, "learnt": [*run.manifest.get("learnt", ()), *result.get("learnt", ())]}
    with whole_folder(folder, run.path, _MADE_ANEW) as partial:
        write_json(partial / "manifest.json", manifest if run.client is None else {**manifest, "client": run.client})
        learned.space.save(partial / "classes.csv")
        write_tensors(partial / "model.safetensors", learned.params)
        if not run.brought_home:
            drawn = drawn or _expanded(run.evaluation, len(run.space.names), len(learned.space.names))
            write_tensors(partial / "evaluation.safetensors", drawn)
        RunDirectory(partial).finish({**result, "run": str(folder)})


def _expanded(tensors: Mapping[str, NDArray[Any]], before: int, now: int) -> dict[str, NDArray[Any]]:
    """Add empty places for new classes to what the report draws: no one trained on them and no test had them."""
    found = dict(tensors)
    for name, value in tensors.items():
        if name.startswith("curve_") or name.endswith(("labels", "answers", "images")):
            continue
        wide = [(0, now - before) if length == before else (0, 0) for length in value.shape]
        if any(after for _, after in wide):
            found[name] = np.pad(value, wide, constant_values=np.nan if value.dtype.kind == "f" else 0)
    return found
