"""Adapt a finished run to the unlabelled samples of parties elsewhere, by file: each round's answers are files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params
from fedunseen.engines.offline.coordinator import Offline
from fedunseen.engines.remote.coordinator import Deployment
from fedunseen.experiment.adapt import offset_of, write_adapted
from fedunseen.experiment.assemble import assemble, load_data
from fedunseen.experiment.result.run import Run
from fedunseen.experiment.rules import OFFLINE, StartFacts, check
from fedunseen.experiment.schema import Experiment
from fedunseen.experiment.traits import task_of
from fedunseen.federation.partition import elsewhere
from fedunseen.methods.closed_form.soft_statistics import added
from fedunseen.methods.closed_form.unlabelled import SoftSums, adaptable
from fedunseen.strategies import Instruction, Reply


class AdaptingByFile:
    """Adapts a finished run to the unlabelled samples of parties elsewhere, round by round.

    Args:
        run: in closed form, with class means.
        parties: how many are asked.
        masked: only the sum of all is known.

    Raises:
        ExperimentError: the run cannot adapt.
    """

    def __init__(self, run: Run, parties: int, masked: bool) -> None:
        self.run = run = run.seeds[0] if run.seeds else run
        run.check_one_model("to adapt", choosable=True)
        adaptable(run.method)
        if run.experiment.privacy.name != "none":
            raise ExperimentError(
                f"{run.path}: privacy.name = {run.experiment.privacy.name!r} adds noise, and soft sums have none: "
                "adapt a run without it"
            )
        tree = {key: value for key, value in run.experiment.to_dict().items() if key in ("data", "encoder", "method")}
        self.experiment = Experiment.from_dict({
            **tree, "run": {"seed": run.experiment.run.seed}, "partition": {"clients": parties},
            "strategy": {"rounds": 1}, "engine": {"name": "offline", "mode": "deployment"},
            "privacy": {"aggregation": "masked" if masked else "plain"}, "evaluation": {"selection": "last"},
        })  # fmt: skip
        check(StartFacts(self.experiment, deployed_here=True), OFFLINE)
        benchmark = load_data(self.experiment, run.experiment.run.seed)
        if benchmark.space.hashes() != run.space.hashes():
            raise ExperimentError(f"{run.path} has other classes than its data: adapt the run before it learned them")
        held = task_of(self.experiment).client_data(benchmark)
        federation = assemble(self.experiment, held, elsewhere(self.experiment.partition), scaler=run.scaler)
        assert isinstance(federation.engine, Offline)
        self.engine, self.strategy = federation.engine, SoftSums(federation.strategy, federation.method)
        self.strategy.offset, self.engine.strategy = offset_of(run), self.strategy
        assert isinstance(self.engine.job, Deployment)
        told = self.engine.job.experiment
        told = {**told, "data": {**told["data"], "unlabelled": "summed"}}  # parties read it, whatever the data here are
        self.engine.job = replace(self.engine.job, experiment=told)
        self.state, self.params = self.strategy.init(run.params, parties), run.params
        self.rounds: list[dict[str, Any]] = []

    @property
    def instruction(self) -> Instruction:
        """What the parties are sent in the next round."""
        return self.strategy.instruct(self.state, self.params, len(self.rounds))

    def merge(self, parts: Sequence[Params], down: int, up: int) -> None:
        """Take the soft sums of a round, and the bytes of its files."""
        sums = added(parts)
        reply = Reply(0, sums, 1, 1)
        self.state, self.params = self.strategy.merge(self.state, self.params, [reply], len(self.rounds))
        self.rounds.append({"sums": {name: value.tolist() for name, value in sums.items()}, "down": down, "up": up})

    def replay(self, rounds: Iterable[Mapping[str, Any]]) -> None:
        """Merge rounds that were merged before."""
        for one in rounds:
            expected = self.strategy.expects(self.instruction)
            sums = {name: torch.tensor(one["sums"][name], dtype=value.dtype) for name, value in expected.items()}
            self.merge([sums], one["down"], one["up"])

    def finish(self, out: Path) -> Run:
        """Write the adapted run."""
        adapted = SoftSums.adapted(self.params, self.strategy.notes(self.state))
        messages = len(self.rounds) * self.experiment.partition.clients
        bytes_ = {f"bytes_{way}": round(sum(one[way] for one in self.rounds) / messages, 1) for way in ("down", "up")}
        return write_adapted(self.run, adapted, out, None, {"rounds": len(self.rounds), **bytes_})
