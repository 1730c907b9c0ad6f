"""What gradients gave away, as one HTML page: sources beside what was recovered of them (FZSL, Fig. 4), and numbers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedunseen.core.files import write_text
from fedunseen.core.toml import toml_text
from fedunseen.report import figures, reproduce
from fedunseen.report.parts import render

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["conclusions", "write_leakage_report"]

Facts = Mapping[str, Any]

TITLES = {"analytic": "closed form", "dlg": "DLG", "cosine": "cosine"}
SAID = {"analytic": "the closed form", "dlg": "DLG", "cosine": "the cosine attack"}
SEEN = {"update": "one update", "sum": "the sum of {}", "masked elements": "one party's masked elements"}
GUESSES = {"average": "no gradient: the average", "random class": "no gradient: a class's mean, drawn at random"}


def write_leakage_report(facts: Facts, tensors: Mapping[str, Tensor], path: Path) -> Path:
    """Write the page of an attack.

    Args:
        facts: what ``leakage.json`` holds.
        tensors: what ``leakage.safetensors`` holds.
        path: where to.
    """
    classifier, method = facts["classifier"], facts["method"]
    context = {
        "facts": facts,
        "conclusions": conclusions(facts),
        "left_out": classifier.get("left_out"),
        "strips": [] if "left_out" in classifier else _strips(facts, tensors),
        "classifier_rows": [] if "left_out" in classifier else _classifier_rows(classifier),
        "phases": [_phase(facts, name, phase, tensors) for name, phase in method["phases"].items()],
        "noun": _noun(facts),
        "sums": _sums(facts),
        "command": _command(facts),
    }
    write_text(path, render("leakage.html", context))
    return path


def conclusions(facts: Facts) -> list[str]:
    """Say in plain words what the numbers of ``leakage.json`` mean, a sentence or two for each thing attacked."""
    said = []
    classifier, method = facts["classifier"], facts["method"]
    count, name = len(facts["samples"]), method["method"]
    if "left_out" in classifier:
        said.append(f"The classifier that sees images is left out: {classifier['left_out']}.")
    else:
        attack, best = _best(classifier["attacks"], None)
        told = f"{attack} recovers {best['recovered']} of {count} images (mean MSE {best['mse']:.2g}, "
        told += f"PSNR {best['psnr']:.1f} dB; guessing the average image: {_blind(classifier['guesses'])['mse']:.2g})."
        said.append(f"A classifier that sees images {_gives(best['recovered'], count, 'them away')}: {told}")
    for phase, found in method["phases"].items():
        if not found["travels"]:
            said.append(f"Nothing of {name}'s {phase} travels, so that nobody sees its gradient.")
            continue
        said.append(_of_sample(facts, phase, found, count))
        if method["generates"]:
            said.append(_of_class(facts, phase, found, count))
        elif any("labels" in attack for attack in found["attacks"].values()):
            attack, right = max(
                ((SAID[k], v["labels"]) for k, v in found["attacks"].items() if "labels" in v), key=lambda one: one[1]
            )
            said.append(
                f"It gives away the class of {right} of {count} ({attack}), and with it its public description."
                if right
                else f"No attack names the class of any of the {count}."
            )
    if method["generates"]:
        said.append(_claim(facts))
    for title, attacks in _attacked_sums(facts):
        said += _of_sums(title, attacks, _noun(facts) if title else "image")
    return said


def _attacked_sums(facts: Facts) -> list[tuple[str, Facts]]:
    """Return whose sums were attacked, and the rows of each attack: a phase's, or "" for the classifier's."""
    sums = facts.get("sums", {})
    classifier = [("", sums["classifier"])] if "classifier" in sums else []
    return [*classifier, *sums.get("phases", {}).items()]


def _of_sums(phase: str, told: Facts, noun: str) -> list[str]:
    """Say how many samples the best attack on each sum recovers."""
    best: dict[tuple[str, int], tuple[int, int]] = {}
    for row in (row for rows in told.values() for row in rows if "inputs" in row):
        found = row["inputs"]["recovered"], len(row["inputs"]["samples"])
        at = row["seen"], row["parties"]
        best[at] = max(best.get(at, found), found)
    if not best:
        return []
    order = sorted(best, key=lambda at: (list(SEEN).index(at[0]), at[1]))
    of = (f"{best[at][0]} of {best[at][1]} from {SEEN[at[0]].format(at[1])}" for at in order)
    words = f"Where the coordinator sees sums, the best attack on {f'phase {phase}' if phase else 'the classifier'} "
    words += f"recovers these {noun}s: {', '.join(of)}."
    if any(got for (seen, _), (got, _) in best.items() if seen == "sum"):
        words += " A sum hides whose they are, and not what they are."
    return [words]


def _sums(facts: Facts) -> list[dict[str, Any]]:
    """Return what the page shows of sums: a table for each thing of the classifier and of each phase."""
    shown = []
    method = facts["method"]
    for phase, told in _attacked_sums(facts):
        for kind in ("inputs", "attributes"):
            rows = [
                {
                    "seen": SEEN[row["seen"]].format(row["parties"]),
                    "order": (list(SEEN).index(row["seen"]), row["parties"]),
                    "count": len(row[kind]["samples"]),
                    "name": TITLES[name],
                    **_numbers(row[kind]),
                }
                for name, found in told.items()
                for row in found
                if kind in row
            ]
            noun = _noun(facts) if phase else "image"
            what = f"The {noun}s" if kind == "inputs" else "The attributes of their classes"
            title = what + (f": phase {phase}" if phase else ": a classifier that sees them")
            if rows:
                rows.sort(key=lambda row: row["order"])
                shown.append({"title": title, "rows": rows, "unit": method["unit"][kind] if phase else True})
    return shown


def _of_sample(facts: Facts, phase: str, found: Facts, count: int) -> str:
    noun, guesses = _noun(facts), facts["method"]["guesses"]["inputs"]
    subject = f"The gradient of {facts['method']['method']}'s {phase} phase"
    if not found["depends"]["inputs"]:
        words = f"{subject} does not depend on the {noun} at all: its derivative by it is exactly zero."
        searched = {k: v for k, v in found["attacks"].items() if "inputs" in v}
        if searched:
            attack, best = _best(searched, "inputs")
            words += f" What {attack} returns for it is no better than a guess: MSE {best['mse']:.2g}, "
            words += f"the average has {_blind(guesses)['mse']:.2g}."
        return words
    tried = {k: v for k, v in found["attacks"].items() if "inputs" in v}
    if not tried:
        return f"{subject} depends on the {noun}; no attack that is tried here applies to it."
    attack, best = _best(tried, "inputs")
    words = f"{subject} {_gives(best['recovered'], count, f'the {noun} away')}: the best attack, {attack}, recovers "
    words += f"{best['recovered']} of {count} (mean MSE {best['mse']:.2g}; guessing the average: "
    words += f"{_blind(guesses)['mse']:.2g})."
    failed = [SAID[k] for k, v in tried.items() if not v["inputs"]["recovered"]]
    if best["recovered"] and failed:
        recover = "recovers" if len(failed) == 1 else "recover"
        words += f" {_capital(' and '.join(failed))} {recover} none: a search that fails proves nothing."
    return words


def _of_class(facts: Facts, phase: str, found: Facts, count: int) -> str:
    if not found["depends"]["attributes"]:
        return (
            "It does not depend on the class's attributes either."
            if not found["depends"]["inputs"]
            else ("It does not depend on the class's attributes.")
        )
    tried = {k: v for k, v in found["attacks"].items() if "attributes" in v}
    if not tried:
        return "It depends on the class's attributes; no attack that is tried here applies to it."
    attack, best = _best(tried, "attributes")
    return (
        f"It {_gives(best['recovered'], count, 'the attributes of the class away')}: {attack} recovers "
        f"{best['recovered']} of {count} (mean MSE {best['mse']:.2g}); for {best['matches']} of {count} the nearest "
        "description names the right class."
    )


def _claim(facts: Facts) -> str:
    """Compare FZSL's claim with the numbers."""
    phases = [phase for phase in facts["method"]["phases"].values() if phase["travels"]]
    noun = _noun(facts)
    claim = "FZSL's claim that only the attribute vector can be recovered"
    if not any(phase["depends"]["inputs"] for phase in phases):
        return f"{claim} holds for what travels here: no {noun} enters it."
    recovered = max(
        (v["inputs"]["recovered"] for p in phases for v in p["attacks"].values() if "inputs" in v), default=0
    )
    if recovered:
        return f"{claim} does not hold for what travels here: the {noun} itself is recovered."
    return f"{claim} is not shown by what travels here: it depends on the {noun}, though no attack found it."


