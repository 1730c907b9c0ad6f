"""What a run is weak at, what calibration costs and what to do next: for the console,
``result.json`` and the page.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedunseen import metrics
from fedunseen.core.errors import part_of

Ids = NDArray[np.int64]

WEAK = 50  # percent of a class's test samples, below which it is weak
EXAMPLES = 5  # examples of each unseen class that the advice names
LISTED = 6  # classes that are named
FALL = 20.0  # percentage points that calibration takes from a class before the class is named
RULE = 10.0  # percentage points that the decision between seen and unseen takes from a class
GAIN = 5.0  # percentage points that examples must promise
SWING = 3.0  # percentage points of half an interval from which on it is said
LEAST = 2.0  # percentage points of the harmonic mean that another decision rule must promise


def interval_words(result: Mapping[str, Any]) -> str:
    """Say between which numbers accuracies lie on so few test samples; "" where they are many."""
    intervals: Mapping[str, Sequence[float]] = result.get("intervals", {})
    if not any(high - low >= 2 * SWING for low, high in intervals.values()):
        return ""
    titles = {"gzsl_unseen": "unseen", "gzsl_seen": "seen", "gzsl_harmonic": "harmonic"}
    parts = [
        f"{title} {intervals[name][0]:.0f} to {intervals[name][1]:.0f} %"
        for name, title in titles.items()
    ]
    return f"There are few test samples. The 95 % intervals are: {', '.join(parts)}."


class Weak(NamedTuple):
    """A class with less than half of its test samples right.

    Attributes:
        name: of the class.
        accuracy: in percent.
        instead: the most frequent wrong answer.
        cause: ``rule`` where the decision between seen and unseen classes makes it weak; ``data``.
        otherwise: percent without this decision.
        samples: of it, that were tested.
    """

    name: str
    accuracy: float
    instead: str
    cause: str = "data"
    otherwise: float | None = None
    samples: int = 0


class Fall(NamedTuple):
    """A seen class and its accuracy in percent before and after calibration."""

    name: str
    before: float
    after: float


def weak_classes(
    names: Sequence[str],
    true: Ids,
    said: Ids,
    otherwise: Ids | None = None,
    surely: bool = False,
) -> list[Weak]:
    """Return the weak classes, the weakest first.

    Args:
        names: of classes.
        true: (n,) classes of samples.
        said: (n,) answers.
        otherwise: (n,) answers without the decision between seen and unseen classes.
        surely: none whose 95 % interval has the mean of all, before that decision, or half.
    """
    result = []
    now = _accuracies(true, said)
    without = {} if otherwise is None else _accuracies(true, otherwise)
    usual = max(WEAK, float(np.mean(list((without or now).values())))) if now else WEAK
    for c, accuracy in now.items():
        samples = int((true == c).sum())
        if accuracy < WEAK and not (surely and _at_most(accuracy, samples) >= usual):
            wrong = said[(true == c) & (said != c)]
            instead = names[int(np.bincount(wrong).argmax())]
            cause = "rule" if without.get(c, accuracy) - accuracy >= RULE else "data"
            result.append(Weak(names[c], accuracy, instead, cause, without.get(c), samples))
    return sorted(result, key=lambda weak: (weak.accuracy, weak.name))


def _at_most(accuracy: float, samples: int) -> float:
    """Return the upper end of the 95 % interval of a percentage of samples (Wilson 1927)."""
    share = accuracy / 100
    z = 1.96
    middle = share + z * z / (2 * samples)
    half = z * float(np.sqrt(share * (1 - share) / samples + (z / (2 * samples)) ** 2))
    return (middle + half) / (1 + z * z / samples) * 100


def weak_words(weak: Sequence[Weak], of: int, kind: str) -> str:
    """Name the weak classes in a sentence."""
    alone = ", where only unseen classes compete" if kind == "unseen classes" and of > 1 else ""
    if not weak:
        whose = part_of(1, 1, kind) if of == 1 else f"Each of the {of} {kind}"
        return f"{whose} has at least half of its samples right{alone}."
    examples = [
        f"{item.name} ({item.accuracy:.0f} % of {item.samples}; most often predicted as "
        f"{item.instead})"
        for item in weak
    ]
    verb, whose = ("has", "its") if len(weak) == 1 else ("have", "their")
    cause = (
        " The samples cause this, not the decision rule: look at those of both classes for "
        "misplaced ones, of which only clear ones are found, and add training samples."
        if kind == "seen classes"
        else ""
    )
    return (
        f"{part_of(len(weak), of, kind)} {verb} less than half of {whose} samples right{alone}: "
        f"{listed(examples)}.{cause}"
    )


def rule_words(weak: Sequence[Weak], of: int, kind: str, setting: str) -> str:
    """Name the classes that the decision rule makes weak, and the setting that moves it."""
    how = {
        "seen classes": "{:.0f} % without calibration",
        "unseen classes": "{:.0f} % if the answer had to be an unseen class; most often predicted "
        "as {}",
    }
    examples = [
        f"{item.name} ({item.accuracy:.0f} % of {item.samples}; "
        f"{how[kind].format(item.otherwise, item.instead)})"
        for item in weak
    ]
    other = "unseen" if kind == "seen classes" else "seen"
    lose = "loses" if len(weak) == 1 else "lose"
    return (
        f"{part_of(len(weak), of, kind)} {lose} answers to {other} classes: "
        f"{listed(examples)}. {setting}"
    )


def within_reach(result: Mapping[str, Any], kind: str, setting: str) -> tuple[float, float] | None:
    """Return the accuracies (unseen, seen) under the prior that ``setting`` names, or else at the
    best offset that favors a kind of classes more than now, by samples that were not trained on;
    None where their harmonic mean gains little.
    """
    sure = result.get("confidence", {})
    named = [point for name, point in sure.get("priors", {}).items() if f'"{name}"' in setting]
    trade = named or sure.get("trade", ())
    now = float(result.get("calibration_factor", 0.0))
    further = [(u, s) for offset, u, s in trade if (offset > now) == (kind == "unseen classes")]
    if not further:
        return None
    best = max(further, key=lambda pair: metrics.harmonic_mean(*pair))
    harmonic = metrics.harmonic_mean(result["gzsl_unseen"], result["gzsl_seen"])
    return best if metrics.harmonic_mean(*best) >= harmonic + LEAST else None


def rule_advice(kind: str, prior: Any, result: Mapping[str, Any]) -> str:
    """Return the setting that moves the decision rule towards a kind of classes, with what it
    can bring; "" where that is little or was not measured.
    """
    setting = moved_rule(kind, prior, result)
    reached = within_reach(result, kind, setting)
    if reached is None or not setting:
        return ""
    return f"{setting} For the test samples, that takes the accuracy {_moves(result, reached)}."


def moved_rule(kind: str, prior: Any, result: Mapping[str, Any]) -> str:
    """Return the setting that moves the decision rule towards seen or unseen classes."""
    order = ("balanced", "auto", "uniform")
    if not result.get("calibration_factor"):
        if kind == "seen classes":
            return "Set method.calibration = false."
        measured = result.get("confidence", {}).get("priors", {})  # where a prior chose no offset
        return 'Set evaluation.prior = "balanced".' if prior in order[1:] and measured else ""
    step = 1 if kind == "seen classes" else -1
    place = order.index(prior) + step if prior in order else -1
    if 0 <= place < len(order):
        return f'Set evaluation.prior = "{order[place]}".'
    direction = "smaller" if step > 0 else "larger"
    example = 0.02 if step > 0 else 0.8
    return (
        f"Give evaluation.prior a {direction} share of questions about unseen classes, for example "
        f"{example}."
    )


def calibration_falls(names: Sequence[str], true: Ids, before: Ids, after: Ids) -> list[Fall]:
    """Return the classes that lose many points by calibration, the greatest loss first."""
    old = _accuracies(true, before)
    new = _accuracies(true, after)
    falls = [Fall(names[c], old[c], new[c]) for c in old if old[c] - new[c] >= FALL]
    return sorted(falls, key=lambda fall: (fall.after - fall.before, fall.name))


class Gain(NamedTuple):
    """What examples bring.

    Attributes:
        before, after: accuracy among unseen classes in percent, without and with examples.
        measured: on test samples; otherwise on draws of classes left out.
        among_all: U and S in percent with examples; None where it was not measured.
    """

    before: float
    after: float
    measured: bool
    among_all: tuple[float, float] | None = None


def examples_gain(result: Mapping[str, Any], answers: Mapping[str, NDArray[Any]]) -> Gain | None:
    """Return what ``EXAMPLES`` examples of each unseen class bring; None where it is unknown."""
    tried = answers.get("curve_shots", np.zeros(0)).tolist()
    if EXAMPLES in tried:
        before, after = (
            float(answers["curve_both"][tried.index(shots)].mean()) for shots in (0, EXAMPLES)
        )
        both = ("examples_unseen", "examples_seen")
        unseen, seen = (float(answers[name].mean()) if name in answers else None for name in both)
        among_all = None if unseen is None or seen is None else (unseen, seen)
        return Gain(before, after, True, among_all)
    expected: Mapping[str, float] = result.get("left_out_accuracy", {})
    if str(EXAMPLES) not in expected:
        return None
    return Gain(float(expected["0"]), float(expected[str(EXAMPLES)]), False)


def examples_advice(
    result: Mapping[str, Any],
    answers: Mapping[str, NDArray[Any]],
    unseen: Sequence[str],
    lost: bool = False,
) -> str:
    """Return the advice to show examples of the ``unseen`` classes, with what they bring; "" where
    that is little or unknown, or all have had as many.

    ``lost``: some of these classes lose answers to seen ones. Then the advice is given too where
    what it brings beside these is unknown.
    """
    gain = examples_gain(result, answers)
    shown = result.get("shown", {})
    lacking = [name for name in unseen if shown.get(name, 0) < EXAMPLES]
    if gain is None or not lacking:
        return ""
    among_all = gain.among_all
    if among_all is None:
        helps = lost
    else:
        before = metrics.harmonic_mean(result["gzsl_unseen"], result["gzsl_seen"])
        helps = metrics.harmonic_mean(*among_all) - before >= GAIN
    if not (helps or gain.after - gain.before >= GAIN):
        return ""
    whose = "each unseen class" if len(lacking) == len(unseen) else listed(lacking)
    source = "On test samples" if gain.measured else "On classes left out of training"
    most = "" if gain.measured else "at most "
    beside = " What it brings where seen classes compete was not measured." if lost else ""
    if among_all is not None:
        beside = f" Among all classes, it takes the accuracy {_moves(result, among_all)}."
    run, out = (shlex.quote(str(result.get("run", "RUN")) + end) for end in ("", "-shown"))
    return (
        f"Show {EXAMPLES} examples of {whose}. {source}, that takes the accuracy among unseen "
        f"classes alone from {gain.before:.1f} to {most}{gain.after:.1f} %.{beside} Put a folder "
        f"of examples for each class into FOLDER, or name a table instead: fedunseen learn {run} "
        f"--support FOLDER --out {out}"
    )


def _moves(result: Mapping[str, Any], reached: tuple[float, float]) -> str:
    """Say from which accuracies on unseen and on seen classes to which others a remedy leads."""
    sides = (("unseen classes", "gzsl_unseen"), ("seen classes", "gzsl_seen"))
    moves = [
        f"on {side} from {result[key]:.1f} to {value:.1f} %"
        for (side, key), value in zip(sides, reached, strict=True)
    ]
    return " and ".join(moves)


def summarize(
    result: Mapping[str, Any],
    answers: Mapping[str, NDArray[Any]],
    names: Sequence[str],
    unseen: Ids,
    described: bool,
    prior: Any = "balanced",
) -> dict[str, Any]:
    """Return ``weak_unseen``, ``weak_seen``, ``weak_by_rule`` and ``calibration_falls``, lists of
    tables, and ``text``, sentences.

    ``prior``: how the offset of seen classes was chosen (``evaluation.prior``).
    """
    if "zsl" not in result or "labels" not in answers:
        return {}
    labels = answers["labels"].astype(np.int64)
    gzsl = answers["gzsl_answers"].astype(np.int64)
    plain = answers.get("uncalibrated_answers", gzsl).astype(np.int64)
    of_unseen = np.isin(labels, unseen)
    alone, lost = weak_unseen(answers, names, unseen) if described else ([], [])
    weak_seen = weak_classes(
        names, labels[~of_unseen], gzsl[~of_unseen], plain[~of_unseen], surely=True
    )
    by_rule = {
        "seen classes": [case for case in weak_seen if case.cause == "rule"],
        "unseen classes": lost,
    }
    falls = calibration_falls(names, labels[~of_unseen], plain[~of_unseen], gzsl[~of_unseen])
    sides = (("unseen classes", of_unseen), ("seen classes", ~of_unseen))
    counts = {kind: len(np.unique(labels[mine])) for kind, mine in sides}
    by_data = {
        "unseen classes": alone,
        "seen classes": [item for item in weak_seen if item.cause == "data"],
    }
    text = [weak_words(weak, counts[kind], kind) for kind, weak in by_data.items() if weak]
    advice = ""
    if described:
        advice = examples_advice(result, answers, [names[c] for c in unseen.tolist()], bool(lost))
    for kind, weak in by_rule.items():
        if not weak:
            continue
        setting = rule_advice(kind, prior, result)
        first = kind == "unseen classes" and examples_first(advice, answers, result, prior)
        if first:
            setting = " ".join(["Show examples of them first.", *_without_examples(setting)])
        text.append(rule_words(weak, counts[kind], kind, setting).strip())
        text += [advice] if first else []
    if (plain != gzsl).any():
        text.append(_cost(result, falls))
    text += [advice] if advice and advice not in text else []
    weaknesses: dict[str, Sequence[Weak | Fall]] = {
        "weak_unseen": alone,
        "weak_seen": weak_seen,
        "weak_by_rule": by_rule["unseen classes"],
        "calibration_falls": falls,
    }
    return {
        **{name: [item._asdict() for item in rows] for name, rows in weaknesses.items()},
        "text": text,
    }


def weak_unseen(
    answers: Mapping[str, NDArray[Any]], names: Sequence[str], unseen: Ids
) -> tuple[list[Weak], list[Weak]]:
    """Return the unseen classes that are weak where only unseen ones compete, and those that the
    decision between seen and unseen ones makes weak.
    """
    if "gzsl_answers" not in answers:
        return [], []
    labels, zsl, gzsl = (
        answers[name].astype(np.int64) for name in ("labels", "zsl_answers", "gzsl_answers")
    )
    mine = np.isin(labels, unseen)
    alone = weak_classes(names, labels[mine], zsl[mine])
    weak = {item.name for item in alone}
    among_all = weak_classes(names, labels[mine], gzsl[mine], zsl[mine])
    return alone, [item for item in among_all if item.cause == "rule" and item.name not in weak]


def examples_first(
    advice: str, answers: Mapping[str, NDArray[Any]], result: Mapping[str, Any], prior: Any
) -> bool:
    """Return whether unseen classes that lose answers to seen ones gain more by examples, where
    these are advised, than by another decision rule.
    """
    kind = "unseen classes"
    reached = within_reach(result, kind, moved_rule(kind, prior, result))
    gain = examples_gain(result, answers)
    if not advice or reached is None or gain is None or gain.among_all is None:
        return bool(advice)
    return metrics.harmonic_mean(*gain.among_all) >= metrics.harmonic_mean(*reached)


def _without_examples(setting: str) -> list[str]:
    """Return the advice on the decision rule, for those who have no examples."""
    return [f"If you have none: {setting[0].lower()}{setting[1:]}"] if setting else []


def _cost(result: Mapping[str, Any], falls: Sequence[Fall]) -> str:
    """Say what calibration brings unseen classes and costs seen ones."""
    sides = [
        (result[f"uncalibrated_gzsl_{side}"], result[f"gzsl_{side}"]) for side in ("unseen", "seen")
    ]
    u, s = (f"{old:.1f} to {new:.1f} %" for old, new in sides)
    before, after = (metrics.harmonic_mean(*pair) for pair in zip(*sides, strict=True))
    examples = [f"{item.name} ({item.before:.0f} to {item.after:.0f} %)" for item in falls]
    most = f" These seen classes lose most: {listed(examples)}." if examples else ""
    if before - after >= GAIN:
        most += f" Their harmonic mean falls from {before:.1f} to {after:.1f} %."
    return (
        f"Favoring unseen classes (calibration) moves them from {u}, and seen ones from {s}.{most}"
    )


def _accuracies(true: Ids, said: Ids) -> dict[int, float]:
    classes = np.unique(true).tolist()
    return dict(zip(classes, metrics.per_class(true, said, classes).tolist(), strict=True))


def listed(words: Sequence[str], most: int = LISTED) -> str:
    """Return some words, and how many more there are."""
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def stopped(result: Mapping[str, Any]) -> str:
    """Return when and why training stopped before its last round; "" if it did not."""
    stop = result.get("stopped")
    if stop is None:
        return ""
    return f" It stopped after round {stop['round']} of {stop['of']}: {stop['why']}."
