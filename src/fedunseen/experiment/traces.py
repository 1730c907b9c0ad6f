"""What a finished model keeps of samples whose statistics were subtracted, where nothing could be
fitted again.
"""

from collections.abc import Iterable, Sequence

from fedunseen.core.small_cells import MIN_SAMPLES

STAYS = {
    "scaling": "the scaling of features (data.features) was fitted with what was removed",
    "quantization": "the range of each feature (data.quantization) was fitted with what was "
    "removed",
    "calibration": "the offset, the round and the settings were chosen with what was removed",
    "confidence": "calibrated probabilities, prediction sets and alarms were fitted with what was "
    "removed",
    "settings": "settings that were left to the data, such as method.lr, were fitted with what was "
    "removed",
    "columns": "bounds, fills and categories (data.columns), or the window of pictures "
    "(data.window), may be those of what was removed",
    "few": f"of a class whose samples were removed, fewer than {MIN_SAMPLES} are left, and readers "
    "of the model can tell their features",
    "rounds": "metrics.jsonl has the accuracies of earlier rounds, whose models had what was "
    "removed",
}
"""Stable code -> sentence, of all that a removal can leave behind."""


def in_order(codes: Iterable[str]) -> list[str]:
    """Return codes without repetition, in the order of :data:`STAYS`."""
    present = set(codes)
    return [code for code in STAYS if code in present]


def stated(data: object) -> list[str]:
    """Return the code of what settings of ``[data]`` state, which `init` measures on samples."""
    measured = getattr(data, "columns", ()) or getattr(data, "window", None)
    return ["columns"] if measured else []


def sentences(codes: Sequence[str]) -> list[str]:
    """Return what these codes stand for, a sentence each."""
    return [STAYS[code] for code in codes]