def _best(attacks: Facts, kind: str | None) -> tuple[str, Facts]:
    """Return title and numbers of the attack that recovers most, at equality with the least error."""
    told = {name: attack if kind is None else attack[kind] for name, attack in attacks.items()}
    name = min(told, key=lambda one: (-told[one]["recovered"], told[one]["mse"]))
    return SAID[name], told[name]


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _blind(guesses: Facts) -> Facts:
    blind: Facts = guesses["average"]
    return blind


def _gives(recovered: int, count: int, what: str) -> str:
    if recovered == count:
        return f"gives {what}"
    return f"gives {what} in part" if recovered else f"does not give {what}"


def _noun(facts: Facts) -> str:
    return "image" if facts["method"]["pixels"] else "feature vector"


def _classifier_rows(classifier: Facts) -> list[dict[str, Any]]:
    attacks = [
        {"name": TITLES[name], "labels": attack["labels"], **_numbers(attack)}
        for name, attack in classifier["attacks"].items()
    ]
    return [*attacks, *_guess_rows(classifier["guesses"])]


def _guess_rows(guesses: Facts) -> list[dict[str, Any]]:
    return [{"name": words, "labels": None, "muted": True, **_numbers(guesses[key])} for key, words in GUESSES.items()]


def _numbers(summary: Facts) -> dict[str, Any]:
    names = ("mse", "relative", "cosine", "matches", "recovered")
    return {"psnr": summary.get("psnr"), "muted": False, **{name: summary[name] for name in names}}


