"""The page of a few-shot run: how well new classes are told apart after a few examples, and beside what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedunseen import metrics
from fedunseen.evaluation.summary import Weak, weak_classes, weak_words
from fedunseen.report import statistics
from fedunseen.report.charts import Curve, Level, Scale, line_chart
from fedunseen.report.classes import most_confused
from fedunseen.report.data_distribution import holdings
from fedunseen.report.learning import losses
from fedunseen.report.maps import class_color, confusion_map, plane_map
from fedunseen.report.parts import (
    BLIND,
    FLATTERS,
    LAST,
    LINES,
    LISTED,
    Facts,
    Section,
    View,
    axis,
    chips,
    labelled,
    stopped,
    upper_end,
)
from fedunseen.report.summary import advice
from fedunseen.report.svg import image_source

if TYPE_CHECKING:
    from fedunseen.experiment.finished import Run

__all__ = ["PLANE", "VIEW", "half_width", "verdict"]

NUMBERS = (
    ("few_shot", "Few-shot", "orange"),
    ("few_shot_pixels", "Raw samples", ""),
    ("few_shot_random", "Untrained", ""),
    ("few_shot_base", "Training classes", "blue"),
)
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


def _lead(facts: Facts) -> dict[str, Any]:
    """Return the words of the first paragraph."""
    tree, space = facts.experiment, facts.run.space
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
        "rounds": facts.whole.result["rounds"],
        "examples": "one example" if shots == 1 else f"{shots} examples",
        "classes": f"{ways} classes that nobody had" if ways == unseen else f"{ways} of the {unseen} test classes",
        "model": "trained" if facts.pools else "merged",
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
    return float(metrics.student(seeds - 1) * result[f"{name}_sd"] / seeds**0.5)


def _headline(facts: Facts) -> list[dict[str, Any]]:
    """Return the numbers at the top of the page."""
    run, method = facts.whole, facts.experiment["method"]
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
            "spread": half_width(run.result, name),
            "beside": [
                ("guessing", facts.chance if name == "few_shot" else None),
                ("standard deviation", run.result.get(f"{name}_sd")),
            ],
            "color": color,
        }
        for name, short, color in NUMBERS
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


def _choice(facts: Facts) -> dict[str, Any]:
    """Say in plain words how the round was chosen."""
    result = facts.run.result
    which = "Each seed's round" if facts.whole.seeds else f"Round {result['selected_round']} of {result['rounds']}"
    words, label = LAST, "Last round."
    if result["selection"] == "validation":
        words = f"{which} was chosen on episodes of validation classes, which nobody trains on. {BLIND}"
        words += "" if facts.whole.seeds else stopped(result)
        label = "Chosen on validation classes."
    elif result["selection"] == "best-on-test":
        words = f"{which} was chosen for scoring best on some of the very test episodes reported here. {FLATTERS}"
        label = "Not an honest choice: best on test."
    words += f" Accuracy is the share of queries named right among the {facts.experiment['method']['ways']} classes of "
    words += "their episode, the mean over test episodes that every model and both baselines share."
    return {"label": label, "words": words, "css": "honest", "fine": result["selection"] != "best-on-test"}


def _watched(run: Run) -> str:
    """Say what the episodes after every round are of."""
    return str(run.metrics[-1].get("episodes_of", "test")) if run.metrics else "test"


def _accuracy_chart(run: Run, facts: Facts, curve: Curve, x: NDArray[np.float64], mark: float | None) -> str:
    """Draw few-shot accuracy by round, with what guessing and raw samples reach."""
    chance, pixels = facts.chance, float(run.result["few_shot_pixels"])
    of = "" if _watched(facts.run) == "test" else ", test classes"
    top = upper_end([curve, Curve(np.array([pixels, chance]), "")])
    return line_chart(
        [curve],
        "Few-shot accuracy" + ("" if not of else " on validation classes"),
        x,
        Scale(top, "%"),
        mark=mark,
        legend=True,
        levels=[
            Level(f"raw samples{of} {pixels:.1f}%", pixels, "blue"),
            Level(f"guessing {chance:.3g}%", chance, "grey"),
        ],
    )


def _curves(facts: Facts) -> dict[str, Any] | None:
    """Draw one run's accuracy by round, its accuracy in training and its losses."""
    run = facts.run
    lines = run.metrics
    if not lines:
        return None
    known = statistics.measured(lines, "few_shot")
    x, mean = axis(lines), statistics.curve(known, "few_shot")
    half = statistics.curve(known, "few_shot_ci95")
    label = "clients" if not facts.one_model else "trained" if facts.pools else "merged"
    curve = Curve(mean, label, "orange", np.maximum(mean - half, 0), np.minimum(mean + half, 100))
    charts = [_accuracy_chart(run, facts, curve, axis(known), run.result["selected_round"])]
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
        charts.append(line_chart(curves, title, x, Scale(upper_end(curves), "%"), legend=several))
    for stage in stages:
        own = {name: _stage(name)[1] for name in terms if _stage(name)[0] == stage and name not in training}
        said = _said(stage, stages)
        drawn = losses(run, own, "Losses by term, mean of clients" + (f", {said}" if said else ""))
        charts += [drawn] if drawn else []
    evaluation = run.manifest["experiment"]["evaluation"]
    count = evaluation["validation_episodes"]
    if evaluation["selection"] != "validation":  # the first of the test episodes
        count = min(count, evaluation["episodes"])
    words = f"After every round, {count} episodes "
    if _watched(run) == "validation":
        words += "of validation classes: other classes than those of the test, so that neither the headline number nor "
        words += "the dotted line for raw samples need lie on this curve's level."
    else:
        words += "of the test classes, the first of those that are reported."
    words += "" if facts.one_model else " Every client's model answers its share of them."
    words += f" Shaded: their 95{NO_BREAK}% interval."
    if len(charts) > 1:
        words += " Training episodes are drawn from the clients' own classes, and are measured while training goes on."
    return {"charts": charts, "legend": False, "spread": False, "words": words}


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


