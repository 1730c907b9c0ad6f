"""Which classes are alike: by their semantics, by the model's scores, and as pictures of its features."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedunseen.report import statistics
from fedunseen.report.maps import class_map, hue, similarity_map, small_map
from fedunseen.report.parts import Content, Facts, labelled


def similarity(facts: Facts) -> Content:
    """Draw how alike classes are by their semantics, and by the model where there is one."""
    if "similarity" not in facts.tensors:
        return None
    semantics, model = facts.tensors["similarity"], facts.tensors.get("model_similarity")
    order = statistics.leaf_order(semantics)
    block = np.ix_(order, order)
    names, marked = facts.of_classes(order), np.isin(order, facts.unseen)
    maps = [similarity_map(semantics[block].astype(np.float64), names, marked, "By their semantics")]
    content: dict[str, Any] = {"maps": maps, "agreement": None, "among_unseen": None, "untested": False}
    if model is not None:
        maps.append(similarity_map(model[block].astype(np.float64), names, marked, "By the model's scores"))
        some = np.ix_(facts.unseen, facts.unseen)
        for key, pair in (("agreement", (semantics, model)), ("among_unseen", (semantics[some], model[some]))):
            value = statistics.agreement(*pair)
            content[key] = None if np.isnan(value) else value
        content["untested"] = bool(np.isnan(model).any())
    return {"similarity": content}


def learnt(facts: Facts) -> Content:
    """Draw how well each class's mean predicted attributes fit every class, after some rounds, beside the semantics."""
    from fedunseen.federation.run_directory import load_params

    content = {
        int(path.stem.partition("-")[2]): path for path in (facts.run.path / "similarity").glob("round-*.safet*")
    }
    if not content or not facts.one_model:
        return None
    stored = {round: load_params(path) for round, path in sorted(content.items())}
    classes = next(iter(stored.values()))["classes"].numpy()  # those with test samples, at every round the same
    semantics = facts.tensors["similarity"][np.ix_(classes, classes)].astype(np.float64)
    order = statistics.leaf_order(semantics)
    block = np.ix_(order, order)
    maps = []
    for round, tensors in stored.items():
        values = tensors["compatibility"].double().numpy()
        agreement = statistics.agreement(semantics, (values + values.T) / 2)
        words = "agreement unknown" if np.isnan(agreement) else f"agreement {agreement:.2f}"
        maps.append(small_map(statistics.row_scaled(values)[block], f"round {round}", words))
    maps.append(small_map(semantics[block], "Γ", "the classes' semantics"))
    return {"learnt": {"maps": maps}}


def embedding(facts: Facts) -> Content:
    """Draw the unseen classes in the plane."""
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
    charts = [class_map(plane, positions, written, titles[name]) for name, plane in planes.items()]
    content = {
        "charts": charts,
        "before": before,
        "after": after,
        "samples": len(labels),
        "kind": _projection(facts),
        "numbered": list(enumerate(names, 1)) if numbered else [],
    }
    return {"embedding": content}


def _projection(facts: Facts) -> str:
    """Return the name of the projection that ``evaluation.embedding`` asked for."""
    tsne = facts.run.manifest["experiment"]["evaluation"].get("embedding") == "tsne"
    return "t-SNE" if tsne else "First two principal components"


def generated(facts: Facts) -> Content:
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
    content = {
        "chart": class_map(plane, positions, written, "Generated and real features", made),
        "kind": _projection(facts),
        "made": int(made.sum()),
        "real": int((~made).sum()),
        "numbered": numbered,
        "classes": [
            {"name": name, "number": i + 1 if numbered else None, "hue": hue(i),
             "accuracy": None if np.isnan(accuracy) else accuracy}
            for i, (name, accuracy) in enumerate(zip(names, own, strict=True))
        ],
    }  # fmt: skip
    return {"generated": content}
