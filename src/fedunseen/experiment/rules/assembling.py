"""Rules about what an experiment is put together of: samples, the model, and who takes part
when.
"""

from collections.abc import Sequence
from typing import Any

from fedunseen.core.phases import SGD
from fedunseen.experiment.rules.base import (
    DataFacts,
    EncoderFacts,
    ModelFacts,
    PresenceFacts,
    Rule,
    first,
)
from fedunseen.experiment.scales import bits_of, fitted_steps, ranges_of
from fedunseen.strategies.compression import OF_FORM, Codec
from fedunseen.strategies.selective import kept_for_scoring, travelling

GUARDED = ("attack", "privacy", "growth")

ENCODER: Sequence[Rule[EncoderFacts]] = (
    Rule(
        "samples-without-encoder",
        lambda e: not e.has("encoder") and e.kind in ("images", "sequences"),
        problem=(
            "data.name = {data.name!r} gives {facts.kind}, and encoder.name = 'none' makes no "
            "features of them"
        ),
        remedy=(
            "name an encoder, for example conv (trained, of images), tflite (frozen, of images) or "
            "gru (of sequences)"
        ),
        example={"data.name": "arrays", "data.features": []},
        needs="images",
    ),
    Rule(
        "encoder-without-images",
        lambda e: e.has("encoder") and e.kind != "sequences" and e.image_shape is None,
        problem=(
            "encoder.name = {encoder.name!r} needs images, but data.name = {data.name!r} gives "
            "features"
        ),
        remedy="set encoder.name = 'none'",
        example={"data.name": "arrays", "data.features": [], "encoder.name": "conv"},
        needs="arrays",
    ),
    Rule(
        "encoder-of-other-samples",
        lambda e: e.encoder is not None and e.encoder.reads != e.given,
        problem=(
            "encoder.name = {encoder.name!r} reads {facts.encoder.reads}, but data.name = "
            "{data.name!r} gives {facts.given}"
        ),
        remedy="name another, for example gru for sequences or conv4 for images",
        example={"data.name": "arrays", "data.features": [], "encoder.name": "conv"},
        needs="sequences",
    ),
    Rule(
        "augmentation-of-frozen-encoder",
        lambda e: e.trained is False and e.experiment.encoder.augment,
        problem=(
            "encoder.augment changes images while encoder.name = {encoder.name!r} trains, but here "
            "it is frozen"
        ),
        remedy="leave it out",
        example={
            "data.name": "arrays",
            "data.features": [],
            "encoder.name": "tflite",
            "encoder.model": "model.tflite",
            "encoder.augment": ["flip"],
        },
        needs="images",
    ),
    Rule(
        "augmentation-of-vectors",
        lambda e: (
            e.has("encoder") and e.experiment.encoder.augment and len(e.image_shape or ()) == 2
        ),
        problem="encoder.augment needs images, and data.name = {data.name!r} gives vectors",
        remedy="leave it out",
        example={"data.features": [], "encoder.name": "conv", "encoder.augment": ["flip"]},
    ),
    Rule(
        "scaling-of-images",
        lambda e: e.trained and e.experiment.data.features,
        problem="data.features scales vectors, but encoder.name = {encoder.name!r} takes images",
        remedy="leave it out",
        example={"data.name": "arrays", "encoder.name": "conv", "data.features": ["l2"]},
        needs="images",
    ),
)


def _unfitted(d: DataFacts) -> dict[str, Any] | None:
    """Return the scaling that is to be fitted to training samples, where none are."""
    steps = d.experiment.data.features or ()
    applies = d.fits_scaling and not len(d.benchmark.train) and fitted_steps(d.experiment)
    return {"steps": list(steps)} if applies else None


def _other_width(d: DataFacts) -> dict[str, Any] | None:
    """Return how many bounds there are, and of how many numbers a sample is, where these differ."""
    pairs = len(d.experiment.data.bounds)
    width = d.benchmark.features.shape[1]
    fits = d.benchmark.kind != "vectors" or pairs in (0, 1, width)
    return None if fits else {"pairs": pairs, "width": width}


