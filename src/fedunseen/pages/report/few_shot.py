"""The page of a few-shot run: accuracy on new classes after a few examples, beside baselines."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen import metrics
from fedunseen.evaluation.summary import stopped, weak_classes, weak_words
from fedunseen.experiment.result.run import Run
from fedunseen.federation.run_directory import stored_rounds
from fedunseen.pages.report import parts, statistics
from fedunseen.pages.report.charts import Curve, Level, Scale, line_chart
from fedunseen.pages.report.maps import class_color, confusion_map, plane_map
from fedunseen.pages.report.parts import Content, Facts, holders, losses, most_confused
from fedunseen.pages.report.svg import image_source

NUMBERS = (
    ("few_shot", "Few-shot", "orange"), ("few_shot_pixels", "Raw samples", ""), ("few_shot_random", "Untrained", ""),
    ("few_shot_base", "Training classes", "blue"),
)  # fmt: skip
NO_BREAK = "\N{NO-BREAK SPACE}"
IDLE = "for validation"
CONFUSED = 60  # classes up to which the table of confusions is drawn
SHARED = 5  # episodes that two classes must have in common to be called confused


@lru_cache(maxsize=1)
def _words(facts: Facts) -> dict[str, str]:
    """Return what the page says in sentences."""
    tree = facts.experiment
    counts = facts.tensors["client_counts"]
    first = facts.run.result
    evaluation = tree["evaluation"]
    held = counts[counts.sum(axis=1) > 0]
    samples = counts.sum(axis=1)
    watched = evaluation["validation_episodes"]
    if evaluation["selection"] != "validation":  # the first of the test episodes
        watched = min(watched, evaluation["episodes"])
    context = {
        **tree["method"],
        "facts": facts,
        "space": facts.run.space,
        "result": facts.whole.result,
        "first": first,
        "partition": tree["partition"],
        "model": "trained" if facts.pools else "merged",
        "chance": f"{facts.chance:.3g}",
        "tested": len(np.unique(facts.tensors["labels"])) if "labels" in facts.tensors else 0,
        "watched": watched,
        "on_validation": _episodes_of(facts.run) == "validation",
        "clients": len(counts),
        "fewest": int(samples.min()),
        "most": int(samples.max()),
        "share": float((100 * held.max(axis=1) / held.sum(axis=1)).mean()),
        "even": 100 / max(int((counts.sum(axis=0) > 0).sum()), 1),
        "stopped": stopped(first),
        "nbsp": NO_BREAK,
    }
    return parts.passages("few_shot", context)


def half_width(result: Mapping[str, Any], name: str) -> float | None:
    """Return half of the 95 % interval of a number: of a run's episodes, or by Student's t of
    several runs; or None.
    """
    if f"{name}_ci95" in result:
        return float(result[f"{name}_ci95"])
    if f"{name}_sd" not in result:
        return None
    seeds = len(result["seeds"])
    return float(metrics.t_critical(seeds - 1) * result[f"{name}_sd"] / seeds**0.5)


def verdict(result: Mapping[str, Any], over: str) -> dict[str, Any]:
    """Return in plain words whether the model is better than what costs nothing."""
    model, pixels, random = (
        {"value": result[name], "half": half_width(result, name) or 0.0}
        for name in ("few_shot", "few_shot_pixels", "few_shot_random")
    )
    order = _order(model, pixels)
    beside = _order(model, random)
    context = {
        "pixels": pixels,
        "random": random,
        "model": model["value"],
        "over": over,
        "nbsp": NO_BREAK,
    }
    (words,) = parts.paragraphs("verdict", {**context, "order": order, "beside": beside})
    label = {1: "Better", 0: "Not better", -1: "Worse"}[order] + " than raw samples."
    return {
        "id": "verdict",
        "css": "good",
        "fine": order > 0,
        "order": order,
        "label": label,
        "words": words,
    }


def _order(first: Mapping[str, float], second: Mapping[str, float]) -> int:
    """Return 1, -1 or 0: the first is above or below the second, or their 95 % intervals
    overlap.
    """
    lead = first["value"] - second["value"]
    return int(np.sign(lead)) * (abs(lead) > first["half"] + second["half"])


def _episodes_of(run: Run) -> str:
    """Return what the episodes after every round are of."""
    return str(run.metrics[-1].get("episodes_of", "test")) if run.metrics else "test"


def _accuracy_chart(
    run: Run, facts: Facts, curve: Curve, x: NDArray[np.float64], mark: float | None
) -> str:
    """Draw few-shot accuracy by round, with what guessing and raw samples reach."""
    chance = facts.chance
    pixels = float(run.result["few_shot_pixels"])
    tested = _episodes_of(facts.run) == "test"
    title, of = (
        ("Few-shot accuracy", "")
        if tested
        else ("Few-shot accuracy on validation classes", ", test classes")
    )
    scale = Scale(parts.upper_end([curve, Curve(np.array([pixels, chance]), "")]), "%")
    raw = Level(f"raw samples{of} {pixels:.1f}%", pixels, "blue")
    guessing = Level(f"guessing {chance:.3g}%", chance, "grey")
    return line_chart([curve], title, x, scale, mark=mark, legend=True, levels=[raw, guessing])


def curves(facts: Facts) -> Content:
    """Draw one run's accuracy by round, its accuracy in training and its losses."""
    run = facts.run
    lines = facts.run.metrics
    if not lines:
        return None
    measured = statistics.measured(lines, "few_shot")
    x = parts.axis(lines)
    mean = statistics.curve(measured, "few_shot")
    half = statistics.curve(measured, "few_shot_ci95")
    label = "clients" if not facts.one_model else "trained" if facts.pools else "merged"
    curve = Curve(mean, label, "orange", np.maximum(mean - half, 0), np.minimum(mean + half, 100))
    charts = [
        _accuracy_chart(run, facts, curve, parts.axis(measured), run.result["selected_round"])
    ]
    terms = lines[-1].get("losses", {})  # those of a stage begin with its name
    training = [name for name in terms if name.endswith("accuracy")]
    if training:
        rounds = [line.get("losses", {}) for line in lines]
        shown = [
            Curve(
                statistics.curve(rounds, name),
                name.replace("_", " "),
                parts.LINES[i % len(parts.LINES)],
            )
            for i, name in enumerate(training)
        ]
        scale = Scale(parts.upper_end(shown), "%")
        charts.append(
            line_chart(
                shown, "Accuracy on queries of training episodes", x, scale, legend=len(shown) > 1
            )
        )
    drawn = losses(run, [name for name in terms if name not in training])
    charts += [drawn] if drawn else []
    words = _words(facts)
    text = " ".join([words["curves"], *([words["training"]] if len(charts) > 1 else [])])
    return {"charts": charts, "legend": False, "spread": False, "words": text}


