"""What a run is weak at, what the offset costs and what to do next: for the console,
``result.json`` and the page.
"""

import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedunseen import metrics
from fedunseen.core.errors import ExperimentError, counted, part_of
from fedunseen.core.registry import find
from fedunseen.evaluation.lighting import is_cause

Ids = NDArray[np.int64]

WEAK = 50  # percent of a class's test samples, below which it is weak
EXAMPLES = 5  # examples of each unseen class that the advice names
LISTED = 6  # classes that are named
FALL = 20.0  # percentage points that calibration takes from a class before the class is named
RULE = 10.0  # percentage points that the decision between seen and unseen takes from a class
GAIN = 5.0  # percentage points that examples must promise
APART = 1.0  # deviation of the log odds of single classes after examples: docs/research/own-data.md
FOUR_OF_FIVE = 1.28  # deviations of a normal distribution
SWING = 3.0  # percentage points of half an interval from which on it is said
LEAST = 2.0  # percentage points of the harmonic mean that another decision rule must promise
FAR = 20.0  # percentage points below the other seen classes, from which on a seen class is weak
NAMED = 10.0  # percent of a class's samples, from which on a wrong answer is named
BOTH_WAYS = 10.0  # percent of pictures of either of two classes that look like the other one
ALIKE = 20.0  # percent of the samples of each of two classes that are taken for the other one
LEAST_MISTAKES = 3  # of a kind, for two classes that look alike
ENOUGH = 5  # test samples of a seen class, for it to be weak; training samples, not to be named
SCANT = 20  # samples of a class; below, it is named where it has few beside the others
LOW = 0.5  # of the median seen class's accuracy without the offset
FAR_FEWER = 0.25  # of the median class's samples
FILES = 3  # files that are named
PAIRS = 3  # of classes that look alike, that are named


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
    """A class that is recognized less often than half of the time, or far less than the others.

    Attributes:
        name: of the class.
        accuracy: in percent.
        instead: the most frequent wrong answer; "" where no class is it twice.
        cause: ``rule`` where the decision between seen and unseen classes makes it weak; ``both``
            where a seen class is far below the others without this decision too; ``data``.
        otherwise: percent without this decision.
        samples: of it, that were tested.
        called: the most frequent wrong answers, with the percentage of the class's samples; none
            that rests on one sample.
        among_all: percent once seen classes compete, of a class that is weak without them.
        plainly: the most frequent wrong answer without this decision; "" where none is it twice.
    """

    name: str
    accuracy: float
    instead: str
    cause: str = "data"
    otherwise: float | None = None
    samples: int = 0
    called: Mapping[str, float] = {}
    among_all: float | None = None
    plainly: str = ""


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
    mislabeled: Collection[str] = (),
    unseen: Sequence[int] | Ids = (),
) -> list[Weak]:
    """Return the weak classes, the weakest first.

    Args:
        names: of classes.
        true: (n,) classes of samples.
        said: (n,) answers.
        otherwise: (n,) answers without the decision between seen and unseen classes.
        surely: a class far below the mean of all before that decision, or below half, whose 90 %
            interval is so too. None of fewer than ``ENOUGH`` samples.
        mislabeled: classes with labels that seem wrong, which are the cause then, not the decision.
        unseen: of two wrong answers that are equally frequent, a seen class comes first, and then
            the one that is more often taken for this class.
    """
    result = []
    plain = said if otherwise is None else otherwise
    seen = np.isin(np.arange(len(names)), unseen, invert=True)
    now = _accuracies(true, said)
    without = {} if otherwise is None else _accuracies(true, otherwise)
    usual = max(WEAK, float(np.mean(list((without or now).values())))) if now else WEAK
    below = max(WEAK, usual - FAR) if surely else WEAK
    for c, accuracy in now.items():
        samples = int((true == c).sum())
        chance = surely and (samples < ENOUGH or _at_most(accuracy, samples) >= below)
        if accuracy < below and not chance:
            called, plainly = (
                {
                    names[other]: round(100 * count / samples, 1)
                    for other, count in _instead(c, true, answers, seen)
                }
                for answers in (said, plain)
            )
            by_rule = without.get(c, accuracy) - accuracy >= RULE and names[c] not in mislabeled
            cause = "rule" if by_rule else "data"
            little = surely and c in without and samples >= SCANT  # fewer say little of labels
            if by_rule and little and without[c] < LOW * float(np.median(list(without.values()))):
                cause = "both"
            first, alone = (next(iter(answers), "") for answers in (called, plainly))
            weak = Weak(names[c], accuracy, first, cause, without.get(c), samples, called)
            result.append(weak._replace(plainly=alone))
    return sorted(result, key=lambda weak: (weak.accuracy, weak.name))


