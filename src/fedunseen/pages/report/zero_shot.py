"""The page of a zero-shot run."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen import metrics
from fedunseen.data import ClassSpace
from fedunseen.evaluation.measures import TITLES, ZERO_SHOT, ZERO_SHOT_MEASURES
from fedunseen.evaluation.summary import (
    ENOUGH,
    examples_advice,
    pool_advice,
    stopped,
    summarize,
    weak_words,
)
from fedunseen.pages.report import parts, statistics
from fedunseen.pages.report.charts import Curve, Level, Scale, line_chart
from fedunseen.pages.report.maps import confusion_map, coverage_map
from fedunseen.pages.report.parts import Content, Facts
from fedunseen.pages.report.sureness import pictured, reasons_of
from fedunseen.pages.report.svg import Floats

_OPEN = 60  # classes whose confusion is shown openly
_PAIRS = 12  # pairs of all classes that are named

COLORS = {measure.name: measure.color for measure in ZERO_SHOT_MEASURES}


@lru_cache(maxsize=1)
def _words(facts: Facts) -> dict[str, str]:
    """Return what the page says in sentences."""
    first = facts.run.result
    counts = facts.tensors.get("client_counts")
    context = {
        "facts": facts,
        "clients": 0 if counts is None else len(counts),
        "disjoint": counts is not None and bool(((counts > 0).sum(axis=0) <= 1).all()),
        "experiment": {
            **facts.experiment,
            "data": {"text_encoder": None, **facts.experiment["data"]},
        },
        "result": facts.whole.result,
        "first": {"left_out_offset": 0.0, "gzsl_head": "", "adapted": {}, **first},
        "rounds_tried": parts.rounds_tried(first),
        "stopped": stopped(first),
    }
    return parts.passages("zero_shot", context)


def header(facts: Facts) -> dict[str, Any]:
    """Return the first paragraph and the chips."""
    result = facts.whole.result
    shown = {
        "value": result["zsl"],
        "of": "test samples",
        "chance": f"{facts.chance:.1f}",
        "among_all": result["gzsl_unseen"],
    }
    if len(facts.unseen) == 1:  # ZSL is 100 % then
        chance = f"{100 / len(facts.names):.1f}"
        shown = {"value": result["gzsl_unseen"], "of": "its test samples", "chance": chance}
    return {
        "lead": _words(facts)["lead"],
        **shown,
        "chips": [*parts.chips(facts), ("rounds", result["rounds"])],
    }


def summary(facts: Facts) -> dict[str, Any]:
    """Return the summary for people who decide."""
    words = _words(facts)
    prior = facts.prior
    summary = summarize(
        facts.run.result, facts.tensors, facts.names, facts.unseen, facts.zero_shot, prior
    )
    lost = bool(summary.get("weak_by_rule"))
    remedy = examples_advice(facts.run.result, facts.tensors, facts.of_classes(facts.unseen), lost)
    weak = [sentence for sentence in summary.get("text", ()) if sentence != remedy]
    weak_unseen = summary.get("weak_unseen", [])
    if summary and facts.zero_shot and not (weak_unseen or lost):
        tested = np.unique(facts.tensors["labels"])
        weak.insert(0, weak_words([], int(np.isin(tested, facts.unseen).sum()), "unseen classes"))
    pool = []
    if weak_unseen or lost:
        pool = pool_advice(facts.run.result, facts.experiment["method"]["name"])
    steps = parts.advice(facts, remedy, remedy, words["usage"], pool)
    return {"what": words["what"], "good": words["good"], "weak": weak, "next": steps}


def numbers(facts: Facts) -> dict[str, Any]:
    """Return the four numbers, and how round and offset were chosen."""
    result = facts.whole.result
    headline = [
        {
            **measure._asdict(),
            "value": result[measure.name],
            "spread": result.get(f"{measure.name}_sd"),
            "interval": result.get("intervals", {}).get(measure.name),
            "beside": [
                ("guessing", facts.chance)
                if measure.name == "zsl"
                else (
                    "without the offset",
                    result.get(f"uncalibrated_{measure.name}") if facts.calibrated else None,
                )
            ],
        }
        for measure in ZERO_SHOT_MEASURES
    ]
    return {"headline": headline, "choices": [parts.choice(facts, _words(facts)["choice"])]}


def curves(facts: Facts) -> Content:
    """Draw each accuracy of one run by round, with the spread of the clients' own models."""
    run = facts.run
    lines = statistics.measured(run.metrics, "zsl")
    spread = any(len(line.get("clients", {}).get("zsl", [])) > 1 for line in lines)
    if not lines or (len(lines) == 1 and not spread):
        return None
    x = parts.axis(lines)
    drawn: dict[str, list[Curve]] = {}
    for name in ZERO_SHOT:
        of_clients = [line.get("clients", {}).get(name, []) for line in lines]
        low, mean, high = map(statistics.bridged, statistics.band(of_clients))
        main = statistics.curve(lines, name)
        if not facts.one_model:  # the main curve is the clients' mean
            drawn[name] = [Curve(main, "mean of clients", COLORS[name], low, high)]
            continue
        drawn[name] = [Curve(main, "merged", COLORS[name])]
        if spread:
            drawn[name].append(Curve(mean, "clients", "grey", low, high, dashed=True))
    charts = _accuracy_charts(facts, drawn, x, run.result["selected_round"])
    lost = parts.losses(run, list(run.metrics[-1].get("losses", {})))
    context = {
        "spread": spread,
        "one_model": facts.one_model,
        "merges": facts.merges,
        "pools": facts.pools,
    }
    words = parts.passages("learning", context)["curves"]
    return {
        "charts": [*charts, *([lost] if lost else [])],
        "legend": True,
        "spread": spread,
        "words": words,
    }


