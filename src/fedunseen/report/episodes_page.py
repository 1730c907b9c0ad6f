"""What the page of a few-shot run says: how well new classes are told apart after a few examples, and beside what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from fedunseen.report import figures, statistics
from fedunseen.report.figures import Curve
from fedunseen.report.parts import (
    BLIND,
    FLATTERS,
    LAST,
    LINES,
    LISTED,
    Facts,
    axis,
    holdings,
    labelled,
    losses,
    parties,
    technical,
    travel,
    upper_end,
)

if TYPE_CHECKING:
    from fedunseen.experiment.run import Run

__all__ = ["episodes_context", "half_width", "verdict"]

NUMBERS = (
    ("few_shot", "Few-shot", "orange"),
    ("few_shot_pixels", "Raw samples", ""),
    ("few_shot_random", "Untrained", ""),
    ("few_shot_base", "Training classes", "blue"),
)
HEADS = ("few_shot", "few_shot_pixels", "few_shot_random", "few_shot_base")
DEALT = {
    "iid": "every class dealt evenly to all of them",
    "dirichlet": "every class dealt by a Dirichlet draw",
    "pccd": "each with classes of its own",
    "user": "each with users of its own",
    "file": "classes dealt as a file says",
}
ALPHA = "\N{GREEK SMALL LETTER ALPHA}"
NO_BREAK = "\N{NO-BREAK SPACE}"
IDLE = "for validation"
CONFUSED = 60  # classes up to which the table of confusions is drawn
SHARED = 5  # episodes that two classes must have in common to be called confused


def episodes_context(run: Run) -> dict[str, Any]:
    """Return everything that ``episodes.html`` names."""
    first = run.seeds[0] if run.seeds else run
    facts, tree = Facts.of(first), run.manifest["experiment"]
    tensors = facts.tensors
    return {
        "facts": facts,
        "experiment": tree,
        "result": run.result,
        "lead": _lead(run, facts),
        "headline": _headline(run, facts),
        "verdict": verdict(run.result, "seeds" if run.seeds else "episodes"),
        "interval": _interval_words(run),
        "choice": _choice(run, first),
        "seeds": _seeds(run, facts),
        "episode": _episode(facts) if "query_images" in tensors else None,
        "curves": _curves(first, facts),
        "classes": _classes(facts) if "labels" in tensors else None,
        "plane": _plane(facts),
        "parties": parties(first),
        "holdings": holdings(facts, f"{IDLE}: nobody holds them", counted=True),
        "dealt": _dealt(tensors["client_counts"]),
        "travel": travel(facts),
        "technical": technical(run, first),
    }


def _chance(facts: Facts) -> float:
    """Return the accuracy of guessing, in percent."""
    return 100.0 / float(facts.run.manifest["experiment"]["method"]["ways"])


def _lead(run: Run, facts: Facts) -> dict[str, Any]:
    """Return the words of the first paragraph."""
    tree, space = run.manifest["experiment"], facts.run.space
    method, kind = tree["method"], tree["partition"]["kind"]
    ways, shots, count = method["ways"], method["shots"], len(facts.tensors["client_counts"])
    if facts.pools:
        who = "One model, with all training data in one place,"
    else:
        alpha = f" ({ALPHA} = {tree['partition']['alpha']:g})" if kind == "dirichlet" else ""
        who = "One client" if count == 1 else f"{count} clients, {DEALT.get(kind, kind)}{alpha},"
    unseen, aside, all_classes = len(space.unseen), len(space.validation), len(space.names)
    nobody = f"Nobody has an example of {unseen} of the {all_classes} classes"
    if aside:
        nobody = f"Of {all_classes} classes, {unseen} are for tests and {aside} for validation; nobody trains on those"
    return {
        "who": who,
        "nobody": nobody,
        "examples": "one example" if shots == 1 else f"{shots} examples",
        "classes": f"{ways} classes that nobody had" if ways == unseen else f"{ways} of the {unseen} test classes",
        "model": "trained" if facts.pools else "merged",
        "chance": _chance(facts),
    }


def half_width(result: Mapping[str, Any], name: str) -> float | None:
    """Return half of the 95 % interval of a number: of a run's episodes, or by Student's t of several runs; or None.

    Example:
        >>> half_width({"few_shot": 50.0, "few_shot_ci95": 1.5}, "few_shot")
        1.5
        >>> round(half_width({"x": 50.0, "x_sd": 1.0, "seeds": [0, 1, 2, 3]}, "x"), 3)
        1.591
        >>> half_width({"x": 50.0}, "x")
    """
    if f"{name}_ci95" in result:
        return float(result[f"{name}_ci95"])
    if f"{name}_sd" not in result:
        return None
    seeds = len(result["seeds"])
    return float(scipy.stats.t.ppf(0.975, seeds - 1) * result[f"{name}_sd"] / seeds**0.5)


def _headline(run: Run, facts: Facts) -> list[dict[str, Any]]:
    """Return the numbers at the top of the page."""
    method = run.manifest["experiment"]["method"]
    words = {
        "few_shot": f"{method['ways']}-way {method['shots']}-shot, classes that nobody had",
        "few_shot_pixels": "nearest example, samples as they are: nothing is learnt",
        "few_shot_random": "nearest class mean of the features before training",
        "few_shot_base": "the model on new samples of classes that it was trained on",
    }
    return [
        {
            "name": name,
            "short": short,
            "words": words[name],
            "value": run.result[name],
            "half": half_width(run.result, name),
            "sd": run.result.get(f"{name}_sd"),
            "chance": _chance(facts) if name == "few_shot" else None,
            "colour": colour,
        }
        for name, short, colour in NUMBERS
        if name in run.result
    ]


def verdict(result: Mapping[str, Any], over: str) -> dict[str, Any]:
    """Say in plain words whether the model is better than what costs nothing.

    Two numbers differ where their 95 % intervals are apart.

    Args:
        result: of a run, or of several.
        over: what the intervals are over: ``episodes`` or ``seeds``.
    """
    model, half = result["few_shot"], half_width(result, "few_shot") or 0.0
    pixels, beside = result["few_shot_pixels"], half_width(result, "few_shot_pixels") or 0.0
    order = _order(model, half, pixels, beside)
    label = {1: "Better", 0: "Not better", -1: "Worse"}[order] + " than raw samples."
    written = f"{pixels:.1f} ± {beside:.1f} %".replace(" ", NO_BREAK)
    words = f"The nearest example in raw samples, with nothing learnt, is right for {written}"
    words += {
        1: f", {model - pixels:.1f} points less; the intervals are apart.",
        0: f": the intervals overlap, so these {over} do not show that the model gains anything.",
        -1: f", {pixels - model:.1f} points more; the intervals are apart: this model is worse than no model.",
    }[order]
    random, around = result["few_shot_random"], half_width(result, "few_shot_random") or 0.0
    other = f"{random:.1f} ± {around:.1f} %".replace(" ", NO_BREAK)
    than = f"the network before training ({other})."
    words += {
        1: f" It is better than {than}",
        0: f" {'It cannot' if order > 0 else 'Nor can it'} be told from {than}",
        -1: f" It is worse than {than}",
    }[_order(model, half, random, around)].replace(" It ", " The model ")
    return {"order": order, "label": label, "words": words}


def _order(first: float, half: float, second: float, beside: float) -> int:
    """Return 1, -1 or 0: the first is above or below the second, or their intervals overlap."""
    if first - half > second + beside:
        return 1
    return -1 if first + half < second - beside else 0


def _interval_words(run: Run) -> str:
    """Say what stands behind ±."""
    if run.seeds:
        words = f"over {len(run.seeds)} seeds (Student's t), not over their episodes."
    else:
        words = f"over {run.result['test_episodes']} test episodes of this one run: another seed may lie outside."
    return f"± is half of the 95{NO_BREAK}% interval {words}"


def _choice(run: Run, first: Run) -> dict[str, Any]:
    """Say in plain words how the round was chosen."""
    result = first.result
    which = "Each seed's round" if run.seeds else f"Round {result['selected_round']} of {result['rounds']}"
    if result["selection"] == "validation":
        words = f"{which} was chosen on episodes of validation classes, which nobody trains on. {BLIND}"
        return {"words": words, "label": "Chosen on validation classes", "honest": True}
    if result["selection"] == "best-on-test":
        words = f"{which} was chosen for scoring best on some of the very test episodes reported here. {FLATTERS}"
        return {"words": words, "label": "Not an honest choice: best on test", "honest": False}
    return {"words": LAST, "label": "Last round", "honest": True}


def _watched(run: Run) -> str:
    """Say what the episodes after every round are of."""
    return str(run.metrics[-1].get("episodes_of", "test")) if run.metrics else "test"


def _accuracy_chart(run: Run, facts: Facts, curve: Curve, x: NDArray[np.float64], mark: float | None) -> str:
    """Draw few-shot accuracy by round, with what guessing and raw samples reach."""
    chance, pixels = _chance(facts), float(run.result["few_shot_pixels"])
    of = "" if _watched(facts.run) == "test" else ", test classes"
    top = upper_end([curve, Curve(np.array([pixels, chance]), "")])
    return figures.line_chart(
        [curve],
        "Few-shot accuracy" + ("" if not of else " on validation classes"),
        x,
        top,
        unit="%",
        mark=mark,
        legend=True,
        levels=[(f"raw samples{of} {pixels:.1f}%", pixels, "blue"), (f"guessing {chance:.3g}%", chance, "grey")],
    )


def _curves(run: Run, facts: Facts) -> dict[str, Any] | None:
    """Draw one run's accuracy by round, its accuracy in training and its losses."""
    lines = run.metrics
    if not lines:
        return None
    x, mean = axis(lines), statistics.curve(lines, "few_shot")
    half = statistics.curve(lines, "few_shot_ci95")
    label = "clients" if not facts.merges else "trained" if facts.pools else "merged"
    curve = Curve(mean, label, "orange", np.maximum(mean - half, 0), np.minimum(mean + half, 100))
    charts = [_accuracy_chart(run, facts, curve, x, run.result["selected_round"])]
    terms = list(lines[-1].get("losses", {}))
    stages = list(dict.fromkeys(_stage(name)[0] for name in terms))
    training = [name for name in terms if _stage(name)[1] == "accuracy"]
    if training:
        told = [line.get("losses", {}) for line in lines]
        curves = [
            Curve(statistics.curve(told, name), _said(_stage(name)[0], stages) or "clients", LINES[i % len(LINES)])
            for i, name in enumerate(training)
        ]
        title, several = "Accuracy on queries of training episodes", len(curves) > 1
        charts.append(figures.line_chart(curves, title, x, upper_end(curves), unit="%", legend=several))
    for stage in stages:
        own = {name: _stage(name)[1] for name in terms if _stage(name)[0] == stage and name not in training}
        said = _said(stage, stages)
        drawn = losses(run, own, "Losses by term, mean of clients" + (f", {said}" if said else ""))
        charts += [drawn] if drawn else []
    evaluation = run.manifest["experiment"]["evaluation"]
    count = evaluation["validation_episodes"]
    if evaluation["selection"] != "validation":  # the first of the test episodes
        count = min(count, evaluation["episodes"])
    return {"charts": charts, "of": _watched(run), "episodes": count}


