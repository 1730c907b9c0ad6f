"""A party, or samples of it, are taken out of a finished run.

Where the run's data are here, the experiment is run again without them: scaling, ranges,
calibration and all else that is fitted to samples follow. Where they are not, statistics are
subtracted. Quantized statistics are whole numbers, so nothing of what was removed remains in plain
or in masked totals; ``stays`` in the result names what else was fitted with it. Limitation: an
observer of the totals before and after learns exactly what was removed. So single samples are
removed in batches (``method.removal_batch``), or with explicit consent.
"""

import hashlib
import shutil
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.confidence.measured import measured
from fedunseen.core.errors import (
    DataError,
    ExperimentError,
    FedUnseenError,
    RunDirectoryError,
    unknown,
)
from fedunseen.core.files import (
    check_ordinary,
    check_unlinked,
    free_folder,
    parse_json,
    whole_folder,
    write_json,
    write_tensors,
)
from fedunseen.core.parameters import Params, of_each_client
from fedunseen.core.registry import find
from fedunseen.core.samples import first_of_equal
from fedunseen.core.small_cells import MIN_SAMPLES
from fedunseen.data import Benchmark
from fedunseen.experiment.assemble import deal, load_data, partition_of
from fedunseen.experiment.changed import judged
from fedunseen.experiment.held_out import held_out_of
from fedunseen.experiment.hooks import hooks
from fedunseen.experiment.manifest import encoder_of, fingerprint_of
from fedunseen.experiment.measured_again import origin
from fedunseen.experiment.own_samples import (
    REMOVAL_BATCH,
    OwnSamples,
    check_removed_classes,
    named_samples,
)
from fedunseen.experiment.party_sums import (
    Parts,
    agreed_data,
    check_removed,
    check_removed_cells,
    check_stand_ins,
    coded,
    samples_in_sums,
    without_alone,
)
from fedunseen.experiment.reasons import reason_tensors
from fedunseen.experiment.result.run import Run
from fedunseen.experiment.run_model import trained_model
from fedunseen.experiment.running import run as train_run
from fedunseen.experiment.scales import fitted_scales
from fedunseen.experiment.schema import Experiment
from fedunseen.experiment.small_cells import without_small_cells
from fedunseen.experiment.traces import in_order, stated
from fedunseen.federation.evaluator import Choice
from fedunseen.federation.federation import Federation, State
from fedunseen.federation.loop import Loop, round_metrics
from fedunseen.federation.run_directory import RunDirectory, parts_of
from fedunseen.federation.server_step import RoundResult
from fedunseen.methods import LEFT_TO_DATA
from fedunseen.methods.closed_form.base import ClosedForm, ClosedFormSettings
from fedunseen.methods.closed_form.set_apart import Moments
from fedunseen.plans import StatisticsPlan, quantization_of
from fedunseen.statistics import Statistics, without_party
from fedunseen.strategies import Reply

_COPIED = (
    "spaces", "encoder", "text-encoder", "added-classes.safetensors",
)  # fmt: skip
"""What a subtraction leaves as it is; all else in a run directory is made again, or left out."""
_NOT_MEASURED_AGAIN = (
    "misplaced", "most_alike", "alike", "strays", "strays_by_chance", "badly_lit", "curved",
    "adapted", "influence",
)  # fmt: skip
"""Numbers of a result that name samples or count them, and that a subtraction cannot correct."""


