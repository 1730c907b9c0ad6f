"""What gradients gave away, as one HTML page: sources beside what was recovered of them (FZSL, Fig.
4), and numbers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedunseen.core.files import write_text
from fedunseen.pages.report.parts import paragraphs, render
from fedunseen.pages.report.reproducibility import shown_command
from fedunseen.pages.report.svg import image_source, to_rows

Facts = Mapping[str, Any]

TITLES = {"analytic": "closed form", "dlg": "DLG", "cosine": "cosine"}
NAMES = {"analytic": "the closed form", "dlg": "DLG", "cosine": "the cosine attack"}
GUESSES = {
    "average": "no gradient: the average",
    "random class": "no gradient: a class's mean, drawn at random",
}


def write_leakage_report(facts: Facts, tensors: Mapping[str, Tensor], path: Path) -> list[str]:
    """Write the page of an attack to ``path``; return its conclusions."""
    classifier = facts["classifier"]
    phases = facts["method"]["phases"]
    context = {
        "facts": facts,
        "conclusions": (said := conclusions(facts)),
        "left_out": classifier.get("left_out"),
        "strips": _strips(facts, tensors) if "attacks" in classifier else [],
        "classifier_rows": _rows(classifier["attacks"], classifier["guesses"])
        if "attacks" in classifier
        else [],
        "phases": [_phase(facts, name, phase, tensors) for name, phase in phases.items()],
        "noun": _noun(facts),
        "sums": _sums(facts),
        "command": shown_command(facts),
    }
    write_text(path, render("leakage.html", context))
    return said


def conclusions(facts: Facts) -> list[str]:
    """Return what the numbers of ``leakage.json`` mean in plain words, a sentence or two for each
    thing attacked.
    """
    phases = [phase for phase in facts["method"]["phases"].values() if phase["travels"]]
    context = {
        "facts": facts,
        "names": NAMES,
        "noun": _noun(facts),
        "tried": _tried,
        # the attack that recovers most, at equality with the least error
        "best_of": lambda attacks: min(
            attacks.items(), key=lambda item: (-item[1]["recovered"], item[1]["mse"])
        ),
        "fruitless": lambda attacks: [
            NAMES[name] for name, row in attacks.items() if not row["recovered"]
        ],
        "input_recovered": any(
            row["recovered"] for p in phases for row in _tried(p["attacks"], "inputs").values()
        ),
        "sums": [
            (phase, best)
            for phase, attacks in _attacked_sums(facts)
            if (best := _best_of_sums(attacks))
        ],
    }
    return paragraphs("leakage_findings", context)


def _tried(attacks: Facts, kind: str) -> Facts:
    """Return by attack what it recovers of a kind, ``inputs`` or ``attributes``, or the classes
    that it names.
    """
    return {name: attack[kind] for name, attack in attacks.items() if kind in attack}


def _attacked_sums(facts: Facts) -> list[tuple[str, Facts]]:
    """Return whose sums were attacked, and the rows of each attack: a phase's, or "" for the
    classifier's.
    """
    sums = facts.get("sums", {})
    classifier = [("", sums["classifier"])] if "classifier" in sums else []
    return [*classifier, *sums.get("phases", {}).items()]


def _seen(parties: int) -> str:
    return "one update" if parties == 1 else f"the sum of {parties}"


def _best_of_sums(attacks: Facts) -> list[dict[str, Any]]:
    """Return how many samples the best attack recovers from each sum."""
    recovered: dict[int, list[tuple[int, int]]] = {}
    for row in (row for rows in attacks.values() for row in rows if "inputs" in row):
        recovered.setdefault(row["parties"], []).append(
            (row["inputs"]["recovered"], len(row["inputs"]["samples"]))
        )
    best = [(parties, *max(recovered[parties])) for parties in sorted(recovered)]
    return [
        {"seen": _seen(n), "is_sum": n > 1, "recovered": samples, "count": count}
        for n, samples, count in best
    ]


def _sums(facts: Facts) -> list[dict[str, Any]]:
    """Return what the page shows of sums: a table for each thing of the classifier and of each
    phase.
    """
    shown = []
    method = facts["method"]
    for phase, attacks in _attacked_sums(facts):
        for kind in ("inputs", "attributes"):
            rows = [
                {
                    "parties": row["parties"],
                    "seen": _seen(row["parties"]),
                    "name": TITLES[name],
                    **row[kind],
                }
                for name, attacked in attacks.items()
                for row in attacked
                if kind in row
            ]
            noun = _noun(facts) if phase else "image"
            content = f"The {noun}s" if kind == "inputs" else "The attributes of their classes"
            title = content + (f": phase {phase}" if phase else ": a classifier that sees them")
            if rows:
                rows.sort(key=lambda row: row["parties"])
                shown.append(
                    {"title": title, "rows": rows, "unit": method["unit"][kind] if phase else True}
                )
    return shown


def _noun(facts: Facts) -> str:
    return "image" if facts["method"]["pixels"] else "feature vector"


def _rows(attacks: Facts, guesses: Facts) -> list[dict[str, Any]]:
    """Return the rows of a table: what each attack recovers, below it what guesses reach."""
    rows = [
        {"labels": None, **attack, "name": TITLES[key], "muted": False}
        for key, attack in attacks.items()
    ]
    return rows + [
        {"labels": None, **guesses[key], "name": words, "muted": True}
        for key, words in GUESSES.items()
    ]


def _phase(facts: Facts, name: str, phase: Facts, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return what the page shows of a phase: a table for each thing that may be recovered, and
    pictures.
    """
    method = facts["method"]
    titles = {"inputs": f"The {_noun(facts)}", "attributes": "The attributes of its class"}
    tables = []
    for kind, title in titles.items():
        if tried := _tried(phase["attacks"], kind):
            guesses = method["guesses"][kind]
            labels = _tried(phase["attacks"], "labels") if kind == "inputs" else {}
            rows = _rows(
                {key: {**row, "labels": labels.get(key)} for key, row in tried.items()}, guesses
            )
            table = {"title": title, "rows": rows, "unit": method["unit"][kind]}
            table |= {
                "source": guesses["source"]["matches"],
                "depends": phase["depends"].get(kind, True),
            }
            tables.append({**table, "labelled": any(row["labels"] is not None for row in rows)})
    pictures = []
    if method["pixels"]:
        attacks = [key for key in phase["attacks"] if f"method.{name}.{key}.inputs" in tensors]
        for i, sample in enumerate(facts["samples"] if attacks else []):
            columns = [
                ("source", "inputs"),
                *((TITLES[key], f"{name}.{key}.inputs") for key in attacks),
            ]
            drawn = [
                (title, _picture(tensors[f"method.{key}"][i].reshape(method["pixels"])))
                for title, key in columns
            ]
            pictures.append({"class": sample["class"], "cells": drawn})
    modules = sorted({item.split(".")[0] for item in phase["travels"]})
    return {"name": name, "modules": modules, "tables": tables, "pictures": pictures, **phase}


def _strips(facts: Facts, tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Return Fig. 4: for each search the sources and the dummy images on the way."""
    strips = []
    for name, attack in facts["classifier"]["attacks"].items():
        rows = []
        for i, sample in enumerate(facts["samples"]):
            source = tensors["classifier.source"][i]
            way = tensors[f"classifier.{name}"][i][:-1]
            cells = [
                _picture(image)
                for image in (source, *way, tensors[f"classifier.{name}.recovered"][i])
            ]
            numbers = {key: attack["images"][i][key] for key in ("mse", "psnr", "iterations")}
            rows.append({"class": sample["class"], "cells": cells, **numbers})
        heads = ["source", *(str(at) for at in attack["iterations"][:-1]), "recovered"]
        strips.append(
            {
                "title": TITLES[name],
                "heads": heads,
                "rows": rows,
                "shape": facts["classifier"]["pixels"],
            }
        )
    return strips


def _picture(image: Tensor) -> str:
    """Return the address of an image (channels, height, width) in [0, 1]."""
    return image_source(to_rows(image.detach().float().cpu().numpy()))
