"""What a model says of samples that were held out, while some seen classes play unseen ones."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedunseen.metrics import Answers, answers_of, lowered


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Scores of held-out samples by a model that lacks some of the seen classes.

    Attributes:
        scores: (n, C) in the method's own units, before any offset; every column is a candidate.
        labels: (n,) the true class of each sample, as a column.
        unseen: (C,) bool, which classes play unseen ones: the model has their descriptions alone.
        distance: (n,) how far each sample is from the nearest prototype, or None where the method
            has no such distance; NaN: not measured. Only samples of classes that the model has
            count.
        places: (n,) which sample each is; None: every fold has the same ones, in one order.
        lengths: (n,) logarithms of how long features are before scaling; None: not known.
    """

    scores: NDArray[np.float64]
    labels: NDArray[np.int64]
    unseen: NDArray[np.bool_]
    distance: NDArray[np.float64] | None = None
    places: NDArray[np.int64] | None = None
    lengths: NDArray[np.float64] | None = None

    @property
    def asks_unseen(self) -> NDArray[np.bool_]:
        """(n,) which samples are of a class that plays an unseen one."""
        return np.asarray(self.unseen[self.labels])

    def answers(self) -> Answers:
        """Return the answers, enough to compare offsets."""
        columns = np.arange(self.scores.shape[1])
        seen = columns[~self.unseen]
        return answers_of(self.scores, self.labels, seen, columns[self.unseen])

    def calibrated(self, offset: float) -> NDArray[np.float64]:
        """Return the scores (n, C), those of seen classes lowered by the offset."""
        return np.asarray(lowered(self.scores, ~self.unseen, offset))


def class_weights(
    labels: NDArray[np.int64], unseen: NDArray[np.bool_], share: float = 0.5
) -> NDArray[np.float64]:
    """Return (n,) weights by which each class weighs the same, and which add up to 1.

    Args:
        labels: (n,) true classes. One that is seen in one fold and unseen in another counts as two.
        unseen: (n,) bool, the class plays an unseen one.
        share: of the weight, what questions about unseen classes have together.

    Returns:
        All of the weight goes to one kind where there is no sample of the other.
    """
    weights = np.zeros(len(labels))
    for kind, part in ((True, share), (False, 1.0 - share)):
        mine = unseen == kind
        if mine.any():
            _, places, counts = np.unique(labels[mine], return_inverse=True, return_counts=True)
            weights[mine] = part / (len(counts) * counts[places])
    return np.asarray(weights / weights.sum())
