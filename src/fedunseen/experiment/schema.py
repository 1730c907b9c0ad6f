"""The experiment: one TOML file, one section a choice; presets are such files shipped in the package."""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError

from fedunseen.core.errors import ExperimentError, unknown
from fedunseen.core.presets import experiment_text, preset_names, preset_text
from fedunseen.core.settings import NamedSettings, Settings
from fedunseen.data import DataSettings, GrowthSettings, PartitionSettings
from fedunseen.encoders import EncoderSettings
from fedunseen.engines import DistributedSettings, EngineSettings
from fedunseen.experiment.registry import find
from fedunseen.experiment.rules import READING, Chosen, obey
from fedunseen.strategies import StrategySettings
from fedunseen.strategies.compression import CompressionSettings
from fedunseen.tasks import EvaluationSettings
from fedunseen.threats.defences import DefenceSettings
from fedunseen.threats.privacy import PrivacySettings

__all__ = ["EvaluationSettings", "Experiment", "RunSettings", "parse_override", "preset_names", "preset_text"]

SECTIONS = (
    "data",
    "encoder",
    "partition",
    "growth",
    "method",
    "strategy",
    "attack",
    "screening",
    "defence",
    "privacy",
    "compression",
    "engine",
    "evaluation",
    "run",
)
NAMED = ("data", "encoder", "method", "strategy", "attack", "screening", "defence", "engine")  # sections with a choice
OPTIONAL = ("growth", "attack", "screening", "defence", "privacy", "compression")  # not written where they are "none"


class RunSettings(Settings):
    """Seed, device."""

    seed: int = Field(0, ge=0)
    """What every random choice depends on."""
    seeds: int = Field(1, ge=1, le=100)
    """Run with this many seeds, counting up from ``seed``, and report mean and standard deviation."""
    forgettable: bool = False
    """Keep the state before each round in which a client takes part for the first time, so that `fedunseen forget`
    trains again from there and not from the start; a method in closed form needs none."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; ``auto`` takes a CUDA device if there is one."""


