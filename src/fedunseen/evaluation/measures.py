"""The numbers of a run by name: what they are called in files, on the console and on pages. Every
list starts here.
"""

from typing import Literal, NamedTuple, get_args

ZeroShotName = Literal["zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic"]
FewShotName = Literal["few_shot", "few_shot_pixels", "few_shot_random"]
FewShotDetail = Literal[
    "few_shot_validation",
    "few_shot_base",
    "few_shot_episode_sd",
    "few_shot_episode_max",
    "mi_share",
]


class Measure(NamedTuple):
    """One number of a run, in percent; ``short`` is for tables, ``title`` for charts, ``color`` a
    variable of pages.
    """

    name: str
    short: str
    title: str
    words: str
    color: str


ZERO_SHOT_MEASURES = (
    Measure("zsl", "ZSL", "ZSL accuracy", "only unseen classes to choose from", "orange"),
    Measure(
        "gzsl_unseen",
        "U",
        "U, unseen classes",
        "unseen classes, all classes to choose from",
        "orange",
    ),
    Measure(
        "gzsl_seen", "S", "S, seen classes", "seen classes, all classes to choose from", "blue"
    ),
    Measure("gzsl_harmonic", "H", "H, harmonic mean", "harmonic mean of U and S", "green"),
)
_FEW_SHOT: dict[FewShotName | FewShotDetail, tuple[str, str]] = {  # short and title
    "few_shot": ("few-shot", "Few-shot accuracy"),
    "few_shot_pixels": ("raw samples", "Nearest example in raw samples"),
    "few_shot_random": ("untrained", "Features before training"),
    "few_shot_validation": ("validation classes", "Few-shot accuracy on validation classes"),
    "few_shot_base": ("training classes", "Few-shot accuracy on training classes"),
    "few_shot_episode_sd": ("sd of an episode", "Standard deviation of an episode"),
    "few_shot_episode_max": ("best episode", "Best episode"),
    "mi_share": ("MI's share of the loss", "Mutual information's share of the loss"),
}
ZERO_SHOT: tuple[ZeroShotName, ...] = get_args(ZeroShotName)
FEW_SHOT: tuple[FewShotName, ...] = get_args(FewShotName)
FEW_SHOT_DETAILS: tuple[FewShotDetail, ...] = get_args(FewShotDetail)
"""What else a few-shot run may have."""
SHORT = {measure.name: measure.short for measure in ZERO_SHOT_MEASURES} | {
    str(name): of[0] for name, of in _FEW_SHOT.items()
}
TITLES = {measure.name: measure.title for measure in ZERO_SHOT_MEASURES} | {
    str(name): of[1] for name, of in _FEW_SHOT.items()
}