def forget(
    run: Run,
    party: str,
    out: str | Path,
    samples: Sequence[int] = (),
    removal: Path | None = None,
    consent: bool = False,
) -> Run:
    """Write the run as it would be if a party, or some of its samples, had never taken part.

    Where the data of the run are here and unchanged, that is a run with ``partition.without`` or
    ``partition.without_samples``, bit for bit. A trained method continues from the last state
    before the party joined, if that was kept (``run.forgettable``) and nothing was fitted to the
    party's samples or chosen with them (``evaluation.selection``). Otherwise it is trained again
    from the start.

    The statistics of a closed form are subtracted, exactly, where the data are elsewhere, where the
    class space has grown (its classes stay known), and where the others alone cannot run the
    experiment: too few under masks, or no validation class left. ``result["stays"]`` then has the
    codes of what was fitted with the removed samples and stays
    (:data:`~fedunseen.experiment.traces.STAYS`).

    Args:
        run: one seed; its data are read again.
        party: the name of a party of a deployment, or the number of a client, counted from 0.
        out: the new run directory.
        samples: positions among the party's training samples, counted from 0; none: all. For a
            closed form.
        removal: a file of the party's statistics
            (:func:`~fedunseen.experiment.forget.write_removal`), where its samples are elsewhere.
        consent: remove fewer samples than ``method.removal_batch``.

    Raises:
        FedUnseenError: the party, or a part of it, cannot be removed; nothing is written.
    """
    check_removable(run, bool(samples or removal is not None))
    folder = free_folder(out)
    client = client_of(run, party)
    experiment = Experiment.from_dict(run.manifest["experiment"], run.overrides)
    whole = load_data(experiment, experiment.run.seed)
    rows = None
    if removal is None and not experiment.deployed and _unchanged(run, experiment, whole, samples):
        rows = _rows(run, experiment, whole, client, samples, consent)
        grows = experiment.growth.name != "none" and not find("method", run.method_name).trained
        rerun = None if grows else _run_again(run, whole, party, client, folder, rows, samples)
        if rerun is not None:
            return rerun

    def part() -> Params:
        return _part(run, experiment, whole, client, rows, removal)

    return _subtracted(run, whole, (party, client), folder, (samples, removal), part)


def _subtracted(
    run: Run,
    whole: Benchmark,
    whose: tuple[str, int],
    folder: Path,
    to_remove: tuple[Sequence[int], Path | None],
    read: Callable[[], Params],
) -> Run:
    """Write the run without the statistics of a party's samples.

    Args:
        run: the run.
        whole: its benchmark.
        whose: the party's name, and its place among the clients.
        folder: the new run directory.
        to_remove: positions of samples, and the file of their statistics, unless the whole party.
        read: returns the statistics of the samples.
    """
    party, client = whose
    samples, removal = to_remove
    checkpoint = _checkpoint(run)
    kept = of_each_client(checkpoint.server)
    record = record_removal(run, party, client, samples, removal, client in kept)
    all_of_it = client in kept and removal is None and not samples
    part = None if all_of_it else read()
    removed_counts = (kept[client] if part is None else part)["count"]
    server, params = without_party(run.method, checkpoint.server, checkpoint.params, client, part)
    name = (
        f"{int(removed_counts.sum())} samples of {party}"
        if samples or removal is not None
        else party
    )
    noted = {"forgotten": [*run.manifest.get("forgotten", ()), name], "removed": record}
    write_left(
        run,
        whole,
        folder,
        State(checkpoint.round, server, params, {}),
        client,
        removed_counts,
        noted,
    )
    return run.reopened(folder)


def _unchanged(run: Run, experiment: Experiment, whole: Benchmark, samples: Sequence[int]) -> bool:
    """Return whether the data are those of the run; refuse others where statistics do not help."""
    if fingerprint_of(experiment, deal(experiment, whole)[0]) == run.manifest["data_fingerprint"]:
        return True
    if find("method", run.method_name).trained or samples:
        raise DataError(
            f"the data of {run.path} have changed since, so that its clients are not known: "
            "restore them, or run the experiment again without the samples"
        )
    return False


def _rows(
    run: Run,
    experiment: Experiment,
    whole: Benchmark,
    client: int,
    samples: Sequence[int],
    consent: bool,
) -> NDArray[np.int64]:
    """Return the ids of a client's samples that are to be removed; positions are those of the first
    dealing.
    """
    if not samples:
        return partition_of(experiment, whole, experiment.run.seed).clients[client]
    first = experiment.with_overrides({"partition.without_samples": {}})
    held = partition_of(first, whole, experiment.run.seed).clients[client]
    return named_samples(_batch(run), held, samples, consent)


