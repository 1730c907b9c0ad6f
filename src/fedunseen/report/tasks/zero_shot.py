"""The page of a zero-shot run."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedunseen.evaluation.measures import ZERO_SHOT_MEASURES
from fedunseen.evaluation.summary import examples_advice, summarize, weak_words
from fedunseen.report.classes import classes
from fedunseen.report.communication_cost import coverage_section
from fedunseen.report.data_distribution import holdings
from fedunseen.report.learning import curves, seeds
from fedunseen.report.parts import (
    BLIND,
    FLATTERS,
    LAST,
    Facts,
    Section,
    View,
    chips,
    client_names,
    rounds_tried,
    stopped,
)
from fedunseen.report.summary import advice
from fedunseen.report.svg import image_source

__all__ = ["VIEW"]


def _header(facts: Facts) -> dict[str, Any]:
    """Return the first paragraph and the chips."""
    rounds, unseen = facts.whole.result["rounds"], len(facts.unseen)
    lead = f"{facts.holders} trained for {rounds} round{'s' if rounds != 1 else ''}. "
    lead += f"Nobody has an example of {unseen} of the {len(facts.names)} classes. "
    if not facts.one_model:
        lead += "Every client kept its own model; all numbers are means over the clients. On average, a client"
    elif facts.zero_shot:
        lead += f"From their descriptions alone, the {facts.model}"
    else:
        lead += "This method cannot use descriptions; its model"
    lead += f" names the right one of the {unseen}"
    shown = {"value": facts.whole.result["zsl"], "of": "test samples", "chance": f"{facts.chance:.1f}"}
    return {"lead": lead, **shown, "chips": [*chips(facts), ("rounds", rounds)]}


def _short(facts: Facts) -> dict[str, Any]:
    """Return the summary for people who decide."""
    result, names, unseen = facts.whole.result, len(facts.names), len(facts.unseen)
    if not facts.one_model:
        how = "of which a part is trained together and the rest" if facts.merges else "trained"
        what = f"A model for each client, {how} on its own classes alone; the numbers are the clients' means."
    elif facts.zero_shot:
        what = f"A model that names {names} classes. Of {unseen} of them nobody has an example: it knows them by their "
        what += "descriptions alone, and takes further classes in the same way."
    else:
        what = (
            f"A model that names the {names - unseen} classes that it was trained on. It cannot use descriptions, so "
        )
        what += f"that its answers for the other {unseen} are guesses."
    good = f"Of 100 samples of classes that nobody has it names {result['zsl']:.0f} right if it chooses among those "
    good += f"{unseen} classes; guessing names {facts.chance:.3g}. If it chooses among all {names} classes, it names "
    good += f"{result['gzsl_unseen']:.0f} of 100 of these right, and {result['gzsl_seen']:.0f} of 100 of the other "
    good += "classes' samples."
    found = summarize(facts.run.result, facts.tensors, facts.names, facts.unseen, facts.zero_shot)
    shown = examples_advice(facts.run.result, facts.tensors)
    words = [one for one in found.get("text", ()) if one != shown]
    weak = found.get("weak_unseen", [])
    if found and facts.zero_shot and not weak:
        tested = np.unique(facts.tensors["labels"])
        words.insert(0, weak_words([], int(np.isin(tested, facts.unseen).sum()), "unseen classes"))
    remedy = shown or "Give the weak classes attributes that tell them from the classes that were said instead."
    told = "--class NAME" if facts.experiment["data"].get("text_encoder") else "--classes FILE"
    usage = f"Use it: fedunseen predict RUN INPUT, with {told} for classes that it has never heard of."
    return {"what": what, "good": good, "weak": words, "next": advice(facts, weak or shown, remedy, usage)}


def _numbers(facts: Facts) -> dict[str, Any]:
    """Return the four numbers, and how round and calibration were chosen."""
    result = facts.whole.result
    shown = [
        {
            **one._asdict(),
            "value": result[one.name],
            "spread": result.get(f"{one.name}_sd"),
            "beside": [
                ("guessing", facts.chance)
                if one.name == "zsl"
                else ("uncalibrated", result.get(f"uncalibrated_{one.name}") if facts.calibrated else None)
            ],
        }
        for one in ZERO_SHOT_MEASURES
    ]
    return {"headline": shown, "choices": [_choice(facts)]}


def _choice(facts: Facts) -> dict[str, Any]:
    """Say in plain words how round and calibration were chosen."""
    run, result, evaluation = facts.whole, facts.run.result, facts.experiment["evaluation"]
    factor = float(result["calibration_factor"])
    fixed, calibrated, left_out = "factor" in evaluation, bool(factor), float(result.get("left_out_offset", 0.0))
    several = bool(run.seeds)
    which = "each seed's round" if several else f"round {result['selected_round']} of {rounds_tried(result)}"
    calibration = "" if several else f" (the scores of seen classes lowered by {factor:.3g})"
    selection = result["selection"]
    both = f"{which} and calibration{calibration} were" if calibrated and not fixed else f"{which} was"
    if selection == "validation":
        words = (
            f"{both[0].upper()}{both[1:]} chosen on validation classes, which played the unseen ones in a run of "
            f"their own. {BLIND}{'' if several else stopped(result)}"
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
    elif left_out:
        words += f" The scores of seen classes are lowered by {left_out:.3g}, chosen on classes left out of the sums."
    elif not calibrated:
        words += " The generalised accuracies are not calibrated."
    if "gzsl_head" in result:  # of methods that generate features
        words += f" U and S are those of a classifier trained on {result['gzsl_head']}."
    words += " Accuracies are per-class top-1, in percent: every class counts the same."
    if several:
        words += f" Mean ± standard deviation of {len(run.seeds)} seeds."
    return {"words": words, "label": f"{label}.", "fine": honest, "css": "honest"}


def _images(facts: Facts) -> dict[str, Any] | None:
    """Return the cards of the image grid."""
    if "images" not in facts.tensors:
        return None
    images, labels = facts.tensors["images"], facts.tensors["image_labels"]
    cards = []
    for pixels, label, answers in zip(images, labels.tolist(), facts.tensors["image_answers"].tolist(), strict=True):
        cards.append(
            {
                "source": image_source(pixels),
                "height": pixels.shape[0],
                "width": pixels.shape[1],
                "true": facts.names[label],
                "answers": [{"name": facts.names[c], "right": c == label} for c in answers[:3]],
                "right": answers[0] == label,
            }
        )
    return {"images": {"cards": cards, "right": sum(card["right"] for card in cards)}}


def _holdings(facts: Facts) -> dict[str, Any] | None:
    """Return who holds which classes, and who covers which attributes; parties keep that to themselves."""
    if facts.parties:
        return None
    coverage = coverage_section(facts.tensors["client_counts"], facts.run.space, client_names(facts))
    title = "Who holds which classes, who covers which attributes"
    return {"title": title, "holdings": holdings(facts), "coverage": coverage, "words": ""}


VIEW = View(
    header=_header,
    summary=_short,
    numbers=_numbers,
    seeds=seeds,
    classes=classes,
    samples=Section("images", _images),
    holdings=_holdings,
    curves=curves,
)
