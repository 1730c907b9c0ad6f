"""What a run is weak at, what calibration costs and what to do next: for the console, ``result.json`` and the page."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedunseen import metrics

Ids = NDArray[np.int64]

EXAMPLES = 5  # examples of each unseen class that the advice names
LISTED = 6  # classes that are named
FALL = 20.0  # percentage points that calibration takes from a class before the class is named
GAIN = 5.0  # percentage points that examples must promise
_REMEDIES = {
    "seen classes": " Check their labels, and give more samples of them.",
    "unseen classes": " Describe by attributes what is visible, or show examples of each.",
}


class Weak(NamedTuple):
    """A class with less than half of its test samples right: its name, percent, and the most frequent wrong answer."""

    name: str
    accuracy: float
    instead: str


class Fall(NamedTuple):
    """A seen class and its accuracy in percent before and after calibration."""

    name: str
    before: float
    after: float


def weak_classes(names: Sequence[str], true: Ids, said: Ids) -> list[Weak]:
    """Return the weak classes, the weakest first."""
    result = []
    for c, accuracy in _accuracies(true, said).items():
        if accuracy < 50:
            wrong = said[(true == c) & (said != c)]
            result.append(Weak(names[c], accuracy, names[int(np.bincount(wrong).argmax())]))
    return sorted(result, key=lambda one: (one.accuracy, one.name))


def weak_words(weak: Sequence[Weak], of: int, kind: str) -> str:
    """Name the weak classes in a sentence."""
    if not weak:
        return f"None of the {of} {kind}: each has at least half of its samples right."
    named = [f"{item.name} ({item.accuracy:.0f} %; most often predicted as {item.instead})" for item in weak]
    verb, whose = ("has", "its") if len(weak) == 1 else ("have", "their")
    remedy = _REMEDIES.get(kind, "")
    return f"{len(weak)} of {of} {kind} {verb} less than half of {whose} samples right: {listed(named)}.{remedy}"


def calibration_falls(names: Sequence[str], true: Ids, before: Ids, after: Ids) -> list[Fall]:
    """Return the classes that lose many points by calibration, the greatest loss first."""
    old, new = _accuracies(true, before), _accuracies(true, after)
    falls = [Fall(names[c], old[c], new[c]) for c in old if old[c] - new[c] >= FALL]
    return sorted(falls, key=lambda one: (one.after - one.before, one.name))


def examples_advice(result: Mapping[str, Any], answers: Mapping[str, NDArray[Any]]) -> str:
    """Return the advice to show examples, with what they bring; "" where that is little or unknown."""
    expected: Mapping[str, float] = result.get("left_out_accuracy", {})
    before, after = (float(expected.get(str(shots), np.nan)) for shots in (0, EXAMPLES))
    source, most = "Classes left out of the sums predict that ZSL", "at most "
    tried = answers.get("curve_shots", np.zeros(0)).tolist()
    if EXAMPLES in tried:
        before, after = (float(answers["curve_both"][tried.index(shots)].mean()) for shots in (0, EXAMPLES))
        source, most = "Measured with test samples as examples, ZSL among the classes that have any", ""
    if not after - before >= GAIN:
        return ""
    run, out = (shlex.quote(str(result.get("run", "RUN")) + end) for end in ("", "-shown"))
    return (
        f"Show {EXAMPLES} examples of each unseen class. {source} rises from {before:.1f} to {most}{after:.1f} %. "
        f"fedunseen learn {run} --support FOLDER --out {out}, with a folder of examples for each class in FOLDER."
    )


def summarize(
    result: Mapping[str, Any], answers: Mapping[str, NDArray[Any]], names: Sequence[str], unseen: Ids, described: bool
) -> dict[str, Any]:
    """Return ``weak_unseen``, ``weak_seen`` and ``calibration_falls``, lists of tables, and ``text``, sentences."""
    if "zsl" not in result or "labels" not in answers:
        return {}
    labels, zsl, gzsl = (answers[name].astype(np.int64) for name in ("labels", "zsl_answers", "gzsl_answers"))
    plain = answers.get("uncalibrated_answers", gzsl).astype(np.int64)
    own = np.isin(labels, unseen)
    weak_unseen = weak_classes(names, labels[own], zsl[own]) if described else []
    weak_seen = weak_classes(names, labels[~own], gzsl[~own])
    falls = calibration_falls(names, labels[~own], plain[~own], gzsl[~own])
    text = [
        weak_words(weak, len(np.unique(labels[rows])), kind)
        for weak, rows, kind in ((weak_unseen, own, "unseen classes"), (weak_seen, ~own, "seen classes"))
        if weak
    ]
    if (plain != gzsl).any():
        text.append(_cost(result, falls))
    text += [advice] if (advice := examples_advice(result, answers)) and described else []
    found: dict[str, Sequence[Weak | Fall]] = {"weak_unseen": weak_unseen, "weak_seen": weak_seen}
    found["calibration_falls"] = falls
    return {**{name: [item._asdict() for item in rows] for name, rows in found.items()}, "text": text}


def _cost(result: Mapping[str, Any], falls: Sequence[Fall]) -> str:
    """Say what calibration brings unseen classes and costs seen ones."""
    sides = [(result[f"uncalibrated_gzsl_{side}"], result[f"gzsl_{side}"]) for side in ("unseen", "seen")]
    u, s = (f"{old:.1f} to {new:.1f} %" for old, new in sides)
    before, after = (metrics.harmonic_mean(*pair) for pair in zip(*sides, strict=True))
    named = [f"{item.name} ({item.before:.0f} to {item.after:.0f} %)" for item in falls]
    most = f" It costs most: {listed(named)}." if named else ""
    if before - after >= GAIN:
        most += (
            f" Their harmonic mean falls from {before:.1f} to {after:.1f} %: give more seen classes to calibrate on."
        )
    return f"Calibration moves unseen classes from {u} and seen ones from {s}.{most}"


def _accuracies(true: Ids, said: Ids) -> dict[int, float]:
    classes = np.unique(true).tolist()
    return dict(zip(classes, metrics.per_class(true, said, classes).tolist(), strict=True))


def listed(words: Sequence[str], most: int = LISTED) -> str:
    """Return some words, and how many more there are."""
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