def _checkpoint(run: Run) -> State:
    """Return the last state of a run, which holds its sums."""
    checkpoint = RunDirectory(run.path).newest_checkpoint(torch.device("cpu"))
    if checkpoint is None:
        raise RunDirectoryError(
            f"{run.path} has lost its checkpoint, which holds each party's sums: run it again"
        )
    return checkpoint


def traces(run: Run) -> list[str]:
    """Return the codes of what stays fitted to samples whose statistics are subtracted from a
    run.
    """
    codes = [*run.result.get("stays", ())]
    codes += stated(run.experiment.data)
    codes += fitted_scales(run.experiment, run.manifest.get("image_shape"))
    codes += ["calibration"] if run.experiment.evaluation.selection != "last" else []
    codes += ["rounds"] if len(run.metrics) > 1 else []
    codes += ["confidence"] if run.model.confidence is not None else []
    return in_order(codes)


def _few_left(count: Tensor, removed_counts: Tensor) -> list[str]:
    """Return the code of what stays if few samples are left of a class that lost some."""
    left = count[: len(removed_counts)]
    few = (left > 0) & (left < MIN_SAMPLES) & (removed_counts.to(left) > 0)[: len(left)]
    return ["few"] if bool(few.any()) else []


def write_left(
    run: Run,
    benchmark: Benchmark,
    folder: Path,
    state: State,
    client: int | None,
    removed_counts: Tensor,
    noted: Mapping[str, Any],
) -> None:
    """Write the run whose state is that without ``removed_counts`` samples of a client,
    measured again.
    """
    federation, task, space = judged(run, benchmark, state.round, state.params)
    kept = of_each_client(state.server)
    lines = [dict(line) for line in run.metrics]
    replies = [
        Reply(k, sums, int((sums["count"] > 0).sum()), int(sums["count"].sum()))
        for k, sums in kept.items()
    ]
    result = RoundResult(
        replies, lambda place: {}, {}, 0, 0, state=state.server, params=state.params,
        models=lambda place: dict(replies[place].update),
    )  # fmt: skip
    (model,) = federation.models(state)
    loop = Loop(federation, state.round, state, result=result)
    line = task.measure(loop, [model], Choice(None, float(run.result["calibration_factor"])))
    # of a total no one knows whose it is
    whose = {"participants": lines[-1]["participants"]} if max(kept, default=-1) < 0 else {}
    lines[-1] |= {**round_metrics(federation, state, result), **line, **whose}
    with whole_folder(folder) as partial:
        _copy(run, partial, kept, noted["removed"], client, removed_counts)
        write_json(partial / "manifest.json", {**run.manifest, **noted})
        directory = RunDirectory(partial)
        for line in lines:
            directory.add_metrics(line)
        space.save(partial / "classes.csv")
        directory.save_checkpoint(state)
        numbers = task.numbers(lines, len(lines), directory.model_path)
        numbers |= federation.method.facts(state.params)
        if "influence" in lines[-1]:
            numbers["influence"] = lines[-1]["influence"]
        numbers = {k: v for k, v in run.result.items() if k not in _NOT_MEASURED_AGAIN} | numbers
        sure = run.model.confidence
        offset = float(numbers["calibration_factor"])
        numbers |= _confidence(run, federation, model, offset)
        weights = run.manifest.get("encoder")
        left = trained_model(run.experiment, federation, space, model, offset, sure, weights)
        left.save(directory.model_path)
        drawn = task.summary(model, numbers)
        counts = np.array(drawn["client_counts"])
        if client is not None and not federation.partition.remote:
            gone = removed_counts.numpy().astype(counts.dtype)[: counts.shape[1]]
            counts[client] = np.maximum(counts[client] - gone, 0)
        if sure is not None and "gzsl_answers" in drawn:
            encoder = encoder_of(run.experiment, task.benchmark)
            drawn |= reason_tensors(left, task.benchmark, drawn, encoder)
        write_tensors(partial / "evaluation.safetensors", {**drawn, "client_counts": counts})
        stays = in_order([*traces(run), *_few_left(state.params["count"], removed_counts)])
        noted = {"forgotten": noted["forgotten"], "stays": stays}
        directory.finish({**numbers, "run": str(folder), **noted})


