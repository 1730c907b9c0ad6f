"""A rule, and the facts that it is asked about: settings alone, then with the data, the model and who takes part."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params
from fedunseen.core.registry import find
from fedunseen.data import Benchmark
from fedunseen.encoders.backbone import Encoder
from fedunseen.engines.remote.coordinator import DistributedSettings
from fedunseen.experiment.parsing import SECTIONS
from fedunseen.federation.federation import drawn_clients
from fedunseen.federation.partition import Partition
from fedunseen.methods import Method
from fedunseen.strategies import Strategy
from fedunseen.tasks.base import Task

if TYPE_CHECKING:
    from fedunseen.evaluation.settings import EvaluationSettings
    from fedunseen.experiment.schema import Experiment

Facts = TypeVar("Facts", bound="ConfigFacts", contravariant=True)


@dataclass(frozen=True)
class Texts:
    """What a rule says: its texts are in the TOML files beside it, and a value in ``{}`` is one of the experiment.

    Attributes:
        problem: what does not fit.
        remedy: what to do about it.
        example: settings that are refused, over those of ``preset``, which is allowed.
        given: the samples, or the place, that the example needs.
    """

    problem: str
    remedy: str
    example: Mapping[str, Any]
    preset: str = "digit-pairs"
    given: str = ""


@cache
def _texts() -> dict[str, Texts]:
    tables = [path for path in files(__package__).iterdir() if path.name.endswith(".toml")]
    return {code: Texts(**of) for path in tables for code, of in tomllib.loads(path.read_text("utf-8")).items()}


@dataclass(frozen=True)
class Rule(Generic[Facts]):
    """A combination of settings that is refused; its texts are in the TOML files beside the rule, under its code.

    Attributes:
        code: stable name of the refusal.
        when: the rule applies; it may return further values for the sentence, or raise an ExperimentError with a
            sentence of its own.
        sections: the rule is asked for each of those that the experiment has, as ``{section}`` and ``{name}``.
        reasons: sentences for ``{reason}``, and when each holds; the rule needs one of them.
    """

    code: str
    when: Callable[[Facts], object] = lambda facts: True
    sections: Sequence[str] = ()
    reasons: Mapping[str, Callable[[Facts], object]] = field(default_factory=dict)

    @property
    def texts(self) -> Texts:
        """The rule's sentence and example."""
        return _texts()[self.code]

    def refusal(self, facts: Facts) -> str | None:
        """Return the sentence that refuses these facts, None if the rule allows them."""
        for section, name in facts.named(*self.sections) if self.sections else [("", "")]:
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
            return f"{self.texts.problem}: {self.texts.remedy}".format_map(values)
        return None


def first(name: str, found: Iterable[Any]) -> dict[str, Any]:
    """Return the first of what does not fit, as a value for the rule's sentence; nothing if all fits."""
    return next(({name: one} for one in found), {})


@dataclass(frozen=True, eq=False)
class ConfigFacts:
    """What an experiment says, and the classes that it names."""

    experiment: Experiment

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
        return self.experiment.privacy.aggregation == "masked"

    @property
    def distributed(self) -> bool:
        """Clients are in other processes."""
        return isinstance(self.experiment.engine, DistributedSettings)

    @property
    def starts_closed(self) -> bool:
        """Training starts from a closed form."""
        return bool(self.get("method", "start") == "closed-form")

    @property
    def losses(self) -> int:
        """How many losses clients compute, as far as it is known: a generative method has several."""
        return 2 if self.method.generates else int(self.method.trained)

    @property
    def asks_scores(self) -> bool:
        """The defence asks the merged model for scores of classes."""
        return self.has("defence") and bool(find("defence", self.experiment.defence.name).asks_scores)

    @property
    def evaluation(self) -> EvaluationSettings:
        """How rounds and settings are chosen, and what is measured."""
        return self.experiment.evaluation

    def has(self, section: str) -> bool:
        """Return whether the experiment has an optional section."""
        return bool(getattr(self.experiment, section).name != "none")

    def get(self, section: str, key: str) -> Any:
        """Return a setting that not every choice of a section has, else None."""
        return getattr(getattr(self.experiment, section), key, None)

    def named(self, *sections: str) -> Iterator[tuple[str, str]]:
        """Yield those of the sections that the experiment has, with their names."""
        for section in sections:
            if self.has(section):
                yield section, getattr(self.experiment, section).name

    def choices(self, sections: Sequence[str], link: str) -> str:
        """Return the choices of these sections in words, for example ``attack.name = 'sign-flip'``."""
        return link.join(f"{section}.name = {name!r}" for section, name in self.named(*sections))


@dataclass(frozen=True, eq=False)
class StartFacts(ConfigFacts):
    """Where a run is started: with parties elsewhere, or with samples in memory."""

    deployed_here: bool = False
    arrays: bool = False


@dataclass(frozen=True, eq=False)
class EncoderFacts(ConfigFacts):
    """An experiment's encoder and the samples that it reads, of the kind and image shape of a benchmark."""

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
        return None if encoder is None else bool(getattr(self.experiment.encoder, "trained", encoder.trained))


@dataclass(frozen=True, eq=False)
class DataFacts(ConfigFacts):
    """An experiment's benchmark, encoded, and whether the scaling of features is fitted to training samples here."""

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
        """Return the clients of round 0 and of every round (counted from 0) before which a client joins or leaves."""
        changes = np.unique(np.concatenate([[0], self.partition.first, self.partition.last])).tolist()
        return {round: self.partition.present(round) for round in changes if round < self.experiment.strategy.rounds}

    def drawn(self) -> dict[int, int]:
        """Return how many clients these rounds draw."""
        fraction = self.experiment.strategy.fraction
        return {round: drawn_clients(fraction, len(present)) for round, present in self.rounds().items()}
