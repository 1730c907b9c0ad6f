"""Accuracies and losses round by round, what several seeds say, and what was chosen on validation classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedunseen.evaluation.measures import SHORT, TITLES, ZERO_SHOT, ZERO_SHOT_MEASURES
from fedunseen.report import statistics
from fedunseen.report.charts import Curve, Level, Scale, line_chart, value_chart
from fedunseen.report.parts import LINES, Content, Facts, axis, passages, rounds_tried, stopped, upper_end
from fedunseen.report.svg import Floats

if TYPE_CHECKING:
    from fedunseen.experiment.result.run import Run

COLORS = {one.name: one.color for one in ZERO_SHOT_MEASURES}


def losses(
    run: Run, terms: Mapping[str, str] | None = None, title: str = "Losses by term, mean of clients"
) -> str | None:
    """Draw the losses by term; the total is left out where it is the only term's double."""
    lines = run.metrics
    if terms is None:
        terms = {name: name for name in lines[-1].get("losses", {})} if lines else {}
    terms_by_round = {name: statistics.curve([line.get("losses", {}) for line in lines], name) for name in terms}
    if len(terms_by_round) == 2 and "loss" in terms_by_round:
        other = next(term for term in terms_by_round if term != "loss")
        if np.allclose(terms_by_round[other], terms_by_round["loss"], equal_nan=True):
            del terms_by_round["loss"]
    if not terms_by_round:
        return None
    curves = [
        Curve(y, terms[name], LINES[i % len(LINES)], dashed=i >= len(LINES))
        for i, (name, y) in enumerate(terms_by_round.items())
    ]
    return line_chart(curves, title, axis(lines), legend=True)


def curves(facts: Facts) -> Content:
    """Draw each accuracy of one run by round, with the spread of the clients' own models."""
    run = facts.run
    lines = statistics.measured(run.metrics, "zsl")
    spread = any(len(line.get("clients", {}).get("zsl", [])) > 1 for line in lines)
    if not lines or (len(lines) == 1 and not spread):
        return None
    x = axis(lines)
    drawn: dict[str, list[Curve]] = {}
    for name in ZERO_SHOT:
        own = [line.get("clients", {}).get(name, []) for line in lines]
        low, mean, high = map(statistics.bridged, statistics.band(own))
        main = statistics.curve(lines, name)
        if not facts.one_model:  # the main curve is the clients' mean
            drawn[name] = [Curve(main, "mean of clients", COLORS[name], low, high)]
            continue
        drawn[name] = [Curve(main, "merged", COLORS[name])]
        if spread:
            drawn[name].append(Curve(mean, "clients", "grey", low, high, dashed=True))
    charts = _accuracy_charts(facts, drawn, x, run.result["selected_round"])
    lost = losses(run)
    context = {"spread": spread, "one_model": facts.one_model, "merges": facts.merges, "pools": facts.pools}
    words = passages("learning", context)["curves"]
    return {"charts": [*charts, *([lost] if lost else [])], "legend": True, "spread": spread, "words": words}


def _accuracy_charts(
    facts: Facts, drawn: Mapping[str, Sequence[Curve]], x: Floats, mark: float | None = None
) -> list[str]:
    """Draw the curves of each accuracy on one scale, with what guessing reaches."""
    scale = Scale(upper_end([curve for curves in drawn.values() for curve in curves]), "%")
    guessing = [Level(f"guessing {facts.chance:.3g}%", facts.chance)]
    return [
        line_chart(curves, TITLES[name], x, scale, levels=guessing if name == "zsl" else (), mark=mark)
        for name, curves in drawn.items()
    ]


