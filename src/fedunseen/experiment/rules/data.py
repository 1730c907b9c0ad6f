"""What samples are, labelled or not, which encoder reads them, and who holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedunseen.data.scaling import FITTED
from fedunseen.experiment.rules.base import ConfigFacts, DataFacts, EncoderFacts, ModelFacts, PresenceFacts, Rule

READING: Sequence[Rule[ConfigFacts]] = (
    Rule("unlabelled-without-means", lambda c: c.get("data", "unlabelled") and c.experiment.method.name != "gaussian"),
    Rule(
        "unlabelled-several-models",
        lambda c: c.get("data", "unlabelled") and (not c.merging or c.has("growth") or c.has("privacy")),
    ),
)

ENCODER: Sequence[Rule[EncoderFacts]] = (
    Rule("samples-without-encoder", lambda e: not e.has("encoder") and e.kind in ("images", "sequences")),
    Rule("encoder-without-images", lambda e: e.has("encoder") and e.kind != "sequences" and e.image_shape is None),
    Rule("encoder-of-other-samples", lambda e: e.encoder is not None and e.encoder.reads != e.given),
    Rule("augmentation-of-frozen-encoder", lambda e: e.trained is False and e.experiment.encoder.augment),
    Rule(
        "augmentation-of-vectors",
        lambda e: e.has("encoder") and e.experiment.encoder.augment and len(e.image_shape or ()) == 2,
    ),
    Rule("scaling-of-images", lambda e: e.trained and e.experiment.data.features),
)


def _unfitted(d: DataFacts) -> dict[str, Any] | None:
    """Return the scaling that is to be fitted to training samples, where none are."""
    steps = d.experiment.data.features or ()
    applies = d.fits_scaling and not len(d.benchmark.train) and set(FITTED) & set(steps)
    return {"steps": list(steps)} if applies else None


DATA: Sequence[Rule[DataFacts]] = (
    Rule("classes-without-descriptions", lambda d: d.task.needs_descriptions and not d.benchmark.space.attributes),
    Rule("scaling-without-samples", _unfitted),
    Rule("scaling-of-maps", lambda d: d.benchmark.kind != "vectors" and d.experiment.data.features),
    Rule(
        "vectors-for-maps",
        lambda d: (
            d.method.takes == "maps"
            and d.benchmark.kind == "vectors"
            and not (d.has("encoder") and d.benchmark.image_shape is not None)
        ),
    ),
)

MODEL: Sequence[Rule[ModelFacts]] = (
    Rule("generator-of-trained-features", lambda m: m.method.frozen and m.model.backbone.trained),
)


def _empty(p: PresenceFacts) -> dict[str, Any] | None:
    """Return the first round without a client that has samples."""
    empty = [round for round, present in p.rounds().items() if not present]
    return {"round": empty[0]} if empty else None


PRESENCE: Sequence[Rule[PresenceFacts]] = (Rule("round-without-clients", _empty),)