def _seeds(facts: Facts) -> dict[str, Any] | None:
    """Summarise a run of several seeds: a table, and the mean curve with the spread over seeds."""
    run = facts.whole
    if not run.seeds:
        return None
    shown = [(name, title) for name, title, _ in NUMBERS if name in run.result]
    rows = [
        {
            "seed": one.result["seed"],
            "cells": [*(_plus_minus(one.result, name) for name, _ in shown), one.result["selected_round"]],
        }
        for one in run.seeds
    ]
    all_lines = statistics.measured_by_all([one.metrics for one in run.seeds], "few_shot")
    each = np.array([statistics.curve(lines, "few_shot") for lines in all_lines])
    low, mean, high = statistics.band(each.T.tolist())
    curve = Curve(mean, "seeds", "orange", low, high)
    words = f"In a row, ± is half of the 95{NO_BREAK}% interval over that seed's episodes; each seed draws its own "
    words += "episodes, and deals the samples anew. Last row: mean and standard deviation over the seeds. Line: mean "
    words += "over the seeds after each round; shaded: lowest to highest seed."
    return {
        "rows": rows,
        "heads": [*(title.lower() for _, title in shown), "round"],
        "foot": "mean, sd",
        "means": [*(f"{run.result[name]:.1f}, {run.result[name + '_sd']:.1f}" for name, _ in shown), ""],
        "charts": [_accuracy_chart(run, facts, curve, axis(all_lines[0]), None)] if all_lines[0] else [],
        "words": words,
    }


def _plus_minus(result: Mapping[str, Any], name: str) -> str:
    half = half_width(result, name)
    return f"{result[name]:.1f}" + (f" ± {half:.1f}" if half is not None else "")


