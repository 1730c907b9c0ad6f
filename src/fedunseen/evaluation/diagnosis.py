"""Did the run fail? Signs of it, each in words that need no knowledge of the field, with a
remedy.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import counted, part_of
from fedunseen.evaluation.lighting import seems_easier
from fedunseen.evaluation.summary import (
    BOTH_WAYS,
    EXAMPLES,
    FALL,
    listed,
    lit_answers,
    lit_words,
    moved_rule,
    weak_unseen,
)
from fedunseen.metrics import harmonic_mean

Ids = NDArray[np.int64]

Z = 1.96
ENOUGH = 5  # test samples of a class before it counts that it is never answered
LISTED = 5  # classes that are named
ALMOST_ALL = 0.9  # of the unlabelled samples for one class
WORSE = 1.0  # points of the harmonic mean after adapting
WEAK_BEFORE = 20.0  # percent of a class's test samples from which on a fall counts
LOST = 0.5  # of the answers or the accuracy that a class had before adapting
MANY = (
    20  # examples of a class that took back hardly any class's samples: docs/research/own-data.md
)
LOST_TESTS = 5  # test samples of a class that learning must lose it before it is warned of
NAMED = 3  # files that are named
STRAYS = 10  # single files that are named
RARE = 0.05  # of folders in order, at most about so many are warned of
LOSS_RISE = 1.5  # times the loss of the first rounds
DIVERGED = 3.0  # times the cross-entropy of guessing; where a network collapses it stays near once
LEAD = 3.0  # percentage points by which another closed form has to lead on classes left out
CLIPPED = 0.01  # share of features that may be clipped without a warning
_SCALED = "data.features = ['centre', 'l2']"
CONFIDENT = 10  # answers above a percentage from which on their share says something
BAND = 10  # percentage points between the percentages that are looked at
BY_CHANCE = 0.05  # probability of so few right ones, if each is as often right as stated
DOUBTED = 10.0  # percentage points less often right than stated, from which on it is said
MEASURABLE = 3  # test samples of a class on which an offset may be chosen
EMPTIED = 0.2  # of the accuracy without calibration


class Finding(NamedTuple):
    """A sign that something is wrong."""

    what: str
    why: str
    remedy: str


def diagnose(
    lines: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any],
    answers: Mapping[str, NDArray[Any]],
    names: Sequence[str],
    unseen: Ids,
    descriptions: bool = True,
    scaled: bool = False,
    prior: Any = None,
) -> list[Finding]:
    """Return what seems to be wrong with a run of one seed, the gravest first; nothing for a run
    that went well.

    ``prior``: what chooses the calibration (``evaluation.prior``), for any method; None: nothing.
    """
    trained = any(line.get("losses") for line in lines)
    findings = [
        (rising_loss(lines, scaled) or worse_than_guessing(lines, len(names), scaled))
        if trained
        else None,
        clipped_features(result) if result.get("clipped", 0.0) > CLIPPED else None,
        curved(result) if "curved" in result else None,
    ]
    if result.keys() & {"misplaced", "strays", "badly_lit"}:
        findings += misplaced_pictures(
            result.get("misplaced", ()),
            result.get("strays", ()),
            result.get("strays_by_chance", 0.0),
            result.get("badly_lit", ()),
            [names[c] for c in unseen.tolist()],
            [pair["names"] for pair in result.get("alike", ()) if min(pair["taken"]) >= BOTH_WAYS],
        )
    findings += adapted(result["adapted"]) if "adapted" in result else []
    findings += learned(result["learn_effect"]) if "learn_effect" in result else []
    if shown := result.get("shown_tests"):
        measured = sum(shown.values()) <= len(answers.get("left_out_tests", ()))
        findings.append(shown_tests(shown, measured))
    labels = answers.get("labels")
    if "few_shot" in result:
        findings += [beside_nothing(result)]
        if labels is not None:
            findings.append(never_answered(labels, answers["answers"], names, "new"))
    elif "zsl" in result and descriptions:
        if labels is not None:
            of_unseen = np.isin(labels, unseen)
            unseen_labels = labels[of_unseen]
            answered = answers["zsl_answers"][of_unseen]
            findings.append(at_chance(unseen_labels, answered, len(unseen), trained, scaled))
            findings.append(never_answered(unseen_labels, answered, names, "unseen"))
        tested = (
            None if labels is None else int(np.median(np.unique(labels, return_counts=True)[1]))
        )
        lost = [] if labels is None else weak_unseen(answers, names, unseen)[1]
        findings += [overconfident(result, [weak.name for weak in lost])]
        findings += [emptied(result, tested, prior), outdone(result) if prior is not None else None]
        chosen = result.get("chosen_on_validation") or {}
        findings += [bounded_calibration(chosen)] if "bounded_by" in chosen else []
        if "silhouettes" in answers:
            findings.append(worse_features(*map(float, answers["silhouettes"])))
    return [item for item in findings if item is not None]


def conspicuous(
    result: Mapping[str, Any], names: Sequence[str], clients: Sequence[str] = ()
) -> Iterator[Finding]:
    """Warn of a party whose statistics move the means of classes that others hold too.

    ``clients``: what they are called, in a deployment.
    """
    for client in result.get("influence", {}).get("conspicuous", ()):
        number = client["client"]
        who = repr(clients[number]) if clients else f"Client {number}"
        moved = [repr(names[c]) for c in client["classes"][:LISTED]]
        further = f" and {client['count'] - LISTED} more" if client["count"] > LISTED else ""
        yield Finding(
            f"{who} moves the means of {counted(client['count'], 'class')} that others hold too, "
            f"by up to {max(client['moved']):.2f} within-class deviations: "
            f"{', '.join(moved)}{further}.",
            f"Its samples of them are unlike the others', up to {max(client['ratio']):.0f} times "
            "as far as chance puts them: mixed-up labels, features made in another way, or made-up "
            "samples. Where two parties alone hold a class, the other may be the wrong one.",
            "Compare samples of these classes, and fix who may send which class with "
            "`fedunseen certs --classes`. Without this party: fedunseen forget.",
        )


def misplaced_pictures(
    misplaced: Sequence[Mapping[str, Any]] = (),
    strays: Sequence[Mapping[str, Any]] = (),
    strays_by_chance: float = 0.0,
    badly_lit: Sequence[Mapping[str, Any]] = (),
    unseen: Collection[str] = (),
    alike: Collection[Collection[str]] = (),
    listed_in: str = "result.json",
) -> Iterator[Finding]:
    """Warn of pictures in one class's folder that look like another's: groups, and single ones
    where there are more than chance explains. Warn of classes with many pictures that are almost
    black or almost white.

    Args:
        misplaced: the groups.
        strays: the single pictures.
        strays_by_chance: how many of these folders in order have.
        badly_lit: the classes with almost black or white pictures.
        unseen: names of classes whose pictures are test pictures alone.
        alike: pairs of classes of which pictures of either look like the other's.
        listed_in: a file of the run that names all pictures; "" before there is a run.
    """
    yield from (_of_group(group, alike, listed_in) for group in misplaced[:LISTED])
    if strays and not _by_chance(len(strays), strays_by_chance):
        what, why, remedy = stray_words(strays, listed_in)
        yield Finding(what, f"{why} Here there are more.", remedy)
    for group in badly_lit[:LISTED]:
        files = group["files"]
        remedy = "replace them or leave them out, and run the experiment again."
        if group["class"] in unseen:
            remedy = (
                "they are test pictures alone, as all of an unseen class. To replace them or leave "
                "them out changes what is measured, not the model."
            )
        yield Finding(
            f"{lit_words(group)}: {listed(files, NAMED if listed_in else len(files))}. Of most "
            "other classes hardly any are.",
            _of_lit(group, group["class"] in unseen),
            f"Look at {_these(files, listed_in)}: {remedy}",
        )


def _these(files: Sequence[str], listed_in: str) -> str:
    """Return how many pictures to look at, and which file names those that a warning does not."""
    place = f" ({listed_in} names all)" if listed_in and len(files) > NAMED else ""
    return f"these {len(files)}{place}"


def _of_group(
    group: Mapping[str, Any], alike: Collection[Collection[str]], listed_in: str
) -> Finding:
    """Warn of pictures in one class's folder that look like another's.

    ``alike``: pairs of classes of which pictures of either look like the other's.
    """
    files, place, like = (group[key] for key in ("files", "place", "like"))
    why = "they are in the wrong folder, or both classes look alike."
    remedy = (
        f"Look at {_these(files, listed_in)}: move those that are in the wrong folder, and run the "
        "experiment again. If all are right, both classes look alike: leave them."
    )
    if any({place, like} == set(pair) for pair in alike):
        why = (
            f"both classes look alike, since pictures of {like!r} look like {place!r} too, or they "
            "are in the wrong folder."
        )
        remedy = (
            f"Probably nothing is wrong: pictures of {like!r} look like {place!r} too. Look at "
            f"{_these(files, listed_in)} all the same, and move those that are in the wrong folder."
        )
    return Finding(
        f"{len(files)} pictures in the folder of {place!r} look like {like!r}: "
        f"{listed(files, NAMED if listed_in else len(files))}.",
        f"By looks alone they are like the pictures of {like!r}: {why}",
        remedy,
    )


def _of_lit(group: Mapping[str, Any], unseen: bool) -> str:
    """Say what almost black or white pictures of a class do to answers and to its accuracy."""
    name = group["class"]
    how = group["how"]
    why = (
        "The model sees little in them."
        if unseen
        else f"The model learns that such pictures show {name}. So it may call {how} pictures of "
        f"any class {name}."
    )
    if group.get("tests", (0, 0))[0]:
        easier = seems_easier(group) and not unseen
        beside = ", so that its accuracy looks better than it is" if easier else ""
        why += f" {lit_answers(group).capitalize()}{beside}."
    return why


def usual_strays(result: Mapping[str, Any]) -> Finding | None:
    """Return what to say of single pictures that look like another class's, where there are no more
    than of folders in order; None where there is nothing to say, or a warning says it.
    """
    strays = result.get("strays", ())
    if not strays or not _by_chance(len(strays), result.get("strays_by_chance", 0.0)):
        return None
    return stray_words(strays)


def stray_words(strays: Sequence[Mapping[str, Any]], listed_in: str = "result.json") -> Finding:
    """Return which single pictures look like another class's, what that means, and what to do.

    ``listed_in``: a file that names all; "" without one, so that all are named here.
    """
    verb, it, its = ("looks", "it", "its") if len(strays) == 1 else ("look", "them", "their")
    files = [f"{stray['file']} (like {stray['like']})" for stray in strays]
    place = f" ({listed_in} names all)" if listed_in and len(files) > STRAYS else ""
    return Finding(
        f"{counted(len(strays), 'picture')} {verb} more like another class than like that of {its} "
        f"folder: {listed(files, STRAYS if listed_in else len(files))}.",
        "In folders without any mistake, up to four pictures in a thousand look so.",
        f"Look at {it}{place}: if a picture is in the wrong folder, move it and run the experiment "
        "again.",
    )


def _by_chance(count: int, expected: float) -> bool:
    """Return whether at least one in twenty folders in order has so many, or more."""
    if expected <= 0:
        return False
    fewer = sum(
        math.exp(k * math.log(expected) - expected - math.lgamma(k + 1)) for k in range(count)
    )
    return 1 - fewer >= RARE


def adapted(note: Mapping[str, Any]) -> Iterator[Finding]:
    """Warn of unlabelled samples: a lower accuracy, test samples, refused classes, a class that got
    almost all.
    """
    table = note["classes"]
    before, after = (
        _harmonic(table["seen"], table[key]) if note["measured"] else 0.0
        for key in ("before", "after")
    )
    if after < before - WORSE:
        yield Finding(
            f"Adapting lowered the harmonic mean from {before:.1f} to {after:.1f} %.",
            "Unlabelled samples of classes that the model does not know, or too few of its own, "
            "move prototypes away.",
            "Keep the run from before, without these samples.",
        )
    if falls := lost_classes(note):
        verb, what = ("loses", "it") if len(falls) == 1 else ("lose", "them")
        yield Finding(
            f"By adapting, {counted(len(falls), 'class')} {verb} more than half: "
            f"{listed(falls, LISTED)}.",
            f"Unlabelled samples moved another class to where samples of {what} lie.",
            f"Show a few examples of {what} with `fedunseen learn`, or keep the run from before.",
        )
    if share := note.get("test_share"):
        yield Finding(
            f"{100 * share:.0f} % of the unlabelled samples are test samples.",
            "The model was adapted to the samples that measure it, though without their labels.",
            "Give other samples, or compare only with models adapted to test samples too.",
        )
    if note["refused"]:
        yield _refused(note)
    got = [
        0.0 if seen else samples
        for seen, samples in zip(table["seen"], table["samples"], strict=True)
    ]
    if table["seen"].count(False) > 1 and max(got) > ALMOST_ALL * sum(got):
        yield Finding(
            f"Class {table['class'][got.index(max(got))]!r} got {100 * max(got) / sum(got):.0f} % "
            "of the unlabelled samples that unseen classes got.",
            "Its prototype may have moved to samples of other classes.",
            "Check that the samples are of several unseen classes.",
        )


def _refused(note: Mapping[str, Any]) -> Finding:
    """Warn of classes for which unlabelled samples do not count."""
    refused = note["refused"]
    further = f" and {len(refused) - LISTED} more classes" if len(refused) > LISTED else ""
    remedy = check = "Check that they are of these classes."
    if all(note["classes"]["seen"]):
        why = "They lie too far from the labeled samples of these classes."
    elif set(refused) <= set(note.get("shown", ())):
        why = "They lie too far from the examples of these classes, or show nothing new."
        remedy = (
            f"{check} If they are, keep the run from before: these classes are known by examples."
        )
    else:
        why = (
            "They lie too far from where the descriptions put these classes, or show nothing that "
            "seen classes do not."
        )
        remedy = _for_refused(note)
    return Finding(
        f"Unlabelled samples change nothing for {', '.join(map(repr, refused[:LISTED]))}{further}.",
        why,
        remedy,
    )


def _for_refused(note: Mapping[str, Any]) -> str:
    """Return what helps where unlabelled samples of unseen classes do not count."""
    check = "heck that they are of these classes, and correct the descriptions."
    if note.get("among") != "all":  # not chosen there, or already so
        return f"C{check}"
    return (
        "If all of these samples are of unseen classes, adapt again with --among unseen: then none "
        f"is taken for a seen class. Otherwise c{check}"
    )


def shown_tests(shown: Mapping[str, int], measured: bool = True) -> Finding:
    """Warn of test samples that were shown as examples.

    Args:
        shown: class -> how many of its test samples.
        measured: there are others of both kinds, on which the model was measured.
    """
    classes = listed([f"{name} ({count})" for name, count in shown.items()], LISTED)
    count = sum(shown.values())
    shown_as = "was shown as an example" if count == 1 else "were shown as examples"
    return Finding(
        f"{counted(count, 'test sample')} {shown_as}: {classes}.",
        "A model recognizes its own examples more often than new samples.",
        f"The accuracies leave {'it' if count == 1 else 'them'} out."
        if measured
        else "No others are left to measure with: the accuracies are those of the run before.",
    )


def learned(note: Mapping[str, Any]) -> Iterator[Finding]:
    """Warn of classes that lose much to what a run has learned since."""
    falls = lost_to_learning(note)
    if not falls:
        return
    takers = list(dict.fromkeys(falls.values()))
    few = [name for name in takers if note["taught"].get(name, MANY) < MANY]
    keep = "eep the run from before."
    yield Finding(
        f"{counted(len(falls), 'class')} lost much to what the model learned: "
        f"{listed(list(falls), LISTED)}.",
        f"Samples that {'it' if len(falls) == 1 else 'they'} lost are now mostly taken for "
        f"{listed(takers, LISTED)}.",
        f"Show more examples of {listed(few, LISTED)} with `fedunseen learn`, {MANY} in all: a few "
        f"can lie near another class by chance. Or k{keep}"
        if few
        else f"K{keep}",
    )


def lost_to_learning(note: Mapping[str, Any]) -> dict[str, str]:
    """Return the classes that lose more than half, or many points, to what a run has learned, in
    words -> the class that takes most of it; not those that it has learned.
    """
    table = note["classes"]
    falls = {}
    columns = (table[key] for key in ("class", "tests", "before", "after", "taken_by"))
    for name, tests, before, after, taker in zip(*columns, strict=True):
        much = before - after >= FALL or _loses_half(before, after)
        if name not in note["taught"] and much and (before - after) * tests >= 100 * LOST_TESTS:
            falls[_fall_words(name, before, after)] = taker
    return falls


def _loses_half(before: float, after: float) -> bool:
    """Return whether a class that was recognized loses more than half of its accuracy."""
    return before >= WEAK_BEFORE and after < LOST * before


def _fall_words(name: str, before: float, after: float) -> str:
    """Say from where to where the accuracy of a class falls."""
    return f"{name!r} ({before:.1f} to {after:.1f} % of its test samples)"


def lost_classes(note: Mapping[str, Any]) -> list[str]:
    """Return the classes that adapting took more than half from, in words: of their test samples
    where these are here, otherwise of the answers to the unlabelled samples.
    """
    table = note["classes"]
    words = []
    for c, name in enumerate(table["class"]):
        before, after = (table[key][c] if note["measured"] else None for key in ("before", "after"))
        if before is not None and after is not None:
            if _loses_half(before, after):
                words.append(_fall_words(name, before, after))
        elif "answers_before" in table:
            old = table["answers_before"][c]
            new = table["answers_after"][c]
            if old >= ENOUGH and new < LOST * old:
                words.append(f"{name!r} (the answer to {old} of the samples, now to {new})")
    return words


def _harmonic(seen: Sequence[bool], accuracies: Sequence[float | None]) -> float:
    """Return the harmonic mean of the mean accuracies of seen and of unseen classes, from those of
    each class.
    """
    measured = [
        (is_seen, value)
        for is_seen, value in zip(seen, accuracies, strict=True)
        if value is not None
    ]
    kinds = [[value for is_seen, value in measured if is_seen is kind] for kind in (True, False)]
    return harmonic_mean(*(float(np.mean(values)) if values else 0.0 for values in kinds))


def accuracy(labels: Ids, answers: Ids) -> tuple[float, float]:
    """Return the mean over classes of the share of right answers, in percent, and half of its 95 %
    interval.

    Classes are fixed, samples drawn. The variance of a class with n samples is p (1 - p) / n with p
    moved half a sample towards one half, so that a class that is always right or never is not taken
    to be certain.
    """
    right = labels == answers
    variance = 0.0
    shares = []
    for c in np.unique(labels):
        hits = right[labels == c]
        n = len(hits)
        p = float((hits.sum() + 0.5) / (len(hits) + 1))
        shares.append(float(hits.mean()))
        variance += p * (1 - p) / n
    return 100 * float(np.mean(shares)), 100 * Z * variance**0.5 / len(shares)


def at_chance(
    labels: Ids, answers: Ids, classes: int, trained: bool = True, scaled: bool = False
) -> Finding | None:
    """Warn of a model that names unseen classes, if there are several, no better than guessing."""
    value, half = accuracy(labels, answers)
    chance = 100 / classes
    if classes == 1 or value - half > chance:
        return None
    return Finding(
        f"The model does not beat guessing on unseen classes: it recognizes {value:.1f} ± "
        f"{half:.1f} % of them, guessing {chance:.1f} %.",
        "Nothing that it learned from the seen classes helps with the unseen ones.",
        ("L" if scaled else f"Set {_SCALED}, l")
        + "ower method.lr, or train for more rounds (strategy.rounds)."
        if trained
        else "Do not use its answers about these classes. If names alone describe them, write "
        "attributes into classes.csv, or show examples with fedunseen learn.",
    )


def rising_loss(lines: Sequence[Mapping[str, Any]], scaled: bool = False) -> Finding | None:
    """Warn of a training loss that ends well above where it began."""
    recorded = [line.get("losses", {}).get("loss") for line in lines]
    losses = np.array([np.nan if value is None else value for value in recorded], dtype=np.float64)
    if len(losses) < 2 or np.isnan(losses).all() or (losses[~np.isnan(losses)] <= 0).any():
        return None
    part = max(len(losses) // 4, 1)
    first, last = (
        float(np.nanmedian(losses[side])) for side in (slice(None, part), slice(-part, None))
    )
    if not last > LOSS_RISE * first:
        return None
    return Finding(
        f"The training loss grew from {_number(first)} to {_number(last)} in {len(losses)} rounds.",
        "The steps are too large for these features, so that training moves away from a solution.",
        "Set method.lr to a tenth" + ("." if scaled else f", or {_SCALED}."),
    )


def worse_than_guessing(
    lines: Sequence[Mapping[str, Any]], classes: int, scaled: bool = False
) -> Finding | None:
    """Warn of a cross-entropy that ends far above that of guessing, though every number is finite.

    It may have been higher still in the first rounds, so that :func:`rising_loss` sees it fall. A
    method names its cross-entropy ``sce``; of any other loss nothing is assumed.
    """
    losses = [line.get("losses", {}) for line in lines]
    kept = [terms.get("sce") for terms in losses[-max(len(lines) // 4, 1) :]]
    finite = [value for value in kept if value is not None]
    guessing = float(np.log(max(classes, 2)))
    if not finite or not np.median(finite) > DIVERGED * guessing:
        return None
    return Finding(
        f"Training diverged: the cross-entropy ends at {_number(float(np.median(finite)))}, where "
        f"guessing among {classes} classes has {guessing:.1f}.",
        "The steps are too large for these features; every number is finite, but nothing was "
        "learned.",
        "Set method.lr to a tenth" + ("." if scaled else f", or {_SCALED}."),
    )


def _number(value: float) -> str:
    """Write a number with three digits that count, or all before the point."""
    return f"{value:,.0f}" if 1000 <= value < 1e9 else f"{value:.3g}"


def clipped_features(result: Mapping[str, Any]) -> Finding:
    """Warn of features beyond the range of quantization, in more than 1 % of all."""
    return Finding(
        f"{100 * result['clipped']:.1f} % of the training samples' features are beyond the range "
        "of quantization.",
        "They were clipped. A few large features carry most of a sample's length, or parties' "
        "units differ.",
        "Raise data.quantization_range, with data.quantization = 16 for steps as small as now.",
    )


def curved(result: Mapping[str, Any]) -> Finding:
    """Warn of boundaries between classes that a linear model cannot follow."""
    shares = result["curved"]
    return Finding(
        f"Boundaries between classes curve: of held-out training samples {shares['linear']:.1f} % "
        f"are recognized with the features as they are, {shares['curved']:.1f} % with a kernel.",
        "A closed form draws straight boundaries between classes.",
        "Set data.features = ['standard', 'kernel'].",
    )


def never_answered(labels: Ids, answers: Ids, names: Sequence[str], kind: str) -> Finding | None:
    """Warn of classes that are never the answer, although there are test samples of them."""
    classes, counts = np.unique(labels, return_counts=True)
    enough = classes[counts >= ENOUGH]
    never = [names[int(c)] for c in enough[~np.isin(enough, answers)]]
    if not never:
        return None
    verb = "is" if len(never) == 1 else "are"
    return Finding(
        f"{part_of(len(never), len(classes), f'{kind} classes')} {verb} never the answer: "
        f"{listed(never, LISTED)}.",
        "To the model another class always fits better, also for their own samples.",
        "See in the table of confusions which classes they are taken for."
        if kind == "unseen"
        else "Look at their samples: they may be unlike everything that the parties trained on.",
    )


def overconfident(result: Mapping[str, Any], lost: Sequence[str] = ()) -> Finding | None:
    """Warn of answers that are the surest ones and wrong too often: those above 90 %, or, where
    these are few, above the next percentage that enough answers exceed.

    ``lost``: unseen classes that the decision rule makes weak.
    """
    rows = [
        row for kind in result.get("confidence", {}).get("reliability", {}).values() for row in kind
    ]
    confident, right, above = _surest(rows)
    share = 100 * right / max(confident, 1)
    if confident < CONFIDENT or share >= above - DOUBTED:
        return None
    if _chance_of(right, confident, above / 100) >= BY_CHANCE:
        return None
    return Finding(
        f"The percentages beside answers are too high here: of the {confident} answers with more "
        f"than {above} %, {share:.0f} % are right.",
        "The percentages were tried on seen classes. Unseen classes look less like what the model "
        "expects from their descriptions. "
        + (
            f"Besides, {listed(lost, LISTED)} {'is' if len(lost) == 1 else 'are'} often called a "
            "seen class."
            if lost
            else "The choice between seen and unseen classes is not the cause."
        ),
        "Show a few examples of the unseen classes with `fedunseen learn`, or let `fedunseen "
        "predict --sets 0.9` name all classes that are not ruled out.",
    )


def _surest(rows: Sequence[Sequence[float]]) -> tuple[int, int, int]:
    """Return how many answers are the surest ones, how many of them are right, and above which
    percentage: the highest that enough answers exceed.

    ``rows``: answers, mean stated percentage and percentage of right ones, of each band of some
    answers.
    """
    answers = right = 0
    for above in range(100 - BAND, -1, -BAND):
        for count, stated, share in rows:
            if min(int(stated // BAND) * BAND, 100 - BAND) == above:
                answers += int(count)
                right += round(share / 100 * count)
        if answers >= CONFIDENT:
            break
    return answers, right, above


def _chance_of(right: int, answers: int, each: float) -> float:
    """Return how probable it is that at most so many answers are right, if each of them is right
    with this probability (binomial distribution).
    """
    return sum(
        math.comb(answers, k) * each**k * (1 - each) ** (answers - k) for k in range(right + 1)
    )


def emptied(
    result: Mapping[str, Any], tested: int | None = None, prior: Any = None
) -> Finding | None:
    """Warn of a calibration that leaves seen or unseen classes next to nothing, and of one that is
    missing.

    ``prior``: by which the calibration is chosen; None where it is not.
    """
    calibrated = result.get("calibration_factor") or result.get("left_out_offset")
    few = tested is not None and tested < MEASURABLE
    count = "one sample is" if tested == 1 else f"{tested} samples are"
    advice = (
        f"Bring more samples: of most classes {count} tested, and on so few nothing can be chosen"
    )
    for side, other_side in (("seen", "unseen"), ("unseen", "seen")):
        before, after = (
            float(result.get(f"{kind}gzsl_{side}", 0.0)) for kind in ("uncalibrated_", "")
        )
        if calibrated and before >= 5 and after < EMPTIED * before:
            return Finding(
                f"The offset takes most right answers from the {side} classes: their accuracy "
                f"falls from {before:.1f} to {after:.1f} %.",
                "This offset for unseen classes was chosen on others, perhaps too few. "
                f"Here nearly all samples are called {other_side} classes.",
                f"{advice}. Until then set evaluation.calibration = 'none'."
                if few
                else "Set method.calibration = false."
                if result.get("left_out_offset")
                else "Set evaluation.calibration = 'none'.",
            )
    if not calibrated and result["gzsl_unseen"] < EMPTIED * result["zsl"]:
        return Finding(
            "If all classes compete, nearly every sample of an unseen class is called a seen one: "
            f"{result['gzsl_unseen']:.1f} % are right. If only unseen classes compete, "
            f"{result['zsl']:.1f} % are.",
            "The model has seen examples of the seen classes only, and prefers them."
            + ("" if prior is None else f" {_no_offset(result, prior)}"),
            f"{advice}. Until then ask among new classes alone: fedunseen predict --classes FILE "
            "--among given."
            if few
            else "Let an offset be chosen: evaluation.calibration = 'stacking' with "
            "evaluation.selection = 'validation'."
            if prior is None
            else _beside_offsets(result, prior),
        )
    return None


def _no_offset(result: Mapping[str, Any], prior: Any) -> str:
    """Say why a calibration that is chosen left no offset."""
    if name := (result.get("chosen_on_validation") or {}).get("bounded_by"):
        return (
            "The offset that was chosen in favor of unseen classes would have taken all samples of "
            f"{name!r}, so that none is used."
        )
    named = f" = {prior!r}" if isinstance(prior, str) else ""
    return (
        f"evaluation.prior{named} decides how much unseen classes are favored. A trial on seen "
        "classes, which were left out for it, found that this helps too little. So nothing favors "
        "unseen classes now."
    )


def _beside_offsets(result: Mapping[str, Any], prior: Any) -> str:
    """Return what helps unseen classes where the calibration that was chosen has no offset."""
    setting = moved_rule("unseen classes", prior, result).rstrip(".")
    takes_examples = str(EXAMPLES) in result.get("left_out_accuracy", {})
    shown = f"show {EXAMPLES} examples of each unseen class with `fedunseen learn`"
    ways = [shown] if takes_examples else []
    ways += [setting[0].lower() + setting[1:]] if setting else []
    ways = ways or ["ask among new classes alone: fedunseen predict --classes FILE --among given"]
    words = ", or ".join(ways)
    return f"{words[0].upper()}{words[1:]}."


def bounded_calibration(note: Mapping[str, Any]) -> Finding:
    """Warn of an offset from few classes that would have emptied a seen class, and is bounded for
    that.
    """
    name = note["bounded_by"]
    return Finding(
        "The offset between seen and unseen classes cannot be trusted: the few seen classes that "
        f"it was chosen on call for {_number(note['wanted'])}, at which most training samples of "
        f"{name!r} would be taken for unseen classes.",
        "The offset in favor of unseen classes is chosen on seen ones that are left out. Then few "
        "remain, from which those left out are predicted worse than the real unseen ones.",
        f"The offset {_number(note['factor'])} is used instead, at which no seen class loses all "
        "its samples.",
    )


def outdone(result: Mapping[str, Any]) -> Finding | None:
    """Warn of another closed form that recognizes classes left out of the sums clearly better.

    Only where the other is calibrated as this one is: among all classes it may otherwise answer
    with seen ones alone. Only where it promises more than this one has reached. And only for the
    model that was trained: both were tried without what it learned since.
    """
    if result.keys() & {"learnt", "shown", "adapted"}:
        return None
    for name, rival in result.get("left_out_rivals", {}).items():
        promises = rival["accuracy"] > result.get("zsl", 0.0)
        if promises and rival["lead"] > max(LEAD, rival["ci95"]):
            ours = result["left_out_accuracy"]["0"]
            return Finding(
                f"On seen classes that were left out to try it, the method {name!r} reaches "
                f"{rival['accuracy']:.1f} % and this one {ours:.1f} %: {rival['lead']:.1f} ± "
                f"{rival['ci95']:.1f} points more.",
                "These descriptions predict what the other method uses better than what this one "
                "does.",
                f"Where only unseen classes compete, set method.name = {name!r}. Among all classes "
                "it may do worse: compare the harmonic means of both first.",
            )
    return None


def worse_features(after: float, before: float) -> Finding | None:
    """Warn of features in which unseen classes lie less apart than in the samples as they came."""
    if after >= before - 0.1:
        return None
    return Finding(
        "The model's features keep unseen classes less apart than the samples as they come in: "
        f"silhouette {after:.2f} instead of {before:.2f}.",
        "Training has discarded what separates these classes.",
        "Train for fewer rounds (strategy.rounds) or with smaller steps (method.lr), or make the "
        "hidden layers wider (method.hidden).",
    )


def beside_nothing(result: Mapping[str, Any]) -> Finding | None:
    """Warn of a few-shot model that is worse than raw samples or than its own features before
    training.
    """
    value, half = (float(result[f"few_shot{end}"]) for end in ("", "_ci95"))
    for name, words in (
        ("few_shot_pixels", "the nearest example in raw samples"),
        ("few_shot_random", "its own features before training"),
    ):
        untrained = float(result[name])
        beside = float(result.get(f"{name}_ci95", 0.0))
        if value + half < untrained - beside:
            return Finding(
                f"The model is worse than {words}: {value:.1f} ± {half:.1f} %, without training "
                f"{untrained:.1f} ± {beside:.1f} %.",
                "Training has discarded what separates new classes.",
                "Train for fewer rounds (strategy.rounds) or with smaller steps (method.lr), or "
                "take method.name = 'protonet'.",
            )
    return None
