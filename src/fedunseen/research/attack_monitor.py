"""What an attack reached: how often its triggers work, and pictures and magnitudes for the
report.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.files import write_tensors
from fedunseen.core.parameters import Params
from fedunseen.core.random import stream
from fedunseen.evaluation.answers import answer
from fedunseen.evaluation.measures import ZERO_SHOT
from fedunseen.federation.federation import Federation, Monitor
from fedunseen.federation.server_step import RoundResult
from fedunseen.research.attacks.base import Attack

_CLEAN = 1000  # most clean samples whose magnitudes are measured


class AttackMonitor(Monitor):
    """Measures the success of an attack's triggers after each round.

    Args:
        attack: what the malicious clients do.
    """

    every_round = True

    def __init__(self, attack: Attack) -> None:
        self.attack = attack

    def line(
        self,
        federation: Federation,
        round: int,
        result: RoundResult,
        models: Sequence[Params],
        offset: float,
    ) -> dict[str, Any]:
        """Return who attacked in a round, and the success of each trigger in percent."""
        took_part = sorted([*result.participants, *result.dropped])
        line: dict[str, Any] = {
            "attackers": [client for client in took_part if self.attack.active(client, round)]
        }
        if self.attack.probes:
            line["backdoor_of"] = self._backdoor(federation, models[0], offset)
            line["backdoor"] = float(np.mean(list(line["backdoor_of"].values())))
        return line

    def _backdoor(self, federation: Federation, params: Params, offset: float) -> dict[str, float]:
        """Return, for each trigger, the share in percent of its samples that a complete model takes
        for its target.
        """
        shares = {}
        for probe in self.attack.probes:
            with torch.no_grad():
                parts = torch.split(probe.inputs, 256)
                scores = (
                    federation.method.scores(params, part, federation.semantics) for part in parts
                )
                answers = answer(
                    scores, np.full(len(probe.inputs), probe.target), federation.benchmark.space
                )
            shares[probe.name] = float(100 * (answers.generalised(offset) == probe.target).mean())
        return shares

    def result(
        self, federation: Federation, lines: Sequence[Mapping[str, Any]], selected: int
    ) -> dict[str, Any]:
        """Return which rounds were attacked, by whom, with which triggers, and what became of the
        accuracies.
        """
        attack = self.attack
        space = federation.benchmark.space
        numbers: dict[str, Any] = {}
        attacked = [i for i, line in enumerate(lines) if line["attackers"]]
        at = {"last": len(lines) - 1}
        if attacked:
            at |= {"attacked": attacked[0]} | ({"before": attacked[0] - 1} if attacked[0] else {})
        if attack.probes:
            values = [line["backdoor"] for line in lines]
            numbers["backdoor"] = values[selected - 1]
            if attacked:
                if attacked[0]:
                    numbers["backdoor_before"] = values[attacked[0] - 1]
                numbers["backdoor_attacked"] = values[attacked[0]]
                numbers["backdoor_highest"] = max(values[attacked[0] :])
        numbers["attack"] = {
            "rounds": [i + 1 for i in attacked],
            "clients": list(attack.settings.clients),
            "triggers": [
                {
                    "name": probe.name,
                    "client": probe.client,
                    "target": space.names[probe.target],
                    "source": probe.source,
                    "trained": len(probe.magnitudes),
                    "tested": len(probe.inputs),
                }
                for probe in attack.probes
            ],
            "main": {when: {name: lines[i][name] for name in ZERO_SHOT} for when, i in at.items()},
        }
        return numbers

    def observe(
        self, federation: Federation, rounds: int, path: Path, round: int, params: Params
    ) -> None:
        """Write pictures of triggers, and features' magnitudes (FedZSL, Fig. 7)."""
        attack = self.attack
        if not attack.probes:
            return
        folder = path / "magnitudes"
        pictures = {
            f"{i}": probe.pictures
            for i, probe in enumerate(attack.probes)
            if probe.pictures is not None
        }
        if pictures and not (shown := folder / "triggers.safetensors").exists():
            write_tensors(shown, pictures)
        start = attack.first or rounds
        if round + 1 not in (start - 1, start, rounds):
            return
        held = np.unique(np.concatenate(federation.partition.clients))
        rows = stream(federation.seed, "magnitudes").permutation(held)[:_CLEAN]
        with torch.no_grad():
            clean = [_gamma(federation, params, part) for part in federation.batches(np.sort(rows))]
            of_triggers = {
                probe.name: _gamma(federation, params, probe.magnitudes) for probe in attack.probes
            }
        write_tensors(
            folder / f"round-{round + 1}.safetensors",
            {"clean": np.concatenate(clean), **of_triggers},
        )


def _gamma(federation: Federation, params: Params, inputs: torch.Tensor) -> NDArray[np.float32]:
    """Return (n,) the sums of samples' features."""
    return federation.method.features(params, inputs).sum(-1).float().cpu().numpy()