def _accuracy_charts(
    facts: Facts, drawn: Mapping[str, Sequence[Curve]], x: Floats, mark: float | None = None
) -> list[str]:
    """Draw the curves of each accuracy on one scale, with what guessing reaches."""
    scale = Scale(parts.upper_end([curve for curves in drawn.values() for curve in curves]), "%")
    guessing = [Level(f"guessing {facts.chance:.3g}%", facts.chance)]
    return [
        line_chart(
            curves, TITLES[name], x, scale, levels=guessing if name == "zsl" else (), mark=mark
        )
        for name, curves in drawn.items()
    ]


def seeds(facts: Facts) -> Content:
    """Summarize a run of several seeds: a table, and mean curves with the spread over seeds."""
    run = facts.whole
    if not run.seeds:
        return None
    all_lines = statistics.measured_by_all(
        [run_of_seed.metrics for run_of_seed in run.seeds], "zsl"
    )
    drawn: dict[str, list[Curve]] = {}
    for name in ZERO_SHOT:
        each = np.array([statistics.curve(lines, name) for lines in all_lines])
        low, mean, high = statistics.band(each.T.tolist())
        drawn[name] = [Curve(mean, "mean of seeds", COLORS[name], low, high)]
    charts = _accuracy_charts(facts, drawn, parts.axis(all_lines[0]))
    names = [*ZERO_SHOT, *(f"uncalibrated_{name}" for name in ZERO_SHOT[1:])]
    heads = ["ZSL", "U", "S", "H", "U plain", "S plain", "H plain", "offset", "round"]
    rows = []
    for result in (seed.result for seed in run.seeds):
        cells = [*(f"{result[name]:.1f}" for name in names), f"{result['calibration_factor']:.3g}"]
        rows.append({"seed": result["seed"], "cells": [*cells, result["selected_round"]]})
    means = [
        *(f"{run.result[name]:.1f} ± {run.result[name + '_sd']:.1f}" for name in names),
        "",
        "",
    ]
    words = parts.passages("learning", {"spread": True, "one_model": True})["seeds"]
    return {
        "heads": heads,
        "rows": rows,
        "foot": "mean ± sd",
        "means": means,
        "charts": charts,
        "words": words,
    }


