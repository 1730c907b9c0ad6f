"""What parties elsewhere change in a finished run: rounds of unlabelled samples by file, or a
removal of samples.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from fedunseen.confidence.counted import fit_counts
from fedunseen.confidence.measured import measured
from fedunseen.confidence.priors import asked_unseen
from fedunseen.core.errors import DataError, ExperimentError, RunDirectoryError
from fedunseen.core.files import whole_folder, write_tensors
from fedunseen.core.parameters import Params, of_each_client
from fedunseen.deploy.offline.coordinator import Offline, plan_of
from fedunseen.deploy.offline.files import Signed
from fedunseen.deploy.remote.clients import MaskedParties
from fedunseen.deploy.remote.coordinator import DistributedSettings
from fedunseen.deploy.remote.masked import Masked
from fedunseen.deploy.remote.wire import PLAN_BEFORE
from fedunseen.deploy.rules import OFFLINE
from fedunseen.deploy.secagg.masks import ALL
from fedunseen.experiment.assemble import assemble, load_data
from fedunseen.experiment.changed import judged, write_adapted
from fedunseen.experiment.fit_confidence import asked_about, can_leave_out_of
from fedunseen.experiment.forget import (
    check_removable,
    client_of,
    parties_of,
    write_left,
)
from fedunseen.experiment.held_out import held_out_of
from fedunseen.experiment.manifest import encoder_of
from fedunseen.experiment.reasons import reason_tensors
from fedunseen.experiment.result.run import Run
from fedunseen.experiment.rules import StartFacts, check
from fedunseen.experiment.run_model import MODEL_FILES
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.engine import Session
from fedunseen.federation.federation import State
from fedunseen.federation.partition import elsewhere
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.federation.server_step import Arrivals
from fedunseen.methods.closed_form.soft_statistics import added
from fedunseen.methods.closed_form.unlabelled import SoftSums, adaptable
from fedunseen.plans import quantization_of
from fedunseen.statistics import without_party
from fedunseen.strategies import Instruction, Reply


class ByFile:
    """A finished run, and what asks the parties for sums that change it."""

    total = 1
    evaluation: Mapping[str, Any] = MappingProxyType({"selection": "last"})

    def __init__(self, run: Run, parties: int, masked: bool) -> None:
        self.run = run
        if run.experiment.privacy.name != "none":
            raise ExperimentError(
                f"{run.path}: privacy.name = {run.experiment.privacy.name!r} has added noise, and "
                "these sums have none: give a run without it"
            )
        tree = {
            key: value
            for key, value in run.experiment.to_dict().items()
            if key in ("data", "encoder", "method")
        }
        privacy = {"aggregation": "masked" if masked else "plain"}
        if masked:
            privacy["dropouts"] = run.experiment.privacy.dropouts
        self.experiment = Experiment.from_dict({
            **tree, "run": {"seed": run.experiment.run.seed}, "partition": {"clients": parties},
            "strategy": {"rounds": 1, "weights": "uniform"}, "engine": {"name": "offline", "mode": "deployment"},
            "privacy": privacy, "evaluation": dict(self.evaluation),
        })  # fmt: skip
        check(StartFacts(self.experiment, deployed_here=True), OFFLINE)
        self.benchmark = load_data(self.experiment, run.experiment.run.seed)
        if self.benchmark.space.hashes() != run.space.hashes():
            raise ExperimentError(
                f"{run.path} has other classes than its data: give the run before it learned them"
            )
        held = self.experiment.task.client_data(self.benchmark)
        self.federation = assemble(
            self.experiment, held, elsewhere(self.experiment.partition), scaler=run.scaler
        )
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
        adaptable(run.method, run.params)
        super().__init__(run, parties, masked)
        self.strategy = SoftSums(self.federation.strategy, self.federation.method)
        self.strategy.offset = run.model.calibration.offset
        self.engine.strategy = self.strategy
        self.total = self.strategy.rounds
        clients = self.engine.clients
        tree = clients.job.experiment
        # parties read it, for any data here
        tree = {**tree, "data": {**tree["data"], "unlabelled": "summed"}}
        clients.job = replace(clients.job, experiment=tree)
        self.state = self.strategy.init(run.params, parties)
        self.params = run.params

    @property
    def instruction(self) -> Instruction:
        """The scores of the model so far."""
        return self.strategy.instruct(self.state, self.params, len(self.rounds))

    def _add(self, parts: Sequence[Params], down: int, up: int) -> None:
        sums = added(parts)
        reply = Reply(0, sums, 1, 1)
        self.state, self.params = self.strategy.merge(
            self.state, self.params, [reply], len(self.rounds)
        )
        self.rounds.append(
            {"sums": {name: value.tolist() for name, value in sums.items()}, "down": down, "up": up}
        )

    def merge(self, plan: Signed, brought: Arrivals) -> None:
        """Take the soft sums of a round."""
        self._add(
            [dict(reply.update) for reply in brought.replies], brought.bytes_down, brought.bytes_up
        )

    def replay(self, rounds: Iterable[Mapping[str, Any]]) -> None:
        """Merge rounds that were merged before."""
        for record in rounds:
            expected = self.strategy.expects(self.instruction)
            sums = {
                name: torch.tensor(record["sums"][name], dtype=value.dtype)
                for name, value in expected.items()
            }
            self._add([sums], record["down"], record["up"])

    def finish(self, out: Path) -> Run:
        """Write the adapted run."""
        adapted = SoftSums.adapted(self.params, self.strategy.notes(self.state))
        messages = len(self.rounds) * self.experiment.partition.clients
        bytes_ = {
            f"bytes_{direction}": round(
                sum(record[direction] for record in self.rounds) / messages, 1
            )
            for direction in ("down", "up")
        }
        return write_adapted(self.run, adapted, out, None, {"rounds": len(self.rounds), **bytes_})


class Counting(ByFile):
    """Asks the parties how sure models without some classes are of their samples: one message."""

    evaluation: Mapping[str, Any] = MappingProxyType({"selection": "last", "confidence": "asking"})

    def __init__(self, run: Run, parties: int, masked: bool) -> None:
        run = run.first
        run.check_one_model("to ask how sure it is", choosable=True)
        asks = run.experiment.evaluation.confidence
        checkpoint = RunDirectory(run.path).newest_checkpoint(torch.device("cpu"))
        sums = {} if checkpoint is None else checkpoint.params
        if asks in ("draws", "none") or "square" not in sums:
            why = (
                f"evaluation.confidence = {asks!r} asks nothing of parties: plan another run"
                if asks in ("draws", "none")
                else "it has no merged sums that parties could be asked about: give the run that "
                "merged the answers"
            )
            raise ExperimentError(f"{run.path}: {why}")
        super().__init__(run, parties, masked)
        if not can_leave_out_of(self.federation, sums):
            raise ExperimentError(
                f"{run.path} has too few classes or samples for models without some of its classes"
            )
        offset = run.model.calibration.offset + self.federation.method.own_offset(run.params)
        self.question = asked_about(self.federation, run.params, sums, offset)

    @property
    def instruction(self) -> Instruction:
        """The merged sums, with what to count."""
        return Instruction(self.question)

    def merge(self, plan: Signed, brought: Arrivals) -> None:
        """Take the counts."""
        self.counts = added([dict(reply.update) for reply in brought.replies])

    def finish(self, out: Path) -> Run:
        """Write the run with the confidence that follows.

        Raises:
            DataError: no party has counted an answer.
        """
        run = self.run.first
        rounds = int(run.result["rounds"])
        federation, task, _ = judged(run, self.benchmark, rounds, run.params)
        share = asked_unseen(run.experiment.evaluation.prior, run.space)
        scales = self.question["scales"].numpy()
        sure = fit_counts(self.counts, scales, share, federation.method.width)
        if sure is None:
            raise DataError(
                "the parties have counted no answer, since their classes have too few samples: "
                "keep the run as it is"
            )
        offset = run.model.calibration.offset
        numbers = measured(held_out_of(federation, run.params), sure, offset)
        model = replace(run.model, confidence=sure)
        encoder = encoder_of(run.experiment, task.benchmark)
        drawn = run.evaluation
        drawn = {**drawn, **reason_tensors(model, task.benchmark, drawn, encoder)}
        answers = "evaluation.safetensors"
        made_anew = "further", "report.html", "README.md", "result.json", answers, *MODEL_FILES
        with whole_folder(out, run.path, made_anew) as partial:
            model.save(partial / MODEL_FILES[0])
            write_tensors(partial / answers, drawn)
            confidence = {**numbers, "from": "histograms"}
            RunDirectory(partial).finish({**run.result, "confidence": confidence, "run": str(out)})
        return run.reopened(out)


class Removing(ByFile):
    """Removes samples of some parties; under masks only their total is known."""

    settings = DistributedSettings.model_validate({"name": "removal", "deliver": False})
    """How long parties at the other end of a link are waited for."""

    def __init__(
        self, run: Run, parties: Sequence[str], masked: bool, removing: Sequence[str]
    ) -> None:
        check_removable(run, True)
        quantization_of(run.method)
        if stray := sorted(set(removing) - set(parties)):
            raise ExperimentError(
                f"--removing names {stray[0]!r}, which is not among the parties that are asked"
            )
        if not masked and (idle := sorted(set(parties) - set(removing))):
            raise ExperimentError(
                f"--parties names {idle[0]!r}, which hides no one without masks: leave it out"
            )
        super().__init__(run, len(parties), masked)
        self.removing = list(removing)
        extra = {"removing": self.removing, "before": run.result["sums_sha256"]}
        if of := plan_of(run.path):
            extra[PLAN_BEFORE] = of
        clients = self.engine.clients
        clients.job = replace(clients.job, extra=extra)

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

        The parties that took part in the run are asked, since the parties open sums of one roster
        alone.
        """
        base = self.engine
        parties = parties_of(self.run)
        took_part = {parties[client] for client in self.run.metrics[-1]["participants"]}
        asked_clients = [
            client for client, party in enumerate(session.parties) if party.name in took_part
        ]
        assert base.masks is not None
        clients = MaskedParties(self.settings.patience, base.clients.job, base.masks)
        engine = Masked(base.strategy, self.settings, base.classes, clients)
        session.run = self.mark
        engine.connect(session)
        result = engine.round(0, {}, engine.strategy.expects(self.instruction), {}, asked_clients)
        assert result.masked is not None
        self._subtract([result.masked.reply], True, self.mark)
        done = self.finish(out)
        engine.finish({}, {})
        return done

    def _subtract(self, replies: Sequence[Reply], masked: bool, mark: str) -> None:
        """Take statistics out of the run's; ``mark`` is noted, so that the same are not subtracted
        twice.
        """
        run = self.run
        names = self.removing
        checkpoint = RunDirectory(run.path).newest_checkpoint(torch.device("cpu"))
        if checkpoint is None:
            raise RunDirectoryError(
                f"{run.path} has lost its checkpoint, which holds the sums: run it again"
            )
        server = checkpoint.server
        params = checkpoint.params
        if masked and ALL not in of_each_client(server):
            server = {}  # which party's sums are smaller now is not known
        for reply, name in zip(replies, names[:1] if masked else names, strict=True):
            client = ALL if masked else client_of(run, name)
            server, params = without_party(run.method, server, params, client, dict(reply.update))
        removed_counts = checkpoint.params["count"] - params["count"]
        before = dict(run.manifest.get("removed", {}))
        for name in names:
            if before.get(name) == "all" or mark in before.get(name, []):
                raise DataError(f"{name} was removed from {run.path} before: plan again without it")
            before[name] = [*before.get(name, []), mark]
        removed = f"{int(removed_counts.sum())} samples of {', '.join(names)}"
        noted = {"forgotten": [*run.manifest.get("forgotten", ()), removed], "removed": before}
        self._left = State(checkpoint.round, server, params, {}), removed_counts, noted

    def finish(self, out: Path) -> Run:
        """Write the run without what is removed."""
        state, removed_counts, noted = self._left
        write_left(self.run, self.benchmark, out, state, None, removed_counts, noted)
        return self.run.reopened(out)