def _confidence(run: Run, federation: Federation, model: Params, offset: float) -> dict[str, Any]:
    """Return how the confidence of a run holds for what is left; empty where it has none."""
    sure = run.model.confidence
    if sure is None:
        return {}
    tests = held_out_of(federation, model)
    return {"confidence": measured(tests, sure, offset) | origin(run.result)}


def _copy(
    run: Run,
    folder: Path,
    kept: Mapping[int, Params],
    removed: Collection[str],
    client: int | None,
    removed_counts: Tensor,
) -> None:
    """Copy what a subtraction leaves as it is, and how much each party still has in the statistics.

    ``kept`` are the statistics of each party. Where only the total was kept, ``removed_counts`` are
    those of a client, and how many of its classes are left is not known.
    """
    for name in _COPIED:
        if (run.path / name).is_dir():
            shutil.copytree(run.path / name, folder / name)
        elif (run.path / name).exists():
            shutil.copy2(run.path / name, folder / name)
    if not (run.path / "parties.json").exists():
        return
    statuses = _read_parties(run)
    for place, status in enumerate(statuses):
        if status["name"] not in removed:
            continue
        if max(kept, default=-1) >= 0:
            counts = kept[place]["count"] if place in kept else torch.zeros(0)
            status |= {"classes": int((counts > 0).sum()), "samples": int(counts.sum())}
        elif place == client:
            left = max(status["samples"] - int(removed_counts.sum()), 0)
            status |= {"classes": min(status["classes"], left), "samples": left}
    write_json(folder / "parties.json", statuses)


def check_removable(run: Run, in_part: bool) -> None:
    """Refuse a run that a party, or a part of one, cannot be taken out of."""
    check_unlinked(run.path, ("report.html", "README.md"))
    experiment = run.experiment
    trained = find("method", run.method_name).trained
    if run.seeds:
        raise RunDirectoryError(
            f"{run.path} holds a run for each seed: name one of its folders, for example seed-0"
        )
    if trained and in_part:
        raise ExperimentError(
            f"method.name = {run.method_name!r} is trained, so that single samples are in every "
            "parameter: leave --samples and --removal out, or use a method in closed form"
        )
    if trained and experiment.deployed:
        raise ExperimentError(
            f"method.name = {run.method_name!r} is trained, so that every party is in every "
            "parameter, and the parties' data are not here: host the run again without the party, "
            "or a method in closed form"
        )
    if not find("strategy", experiment.strategy.name).merges or run.pooled:
        raise ExperimentError(
            f"under strategy.name = {experiment.strategy.name!r} no party's updates are merged: "
            "run with a strategy that merges, for example fedavg"
        )
    for kind in hooks(experiment):
        if not trained and (why := kind.refuses_removal(experiment)):
            raise ExperimentError(why)


