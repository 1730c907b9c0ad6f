"""What a first look at a federation shows, as one HTML page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedunseen.core.files import write_text
from fedunseen.core.text import rough
from fedunseen.pages.report.parts import render

_PAGE = "look.html"


def write_look_page(facts: Mapping[str, Any], folder: Path) -> str:
    """Write the page of a look into its folder; return the page's name.

    Args:
        facts: what ``look.json`` holds.
        folder: where it goes.
    """
    columns = [{**column, **_cells(column)} for column in facts["columns"]]
    context = {
        "facts": facts,
        "columns": columns,
        "minimum": sorted(set(facts["minimum"].values())),
        "labelled": sum(pool["samples"] + pool["others"] for pool in facts["samples"]),
        "unlabelled": sum(pool["unlabelled"] for pool in facts["samples"]),
    }
    write_text(folder / _PAGE, render(_PAGE, context))
    return _PAGE


def _cells(column: Mapping[str, Any]) -> dict[str, Any]:
    """Return a column's cells as the page shows them."""
    kinds = {kind: rows for kind, rows in column["kinds"].items() if kind != "missing" and rows}
    rows = sum(column["kinds"].values())
    quantiles = column["quantiles"] or ()
    return {
        "kind": ", ".join(kinds) or ("none shown" if column["parties"] else "no such column"),
        "rows": rows,
        "missing": round(100 * column["kinds"]["missing"] / rows) if rows else None,
        "range": [rough(number) for number in quantiles],
    }