class Experiment(BaseModel):
    """An experiment, read and checked whole: a wrong key or combination is refused before anything runs.

    Example:
        >>> experiment = Experiment.load("digit-pairs", {"strategy.rounds": 3})
        >>> experiment.strategy.rounds, experiment.method.name
        (3, 'fedzsl')
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    data: SerializeAsAny[DataSettings]
    encoder: SerializeAsAny[EncoderSettings]
    partition: PartitionSettings
    growth: GrowthSettings
    method: SerializeAsAny[NamedSettings]
    strategy: SerializeAsAny[StrategySettings]
    attack: SerializeAsAny[NamedSettings]
    screening: SerializeAsAny[NamedSettings]
    defence: SerializeAsAny[DefenceSettings]
    privacy: PrivacySettings
    compression: CompressionSettings
    engine: SerializeAsAny[EngineSettings | DistributedSettings]
    evaluation: EvaluationSettings
    run: RunSettings

    @classmethod
    def load(cls, source: str | Path, overrides: Mapping[str, Any] | None = None, in_order: bool = False) -> Self:
        """Read a preset by name or a TOML file by path, and replace single keys.

        Args:
            source: the name of a preset or the path of a file; relative paths within a file are relative to it.
            overrides: ``{"section.key": value}``.
            in_order: as for :meth:`from_dict`.

        Raises:
            ExperimentError: the file is missing or not TOML; a section, key, name, type or combination is wrong.
        """
        text, folder = experiment_text(source)
        try:
            tree = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ExperimentError(f"{source}: this is not a TOML file: {error}") from None
        _resolve_paths(tree, folder)
        return cls.from_dict(tree, overrides, Path(source).stem, in_order)

    @classmethod
    def from_dict(
        cls,
        tree: Mapping[str, Any],
        overrides: Mapping[str, Any] | None = None,
        name: str = "",
        in_order: bool = False,
    ) -> Self:
        """Make an experiment from nested dictionaries, as a TOML file would hold them.

        Args:
            tree: the sections.
            overrides: ``{"section.key": value}``.
            name: of the experiment, if the tree does not say it.
            in_order: apply the overrides in the order given: a ``name`` then drops the settings before it that the new
                choice does not have. Otherwise names are applied first, and all other overrides are settings of the new
                choice.

        Raises:
            ExperimentError: a section, key, name, type or combination is wrong.
        """
        sections = {key: dict(value) if isinstance(value, Mapping) else value for key, value in tree.items()}
        title: Any = sections.pop("name", name)
        if not isinstance(title, str):
            raise ExperimentError(f"name: input should be a text, not {title!r}")
        for section, content in sections.items():
            if section not in SECTIONS:
                raise ExperimentError(unknown("section", section, SECTIONS))
            if not isinstance(content, dict):
                raise ExperimentError(f"{section}: this is a section; write its settings as {section}.key = value")
        for key, value in sorted(
            (overrides or {}).items(), key=lambda told: not (in_order or told[0].endswith(".name"))
        ):
            _override(sections, key, value)
        for section in ("encoder", *OPTIONAL):
            sections[section] = {"name": "none", **sections.get(section, {})}
        sections["engine"] = {"name": "in-process", **sections.get("engine", {})}
        if isinstance(method := sections.get("method", {}).get("name"), str) and not find("method", method).trained:
            # a closed form takes one round, and its sums are added up whatever the strategy
            sections["strategy"] = {"name": "fedavg", "rounds": 1, **sections.get("strategy", {})}
        for section in NAMED:
            if "name" not in sections.get(section, {}):
                raise ExperimentError(f"{section}.name is missing: say which one, for example --set {section}.name=...")
        kinds: dict[str, type[BaseModel]] = {
            **{section: find(section, str(sections[section]["name"])).Settings for section in NAMED},
            "partition": PartitionSettings,
            "growth": GrowthSettings,
            "privacy": PrivacySettings,
            "compression": CompressionSettings,
            "evaluation": EvaluationSettings,
            "run": RunSettings,
        }
        made: dict[str, Any] = {
            section: _validated(kinds[section], section, sections.get(section, {})) for section in SECTIONS
        }
        experiment = cls.model_construct(name=title or "experiment", **made)
        experiment._check_combination()
        return experiment

    def with_overrides(self, overrides: Mapping[str, Any]) -> Experiment:
        """Return this experiment with ``{"section.key": value}`` replaced, checked again."""
        return Experiment.from_dict(self.to_dict(), overrides, name=self.name)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, defaults included, as JSON values; :meth:`from_dict` reads it back."""
        there = [s for s in SECTIONS if s not in OPTIONAL or getattr(self, s).name != "none" or self._masked(s)]
        return {
            "name": self.name,
            **{s: getattr(self, s).model_dump(mode="json", exclude_none=True) for s in there},
        }

    def _masked(self, section: str) -> bool:
        return section == "privacy" and self.privacy.aggregation == "masked"

    def _check_combination(self) -> None:
        obey(READING, Chosen(self))
        choose = self.evaluation.choose
        for combination in itertools.product(*choose.values()) if choose else ():
            try:
                settings = dict(zip(choose, combination, strict=True))
                Experiment.from_dict({**self.to_dict(), "evaluation": {}}, settings)
            except ExperimentError as error:
                raise ExperimentError(f"evaluation.choose: {error}") from None


def parse_override(text: str) -> tuple[str, Any]:
    """Read one ``section.key=value`` of the command line; the value is TOML, or else taken as a string.

    TOML has no word for a setting that is not set: ``null`` unsets what a preset or a file has set.

    Raises:
        ExperimentError: there is no ``=`` or no section.

    Example:
        >>> parse_override("method.lr=0.1"), parse_override("strategy.name=fedprox")
        (('method.lr', 0.1), ('strategy.name', 'fedprox'))
    """
    key, equals, value = text.partition("=")
    if not equals or "." not in key:
        raise ExperimentError(f"--set {text}: write it as section.key=value, for example --set strategy.rounds=10")
    if value.strip() == "null" and not key.strip().endswith(".name"):
        return key.strip(), None
    try:
        read = tomllib.loads(f"value = {value}")["value"]
        named = key.strip().endswith(".name") and not isinstance(read, str)  # a name may look like a number: nan
        return key.strip(), value.strip() if named else read
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


_PATHS = (
    ("data", "root"),
    ("data", "splits"),
    ("data", "classes"),
    ("encoder", "model"),
    ("partition", "file"),
    ("attack", "folder"),
)


def _resolve_paths(tree: Mapping[str, Any], folder: Path) -> None:
    for section, key in _PATHS:
        content = tree.get(section)
        if isinstance(content, dict) and isinstance(content.get(key), str):
            content[key] = str(folder / Path(content[key]).expanduser())
    growth = tree.get("growth")
    corrected = growth.get("corrected") if isinstance(growth, dict) else None
    if isinstance(growth, dict) and isinstance(corrected, dict):
        growth["corrected"] = {
            key: str(folder / Path(value).expanduser()) if isinstance(value, str) else value
            for key, value in corrected.items()
        }
    encoder = tree.get("encoder")
    if isinstance(encoder, dict) and isinstance(weights := encoder.get("weights"), str) and (folder / weights).is_dir():
        encoder["weights"] = str(folder / weights)  # a folder; anything else is a name in a hub