def _phase(facts: Facts, name: str, phase: Facts, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return what the page shows of a phase: a table for each thing that may be recovered, and pictures."""
    method = facts["method"]
    titles = {"inputs": f"The {_noun(facts)}", "attributes": "The attributes of its class"}
    tables = []
    for kind, title in titles.items():
        rows = [
            {
                "name": TITLES[key],
                "labels": attack.get("labels") if kind == "inputs" else None,
                **_numbers(attack[kind]),
            }
            for key, attack in phase["attacks"].items()
            if kind in attack
        ]
        if rows:
            guesses = method["guesses"][kind]
            tables.append(
                {
                    "title": title,
                    "rows": [*rows, *_guess_rows(guesses)],
                    "unit": method["unit"][kind],
                    "source": guesses["source"]["matches"],
                    "depends": phase["depends"].get(kind, True),
                    "labelled": any(row["labels"] is not None for row in rows),
                }
            )
    pictures = []
    if method["pixels"]:
        attacks = [key for key in phase["attacks"] if f"method.{name}.{key}.inputs" in tensors]
        for i, sample in enumerate(facts["samples"] if attacks else []):
            columns = [("source", "inputs"), *((TITLES[key], f"{name}.{key}.inputs") for key in attacks)]
            drawn = [(title, _picture(tensors[f"method.{key}"][i].reshape(method["pixels"]))) for title, key in columns]
            pictures.append({"class": sample["class"], "cells": drawn})
    modules = sorted({one.split(".")[0] for one in phase["travels"]})
    return {"name": name, "modules": modules, "tables": tables, "pictures": pictures, **phase}


def _strips(facts: Facts, tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Return Fig. 4: for each search the sources and the dummy images on the way."""
    strips = []
    for name, attack in facts["classifier"]["attacks"].items():
        rows = []
        for i, sample in enumerate(facts["samples"]):
            way = [_picture(image) for image in tensors[f"classifier.{name}"][i]]
            last = _picture(tensors[f"classifier.{name}.recovered"][i])
            told = attack["images"][i]
            rows.append(
                {
                    "class": sample["class"],
                    "cells": [_picture(tensors["classifier.source"][i]), *way[:-1], last],
                    "mse": told["mse"],
                    "psnr": told["psnr"],
                    "iterations": told["iterations"],
                }
            )
        heads = ["source", *(str(at) for at in attack["iterations"][:-1]), "recovered"]
        strips.append({"title": TITLES[name], "heads": heads, "rows": rows, "shape": facts["classifier"]["pixels"]})
    return strips


def _picture(image: Tensor) -> str:
    """Return the address of an image (channels, height, width) in [0, 1]."""
    pixels = image.detach().float().clamp(0, 1).cpu().numpy()
    return figures.image_source(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels[:3], 0, -1))


def _command(facts: Facts) -> str:
    """Return the command that makes the numbers again."""
    run, whole = reproduce.command(json.loads(json.dumps(facts["experiment"])))
    words = run.replace("fedunseen run", "fedunseen attack leakage", 1)
    attacks = [attack for name in facts["method"]["phases"].values() for attack in name["attacks"]]
    kinds = {one for one in attacks if one != "analytic"} or set(facts["classifier"].get("attacks", {}))
    settings = [
        attack["settings"]
        for phase in facts["method"]["phases"].values()
        for key, attack in phase["attacks"].items()
        if key != "analytic"
    ] + [attack["settings"] for attack in facts["classifier"].get("attacks", {}).values()]
    usual = {"lr": {1.0: 300, 0.1: 4800}}
    steps = next((one["steps"] for one in settings if usual["lr"].get(one["lr"]) != one["steps"]), None)
    options = [f"--images {len(facts['samples'])}"]
    options += [f"--method {next(iter(kinds))}"] if len(kinds) == 1 else []
    options += [f"--steps {steps}"] if steps is not None else []
    sums = sorted({row["parties"] for _, told in _attacked_sums(facts) for rows in told.values() for row in rows})
    options += [f"--sums {','.join(map(str, sums)) or 'none'}"]
    note = "" if whole else f"\n\n{shlex.quote(facts['experiment']['name'])}.toml:\n\n" + toml_text(facts["experiment"])
    return f"{words} \\\n    {' '.join(options)}{note}"