def _useless_bounds(d: DataFacts) -> dict[str, Any] | None:
    """Return the scalings that leave stated bounds without a use, or are fitted to samples beside
    them.
    """
    steps = d.experiment.data.features or ()
    vectors = d.benchmark.kind == "vectors"
    first = steps[:1] == ("min-max",)
    rounds = bits_of(d.experiment) > 0 and ranges_of(d.experiment, d.benchmark.image_shape)
    used = (
        vectors and not fitted_steps(d.experiment) and (first or (not steps and rounds == "bounds"))
    )
    early = "l2" in steps[:-1]  # no bounds follow from unit length
    return {"steps": list(steps)} if d.experiment.data.bounds and (early or not used) else None


DATA: Sequence[Rule[DataFacts]] = (
    Rule(
        "classes-without-descriptions",
        lambda d: d.task.needs_descriptions and not d.benchmark.space.attributes,
        problem=(
            "data.name = {data.name!r} has no descriptions of its classes, which method.name = "
            "{method.name!r} needs"
        ),
        remedy=(
            "name a few-shot method, for example maml or protonet, or describe your own classes: "
            "by attributes in classes.csv, or by their names (data.text_encoder = 'minilm')"
        ),
        example={"data.name": "arrays", "data.features": []},
        needs="undescribed",
    ),
    Rule(
        "scaling-without-samples",
        _unfitted,
        problem=(
            "data.features = {steps} is fitted to training samples, and {facts.benchmark.name} has "
            "none"
        ),
        remedy="use l2 or x10, or give the coordinator some training samples of its own",
        example={"data.name": "arrays", "data.features": ["centre"], "engine.name": "flower"},
        needs="untrained",
    ),
    Rule(
        "bounds-of-other-width",
        _other_width,
        problem="data.bounds has {pairs} pairs, and a sample has {width} numbers",
        remedy="give a pair [lowest, highest] for each number, or one pair for all",
        example={"data.name": "arrays", "data.bounds": [[0, 1], [0, 2], [0, 3]]},
        preset="digit-pairs-gaussian",
        needs="arrays",
    ),
    Rule(
        "bounds-without-use",
        _useless_bounds,
        problem=(
            "data.bounds does not say how data.features = {steps} scale the samples of method.name "
            "= {method.name!r}"
        ),
        remedy=(
            "set data.features to ['min-max'] or ['min-max', 'l2'], to [] in a closed form of "
            "vectors, or leave data.bounds out"
        ),
        example={"data.name": "arrays", "data.bounds": [[0, 1]], "data.features": ["l2"]},
        preset="digit-pairs-gaussian",
        needs="arrays",
    ),
    Rule(
        "scaling-of-maps",
        lambda d: d.benchmark.kind != "vectors" and d.experiment.data.features,
        problem=(
            "data.features scales vectors, but {facts.benchmark.name} has {facts.benchmark.kind}"
        ),
        remedy="leave it out",
        example={"data.name": "arrays", "data.features": ["l2"], "method.name": "apn"},
        needs="maps",
    ),
    Rule(
        "vectors-for-maps",
        lambda d: (
            d.method.takes == "maps"
            and d.benchmark.kind == "vectors"
            and not (d.has("encoder") and d.benchmark.image_shape is not None)
        ),
        problem=(
            "method.name = {method.name!r} needs feature maps, but data.name = {data.name!r} gives "
            "vectors"
        ),
        remedy=(
            "name an encoder that makes maps of images (conv, resnet, vit, tflite), or a method on "
            "vectors, for example distzsl"
        ),
        example={"method.name": "apn"},
    ),
)


def _no_sgd(m: ModelFacts) -> dict[str, Any] | None:
    """Return what to do where a strategy that counts steps has an optimizer with a memory of its
    own.
    """
    if m.strategy.lengths != "memory" or all(
        isinstance(phase.optimiser, SGD) for phase in m.model.phases()
    ):
        return None
    other_strategy = "choose another strategy, for example fedavg"
    return {
        "other": "set method.optimiser = 'sgd'"
        if hasattr(m.experiment.method, "optimiser")
        else other_strategy
    }


def _kept_for_scoring(m: ModelFacts) -> dict[str, Any] | None:
    """Return a parameter that scoring needs and that stays with the clients; each of them has a
    model of its own.
    """
    if not m.params or not m.strategy.merges:
        return None
    travel = travelling(list(m.params), m.experiment.strategy.shared, m.model.private)
    needed = kept_for_scoring(m.params, travel, (*m.model.private, *m.model.training_only))
    guarded = m.choices(GUARDED, " and ")
    return (
        {"needed": needed[0], "module": needed[0].split(".")[0], "guarded": guarded}
        if needed
        else None
    )


