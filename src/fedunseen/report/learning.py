"""Accuracies and losses round by round, and what several seeds say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedunseen.evaluation.measures import TITLES, ZERO_SHOT_MEASURES
from fedunseen.report import statistics
from fedunseen.report.charts import Curve, Level, Scale, line_chart
from fedunseen.report.parts import LINES, Facts, axis, upper_end

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


def curves(facts: Facts) -> dict[str, Any] | None:
    """Draw each accuracy of one run by round, with the spread of the clients' own models.

    One round of a merged model alone is not a curve: its numbers stand at the top of the page.
    """
    run = facts.run
    lines = statistics.measured(run.metrics, "zsl")
    spread = any(len(line.get("clients", {}).get("zsl", [])) > 1 for line in lines)
    if not lines or (len(lines) == 1 and not spread):
        return None
    x = axis(lines)
    drawn: dict[str, list[Curve]] = {}
    for name, *_ in ZERO_SHOT_MEASURES:
        low, mean, high = statistics.clients_band(lines, name)
        main = statistics.curve(lines, name)
        if not facts.one_model:  # the main curve is the clients' mean
            drawn[name] = [Curve(main, "mean of clients", COLORS[name], low, high)]
            continue
        drawn[name] = [Curve(main, "merged", COLORS[name])]
        if spread:
            drawn[name].append(Curve(mean, "clients", "grey", low, high, dashed=True))
    top = upper_end([curve for curves in drawn.values() for curve in curves])
    charts = [
        line_chart(
            curves,
            TITLES[name],
            x,
            Scale(top, "%"),
            levels=[Level(f"guessing {facts.chance:.3g}%", facts.chance)] if name == "zsl" else (),
            mark=run.result["selected_round"],
        )
        for name, curves in drawn.items()
    ]
    lost = losses(run)
    words = ""
    if spread and facts.one_model:
        words = "The distance between the line and the shaded area is what merging gives: each client's own model is "
        words += "measured on all test samples before merging, under the same calibration."
    elif spread:
        nothing = "" if facts.merges else "; nothing is ever merged"
        words = f"Each client's model is measured on all test samples{nothing}."
    elif not facts.pools:
        words = "The clients' own models were not measured in this run."
    return {"charts": [*charts, *([lost] if lost else [])], "legend": True, "spread": spread, "words": words}


def seeds(facts: Facts) -> dict[str, Any] | None:
    """Summarize a run of several seeds: a table, and mean curves with the spread over seeds."""
    run = facts.whole
    if not run.seeds:
        return None
    all_lines = statistics.measured_by_all([run_of_seed.metrics for run_of_seed in run.seeds], "zsl")
    x = axis(all_lines[0])
    drawn = {}
    for name, *_ in ZERO_SHOT_MEASURES:
        each = np.array([statistics.curve(lines, name) for lines in all_lines])
        low, mean, high = statistics.band(each.T.tolist())
        drawn[name] = Curve(mean, "mean of seeds", COLORS[name], low, high)
    top = upper_end(list(drawn.values()))
    charts = [
        line_chart(
            [curve],
            TITLES[name],
            x,
            Scale(top, "%"),
            levels=[Level(f"guessing {facts.chance:.3g}%", facts.chance)] if name == "zsl" else (),
        )
        for name, curve in drawn.items()
    ]
    plain = [run_of_seed.name for run_of_seed in ZERO_SHOT_MEASURES]
    names = [*plain, *(f"uncalibrated_{name}" for name in plain[1:])]
    heads = ["ZSL", "U", "S", "H", "U uncal.", "S uncal.", "H uncal.", "calibration", "round"]
    rows = [
        {
            "seed": run_of_seed.result["seed"],
            "cells": [
                *(f"{run_of_seed.result[name]:.1f}" for name in names),
                f"{run_of_seed.result['calibration_factor']:.3g}",
                run_of_seed.result["selected_round"],
            ],
        }
        for run_of_seed in run.seeds
    ]
    means = [*(f"{run.result[name]:.1f} ± {run.result[name + '_sd']:.1f}" for name in names), "", ""]
    words = "Line: mean over the seeds after each round. Shaded: lowest to highest seed. A narrow band means that the "
    words += "choice of seed matters little."
    return {"heads": heads, "rows": rows, "foot": "mean ± sd", "means": means, "charts": charts, "words": words}