def seeds(facts: Facts) -> Content:
    """Summarize a run of several seeds: a table, and mean curves with the spread over seeds."""
    run = facts.whole
    if not run.seeds:
        return None
    all_lines = statistics.measured_by_all([run_of_seed.metrics for run_of_seed in run.seeds], "zsl")
    drawn: dict[str, list[Curve]] = {}
    for name in ZERO_SHOT:
        each = np.array([statistics.curve(lines, name) for lines in all_lines])
        low, mean, high = statistics.band(each.T.tolist())
        drawn[name] = [Curve(mean, "mean of seeds", COLORS[name], low, high)]
    charts = _accuracy_charts(facts, drawn, axis(all_lines[0]))
    names = [*ZERO_SHOT, *(f"uncalibrated_{name}" for name in ZERO_SHOT[1:])]
    heads = ["ZSL", "U", "S", "H", "U uncal.", "S uncal.", "H uncal.", "calibration", "round"]
    rows = []
    for result in (one.result for one in run.seeds):
        cells = [*(f"{result[name]:.1f}" for name in names), f"{result['calibration_factor']:.3g}"]
        rows.append({"seed": result["seed"], "cells": [*cells, result["selected_round"]]})
    means = [*(f"{run.result[name]:.1f} ± {run.result[name + '_sd']:.1f}" for name in names), "", ""]
    words = passages("learning", {"spread": True, "one_model": True})["seeds"]
    return {"heads": heads, "rows": rows, "foot": "mean ± sd", "means": means, "charts": charts, "words": words}


def chosen(facts: Facts) -> Content:
    """Return what was chosen on validation classes, if anything was."""
    run = facts.run
    found = run.result.get("chosen_on_validation")
    if not found:
        return None
    keys = list(found.get("settings", {}))
    tried = [
        {"values": [one["settings"][key] for key in keys], "won": one["settings"] == found["settings"], **one}
        for one in found.get("tried", [])
    ]
    last = found["round"] == rounds_tried(run.result) > 1
    charts = [chart for chart in (_selection_chart(run, keys), *_sensitivity(run, keys)) if chart]
    return {"chosen": {**found, "keys": keys, "tried": tried, "charts": charts, "last": last, "ended": stopped(found)}}


def _sensitivity(run: Run, keys: Sequence[str]) -> list[str]:
    """Draw, for each setting tried at several numbers, the accuracies over them, with the others as chosen."""
    chosen = run.result["chosen_on_validation"]
    charts = []
    for key in keys:
        others = [other for other in keys if other != key]
        tried = [one for one in chosen.get("tried", [])
                 if all(one["settings"][other] == chosen["settings"][other] for other in others)]  # fmt: skip
        values = [one["settings"][key] for one in tried]
        if len(values) < 2 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            continue
        tried = [tried[i] for i in np.argsort(values, kind="stable")]
        ordered = [one["settings"][key] for one in tried]
        curves = [
            Curve(statistics.curve(tried, name), SHORT[name], COLORS[name], dashed=name in ("gzsl_unseen", "gzsl_seen"))
            for name in ("gzsl_harmonic", "zsl", "gzsl_unseen", "gzsl_seen")
        ]
        written = [f"{value:g}" for value in ordered]
        marked = ordered.index(chosen["settings"][key])
        charts.append(value_chart(curves, f"Validation classes by {key}", written, key, marked))
    return charts


def _selection_chart(run: Run, keys: Sequence[str]) -> str | None:
    """Draw how each candidate did on validation classes, round by round; of one round each there is no curve."""
    from fedunseen.federation.run_directory import RunDirectory

    chosen = run.result["chosen_on_validation"]
    criterion = run.manifest["experiment"]["evaluation"]["criterion"]
    name = "zsl" if criterion == "zsl" else "gzsl_harmonic"
    tried = chosen.get("tried", [])
    folders = [str(i) for i in range(len(tried))] if tried else [""]
    lines = {
        i: statistics.measured(RunDirectory(run.path / "selection" / folder).metrics(), name)
        for i, folder in enumerate(folders)
    }
    settings = [candidate["settings"] for candidate in tried] or [{}]
    best = settings.index(chosen["settings"]) if tried else 0
    # The chosen one is in front and carries the mark; of many others, those that came nearest to it.
    others = sorted((i for i in lines if i != best), key=lambda i: -tried[i][name])[: len(LINES) - 1]
    shown = [i for i in (best, *others) if lines[i]]
    if best not in shown or max(len(lines[i]) for i in shown) == 1:
        return None
    curves = []
    for color, i in zip(LINES, shown, strict=False):
        label = ", ".join(f"{key.partition('.')[2]} {settings[i][key]}" for key in keys) or "chosen"
        curves.append(Curve(statistics.curve(lines[i], name), label, color))
    title = f"{'ZSL' if name == 'zsl' else 'H'} on validation classes"
    return line_chart(
        curves, title, axis(lines[best]), Scale(upper_end(curves), "%"), mark=chosen["round"], legend=len(curves) > 1
    )
