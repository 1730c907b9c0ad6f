"""What measures the model of a finished run again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fedunseen.core.parameters import Params
from fedunseen.data import Benchmark, ClassSpace
from fedunseen.experiment.assemble import assemble
from fedunseen.experiment.deployed import dealt
from fedunseen.experiment.growth import growth_of
from fedunseen.federation import Federation
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.tasks import Evaluator

if TYPE_CHECKING:
    from fedunseen.experiment.result.run import Run


def judged(run: Run, benchmark: Benchmark, rounds: int, params: Params) -> tuple[Federation, Evaluator, ClassSpace]:
    """Return what solves and measures the sums that are left, and the class space.

    Where the class space has grown, a class without samples is unseen again.
    """
    experiment, kind = run.experiment, run.experiment.task
    benchmark, partition = dealt(experiment, benchmark)
    growth = growth_of(experiment, benchmark, partition, RunDirectory(run.path))
    if growth is None:
        federation = assemble(experiment, kind.client_data(benchmark), partition)
        task = kind.evaluator(federation, benchmark, experiment.evaluation)
        return federation, task, run.space
    federation, task = growth.at(rounds)
    gone = torch.nonzero(params["count"] == 0)[:, 0].numpy()
    gone = np.intersect1d(gone, growth.version.space.seen)
    if len(gone):
        federation, task = growth.without(gone)
    return federation, task, growth.version.space
