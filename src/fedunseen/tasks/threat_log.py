"""What a run records of attacks and defences: in lines of metrics, in its result, and as features' magnitudes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.files import write_tensors
from fedunseen.core.parameters import Params
from fedunseen.core.random import stream
from fedunseen.defences.screening import COUNTS
from fedunseen.engines import RoundResult
from fedunseen.evaluation.answers import answer
from fedunseen.evaluation.measures import ZERO_SHOT
from fedunseen.federation.federation import Federation

_CLEAN = 1000  # most clean samples whose magnitudes are measured


def threat_line(
    federation: Federation, round: int, result: RoundResult, models: Sequence[Params], factor: float
) -> dict[str, Any]:
    """Return what a round's line of metrics records of threats; an empty one in an ordinary run."""
    line: dict[str, Any] = {}
    if (attack := federation.attack) is not None:
        took_part = sorted([*result.participants, *result.dropped])
        line["attackers"] = [client for client in took_part if attack.active(client, round)]
        if attack.probes:
            line["backdoor_of"] = backdoor(federation, models[0], factor)
            line["backdoor"] = float(np.mean(list(line["backdoor_of"].values())))
    if noted := [reply for reply in result.replies if "threshold" in reply.notes]:
        line["screening"] = _screening(round, noted)
    return line


def backdoor(federation: Federation, params: Params, factor: float) -> dict[str, float]:
    """Return, for each trigger, the share in percent of its samples that a complete model takes for its target."""
    found = {}
    for probe in federation.attack.probes if federation.attack is not None else ():
        with torch.no_grad():
            parts = torch.split(probe.inputs, 256)
            scores = (federation.method.scores(params, part, federation.semantics) for part in parts)
            answers = answer(scores, np.full(len(probe.inputs), probe.target), federation.benchmark.space)
        found[probe.name] = float(100 * (answers.generalised(factor) == probe.target).mean())
    return found


def _screening(round: int, noted: Sequence[Any]) -> dict[str, Any]:
    """Add up what the clients have screened, and warn of those that have nothing left."""
    line: dict[str, Any] = {name: int(sum(reply.notes[name] for reply in noted)) for name in COUNTS}
    line["clients"] = [
        {"client": reply.client, **{name: int(reply.notes[name]) for name in COUNTS},
         "threshold": reply.notes["threshold"]}
        for reply in noted
    ]  # fmt: skip
    kinds = ("clean", "poisoned")
    empty = [one["client"] for one in line["clients"]
             if sum(one[f"{kind}_dropped"] for kind in kinds) == sum(one[kind] for kind in kinds)]  # fmt: skip
    if empty:
        line["empty"] = empty
        who, then = "every client", "the model stays as it was"
        if len(empty) < len(noted):
            who = f"client {empty[0]}" + (f" and {len(empty) - 1} others" if empty[1:] else "")
            then = "nothing is learned from it"
        warnings.warn(
            f"round {round + 1}: every sample of {who} was below the threshold of [screening]: {then}", stacklevel=3
        )
    return line


def threat_result(federation: Federation, lines: Sequence[Mapping[str, Any]], selected: int) -> dict[str, Any]:
    """Return what ``result.json`` records of threats."""
    found: dict[str, Any] = {}
    if (attack := federation.attack) is not None:
        attacked = [i for i, line in enumerate(lines) if line["attackers"]]
        space = federation.benchmark.space
        at = {"last": len(lines) - 1}
        if attacked:
            at |= {"attacked": attacked[0]} | ({"before": attacked[0] - 1} if attacked[0] else {})
        if attack.probes:
            values = [line["backdoor"] for line in lines]
            found["backdoor"] = values[selected - 1]
            if attacked:
                if attacked[0]:
                    found["backdoor_before"] = values[attacked[0] - 1]
                found["backdoor_attacked"] = values[attacked[0]]
                found["backdoor_highest"] = max(values[attacked[0] :])
        found["attack"] = {
            "rounds": [i + 1 for i in attacked],
            "clients": list(attack.settings.clients),
            "triggers": [
                {"name": probe.name, "client": probe.client, "target": space.names[probe.target],
                 "source": probe.source, "trained": len(probe.magnitudes), "tested": len(probe.inputs)}
                for probe in attack.probes
            ],
            "main": {when: {name: lines[i][name] for name in ZERO_SHOT} for when, i in at.items()},
        }  # fmt: skip
    screened = [line["screening"] for line in lines if "screening" in line]
    if screened:
        found["screened"] = {name: sum(one[name] for one in screened) for name in COUNTS}
    return found


def observe_threats(federation: Federation, rounds: int, path: Path, round: int, params: Params) -> None:
    """Write what the report shows of the attack: pictures of triggers, and features' magnitudes (FedZSL, Fig. 7)."""
    attack, last = federation.attack, rounds
    if attack is None or not attack.probes:
        return
    folder = path / "magnitudes"
    pictures = {f"{i}": probe.pictures for i, probe in enumerate(attack.probes) if probe.pictures is not None}
    if pictures and not (shown := folder / "triggers.safetensors").exists():
        write_tensors(shown, pictures)
    start = attack.first or last
    if round + 1 not in (start - 1, start, last):
        return
    held = np.unique(np.concatenate(federation.partition.clients))
    rows = stream(federation.seed, "magnitudes").permutation(held)[:_CLEAN]
    with torch.no_grad():
        clean = [_gamma(federation, params, part) for part in federation.batches(np.sort(rows))]
        found = {probe.name: _gamma(federation, params, probe.magnitudes) for probe in attack.probes}
    write_tensors(folder / f"round-{round + 1}.safetensors", {"clean": np.concatenate(clean), **found})


def _gamma(federation: Federation, params: Params, inputs: torch.Tensor) -> NDArray[np.float32]:
    """Return (n,) the sums of samples' features."""
    return federation.method.features(params, inputs).sum(-1).float().cpu().numpy()
