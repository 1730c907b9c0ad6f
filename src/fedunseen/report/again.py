"""How to make a run again, and what it cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedunseen.core.toml import toml_text
from fedunseen.report import reproduce, statistics
from fedunseen.report.parts import Facts, Section

__all__ = ["AGAIN"]


def _technical(facts: Facts) -> dict[str, Any]:
    """Return what is needed to make the run again, and what it cost."""
    run, tree, lines = facts.whole, facts.experiment, facts.run.metrics
    again, whole = reproduce.command(tree, run.manifest.get("plugins", ()), f"{run.result['run']}-again")
    found = {
        "command": again,
        "whole": whole,
        "toml": toml_text(tree),
        "versions": run.manifest["versions"],
        "fingerprint": run.manifest["data_fingerprint"],
        "created": run.manifest["created"],
        "seconds": run.result["seconds"],
        "per_round": float(np.nanmean(statistics.curve(lines, "seconds"))) if lines else None,
    }

    return {"technical": found}


AGAIN = Section("again", _technical)
