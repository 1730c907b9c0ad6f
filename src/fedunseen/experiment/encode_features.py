"""``fedunseen data encode``: what a frozen encoder makes of a benchmark, as files in the xlsa17
layout.
"""

from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.files import free_folder, whole_folder, write_text
from fedunseen.data import Benchmark
from fedunseen.data.benchmarks.image_benchmark import unit_length
from fedunseen.experiment.assemble import load_data
from fedunseen.experiment.encoding import make_backbone
from fedunseen.experiment.schema import Experiment

_MOST = 2**31  # bytes of a variable in the file format of MATLAB 5


def encode(experiment: Experiment, out: Path) -> dict[str, Any]:
    """Write a benchmark's features in the layout of the "proposed split": ``res101.mat`` and
    ``att_splits.mat``.
    """
    out = out.expanduser().resolve()
    free_folder(out)
    benchmark = load_data(experiment, experiment.run.seed)
    backbone = make_backbone(experiment, benchmark.features.shape[1:], benchmark.image_shape)
    if backbone.trained:
        raise ExperimentError(
            f"encoder.name = {experiment.encoder.name!r} is trained with the method, so that its "
            "features change: name a frozen encoder"
        )
    if benchmark.kind != "vectors":
        raise ExperimentError(
            f"data.name = {experiment.data.name!r} gives {benchmark.kind} with encoder.name = "
            f"{experiment.encoder.name!r}, and the layout holds a vector a sample: name a frozen "
            "encoder, and a method that takes vectors"
        )
    if not benchmark.space.attributes:
        raise DataError(
            f"{benchmark.name} describes no class, and the layout needs descriptions: take another"
        )
    if benchmark.features.nbytes > _MOST:
        raise DataError(
            f"the features take {benchmark.features.nbytes} bytes, more than a .mat file holds "
            f"({_MOST})"
        )
    _write(benchmark, out)
    samples, numbers = benchmark.features.shape
    return {
        "out": str(out), "samples": samples, "numbers": numbers, "classes": len(benchmark.space.names),
        "attributes": benchmark.space.attributes,
        "data": {"name": "xlsa17", "root": str(out.parent), "dataset": out.name},
    }  # fmt: skip


def _write(benchmark: Benchmark, out: Path) -> None:
    space = benchmark.space
    held = np.isin(benchmark.labels[benchmark.train], space.validation)
    places = {
        "trainval_loc": benchmark.train, "train_loc": benchmark.train[~held], "val_loc": benchmark.train[held],
        "test_seen_loc": benchmark.test_seen, "test_unseen_loc": benchmark.test_unseen,
    }  # fmt: skip
    names = np.empty((len(space.names), 1), dtype=object)
    names[:, 0] = space.names
    splits = {
        "att": unit_length(space.semantics).T,
        "original_att": space.semantics.T,
        "allclasses_names": names,
        **{key: (ids + 1)[:, None] for key, ids in places.items()},
    }
    group_of = {i: group for group, members in space.attribute_groups.items() for i in members}
    attribute_names = [
        name if "::" in name or i not in group_of else f"{group_of[i]}::{name}"
        for i, name in enumerate(space.attribute_names)
    ]
    features = {"features": benchmark.features.T, "labels": (benchmark.labels + 1)[:, None]}
    with whole_folder(out) as folder:
        scipy.io.savemat(folder / "res101.mat", features)
        scipy.io.savemat(folder / "att_splits.mat", splits)
        lines = [f"{i + 1} {' '.join(name.split())}\n" for i, name in enumerate(attribute_names)]
        write_text(folder / "predicates.txt", "".join(lines))
