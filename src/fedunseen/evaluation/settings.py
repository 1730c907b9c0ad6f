"""The section ``[evaluation]`` of an experiment."""

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from fedunseen.core.settings import Settings

COMBINATIONS = 1000
"""Of settings that are chosen from at most: each is a training, and is checked before any."""

Share = Annotated[float, Field(ge=0, le=1)]


class EvaluationSettings(Settings):
    """How accuracies are measured and how rounds, calibration and settings are chosen."""

    selection: Literal["validation", "best-on-test", "last"] = "validation"
    """Where the round and the calibration offset are chosen: on validation classes, by a run of
    their own that never sees a test sample; on the test set, as many papers do; or not at all (last
    round, no calibration)."""
    criterion: Literal["harmonic", "zsl"] = "harmonic"
    """The accuracy by which the round is chosen."""
    calibration: Literal["stacking", "none"] = "stacking"
    """Calibrated stacking of the generalized accuracies; only for methods that score unseen
    classes.
    """
    prior: Literal["balanced", "auto", "uniform"] | Share | dict[str, float] = "balanced"
    """Which questions to expect, on which the calibration is chosen: ``balanced``, the highest
    harmonic mean of the accuracies on unseen and on seen classes; ``auto``, the most right answers
    over all classes, of the calibrations that keep at least half of what ``balanced`` recognizes of
    unseen classes; ``uniform`` over classes; a number, the share of questions about unseen classes;
    or class = frequency."""
    confidence: Literal["auto", "histograms", "draws", "none", "asking"] = "auto"
    """What stated probabilities are fitted to. ``auto``: held-out samples where all are in one
    process; between machines and under masks ``histograms``, in one more message, of how often and
    how surely models without some classes are right on the parties' own samples, and of how long
    features are; with noise, and by file until `fedunseen offline plan --confidence`, ``draws``
    from the merged sums, which asks nothing and is worth less. ``none``: nothing. A run sets
    ``asking`` itself while it asks."""
    factor: float | None = Field(None, allow_inf_nan=False)
    """A fixed calibration offset in the method's score units, instead of a chosen one."""
    clients: bool | None = None
    """Measure clients' own models before merging, at most 50 of them: in each round (true) or never
    (false). By default in the first, the reported, the last and some five other rounds, since ten
    models take ten times as long as the merged one; never for generative methods, which would have
    to train classifiers for each, and those in closed form, which would have to be solved for
    each."""
    every: int | None = Field(None, ge=1)
    """Measure every so many rounds; the first, the reported and the last round always, and a round
    can only be chosen where it is measured. By default every round, and every 5th of a generative
    method where no round is left to choose: measuring trains a classifier again."""
    theory: bool = False
    """Keep class similarities after a few rounds for the report (DistZSL, Fig. 5); only for methods
    that predict attributes under strategies that merge."""
    embedding: Literal["pca", "tsne", False] = "pca"
    """Draw the unseen classes in the plane for the report: ``pca`` takes the first two principal
    components, ``tsne`` runs scikit-learn's t-SNE, which takes two processor seconds more,
    ``false`` draws nothing."""
    episodes: int = Field(600, ge=2)
    """Few-shot: test episodes, fixed by the seed, on which accuracy and its 95 % interval are
    measured in the end.
    """
    validation_episodes: int = Field(100, ge=2)
    """Few-shot: episodes after every round, of validation classes where the round is chosen on
    them, else of unseen ones (then the first test episodes)."""
    choose: dict[str, list[Any]] = Field(default_factory=dict)
    """Settings to choose on validation classes: "method.lr" = [0.01, 0.1]; every combination is
    tried, at most 1,000.
    """

    @property
    def combinations(self) -> int:
        """How many combinations of settings are tried."""
        return math.prod(len(values) for values in self.choose.values())