def _episode(facts: Facts) -> dict[str, Any] | None:
    """Return the rows of the first test episode: a class's examples, and its queries with what they were taken for."""
    tensors = facts.tensors
    if "query_images" not in tensors:
        return None
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
    return {"episode": {"rows": rows, "right": int(right.sum()), "count": right.size}}


def _picture(image: NDArray[np.float32]) -> dict[str, Any]:
    return {"source": image_source(image), "height": image.shape[0], "width": image.shape[1]}


def _classes(facts: Facts) -> dict[str, Any]:
    """Rank test classes by accuracy, and say which are taken for which."""
    if "labels" not in facts.tensors:
        return {"classes": None}
    ways, episodes = facts.experiment["method"]["ways"], facts.run.result["test_episodes"]
    labels, answers = (
        facts.tensors[name].astype(np.int64).reshape(episodes, ways, -1) for name in ("labels", "answers")
    )
    ids = np.unique(labels)
    table, together = metrics.episode_confusion(labels, answers, ids)
    accuracy, names = np.diag(table), facts.of_classes(ids)
    bars = [
        {"name": names[i], "one": float(accuracy[i]), "samples": int(together[i, i] * labels.shape[2])}
        for i in np.argsort(-accuracy, kind="stable").tolist()
    ]
    alike = np.nan_to_num((table + table.T) / 200)
    np.fill_diagonal(alike, 1.0)
    order = statistics.leaf_order(alike) if ways < len(ids) or len(ids) > 10 else np.arange(len(ids))
    whole = ways == len(ids)
    words = "Rows are true classes, columns answers, in percent"
    words += (
        "."
        if whole
        else (
            " of the row's queries in those episodes that have both classes; so rows need not add up to 100. Grey: never in "
            "one episode."
        )
    )
    if (order != np.arange(len(ids))).any():
        words += " Classes that are taken for each other stand side by side."
    written = [names[i] for i in order]
    found = {
        "bars": bars[:LISTED],
        "more_bars": bars[LISTED:],
        "kinds": ("one",),
        "of": "queries",
        "unseen": False,
        "seen": [],
        "together": not whole,
        "words": "Best class first: percent of its queries that are named right, over all test episodes. Nobody trained "
        "on any of these classes.",
        "confusion": confusion_map(table[np.ix_(order, order)], written) if len(ids) <= CONFUSED else None,
        "confusion_words": words,
        "confused": most_confused(np.where(together >= min(SHARED, episodes), table, 0.0), names),
    }
    return {"classes": found}


def _plane(facts: Facts) -> dict[str, Any] | None:
    """Draw the first test episode in the plane of two features, after some rounds (FedFSL, Fig. 6)."""
    from fedunseen.federation.run_directory import load_params

    stored = {int(path.stem.partition("-")[2]): path for path in (facts.run.path / "plane").glob("round-*.safetensors")}
    if not stored:
        return None
    maps: list[dict[str, Any]] = []
    names: list[str] = []
    numbered, count = False, 0
    for round, path in sorted(stored.items()):
        tensors = {name: value.numpy() for name, value in load_params(path).items()}
        classes = tensors["classes"].astype(np.int64)
        place = {int(c): n for n, c in enumerate(classes)}
        names = facts.of_classes(classes)
        numbered, written = labelled(names)
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
    found = {
        "maps": maps,
        "count": count,
        "classes": [
            {"name": name, "number": n + 1 if numbered else None, "color": class_color(n)}
            for n, name in enumerate(names)
        ],
    }
    return {"plane": found, "lead": _lead(facts)}


