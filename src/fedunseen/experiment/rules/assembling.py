"""Rules about what an experiment is put together of: samples, the model, and who takes part when."""

from collections.abc import Sequence
from typing import Any

from fedunseen.core.parameters import is_statistic
from fedunseen.core.phases import SGD
from fedunseen.core.registry import find
from fedunseen.data.scaling import FITTED
from fedunseen.engines.local.in_process import EngineSettings
from fedunseen.experiment.rules.base import DataFacts, EncoderFacts, ModelFacts, PresenceFacts, Rule, first
from fedunseen.experiment.rules.reading import SEVERAL_LOSSES
from fedunseen.strategies.compression import OF_FORM, Codec
from fedunseen.strategies.selective import kept_for_scoring, travelling

GUARDED = ("attack", "privacy", "growth")

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


def _no_sgd(m: ModelFacts) -> dict[str, Any] | None:
    """Return what to do where a strategy that counts steps has an optimizer with a memory of its own."""
    if m.strategy.lengths != "memory" or all(isinstance(phase.optimiser, SGD) for phase in m.model.phases()):
        return None
    other = "choose another strategy, for example fedavg"
    return {"other": "set method.optimiser = 'sgd'" if hasattr(m.experiment.method, "optimiser") else other}


def _kept_for_scoring(m: ModelFacts) -> dict[str, Any] | None:
    """Return a parameter that scoring needs and that stays with the clients; each of them has a model of its own."""
    if not m.params or not m.strategy.merges:
        return None
    travel = travelling(list(m.params), m.experiment.strategy.shared, m.model.private)
    needed = kept_for_scoring(m.params, travel, (*m.model.private, *m.model.training_only))
    guarded = m.choices(GUARDED, " and ")
    return {"needed": needed[0], "module": needed[0].split(".")[0], "guarded": guarded} if needed else None


def _smaller(m: ModelFacts) -> dict[str, Any] | None:
    """Return the setting under which compression makes no parameter smaller."""
    settings = m.experiment.compression
    if not m.params or settings.name == "none":
        return None
    codec = Codec(settings)
    if any(codec.parts(name, value) is not None for name, value in m.params.items()):
        return None
    own = OF_FORM.get(settings.name)
    return {"cause": f" and compression.{own} = {getattr(settings, own)}" if own else ""}


MODEL: Sequence[Rule[ModelFacts]] = (
    Rule("generator-of-trained-features", lambda m: m.method.frozen and m.model.backbone.trained),
    Rule("start-trained-encoder", lambda m: m.starts_closed and m.model.backbone.trained),
    Rule(
        "not-one-batch",
        lambda m: (
            isinstance(m.experiment.engine, EngineSettings)
            and m.experiment.engine.mode == "batched"
            and not m.model.batched
        ),
    ),
    Rule("steps-not-counted", _no_sgd),
    Rule(
        "shared-without-scores",
        _kept_for_scoring,
        reasons={
            "method.name = {method.name!r} makes classifiers from a merged model": lambda m: m.model.generates,
            "method.name = {method.name!r} is solved from merged sums": lambda m: not m.method.trained,
            "engine.name = {engine.name!r} has the clients' models elsewhere": lambda m: m.distributed,
            "strategy.personal_epochs trains a merged model on": lambda m: (
                m.experiment.strategy.personal_epochs is not None
            ),
            "{guarded} needs a merged one": lambda m: any(m.named(*GUARDED)),
            "defence.name = {defence.name!r} asks a merged one for scores": lambda m: m.asks_scores,
        },
    ),
    Rule("compression-of-nothing", _smaller),
    SEVERAL_LOSSES,
    Rule("defence-without-scores", lambda m: m.asks_scores and (m.model.generates or m.task.name != "zero-shot")),
    Rule(
        "privacy-with-defence",
        lambda m: (
            m.has("privacy")
            and m.has("defence")
            and not find("defence", m.experiment.defence.name)(m.experiment.defence).per_client
        ),
    ),
    # noise may turn a running variance negative
    Rule("privacy-of-statistics", lambda m: m.has("privacy") and first("statistic", filter(is_statistic, m.params))),
)


def _check_defence(p: PresenceFacts) -> None:
    """Let the defence refuse a number of replies; with private noise it judges each reply by itself."""
    if p.has("defence") and not p.has("privacy"):
        defence = find("defence", p.experiment.defence.name)(p.experiment.defence)
        for round, drawn in p.drawn().items():
            defence.check(drawn, round)


def _too_few(p: PresenceFacts) -> dict[str, Any] | None:
    """Return the first round in which fewer clients take part than a sum under masks needs."""
    if not p.masked or (p.get("data", "part") and not p.partition.remote):
        return None  # a party does not have the list of the others
    from fedunseen.secagg.enrolment import colluders, threshold

    clients = len(p.partition.clients)
    least = threshold(clients, colluders(clients))
    few = [(round, drawn) for round, drawn in p.drawn().items() if drawn < least]
    return {"clients": clients, "least": least, "round": few[0][0], "drawn": few[0][1]} if few else None


def _varies(p: PresenceFacts) -> bool:
    """Return whether two sums under masks may be of different clients, although the settings do not allow it."""
    if not p.masked or (p.get("data", "part") and not p.partition.remote):
        return False
    varies = p.experiment.strategy.fraction < 1 or len({tuple(present) for present in p.rounds().values()}) > 1
    return varies and p.experiment.privacy.dropouts == "refuse"


def _too_many(p: PresenceFacts) -> dict[str, Any] | None:
    """Return how many clients there are, if masks are not made for so many."""
    if not p.masked:
        return None
    from fedunseen.secagg.ring import PARTIES  # needs the libraries of masks

    clients = len(p.partition.clients)
    return {"clients": clients, "most": PARTIES} if clients > PARTIES else None


PRESENCE: Sequence[Rule[PresenceFacts]] = (
    Rule("round-without-clients", lambda p: first("round", (i for i, present in p.rounds().items() if not present))),
    Rule("defence-too-few-clients", _check_defence),
    Rule("masks-too-few-clients", _too_few),
    Rule("masks-of-changing-clients", _varies),
    Rule("masks-too-many-clients", _too_many),
)
