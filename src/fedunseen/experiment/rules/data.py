"""What samples are, which encoder reads them, and who holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedunseen.data.scaling import FITTED
from fedunseen.experiment.rules.base import DataFacts, EncoderFacts, ModelFacts, PresenceFacts, Rule

PLAIN = {"data.name": "arrays", "data.features": []}
FLIP = {"encoder.augment": ["flip"]}

ENCODER: Sequence[Rule[EncoderFacts]] = (
    Rule(
        code="samples-without-encoder",
        when=lambda e: not e.has("encoder") and e.kind in ("images", "sequences"),
        problem="data.name = {data.name!r} gives {facts.kind}, and encoder.name = 'none' makes no features of them",
        remedy="name an encoder, for example conv (trained, of images), tflite (frozen, of images) or gru (of "
        "sequences)",
        given="images",
        example=PLAIN,
    ),
    Rule(
        code="encoder-without-images",
        when=lambda e: e.has("encoder") and e.kind != "sequences" and e.image_shape is None,
        problem="encoder.name = {encoder.name!r} needs images, but data.name = {data.name!r} gives features",
        remedy="set encoder.name = 'none'",
        given="arrays",
        example={**PLAIN, "encoder.name": "conv"},
    ),
    Rule(
        code="encoder-of-other-samples",
        when=lambda e: e.encoder is not None and e.encoder.reads != e.given,
        problem="encoder.name = {encoder.name!r} reads {facts.encoder.reads}, but data.name = {data.name!r} gives "
        "{facts.given}",
        remedy="name another, for example gru for sequences or conv4 for images",
        given="sequences",
        example={**PLAIN, "encoder.name": "conv"},
    ),
    Rule(
        code="augmentation-of-frozen-encoder",
        when=lambda e: e.trained is False and e.experiment.encoder.augment,
        problem="encoder.augment changes images while encoder.name = {encoder.name!r} trains, but here it is frozen",
        remedy="leave it out",
        given="images",
        example={**PLAIN, "encoder.name": "tflite", "encoder.model": "model.tflite", **FLIP},
    ),
    Rule(
        code="augmentation-of-vectors",
        when=lambda e: e.has("encoder") and e.experiment.encoder.augment and len(e.image_shape or ()) == 2,
        problem="encoder.augment needs images, and data.name = {data.name!r} gives vectors",
        remedy="leave it out",
        example={"data.features": [], "encoder.name": "conv", **FLIP},
    ),
    Rule(
        code="scaling-of-images",
        when=lambda e: e.trained and e.experiment.data.features,
        problem="data.features scales vectors, but encoder.name = {encoder.name!r} takes images",
        remedy="leave it out",
        given="images",
        example={"data.name": "arrays", "encoder.name": "conv", "data.features": ["l2"]},
    ),
)


def _unfitted(d: DataFacts) -> dict[str, Any] | None:
    """Return the scaling that is to be fitted to training samples, where none are."""
    steps = d.experiment.data.features or ()
    return (
        {"steps": list(steps)} if d.fits_scaling and not len(d.benchmark.train) and set(FITTED) & set(steps) else None
    )


DATA: Sequence[Rule[DataFacts]] = (
    Rule(
        code="classes-without-descriptions",
        when=lambda d: d.task.needs_descriptions and not d.benchmark.space.attributes,
        problem="data.name = {data.name!r} has no descriptions of its classes, which method.name = {method.name!r} "
        "needs",
        remedy="name a few-shot method, for example maml or protonet",
        given="undescribed",
        example=PLAIN,
    ),
    Rule(
        code="scaling-without-samples",
        when=_unfitted,
        problem="data.features = {steps} is fitted to training samples, and {facts.benchmark.name} has none",
        remedy="use l2 or x10, or give the coordinator some training samples of its own",
        given="untrained",
        example={
            "data.name": "arrays",
            "data.features": ["centre"],
            "engine.name": "flower",
            "engine.mode": "deployment",
        },
    ),
    Rule(
        code="scaling-of-maps",
        when=lambda d: d.benchmark.kind != "vectors" and d.experiment.data.features,
        problem="data.features scales vectors, but {facts.benchmark.name} has {facts.benchmark.kind}",
        remedy="leave it out",
        given="maps",
        example={"data.name": "arrays", "data.features": ["l2"], "method.name": "apn"},
    ),
    Rule(
        code="vectors-for-maps",
        when=lambda d: (
            d.method.takes == "maps"
            and d.benchmark.kind == "vectors"
            and not (d.has("encoder") and d.benchmark.image_shape is not None)
        ),
        problem="method.name = {method.name!r} needs feature maps, but data.name = {data.name!r} gives vectors",
        remedy="name an encoder that makes maps of images (conv, resnet, vit, tflite), or a method on vectors, for "
        "example distzsl",
        example={"method.name": "apn"},
    ),
)

MODEL: Sequence[Rule[ModelFacts]] = (
    Rule(
        code="generator-of-trained-features",
        when=lambda m: m.method.frozen and m.model.backbone.trained,
        problem="method.name = {method.name!r} learns from features that do not change, but encoder.name = "
        "{encoder.name!r} is trained",
        remedy="name a frozen one, for example tflite, or none",
        preset="digit-pairs-clswgan",
        example={"encoder.name": "conv", "data.features": []},
    ),
)


def _empty(p: PresenceFacts) -> dict[str, Any] | None:
    """Return the first round without a client that has samples."""
    empty = [round for round, present in p.rounds().items() if not present]
    return {"round": empty[0]} if empty else None


PRESENCE: Sequence[Rule[PresenceFacts]] = (
    Rule(
        code="round-without-clients",
        when=_empty,
        problem="no client with samples is present in round {round} (counted from 0)",
        remedy="change partition.join or partition.leave",
        example={"partition.join": {"0-9": 1}},
    ),
)
