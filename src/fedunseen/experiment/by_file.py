"""What parties elsewhere change in a finished run: rounds of unlabelled samples by file, or a removal of samples."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedunseen.core.errors import DataError, ExperimentError, RunDirectoryError
from fedunseen.core.parameters import Params, of_each_client
from fedunseen.engines.offline.coordinator import Offline
from fedunseen.engines.offline.files import Signed
from fedunseen.engines.remote.coordinator import Deployment, Distributed, DistributedSettings, Session
from fedunseen.engines.round import Arrivals
from fedunseen.experiment.assemble import assemble, load_data
from fedunseen.experiment.changed import offset_of, write_adapted
from fedunseen.experiment.forget import check_removable, client_of, parties_of, quantization_of, without, write_left
from fedunseen.experiment.result.run import Run
from fedunseen.experiment.rules import OFFLINE, StartFacts, check
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.federation import State
from fedunseen.federation.partition import elsewhere
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.methods.closed_form.soft_statistics import added
from fedunseen.methods.closed_form.unlabelled import SoftSums, adaptable
from fedunseen.secagg.masks import ALL
from fedunseen.strategies import Instruction, Reply


class ByFile:
    """A finished run, and what asks the parties for sums that change it."""

    total = 1

    def __init__(self, run: Run, parties: int, masked: bool) -> None:
        self.run = run
        if run.experiment.privacy.name != "none":
            raise ExperimentError(
                f"{run.path}: privacy.name = {run.experiment.privacy.name!r} has added noise, and these sums have "
                "none: give a run without it"
            )
        tree = {key: value for key, value in run.experiment.to_dict().items() if key in ("data", "encoder", "method")}
        self.experiment = Experiment.from_dict({
            **tree, "run": {"seed": run.experiment.run.seed}, "partition": {"clients": parties},
            "strategy": {"rounds": 1, "weights": "uniform"}, "engine": {"name": "offline", "mode": "deployment"},
            "privacy": {"aggregation": "masked" if masked else "plain"}, "evaluation": {"selection": "last"},
        })  # fmt: skip
        check(StartFacts(self.experiment, deployed_here=True), OFFLINE)
        self.benchmark = load_data(self.experiment, run.experiment.run.seed)
        if self.benchmark.space.hashes() != run.space.hashes():
            raise ExperimentError(f"{run.path} has other classes than its data: give the run before it learned them")
        held = self.experiment.task.client_data(self.benchmark)
        self.federation = assemble(self.experiment, held, elsewhere(self.experiment.partition), scaler=run.scaler)
        assert isinstance(self.federation.engine, Offline)
        self.engine = self.federation.engine
        self.rounds: list[dict[str, Any]] = []

    @property
    def instruction(self) -> Instruction:
        """What the parties are sent in the next round."""
        return Instruction({})

    def replay(self, rounds: Iterable[Mapping[str, Any]]) -> None:
        """Merge rounds that were merged before."""


class Adapting(ByFile):
    """Adapts a run to the parties' unlabelled samples, round by round."""

    def __init__(self, run: Run, parties: int, masked: bool) -> None:
        run = run.first
        run.check_one_model("to adapt", choosable=True)
        adaptable(run.method)
        super().__init__(run, parties, masked)
        self.strategy = SoftSums(self.federation.strategy, self.federation.method)
        self.strategy.offset, self.engine.strategy = offset_of(run), self.strategy
        self.total = self.strategy.rounds
        assert isinstance(self.engine.job, Deployment)
        tree = self.engine.job.experiment
        tree = {**tree, "data": {**tree["data"], "unlabelled": "summed"}}  # parties read it, for any data here
        self.engine.job = replace(self.engine.job, experiment=tree)
        self.state, self.params = self.strategy.init(run.params, parties), run.params

    @property
    def instruction(self) -> Instruction:
        """The scores of the model so far."""
        return self.strategy.instruct(self.state, self.params, len(self.rounds))

    def _add(self, parts: Sequence[Params], down: int, up: int) -> None:
        sums = added(parts)
        reply = Reply(0, sums, 1, 1)
        self.state, self.params = self.strategy.merge(self.state, self.params, [reply], len(self.rounds))
        self.rounds.append({"sums": {name: value.tolist() for name, value in sums.items()}, "down": down, "up": up})

    def merge(self, plan: Signed, brought: Arrivals) -> None:
        """Take the soft sums of a round."""
        self._add([dict(reply.update) for reply in brought.replies], brought.bytes_down, brought.bytes_up)

    def replay(self, rounds: Iterable[Mapping[str, Any]]) -> None:
        """Merge rounds that were merged before."""
        for one in rounds:
            expected = self.strategy.expects(self.instruction)
            sums = {name: torch.tensor(one["sums"][name], dtype=value.dtype) for name, value in expected.items()}
            self._add([sums], one["down"], one["up"])

    def finish(self, out: Path) -> Run:
        """Write the adapted run."""
        adapted = SoftSums.adapted(self.params, self.strategy.notes(self.state))
        messages = len(self.rounds) * self.experiment.partition.clients
        bytes_ = {f"bytes_{way}": round(sum(one[way] for one in self.rounds) / messages, 1) for way in ("down", "up")}
        return write_adapted(self.run, adapted, out, None, {"rounds": len(self.rounds), **bytes_})


