"""The numbers of a run by name: what they are called in files, on the console and on pages. Every list starts here.

Nothing is imported, so that every module may import this.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

ZeroShotName = Literal["zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic"]
FewShotName = Literal["few_shot", "few_shot_pixels", "few_shot_random"]
FewShotDetail = Literal[
    "few_shot_validation", "few_shot_base", "few_shot_episode_sd", "few_shot_episode_max", "mi_share"
]


class Measure(NamedTuple):
    """One number of a run."""

    name: str
    short: str
    title: str
    words: str
    color: str


ZERO_SHOT_MEASURES = (
    Measure("zsl", "ZSL", "ZSL accuracy", "only unseen classes to choose from", "orange"),
    Measure("gzsl_unseen", "U", "U, unseen classes", "unseen classes, all classes to choose from", "orange"),
    Measure("gzsl_seen", "S", "S, seen classes", "seen classes, all classes to choose from", "blue"),
    Measure("gzsl_harmonic", "H", "H, harmonic mean", "harmonic mean of U and S", "green"),
)
ZERO_SHOT: tuple[ZeroShotName, ...] = ("zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic")
"""What a zero-shot run is judged by, in percent."""
FEW_SHOT: tuple[FewShotName, ...] = ("few_shot", "few_shot_pixels", "few_shot_random")
"""Of a few-shot run: the model, the nearest example in raw samples, the nearest mean of untrained features."""
FEW_SHOT_DETAILS: tuple[FewShotDetail, ...] = (
    "few_shot_validation",
    "few_shot_base",
    "few_shot_episode_sd",
    "few_shot_episode_max",
    "mi_share",
)
"""What else a few-shot run may have: on validation classes, on new samples of training classes, an episode's standard
deviation and the best of the test episodes, and the mutual information's share of the loss. All in percent."""

SHORT = {one.name: one.short for one in ZERO_SHOT_MEASURES} | {
    "few_shot": "few-shot",
    "few_shot_pixels": "raw samples",
    "few_shot_random": "untrained",
    "few_shot_validation": "validation classes",
    "few_shot_base": "training classes",
    "few_shot_episode_sd": "sd of an episode",
    "few_shot_episode_max": "best episode",
    "mi_share": "MI's share of the loss",
}
TITLES = {one.name: one.title for one in ZERO_SHOT_MEASURES} | {
    "few_shot": "Few-shot accuracy",
    "few_shot_pixels": "Nearest example in raw samples",
    "few_shot_random": "Features before training",
    "few_shot_validation": "Few-shot accuracy on validation classes",
    "few_shot_base": "Few-shot accuracy on training classes",
    "few_shot_episode_sd": "Standard deviation of an episode",
    "few_shot_episode_max": "Best episode",
    "mi_share": "Mutual information's share of the loss",
}