def seeds(facts: Facts) -> Content:
    """Summarize a run of several seeds: a table, and the mean curve with the spread over seeds."""
    run = facts.whole
    if not run.seeds:
        return None
    shown = [(name, title) for name, title, _ in NUMBERS if name in run.result]
    rows = []
    for result in (seed_run.result for seed_run in run.seeds):
        halves = {name: half_width(result, name) for name, _ in shown}
        cells = [
            f"{result[name]:.1f}" + (f" ± {h:.1f}" if h is not None else "")
            for name, h in halves.items()
        ]
        rows.append({"seed": result["seed"], "cells": [*cells, result["selected_round"]]})
    all_lines = statistics.measured_by_all([seed_run.metrics for seed_run in run.seeds], "few_shot")
    each = np.array([statistics.curve(lines, "few_shot") for lines in all_lines])
    low, mean, high = statistics.band(each.T.tolist())
    curve = Curve(mean, "seeds", "orange", low, high)
    return {
        "rows": rows,
        "heads": [*(title.lower() for _, title in shown), "round"],
        "foot": "mean, sd",
        "means": [
            *(f"{run.result[name]:.1f}, {run.result[name + '_sd']:.1f}" for name, _ in shown),
            "",
        ],
        "charts": [_accuracy_chart(run, facts, curve, parts.axis(all_lines[0]), None)]
        if all_lines[0]
        else [],
        "words": _words(facts)["seeds"],
    }


def _episode(facts: Facts) -> Content:
    """Return the rows of the first test episode: a class's examples, and its queries with what they
    were taken for.
    """
    tensors = facts.tensors
    if "query_images" not in tensors or not tensors["query_images"].shape[1]:
        return None
    support = tensors["support_images"]
    queries = tensors["query_images"]
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
    return {"source": image_source(image), "height": image.shape[0], "width": image.shape[1]}