class Removing(ByFile):
    """Removes samples of some parties; under masks only their total is known."""

    settings = DistributedSettings.model_validate({"name": "removal", "deliver": False})
    """How long parties at the other end of a link are waited for."""

    def __init__(self, run: Run, parties: Sequence[str], masked: bool, removing: Sequence[str]) -> None:
        check_removable(run, True)
        quantization_of(run)
        if stray := sorted(set(removing) - set(parties)):
            raise ExperimentError(f"--removing names {stray[0]!r}, which is not among the parties that are asked")
        if not masked and (idle := sorted(set(parties) - set(removing))):
            raise ExperimentError(f"--parties names {idle[0]!r}, which hides no one without masks: leave it out")
        super().__init__(run, len(parties), masked)
        self.removing = list(removing)
        assert isinstance(self.engine.job, Deployment)
        extra = {"removing": self.removing, "before": run.result["sums_sha256"]}
        self.engine.job = replace(self.engine.job, extra=extra)

    def merge(self, plan: Signed, brought: Arrivals) -> None:
        """Subtract what is removed."""
        self._subtract(brought.replies, brought.masked is not None, plan.plan.digest)

    @property
    def mark(self) -> str:
        """What names this removal from this run, with the same characters as a run."""
        key = f"{self.run.result['sums_sha256']} {self.removing}"
        return hashlib.sha256(key.encode()).hexdigest()[:16]

    def over(self, session: Session, out: Path) -> Run:
        """Write the run without what parties at the other end of a link remove under masks.

        The parties that took part in the run are asked, since the parties open sums of one roster alone.
        """
        base, known = self.engine, parties_of(self.run)
        took_part = {known[client] for client in self.run.metrics[-1]["participants"]}
        asked = [client for client, party in enumerate(session.parties) if party.name in took_part]
        engine = Distributed(base.strategy, self.settings, base.classes, base.job, masks=base.masks)
        session.run = self.mark
        engine.connect(session)
        result = engine.round(0, {}, engine.strategy.expects(self.instruction), {}, asked)
        assert result.masked is not None
        self._subtract([result.masked.reply], True, self.mark)
        done = self.finish(out)
        engine.finish({}, {})
        return done

    def _subtract(self, replies: Sequence[Reply], masked: bool, mark: str) -> None:
        """Take statistics out of the run's; ``mark`` is noted, so that the same are not subtracted twice."""
        run, names = self.run, self.removing
        checkpoint = RunDirectory(run.path).newest_checkpoint(torch.device("cpu"))
        if checkpoint is None:
            raise RunDirectoryError(f"{run.path} has lost its checkpoint, which holds the sums: run it again")
        server, params = checkpoint.server, checkpoint.params
        if masked and ALL not in of_each_client(server):
            server = {}  # which party's sums are smaller now is not known
        for reply, name in zip(replies, names[:1] if masked else names, strict=True):
            client = ALL if masked else client_of(run, name)
            server, params = without(run, server, params, client, dict(reply.update))
        gone = checkpoint.params["count"] - params["count"]
        before = dict(run.manifest.get("removed", {}))
        for name in names:
            if before.get(name) == "all" or mark in before.get(name, []):
                raise DataError(f"{name} was removed from {run.path} before: plan again without it")
            before[name] = [*before.get(name, []), mark]
        what = f"{int(gone.sum())} samples of {', '.join(names)}"
        noted = {"forgotten": [*run.manifest.get("forgotten", ()), what], "removed": before}
        self._left = State(checkpoint.round, server, params, {}), gone, noted

    def finish(self, out: Path) -> Run:
        """Write the run without what is removed."""
        state, gone, noted = self._left
        write_left(self.run, self.benchmark, out, state, None, gone, noted)
        return self.run.reopened(out)
