"""A party, or samples of it, are taken out of a finished run: exactly, where the server has kept sums.

Quantized statistics are whole numbers, so nothing of what was removed remains in plain or in masked totals. Limitation:
an observer of the totals before and after learns exactly what was removed. So single samples are removed
in batches (``method.removal_batch``), or with explicit consent.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedunseen.core.errors import DataError, ExperimentError, FedUnseenError, RunDirectoryError, unknown
from fedunseen.core.files import free_folder, parse_json, whole_folder, write_json, write_tensors
from fedunseen.core.parameters import Params, of_each_client
from fedunseen.core.registry import find
from fedunseen.data import Benchmark, Quantization
from fedunseen.engines.round import RoundResult
from fedunseen.experiment.assemble import load_data, partition_of
from fedunseen.experiment.changed import judged
from fedunseen.experiment.client_data import PartyData, named_samples
from fedunseen.experiment.result.run import Run
from fedunseen.experiment.running import run as train_run
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.evaluator import Choice
from fedunseen.federation.federation import State
from fedunseen.federation.loop import Loop, round_metrics
from fedunseen.federation.run_directory import RunDirectory, parts_of
from fedunseen.methods.closed_form.base import ClosedForm, ClosedFormSettings
from fedunseen.methods.closed_form.statistics import check, statistics, subtract, validate_statistics
from fedunseen.strategies import Reply
from fedunseen.strategies.summed import forget as without_party

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
        removal: a file of the party's statistics (:func:`~fedunseen.experiment.forget.write_removal`), where its
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
    kept = of_each_client(checkpoint.server)
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
    kept, lines = of_each_client(state.server), [dict(line) for line in run.metrics]
    replies = [Reply(k, sums, int((sums["count"] > 0).sum()), int(sums["count"].sum())) for k, sums in kept.items()]
    result = RoundResult(
        replies, lambda place: {}, {}, 0, 0, state=state.server, params=state.params,
        models=lambda place: dict(replies[place].update),
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
    others = Experiment.from_dict(run.manifest["experiment"], {"partition.without": gone})
    first = next((i for i, line in enumerate(run.metrics) if client in line["participants"]), len(run.metrics))
    old, new = RunDirectory(run.path), RunDirectory(folder)
    # A state of the buffered engine has updates in it that are on their way, of any client.
    kept = old.kept_checkpoint(first) if experiment.engine.name != "buffered" else None
    if kept is not None:
        done, path = kept
        new.create({**run.manifest, "experiment": others.to_dict()})
        new.checkpoints.mkdir()
        shutil.copy2(path, new.checkpoints / f"{done:06d}.safetensors")
        for part in parts_of(path):
            shutil.copy2(part, new.checkpoints / part.name)
        if old.spaces.is_dir():
            shutil.copytree(old.spaces, new.spaces)
        for line in run.metrics[:done]:
            new.add_metrics(line)
    made = train_run(others, folder, resume=kept is not None)
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


def write_removal(run: Run, folder: Path, out: Path, samples: Sequence[int] = (), consent: bool = False) -> int:
    """Write the statistics of a party's samples, for the coordinator to subtract; return how many samples there are."""
    if out.exists():
        raise ExperimentError(f"{out} exists already: name another file with --out")
    benchmark = PartyData(folder, settings=run.experiment.data.model_dump(exclude_none=True)).benchmark
    rows = named_samples(_batch(run), benchmark.train, samples, consent)
    write_tensors(out, _statistics(run, benchmark, rows), {})
    return len(rows)


def removed(
    run: Run, benchmark: Benchmark, client: int, samples: Sequence[int], removal: Path | None, consent: bool
) -> Params:
    """Return the statistics to subtract: those of a file, or of a simulation's client."""
    if removal is not None:
        return _read_removal(run, removal)
    experiment = run.experiment
    if experiment.deployed:
        raise ExperimentError(
            "the party's samples are not here, and its sums were not kept: let it write them with `fedunseen sums "
            "--removal`, and give the file with --removal"
        )
    held = partition_of(experiment, benchmark, experiment.run.seed).clients[client]
    return _statistics(run, benchmark, named_samples(_batch(run), held, samples, consent))


def record_removal(
    run: Run, party: str, client: int, samples: Sequence[int], removal: Path | None, kept: bool
) -> dict[str, Any]:
    """Return what has been removed of each party, this removal included: nothing is subtracted twice.

    ``kept``: the party's own sums are kept, without what was removed before.
    """
    before = dict(run.manifest.get("removed", {}))
    mine = before.get(party, [])
    if mine == "all":
        raise FedUnseenError(
            f"no sums of client {client} are kept, so it cannot be forgotten: {party} was removed from this run before"
        )
    new: list[Any] = [int(sample) for sample in samples]
    if removal is not None:
        new = [hashlib.sha256(removal.read_bytes()).hexdigest()] if removal.is_file() else [str(removal)]
    if again := [item for item in new if item in mine]:
        raise DataError(
            f"sample or file {again[0]} of {party} is never a part of what is left: it was removed before, leave it out"
        )
    if not new and mine and not kept:
        raise FedUnseenError(f"samples of {party} were removed from this run before: name the others with --samples")
    return {**before, party: [*mine, *new] if new else "all"}


def without(run: Run, server: Params, params: Params, client: int, part: Params) -> tuple[Params, Params]:
    """Return the server's state and the total without ``part``."""
    space, quantization = run.space, quantization_of(run)
    part = {**part, "space": params["space"]}
    left = subtract(params, part, space, quantization)
    if why := validate_statistics(left, None, quantization):
        raise DataError(f"what is to be removed was never a part of the sums: without it {why}")
    kept = of_each_client(server)
    if client in kept:
        rest = subtract(kept[client], part, space, quantization)
        if not bool(rest["count"].any()):
            return without_party(server, client)
        server = server | {f"client/{client}/{name}": value for name, value in rest.items()}
    return server, left


def _batch(run: Run) -> int:
    assert isinstance(run.experiment.method, ClosedFormSettings)
    return run.experiment.method.removal_batch


def _read_removal(run: Run, path: Path) -> Params:
    try:
        part = dict(load_file(path))
        check(part, run.space, quantization_of(run))
    except (OSError, SafetensorError, KeyError, IndexError) as error:
        raise DataError(
            f"{path} is not a removal ({error}): let the party write it with `fedunseen sums --removal`"
        ) from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return part


def quantization_of(run: Run) -> Quantization:
    """Return how a run's features became whole numbers, from whose sums samples are removed exactly."""
    method = run.method
    if not isinstance(method, ClosedForm) or method.quantization is None:
        raise ExperimentError(
            "data.quantization = 'none' has summed float64 numbers, from which nothing is removed exactly: run it again"
        )
    return method.quantization


def _statistics(run: Run, benchmark: Benchmark, rows: NDArray[np.int64]) -> Params:
    """Return the statistics of some samples in the run's class space."""
    quantization, names = quantization_of(run), run.space.names
    if missing := [name for name in benchmark.space.names if name not in names]:
        raise DataError(f"the run has no class {missing[0]!r}: give the folder with which the party took part")
    ids = np.array([names.index(name) for name in benchmark.space.names])
    codes, beyond = run.scaler.codes(run.features_of(benchmark, rows))
    labels = torch.from_numpy(ids[benchmark.labels[rows]])
    assert isinstance(run.method, ClosedForm)
    part = statistics(torch.from_numpy(codes), labels, run.space, run.method.clip_norm, quantization)
    part["clipped"] += beyond
    return part
