"""The page of a zero-shot run."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedunseen.evaluation.measures import ZERO_SHOT_MEASURES
from fedunseen.evaluation.summary import examples_advice, summarize, weak_words
from fedunseen.report import figures
from fedunseen.report.again import AGAIN
from fedunseen.report.alike import EMBEDDING, GENERATED, LEARNT, SIMILARITY
from fedunseen.report.attacked import ATTACKED
from fedunseen.report.chosen import CHOSEN
from fedunseen.report.classes import CLASSES
from fedunseen.report.growing import GROWING
from fedunseen.report.holdings import MAP, PARTIES, holdings
from fedunseen.report.learning import LEARNING, SEEDS
from fedunseen.report.merging import MERGING
from fedunseen.report.own_models import OWN_MODELS
from fedunseen.report.parts import BLIND, FLATTERS, LAST, Facts, Section, client_names, rounds_tried, stopped
from fedunseen.report.sharing import COVERAGE_TEMPLATE, TRAVEL, coverage_section
from fedunseen.report.short import SHORT_TEMPLATE, WARNINGS, advice
from fedunseen.report.shots import LATER

__all__ = ["SECTIONS"]

HEADER = """\
<header>
<p class="kicker">FedUnseen report · {{ experiment.name }}</p>
<h1>{{ experiment.method.name }} on {{ facts.run.manifest.benchmark }}</h1>
<p class="lead">
{{ facts.holders }} trained for {{ facts.whole.result.rounds }} round{{ "s" if facts.whole.result.rounds != 1 }}.
Nobody has an example of {{ facts.unseen | length }} of the {{ facts.names | length }} classes.
{% if not facts.one_model %}
Every client kept its own model; all numbers are means over the clients.
On average, a client names the right one of the {{ facts.unseen | length }} for
{% elif facts.zero_shot %}
From their descriptions alone, the {{ "trained" if facts.pools else "merged" }} model names the right one of the {{ facts.unseen | length }} for
{% else %}
This method cannot use descriptions; its model names the right one of the {{ facts.unseen | length }} for
{% endif %}
<strong>{{ "%.1f" | format(zsl) }}&nbsp;%</strong> of test samples; guessing would reach {{ "%.1f" | format(facts.chance) }}&nbsp;%.
</p>
<ul class="chips">
<li><b>method</b> {{ experiment.method.name }}</li>
<li><b>strategy</b> {{ experiment.strategy.name }}</li>
<li><b>partition</b> {% if facts.pools %}none, all data pooled{% elif facts.parties %}the parties' own{% else %}{{ experiment.partition.kind }}, {{ experiment.partition.clients }} clients{% endif %}</li>
<li><b>benchmark</b> {{ facts.run.manifest.benchmark }}</li>
<li>{% if facts.whole.seeds %}<b>seeds</b> {{ facts.whole.result.seeds[0] }} to {{ facts.whole.result.seeds[-1] }}{% else %}<b>seed</b> {{ experiment.run.seed }}{% endif %}</li>
<li><b>rounds</b> {{ facts.whole.result.rounds }}</li>
</ul>
</header>
"""

NUMBERS = """\
<section class="headline" aria-label="Headline numbers">
<div class="numbers">
{% for one in headline %}
<div class="number {{ one.colour }}" id="number-{{ one.name }}">
<h2>{{ one.short }}</h2>
<p class="big">{{ percent(one.value) }}<small>%{% if one.sd is not none %} ± {{ "%.1f" | format(one.sd) }}{% endif %}</small></p>
<p class="words">{{ one.words }}</p>
{% if one.chance is not none %}
<p class="beside">guessing {{ percent(one.chance) }}</p>
{% elif one.plain is not none and choice.calibrated %}
<p class="beside">uncalibrated {{ percent(one.plain) }}</p>
{% endif %}
</div>
{% endfor %}
</div>
<p class="choice {{ "honest" if choice.honest else "warning" }}"><b>{{ "" if choice.honest else "⚠ " }}{{ choice.label }}.</b> {{ choice.words }}
Accuracies are per-class top-1, in percent: every class counts the same.{% if facts.whole.seeds %} Mean ± standard deviation of {{ facts.whole.seeds | length }} seeds.{% endif %}</p>
</section>
"""

IMAGES = """\
<section>
<h2>Classes that nobody has ever shown it</h2>
<p class="caption">Test samples of unseen classes, taken evenly and not picked: {{ images.right }} of {{ images.cards | length }} right.
Below each, the model's first answer among the unseen classes, then its next two.</p>
<ul class="cards">
{% for card in images.cards %}
<li class="{{ "right" if card.right else "wrong" }}">
<img src="{{ card.source }}" width="{{ card.width }}" height="{{ card.height }}" alt="test sample of class {{ card.true }}">
<p class="answer"><span class="sign" role="img" aria-label="{{ "right" if card.right else "wrong" }}">{{ "✓" if card.right else "✗" }}</span> {% if card.right %}{{ card.true }}{% else %}<small>said</small> {{ card.answers[0].name }}, <small>is</small> {{ card.true }}{% endif %}</p>
<p class="next">{% for one in card.answers[1:] %}<span{% if one.right %} class="hit"{% endif %}>{{ one.name }}</span>{{ ", " if not loop.last }}{% endfor %}</p>
</li>
{% endfor %}
</ul>
</section>
"""

HOLDINGS = (
    """\
<section>
<h2>Who holds which classes, who covers which attributes</h2>
<h3>Classes</h3>
"""
    + MAP
    + "<h3>Attributes</h3>\n"
    + COVERAGE_TEMPLATE
    + "</section>\n"
)


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
            "sd": result.get(f"{one.name}_sd"),
            "plain": result.get(f"uncalibrated_{one.name}"),
            "chance": facts.chance if one.name == "zsl" else None,
        }
        for one in ZERO_SHOT_MEASURES
    ]
    return {"headline": shown, "choice": _choice(facts)}


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
    return {"words": words, "label": label, "honest": honest, "calibrated": facts.calibrated}


def _images(facts: Facts) -> dict[str, Any] | None:
    """Return the cards of the image grid."""
    if "images" not in facts.tensors:
        return None
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
    return {"images": {"cards": cards, "right": sum(card["right"] for card in cards)}}


def _holdings(facts: Facts) -> dict[str, Any] | None:
    """Return who holds which classes, and who covers which attributes; parties keep that to themselves."""
    if facts.parties:
        return None
    coverage = coverage_section(facts.tensors["client_counts"], facts.run.space, client_names(facts))
    return {"holdings": holdings(facts), "coverage": coverage}


SECTIONS = (
    Section(HEADER, lambda facts: {"zsl": facts.whole.result["zsl"]}),
    WARNINGS,
    LATER,
    Section(SHORT_TEMPLATE, _short),
    Section(NUMBERS, _numbers),
    SEEDS,
    Section(IMAGES, _images),
    LEARNING,
    GROWING,
    OWN_MODELS,
    PARTIES,
    Section(HOLDINGS, _holdings),
    CLASSES,
    SIMILARITY,
    LEARNT,
    EMBEDDING,
    GENERATED,
    CHOSEN,
    ATTACKED,
    MERGING,
    TRAVEL,
    AGAIN,
)
"""From top to bottom. A new section is one more line."""