def _run_again(
    run: Run,
    whole: Benchmark,
    party: str,
    client: int,
    folder: Path,
    rows: NDArray[np.int64],
    samples: Sequence[int],
) -> Run | None:
    """Run the experiment again without some samples of a party; None where it cannot be run without
    them.
    """
    trained = find("method", run.method_name).trained
    if not trained:
        _checkpoint(run)  # a run that has learned or adapted since has none
    record = record_removal(run, party, client, samples, None, kept=True)
    remaining = _others(run, client, samples)
    kept = _kept(run, client) if trained else None
    if kept is not None:
        _begin_with(run, remaining, whole, folder, kept)
    try:
        rerun = train_run(remaining, folder, resume=kept is not None)
    except FedUnseenError as error:
        if trained:
            raise
        warnings.warn(
            f"without {party} the experiment cannot be run again, so statistics are subtracted: "
            f"{error}",
            stacklevel=3,
        )
        return None
    removed = f"{len(rows)} samples of {party}" if samples else party
    forgotten = [*run.manifest.get("forgotten", ()), removed]
    stays = in_order([*run.result.get("stays", ()), *stated(run.experiment.data)])
    noted: dict[str, Any] = {"forgotten": forgotten, "stays": stays}
    if trained:
        noted["rounds_trained_again"] = len(rerun.metrics) - (kept[0] if kept else 0)
        if "fitted" not in run.manifest:  # of an earlier version: it does not say what was chosen
            noted["stays"] = in_order([*noted["stays"], "settings"])
    manifest = {**rerun.manifest, "forgotten": forgotten, "removed": record}
    write_json(folder / "manifest.json", manifest)
    RunDirectory(folder).finish({**rerun.result, **noted})
    return run.reopened(folder)


def _others(run: Run, client: int, samples: Sequence[int]) -> Experiment:
    """Return the experiment without a client, or without samples of it by position."""
    tree = dict(run.manifest["experiment"])
    fitted = run.manifest.get("fitted", ())  # to the data: it follows from those that stay
    tree["method"] = {k: v for k, v in tree["method"].items() if k not in fitted}
    experiment = Experiment.from_dict(tree, run.overrides)
    if samples:
        before = dict(experiment.partition.without_samples)
        places = {*before.get(str(client), ()), *map(int, samples)}
        changed = {**before, str(client): sorted(places)}
        return experiment.with_overrides({"partition.without_samples": changed})
    removed = sorted({*experiment.partition.without, client})
    if len(removed) == experiment.partition.clients:
        raise ExperimentError(f"client {client} is the only one: without it nothing is left")
    return experiment.with_overrides({"partition.without": removed})


def _kept(run: Run, client: int) -> tuple[int, Path] | None:
    """Return the latest kept state that follows from nothing of a client, and its number of rounds.

    Before the round in which a client joins, participants are drawn from the others alone, and the
    closed form that training may start from is that of the others. Nothing else may have been
    chosen with its samples: a round, settings or an offset, by which earlier rounds are measured
    too. A state of the buffered engine has updates in it that are on their way, of any client.
    """
    experiment = run.experiment
    fitted = fitted_scales(experiment, run.manifest.get("image_shape"))
    fitted = (*fitted, *run.manifest.get("fitted", LEFT_TO_DATA))
    chosen = experiment.evaluation.selection != "last"
    reads_all = any(kind.reads_absent_clients(experiment) for kind in hooks(experiment))
    if fitted or chosen or experiment.engine.name == "buffered" or reads_all:
        return None
    joins, _ = experiment.partition.rounds()
    return RunDirectory(run.path).kept_checkpoint(int(joins[client]))


def _begin_with(
    run: Run, remaining: Experiment, whole: Benchmark, folder: Path, kept: tuple[int, Path]
) -> None:
    """Write the directory of a run without a client up to a kept state, so that it can be
    resumed.
    """
    (done, path), old, new = kept, RunDirectory(run.path), RunDirectory(folder)
    fingerprint = fingerprint_of(remaining, deal(remaining, whole)[0])
    new.create({
        **run.manifest, "experiment": remaining.to_dict(), "data_fingerprint": fingerprint,
    })  # fmt: skip
    new.checkpoints.mkdir()
    shutil.copy2(path, new.checkpoints / f"{done:06d}.safetensors")
    for part in parts_of(path):
        shutil.copy2(part, new.checkpoints / part.name)
    if old.spaces.is_dir():
        shutil.copytree(old.spaces, new.spaces)
    for line in run.metrics[:done]:
        new.add_metrics(line)


def parties_of(run: Run) -> list[str]:
    """Return the names of the clients; of a simulation their numbers."""
    if (run.path / "parties.json").exists():
        return [str(status["name"]) for status in _read_parties(run)]
    return [str(client) for client in range(run.experiment.partition.clients)]


