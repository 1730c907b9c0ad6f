"""A party is taken out of a finished run: exactly, where the server has kept each party's sums."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedunseen.core.errors import ExperimentError, RunDirectoryError, unknown
from fedunseen.core.files import free_folder, parse_json, whole_folder, write_json, write_tensors
from fedunseen.core.registry import find
from fedunseen.data import Benchmark
from fedunseen.engines import RoundResult
from fedunseen.experiment.assemble import load_data
from fedunseen.experiment.removal import record_removal, removed, without
from fedunseen.experiment.result.remeasure import judged
from fedunseen.experiment.result.run import Run
from fedunseen.experiment.running import run as train_run
from fedunseen.experiment.schema import Experiment
from fedunseen.federation import State
from fedunseen.federation.evaluator import Choice
from fedunseen.federation.loop import Loop, round_metrics
from fedunseen.federation.run_directory import RunDirectory, parts_of
from fedunseen.strategies import Reply
from fedunseen.strategies.summed import forget as without_party
from fedunseen.strategies.summed import kept_sums

_MADE_ANEW = ("checkpoints", "selection", "engine", "report.html", "README.md", "result.json", "metrics.jsonl")


def forget(
    run: Run,
    party: str,
    out: str | Path,
    samples: Sequence[int] = (),
    removal: Path | None = None,
    consent: bool = False,
) -> Run:
    """Write the run as it would be if a party, or some of its samples, had never taken part.

    Of a method in closed form it is that run bit for bit, and nothing is trained again. A trained method is trained
    again, from the last state that the party had no share in, if that was kept (``run.forgettable``), or from the
    start. That is the run without the party, bit for bit, unless the rounds before were drawn (``strategy.fraction``)
    from clients that included the party. What features were scaled by stays.

    Args:
        run: one seed; its data are read again.
        party: the name of a party of a deployment, or the number of a client, counted from 0.
        out: the new run directory.
        samples: positions among the party's training samples, counted from 0; none: all. For a closed form.
        removal: a file of the party's statistics (:func:`~fedunseen.experiment.removal.write_removal`), where its
            samples are elsewhere.
        consent: remove fewer samples than ``method.removal_batch``.

    Raises:
        FedUnseenError: the party, or a part of it, cannot be removed; nothing is written.
    """
    experiment = run.experiment
    check_removable(run, bool(samples or removal is not None))
    folder, client = free_folder(out), client_of(run, party)
    if find("method", experiment.method.name).trained:
        return _train_again(run, party, client, folder)
    benchmark = load_data(experiment, experiment.run.seed)
    checkpoint = RunDirectory(run.path).newest_checkpoint(torch.device("cpu"))
    if checkpoint is None:
        raise RunDirectoryError(f"{run.path} has lost its checkpoint, which holds each party's sums: run it again")
    kept = kept_sums(checkpoint.server)
    record = record_removal(run, party, client, samples, removal, client in kept)
    if client in kept and not samples and removal is None:
        server, params = without_party(checkpoint.server, client)
        gone = kept[client]["count"]
    else:
        part = removed(run, benchmark, client, samples, removal, consent)
        server, params = without(run, checkpoint.server, checkpoint.params, client, part)
        gone = part["count"]
    what = f"{int(gone.sum())} samples of {party}" if samples else party
    noted = {"forgotten": [*run.manifest.get("forgotten", ()), what], "removed": record}
    write_left(run, benchmark, folder, State(checkpoint.round, server, params, {}), client, gone, noted)
    return run.reopened(folder)


def write_left(
    run: Run,
    benchmark: Benchmark,
    folder: Path,
    state: State,
    client: int | None,
    gone: Tensor,
    noted: Mapping[str, Any],
) -> None:
    """Write the run whose state is that without ``gone`` samples of a client, measured again."""
    federation, task, space = judged(run, benchmark, state.round, state.params)
    kept, lines = kept_sums(state.server), [dict(line) for line in run.metrics]
    replies = [Reply(k, sums, int((sums["count"] > 0).sum()), int(sums["count"].sum())) for k, sums in kept.items()]
    result = RoundResult(
        state.server, state.params, replies, lambda place: dict(replies[place].update), {}, 0, 0
    )  # fmt: skip
    (model,) = federation.models(state)
    loop = Loop(federation, state.round, state, result=result)
    measured = task.measure(loop, [model], Choice(None, float(run.result["calibration_factor"])))
    whose = {"participants": lines[-1]["participants"]} if max(kept, default=-1) < 0 else {}  # of a total no one knows
    lines[-1] |= {**round_metrics(federation, state, result), **measured, **whose}
    with whole_folder(folder, run.path, _MADE_ANEW) as partial:
        write_json(partial / "manifest.json", {**run.manifest, **noted})
        directory = RunDirectory(partial)
        for line in lines:
            directory.add_metrics(line)
        write_tensors(directory.model_path, model)
        space.save(partial / "classes.csv")
        directory.save_checkpoint(state)
        numbers = task.numbers(lines, len(lines), directory.model_path) | federation.method.facts(state.params)
        numbers = {**run.result, **numbers}
        drawn = task.summary(model, numbers)
        counts = np.array(drawn["client_counts"])
        if client is not None:
            counts[client] -= gone.numpy().astype(counts.dtype)[: counts.shape[1]]
        write_tensors(partial / "evaluation.safetensors", {**drawn, "client_counts": counts})
        directory.finish({**numbers, "run": str(folder), "forgotten": noted["forgotten"]})


def check_removable(run: Run, in_part: bool) -> None:
    """Refuse a run that a party, or a part of one, cannot be taken out of."""
    experiment, trained = run.experiment, find("method", run.method_name).trained
    if run.seeds:
        raise RunDirectoryError(f"{run.path} holds a run for each seed: name one of its folders, for example seed-0")
    if trained and in_part:
        raise ExperimentError(
            f"method.name = {run.method_name!r} is trained, so that single samples are in every parameter: leave "
            "--samples and --removal out, or use a method in closed form"
        )
    if trained and experiment.deployed:
        raise ExperimentError(
            f"method.name = {run.method_name!r} is trained, so that every party is in every parameter, and the "
            "parties' data are not here: host the run again without the party, or a method in closed form"
        )
    if not find("strategy", experiment.strategy.name).merges or run.pooled:
        raise ExperimentError(
            f"under strategy.name = {experiment.strategy.name!r} no party's updates are merged: run with a strategy "
            "that merges, for example fedavg"
        )
    if not trained and experiment.privacy.name != "none":
        raise ExperimentError(
            f"privacy.name = {experiment.privacy.name!r} has released noisy sums, from which nothing can be taken out: "
            "run it again without the party"
        )


def _train_again(run: Run, party: str, client: int, folder: Path) -> Run:
    """Train without a party, from the last state in which it had no share."""
    experiment = run.experiment
    gone = sorted({*experiment.partition.without, client})
    if len(gone) == experiment.partition.clients:
        raise ExperimentError(f"client {client} is the only one: without it nothing is left")
    without = Experiment.from_dict(run.manifest["experiment"], {"partition.without": gone})
    first = next((i for i, line in enumerate(run.metrics) if client in line["participants"]), len(run.metrics))
    old, new = RunDirectory(run.path), RunDirectory(folder)
    # A state of the buffered engine has updates in it that are on their way, of any client.
    kept = old.kept_checkpoint(first) if experiment.engine.name != "buffered" else None
    if kept is not None:
        done, path = kept
        new.create({**run.manifest, "experiment": without.to_dict()})
        new.checkpoints.mkdir()
        shutil.copy2(path, new.checkpoints / f"{done:06d}.safetensors")
        for part in parts_of(path):
            shutil.copy2(part, new.checkpoints / part.name)
        if old.spaces.is_dir():
            shutil.copytree(old.spaces, new.spaces)
        for line in run.metrics[:done]:
            new.add_metrics(line)
    made = train_run(without, folder, resume=kept is not None)
    again = len(made.metrics) - (kept[0] if kept else 0)
    forgotten = [*run.manifest.get("forgotten", ()), party]
    write_json(folder / "manifest.json", {**made.manifest, "forgotten": forgotten})
    new.finish({**made.result, "forgotten": forgotten, "rounds_trained_again": again})
    return run.reopened(folder)


def parties_of(run: Run) -> list[str]:
    """Return the names of the clients; of a simulation their numbers."""
    listed = run.path / "parties.json"
    names = [str(client) for client in range(run.experiment.partition.clients)]
    if listed.exists():
        try:
            names = [str(status["name"]) for status in parse_json(listed.read_bytes())]
        except (OSError, ValueError, LookupError, TypeError):
            raise RunDirectoryError(f"{listed} is damaged: restore it from the coordinator's run directory") from None
    return names


def client_of(run: Run, party: str) -> int:
    """Return the place of a party among the clients."""
    names = parties_of(run)
    if party not in names:
        raise ExperimentError(f"--party {party}: " + unknown("party", party, names))
    return names.index(party)