def _instead(c: int, true: Ids, said: Ids, seen: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the most frequent wrong answers about a class, with how many they are: at most two,
    none that is given once.
    """
    counts = np.bincount(said[(true == c) & (said != c)], minlength=len(seen))
    back = np.bincount(true[said == c], minlength=len(seen))
    order = np.lexsort((-back, ~seen, -counts))[:2].tolist()
    return [(other, int(counts[other])) for other in order if counts[other] > 1]


def _at_most(accuracy: float, samples: int) -> float:
    """Return the upper end of the 90 % interval of a percentage of samples (Wilson 1927)."""
    share = accuracy / 100
    z = 1.645
    middle = share + z * z / (2 * samples)
    half = z * float(np.sqrt(share * (1 - share) / samples + (z / (2 * samples)) ** 2))
    return (middle + half) / (1 + z * z / samples) * 100


def weak_words(weak: Sequence[Weak], of: int, kind: str, also: str = "") -> str:
    """Name the weak classes in a sentence.

    ``also``: what is said of the causes.
    """
    of_unseen = kind.endswith("unseen classes")
    alone = ", where only unseen classes compete" if of_unseen and of > 1 else ""
    if not weak:
        whose = part_of(1, 1, kind) if of == 1 else f"Each of the {of} {kind}"
        return f"{whose} has at least half of its samples right{alone}."
    examples = [
        f"{item.name} ({_right(item)}"
        f"{'' if item.among_all is None else f', {item.among_all:.0f} % once seen classes compete'}"
        f"{_called(item)})"
        for item in weak
    ]
    verb, whose = ("has", "its") if len(weak) == 1 else ("have", "their")
    what = f"less than half of {whose} samples right"
    if any(item.accuracy >= WEAK for item in weak):
        verb = "is" if len(weak) == 1 else "are"
        what = "recognized much less often than the others"
    return f"{part_of(len(weak), of, kind)} {verb} {what}{alone}: {listed(examples)}.{also}"


def _right(item: Weak) -> str:
    """Say how many of a class's samples are right: of few, without a percentage."""
    if item.samples < SCANT:
        right = round(item.accuracy / 100 * item.samples)
        return f"{right} of {counted(item.samples, 'test sample')} right"
    return f"{item.accuracy:.0f} % of {item.samples} samples right"


def _called(item: Weak, unseen: Collection[str] = (), mark: str = "also unseen") -> str:
    """Say what a class's samples are called instead: ``; 45 % are called sunflower (also unseen)``.

    ``unseen``: names of unseen classes, to be marked by ``mark``.
    """
    most = {name: share for name, share in item.called.items() if share >= NAMED}
    shares = most or dict(list(item.called.items())[:1])
    words = [
        f"{share:.0f} % {'are called ' if not place else ''}{name}"
        f"{f' ({mark})' if name in unseen else ''}"
        for place, (name, share) in enumerate(shares.items())
    ]
    return f"; {', '.join(words)}" if words else ""


def rule_words(
    weak: Sequence[Weak], of: int, kind: str, setting: str, unseen: Collection[str] = ()
) -> str:
    """Name the classes that the decision rule makes weak, and the setting that moves it.

    ``unseen``: names of unseen classes.
    """
    if not kind.endswith("unseen classes"):
        verb = "is" if len(weak) == 1 else "are"
        where = f"{verb} often called an unseen class, which the offset favors"
        how = "without the offset"
        mark = "unseen"
    else:
        verb, whose = ("has", "its") if len(weak) == 1 else ("have", "their")
        where = f"{verb} less than half of {whose} samples right once seen classes compete"
        how = "if only unseen classes compete"
        mark = "also unseen"
    examples = [
        f"{item.name} ({_right(item)}, {item.otherwise:.0f} % {how}{_called(item, unseen, mark)})"
        for item in weak
    ]
    return f"{part_of(len(weak), of, kind)} {where}: {listed(examples)}. {setting}"


class Alike(NamedTuple):
    """Two seen classes that are taken for each other.

    Attributes:
        names: of both.
        taken: percent of the test samples of each that are taken for the other.
        together: percent of the samples of both that get one of the two answers.
        samples: test samples of both.
    """

    names: tuple[str, str]
    taken: tuple[float, float]
    together: float
    samples: int


def alike_classes(names: Sequence[str], true: Ids, said: Ids) -> list[Alike]:
    """Return pairs of classes of which many samples of either are taken for the other, the most
    first. Few mistakes do not count.
    """
    classes = np.unique(true)
    counts = np.zeros((len(names), len(names)))
    np.add.at(counts, (true, said), 1.0)
    samples = counts.sum(1)
    pairs = []
    for place, a in enumerate(classes.tolist()):
        for b in classes[place + 1 :].tolist():
            taken = 100 * counts[a, b] / samples[a], 100 * counts[b, a] / samples[b]
            if min(taken) >= ALIKE and min(counts[a, b], counts[b, a]) >= LEAST_MISTAKES:
                both = int(samples[a] + samples[b])
                inside = 100 * float(counts[np.ix_([a, b], [a, b])].sum()) / both
                pairs.append(Alike((names[a], names[b]), taken, inside, both))
    return sorted(pairs, key=lambda pair: -sum(pair.taken))


def alike_words(pair: Alike) -> str:
    """Say that two classes look alike to the encoder, and what helps."""
    a, b = pair.names
    return (
        f"{a} and {b} look alike to this encoder: {pair.taken[0]:.0f} % of {a} are called {b}, and "
        f"{pair.taken[1]:.0f} % of {b} are called {a}. Try another encoder, or make them one "
        f"class: then {pair.together:.0f} % of their {pair.samples} test samples would be "
        "right."
    )


def looking_alike(
    result: Mapping[str, Any], unseen: Collection[str], said: Sequence[Alike]
) -> list[str]:
    """Say which seen classes look alike over all their pictures: test pictures alone are few.

    ``said``: pairs that test samples show.
    """
    known = [set(pair.names) for pair in said]
    known += [{group["place"], group["like"]} for group in result.get("misplaced", ())]
    words = []
    for pair in result.get("alike", ()):
        (from_a, a), (from_b, b) = sorted(zip(pair["taken"], pair["names"], strict=True))[::-1]
        if {a, b} in known or {a, b} & set(unseen):
            continue
        often = "often confuses these two"
        also = ""
        if from_b < BOTH_WAYS:  # as wrong labels do, too
            often = f"often calls {a} {b}"
            files = _first_files({(a, b)}, result)
            also = (
                f" Or labels of {a} are wrong: look {f'first at {files}' if files else 'at them'}."
            )
        words.append(
            f"{a} and {b} look alike to this encoder. Each picture was compared with all others: "
            f"{from_a:.0f} % of {a} look more like {b}, and {from_b:.0f} % of {b} look more like "
            f"{a}. The model {often}. Try another encoder, or make them one class.{also}"
        )
    return words


def within_reach(
    result: Mapping[str, Any], kind: str, setting: str, tested: tuple[int, int] = (1, 1)
) -> tuple[float, float] | None:
    """Return the accuracies (unseen, seen) under the prior that ``setting`` names, or else at the
    best offset that favors a kind of classes more than now, by samples that were not trained on;
    None where their harmonic mean gains little, or the accuracy over all classes falls.

    ``tested``: how many unseen and how many seen classes have test samples.
    """
    sure = result.get("confidence", {})
    named = [point for name, point in sure.get("priors", {}).items() if f'"{name}"' in setting]
    trade = named or sure.get("trade", ())
    now = float(result.get("calibration_factor", 0.0))
    further = [(u, s) for offset, u, s in trade if (offset > now) == (kind == "unseen classes")]
    if not further:
        return None
    best = max(further, key=lambda pair: metrics.harmonic_mean(*pair))
    before = result["gzsl_unseen"], result["gzsl_seen"]
    gains = metrics.harmonic_mean(*best) >= metrics.harmonic_mean(*before) + LEAST
    return best if gains and _over(best, tested) >= _over(before, tested) else None


def _over(sides: tuple[float, float], tested: tuple[int, int]) -> float:
    """Return the accuracy over all classes, of that of (unseen, seen) ones and how many are
    tested.
    """
    return float(np.average(sides, weights=tested))


def rule_advice(
    kind: str, prior: Any, result: Mapping[str, Any], tested: tuple[int, int] = (1, 1)
) -> str:
    """Return the setting that moves the decision rule towards a kind of classes, with what it
    can bring; "" where that is little, costs accuracy over all classes, or was not measured.

    ``tested``: how many unseen and how many seen classes have test samples.
    """
    setting = moved_rule(kind, prior, result)
    reached = within_reach(result, kind, setting, tested)
    if reached is None or not setting:
        return ""
    before, after = (
        _over(sides, tested) for sides in ((result["gzsl_unseen"], result["gzsl_seen"]), reached)
    )
    return (
        f"{setting.rstrip('.')} (in the experiment file, then run it again). On test samples, that "
        f"takes the accuracy {_moves(result, reached)}; over all classes from {before:.1f} to "
        f"{after:.1f} %."
    )


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
        each: four of five single classes lie between these percentages among all; None where
            that was not measured.
    """

    before: float
    after: float
    measured: bool
    among_all: tuple[float, float] | None = None
    each: tuple[float, float] | None = None

    def spread(self, beside: str = "") -> str:
        """Say how far single classes lie apart; "" where that is unknown."""
        if self.each is None:
            return ""
        low, high = (f"{value:.0f}" for value in self.each)
        return f" (four of five single classes lie between {low} and {high}{beside})"


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
        single = answers.get("examples_each", np.zeros(0))
        each = _of_single_classes(single) if len(single) else None
        return Gain(before, after, True, among_all, each)
    expected: Mapping[str, float] = result.get("left_out_accuracy", {})
    if str(EXAMPLES) not in expected:
        return None
    return Gain(float(expected["0"]), float(expected[str(EXAMPLES)]), False)


def _of_single_classes(measured: NDArray[Any]) -> tuple[float, float]:
    """Return between which percentages four of five classes lie, if their log odds deviate as
    measured elsewhere: few unseen classes say how many are right on average, not how far single
    ones lie apart.

    ``measured``: (K,) percentages of this run's unseen classes.
    """
    share = float(np.clip(measured.mean(), 5, 95)) / 100
    half = FOUR_OF_FIVE * APART * float(np.sqrt(1 + 1 / len(measured)))
    odds = float(np.log(share / (1 - share)))
    low, high = (float(100 / (1 + np.exp(-odds - sign * half))) for sign in (-1, 1))
    return min(low, float(measured.min())), max(high, float(measured.max()))


def by_description(result: Mapping[str, Any]) -> float | None:
    """Return the accuracy of unseen classes among all before any of them had samples, in percent;
    None where it was not measured, or not kept.
    """
    if "gzsl_unseen_by_description" in result:
        return float(result["gzsl_unseen_by_description"])
    if result.get("shown"):
        return None
    value = result.get("adapted", {}).get("before", result).get("gzsl_unseen")
    return None if value is None else float(value)


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
    source = "On test samples" if gain.measured else "On seen classes, left out to try it"
    if "adapted" in result or result.get("learnt") or shown:  # the gain was measured before
        source = f"In the run from before, {source[0].lower()}{source[1:]}"
    most = "" if gain.measured else "at most "
    beside = " What it brings if all classes compete was not measured." if lost else ""
    if among_all is not None:
        moves = _moves(result, among_all, gain.spread(" %"))
        beside = f" If all classes compete, it takes the accuracy {moves}."
    among_unseen = f"from {gain.before:.1f} to {most}{gain.after:.1f} %"
    run, out = (shlex.quote(str(result.get("run", "RUN")) + end) for end in ("", "-shown"))
    return (
        f"Show the model {EXAMPLES} examples of {whose}. {source}, that takes the accuracy "
        f"{among_unseen} if only unseen classes compete.{beside} Put a folder of examples for each "
        f"class into FOLDER (or name a table), then: fedunseen learn {run} --support FOLDER --out "
        f"{out}"
    )


def pool_advice(result: Mapping[str, Any], method: str) -> list[str]:
    """Return the advice to try unlabelled samples where unseen classes are weak; none where the
    method cannot adapt to them, or the run has had some, or examples.
    """
    try:
        adapts = find("method", result.get("form", method)).adapts
    except ExperimentError:  # of a package that is not here
        return []
    if not adapts or "adapted" in result or result.get("shown"):
        return []
    run, out = (shlex.quote(str(result.get("run", "RUN")) + end) for end in ("", "-adapted"))
    return [
        f"Unlabelled samples, some of unseen classes, may help: fedunseen adapt {run} FOLDER --out "
        f"{out}. What they bring was not measured here, and accuracies may also fall: compare both "
        "runs. Try this before you show examples: afterwards it may change nothing."
    ]


def _moves(result: Mapping[str, Any], reached: tuple[float, float], spread: str = "") -> str:
    """Say from which accuracies on unseen and on seen classes to which others a remedy leads.

    ``spread``: of single unseen classes.
    """
    sides = (("unseen classes", "gzsl_unseen", spread), ("seen classes", "gzsl_seen", ""))
    moves = [
        f"on {side} from {result[key]:.1f} to {value:.1f} %{apart}"
        for (side, key, apart), value in zip(sides, reached, strict=True)
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
    """Return ``weak_unseen``, ``weak_seen``, ``weak_by_rule``, ``calibration_falls`` and
    ``few_samples``, lists of tables, and ``text``, sentences.

    ``prior``: how the offset of seen classes was chosen (``evaluation.prior``).
    """
    if "zsl" not in result or "labels" not in answers:
        return {}
    labels = answers["labels"].astype(np.int64)
    gzsl = answers["gzsl_answers"].astype(np.int64)
    plain = answers.get("uncalibrated_answers", gzsl).astype(np.int64)
    shown = ~np.isin(labels, unseen)
    alone, lost = weak_unseen(answers, names, unseen) if described else ([], [])
    misplaced = result.get("misplaced", ())
    groups = {group["place"] for group in misplaced}
    weak_seen = weak_classes(names, labels[shown], gzsl[shown], plain[shown], True, groups, unseen)
    lost_seen = [weak for weak in weak_seen if weak.cause != "data"]
    by_rule = {"seen classes": lost_seen, "unseen classes": lost}
    falls = calibration_falls(names, labels[shown], plain[shown], gzsl[shown])
    held = np.asarray(answers.get("client_counts", np.zeros((0, 0)))).sum(0)
    held[np.isin(np.arange(len(held)), unseen)] = 0
    counts = _tested(labels, unseen, int((held > 0).sum()))
    of_seen = [item for item in weak_seen if item.cause == "data"]
    alike = alike_classes(names, labels[shown], gzsl[shown])
    pairs = [pair for pair in alike if not groups & set(pair.names)]
    by_data = {"unseen classes": alone, "seen classes": of_seen}
    weak_names = {item.name for item in (*alone, *lost, *weak_seen)}
    lit = [group for group in result.get("badly_lit", ()) if group["class"] in weak_names]
    unseen_names = [names[c] for c in unseen.tolist()]
    text = _of_data(by_data, counts, pairs, misplaced, lit, result)
    text += looking_alike(result, unseen_names, pairs)[: max(0, PAIRS - len(pairs))]
    few = few_classes(names, held.tolist(), np.bincount(labels, minlength=len(names)).tolist())
    text += [few_words(few)] if few else []
    advice = examples_advice(result, answers, unseen_names, bool(lost)) if described else ""
    for kind, weak in by_rule.items():
        if weak:
            text += _of_rule(weak, counts, kind, unseen_names, result, answers, prior, advice)
    if lit or misplaced:
        text += _of_pictures(lit, misplaced, weak_names, unseen_names)
    if (plain != gzsl).any():
        text.append(_cost(result, falls))
    text += [advice] if advice and advice not in text else []
    weaknesses: dict[str, Sequence[Weak | Fall | Few]] = {
        "weak_unseen": alone,
        "weak_seen": weak_seen,
        "weak_by_rule": lost,
        "calibration_falls": falls,
        "few_samples": few,
    }
    return {
        **{name: [item._asdict() for item in rows] for name, rows in weaknesses.items()},
        "text": text,
    }


class Tested(NamedTuple):
    """How many classes of a kind have test samples, and what these are called."""

    number: int
    words: str


def _tested(labels: Ids, unseen: Ids, held: int) -> dict[str, Tested]:
    """Return what is said of classes of each kind; ``held``: how many seen classes have samples."""
    of_unseen = np.isin(labels, unseen)
    numbers = {
        "unseen classes": (len(np.unique(labels[of_unseen])), len(unseen)),
        "seen classes": (len(np.unique(labels[~of_unseen])), held),
    }
    return {
        kind: Tested(number, f"tested {kind}" if number < of else kind)
        for kind, (number, of) in numbers.items()
    }


def _of_rule(
    weak: Sequence[Weak],
    counts: Mapping[str, Tested],
    kind: str,
    unseen: Sequence[str],
    result: Mapping[str, Any],
    answers: Mapping[str, NDArray[Any]],
    prior: Any,
    advice: str,
) -> list[str]:
    """Return sentences on the classes of a kind that are weak by the decision rule.

    Args:
        weak: these classes.
        counts: of unseen and of seen classes that were tested.
        kind: ``seen classes`` or ``unseen classes``.
        unseen: names.
        result: of the run.
        answers: of the run.
        prior: how the offset of seen classes was chosen.
        advice: to show examples.
    """
    tested = counts["unseen classes"].number, counts["seen classes"].number
    setting = rule_advice(kind, prior, result, tested)
    first = kind != "seen classes" and examples_first(advice, answers, result, prior, tested)
    likelier = [_samples_words(item, result) for item in weak if item.cause == "both"]
    possible: list[str] = []
    if kind != "seen classes":
        likelier += _preferred_words(weak, unseen, result, prior, tested, bool(setting))
        if not likelier:  # one cause for a class
            possible = _stray_words([item for item in weak if item.instead not in unseen], result)
    if first:
        instead = " instead" if likelier and not setting else ""  # of a prior that costs accuracy
        setting = " ".join([f"Show examples of them{instead}.", *_without_examples(setting)])
    said = [part for part in (*likelier, setting, *possible) if part]
    words = rule_words(weak, *counts[kind], " ".join(said), unseen)
    return [words.strip(), *([advice] if first else [])]


def _preferred_words(
    weak: Sequence[Weak],
    unseen: Sequence[str],
    result: Mapping[str, Any],
    prior: Any,
    tested: tuple[int, int],
    advised: bool,
) -> list[str]:
    """Say which seen classes unseen ones look like, where the prior prefers those and another one
    raises unseen classes clearly, and what that one costs.

    ``advised``: it is advised anyway.
    """
    balanced = result.get("confidence", {}).get("priors", {}).get("balanced")
    if prior != "auto" or balanced is None:
        return []
    alike = [item for item in weak if item.instead and item.instead not in unseen]
    alike = [item for item in alike if item.called[item.instead] >= ALIKE]
    reached = balanced[1], balanced[2]
    now = result["gzsl_unseen"], result["gzsl_seen"]
    if not alike or reached[0] < now[0] + GAIN:
        return []
    pairs = listed([f"{item.name} with {item.instead}" for item in alike])
    cause = f'The model confuses {pairs}, and evaluation.prior = "auto" prefers the seen class.'
    if advised:
        return [cause]
    before, after = (_over(sides, tested) for sides in (now, reached))
    return [
        f'{cause} evaluation.prior = "balanced" prefers it less: on test samples, it takes the '
        f"accuracy {_moves(result, reached)}; over all classes from {before:.1f} to {after:.1f} %."
    ]


def _stray_words(weak: Sequence[Weak], result: Mapping[str, Any]) -> list[str]:
    """Say that pictures may lie in the folder of the class that an unseen one is called, where
    single ones there look like the unseen class. Groups are named elsewhere (``_of_pictures``).

    ``weak``: unseen classes that are called seen ones.
    """
    pairs = {(item.instead, item.name) for item in weak}
    files = [
        f"{stray['file']} (like {stray['like']})"
        for stray in result.get("strays", ())
        if (stray["place"], stray["like"]) in pairs
    ]
    if not files:
        return []
    verb = "looks" if len(files) == 1 else "look"
    return [
        f"A possible cause: {counted(len(files), 'picture')} in the folders of seen classes {verb} "
        f"more like unseen ones: {listed(files, FILES)}. The model learns a wrong name from each in "
        "the wrong folder: move those to the folder of their class, and run again."
    ]


def _samples_words(item: Weak, result: Mapping[str, Any]) -> str:
    """Say that the samples of a seen class are the likelier cause, and which to look at first."""
    strays = [
        f"{stray['file']} (like {stray['like']})"
        for stray in result.get("strays", ())
        if stray["place"] == item.name
    ]
    first = f", first at {listed(strays, FILES)}" if strays else ""
    return (
        f"Without the offset too, {item.name} is right less than half as often as the median seen "
        f"class. Its samples are the likelier cause: look at them{first}. Labels may be wrong, or "
        "the samples show different things."
    )


class Few(NamedTuple):
    """A class with few samples where others have many.

    Attributes:
        name: of the class.
        samples: of it.
        tested: its test samples; None where that is unknown.
        usual: samples of the median class among the others.
        of: how many classes have samples.
    """

    name: str
    samples: int
    tested: int | None
    usual: int
    of: int


def few_classes(
    names: Sequence[str], samples: Sequence[int], tests: Sequence[int] | None = None
) -> list[Few]:
    """Return the classes with few samples, by their number or beside the median class; nothing
    where at least half of the classes are so.

    Args:
        names: of C classes.
        samples: (C,) of each; a class without any does not count.
        tests: (C,) test samples.
    """
    held = [c for c, count in enumerate(samples) if count]
    median = float(np.median([samples[c] for c in held])) if held else 0.0
    limit = max(ENOUGH, min(SCANT, FAR_FEWER * median))
    few = [c for c in held if samples[c] < limit]
    if not few or 2 * len(few) >= len(held):
        return []
    usual = int(np.median([samples[c] for c in held if c not in few]))
    return [
        Few(names[c], int(samples[c]), None if tests is None else int(tests[c]), usual, len(held))
        for c in few
    ]


def few_words(few: Sequence[Few]) -> str:
    """Name the seen classes with few training samples."""
    verb, it, they = ("has", "it", "it is") if len(few) == 1 else ("have", "them", "they are")
    of_each = []
    for item in few:
        rests = ""
        if item.tested is not None and item.tested < ENOUGH:
            rests = f"; its own accuracy rests on {counted(item.tested, 'test sample')}"
        of_each.append(f"{item.name} ({item.samples}{rests})")
    return (
        f"{part_of(len(few), few[0].of, 'seen classes')} {verb} few training samples, where the "
        f"others have {few[0].usual} (median): {listed(of_each)}. How well {they} recognized is "
        f"uncertain. Add samples of {it}."
    )


def _of_data(
    weak: Mapping[str, Sequence[Weak]],
    counts: Mapping[str, Tested],
    pairs: Sequence[Alike],
    misplaced: Sequence[Mapping[str, Any]],
    lit: Sequence[Mapping[str, Any]] = (),
    result: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return sentences on the classes of each kind that are weak by the data. Of seen ones they say
    why: labels that seem wrong, a class that looks alike, or something else.

    Args:
        weak: kind -> these classes.
        counts: kind -> how many classes were tested.
        pairs: seen classes that look alike.
        misplaced: groups of pictures in one class's folder that look like another's.
        lit: weak classes of any kind with pictures that are almost black or white.
        result: of the run, with a few pictures of one class that look most like another.
    """
    kind = "seen classes"
    text = [weak_words(of, *counts[side]) for side, of in weak.items() if of and side != kind]
    known = {name for pair in pairs for name in pair.names} | {
        group["class"] for group in lit if is_cause(group)
    }
    known |= {group["like"] for group in misplaced}
    words = []
    for group in misplaced:
        if any(item.name == group["place"] for item in weak[kind]):
            known.add(group["place"])
            words.append(
                f" Labels of {group['place']} may be wrong, or {group['place']} and "
                f"{group['like']} look alike: {len(group['files'])} pictures of {group['place']} "
                f"look like {group['like']} ({listed(group['files'], FILES)}). If labels are "
                "wrong, right answers about these pictures count as wrong."
            )
    if others := [item for item in weak[kind] if item.name not in known]:
        words.append(_compare_words(others, result or {}))
    if weak[kind]:
        text.append(weak_words(weak[kind], *counts[kind], "".join(words)))
    return text + [alike_words(pair) for pair in pairs[:PAIRS]]


def _compare_words(weak: Sequence[Weak], result: Mapping[str, Any]) -> str:
    """Advise to compare samples of weak classes with those of the classes that they are called, and
    name those to look at first: of either class the ones that look most like the other.
    """
    other = {item.name: _looks_like(item, result) for item in weak}
    those = [
        f"of class {name} with those of {f'class {like}' if like else 'other classes'}"
        for name, like in other.items()
    ]
    pairs = {*other.items(), *((like, name) for name, like in other.items())}
    files = _first_files(pairs, result) if "most_alike" in result else ""
    begin = f" Look first at {files}." if files else ""
    return (
        f" Compare samples {listed(those)}: labels may be wrong, or both look alike. Most wrong "
        f"labels between classes that look alike are not found automatically.{begin} The choice "
        "between seen and unseen classes is not the cause."
    )


def _looks_like(item: Weak, result: Mapping[str, Any]) -> str:
    """Return what a class is to be compared with: the class that most of its pictures look like, of
    those that stray; otherwise its most frequent wrong answer, whatever the offset.
    """
    alike = [
        (share, other)
        for pair in result.get("alike", ())
        for name, share, other in zip(
            pair["names"], pair["taken"], pair["names"][::-1], strict=True
        )
        if name == item.name and share >= BOTH_WAYS
    ]
    return max(alike)[1] if alike else item.plainly


def _first_files(pairs: Collection[tuple[str, str]], result: Mapping[str, Any]) -> str:
    """Name the pictures to look at first of some pairs of classes, (that of the folder, the other
    one); "" without any.
    """
    return "; ".join(
        f"{listed(group['files'], FILES)} (like {group['like']})"
        for group in result.get("most_alike", ())
        if (group["place"], group["like"]) in pairs
    )


def _of_pictures(
    lit: Sequence[Mapping[str, Any]],
    misplaced: Sequence[Mapping[str, Any]],
    weak: Collection[str],
    unseen: Collection[str],
) -> list[str]:
    """Return what pictures are a likely cause of weak classes: almost black ones, and those in the
    folder of another class, from which the model learns that one's name.
    """
    cause = "A likely cause of wrong answers:"
    text = []
    for group in lit:
        if is_cause(group):
            text.append(f"{cause} {lit_words(group)}, and {lit_answers(group)}.")
        elif group.get("tests", (0, 0))[0]:
            text.append(
                f"{lit_words(group)}, but {lit_answers(group)}. That is no clear difference: look "
                "for another cause first."
            )
    for group in misplaced:
        place, like, files = (group[key] for key in ("place", "like", "files"))
        if like in weak and place not in unseen:
            text.append(
                f"{cause} {len(files)} pictures in the folder of {place} look like {like} "
                f"({listed(files, FILES)}), or both look alike. If they show {like}, the model "
                f"learns from them to call {like} {place}: move them to {like} and run again, "
                "before other remedies."
            )
    return text


def lit_words(group: Mapping[str, Any]) -> str:
    """Say how many pictures of a class are almost black or almost white."""
    what = {"dark": "black", "pale": "white"}[group["how"]]
    return f"{len(group['files'])} of {group['of']} pictures of {group['class']} are almost {what}"


def lit_answers(group: Mapping[str, Any]) -> str:
    """Say how often almost black or white test pictures of a class are wrong, and its others."""
    lit, others = group["tests"]
    wrong, others_wrong = group["wrong"]
    beside = f" and {others_wrong} of its {others} others" if others else ", all that it has,"
    return f"in the test {wrong} of its {counted(lit, 'such picture')}{beside} are wrong"


def weak_unseen(
    answers: Mapping[str, NDArray[Any]], names: Sequence[str], unseen: Ids
) -> tuple[list[Weak], list[Weak]]:
    """Return the unseen classes that are weak where only unseen ones compete, and those that are
    weak only once seen ones compete.
    """
    if "gzsl_answers" not in answers:
        return [], []
    labels, zsl, gzsl = (
        answers[name].astype(np.int64) for name in ("labels", "zsl_answers", "gzsl_answers")
    )
    mine = np.isin(labels, unseen)
    reached = {names[c]: value for c, value in _accuracies(labels[mine], gzsl[mine]).items()}
    alone = [
        item._replace(among_all=reached[item.name])
        for item in weak_classes(names, labels[mine], zsl[mine])
    ]
    weak = {item.name for item in alone}
    among_all = weak_classes(names, labels[mine], gzsl[mine], zsl[mine], unseen=unseen)
    return alone, [item for item in among_all if item.name not in weak]


def examples_first(
    advice: str,
    answers: Mapping[str, NDArray[Any]],
    result: Mapping[str, Any],
    prior: Any,
    tested: tuple[int, int] = (1, 1),
) -> bool:
    """Return whether unseen classes that lose answers to seen ones gain more by examples, where
    these are advised, than by another decision rule.
    """
    kind = "unseen classes"
    reached = within_reach(result, kind, moved_rule(kind, prior, result), tested)
    gain = examples_gain(result, answers)
    if not advice or reached is None or gain is None or gain.among_all is None:
        return bool(advice)
    return metrics.harmonic_mean(*gain.among_all) >= metrics.harmonic_mean(*reached)


def _without_examples(setting: str) -> list[str]:
    """Return the advice on the decision rule, for those who have no examples."""
    return [f"If you have none: {setting[0].lower()}{setting[1:]}"] if setting else []


def _cost(result: Mapping[str, Any], falls: Sequence[Fall]) -> str:
    """Say what the offset brings unseen classes and costs seen ones."""
    sides = [
        (result[f"uncalibrated_gzsl_{side}"], result[f"gzsl_{side}"]) for side in ("unseen", "seen")
    ]
    u, s = (
        f"{'raises' if new > old else 'lowers'} {words} from {old:.1f} to {new:.1f} %"
        if new != old
        else f"leaves {words} at {new:.1f} %"
        for words, (old, new) in zip(("them", "seen ones"), sides, strict=True)
    )
    before, after = (metrics.harmonic_mean(*pair) for pair in zip(*sides, strict=True))
    examples = [f"{item.name} ({item.before:.0f} to {item.after:.0f} %)" for item in falls]
    most = f" These seen classes lose most: {listed(examples)}." if examples else ""
    if before - after >= GAIN:
        most += f" Their harmonic mean falls from {before:.1f} to {after:.1f} %."
    return f"An offset in favor of unseen classes {u}, and {s}.{most}"


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
