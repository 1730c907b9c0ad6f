"""How classes without training samples are known: by descriptions alone, or by what came later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fedunseen.core.errors import counted

if TYPE_CHECKING:
    from fedunseen.experiment.result.stored import StoredRun

KnownBy = Literal["examples", "unlabelled"]


def known_by(run: StoredRun) -> dict[str, KnownBy]:
    """Return unseen class -> what it is known by beside its description: ``examples`` that were
    shown, or ``unlabelled`` samples that count for it. A class without either is missing.
    """
    shown = run.result.get("shown", {})
    note = run.result.get("adapted", {})
    table = note.get("classes", {"class": (), "samples": ()})
    moved = {
        name
        for name, samples in zip(table["class"], table["samples"], strict=True)
        if samples > 0 and name not in note.get("refused", ())
    }
    known: dict[str, KnownBy] = {}
    for name in (run.space.names[c] for c in run.space.unseen):
        if shown.get(name):
            known[name] = "examples"
        elif name in moved:
            known[name] = "unlabelled"
    return known


def known_words(run: StoredRun) -> str:
    """Say what a run was given after its training, for a heading; "" without anything."""
    shown = sum(count > 0 for count in run.result.get("shown", {}).values())
    samples = run.result.get("adapted", {}).get("samples")
    parts = [f"examples of {counted(shown, 'class')}"] if shown else []
    parts += [f"{samples:,} unlabelled samples"] if samples else []
    return " and ".join(parts)