def classes(facts: Facts) -> dict[str, Any]:
    """Rank test classes by accuracy, and say which are taken for which."""
    if "labels" not in facts.tensors:
        return {"bars": None}
    ways = facts.experiment["method"]["ways"]
    episodes = facts.run.result["test_episodes"]
    labels, answers = (
        facts.tensors[name].astype(np.int64).reshape(episodes, ways, -1)
        for name in ("labels", "answers")
    )
    ids = np.unique(labels)
    table, together = metrics.episode_confusion(labels, answers, ids)
    accuracy = np.diag(table)
    names = facts.of_classes(ids)
    bars = [
        {
            "name": names[i],
            "one": float(accuracy[i]),
            "samples": int(together[i, i] * labels.shape[2]),
        }
        for i in np.argsort(-accuracy, kind="stable").tolist()
    ]
    alike = np.nan_to_num((table + table.T) / 200)
    np.fill_diagonal(alike, 1.0)
    order = (
        statistics.leaf_order(alike) if ways < len(ids) or len(ids) > 10 else np.arange(len(ids))
    )
    words = _words(facts)
    confusion = words["confusion"] + (
        f" {words['sorted']}" if (order != np.arange(len(ids))).any() else ""
    )
    written = [names[i] for i in order]
    return {
        "bars": bars[: parts.LISTED],
        "more_bars": bars[parts.LISTED :],
        "kinds": ("one",),
        "of": "queries",
        "unseen": False,
        "seen": [],
        "together": ways != len(ids),
        "words": words["ranking"],
        "confusion": confusion_map(table[np.ix_(order, order)], written)
        if len(ids) <= CONFUSED
        else None,
        "confusion_words": confusion,
        "confused": most_confused(np.where(together >= min(SHARED, episodes), table, 0.0), names),
    }


def plane(facts: Facts) -> Content:
    """Draw the first test episode in the plane of two features, after some rounds (FedFSL, Fig.
    6).
    """
    stored = stored_rounds(facts.run.path / "plane")
    if not stored:
        return None
    maps: list[dict[str, Any]] = []
    for round, tensors in stored.items():
        classes = tensors["classes"].astype(np.int64)
        place = {int(c): n for n, c in enumerate(classes)}
        names = facts.of_classes(classes)
        numbered, written = parts.labelled(names)
        count = len(tensors["labels"])
        accuracy = float(tensors["accuracy"])
        drawn = plane_map(
            tensors["points"].astype(np.float64),
            np.array([place[int(c)] for c in tensors["labels"]], dtype=np.int64),
            tensors["grid"].astype(np.int64),
            (tensors["low"].tolist(), tensors["high"].tolist()),
            written,
            f"Round {round}: {count} samples of {len(names)} classes, {accuracy:.1f} % right",
        )
        maps.append({"round": round, "accuracy": accuracy, "drawn": drawn})
    return {
        "maps": maps,
        "count": count,
        "classes": [
            {"name": name, "number": n + 1 if numbered else None, "color": class_color(n)}
            for n, name in enumerate(names)
        ],
        "model": "trained" if facts.pools else "merged",
        "examples": _words(facts)["examples"],
    }


def header(facts: Facts) -> dict[str, Any]:
    """Return the first paragraph and the chips."""
    words, (first, *rest) = _words(facts), parts.chips(facts)
    number = {
        "value": facts.whole.result["few_shot"],
        "of": "queries",
        "chance": f"{facts.chance:.3g}",
    }
    return {
        "lead": words["lead"],
        **number,
        "chips": [first, ("episodes", words["episodes"]), *rest],
    }


def summary(facts: Facts) -> dict[str, Any]:
    """Return the summary for people who decide."""
    words = _words(facts)
    weak = []
    sentences = []
    if "labels" in facts.tensors:
        labels, answers = (facts.tensors[name].astype(np.int64) for name in ("labels", "answers"))
        weak = weak_classes(facts.names, labels, answers)
        sentences = [weak_words(weak, len(np.unique(labels)), "test classes")]
    steps = parts.advice(facts, weak, words["remedy"], words["usage"])
    return {"what": words["what"], "good": words["good"], "weak": sentences, "next": steps}


def numbers(facts: Facts) -> dict[str, Any]:
    """Return the numbers at the top, what they prove, and how the round was chosen."""
    result = facts.whole.result
    words = _words(facts)
    headline = [
        {
            "name": name,
            "short": short,
            "words": words[name],
            "value": result[name],
            "spread": half_width(result, name),
            "beside": [
                ("guessing", facts.chance if name == "few_shot" else None),
                ("standard deviation", result.get(f"{name}_sd")),
            ],
            "color": color,
        }
        for name, short, color in NUMBERS
        if name in result
    ]
    proven = verdict(result, "seeds" if facts.whole.seeds else "episodes")
    proven["words"] += f" {words['plus_minus']}"
    return {"headline": headline, "choices": [proven, parts.choice(facts, words["choice"])]}


def data_distribution(facts: Facts) -> Content:
    """Return who holds which classes and how many samples; parties keep that to themselves."""
    if facts.parties:
        return None
    held = holders(facts, f"{IDLE}: no one holds them", f"no one: {IDLE}")
    return {
        "title": "Who holds what",
        "holdings": held,
        "coverage": None,
        "words": _words(facts)["dealt"],
    }


SAMPLES = ("episode", _episode)
