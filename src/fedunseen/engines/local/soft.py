"""A client's round while a model is adapted: soft statistics of its unlabelled samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.trainer import LocalResult
from fedunseen.engines.local.worker import Work, Worker
from fedunseen.methods.closed_form.soft_statistics import Scorer, soft_statistics
from fedunseen.methods.closed_form.unlabelled import features_of


class SoftWorker(Worker):
    """Answers :class:`~fedunseen.methods.closed_form.unlabelled.SoftSums` for the clients whose data are here."""

    def __init__(self, pools: Sequence[NDArray[np.int64]], *given: Any) -> None:
        super().__init__(*given)
        self.pools = pools

    def _sums(self, work: Work) -> LocalResult:
        pool = self.trainer.inputs[torch.from_numpy(self.pools[work.client])]
        features = features_of(self.method, pool)
        return LocalResult(soft_statistics(Scorer(**work.instruction.params), features), {}, 1)
