"""A party is taken out of a finished run: exactly, where the server has kept each party's sums."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedunseen.core.errors import ExperimentError, RunDirectoryError, unknown
from fedunseen.core.files import free_folder, parse_json, whole_folder, write_json, write_tensors
from fedunseen.core.registry import find
from fedunseen.engines import DistributedSettings, RoundResult
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
    from clients of whom the party was one. What features were scaled by stays.
    """
    if find("method", run.experiment.method.name).trained:
        if samples or removal is not None:
            raise ExperimentError(
                f"method.name = {run.method_name!r} is trained, so that single samples are in every parameter: leave "
                "--samples and --removal out, or use a method in closed form"
            )
        return _train_again(run, party, out)
    experiment = run.experiment
    _check_sums(run)
    folder = free_folder(out)
    client = _client(run, party)
    benchmark = load_data(experiment, experiment.run.seed)
    directory = RunDirectory(run.path)
    checkpoint = directory.newest_checkpoint(torch.device("cpu"))
    if checkpoint is None:
        raise RunDirectoryError(f"{run.path} has lost its checkpoint, which holds each party's sums: run it again")
    kept = client in kept_sums(checkpoint.server)
    record = record_removal(run, party, client, samples, removal, kept)
    if kept and not samples and removal is None:
        server, params = without_party(checkpoint.server, client)
        gone = kept_sums(checkpoint.server)[client]["count"]
    else:
        part = removed(run, benchmark, client, samples, removal, consent)
        server, params = without(run, checkpoint.server, checkpoint.params, client, part)
        gone = part["count"]
    federation, task, space = judged(run, benchmark, checkpoint.round, params)
    state = State(checkpoint.round, server, params, {})
    replies = [
        Reply(k, sums, int((sums["count"] > 0).sum()), int(sums["count"].sum()))
        for k, sums in kept_sums(server).items()
    ]
    result = RoundResult(server, params, replies, lambda place: dict(replies[place].update), {}, 0, 0)
    choice = Choice(None, float(run.result["calibration_factor"]))
    (model,) = federation.models(state)
    loop = Loop(federation, state.round, state, result=result)
    line = {**round_metrics(federation, state, result), **task.measure(loop, [model], choice)}
    what = f"{int(gone.sum())} samples of {party}" if samples else party
    forgotten = [*run.manifest.get("forgotten", ()), what]
    with whole_folder(folder, run.path, _MADE_ANEW) as partial:
        write_json(partial / "manifest.json", {**run.manifest, "forgotten": forgotten, "removed": record})
        directory = RunDirectory(partial)
        lines = [{**old, **(line if i == len(run.metrics) - 1 else {})} for i, old in enumerate(run.metrics)]
        for one in lines:
            directory.add_metrics(one)
        write_tensors(directory.model_path, model)
        space.save(partial / "classes.csv")
        directory.save_checkpoint(state)
        numbers = task.numbers(lines, len(lines), directory.model_path) | federation.method.facts(params)
        numbers = {**run.result, **numbers}
        drawn = task.summary(model, numbers)
        counts = np.array(drawn["client_counts"])
        counts[client] -= gone.numpy().astype(counts.dtype)[: counts.shape[1]]
        write_tensors(partial / "evaluation.safetensors", {**drawn, "client_counts": counts})
        directory.finish({**numbers, "run": str(folder), "forgotten": forgotten})
    return run.reopened(folder)


def _check_sums(run: Run) -> None:
    """Refuse a run whose sums nothing can be taken out of."""
    experiment = run.experiment
    if run.seeds:
        raise RunDirectoryError(f"{run.path} holds a run for each seed: name one of its folders, for example seed-0")
    if not find("strategy", experiment.strategy.name).merges or run.pooled:
        raise ExperimentError(
            f"under strategy.name = {experiment.strategy.name!r} no party's sums are kept at a server: run with a "
            "strategy that merges, for example fedavg"
        )
    if experiment.privacy.name != "none":
        raise ExperimentError(
            f"privacy.name = {experiment.privacy.name!r} has released noisy sums, from which nothing can be taken out: "
            "run it again without the party"
        )


def _train_again(run: Run, party: str, out: str | Path) -> Run:
    """Train without a party, from the last state in which it had no share."""
    experiment = run.experiment
    if run.seeds:
        raise RunDirectoryError(f"{run.path} holds a run for each seed: name one of its folders, for example seed-0")
    name = experiment.strategy.name
    if isinstance(experiment.engine, DistributedSettings) and experiment.engine.mode == "deployment":
        raise ExperimentError(
            f"method.name = {experiment.method.name!r} is trained, so that every party is in every parameter, and the "
            "parties' data are not here: host the run again without the party, or a method in closed form"
        )
    if not find("strategy", name).merges or run.pooled:
        raise ExperimentError(
            f"under strategy.name = {name!r} no party's updates are merged: run with a strategy that merges, for "
            "example fedavg"
        )
    folder, client = free_folder(out), _client(run, party)
    gone = sorted({*experiment.partition.without, client})
    if len(gone) == experiment.partition.clients:
        raise ExperimentError(f"client {client} is the only one: without it nothing is left")
    without = Experiment.from_dict(run.manifest["experiment"], {"partition.without": gone})
    first = next((i for i, line in enumerate(run.metrics) if client in line["participants"]), len(run.metrics))
    old, new = RunDirectory(run.path), RunDirectory(folder)
    # A state of the buffered engine has updates in it that are on their way, of whomever.
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


def _client(run: Run, party: str) -> int:
    """Return the place of a party among the clients."""
    listed = run.path / "parties.json"
    clients = run.experiment.partition.clients
    names = [str(client) for client in range(clients)]
    if listed.exists():
        try:
            names = [str(one["name"]) for one in parse_json(listed.read_bytes())]
        except (OSError, ValueError, LookupError, TypeError):
            raise RunDirectoryError(f"{listed} is damaged: restore it from the coordinator's run directory") from None
    if party not in names:
        raise ExperimentError(f"--party {party}: " + unknown("party", party, names))
    return names.index(party)
