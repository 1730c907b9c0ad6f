"""Sections that only some runs have: unlabelled samples, changing classes, own models, features,
what was merged.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedunseen.evaluation.summary import listed
from fedunseen.experiment.traces import sentences
from fedunseen.federation.run_directory import stored_rounds
from fedunseen.pages.report import statistics
from fedunseen.pages.report.charts import Curve, Scale, line_chart
from fedunseen.pages.report.maps import class_map, hue, small_map
from fedunseen.pages.report.parts import (
    LINES,
    LISTED,
    Content,
    Facts,
    axis,
    client_names,
    labelled,
    upper_end,
)

ACCURACIES = {
    "zsl": "ZSL", "gzsl_unseen": "unseen classes", "gzsl_seen": "seen classes", "gzsl_harmonic": "harmonic mean",
}  # fmt: skip
OWN = {"held": "own classes", "zsl": "ZSL", "gzsl_harmonic": "H"}
EXAMPLES = (
    ("both", "description and examples", "orange"),
    ("examples", "examples alone", "blue"),
    ("nearest", "nearest mean of the examples", "grey"),
)
GROUPS = {"old": "blue", "new": "green", "unseen": "purple", "left": "grey"}
CHANGES = {
    "added": "{} new", "gained": "{} with a first holder", "corrected": "{} described again",
    "left": "{} without a holder",
}  # fmt: skip
LEAST = 0.05  # of the largest weight that an unseen class rests on: a smaller one is not named
SHOWN = 4  # names of classes in a line, and columns between the first and the last


def adapted(facts: Facts) -> Content:
    """Return what unlabelled samples changed: accuracies before and after, and how many samples
    each class got.
    """
    note = facts.run.result.get("adapted")
    if note is None:
        return None
    table = note["classes"]
    before = note.get("before", {})
    rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    unseen = sorted((row for row in rows if not row["seen"]), key=lambda row: -row["samples"])
    seen = [row for row in rows if row["seen"] and row.get("before") is not None]
    return {
        "note": note,
        "accuracies": [(words, before[key], facts.run.result[key]) for key, words in ACCURACIES.items() if key in before],
        "unseen": unseen,
        "most": max((row["samples"] for row in unseen), default=0) or 1,
        "total": sum(row["samples"] for row in unseen),
        "seen": sorted(seen, key=lambda row: row["after"] - row["before"]),
        "means": [float(np.mean([row[key] for row in seen])) for key in ("before", "after")] if seen else [],
    }  # fmt: skip


def own_models(facts: Facts) -> Content:
    """Return the accuracies of clients' own models: beside the merged one, or where each has
    nothing else.
    """
    personal = facts.run.result.get("personal")
    if not personal or not personal["clients"]:
        return None
    names = client_names(facts)
    kinds = [kind for kind in ("merged", "own") if kind in personal]
    heads = [
        f"{word}, {kind}" if len(kinds) > 1 else word for word in OWN.values() for kind in kinds
    ]
    columns = [personal[kind][name] for name in OWN for kind in kinds]
    rows = [
        {"name": names[client], "values": [column[i] for column in columns]}
        for i, client in enumerate(personal["clients"])
    ]
    measured = [[value for value in column if value is not None] for column in columns]
    means = [float(np.mean(values)) if values else None for values in measured]
    return {"columns": heads, "rows": rows, "means": means, "epochs": personal.get("epochs")}


def shots(facts: Facts) -> Content:
    """Draw the accuracy by examples of each class."""
    tensors = facts.tensors
    counts = tensors.get("curve_shots")
    if counts is None or len(counts) < 2:
        return None
    curves = []
    rows = []
    for kind, name, color in EXAMPLES:
        values = tensors[f"curve_{kind}"]
        mean = values.mean(axis=1)
        spread = values.std(axis=1, ddof=1)
        curves.append(Curve(mean, name, color, mean - spread, mean + spread))
        written = [
            f"{m:.1f}" + (f" ± {sd:.1f}" if sd > 0 else "")
            for m, sd in zip(mean, spread, strict=True)
        ]
        rows.append(
            (name, ["–" if np.isnan(m) else words for m, words in zip(mean, written, strict=True)])
        )
    chart = line_chart(
        curves, "ZSL accuracy", counts, Scale(unit="%"), "examples of each class", legend=True
    )
    draws = tensors["curve_both"].shape[1]
    return {"chart": chart, "rows": rows, "shots": [int(k) for k in counts], "draws": draws}


def prototypes(facts: Facts) -> Content:
    """List the unseen classes with their uncertainty and the classes that they rest on."""
    deviation = facts.tensors.get("prototype_deviation")
    if deviation is None:
        return None
    names = facts.run.space.names
    weights = facts.tensors["support_weights"]
    classes = facts.tensors["support_classes"].astype(np.int64)
    unseen = [c for c in facts.unseen.tolist() if not np.isnan(deviation[c])]
    rows = [
        {
            "name": names[c],
            "deviation": float(deviation[c]),
            "support": [
                (names[o], float(w))
                for o, w in zip(classes[c], weights[c], strict=True)
                if abs(w) >= LEAST * np.abs(weights[c]).max() > 0
            ],
        }
        for c in sorted(unseen, key=lambda c: -float(deviation[c]))[:LISTED]
    ]
    return {"rows": rows}


def later(facts: Facts) -> Content:
    """Return what the model has learned and forgotten since."""
    learnt, forgotten = (facts.whole.manifest.get(key, []) for key in ("learnt", "forgotten"))
    stays = sentences(facts.whole.result.get("stays", []))
    shown = [
        f"{name} ({count})"
        for name, count in facts.run.result.get("shown", {}).items()
        if name not in learnt
    ]
    changes = {"learnt": learnt, "shown": shown, "forgotten": forgotten, "stays": stays}
    changes["effect"] = facts.run.result.get("learn_effect", {}).get("text", "")
    return changes if learnt or shown or forgotten else None


def growing(facts: Facts) -> Content:
    """Draw the accuracies of the groups of classes, if the class space grew."""
    lines = facts.run.metrics
    if not lines or "stages" not in lines[-1]:
        return None
    stages = [line.get("stages", {}) for line in lines]
    names = list(dict.fromkeys(name for stage in stages for name in stage))
    cohorts = sorted(
        (name for name in names if name not in GROUPS),
        key=lambda name: int(name.rpartition(" ")[2]),
    )
    charts = []
    if len(lines) > 1:
        groups = [
            Curve(statistics.curve(stages, name), name, GROUPS[name])
            for name in GROUPS
            if name in names
        ]
        since = [
            Curve(
                statistics.curve(stages, name), name, LINES[i % len(LINES)], dashed=i >= len(LINES)
            )
            for i, name in enumerate(cohorts)
        ]
        top = upper_end([*groups, *since])
        charts = [
            line_chart(curves, title, axis(lines), Scale(top, "%"), legend=True)
            for curves, title in (
                (groups, "Old, new and unseen classes"),
                (since, "Classes by when they came"),
            )
            if curves
        ]
    changed = [i for i, line in enumerate(lines) if i == 0 or line["space"]["since"] == i + 1]
    columns = sorted({*changed[-SHOWN:], len(lines) - 1})
    forgotten = facts.run.result.get("forgetting", {})
    rows = [
        {
            "name": name,
            "values": [stages[i].get(name) for i in columns],
            "forgotten": forgotten.get(name),
        }
        for name in [*(name for name in GROUPS if name in names), *cohorts]
    ]
    spaces = [(i, lines[i]["space"]) for i in changed]
    events = [{"round": i + 1, "words": _changes(space, i), **{k: space[k] for k in ("known", "unseen")}}
              for i, space in spaces]  # fmt: skip
    return {"charts": charts, "rounds": [i + 1 for i in columns], "rows": rows, "events": events}


def _changes(space: dict[str, Any], round: int) -> str:
    """Return what changed in a round, in words."""
    parts = []
    for key, words in CHANGES.items():
        names = space.get(key, [])
        if key == "gained":  # of those that were known before
            names = [name for name in names if name not in space.get("added", [])]
        if names:
            parts.append(f"{words.format(len(names))} ({listed(names, SHOWN)})")
    return "; ".join(parts) or ("the start" if not round else "no change")


def learnt(facts: Facts) -> Content:
    """Draw how well each class's mean predicted attributes fit every class, after some rounds,
    beside the semantics.
    """
    stored = stored_rounds(facts.run.path / "similarity")
    if not stored or not facts.one_model:
        return None
    classes = next(iter(stored.values()))[
        "classes"
    ]  # those with test samples, at every round the same
    semantics = facts.tensors["similarity"][np.ix_(classes, classes)].astype(np.float64)
    order = statistics.leaf_order(semantics)
    block = np.ix_(order, order)
    maps = []
    for round, tensors in stored.items():
        values = tensors["compatibility"].astype(np.float64)
        agreement = statistics.agreement(semantics, (values + values.T) / 2)
        words = "agreement unknown" if np.isnan(agreement) else f"agreement {agreement:.2f}"
        maps.append(small_map(statistics.row_scaled(values)[block], f"round {round}", words))
    maps.append(small_map(semantics[block], "Γ", "the classes' semantics"))
    return {"maps": maps}


def embedding(facts: Facts) -> Content:
    """Draw the unseen classes in the plane."""
    if "embedding_model" not in facts.tensors:
        return None
    tensors = facts.tensors
    labels = facts.tensors["embedding_labels"]
    classes, positions = np.unique(labels, return_inverse=True)
    names = facts.of_classes(classes)
    numbered, written = labelled(names)
    before = float(tensors["silhouettes"][1])
    after = float(tensors["silhouettes"][0])
    planes = {name: tensors[f"embedding_{name}"].astype(np.float64) for name in ("inputs", "model")}
    titles = {"inputs": "As they come in", "model": "As the model represents them"}
    if np.array_equal(planes["inputs"], planes["model"]):  # a method on the features themselves
        del planes["model"]
    charts = [class_map(plane, positions, written, titles[name]) for name, plane in planes.items()]
    return {
        "charts": charts,
        "before": before,
        "after": after,
        "samples": len(labels),
        "kind": _projection(facts),
        "numbered": list(enumerate(names, 1)) if numbered else [],
    }


def _projection(facts: Facts) -> str:
    """Return the name of the projection that ``evaluation.embedding`` asked for."""
    tsne = facts.run.manifest["experiment"]["evaluation"].get("embedding") == "tsne"
    return "t-SNE" if tsne else "First two principal components"


def generated(facts: Facts) -> Content:
    """Draw generated and real features of the unseen classes in one plane (FZSL, Fig. 5)."""
    tensors = facts.tensors
    if "generated_plane" not in tensors:
        return None
    labels = tensors["generated_labels"].astype(np.int64)
    is_generated = tensors["generated_kind"] == 1
    classes, positions = np.unique(labels, return_inverse=True)
    names = facts.of_classes(classes)
    numbered, written = labelled(names)
    accuracies = dict(
        zip(facts.unseen.tolist(), tensors["generated_accuracy"].astype(np.float64), strict=True)
    )
    class_accuracies = [float(accuracies.get(c, np.nan)) for c in classes.tolist()]
    plane = tensors["generated_plane"].astype(np.float64)
    return {
        "chart": class_map(plane, positions, written, "Generated and real features", is_generated),
        "kind": _projection(facts),
        "made": int(is_generated.sum()),
        "real": int((~is_generated).sum()),
        "numbered": numbered,
        "classes": [
            {"name": name, "number": i + 1 if numbered else None, "hue": hue(i),
             "accuracy": None if np.isnan(accuracy) else accuracy}
            for i, (name, accuracy) in enumerate(zip(names, class_accuracies, strict=True))
        ],
    }  # fmt: skip


def influence(facts: Facts) -> Content:
    """Return how far each client moves the means of others' classes; None where no class is
    shared.
    """
    influence = facts.run.result.get("influence")
    if not influence or not influence["clients"]:
        return None
    clients = client_names(facts)
    conspicuous = {client["client"] for client in influence["conspicuous"]}
    rows = [
        {
            **client,
            "name": clients[client["client"]],
            "conspicuous": client["client"] in conspicuous,
            "most": [
                (facts.names[c], moved, ratio)
                for c, moved, ratio in zip(
                    client["classes"], client["moved"], client["ratio"], strict=True
                )
            ][:SHOWN],
        }
        for client in influence["clients"]
    ]
    return {"rows": rows, "conspicuous": bool(conspicuous)}


def merging(facts: Facts) -> Content:
    """Return what the page says of merging; None for a run without defence, private merging or lost
    replies.
    """
    return merging_section(facts.run.metrics, client_names(facts))


def merging_section(
    lines: Sequence[Mapping[str, Any]], clients: Sequence[str]
) -> dict[str, Any] | None:
    """Return the same of lines of metrics and the clients' names."""
    defended = [line for line in lines if "defence" in line]
    private = [line for line in lines if "privacy" in line]
    lost = [
        f"{clients[int(client)]} in round {line['round']} ({why})"
        for line in lines
        for client, why in line.get("dropped", {}).items()
    ]
    if not (defended or private or lost):
        return None
    return {
        "defence": _defence(defended, clients) if defended else None,
        "privacy": _privacy(private) if private else None,
        "lost": listed(lost, 20),
    }