def _read_parties(run: Run) -> list[dict[str, Any]]:
    """Return the parties of a deployment, and how many classes and samples each holds."""
    listed = run.path / "parties.json"
    check_ordinary(listed)
    try:
        return [
            {**status, "name": status["name"], "classes": int(status["classes"]), "samples": int(status["samples"])}
            for status in parse_json(listed.read_bytes())
        ]  # fmt: skip
    except (OSError, ValueError, LookupError, TypeError):
        raise RunDirectoryError(
            f"{listed} is damaged: restore it from the coordinator's run directory"
        ) from None


def client_of(run: Run, party: str) -> int:
    """Return the place of a party among the clients."""
    names = parties_of(run)
    if party not in names:
        raise ExperimentError(f"--party {party}: " + unknown("party", party, names))
    return names.index(party)


def write_removal(
    run: Run,
    folder: Path,
    out: Path,
    samples: Sequence[int] = (),
    consent: bool = False,
    min_samples: int = 1,
    moments: bool = False,
    owner: Mapping[str, Any] | None = None,
) -> int:
    """Write the statistics of a party's samples, for the coordinator to subtract; return how many
    samples there are.

    ``min_samples`` and ``moments`` (``--consent moments``) are those of the party when it took
    part: some samples were in no sum.
    """
    if out.exists():
        raise ExperimentError(f"{out} exists already: name another file with --out")
    check_removable(run, True)
    agreed = agreed_data(run, owner or {})
    benchmark = OwnSamples(
        folder, settings=run.experiment.data.model_dump(exclude_none=True)
    ).benchmark
    batch = max(_batch(run), REMOVAL_BATCH) if min_samples > 1 else _batch(run)
    rows = named_samples(batch, benchmark.train, samples, consent)
    minimum = _minimum(run, min_samples)
    clip_norm = getattr(run.experiment.method, "clip_norm", None)
    held = samples_in_sums(run, benchmark, minimum, clip_norm, agreed)
    data = run.experiment.data
    method = run.method
    assert isinstance(method, ClosedForm)
    ids = np.arange(len(benchmark.space.names))
    summed_as = partial(_without_small_cells, run, benchmark, minimum)
    if minimum > 1 and not moments:

        def apart(some: NDArray[np.int64]) -> Moments:
            read = coded(run, summed_as(some), held.among(some).summed, ids)
            return method.moments(*read, minimum, min_samples)

        held = held.among(without_alone(held.rows, apart, held.rows, folder)[0])
    benchmark = summed_as(held.rows)
    rows = _removed_of(benchmark, held.rows, rows, minimum, consent)
    check_stand_ins(held.rows, held.summed, rows)
    if minimum > 1 and not consent:
        read = coded(run, benchmark, held.summed, ids)
        removed = np.isin(held.rows, rows)
        parts = Parts(held.summed, removed, ~removed, minimum)
        check_removed_cells(benchmark, data, parts, run.scaler)
        check_removed(method.moments(*read, minimum, min_samples), parts, alone=not moments)
    summed = held.among(rows).summed
    _statistics(run, benchmark, summed, held.summed, min_samples).save(out)
    return len(rows)


def _without_small_cells(
    run: Run, benchmark: Benchmark, minimum: int, rows: NDArray[np.int64]
) -> Benchmark:
    """Return the samples ``rows`` without the cells that few of them have."""
    labels = benchmark.labels[rows]
    return without_small_cells(benchmark, run.experiment.data, rows, labels, minimum, run.scaler)


def _part(
    run: Run,
    experiment: Experiment,
    whole: Benchmark,
    client: int,
    rows: NDArray[np.int64] | None,
    removal: Path | None,
) -> Params:
    """Return the statistics to subtract: of rows of a client, or those of its file."""
    if rows is None:
        return _read_removal(run, removal)
    held = partition_of(experiment, whole, experiment.run.seed).clients[client]
    return _statistics(run, whole, rows, held).params


