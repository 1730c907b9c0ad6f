"""What travels between the clients and the server (FZSL, Fig. 7)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedunseen.federation.run_directory import parameter_sizes
from fedunseen.pages.report.parts import Content, Facts
from fedunseen.strategies.selective import matches

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
    sizes: Mapping[str, int],
    model: Mapping[str, int],
    shared: Sequence[str],
    private: Sequence[str] = (),
) -> list[Module]:
    """Say of each module how much of it travels."""
    travels: dict[str, int] = {}
    for name, size in model.items():
        if matches(name, shared) and not matches(name, private):
            module = name.partition(".")[0]
            travels[module] = travels.get(module, 0) + size
    return [Module(name, size, min(travels.get(name, 0), size)) for name, size in sizes.items()]


def traffic(lines: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Return the bytes ``down`` and ``up`` of one client in one round, on average, and of all in
    all rounds, ``total``.
    """
    measured = [line for line in lines if "bytes_down" in line and "bytes_up" in line]
    took_part = sum(len(line.get("participants", ())) for line in measured)
    if not took_part:
        return None
    down, up = (float(sum(line[name] for line in measured)) for name in ("bytes_down", "bytes_up"))
    return {"down": down / took_part, "up": up / took_part, "total": down + up}


def travel(facts: Facts) -> Content:
    """Return what the page says of what travels; None where nothing is known of it."""
    run = facts.run
    experiment = facts.experiment
    result = facts.run.result
    model = parameter_sizes(run.path / "model.safetensors")
    if not facts.one_model:  # each client's, with the same names after client/K/
        model = {name.split("/", 2)[2]: size for name, size in model.items()}
    measured = traffic(run.metrics)
    sizes = {str(name): int(size) for name, size in result["parameters"].items()}
    federated = facts.merges and not facts.pools
    shared = list(experiment["strategy"].get("shared", EVERYTHING)) if federated else []
    total = sum(sizes.values())
    if (
        federated and result["parameters_shared"] == total
    ):  # also sums, which the model is only solved from
        listed = [Module(name, size, size) for name, size in sizes.items()]
    else:
        listed = modules(sizes, model, shared, facts.private)
    travels = sum(module.shared for module in listed)
    largest = max((module.parameters for module in listed), default=1)
    private = [m.name for m in listed if any(matches(f"{m.name}.x", [p]) for p in facts.private)]
    written = {
        name: written_bytes(measured[name]) if measured else None
        for name in ("down", "up", "total")
    }
    return {
        "modules": [
            {"one": module, "share": 100 * module.parameters / max(largest, 1)} for module in listed
        ],
        "all": total,
        "shared": travels,
        "percent": 100 * travels / max(total, 1),
        "patterns": shared if shared != list(EVERYTHING) else [],
        "private": private,
        **written,
        "rounds": len(run.metrics),
        "pools": facts.pools,
        "merges": facts.merges,
        "digest": result.get("sums_sha256"),
        "clipped": result.get("clipped", 0.0),
        "bits": experiment["data"].get("quantization"),
        "text": bool(experiment["method"].get("text")),
    }


def written_bytes(count: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} GB" if count < 999.5 else f"{count:,.0f} GB"
