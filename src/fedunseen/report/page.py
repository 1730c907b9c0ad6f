"""Gather what a run directory holds into one HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedunseen import metrics
from fedunseen.core.files import write_text
from fedunseen.report import figures, statistics
from fedunseen.report.attacked import attack_section
from fedunseen.report.episodes_page import episodes_context
from fedunseen.report.figures import Curve
from fedunseen.report.merging import merging_section
from fedunseen.report.parts import (
    BLIND,
    FLATTERS,
    LAST,
    LINES,
    LISTED,
    Facts,
    axis,
    client_names,
    holdings,
    labelled,
    losses,
    parties,
    render,
    technical,
    travel,
    upper_end,
)
from fedunseen.report.sharing import coverage_section
from fedunseen.report.theory import theory_section

if TYPE_CHECKING:
    from fedunseen.experiment.run import Run

__all__ = ["write_report"]

NUMBERS = (
    ("zsl", "ZSL", "only unseen classes to choose from"),
    ("gzsl_unseen", "U", "unseen classes, all classes to choose from"),
    ("gzsl_seen", "S", "seen classes, all classes to choose from"),
    ("gzsl_harmonic", "H", "harmonic mean of U and S"),
)
TITLES = {
    "zsl": "ZSL accuracy",
    "gzsl_unseen": "U, unseen classes",
    "gzsl_seen": "S, seen classes",
    "gzsl_harmonic": "H, harmonic mean",
}
COLOURS = {"zsl": "orange", "gzsl_unseen": "orange", "gzsl_seen": "blue", "gzsl_harmonic": "green"}


def write_report(run: Run, path: Path | None = None) -> Path:
    """Write the report of a complete run: one HTML file that needs nothing else.

    Args:
        run: the run, of one seed or of several.
        path: where to; by default ``report.html`` in the run directory.

    Returns:
        Where it is.

    Raises:
        RunDirectoryError: what the run left behind is damaged.
    """
    few_shot = "few_shot" in run.result
    text = render("episodes.html", episodes_context(run)) if few_shot else render("report.html", _context(run))
    target = path if path is not None else run.path / "report.html"
    write_text(target, text)
    return target


def _context(run: Run) -> dict[str, Any]:
    """Return everything that the template names."""
    first = run.seeds[0] if run.seeds else run
    facts = Facts.of(first)
    tensors = facts.tensors
    return {
        "facts": facts,
        "experiment": run.manifest["experiment"],
        "means": run.result,
        "headline": _headline(run, facts),
        "choice": _choice(run, first),
        "seeds": _seeds(run, facts),
        "curves": _curves(first, facts),
        "losses": losses(first),
        "parties": parties(first),
        "holdings": holdings(facts),
        "coverage": coverage_section(tensors["client_counts"], run.space, client_names(facts)),
        "classes": _classes(facts) if "labels" in tensors else None,
        "similarity": _similarity(facts),
        "learnt": _learnt(facts),
        "embedding": _embedding(facts) if "embedding_model" in tensors else None,
        "generated": _generated(facts) if "generated_plane" in tensors else None,
        "theory": _theory(facts),
        "images": _images(facts) if "images" in tensors else None,
        "chosen": _chosen(first),
        "attacked": attack_section(first),
        "merging": merging_section(first.metrics, client_names(facts)),
        "travel": travel(facts),
        "technical": technical(run, first),
    }


def _headline(run: Run, facts: Facts) -> list[dict[str, Any]]:
    """Return the numbers at the top of the page."""
    shown = []
    for name, short, words in NUMBERS:
        shown.append(
            {
                "name": name,
                "short": short,
                "words": words,
                "value": run.result[name],
                "sd": run.result.get(f"{name}_sd"),
                "plain": run.result.get(f"uncalibrated_{name}"),
                "chance": facts.chance if name == "zsl" else None,
                "colour": COLOURS[name],
            }
        )
    return shown


def _choice(run: Run, first: Run) -> dict[str, Any]:
    """Say in plain words how round and calibration were chosen."""
    result, evaluation = first.result, run.manifest["experiment"]["evaluation"]
    factor = float(result["calibration_factor"])
    fixed, calibrated = "factor" in evaluation, bool(result["calibration_factor"])
    several = bool(run.seeds)
    which = "each seed's round" if several else f"round {result['selected_round']} of {result['rounds']}"
    calibration = "" if several else f" (the scores of seen classes lowered by {factor:.3g})"
    selection = result["selection"]
    both = f"{which} and calibration{calibration} were" if calibrated and not fixed else f"{which} was"
    if selection == "validation":
        words = (
            f"{both[0].upper()}{both[1:]} chosen on validation classes, which played the unseen ones in a run of "
            f"their own. {BLIND}"
        )
        label, honest = "Chosen on validation classes", True
    elif selection == "best-on-test":
        words = (
            f"{both[0].upper()}{both[1:]} chosen for scoring best on the very test samples that are reported "
            f"here. {FLATTERS}"
        )
        label, honest = "Not an honest choice: best on test", False
    else:
        words, label, honest = LAST, "Last round", True
    if fixed:
        words += f" The calibration factor {evaluation['factor']:g} was given in the experiment."
    elif not calibrated:
        words += " The generalised accuracies are not calibrated."
    if "gzsl_head" in result:  # of methods that generate features
        words += f" U and S are those of a classifier trained on {result['gzsl_head']}."
    return {"words": words, "label": label, "honest": honest, "calibrated": calibrated}


def _curves(run: Run, facts: Facts) -> dict[str, Any] | None:
    """Draw each accuracy of one run by round, with the spread of the clients' own models."""
    lines = run.metrics
    if not lines:
        return None
    x = axis(lines)
    drawn: dict[str, list[Curve]] = {}
    spread = any(len(line.get("clients", {}).get("zsl", [])) > 1 for line in lines)
    for name, _, _ in NUMBERS:
        low, mean, high = statistics.clients_band(lines, name)
        main = statistics.curve(lines, name)
        if not facts.merges:  # the main curve is the clients' mean
            drawn[name] = [Curve(main, "mean of clients", COLOURS[name], low, high)]
            continue
        drawn[name] = [Curve(main, "merged", COLOURS[name])]
        if spread:
            drawn[name].append(Curve(mean, "clients", "grey", low, high, dashed=True))
    top = upper_end([curve for curves in drawn.values() for curve in curves])
    charts = [
        figures.line_chart(
            curves,
            TITLES[name],
            x,
            top,
            unit="%",
            level=(f"guessing {facts.chance:.3g}%", facts.chance) if name == "zsl" else None,
            mark=run.result["selected_round"],
        )
        for name, curves in drawn.items()
    ]
    return {"charts": charts, "spread": spread}


