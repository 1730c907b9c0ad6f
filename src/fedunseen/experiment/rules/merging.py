"""How updates merge: what needs merging, compression, clients' own models, late updates, peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedunseen.core.phases import SGD
from fedunseen.engines import EngineSettings
from fedunseen.experiment.rules.base import ConfigFacts, ModelFacts, Rule
from fedunseen.strategies.compression import Codec
from fedunseen.strategies.peers import averages
from fedunseen.strategies.selective import kept_for_scoring, travelling

BUFFERED = ("attack", "defence", "privacy", "growth")
GUARDED = ("attack", "privacy", "growth")


def _choices(c: ConfigFacts, sections: Sequence[str], link: str) -> str:
    """Return the choices of these sections in words, for example ``attack.name = 'sign-flip'``."""
    return link.join(f"{section}.name = {name!r}" for section, name in c.named(*sections))


def _buffered(c: ConfigFacts) -> dict[str, Any] | None:
    """Return the setting that lets updates merge as they come, and what may be in its way."""
    buffer, name = c.get("engine", "buffer"), c.experiment.engine.name
    if buffer is None:
        return None
    what = "engine.name = 'buffered'" if name == "buffered" else f"engine.buffer = {buffer}"
    return {"what": what, "others": _choices(c, BUFFERED, ", ")}


def _plain_means(c: ConfigFacts) -> bool:
    """Return whether the merged model is a plain mean of the clients'."""
    return not any(c.named("defence", "privacy", "compression")) and averages(c.strategy(c.experiment.strategy))


READING: Sequence[Rule[ConfigFacts]] = (
    Rule("section-without-merging", lambda c: not c.merging, sections=("defence", "privacy", "compression")),
    Rule("compression-of-exact-updates", lambda c: c.has("compression") and c.strategy.needs_exact_update),
    Rule("compression-of-attacks", lambda c: c.has("attack") and c.has("compression")),
    Rule(
        "client-models",
        lambda c: c.experiment.strategy.personal_epochs is not None,
        reasons={
            "strategy.name = {strategy.name!r} merges none": lambda c: not c.merging,
            "method.name = {method.name!r} is solved from sums, not trained": lambda c: not c.method.trained,
            "method.name = {method.name!r} would train classifiers for each client": lambda c: c.method.generates,
            "method.name = {method.name!r} leaves parameters with the clients": lambda c: (
                c.method.private or (c.method.training_only and "*" not in c.experiment.strategy.shared)
            ),
            "{facts.task.name} methods measure no client's own model": lambda c: not c.task.personalizes,
            "engine.name = {engine.name!r} has the clients' samples elsewhere": lambda c: c.distributed,
            "attack.name = {attack.name!r} has clients that are not honest": lambda c: c.has("attack"),
            "[growth] changes who holds what from round to round": lambda c: c.has("growth"),
        },
    ),
    Rule(
        "head-epochs",
        lambda c: c.experiment.strategy.head_epochs is not None and {"shared": list(c.experiment.strategy.shared)},
        reasons={
            "method.name = {method.name!r} is solved from sums": lambda c: not c.method.trained,
            "method.name = {method.name!r} has several phases of its own": lambda c: c.method.generates,
            "strategy.shared = {shared} leaves nothing with it": lambda c: (
                "*" in c.experiment.strategy.shared or not c.merging
            ),
        },
    ),
    Rule(
        "late-updates",
        _buffered,
        reasons={
            "strategy.name = {strategy.name!r} merges nothing": lambda c: not c.merging,
            "strategy.name = {strategy.name!r} takes more than the mean of updates that began together": lambda c: (
                not c.strategy.merges_by_mean or c.strategy.needs_exact_update
            ),
            "method.name = {method.name!r} is solved from sums": lambda c: not c.method.trained,
            "method.exclusive asks who had a share in the last merge": lambda c: c.get("method", "exclusive"),
            "strategy.fraction = {strategy.fraction:g} lets some clients rest": lambda c: (
                c.experiment.strategy.fraction != 1
            ),
            "clients come and go (partition.join, partition.leave)": lambda c: (
                c.experiment.partition.join or c.experiment.partition.leave
            ),
            "{others} is about rounds of clients that began together": lambda c: any(c.named(*BUFFERED)),
            "privacy.aggregation = 'masked' adds up the updates of one round, from one model": lambda c: c.masked,
        },
    ),
    Rule("exclusive-peers", lambda c: c.get("method", "exclusive") and not _plain_means(c)),
    Rule("shared-without-merging", lambda c: not c.strategy.merges and c.experiment.strategy.shared != ("*",)),
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
    guarded = _choices(m, GUARDED, " and ")
    return {"needed": needed[0], "module": needed[0].split(".")[0], "guarded": guarded} if needed else None


def _smaller(m: ModelFacts) -> dict[str, Any] | None:
    """Return the setting under which compression makes no parameter smaller."""
    settings = m.experiment.compression
    if not m.params or settings.name == "none":
        return None
    codec = Codec(settings)
    if any(codec.parts(name, value) is not None for name, value in m.params.items()):
        return None
    cause = {
        "top-k": f" and compression.keep = {settings.share:g}",
        "low-rank": f" and compression.rank = {settings.columns}",
    }
    return {"cause": cause.get(settings.name, "")}


MODEL: Sequence[Rule[ModelFacts]] = (
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
)
