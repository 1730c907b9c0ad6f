"""What the pages of all runs have in common: facts about a run, some of its sections, and how a page is made of them.

``parts.html`` has the same sections' markup as macros.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.report import figures, reproduce, statistics
from fedunseen.report.figures import Curve
from fedunseen.report.sharing import travel_section

if TYPE_CHECKING:
    from fedunseen.experiment.run import Run

__all__ = [
    "BLIND",
    "FLATTERS",
    "LAST",
    "LINES",
    "LISTED",
    "Facts",
    "Tensors",
    "axis",
    "client_names",
    "holdings",
    "labelled",
    "losses",
    "parties",
    "render",
    "technical",
    "travel",
    "upper_end",
]

Tensors = Mapping[str, NDArray[Any]]

LINES = ("blue", "orange", "green", "purple", "sky", "yellow")  # colours of lines that mean nothing by themselves
LISTED = 120  # classes that are listed openly; more are folded away
NAMED_HOLDINGS = 150  # classes of one client that are named

BLIND = "No test sample took part in the choice."
FLATTERS = "Many papers do this, but it flatters: somebody who has to choose without the answers gets less."
LAST = "The last round, whatever it is. Nothing was chosen."


def render(template: str, context: Mapping[str, Any]) -> str:
    """Return the text of a page: a template of this folder, filled in."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    source = files("fedunseen.report")
    environment = Environment(
        loader=FunctionLoader(lambda name: (source / name).read_text("utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = Markup((source / "style.css").read_text("utf-8"))
    return environment.get_template(template).render(context, style=style) + "\n"


@dataclass(frozen=True, eq=False)
class Facts:
    """What several parts of the page need to know about one run."""

    run: Run
    tensors: Tensors
    names: tuple[str, ...]
    unseen: NDArray[np.int64]
    merges: bool
    pools: bool
    zero_shot: bool

    @staticmethod
    def of(run: Run) -> Facts:
        """Read them from the run directory."""
        from fedunseen.experiment.directory import load_params
        from fedunseen.experiment.registry import find

        tree = run.manifest["experiment"]
        strategy = find("strategy", tree["strategy"]["name"])
        method = find("method", tree["method"]["name"])
        stored = load_params(run.path / "evaluation.safetensors")
        return Facts(
            run,
            {name: value.numpy() for name, value in stored.items()},
            run.space.names,
            run.space.unseen,
            bool(strategy.merges),
            bool(strategy.pools),
            bool(method.zero_shot),
        )

    @property
    def chance(self) -> float:
        """ZSL accuracy of guessing, in percent."""
        return 100.0 / max(len(self.unseen), 1)

    @property
    def holders(self) -> str:
        """Say in one clause who trained."""
        if self.pools:
            return "One model, with all training data in one place,"
        counts = self.tensors["client_counts"]
        if members := parties(self.run):
            return f"{len(members)} parties, each with data of its own that nobody else has seen,"
        if len(counts) == 1:
            return "One client"
        disjoint = ((counts > 0).sum(axis=0) <= 1).all()
        return f"{len(counts)} clients" + (", no class held by two of them," if disjoint else "")

    def of_classes(self, ids: NDArray[np.int64]) -> list[str]:
        """Return the names of classes."""
        return [self.names[int(c)] for c in ids]


def axis(lines: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """Return (T,) the rounds of some lines of metrics."""
    return np.array([line["round"] for line in lines], dtype=np.float64)


def upper_end(curves: Sequence[Curve]) -> float:
    """Return a common upper end for percentages: 100, or lower where all that is drawn is low."""
    highest = max(float(np.nanmax(v, initial=0.0)) for c in curves for v in (c.y, c.high) if v is not None)
    return 100.0 if highest > 50 else max(5 * np.ceil(highest * 1.08 / 5), 5.0)


def losses(
    run: Run, terms: Mapping[str, str] | None = None, title: str = "Losses by term, mean of clients"
) -> str | None:
    """Draw the losses by term; the total is left out where it is the only term's double.

    Args:
        run: of one seed.
        terms: term -> what it is called; by default all there are, by their names.
        title: above the chart.
    """
    lines = run.metrics
    if terms is None:
        terms = {name: name for name in lines[-1].get("losses", {})} if lines else {}
    told = {name: statistics.curve([line.get("losses", {}) for line in lines], name) for name in terms}
    if len(told) == 2 and "loss" in told:
        other = next(term for term in told if term != "loss")
        if np.allclose(told[other], told["loss"], equal_nan=True):
            del told["loss"]
    if not told:
        return None
    curves = [
        Curve(y, terms[name], LINES[i % len(LINES)], dashed=i >= len(LINES)) for i, (name, y) in enumerate(told.items())
    ]
    return figures.line_chart(curves, title, axis(lines), legend=True)


def labelled(names: Sequence[str]) -> tuple[bool, list[str]]:
    """Return what is written at the classes of a picture: names, or numbers where names would hide each other."""
    numbered = len(names) > 50 or float(np.mean([len(name) for name in names])) > 4
    return numbered, [str(i + 1) for i in range(len(names))] if numbered else list(names)


def parties(run: Run) -> list[dict[str, Any]]:
    """Return of each party of a deployment: name, classes, samples, rounds merged and missed, seconds; else nothing."""
    try:
        known = json.loads((run.path / "parties.json").read_bytes())
        rows = [{key: one[key] for key in ("name", "classes", "samples")} for one in known]
    except (OSError, ValueError, TypeError, KeyError):
        return []
    for client, row in enumerate(rows):
        merged = [line for line in run.metrics if client in line["participants"]]
        took = [line["client_seconds"][str(client)] for line in merged if str(client) in line.get("client_seconds", {})]
        missed = sum(str(client) in line.get("dropped", {}) for line in run.metrics)
        row |= {"merged": len(merged), "missed": missed, "seconds": float(np.median(took)) if took else None}
    return rows


def client_names(facts: Facts) -> list[str]:
    """Return what the rows of the maps of clients are called."""
    if names := [str(party["name"]) for party in parties(facts.run)]:
        return names
    rows = len(facts.tensors["client_counts"])
    return ["all data"] if facts.pools and rows == 1 else [f"client {k}" for k in range(rows)]


def holdings(facts: Facts, idle: str = "not trained on", counted: bool = False) -> dict[str, Any]:
    """Draw and list who holds which classes.

    Args:
        facts: of the run.
        idle: what classes are that nobody holds although they are not unseen.
        counted: say how many samples of each class a client holds.
    """
    counts = facts.tensors["client_counts"]
    order, held, idling = statistics.holding_order(counts, facts.unseen)
    clients = client_names(facts)
    listed = []
    for client, row in zip(clients, counts, strict=True):
        own = [f"{facts.names[c]} ({row[c]:,})" if counted else facts.names[c] for c in np.flatnonzero(row).tolist()]
        listed.append(
            {
                "client": client,
                "classes": len(own),
                "samples": int(row.sum()),
                "names": own[:NAMED_HOLDINGS],
                "more": max(len(own) - NAMED_HOLDINGS, 0),
            }
        )
    per_client = (counts > 0).sum(axis=1)
    spread = int(per_client.min()), int(per_client.max())
    return {
        "map": figures.holdings_map(
            counts[:, order], facts.of_classes(order), held, idling, clients, idle_words=idle, counted=counted
        ),
        "listed": listed,
        "range": spread[:1] if spread[0] == spread[1] else spread,
        "held": held,
        "idle": facts.of_classes(order[held : held + idling]),
        "nobody": facts.of_classes(facts.unseen),
    }


def _parameter_sizes(path: Path) -> dict[str, int]:
    """Return how many numbers each tensor of a model is, without reading it; nothing if the model is not there."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            return {name: math.prod(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return {}


def travel(facts: Facts) -> dict[str, Any] | None:
    """Return what travels between clients and server, and what stays."""
    from fedunseen.experiment.registry import find

    run = facts.run
    tree = run.manifest["experiment"]
    strategy, method = (find(room, tree[room]["name"]) for room in ("strategy", "method"))
    sizes = _parameter_sizes(run.path / "model.safetensors")
    return travel_section(tree, run.result, run.metrics, sizes, strategy, method.private)


def technical(run: Run, first: Run) -> dict[str, Any]:
    """Return what is needed to make the run again, and what it cost."""
    tree, lines = run.manifest["experiment"], first.metrics
    again, whole = reproduce.command(tree)
    return {
        "command": again,
        "whole": whole,
        "toml": reproduce.toml_text(tree),
        "versions": run.manifest["versions"],
        "fingerprint": run.manifest["data_fingerprint"],
        "created": run.manifest["created"],
        "seconds": run.result["seconds"],
        "per_round": float(np.nanmean(statistics.curve(lines, "seconds"))) if lines else None,
    }