def _minimum(run: Run, min_samples: int) -> int:
    """Return the larger of the party's number and of the coordinator's."""
    return max(min_samples, int(getattr(run.experiment.method, "min_samples", 1)))


def _removed_of(
    benchmark: Benchmark,
    held: NDArray[np.int64],
    rows: NDArray[np.int64],
    minimum: int,
    consent: bool,
) -> NDArray[np.int64]:
    """Return which of these samples are in the run's sums, unless they are too few of a class."""
    included = np.intersect1d(rows, held)
    if not consent:
        kept, removed = (
            benchmark.labels[which[first_of_equal(benchmark.told_apart(which))]]
            for which in (held, included)
        )
        check_removed_classes(benchmark.space.names, kept, removed, minimum)
    if not len(included):
        raise DataError(
            f"the samples to remove are of classes with fewer than {minimum} samples here, which "
            "are in no sum: give the --min-samples with which the party took part"
        )
    return included


def record_removal(
    run: Run, party: str, client: int, samples: Sequence[int], removal: Path | None, kept: bool
) -> dict[str, Any]:
    """Return what has been removed of each party, this removal included: nothing is subtracted
    twice.

    ``kept``: the party's own sums are kept, without what was removed before.
    """
    before = dict(run.manifest.get("removed", {}))
    mine = before.get(party, [])
    if mine == "all":
        raise FedUnseenError(
            f"no sums of client {client} are kept, so it cannot be forgotten: {party} was removed "
            "from this run before"
        )
    new: list[Any] = [int(sample) for sample in samples]
    if removal is not None:
        new = (
            [hashlib.sha256(removal.read_bytes()).hexdigest()]
            if removal.is_file()
            else [str(removal)]
        )
    if again := [item for item in new if item in mine]:
        raise DataError(
            f"sample or file {again[0]} of {party} is never a part of what is left: it was removed "
            "before, leave it out"
        )
    if not new and mine and not kept:
        raise FedUnseenError(
            f"samples of {party} were removed from this run before: name the others with --samples"
        )
    return {**before, party: [*mine, *new] if new else "all"}


def _batch(run: Run) -> int:
    assert isinstance(run.experiment.method, ClosedFormSettings)
    return run.experiment.method.removal_batch


def _read_removal(run: Run, path: Path | None) -> Params:
    """Read the statistics that a party wrote."""
    if path is None:
        raise ExperimentError(
            "the party's samples are not here, and its sums were not kept: let it write them with "
            "`fedunseen sums --removal`, and give the file with --removal"
        )
    try:
        part = Statistics.load(path)
        Statistics(_plan(run)).check_same_plan(part)
    except DataError as error:
        why = str(error).removeprefix(f"{path}: ")
        raise error.reworded(
            f"{path} is not a removal from {run.path} ({why}): let the party write it with "
            "`fedunseen sums --removal`"
        ) from None
    return part.params


def _plan(run: Run) -> StatisticsPlan:
    """Return what the statistics of a run are of."""
    method = run.method
    quantization_of(method)
    assert isinstance(method, ClosedForm)
    return StatisticsPlan(
        method, run.scaler, replace(run.model, params={}, statistics={}, confidence=None)
    )


def _statistics(
    run: Run,
    benchmark: Benchmark,
    rows: NDArray[np.int64],
    held: NDArray[np.int64],
    min_samples: int = 1,
) -> Statistics:
    """Return the statistics of some samples in the run's class space, as those of all that the
    party ``held`` have them.
    """
    names = run.space.names
    if missing := [name for name in benchmark.space.names if name not in names]:
        raise DataError(
            f"the run has no class {missing[0]!r}: give the folder with which the party took part"
        )
    ids = np.array([names.index(name) for name in benchmark.space.names])
    of_all, of_rows = (coded(run, benchmark, some, ids) for some in (held, rows))
    minimum = _minimum(run, min_samples)
    planned = _plan(run)
    return Statistics(planned, planned.method.statistics(*of_rows, of_all, minimum))