def _seeds(run: Run, facts: Facts) -> dict[str, Any] | None:
    """Summarise a run of several seeds: a table, and mean curves with the spread over seeds."""
    if not run.seeds:
        return None
    rows = [{"seed": one.result["seed"], **one.result} for one in run.seeds]
    all_lines = [one.metrics for one in run.seeds]
    rounds = min(map(len, all_lines))
    x = axis(all_lines[0][:rounds])
    drawn = {}
    for name, _, _ in NUMBERS:
        each = np.array([statistics.curve(lines[:rounds], name) for lines in all_lines])
        low, mean, high = statistics.band(each.T.tolist())
        drawn[name] = Curve(mean, "mean of seeds", COLOURS[name], low, high)
    top = upper_end(list(drawn.values()))
    charts = [
        figures.line_chart(
            [curve],
            TITLES[name],
            x,
            top,
            unit="%",
            level=(f"guessing {facts.chance:.3g}%", facts.chance) if name == "zsl" else None,
        )
        for name, curve in drawn.items()
    ]
    return {"rows": rows, "charts": charts, "count": len(rows)}


def _classes(facts: Facts) -> dict[str, Any]:
    """Rank classes by accuracy, and say which unseen classes are taken for which."""
    tensors, count, unseen = facts.tensors, len(facts.names), facts.unseen
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
    lost = float(100 * (~np.isin(gzsl_answers[of_unseen], unseen)).mean()) if of_unseen.any() else 0.0
    seen = np.setdiff1d(np.flatnonzero(samples), unseen)
    seen = seen[np.argsort(gzsl[seen], kind="stable")]
    scored = [{"name": facts.names[c], "gzsl": float(gzsl[c])} for c in seen.tolist()]
    tested = unseen[samples[unseen] > 0]
    order = tested[statistics.leaf_order(tensors["similarity"][np.ix_(tested, tested)])]
    table = metrics.confusion(labels, zsl_answers, order)
    wrong = np.where(np.eye(len(table), dtype=bool), 0.0, table)
    worst = [divmod(int(i), len(table)) for i in np.argsort(wrong, axis=None)[::-1][:6]]
    return {
        "bars": bars[:LISTED],
        "more_bars": bars[LISTED:],
        "lost": lost,
        "seen": scored,
        "histogram": figures.histogram(gzsl[seen], "Seen classes by their accuracy", "accuracy %"),
        "confusion": figures.confusion_map(table, facts.of_classes(order)) if len(order) else None,
        "confused": [
            {"true": facts.names[order[i]], "answer": facts.names[order[j]], "share": float(wrong[i, j])}
            for i, j in worst
            if wrong[i, j] >= 0.5
        ],
    }