def _stage(term: str) -> tuple[str, str]:
    """Divide the name of a term into its stage and itself.

    Example:
        >>> _stage("stage1_mi"), _stage("task")
        (('stage1', 'mi'), ('', 'task'))
    """
    stage, _, name = term.partition("_")
    return (stage, name) if name and stage[:5] == "stage" and stage[5:].isdecimal() else ("", term)


def _said(stage: str, stages: Sequence[str]) -> str:
    """Name a stage for people; nothing where there is but one."""
    if len(stages) == 1:
        return ""
    return f"stage {stage[5:]}" if stage else "last stage"


def _seeds(run: Run, facts: Facts) -> dict[str, Any] | None:
    """Summarise a run of several seeds: a table, and the mean curve with the spread over seeds."""
    if not run.seeds:
        return None
    names = [name for name in HEADS if name in run.result]
    rows = [
        {
            "seed": one.result["seed"],
            "round": one.result["selected_round"],
            "cells": [(one.result[name], half_width(one.result, name)) for name in names],
        }
        for one in run.seeds
    ]
    all_lines = [one.metrics for one in run.seeds]
    rounds = min(map(len, all_lines))
    each = np.array([statistics.curve(lines[:rounds], "few_shot") for lines in all_lines])
    low, mean, high = statistics.band(each.T.tolist())
    curve = Curve(mean, "seeds", "orange", low, high)
    short = {name: title for name, title, _ in NUMBERS}
    return {
        "rows": rows,
        "heads": [short[name] for name in names],
        "means": [(run.result[name], run.result[f"{name}_sd"]) for name in names],
        "chart": _accuracy_chart(run, facts, curve, axis(all_lines[0][:rounds]), None) if rounds else None,
        "count": len(rows),
    }


