"""The report's part about DistZSL's theory: what ``theory.json`` holds, in words, a table and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedunseen.report import figures

__all__ = ["theory_section"]

Row = dict[str, str]


def theory_section(stored: Mapping[str, Any], calibrated: bool) -> dict[str, Any]:
    """Return what the template needs.

    Args:
        stored: the content of ``theory.json``.
        calibrated: whether the run's generalised accuracies are calibrated; those here never are.
    """
    alignment, visual = stored["alignment"], stored["decoder"]
    rows: list[Row] = []
    charts: list[str] = []
    if alignment is not None:
        rows += _client_rows(alignment)
        if alignment["pairs"]:
            charts.append(_pairs_chart(alignment["pairs"]))
    if visual is not None:
        rows += _decoder_rows(visual)
    tables = []
    for name, title in (("unseen", "Unseen classes, among unseen ones"), ("all", "All classes, among all")):
        if name in stored:
            rows += _class_rows(stored[name], "unseen classes (ZSL)" if name == "unseen" else "all classes (GZSL)")
            tables.append(_table(stored[name], title, name == "all" and calibrated))
    if "unseen" in stored:
        charts.append(_classes_chart(stored["unseen"]["classes"]))
    return {
        "round": stored["round"],
        "tested": stored["tested"],
        "alignment": alignment,
        "decoder": visual,
        "prototypes": stored["prototypes"],
        "unseen": "unseen" in stored,
        "rows": rows,
        "charts": charts,
        "tables": tables,
        "clients": alignment["clients"] if alignment is not None else [],
    }


def _row(where: str, what: str, value: str, beside: str, verdict: str) -> Row:
    return {"where": where, "what": what, "value": value, "beside": beside, "verdict": verdict}


def _number(value: float | None) -> str:
    """Write a number with three digits that count.

    Example:
        >>> _number(0.012345), _number(1234.5), _number(None)
        ('0.0123', '1,234', 'none')
    """
    if value is None:
        return "none"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _share(value: float) -> str:
    """Write a share as a percentage that says 100 or 0 only where it is.

    Example:
        >>> _share(1.0), _share(0.9996), _share(0.0001), _share(0.25)
        ('100 %', 'over 99.9 %', 'under 0.1 %', '25 %')
    """
    if 0.999 < value < 1:
        return "over 99.9 %"
    if 0 < value < 0.001:
        return "under 0.1 %"
    return f"{round(100 * value, 1):g} %"


def _client_rows(alignment: Mapping[str, Any]) -> list[Row]:
    clients, pairs, server = alignment["clients"], alignment["pairs"], alignment["server"]
    own, common = ([one[name] for one in clients] for name in ("epsilon_own", "epsilon_common"))
    rows = [
        _row("Eq. 12", "alignment error ε of a client, on its own training samples", _span(own), "", ""),
        _row(
            "Eq. 12",
            "the same on test samples, common to all clients",
            _span(common),
            f"{np.mean(common) / max(float(np.mean(own)), 1e-12):.3g} times as large on average",
            "",
        ),
    ]
    if pairs:
        observed, bound, by_own = ([pair[name] for pair in pairs] for name in ("observed", "bound", "bound_own"))
        broken = sum(pair["observed"] > pair["bound_own"] for pair in pairs)
        over = float(np.mean([pair["over"] for pair in pairs]))
        rows.append(
            _row(
                "Lemma 1",
                "distance (L1) between two clients' predictions, mean over test samples",
                _span(observed),
                f"bound {_span(bound)}",
                f"holds for all {len(pairs)} pairs in the mean; {_share(over)} of single samples exceed it",
            )
        )
        verdict = f"broken by {broken} of {len(pairs)} pairs" if broken else f"holds for all {len(pairs)} pairs too"
        rows.append(
            _row(
                "Lemma 1",
                "the same against each client's ε on its own samples, of which the lemma says nothing",
                _span(observed),
                f"bound {_span(by_own)}",
                verdict,
            )
        )
    rows += [
        _row(
            "Eq. 15",
            "divergence of the clients' mixture from Γ's distribution",
            _number(server["mixture"]),
            f"≤ clients' mean {_number(server['clients'])}",
            f"holds for {_share(server['holds_15'])} of samples",
        ),
        _row(
            "Eq. 16",
            "divergence of the merged model from Γ's distribution",
            _number(server["merged"]),
            f"≤ {_number(server['clients'])} + C ξ = {_number(server['bound'])}",
            f"holds for {_share(server['holds_16'])}; without C ξ for {_share(server['below_clients'])}",
        ),
        _row(
            "Eq. 38",
            "C as printed, which is no bound in general",
            _number(server["constant_printed"]),
            f"C that is one: {_number(server['constant'])}",
            f"with the printed one, Eq. 16 holds for {_share(server['holds_16_printed'])}",
        ),
        _row(
            "Theorem 2",
            "ξ, distance (L1) of the merged model from the mixture",
            _number(server["xi"]),
            f"at most {_number(server['xi_most'])}",
            "",
        ),
    ]
    return rows


def _decoder_rows(visual: Mapping[str, Any]) -> list[Row]:
    singular = visual["singular"]
    beside = (
        f"singular values of h: {_number(singular[0])} to {_number(singular[1])}" if singular else "h is not linear"
    )
    return [
        _row(
            "A2",
            "reconstruction error ‖h(g(f(x))) - f(x)‖: δ is the largest",
            _number(visual["delta"]),
            f"mean {_number(visual['delta_mean'])}, 95 % below {_number(visual['delta_95'])}; "
            f"‖f(x)‖ is {_number(visual['visual_length'])} on average",
            "",
        ),
        _row(
            "A1",
            "how much h stretches: c_h to L_h, near the predicted attributes",
            f"{_number(visual['c_h'])} to {_number(visual['L_h'])}",
            beside,
            "",
        ),
        _row(
            "Lemma 3",
            "distances of features that attributes must keep",
            "",
            f"says something about {_share(visual['lemma_3_says_something'])} of pairs",
            f"holds for {_share(visual['lemma_3_holds'])}",
        ),
        _row(
            "Lemma 4",
            "distance of predicted attributes from the class's own",
            _number(visual["attribute_error"]),
            f"bound {_number(visual['lemma_4_bound'])} on average",
            f"holds for {_share(visual['lemma_4_holds'])}",
        ),
    ]


def _class_rows(found: Mapping[str, Any], whose: str) -> list[Row]:
    classes = found["classes"]
    good = [one for one in classes if one["accuracy"] >= 50]
    rows = []
    if "eq_20" in classes[0]:
        whole = sum(one["eq_20"] == 1 for one in classes)
        ratios = [one["ratio"] for one in classes if one["ratio"] is not None]
        rows.append(
            _row(
                "Theorem 5",
                f"Eq. 20 for every sample of a class, {whose}",
                f"{whole} of {len(classes)}",
                f"left side {_span(ratios)} times the right one" if ratios else "",
                f"{len(good)} of {len(classes)} have half of their samples right",
            )
        )
    for name, where, what in (
        ("eq_61", "Eq. 61", "predicted attributes near enough"),
        ("eq_59", "Eq. 59", "nearer than half-way to the next class, at their best length"),
    ):
        mean = float(np.mean([one[name] for one in classes]))
        right = float(np.mean([one["accuracy"] for one in classes])) / 100
        rows.append(
            _row(where, f"{what}, {whose}", _share(mean), "of samples, mean of classes", f"right: {_share(right)}")
        )
    return rows


def _span(values: Sequence[float]) -> str:
    """Write the smallest and the largest of some numbers, once if they look alike.

    Example:
        >>> _span([0.5, 0.25, 1.0]), _span([2.0])
        ('0.25 to 1', '2')
    """
    low, high = _number(min(values)), _number(max(values))
    return low if low == high else f"{low} to {high}"


def _pairs_chart(pairs: Sequence[Mapping[str, Any]]) -> str:
    names = ["clients {} and {}".format(*pair["clients"]) for pair in pairs]
    observed, bound = (np.array([pair[name] for pair in pairs]) for name in ("observed", "bound"))
    top = max(float(observed.max()), float(bound.max()), 1e-9) * 1.08
    return figures.scatter(
        observed,
        bound,
        names,
        "Lemma 1: bound on the distance of two clients",
        "distance observed (L1, mean over test samples)",
        ((0.0, top), (0.0, top)),
        equal="bound = observed",
    )


def _classes_chart(classes: Sequence[Mapping[str, Any]]) -> str:
    away = np.array([one["half_way"] for one in classes])
    return figures.scatter(
        away,
        np.array([one["accuracy"] for one in classes]),
        [one["name"] for one in classes],
        "Unseen classes: ZSL accuracy",
        "distance from the own class, over half the way to the next",
        ((0.0, max(1.2, float(np.quantile(away, 0.95)) * 1.3)), (0.0, 104.0)),
        colour="orange",
        unit="%",
        border=("left of 1: promised", 1.0),
    )


def _table(found: Mapping[str, Any], title: str, uncalibrated: bool) -> dict[str, Any]:
    classes = found["classes"]
    rows = [
        {
            "name": one["name"],
            "accuracy": one["accuracy"],
            "nearest": one["nearest"],
            "delta": one["delta_y"],
            "off": one["off"],
            "room": one["room"],
            "half_way": one["half_way"],
            "certain": 100 * one["eq_59"],
            "ratio": one.get("ratio"),
            "margin": one.get("eq_20", 0.0) == 1,
            "reason": one["reason"],
        }
        for one in classes
    ]
    return {
        "title": title,
        "uncalibrated": uncalibrated,
        "same": _share(found["same_answers"]) if found["same_answers"] < 1 else None,
        "margins": "eq_20" in classes[0],
        "rows": rows,
        "failing": sum(one["accuracy"] < 50 for one in classes),
    }
