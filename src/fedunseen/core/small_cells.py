"""Small cells: classes of which a party has so few samples that their sums nearly show them."""

from collections.abc import Mapping

from fedunseen.core.errors import counted

MIN_SAMPLES = 5
"""Samples that a party of a deployment must have of a class, unless its owner or the coordinator
says otherwise.
"""


def left_out_sentence(counts: Mapping[str, float], minimum: int) -> str:
    """Return the sentence about classes that a party leaves out, for its owner alone; "" if there
    are none.

    Args:
        counts: class -> its samples at this party; of unlabelled samples the soft count.
        minimum: the number of samples below which a class is left out.
    """
    if not counts:
        return ""
    listed = ", ".join(f"{name} ({count:.3g})" for name, count in counts.items())
    return (
        f"left out of all sums, since fewer than {minimum} samples are here: {listed}; "
        f"--min-samples {int(min(counts.values())) or 1} sends them, unless the coordinator asks "
        "for more (method.min_samples)"
    )


def consent_to_single(asked: int) -> str:
    """Return how the owner consents to sums that can show single samples.

    Args:
        asked: ``method.min_samples`` of the coordinator, which the owner cannot lower.
    """
    given = "give --min-samples 1 if the owner agrees"
    if asked == 1:
        return given
    return f"{given}, once the coordinator has taken back method.min_samples = {asked}"


def alone_sentence(count: int) -> str:
    """Return the sentence about samples that a party leaves out since second moments would show
    them alone, for its owner alone; "" if there are none.
    """
    if not count:
        return ""
    stand = "it stands" if count == 1 else "they stand"
    return (
        f"left out of all sums: {counted(count, 'sample')} that second moments would show, since "
        f"{stand} alone in some feature or direction; --consent moments sends them"
    )


def near_mean_sentence(count: int) -> str:
    """Return the sentence about samples that others stand in for since the coordinator's mean is
    near them, for the party's owner alone; "" if there are none.
    """
    if not count:
        return ""
    they = "it is" if count == 1 else "they are"
    return (
        f"others of their classes stand in for {counted(count, 'sample')} in all sums: {they} near "
        "the mean that the coordinator takes off, and unit length would make that plain; "
        "--min-samples 1 sends them, unless the coordinator asks for more (method.min_samples)"
    )
