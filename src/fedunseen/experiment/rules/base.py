"""A rule, and the facts that it is asked about: settings alone, then with the data, the model and
who takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params
from fedunseen.core.registry import find
from fedunseen.data import Benchmark, DataSettings
from fedunseen.encoders.backbone import Encoder
from fedunseen.evaluation.settings import EvaluationSettings
from fedunseen.experiment.parsing import SECTIONS
from fedunseen.federation.federation import drawn_clients
from fedunseen.federation.partition import Partition
from fedunseen.methods import Method
from fedunseen.strategies import Strategy
from fedunseen.tasks.base import Task

Facts = TypeVar("Facts", bound="ConfigFacts", contravariant=True)


@dataclass(frozen=True)
class Rule(Generic[Facts]):
    """A combination of settings that is refused.

    Attributes:
        code: stable name of the refusal.
        when: the rule applies; it may return further values for the sentence, or raise an
            ExperimentError with a sentence of its own.
        sections: the rule is asked for each of those that the experiment has, as ``{section}`` and
            ``{name}``.
        reasons: sentences for ``{reason}``, and when each holds; the rule needs one of them.
        problem: what does not fit. In ``{}`` stands a section, as in ``{method.name}``; ``facts``,
            ``section``, ``name``, ``reason``, or what ``when`` returns as a dictionary.
        remedy: what to do about it.
        example: settings that are refused, over those of ``preset``, which is allowed.
        needs: the samples, or the place, that the example needs.
    """

    code: str
    when: Callable[[Facts], object] = lambda facts: True
    sections: Sequence[str] = ()
    reasons: Mapping[str, Callable[[Facts], object]] = field(default_factory=dict)
    problem: str = field(kw_only=True)
    remedy: str = field(kw_only=True)
    example: Mapping[str, Any] = field(kw_only=True)
    preset: str = field(default="digit-pairs", kw_only=True)
    needs: str = field(default="", kw_only=True)

    def refusal(self, facts: Facts) -> str | None:
        """Return the sentence that refuses these facts, None if the rule allows them."""
        for section, name in facts.named_sections(*self.sections) if self.sections else [("", "")]:
            try:
                applies = self.when(facts)
            except ExperimentError as error:
                return str(error)
            if not applies:
                continue
            values = {key: getattr(facts.experiment, key) for key in SECTIONS}
            values |= {"facts": facts, "section": section, "name": name}
            values |= applies if isinstance(applies, dict) else {}
            if self.reasons:
                reason = next((text for text, holds in self.reasons.items() if holds(facts)), None)
                if reason is None:
                    continue
                values["reason"] = reason.format_map(values)
            return f"{self.problem}: {self.remedy}".format_map(values)
        return None


def first(name: str, unfit: Iterable[Any]) -> dict[str, Any]:
    """Return the first of what does not fit, as a value for the rule's sentence; nothing if all
    fits.
    """
    return next(({name: value} for value in unfit), {})


class Chosen(Protocol):
    """An experiment, as rules see it: its sections are attributes."""

    data: DataSettings
    method: Any
    evaluation: EvaluationSettings

    @property
    def deployed(self) -> bool:
        """Clients are parties elsewhere."""

    @property
    def task(self) -> type[Task]:
        """What the method is for."""

    def __getattr__(self, section: str) -> Any:
        """Return the settings of any other section."""


@dataclass(frozen=True, eq=False)
class ConfigFacts:
    """What an experiment says, and the classes that it names."""

    experiment: Chosen

    @property
    def method(self) -> type[Method]:
        """The class of ``method.name``."""
        return find("method", self.experiment.method.name)

    @property
    def strategy(self) -> type[Strategy]:
        """The class of ``strategy.name``."""
        return find("strategy", self.experiment.strategy.name)

    @property
    def task(self) -> type[Task]:
        """What the method is for."""
        return self.experiment.task

    @property
    def merging(self) -> bool:
        """Clients' updates are merged; not so under ``local`` and ``centralised``."""
        return self.strategy.merges and not self.strategy.pools

    @property
    def masked(self) -> bool:
        """The server sees the sum of the updates alone."""
        return bool(self.get("privacy", "aggregation") == "masked")

    @property
    def distributed(self) -> bool:
        """Clients are in other processes."""
        return bool(self.experiment.engine.distributed)

    @property
    def starts_closed(self) -> bool:
        """Training starts from a closed form."""
        return bool(self.get("method", "start") == "closed-form")

    @property
    def losses(self) -> int:
        """How many losses clients compute, as far as it is known: a generative method has
        several.
        """
        return 2 if self.method.generates else int(self.method.trained)

    @property
    def asks_scores(self) -> bool:
        """The defence asks the merged model for scores of classes."""
        return self.has("defence") and bool(
            find("defence", self.experiment.defence.name).asks_scores
        )

    @property
    def evaluation(self) -> EvaluationSettings:
        """How rounds and settings are chosen, and what is measured."""
        return self.experiment.evaluation

    def has(self, section: str) -> bool:
        """Return whether the experiment has an optional section."""
        settings = getattr(self.experiment, section, None)
        return settings is not None and bool(settings.name != "none")

    def get(self, section: str, key: str) -> Any:
        """Return a setting that not every choice of a section has, else None."""
        return getattr(getattr(self.experiment, section, None), key, None)

    def named_sections(self, *sections: str) -> Iterator[tuple[str, str]]:
        """Yield those of the sections that the experiment has, with their names."""
        for section in sections:
            if self.has(section):
                yield section, getattr(self.experiment, section).name

    def choices(self, sections: Sequence[str], link: str) -> str:
        """Return the choices of these sections in words, for example
        ``attack.name = 'sign-flip'``.
        """
        return link.join(
            f"{section}.name = {name!r}" for section, name in self.named_sections(*sections)
        )