def _smaller(m: ModelFacts) -> dict[str, Any] | None:
    """Return the setting under which compression makes no parameter smaller."""
    settings = m.experiment.compression
    if not m.params or settings.name == "none":
        return None
    codec = Codec(settings)
    if any(codec.parts(name, value) is not None for name, value in m.params.items()):
        return None
    setting = OF_FORM.get(settings.name)
    return {
        "cause": f" and compression.{setting} = {getattr(settings, setting)}" if setting else ""
    }


MODEL: Sequence[Rule[ModelFacts]] = (
    Rule(
        "generator-of-trained-features",
        lambda m: m.method.frozen and m.model.backbone.trained,
        problem=(
            "method.name = {method.name!r} learns from features that do not change, but "
            "encoder.name = {encoder.name!r} is trained"
        ),
        remedy="name a frozen one, for example tflite, or none",
        example={"encoder.name": "conv", "data.features": []},
        preset="digit-pairs-clswgan",
    ),
    Rule(
        "start-trained-encoder",
        lambda m: m.starts_closed and m.model.backbone.trained,
        problem=(
            "method.start = 'closed-form' is a linear model of features that do not change, but "
            "encoder.name = {encoder.name!r} is trained"
        ),
        remedy="name a frozen one, for example tflite",
        example={
            "method.start": "closed-form",
            "method.hidden": [],
            "encoder.name": "conv",
            "data.features": [],
        },
    ),
    Rule(
        "not-one-batch",
        lambda m: m.get("engine", "mode") == "batched" and not m.model.batched,
        problem=(
            "method.name = {method.name!r} with encoder.name = {encoder.name!r} cannot train "
            "clients as one batch"
        ),
        remedy="set engine.mode to 'auto'",
        example={
            "data.name": "arrays",
            "data.features": [],
            "encoder.name": "conv4",
            "encoder.norm": "batch",
            "engine.mode": "batched",
        },
        needs="images",
    ),
    Rule(
        "steps-not-counted",
        _no_sgd,
        problem=(
            "strategy.name = {strategy.name!r} needs clients that use SGD, and method.name = "
            "{method.name!r} does not"
        ),
        remedy="{other}",
        example={"strategy.name": "scaffold"},
        preset="digit-pairs-few-shot",
    ),
    Rule(
        "shared-without-scores",
        _kept_for_scoring,
        reasons={
            "method.name = {method.name!r} makes classifiers from a merged model": lambda m: (
                m.model.generates
            ),
            "method.name = {method.name!r} is solved from merged sums": lambda m: (
                not m.method.trained
            ),
            "engine.name = {engine.name!r} has the clients' models elsewhere": lambda m: (
                m.distributed
            ),
            "strategy.personal_epochs trains a merged model on": lambda m: (
                m.experiment.strategy.personal_epochs is not None
            ),
            "{guarded} needs a merged one": lambda m: any(m.named_sections(*GUARDED)),
            "defence.name = {defence.name!r} asks a merged one for scores": lambda m: m.asks_scores,
        },
        problem=(
            "strategy.shared keeps {needed!r} with the clients, which scoring needs, so that each "
            "client has a model of its own, but {reason}"
        ),
        remedy="add '{module}.*' to it",
        example={
            "evaluation.selection": "last",
            "strategy.shared": ["d.*"],
            "privacy.name": "client-level",
            "privacy.epsilon": 8,
            "privacy.clip": 1,
        },
    ),
    Rule(
        "compression-of-nothing",
        _smaller,
        problem=(
            "compression.name = {compression.name!r}{cause} makes no parameter of method.name = "
            "{method.name!r} smaller"
        ),
        remedy="lower the setting, choose another form, or leave [compression] out",
        example={"compression.name": "low-rank", "compression.rank": 1000},
    ),
)


PRESENCE: Sequence[Rule[PresenceFacts]] = (
    Rule(
        "round-without-clients",
        lambda p: first("round", (i for i, present in p.rounds().items() if not present)),
        problem="no client with samples is present in round {round} (counted from 0)",
        remedy="change partition.join or partition.leave",
        example={"partition.join": {"0-9": 1}},
    ),
)
