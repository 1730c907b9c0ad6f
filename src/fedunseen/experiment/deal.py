"""``fedunseen data deal``: an experiment's samples in folders, one for each party of a
deployment.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.files import free_folder, whole_folder
from fedunseen.core.party_names import COORDINATOR, party_names
from fedunseen.core.registry import find
from fedunseen.data import Benchmark
from fedunseen.data.benchmarks.folder import write_folder
from fedunseen.experiment.assemble import partition_of
from fedunseen.experiment.schema import Experiment


def deal(experiment: Experiment, out: Path, parties: Sequence[str] | None = None) -> dict[str, Any]:
    """Write a folder for every client of an experiment, and one for the coordinator."""
    out = out.expanduser()
    free_folder(out)
    names = _checked(parties, experiment.partition.clients)
    seed = experiment.run.seed
    benchmark: Benchmark = find("data", experiment.data.name).load(experiment.data, seed)
    if benchmark.part:
        raise DataError(
            f"{benchmark.name} is but a part of a benchmark (data.part = true): deal the whole one"
        )
    partition = partition_of(experiment, benchmark, seed)

    def write(name: str, samples: Any, split: Any, pool: Any = ()) -> dict[str, Any]:
        write_folder(
            partial / name, benchmark, np.concatenate([samples, pool]).astype(np.int64), split
        )
        classes = len(np.unique(benchmark.labels[samples]))
        return {
            "name": name,
            "folder": str(out / name),
            "samples": len(samples),
            "classes": classes,
        }

    with whole_folder(out) as partial:
        pools = [benchmark.unlabelled[k :: len(names)] for k in range(len(names))]
        each = zip(names, partition.clients, pools, strict=True)
        dealt = [write(name, samples, "train", pool) for name, samples, pool in each]
        tests = np.union1d(benchmark.test_seen, benchmark.test_unseen)
        coordinator = write(COORDINATOR, tests, "test")
    data: dict[str, Any] = {"name": "folder", "part": True}
    for key in ("features", "semantics"):
        if scalings := getattr(experiment.data, key):
            data[key] = list(scalings)
    return {
        "out": str(out),
        "seed": seed,
        "parties": dealt,
        "coordinator": coordinator,
        "data": data,
    }


def _checked(parties: Sequence[str] | None, clients: int) -> list[str]:
    """Return the names of the clients' folders."""
    if parties is None:
        return [f"client-{k}" for k in range(clients)]
    if len(parties) != clients:
        raise ExperimentError(
            f"--parties gives {len(parties)} names, but there are {clients} clients: give as many "
            f"names, or set partition.clients = {len(parties)}"
        )
    return party_names(parties)
