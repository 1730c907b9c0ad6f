"""What a bench measures of a finished run: accuracies after 0, 1, 5 ... examples of each unseen
class, or a pool.

Half of each class's test samples, drawn by the seed, are examples and pool; the other half is
measured, under every condition the same. ``gaussian`` takes examples and pools itself. Any other
method keeps its model: ``gaussian`` is solved on its class scores (n, C), from sums that the
clients send in one further round, and takes them.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import DataError
from fedunseen.core.parameters import Params
from fedunseen.core.random import stream
from fedunseen.data import Benchmark
from fedunseen.encoders.backbone import Backbone
from fedunseen.evaluation.answers import answer
from fedunseen.experiment.assemble import load_data
from fedunseen.experiment.changed import judged
from fedunseen.experiment.result.run import Run
from fedunseen.federation.federation import Federation
from fedunseen.methods.closed_form.gaussian import Gaussian
from fedunseen.methods.closed_form.unlabelled import adapt
from fedunseen.metrics import Answers, per_class

POOL = "pool"
Rows = NDArray[np.int64]
PerClass = dict[str, list[float]]
"""``zsl``, ``unseen`` and ``seen``: the percentage of right answers in each class, in order of
class ids.
"""


def measured(run: Run, examples: Sequence[int], pool: bool) -> dict[str, PerClass]:
    """Return condition (``"0"``, ``"1"``, ..., ``"pool"``) -> the accuracies of a run of one seed
    in each class.

    Raises:
        DataError: an unseen class has too few test samples for the examples.
    """
    seed = run.experiment.run.seed
    benchmark = load_data(run.experiment, seed)
    federation, _, _ = judged(run, benchmark, int(run.result["rounds"]), run.params)
    shown, tested = halves(benchmark, seed, max(examples, default=0))
    offset = float(run.result["calibration_factor"])
    per_condition = (
        {"0": _per_class(benchmark, federation.answers(run.params, tested), offset)}
        if 0 in examples
        else {}
    )
    if pool or any(examples):
        learner = _Learner(federation, run.params, offset)
        per_condition |= {str(k): learner.after_examples(shown, tested, k) for k in examples if k}
        per_condition |= {POOL: learner.after_pool(shown, tested)} if pool else {}
    return per_condition


def halves(benchmark: Benchmark, seed: int, examples: int) -> tuple[Rows, Rows]:
    """Return test samples to show and test samples to ask about, half of each class's; the order is
    drawn.
    """
    rng = stream(seed, "bench: halves of the test samples")
    shown = []
    tested = []
    for rows in (benchmark.test_unseen, benchmark.test_seen):
        for c in np.unique(benchmark.labels[rows]):
            class_rows = rng.permutation(rows[benchmark.labels[rows] == c])
            half = len(class_rows) // 2
            if half < examples and c in benchmark.space.unseen:
                raise DataError(
                    f"{benchmark.name}: half of the test samples of {benchmark.space.names[c]!r} "
                    f"are {half}, fewer than {examples} examples: lower bench.examples"
                )
            shown.append(class_rows[:half])
            tested.append(class_rows[half:])
    return np.concatenate(shown), np.concatenate(tested)


def _per_class(benchmark: Benchmark, answers: Answers, offset: float) -> PerClass:
    unseen, seen = (
        np.unique(benchmark.labels[rows]) for rows in (benchmark.test_unseen, benchmark.test_seen)
    )
    among_all = answers.generalised(offset)
    return {
        "zsl": per_class(answers.labels, answers.zsl, unseen).tolist(),
        "unseen": per_class(answers.labels, among_all, unseen).tolist(),
        "seen": per_class(answers.labels, among_all, seen).tolist(),
    }


class _Learner:
    """A Gaussian model that takes examples and pools: the run's own, or one on the run's class
    scores.
    """

    def __init__(self, federation: Federation, params: Params, offset: float) -> None:
        self.federation = federation
        self.benchmark = federation.benchmark
        method = federation.method
        semantics = federation.semantics
        self.features: Callable[[Tensor], Tensor]
        if isinstance(method, Gaussian) and "count" in params:
            self.method = method
            self.params = params
            self.offset = offset
            self.features = lambda inputs: method.backbone(params, inputs)
            return
        self.features = lambda inputs: method.scores(params, inputs, semantics)
        space = self.benchmark.space
        train = self.benchmark.train
        settings = {"calibration": True}
        self.method = Gaussian(
            Gaussian.Settings.model_validate(settings),
            space,
            semantics.cpu(),
            Backbone((len(space.names),)),
        )
        sums = self.method.statistics(
            self.rows(train), torch.from_numpy(self.benchmark.labels[train])
        )
        self.params = self.method.solve(sums)
        self.offset = 0.0

    def rows(self, rows: Rows) -> Tensor:
        """Return (n, d) float64 what the Gaussian model sees of samples."""
        with torch.no_grad():
            return torch.cat(
                [self.features(inputs).double().cpu() for inputs in self.federation.batches(rows)]
            )

    def after_examples(self, shown: Rows, tested: Rows, k: int) -> PerClass:
        """Return the accuracies after the first ``k`` shown samples of each unseen class."""
        labels = self.benchmark.labels
        classes = len(self.benchmark.space.names)
        unseen = np.unique(labels[self.benchmark.test_unseen])
        chosen = np.concatenate([shown[labels[shown] == c][:k] for c in unseen])
        count = torch.from_numpy(np.bincount(labels[chosen], minlength=classes).astype(np.float64))
        total = torch.zeros(classes, self.method.width, dtype=torch.float64)
        total.index_add_(0, torch.from_numpy(labels[chosen]), self.rows(chosen))
        return self._asked(
            self.method.extend(self.params, self.method.semantics, count, total),
            tested,
            self.offset,
        )

    def after_pool(self, shown: Rows, tested: Rows) -> PerClass:
        """Return the accuracies after all shown samples, seen and unseen classes mixed and without
        their labels.
        """
        adapted = adapt(self.method, self.params, [self.rows(shown).float()], self.offset)
        return self._asked(adapted.params, tested, self.offset * adapted.offset_share)

    def _asked(self, params: Params, tested: Rows, offset: float) -> PerClass:
        scores = torch.addmm(
            params["bias"], self.rows(tested) - params["centre"], params["weight"].T
        )
        answers = answer([scores], self.benchmark.labels[tested], self.benchmark.space)
        return _per_class(self.benchmark, answers, offset)