def _override(sections: dict[str, Any], key: str, value: Any) -> None:
    section, _, setting = key.partition(".")
    if not setting:
        raise ExperimentError(f"{key}: name a setting as section.key, for example strategy.rounds")
    if section not in SECTIONS:
        raise ExperimentError(f"{key}: " + unknown("section", section, SECTIONS))
    content = dict(sections.get(section, {}))
    # A new choice keeps the settings that the old one has in common with it, none if they are of different families.
    if setting == "name" and section in NAMED and content.get("name") != value:
        old, new = (find(section, str(name)).Settings for name in (content.get("name", value), value))
        alike = _family(old) is _family(new)  # a learning rate, say, means something else in another family
        content = {k: v for k, v in content.items() if alike and k in new.model_fields}
        if section == "method" and not find("method", str(value)).trained:  # which has no use for another's rounds
            strategy = dict(sections.get("strategy", {}))
            sections["strategy"] = {k: v for k, v in strategy.items() if k != "rounds"}
    first, dot, rest = setting.partition(".")
    if dot:  # a key of a table, as in evaluation.choose."method.lr" or partition.join.5-9
        table = content.get(first, {})
        content[first] = {**(table if isinstance(table, Mapping) else {}), rest.strip('"'): value}
    else:
        content[setting] = value
    sections[section] = content


def _family(settings: type[BaseModel]) -> type[BaseModel]:
    """Return the base that settings of one kind have in common: the last one before :class:`NamedSettings`."""
    bases = settings.__mro__
    return bases[max(0, bases.index(NamedSettings) - 1)] if NamedSettings in bases else settings


def _validated(kind: type[BaseModel], section: str, content: Mapping[str, Any]) -> BaseModel:
    """Validate one section; the first thing wrong becomes one sentence."""
    for key, value in content.items():  # pydantic takes true for 1, and infinity for a number
        wanted = kind.model_fields[key].annotation if key in kind.model_fields else None
        wanted_types = {wanted, *get_args(wanted)}
        if isinstance(value, bool) and wanted_types & {int, float} and bool not in wanted_types:
            raise ExperimentError(f"{section}.{key}: input should be a number, not {str(value).lower()}")
        _check_numbers(f"{section}.{key}", value)
    try:
        return kind.model_validate(dict(content))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
    place = ".".join([section, *(str(part) for part in problem["loc"])])
    if problem["type"] == "extra_forbidden":
        raise ExperimentError(f"{section}: " + unknown("key", str(problem["loc"][-1]), _keys(kind, problem["loc"])))
    if problem["type"] == "missing":
        raise ExperimentError(f"{place} is missing: add it to the experiment or give --set {place}=...")
    if problem["type"] == "value_error":
        raise ExperimentError(f"{section}: {problem['ctx']['error']}")
    if problem["type"] == "literal_error" and isinstance(problem["input"], str):
        known = [text.strip("'") for text in re.split(", | or ", problem["ctx"]["expected"])]
        raise ExperimentError(f"{place}: " + unknown("value", problem["input"], known))
    if problem["type"] == "too_short":
        raise ExperimentError(f"{place}: there is nothing in it: give at least one, or leave it out")
    message = problem["msg"][0].lower() + problem["msg"][1:]
    message = message.replace("a valid tuple", "a list in square brackets").replace("a valid dictionary", "a table")
    raise ExperimentError(f"{place}: {message}, not {problem['input']!r}")


_LARGEST = 3.4e38  # in float32, which models are trained in
_LONGEST = 2**63


def _check_numbers(place: str, value: object) -> None:
    """Refuse numbers that no arithmetic here can hold, also within lists and tables."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ExperimentError(f"{place}: input should be a finite number, not {value}")
    if isinstance(value, float) and abs(value) > _LARGEST:
        raise ExperimentError(f"{place}: input should be a number that float32 holds, at most 3.4e38, not {value:g}")
    if isinstance(value, int) and abs(value) >= _LONGEST:
        raise ExperimentError(f"{place}: input should be a whole number of 64 bits, below 2^63")
    for one in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        _check_numbers(place, one)


def _keys(kind: type[BaseModel], location: Iterable[int | str]) -> list[str]:
    return list(kind.model_fields)
