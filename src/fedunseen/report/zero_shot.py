"""The page of a zero-shot run."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from fedunseen.evaluation.measures import ZERO_SHOT_MEASURES
from fedunseen.evaluation.summary import examples_advice, summarize, weak_words
from fedunseen.report import parts
from fedunseen.report.classes import classes  # noqa: F401 - of the view
from fedunseen.report.data_distribution import coverage, holders
from fedunseen.report.learning import curves, seeds  # noqa: F401 - of the view
from fedunseen.report.parts import Content, Facts
from fedunseen.report.svg import image_source


@lru_cache(maxsize=1)
def _words(facts: Facts) -> dict[str, str]:
    """Return what the page says in sentences."""
    first, counts = facts.run.result, facts.tensors.get("client_counts")
    context = {
        "facts": facts,
        "clients": 0 if counts is None else len(counts),
        "disjoint": counts is not None and bool(((counts > 0).sum(axis=0) <= 1).all()),
        "experiment": {**facts.experiment, "data": {"text_encoder": None, **facts.experiment["data"]}},
        "result": facts.whole.result,
        "first": {"left_out_offset": 0.0, "gzsl_head": "", **first},
        "rounds_tried": parts.rounds_tried(first),
        "stopped": parts.stopped(first),
    }
    return parts.passages("zero_shot", context)


def header(facts: Facts) -> dict[str, Any]:
    """Return the first paragraph and the chips."""
    result = facts.whole.result
    shown = {"value": result["zsl"], "of": "test samples", "chance": f"{facts.chance:.1f}"}
    return {"lead": _words(facts)["lead"], **shown, "chips": [*parts.chips(facts), ("rounds", result["rounds"])]}


def summary(facts: Facts) -> dict[str, Any]:
    """Return the summary for people who decide."""
    words = _words(facts)
    summary = summarize(facts.run.result, facts.tensors, facts.names, facts.unseen, facts.zero_shot)
    remedy = examples_advice(facts.run.result, facts.tensors)
    weak = [sentence for sentence in summary.get("text", ()) if sentence != remedy]
    named = summary.get("weak_unseen", [])
    if summary and facts.zero_shot and not named:
        tested = np.unique(facts.tensors["labels"])
        weak.insert(0, weak_words([], int(np.isin(tested, facts.unseen).sum()), "unseen classes"))
    steps = parts.advice(facts, named or remedy, remedy or words["remedy"], words["usage"])
    return {"what": words["what"], "good": words["good"], "weak": weak, "next": steps}


def numbers(facts: Facts) -> dict[str, Any]:
    """Return the four numbers, and how round and calibration were chosen."""
    result = facts.whole.result
    headline = [
        {
            **measure._asdict(),
            "value": result[measure.name],
            "spread": result.get(f"{measure.name}_sd"),
            "beside": [
                ("guessing", facts.chance)
                if measure.name == "zsl"
                else ("uncalibrated", result.get(f"uncalibrated_{measure.name}") if facts.calibrated else None)
            ],
        }
        for measure in ZERO_SHOT_MEASURES
    ]
    return {"headline": headline, "choices": [parts.choice(facts, _words(facts)["choice"])]}


def _images(facts: Facts) -> Content:
    """Return the cards of the image grid."""
    if "images" not in facts.tensors:
        return None
    images, labels, answers = (facts.tensors[name] for name in ("images", "image_labels", "image_answers"))
    cards = [
        {
            "source": image_source(pixels), "height": pixels.shape[0], "width": pixels.shape[1],
            "true": facts.names[label], "right": best[0] == label,
            "answers": [{"name": facts.names[c], "right": c == label} for c in best[:3]],
        }
        for pixels, label, best in zip(images, labels.tolist(), answers.tolist(), strict=True)
    ]  # fmt: skip
    return {"images": {"cards": cards, "right": sum(card["right"] for card in cards)}}


def data_distribution(facts: Facts) -> Content:
    """Return who holds which classes, and who covers which attributes; parties keep that to themselves."""
    if facts.parties:
        return None
    covered = coverage(facts.tensors["client_counts"], facts.run.space, parts.client_names(facts))
    title = "Who holds which classes, who covers which attributes"
    return {"title": title, "holdings": holders(facts), "coverage": covered, "words": ""}


SAMPLES = ("images", _images)
