"""Settings of runs that take a second, and how tests end one early. Imports the core alone."""

from fedunseen import Experiment
from known_names import DIGITS_MAML

LAST = {"evaluation.selection": "last", "evaluation.embedding": False}
"""The last round, without choosing one on validation classes, and no map of features."""

QUIET = {**LAST, "evaluation.theory": False}

TRAINED = {
    "data.train_per_class": 6, "data.test_per_class": 3, "method.hidden": [16], **QUIET,
}  # fmt: skip
"""With these settings a round of digit-pairs takes a second."""

ADAPTING = {
    "data.name": "folder", "data.unlabelled": True, "method.name": "gaussian", "method.calibration": True,
    "partition.clients": 3, **QUIET,
}  # fmt: skip
"""Settings of a run by statistics that adapts to unlabelled samples."""

SMALL = {**TRAINED, "partition.clients": 3, "strategy.rounds": 2}
COUNTING = {
    "data.train_per_class": 6, "data.test_per_class": 2, "partition.clients": 3,
    "evaluation.selection": "last", "evaluation.embedding": False, "evaluation.confidence": "none",
}  # fmt: skip
CLOSED = {key: value for key, value in SMALL.items() if not key.startswith(("strategy", "method"))}
FEW_SHOT = {
    "strategy.rounds": 3, "partition.clients": 2, "encoder.widths": [4], "method.episodes": 4,
    "method.inner_steps": 1, "method.test_steps": 2, "evaluation.episodes": 20, "evaluation.validation_episodes": 6,
}  # fmt: skip


def experiment(preset="digit-pairs", **more):
    """Return a preset that runs in a second, other than these three a closed form; two bars in a name
    are a dot.
    """
    trained = {"digit-pairs": SMALL, "digit-pairs-fedavg": SMALL, DIGITS_MAML: FEW_SHOT}
    small = trained.get(preset, CLOSED)
    return Experiment.load(
        preset, {**small, **{key.replace("__", "."): value for key, value in more.items()}}
    )


METHOD = {
    "name": "fedzsl", "hidden": [16], "lr": 0.05, "kl": 0.0, "consistency": 0.0, "batch_size": 8,
}  # fmt: skip
"""A method that trains in a fraction of a second."""

ANIMALS = {
    "horse": [0, 1, 0], "tiger": [1, 0.8, 0], "seal": [0, 0, 1], "eel": [1, 0, 1], "zebra": [1, 1, 0.3],
}  # fmt: skip
"""Five classes of three attributes."""


class KilledError(Exception):
    """What a test raises in the place of a kill."""


def kill(*given):
    """Kill what calls this, whatever it was given."""
    raise KilledError