def _similarity(facts: Facts) -> dict[str, Any]:
    """Draw how alike classes are by their semantics, and by the model where there is one."""
    semantics, model = facts.tensors["similarity"], facts.tensors.get("model_similarity")
    order = statistics.leaf_order(semantics)
    block = np.ix_(order, order)
    names, marked = facts.of_classes(order), np.isin(order, facts.unseen)
    maps = [figures.similarity_map(semantics[block].astype(np.float64), names, marked, "By their semantics")]
    found: dict[str, Any] = {"maps": maps, "agreement": None, "among_unseen": None, "untested": False}
    if model is not None:
        maps.append(figures.similarity_map(model[block].astype(np.float64), names, marked, "By the model's scores"))
        some = np.ix_(facts.unseen, facts.unseen)
        for key, pair in (("agreement", (semantics, model)), ("among_unseen", (semantics[some], model[some]))):
            value = statistics.agreement(*pair)
            found[key] = None if np.isnan(value) else value
        found["untested"] = bool(np.isnan(model).any())
    return found


def _learnt(facts: Facts) -> dict[str, Any] | None:
    """Draw how well each class's mean predicted attributes fit every class, after some rounds, beside the semantics."""
    from fedunseen.experiment.directory import load_params

    found = {int(path.stem.partition("-")[2]): path for path in (facts.run.path / "similarity").glob("round-*.safet*")}
    if not found or not facts.merges:
        return None
    stored = {round: load_params(path) for round, path in sorted(found.items())}
    classes = next(iter(stored.values()))["classes"].numpy()  # those with test samples, at every round the same
    semantics = facts.tensors["similarity"][np.ix_(classes, classes)].astype(np.float64)
    order = statistics.leaf_order(semantics)
    block = np.ix_(order, order)
    maps = []
    for round, tensors in stored.items():
        values = tensors["compatibility"].double().numpy()
        agreement = statistics.agreement(semantics, (values + values.T) / 2)
        words = "agreement unknown" if np.isnan(agreement) else f"agreement {agreement:.2f}"
        maps.append(figures.small_map(statistics.row_scaled(values)[block], f"round {round}", words))
    maps.append(figures.small_map(semantics[block], "Γ", "the classes' semantics"))
    return {"maps": maps}


def _embedding(facts: Facts) -> dict[str, Any]:
    """Draw the t-SNE pictures of the unseen classes."""
    tensors, labels = facts.tensors, facts.tensors["embedding_labels"]
    classes, positions = np.unique(labels, return_inverse=True)
    names = facts.of_classes(classes)
    numbered, written = labelled(names)
    before, after = float(tensors["silhouettes"][1]), float(tensors["silhouettes"][0])
    charts = [
        figures.embedding_map(tensors[f"embedding_{name}"].astype(np.float64), positions, written, title)
        for name, title in (("inputs", "As they come in"), ("model", "As the model represents them"))
    ]
    return {
        "charts": charts,
        "before": before,
        "after": after,
        "samples": len(labels),
        "numbered": list(enumerate(names, 1)) if numbered else [],
    }


def _generated(facts: Facts) -> dict[str, Any]:
    """Draw generated and real features of the unseen classes in one plane (FZSL, Fig. 5)."""
    tensors = facts.tensors
    labels, made = tensors["generated_labels"].astype(np.int64), tensors["generated_kind"] == 1
    classes, positions = np.unique(labels, return_inverse=True)
    names = facts.of_classes(classes)
    numbered, written = labelled(names)
    accuracies = dict(zip(facts.unseen.tolist(), tensors["generated_accuracy"].astype(np.float64), strict=True))
    own = [float(accuracies.get(c, np.nan)) for c in classes.tolist()]
    plane = tensors["generated_plane"].astype(np.float64)
    return {
        "chart": figures.generated_map(plane, positions, made, written, "Generated and real features"),
        "made": int(made.sum()),
        "real": int((~made).sum()),
        "numbered": numbered,
        "classes": [
            {
                "name": name,
                "number": i + 1 if numbered else None,
                "hue": figures.hue(i),
                "accuracy": None if np.isnan(accuracy) else accuracy,
            }
            for i, (name, accuracy) in enumerate(zip(names, own, strict=True))
        ],
    }