def classes(facts: Facts) -> dict[str, Any]:
    """Rank classes by accuracy, and say which unseen classes are taken for which."""
    if "labels" not in facts.tensors:
        return {"bars": None}
    tensors = facts.tensors
    count = len(facts.names)
    unseen = facts.unseen
    labels, zsl_answers, gzsl_answers = (
        tensors[name].astype(np.int64) for name in ("labels", "zsl_answers", "gzsl_answers")
    )
    zsl = metrics.per_class(labels, zsl_answers, range(count))
    gzsl = metrics.per_class(labels, gzsl_answers, range(count))
    samples = np.bincount(labels, minlength=count)
    ranked = unseen[np.lexsort((gzsl[unseen], np.nan_to_num(zsl[unseen], nan=-1.0)))[::-1]]
    bars = [
        {
            "name": facts.names[c],
            "zsl": None if np.isnan(zsl[c]) else float(zsl[c]),
            "gzsl": None if np.isnan(gzsl[c]) else float(gzsl[c]),
            "samples": int(samples[c]),
        }
        for c in ranked.tolist()
    ]
    of_unseen = np.isin(labels, unseen)
    lost = (
        float(100 * (~np.isin(gzsl_answers[of_unseen], unseen)).mean()) if of_unseen.any() else 0.0
    )
    seen = np.setdiff1d(np.flatnonzero(samples), unseen)
    seen = seen[np.argsort(gzsl[seen], kind="stable")]
    scored = [
        {"name": facts.names[c], "gzsl": float(gzsl[c]), "samples": int(samples[c])}
        for c in seen.tolist()
    ]
    tested = unseen[samples[unseen] > 0]
    order = tested[statistics.leaf_order(tensors["similarity"][np.ix_(tested, tested)])]
    table = metrics.confusion(labels, zsl_answers, order)
    words = parts.passages("classes", {"lost": lost})
    return {
        "bars": bars[: parts.LISTED],
        "more_bars": bars[parts.LISTED :],
        "kinds": ("zsl", "gzsl"),
        "of": "test samples",
        "unseen": True,
        "together": False,
        "words": words["ranked"],
        "seen": scored,
        "extremes": [one for one in scored if one["samples"] >= ENOUGH],
        "enough": ENOUGH,
        "confusion": confusion_map(table, facts.of_classes(order)) if len(order) else None,
        "confusion_words": words["confused"],
        "confused": parts.most_confused(table, facts.of_classes(order)),
        **_whole_confusion(facts, labels, gzsl_answers),
    }


def _whole_confusion(
    facts: Facts, labels: NDArray[np.int64], answers: NDArray[np.int64]
) -> dict[str, Any]:
    """Draw where samples of all tested classes go, all classes being candidates."""
    tested = np.unique(labels)
    order = tested[statistics.leaf_order(facts.tensors["similarity"][np.ix_(tested, tested)])]
    table = metrics.confusion(labels, answers, order)
    names = facts.of_classes(order)
    return {
        "whole": confusion_map(table, names, np.isin(order, facts.unseen)),
        "whole_folded": len(order) > _OPEN,
        "whole_confused": parts.most_confused(table, names, _PAIRS),
    }


def _images(facts: Facts) -> Content:
    """Return the cards of the image grid."""
    if "images" not in facts.tensors:
        return None
    images, labels, answers = (
        facts.tensors[name] for name in ("images", "image_labels", "image_answers")
    )
    why = reasons_of(facts, "image")
    cards = [
        {
            "sources": pictured(facts, "image", place, pixels),
            "height": pixels.shape[0], "width": pixels.shape[1],
            "true": facts.names[label], "right": best[0] == label, "why": why[place],
            "answers": [{"name": facts.names[c], "right": c == label} for c in best[:3]],
        }
        for place, (pixels, label, best) in enumerate(
            zip(images, labels.tolist(), answers.tolist(), strict=True)
        )
    ]  # fmt: skip
    right = sum(card["right"] for card in cards)
    return {"cards": cards, "right": right, "heat": "image_places" in facts.tensors}


def data_distribution(facts: Facts) -> Content:
    """Return who holds which classes, and who covers which attributes; parties keep that to
    themselves.
    """
    if facts.parties:
        return None
    title = "Who holds which classes"
    covered = None
    if not facts.run.space.from_texts:  # numbers of a text encoder say nothing
        title += ", who covers which attributes"
        clients = parts.client_names(facts)
        covered = _coverage(facts.tensors["client_counts"], facts.run.space, clients)
    return {"title": title, "holdings": parts.holders(facts), "coverage": covered, "words": ""}


def _coverage(
    counts: NDArray[np.int64], space: ClassSpace, clients: Sequence[str]
) -> dict[str, Any]:
    """Return what the page says of who covers which attributes (FZSL, Fig. 3)."""
    cover = (counts > 0).astype(
        np.float64
    ) @ space.semantics  # (K, a) sums over a client's classes (FZSL, Fig. 3 b)
    order, groups = statistics.attribute_order(space.attribute_groups, space.attributes)
    names = [space.attribute_names[a] for a in order.tolist()]
    if not space.names_say_something:
        names = []
    drawn = statistics.spaced(len(counts), parts.DRAWN_CLIENTS)
    return {
        "map": coverage_map(cover[drawn][:, order], names, groups, clients[drawn]),
        "most": float(np.abs(cover).max(initial=0.0)),
        "signed": bool((cover < 0).any()),
        "grouped": bool(groups),
    }


SAMPLES = ("images", _images)