def _episode(facts: Facts) -> dict[str, Any] | None:
    """Return the rows of the first test episode: a class's examples, and its queries with what they were taken for."""
    tensors = facts.tensors
    support, queries = tensors["support_images"], tensors["query_images"]
    if not queries.shape[1]:
        return None
    names = facts.of_classes(tensors["episode_classes"])
    answers = tensors["query_answers"].astype(np.int64)
    rows = [
        {
            "name": name,
            "examples": [_picture(image) for image in support[n]],
            "queries": [
                {**_picture(image), "right": answer == n, "answer": names[answer]}
                for image, answer in zip(queries[n], answers[n].tolist(), strict=True)
            ],
        }
        for n, name in enumerate(names)
    ]
    right = answers == np.arange(len(answers))[:, None]
    return {"rows": rows, "right": int(right.sum()), "count": right.size}


def _picture(image: NDArray[np.float32]) -> dict[str, Any]:
    return {"source": figures.image_source(image), "height": image.shape[0], "width": image.shape[1]}


def _classes(facts: Facts) -> dict[str, Any]:
    """Rank test classes by accuracy, and say which are taken for which."""
    ways, episodes = facts.run.manifest["experiment"]["method"]["ways"], facts.run.result["test_episodes"]
    labels, answers = (
        facts.tensors[name].astype(np.int64).reshape(episodes, ways, -1) for name in ("labels", "answers")
    )
    ids = np.unique(labels)
    table, together = statistics.episode_confusion(labels, answers, ids)
    accuracy, names = np.diag(table), facts.of_classes(ids)
    bars = [
        {"name": names[i], "accuracy": float(accuracy[i]), "samples": int(together[i, i] * labels.shape[2])}
        for i in np.argsort(-accuracy, kind="stable").tolist()
    ]
    alike = np.nan_to_num((table + table.T) / 200)
    np.fill_diagonal(alike, 1.0)
    order = statistics.leaf_order(alike) if ways < len(ids) or len(ids) > 10 else np.arange(len(ids))
    wrong = np.where((together >= min(SHARED, episodes)) & ~np.eye(len(ids), dtype=bool), np.nan_to_num(table), 0.0)
    worst = [divmod(int(i), len(ids)) for i in np.argsort(-wrong, axis=None, kind="stable")[:6]]
    written = [names[i] for i in order]
    return {
        "bars": bars[:LISTED],
        "more_bars": bars[LISTED:],
        "all_in_each": ways == len(ids),
        "ordered": bool((order != np.arange(len(ids))).any()),
        "confusion": figures.confusion_map(table[np.ix_(order, order)], written) if len(ids) <= CONFUSED else None,
        "confused": [
            {"true": names[i], "answer": names[j], "share": float(wrong[i, j])} for i, j in worst if wrong[i, j] >= 0.5
        ],
    }