@dataclass(frozen=True, eq=False)
class StartFacts(ConfigFacts):
    """Where a run is started: with parties elsewhere, or with samples in memory."""

    deployed_here: bool = False
    arrays: bool = False


@dataclass(frozen=True, eq=False)
class EncoderFacts(ConfigFacts):
    """An experiment's encoder and the samples that it reads, of the kind and image shape of a
    benchmark.
    """

    kind: str
    image_shape: Sequence[int] | None

    @property
    def encoder(self) -> type[Encoder] | None:
        """The class of ``encoder.name``, None for ``none``."""
        return find("encoder", self.experiment.encoder.name) if self.has("encoder") else None

    @property
    def given(self) -> str:
        """What an encoder has to read: ``images`` or ``sequences``."""
        return "sequences" if self.kind == "sequences" else "images"

    @property
    def trained(self) -> bool | None:
        """The encoder is trained; None without one."""
        encoder = self.encoder
        return (
            None
            if encoder is None
            else bool(getattr(self.experiment.encoder, "trained", encoder.trained))
        )


@dataclass(frozen=True, eq=False)
class DataFacts(ConfigFacts):
    """An experiment's benchmark, encoded, and whether the scaling of features is fitted to training
    samples here.
    """

    benchmark: Benchmark
    fits_scaling: bool = True


@dataclass(frozen=True, eq=False)
class ModelFacts(ConfigFacts):
    """An experiment's model, and its parameters before round 0; empty where they are not made."""

    model: Method
    params: Params = field(default_factory=dict)

    @property
    def losses(self) -> int:
        """How many losses clients compute."""
        return len(self.model.phases())


@dataclass(frozen=True, eq=False)
class PresenceFacts(ConfigFacts):
    """Which clients take part in which round."""

    partition: Partition

    def rounds(self) -> dict[int, list[int]]:
        """Return the clients of round 0 and of every round (counted from 0) before which a client
        joins or leaves.
        """
        changes = np.unique(
            np.concatenate([[0], self.partition.first, self.partition.last])
        ).tolist()
        return {
            round: self.partition.present(round)
            for round in changes
            if round < self.experiment.strategy.rounds
        }

    def drawn(self) -> dict[int, int]:
        """Return how many clients these rounds draw."""
        fraction = self.experiment.strategy.fraction
        return {
            round: drawn_clients(fraction, len(present)) for round, present in self.rounds().items()
        }
