"""The experiment: one TOML file, one section a choice; presets are such files shipped in the
package.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny

from fedunseen.core.errors import ExperimentError
from fedunseen.core.extensions import at, sections
from fedunseen.core.registry import find
from fedunseen.core.settings import NamedSettings, Settings
from fedunseen.data import DataSettings
from fedunseen.encoders.backbone import EncoderSettings
from fedunseen.evaluation.settings import EvaluationSettings
from fedunseen.experiment.parsing import (
    NAMED,
    OPTIONAL,
    SECTIONS,
    read_tree,
    sections_of,
    validated,
    with_defaults,
)
from fedunseen.experiment.rules import ConfigFacts, check
from fedunseen.federation.engine import EngineSettings
from fedunseen.federation.growth import GrowthSettings
from fedunseen.federation.partition import PartitionSettings
from fedunseen.strategies import StrategySettings
from fedunseen.strategies.compression import CompressionSettings
from fedunseen.tasks.base import Task


class RunSettings(Settings):
    """Seed, device."""

    seed: int = Field(0, ge=0)
    """What every random choice depends on."""
    seeds: int = Field(1, ge=1, le=100)
    """Run with this many seeds, counting up from ``seed``, and report mean and standard
    deviation.
    """
    forgettable: bool = False
    """Keep the state before each round in which a client joins (`partition.join`), so that
    `fedunseen forget` trains again from there and not from the start; a method in closed form needs
    none."""
    keep: int = Field(2, ge=1, le=1_000_000)
    """States after rounds that are kept, the newest ones; `fedunseen rollback` returns to one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; ``auto`` takes a CUDA device if there is one."""


class Experiment(BaseModel):
    """An experiment, read and checked whole: a wrong key or combination is refused before anything
    runs.

    Example:
        >>> experiment = Experiment.load("digit-pairs", {"strategy.rounds": 3})
        >>> experiment.strategy.rounds, experiment.method.name
        (3, 'fedzsl')

    Sections of the folders beside the core (``core.extensions``) are attributes, too.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    data: SerializeAsAny[DataSettings]
    encoder: SerializeAsAny[EncoderSettings]
    partition: PartitionSettings
    growth: GrowthSettings
    method: SerializeAsAny[NamedSettings]
    strategy: SerializeAsAny[StrategySettings]
    compression: CompressionSettings
    engine: SerializeAsAny[EngineSettings]
    evaluation: EvaluationSettings
    run: RunSettings

    if TYPE_CHECKING:

        def __getattr__(self, section: str) -> Any:
            """Return the settings of a section that an extension adds."""

    @property
    def deployed(self) -> bool:
        """Clients are parties elsewhere."""
        return self.engine.deployed

    @property
    def task(self) -> type[Task]:
        """The task of its method."""
        kind: type[Task] = find("task", find("method", self.method.name).task)
        return kind

    @classmethod
    def load(
        cls, source: str | Path, overrides: Mapping[str, Any] | None = None, in_order: bool = False
    ) -> Self:
        """Read a preset by name or a TOML file by path, and replace single keys.

        Args:
            source: the name of a preset or the path of a file; relative paths within a file are
                relative to it.
            overrides: ``{"section.key": value}``.
            in_order: as for :meth:`from_dict`.

        Raises:
            ExperimentError: the file is missing or not TOML; a section, key, name, type or
                combination is wrong.
        """
        return cls.from_dict(read_tree(source), overrides, Path(source).stem, in_order)

    @classmethod
    def from_dict(
        cls,
        tree: Mapping[str, Any],
        overrides: Mapping[str, Any] | None = None,
        name: str = "",
        in_order: bool = False,
        asks_rules: bool = True,
    ) -> Self:
        """Make an experiment from nested dictionaries, as a TOML file would hold them.

        Args:
            tree: the sections.
            overrides: ``{"section.key": value}``.
            name: of the experiment, if the tree does not say it.
            in_order: apply the overrides in the order given: a ``name`` then drops the settings
                before it that the new choice does not have. Otherwise names are applied first, and
                all other overrides are settings of the new choice.
            asks_rules: refuse combinations of settings; False where a run has them already.

        Raises:
            ExperimentError: a section, key, name, type or combination is wrong.
        """
        rest = dict(tree)
        title: Any = rest.pop("name", name)
        if not isinstance(title, str):
            raise ExperimentError(f"name: input should be a text, not {title!r}")
        completed = with_defaults(sections_of(rest, overrides, in_order))
        for section in NAMED:
            if "name" not in completed.get(section, {}):
                raise ExperimentError(
                    f"{section}.name is missing: say which one, for example --set "
                    f"{section}.name=..."
                )
        settings: dict[str, Any] = {}
        for section in SECTIONS:
            content = completed.get(section, {})
            kind = (
                find(section, str(content["name"])).Settings
                if section in NAMED
                else plain_settings(section)
            )
            settings[section] = validated(kind, section, content)
        experiment = cls.model_construct(name=str(title or "experiment"), **settings)
        if asks_rules:
            experiment._check_combination()
        return experiment

    def with_overrides(self, overrides: Mapping[str, Any]) -> "Experiment":
        """Return this experiment with ``{"section.key": value}`` replaced, checked again."""
        return Experiment.from_dict(self.to_dict(), overrides, name=self.name)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, defaults included, as JSON values; :meth:`from_dict` reads it back."""
        written = {
            section: settings
            for section in SECTIONS
            if (settings := getattr(self, section)).chosen or section not in OPTIONAL
        }
        return {
            "name": self.name,
            **{s: of.model_dump(mode="json", exclude_none=True) for s, of in written.items()},
        }

    def plan_statistics(self, sample: Any = None) -> Any:
        """Return what statistics are of; see :meth:`fedunseen.Statistics.plan`."""
        return at("fedunseen.experiment.planned:plan_of")(self, sample)

    def _check_combination(self) -> None:
        check(ConfigFacts(self))
        choose = self.evaluation.choose
        for combination in itertools.product(*choose.values()) if choose else ():
            settings = dict(zip(choose, combination, strict=True))
            try:
                Experiment.from_dict({**self.to_dict(), "evaluation": {}}, settings)
            except ExperimentError as error:
                raise error.reworded(f"evaluation.choose: {error}") from None


def plain_settings(section: str) -> type[Settings]:
    """Return the settings of a section that chooses no class."""
    kind: type[Settings] = at(sections()[section].settings)
    return kind