def _dealt(counts: NDArray[np.int64]) -> str:
    """Say how evenly classes are dealt: of a client's samples, how many are of the class that it has most of."""
    words = "The numbers are samples; those of every class stand under “By name”."
    if len(counts) == 1:
        return words
    held, samples = counts[counts.sum(axis=1) > 0], counts.sum(axis=1)
    low, high = int(samples.min()), int(samples.max())
    share = float((100 * held.max(axis=1) / held.sum(axis=1)).mean())
    even = 100 / max(int((counts.sum(axis=0) > 0).sum()), 1)
    return (
        f"{words} A client holds {low:,}{f' to {high:,}' if high > low else ''} of them; the class that it has most of "
        f"makes up {share:.0f}{NO_BREAK}% of them on average, where {even:.3g}{NO_BREAK}% would be even."
    )


def _header(facts: Facts) -> dict[str, Any]:
    """Return the first paragraph and the chips."""
    lead, method = _lead(facts), facts.experiment["method"]
    rounds, queries = lead["rounds"], method["queries"]
    words = f"{lead['who']} trained for {rounds} round{'s' if rounds != 1 else ''}. {lead['nobody']}. "
    whose = f"the {lead['model']} model"
    if not facts.one_model:
        words += "Every client kept its own model; all numbers are means over the clients. "
        whose = "a client's model"
    words += f"After {lead['examples']} of each of {lead['classes']}, {whose} names the right one"
    episodes = f"{method['ways']}-way {method['shots']}-shot, {queries} quer{'y' if queries == 1 else 'ies'} a class"
    first, *rest = chips(facts)
    shown = {"value": facts.whole.result["few_shot"], "of": "queries", "chance": f"{facts.chance:.3g}"}
    return {"lead": words, **shown, "chips": [first, ("episodes", episodes), *rest]}


def _short(facts: Facts) -> dict[str, Any]:
    """Return the summary for people who decide."""
    result, method = facts.whole.result, facts.experiment["method"]
    ways, examples = method["ways"], _lead(facts)["examples"]
    what = f"A model that learns {ways} new classes from {examples} of each, without any training."
    if not facts.one_model:
        what = f"A model for each client; each learns {ways} new classes from {examples} of each. Numbers are means."
    good = f"Of 100 new samples it names {result['few_shot']:.0f} right; guessing names {facts.chance:.3g}, and the "
    good += f"nearest example in raw samples, with nothing learnt, {result['few_shot_pixels']:.0f}."
    weak: list[Weak] = []
    words = []
    if "labels" in facts.tensors:
        labels, answers = (facts.tensors[name].astype(np.int64) for name in ("labels", "answers"))
        weak = weak_classes(facts.names, labels, answers)
        words = [weak_words(weak, len(np.unique(labels)), "test classes")]
    remedy = "Give more examples of each class (method.shots), the weak ones first."
    usage = "Use it: fedunseen predict RUN INPUT --support FOLDER, with a folder of examples for each new class."
    return {"what": what, "good": good, "weak": words, "next": advice(facts, weak, remedy, usage)}


def _numbers(facts: Facts) -> dict[str, Any]:
    """Return the numbers at the top, what they prove, and how the round was chosen."""
    run = facts.whole
    found = verdict(run.result, "seeds" if run.seeds else "episodes")
    words = f"{found['words']} {_interval_words(run)}"
    proven = {"id": "verdict", "css": "good", "fine": found["order"] > 0, "label": found["label"], "words": words}
    return {"headline": _headline(facts), "choices": [proven, _choice(facts)]}


def _holdings(facts: Facts) -> dict[str, Any] | None:
    """Return who holds which classes and how many samples; parties keep that to themselves."""
    if facts.parties:
        return None
    held = holdings(facts, f"{IDLE}: nobody holds them", True, f"nobody: {IDLE}")
    words = _dealt(facts.tensors["client_counts"])
    return {"title": "Who holds what", "holdings": held, "coverage": None, "words": words}


VIEW = View(
    header=_header,
    summary=_short,
    numbers=_numbers,
    seeds=_seeds,
    classes=_classes,
    samples=Section("episode", _episode),
    holdings=_holdings,
    curves=_curves,
)
PLANE = Section("plane", _plane)