def _theory(facts: Facts) -> dict[str, Any] | None:
    """Return the section on DistZSL's theory; None for a run that measured nothing of it."""
    try:
        stored = json.loads((facts.run.path / "theory.json").read_bytes())
    except (OSError, ValueError):
        return None
    return theory_section(stored, bool(facts.run.result["calibration_factor"])) if facts.merges else None


def _images(facts: Facts) -> dict[str, Any]:
    """Return the cards of the image grid."""
    images, labels = facts.tensors["images"], facts.tensors["image_labels"]
    cards = []
    for pixels, label, answers in zip(images, labels.tolist(), facts.tensors["image_answers"].tolist(), strict=True):
        cards.append(
            {
                "source": figures.image_source(pixels),
                "height": pixels.shape[0],
                "width": pixels.shape[1],
                "true": facts.names[label],
                "answers": [{"name": facts.names[c], "right": c == label} for c in answers[:3]],
                "right": answers[0] == label,
            }
        )
    return {"cards": cards, "right": sum(card["right"] for card in cards)}


def _chosen(run: Run) -> dict[str, Any] | None:
    """Return what was chosen on validation classes, if anything was."""
    chosen = run.result.get("chosen_on_validation")
    if not chosen:
        return None
    keys = list(chosen.get("settings", {}))
    tried = [
        {"values": [one["settings"][key] for key in keys], "won": one["settings"] == chosen["settings"], **one}
        for one in chosen.get("tried", [])
    ]
    last = chosen["round"] == run.result["rounds"] > 1
    charts = [chart for chart in (_selection_chart(run, keys), *_sensitivity(run, keys)) if chart]
    return {**chosen, "keys": keys, "tried": tried, "charts": charts, "last": last}


def _sensitivity(run: Run, keys: Sequence[str]) -> list[str]:
    """Draw, for each setting tried at several numbers, the accuracies over them, with the others as chosen."""
    chosen = run.result["chosen_on_validation"]
    charts = []
    for key in keys:
        tried = [
            one
            for one in chosen.get("tried", [])
            if all(one["settings"][other] == chosen["settings"][other] for other in keys if other != key)
        ]
        values = [one["settings"][key] for one in tried]
        if len(values) < 2 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            continue
        tried = [tried[i] for i in np.argsort(values, kind="stable")]
        ordered = [one["settings"][key] for one in tried]
        curves = [
            Curve(np.array([one[name] for one in tried], dtype=np.float64), label, COLOURS[name], dashed=dashed)
            for name, label, dashed in (
                ("gzsl_harmonic", "H", False),
                ("zsl", "ZSL", False),
                ("gzsl_unseen", "U", True),
                ("gzsl_seen", "S", True),
            )
        ]
        written = [f"{value:g}" for value in ordered]
        marked = ordered.index(chosen["settings"][key])
        charts.append(figures.value_chart(curves, f"Validation classes by {key}", written, key, marked))
    return charts


def _selection_chart(run: Run, keys: Sequence[str]) -> str | None:
    """Draw how each candidate did on validation classes, round by round."""
    from fedunseen.experiment.directory import RunDirectory

    chosen = run.result["chosen_on_validation"]
    criterion = run.manifest["experiment"]["evaluation"]["criterion"]
    name = "zsl" if criterion == "zsl" else "gzsl_harmonic"
    tried = chosen.get("tried", [])
    folders = [str(i) for i in range(len(tried))] if tried else [""]
    lines = {i: RunDirectory(run.path / "selection" / folder).metrics() for i, folder in enumerate(folders)}
    settings = [one["settings"] for one in tried] or [{}]
    best = settings.index(chosen["settings"]) if tried else 0
    # The chosen one is in front and carries the mark; of many others, those that came nearest to it.
    others = sorted((i for i in lines if i != best), key=lambda i: -tried[i][name])[: len(LINES) - 1]
    shown = [i for i in (best, *others) if lines[i]]
    if best not in shown:
        return None
    curves = []
    for colour, i in zip(LINES, shown, strict=False):
        label = ", ".join(f"{key.partition('.')[2]} {settings[i][key]}" for key in keys) or "chosen"
        curves.append(Curve(statistics.curve(lines[i], name), label, colour))
    title = f"{'ZSL' if name == 'zsl' else 'H'} on validation classes"
    return figures.line_chart(
        curves, title, axis(lines[best]), upper_end(curves), unit="%", mark=chosen["round"], legend=len(curves) > 1
    )