def _plane(facts: Facts) -> dict[str, Any] | None:
    """Draw the first test episode in the plane of two features, after some rounds (FedFSL, Fig. 6)."""
    from fedunseen.experiment.directory import load_params

    found = {int(path.stem.partition("-")[2]): path for path in (facts.run.path / "plane").glob("round-*.safetensors")}
    if not found:
        return None
    maps: list[dict[str, Any]] = []
    names: list[str] = []
    numbered, count = False, 0
    for round, path in sorted(found.items()):
        tensors = {name: value.numpy() for name, value in load_params(path).items()}
        classes = tensors["classes"].astype(np.int64)
        place = {int(c): n for n, c in enumerate(classes)}
        names = facts.of_classes(classes)
        numbered, written = labelled(names)
        count = len(tensors["labels"])
        accuracy = float(tensors["accuracy"])
        drawn = figures.plane_map(
            tensors["points"].astype(np.float64),
            np.array([place[int(c)] for c in tensors["labels"]], dtype=np.int64),
            tensors["grid"].astype(np.int64),
            (tensors["low"].tolist(), tensors["high"].tolist()),
            written,
            f"Round {round}",
            f"{accuracy:.1f} % right",
        )
        maps.append({"round": round, "accuracy": accuracy, "drawn": drawn})
    return {
        "maps": maps,
        "count": count,
        "classes": [
            {"name": name, "number": n + 1 if numbered else None, "colour": figures.class_colour(n)}
            for n, name in enumerate(names)
        ],
    }


def _dealt(counts: NDArray[np.int64]) -> dict[str, Any]:
    """Say how evenly classes are dealt: of a client's samples, how many are of the class that it has most of."""
    held, samples = counts[counts.sum(axis=1) > 0], counts.sum(axis=1)
    share = 100 * held.max(axis=1) / held.sum(axis=1)
    return {
        "clients": len(counts),
        "samples": (int(samples.min()), int(samples.max())),
        "largest": float(share.mean()),
        "even": 100 / max(int((counts.sum(axis=0) > 0).sum()), 1),
    }
