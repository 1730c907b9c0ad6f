"""Removal from the sums of a finished run: statistics of a party, or of samples that it names, are subtracted exactly.

Quantized statistics are whole numbers, so nothing of what was removed remains in plain or in masked totals. Limitation:
an observer of the totals before and after learns exactly what was removed. So single samples are removed
in batches (``method.removal_batch``), or with explicit consent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file

from fedunseen.core.errors import DataError, ExperimentError, FedUnseenError
from fedunseen.core.files import write_tensors
from fedunseen.core.parameters import Params
from fedunseen.data import Benchmark, Quantization
from fedunseen.experiment.assemble import partition_of
from fedunseen.experiment.client_data import PartyData, named_samples
from fedunseen.experiment.result.run import Run
from fedunseen.methods.closed_form import ClosedForm, ClosedFormSettings
from fedunseen.methods.closed_form.statistics import check, statistics, subtract, validate_statistics
from fedunseen.strategies.summed import forget, kept_sums


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
    kept = kept_sums(server)
    if client in kept:
        rest = subtract(kept[client], part, space, quantization)
        if not bool(rest["count"].any()):
            return forget(server, client)
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