def _defence(lines: Sequence[Mapping[str, Any]], clients: Sequence[str]) -> dict[str, Any]:
    rows = []
    for k, client in enumerate(clients):
        said = [(line["round"], line["defence"], line["defence"]["clients"].index(k)) for line in lines
                if k in line["defence"]["clients"]]  # fmt: skip
        kept = [defence["kept"][i] for _, defence, i in said]
        lengths = [defence["norms"][i] for _, defence, i in said if defence["norms"][i] is not None]
        why: dict[str, list[int]] = {}
        for round, defence, _ in said:
            if reason := defence["dropped"].get(str(k)):
                why.setdefault(reason, []).append(round)
        reasons = "; ".join(f"{reason} ({_rounds(of)})" for reason, of in why.items())
        out = sum(not part for part in kept)
        shortened = sum(0 < part < 1 for part in kept)
        row = {
            "client": client,
            "replies": len(said),
            "out": out,
            "shortened": shortened,
            "why": reasons,
        }
        rows.append({**row, "length": float(np.mean(lengths)) if lengths else None})
    x = axis(lines)
    norms = [[v for v in line["defence"]["norms"] if v is not None] or [np.nan] for line in lines]
    middle, high = (
        np.array([of(values) for values in norms], dtype=np.float64) for of in (np.median, np.max)
    )
    curves = [Curve(high, "longest", "orange"), Curve(middle, "median", "blue")]
    return {
        "name": lines[0]["defence"]["name"],
        "rows": rows,
        **{count: sum(row[count] for row in rows) for count in ("replies", "out", "shortened")},
        "nothing": [line["round"] for line in lines if not line["defence"]["merged"]],
        "chart": line_chart(curves, "Lengths of the updates as they came", x, legend=True),
    }


def _rounds(rounds: Sequence[int]) -> str:
    """Write rounds, runs of them short."""
    parts: list[list[int]] = []
    for round in rounds:
        if parts and round == parts[-1][1] + 1:
            parts[-1][1] = round
        else:
            parts.append([round, round])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _privacy(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    spent = [line["privacy"] for line in lines]
    x = axis(lines)
    curve = Curve(
        np.array([defence["epsilon"] for defence in spent], dtype=np.float64), "epsilon", "purple"
    )
    updates = sum(len(line["participants"]) for line in lines)
    has_clipping = "clipped" in spent[-1]
    clipped = (
        100 * sum(line["clipped"] for line in spent) / max(updates, 1) if has_clipping else None
    )
    return {
        **spent[-1],
        "rounds": len(lines),
        "clipped": clipped,
        "chart": line_chart([curve], "epsilon spent", x),
    }
