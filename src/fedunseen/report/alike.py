"""Which classes are alike: by their semantics, by the model's scores, and as pictures of its features."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedunseen.report import figures, statistics
from fedunseen.report.parts import Facts, Section, labelled

__all__ = ["EMBEDDING", "GENERATED", "LEARNT", "SIMILARITY"]

SIMILARITY_TEMPLATE = """\
<section>
<h2>Which classes are alike</h2>
<div class="grid">
{% for map in similarity.maps %}<figure>{{ map | safe }}</figure>{% endfor %}
{% if similarity.agreement is not none %}
</div>
<p class="fact"><b>{{ "%.2f" | format(similarity.agreement) }}</b> agreement: the correlation of the two pictures' entries off the diagonal{% if similarity.among_unseen is not none %}; <b>{{ "%.2f" | format(similarity.among_unseen) }}</b> among unseen classes alone{% endif %}.</p>
{% else %}
</div>
{% endif %}
<p class="caption">Blue: alike. Orange: opposite. No colour: unrelated. {% if similarity.maps | length == 2 %}Left, the correlation of the classes' semantics; right, that of the mean scores which the model gives to each class's test samples. {% else %}The correlation of the classes' semantics. {% endif %}All classes, in one order that puts similar ones together; the marks at the edge are unseen classes. {% if similarity.maps | length == 2 %}The more the right picture repeats the left one, the more the model has learnt what the descriptions say.{% endif %}{% if similarity.untested %} Grey: classes without test samples.{% endif %}</p>
</section>
"""

LEARNT_TEMPLATE = """\
<section>
<h2>From predicted attributes to classes</h2>
<ul class="row">
{% for map in learnt.maps %}<li>{{ map | safe }}</li>{% endfor %}
</ul>
<p class="caption">Rows: the mean predicted attributes of each class's test samples; columns: the attributes of each class. Blue: they fit; orange: they do not (each row less its mean, over its largest value). Classes stand in the order of the last map, the correlation of the classes' semantics, which Γ, the target of cross-device regularisation, follows to within its penalty. Agreement is the correlation of a map with it off the diagonal: whether classes that are alike are also taken to be alike.</p>
</section>
"""

EMBEDDING_TEMPLATE = """\
<section>
<h2>Unseen classes in the plane</h2>
<div class="grid">
{% for chart in embedding.charts %}<figure>{{ chart | safe }}</figure>{% endfor %}
</div>
<p class="fact">Silhouette <b>{{ "%.2f" | format(embedding.before) }}</b>{% if embedding.charts | length == 1 %}: the model takes features as they come in{% else %} as they come in, <b>{{ "%.2f" | format(embedding.after) }}</b> as the model represents them{% endif %}.</p>
<p class="caption">t-SNE of {{ embedding.samples }} test samples of unseen classes; a {{ "number" if embedding.numbered else "name" }} stands at the mean of its class. Distances between far groups mean nothing in such a picture. The silhouette is measured in the full spaces, not in the plane: 1 would be compact classes far apart, 0 classes that overlap, below 0 samples nearer to another class than to their own.</p>
{% if embedding.numbered %}<details{{ " open" if embedding.numbered | length <= 50 }}><summary>What the numbers stand for</summary><ul class="columns">
{% for number, name in embedding.numbered %}<li><span>{{ name }}</span> <span class="num">{{ number }}</span></li>{% endfor %}
</ul></details>{% endif %}
</section>
"""

GENERATED_TEMPLATE = """\
<section>
<h2>Generated and real features of unseen classes</h2>
<figure>{{ generated.chart | safe }}</figure>
<p class="legend"><span><i class="key ring"></i>generated</span><span><i class="key cross"></i>real test samples</span><span>one colour a class</span></p>
<details class="below"{{ " open" if generated.classes | length <= 50 }}><summary>The classes, and how many of their test samples are recognised (ZSL)</summary><ul class="columns{{ " wide" if generated.classes | map(attribute="name") | map("length") | max > 14 }}">
{% for one in generated.classes %}<li><span><i class="key swatch" style="--hue:{{ one.hue }}"></i>{{ one.number ~ " " if one.number }}{{ one.name }}</span> <span class="num">{{ "–" if one.accuracy is none else "%.1f" | format(one.accuracy) ~ " %" }}</span></li>{% endfor %}
</ul></details>
<p class="caption">t-SNE of {{ generated.made }} generated and {{ generated.real }} real features together; a {{ "number" if generated.numbered else "name" }} stands at the mean of its class's real ones. The unseen-class classifier is trained on circles alone and tested on crosses: where a class's circles lie on its crosses, and no other class's do, it is recognised. Distances between far groups mean nothing in such a picture.</p>
</section>
"""


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
    return {"similarity": found}


def _learnt(facts: Facts) -> dict[str, Any] | None:
    """Draw how well each class's mean predicted attributes fit every class, after some rounds, beside the semantics."""
    from fedunseen.federation.directory import load_params

    found = {int(path.stem.partition("-")[2]): path for path in (facts.run.path / "similarity").glob("round-*.safet*")}
    if not found or not facts.one_model:
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
    return {"learnt": {"maps": maps}}


def _embedding(facts: Facts) -> dict[str, Any] | None:
    """Draw the t-SNE pictures of the unseen classes."""
    if "embedding_model" not in facts.tensors:
        return None
    tensors, labels = facts.tensors, facts.tensors["embedding_labels"]
    classes, positions = np.unique(labels, return_inverse=True)
    names = facts.of_classes(classes)
    numbered, written = labelled(names)
    before, after = float(tensors["silhouettes"][1]), float(tensors["silhouettes"][0])
    planes = {name: tensors[f"embedding_{name}"].astype(np.float64) for name in ("inputs", "model")}
    titles = {"inputs": "As they come in", "model": "As the model represents them"}
    if np.array_equal(planes["inputs"], planes["model"]):  # a method on the features themselves
        del planes["model"]
    charts = [figures.embedding_map(plane, positions, written, titles[name]) for name, plane in planes.items()]
    found = {
        "charts": charts,
        "before": before,
        "after": after,
        "samples": len(labels),
        "numbered": list(enumerate(names, 1)) if numbered else [],
    }

    return {"embedding": found}


def _generated(facts: Facts) -> dict[str, Any] | None:
    """Draw generated and real features of the unseen classes in one plane (FZSL, Fig. 5)."""
    tensors = facts.tensors
    if "generated_plane" not in tensors:
        return None
    labels, made = tensors["generated_labels"].astype(np.int64), tensors["generated_kind"] == 1
    classes, positions = np.unique(labels, return_inverse=True)
    names = facts.of_classes(classes)
    numbered, written = labelled(names)
    accuracies = dict(zip(facts.unseen.tolist(), tensors["generated_accuracy"].astype(np.float64), strict=True))
    own = [float(accuracies.get(c, np.nan)) for c in classes.tolist()]
    plane = tensors["generated_plane"].astype(np.float64)
    found = {
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

    return {"generated": found}


SIMILARITY = Section(SIMILARITY_TEMPLATE, _similarity)
LEARNT = Section(LEARNT_TEMPLATE, _learnt)
EMBEDDING = Section(EMBEDDING_TEMPLATE, _embedding)
GENERATED = Section(GENERATED_TEMPLATE, _generated)
