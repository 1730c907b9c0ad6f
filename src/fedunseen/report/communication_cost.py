"""What clients have in common, and what travels between them and the server (FZSL, Figs. 3 and 7)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.report import statistics
from fedunseen.report.data_distribution import DRAWN_CLIENTS
from fedunseen.report.maps import coverage_map
from fedunseen.report.parts import Facts, Section
from fedunseen.strategies.selective import matches

if TYPE_CHECKING:
    from fedunseen.data import ClassSpace

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

EVERYTHING = ("*",)


@dataclass(frozen=True)
class Module:
    """The parameters whose names begin alike."""

    name: str
    parameters: int
    shared: int

    @property
    def words(self) -> str:
        """Say whether it travels."""
        if 0 < self.shared < self.parameters:
            return f"{100 * self.shared / self.parameters:.3g} % of it travels"
        return "travels" if self.shared else "stays"


def modules(
    sizes: Mapping[str, int], model: Mapping[str, int], shared: Sequence[str], private: Sequence[str] = ()
) -> list[Module]:
    """Say of each module how much of it travels."""
    travels: dict[str, int] = {}
    for name, size in model.items():
        if matches(name, shared) and not matches(name, private):
            module = name.partition(".")[0]
            travels[module] = travels.get(module, 0) + size
    return [Module(name, size, min(travels.get(name, 0), size)) for name, size in sizes.items()]


def traffic(lines: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Return the bytes ``down`` and ``up`` of one client in one round, on average, and of all in all rounds, ``total``."""
    known = [line for line in lines if "bytes_down" in line and "bytes_up" in line]
    took_part = sum(len(line.get("participants", ())) for line in known)
    if not took_part:
        return None
    down, up = (float(sum(line[name] for line in known)) for name in ("bytes_down", "bytes_up"))
    return {"down": down / took_part, "up": up / took_part, "total": down + up}


def travel_section(
    experiment: Mapping[str, Any],
    result: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    model: Mapping[str, int],
    merges: bool,
    pools: bool,
    private: Sequence[str],
) -> dict[str, Any] | None:
    """Return what the page says of what travels; None where nothing is known of it."""
    measured = traffic(lines)
    sizes = {str(name): int(size) for name, size in result.get("parameters", {}).items()}
    if measured is None and not sizes:
        return None
    federated = merges and not pools
    shared = list(experiment["strategy"].get("shared", EVERYTHING)) if federated else []
    everything = sum(sizes.values())
    if federated and result.get("parameters_shared") == everything:  # also sums, which the model is only solved from
        listed = [Module(name, size, size) for name, size in sizes.items()]
    else:
        listed = modules(sizes, model, shared, private)
    travels = sum(module.shared for module in listed)
    largest = max((module.parameters for module in listed), default=1)
    return {
        "modules": [{"one": module, "share": 100 * module.parameters / max(largest, 1)} for module in listed],
        "all": everything,
        "shared": travels,
        "percent": 100 * travels / max(everything, 1),
        "patterns": shared if shared != list(EVERYTHING) else [],
        "private": [module.name for module in listed if any(matches(f"{module.name}.x", [p]) for p in private)],
        "down": written_bytes(measured["down"]) if measured else None,
        "up": written_bytes(measured["up"]) if measured else None,
        "total": written_bytes(measured["total"]) if measured else None,
        "rounds": len(lines),
        "pools": pools,
        "merges": merges,
        "digest": result.get("sums_sha256"),
        "clipped": result.get("clipped", 0.0),
        "bits": experiment["data"].get("quantization"),
        "text": bool(experiment["method"].get("text")),
    }


def coverage_section(counts: Ids, space: ClassSpace, clients: Sequence[str]) -> dict[str, Any]:
    """Return what the page says of who covers which attributes (FZSL, Fig. 3)."""
    held = counts > 0
    cover = statistics.attribute_cover(held, space.semantics)
    order, groups = statistics.attribute_order(space.attribute_groups, space.attributes)
    names = [space.attribute_names[a] for a in order.tolist()]
    if all(re.fullmatch(r"attribute \d+", name) for name in names):
        names = []  # what a source without names is given says nothing
    drawn = statistics.spaced(len(counts), DRAWN_CLIENTS)
    classes, attributes = statistics.mean_jaccard(held), statistics.mean_cosine(cover)
    return {
        "map": coverage_map(cover[drawn][:, order], names, groups, clients[drawn]),
        "most": float(np.abs(cover).max(initial=0.0)),
        "signed": bool((cover < 0).any()),
        "grouped": bool(groups),
        "classes": None if np.isnan(classes) else classes,
        "attributes": None if np.isnan(attributes) else attributes,
    }


def written_bytes(count: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} GB" if count < 999.5 else f"{count:,.0f} GB"


def _travel(facts: Facts) -> dict[str, Any] | None:
    from fedunseen.federation.run_directory import parameter_sizes

    run = facts.run
    sizes = parameter_sizes(run.path / "model.safetensors")
    if not facts.one_model:  # each client's, with the same names after client/K/
        sizes = {name.split("/", 2)[2]: size for name, size in sizes.items()}
    section = travel_section(facts.experiment, run.result, run.metrics, sizes, facts.merges, facts.pools, facts.private)
    return {"travel": section} if section else None


COMMUNICATION_COST = Section("communication_cost", _travel)
