"""An experiment file as text: sections, overrides, and what can be refused before PyTorch is
loaded.

:class:`fedunseen.experiment.schema.Experiment` checks an experiment whole, and needs the classes of
all its choices for it. Loading them takes seconds, and a misspelled name should be reported before.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fedunseen.core.errors import ExperimentError, shortened, unknown
from fedunseen.core.extensions import sections
from fedunseen.core.presets import data_folder, experiment_text, is_shipped
from fedunseen.core.registry import VARIABLE, find, names, package_names
from fedunseen.core.settings import FileText, NamedSettings
from fedunseen.core.toml import parse_toml

SECTIONS = tuple(sections())
NAMED = tuple(name for name, section in sections().items() if section.base)
"""Sections whose ``name`` chooses a class."""
OPTIONAL = tuple(name for name, section in sections().items() if section.optional)
"""Sections that are not written where they are ``none``."""


def read_tree(source: str | Path) -> dict[str, Any]:
    """Read a preset by name or a TOML file by path, as nested dictionaries; its paths are relative
    to the file.

    A preset's data that are not here are looked for as ``fedunseen data list`` does.
    """
    text, folder = experiment_text(source)
    tree: dict[str, Any] = FileText.within(
        parse_toml(text, source), lambda path: folder / path.expanduser()
    )
    data = tree.get("data", {})
    kind = find("data", data["name"]) if is_shipped(Path(source)) else None
    if kind is None or "root" not in kind.Settings.model_fields:
        return tree
    if not Path(data.get("root") or "no root").is_dir() and (places := kind.search(data_folder())):
        matching = (place for place in places if place.name == data.get("dataset"))
        tree["data"] = {**data, "root": kind.section(next(matching, places[0]))["root"]}
    return tree


def sections_of(
    tree: Mapping[str, Any], overrides: Mapping[str, Any] | None = None, in_order: bool = False
) -> dict[str, Any]:
    """Return the sections of a tree with overrides in place: see :meth:`Experiment.from_dict`."""
    sections = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in tree.items()
    }
    for section, content in sections.items():
        if section not in SECTIONS:
            raise ExperimentError(unknown("section", section, SECTIONS))
        if not isinstance(content, dict):
            raise ExperimentError(
                f"{section}: this is a section; write its settings as {section}.key = value"
            )
    for key, value in sorted(
        (overrides or {}).items(), key=lambda item: not (in_order or item[0].endswith(".name"))
    ):
        _override(sections, key, value)
    return sections


def glance(source: str | Path, overrides: Mapping[str, Any] | None = None) -> None:
    """Refuse what shows at once: unknown choices, settings of the data, their folder and
    classes.
    """
    tree = {key: value for key, value in read_tree(source).items() if key != "name"}
    overrides = overrides or {}
    sections = sections_of(tree)
    for section, content in sections.items():
        _check_choice(section, content.get("name"))
    for key, value in overrides.items():
        section, setting = _section_of(key)
        if setting == "name":
            _check_choice(section, value)
    chosen = {
        key: value
        for key, value in overrides.items()
        if key == "data.name" or not key.endswith(".name")
    }
    data = sections_of(sections, chosen).get("data", {})
    if isinstance(name := data.get("name"), str):
        benchmark = find("data", name)
        benchmark.glance(validated(benchmark.Settings, "data", data))


def _check_choice(section: str, name: object) -> None:
    """Refuse a choice that no package has, without loading it."""
    if section not in NAMED or not isinstance(name, str) or name == "none":
        return
    if name not in package_names(section) and name not in names(section):
        find(section, name)  # raises with the known names


def check_known(experiment: Mapping[str, Any], plugins: object) -> None:
    """Refuse an experiment of a run whose class is not here; ``plugins`` are the files that the run
    had.
    """
    for section in NAMED:
        name = (
            content.get("name") if isinstance(content := experiment.get(section), Mapping) else None
        )
        if (
            isinstance(name, str)
            and name not in package_names(section)
            and name not in names(section)
        ):
            source = (
                f"a plugin ({shortened(', '.join(map(str, plugins)))})"
                if isinstance(plugins, list)
                else "another package"
            )
            raise ExperimentError(
                f"{section}.name: {shortened(name)!r} of this run comes from {source}: give the "
                f"file with --plugin FILE or in {VARIABLE}, or install its package"
            )


def parse_override(text: str) -> tuple[str, Any]:
    """Read one ``section.key=value`` of the command line; the value is TOML, or else taken as a
    string.

    TOML has no word for a setting that is not set: ``null`` unsets what a preset or a file has set.
    """
    key, equals, value = text.partition("=")
    if not equals or "." not in key:
        raise ExperimentError(
            f"--set {text}: write it as section.key=value, for example --set strategy.rounds=10"
        )
    if value.strip() == "null" and not key.strip().endswith(".name"):
        return key.strip(), None
    try:
        read = parse_toml(f"value = {value}", key)["value"]
        numeric_name = key.strip().endswith(".name") and not isinstance(
            read, str
        )  # a name may look like a number: nan
        return key.strip(), value.strip() if numeric_name else read
    except ExperimentError:
        return key.strip(), value.strip()


def located(tree: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """Return the experiment of a run, whose settings will have its relative paths as they are seen
    from here.

    A run is usually written below the folder that it was started in, so its paths are looked for in
    the folders above it. Without a match there, a path stays relative to here.
    """

    def locate(path: Path) -> Path:
        places = (above / path for above in run.resolve().parents)
        place = next(
            (
                candidate
                for candidate in places
                if candidate.exists() and not (candidate / "manifest.json").exists()
            ),
            None,
        )
        unchanged = path.is_absolute() or place is None or place.resolve() == path.resolve()
        return path if unchanged or place is None else place

    located: dict[str, Any] = FileText.within(tree, locate)
    return located


def _section_of(key: str) -> tuple[str, str]:
    """Take ``section.setting`` apart."""
    section, _, setting = key.partition(".")
    if not setting:
        raise ExperimentError(f"{key}: name a setting as section.key, for example strategy.rounds")
    if section not in SECTIONS:
        raise ExperimentError(f"{key}: " + unknown("section", section, SECTIONS))
    return section, setting


def _override(sections: dict[str, Any], key: str, value: Any) -> None:
    section, setting = _section_of(key)
    content = dict(sections.get(section, {}))
    # A new choice keeps the settings that the old one has in common with it, none if they are of
    # different families.
    if setting == "name" and section in NAMED and content.get("name") != value:
        new, old = (
            find(section, str(name)).Settings for name in (value, content.get("name", value))
        )
        alike = _family(old) is _family(
            new
        )  # a learning rate, say, means something else in another family
        content = {k: v for k, v in content.items() if alike and k in new.model_fields}
        if section == "strategy":  # a server's rate of FedAdam is a hundredth of FedAvg's
            content = {k: v for k, v in content.items() if _default(new, k) == _default(old, k)}
        if section == "method" and in_closed_form(
            {"method": {"name": value}}
        ):  # which needs no other's rounds
            sections["strategy"] = {
                k: v for k, v in sections.get("strategy", {}).items() if k != "rounds"
            }
    first, dot, rest = setting.partition(".")
    if dot:  # a key of a table, as in evaluation.choose."method.lr" or partition.join.5-9
        table = content.get(first, {})
        content[first] = {**(table if isinstance(table, Mapping) else {}), rest.strip('"'): value}
    else:
        content[setting] = value
    sections[section] = content


def in_closed_form(sections: Mapping[str, Any]) -> bool:
    """Say whether sections name a method in closed form."""
    name = sections.get("method", {}).get("name")
    return isinstance(name, str) and not find("method", name).trained


def with_defaults(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return sections with what is left out: a closed form takes one round, and any strategy adds
    its sums.
    """
    whole = {
        section: {"name": "none", **sections.get(section, {})} for section in ("encoder", *OPTIONAL)
    }
    whole |= {**sections, **whole, "engine": {"name": "in-process", **sections.get("engine", {})}}
    if in_closed_form(sections):
        whole["strategy"] = {"name": "fedavg", "rounds": 1, **sections.get("strategy", {})}
    return whole


def _family(settings: type[BaseModel]) -> type[BaseModel]:
    """Return the base that settings of one kind have in common: the last one before
    :class:`NamedSettings`.
    """
    bases = settings.__mro__
    return bases[max(0, bases.index(NamedSettings) - 1)] if NamedSettings in bases else settings


def _default(settings: type[BaseModel], key: str) -> Any:
    """Return the default of a setting, None where there is no such setting."""
    return settings.model_fields[key].default if key in settings.model_fields else None


def validated(kind: type[BaseModel], section: str, content: Mapping[str, Any]) -> BaseModel:
    """Validate one section by its settings."""
    for key, value in content.items():  # pydantic takes true for 1, and infinity for a number
        wanted = kind.model_fields[key].annotation if key in kind.model_fields else None
        wanted_types = {getattr(one, "__origin__", one) for one in (wanted, *get_args(wanted))}
        if isinstance(value, bool) and wanted_types & {int, float} and bool not in wanted_types:
            raise ExperimentError(
                f"{section}.{key}: input should be a number, not {str(value).lower()}"
            )
        _check_numbers(f"{section}.{key}", value)
    try:
        return kind.model_validate(dict(content))
    except ValidationError as error:
        problems = error.errors(include_url=False)
    problem = problems[0]
    kinds = _kinds_of(problems)
    if len(kinds) > 1 and not isinstance(problem["input"], str):
        found = shortened(repr(problem["input"]))
        raise ExperimentError(f"{section}.{problem['loc'][0]}: {', or '.join(kinds)}, not {found}")
    parts = [str(part) for part in problem["loc"]]  # with pydantic's name of one kind of several
    place = ".".join([section, *(part for part in parts if not part.endswith("]"))])
    match problem["type"]:
        case "extra_forbidden":
            sentence = f"{section}: " + unknown("key", str(problem["loc"][-1]), kind.model_fields)
        case "missing":
            sentence = f"{place} is missing: add it to the experiment or give --set {place}=..."
        case "value_error":
            sentence = f"{section}: {problem['ctx']['error']}"
        case "literal_error" if isinstance(problem["input"], str):
            choices = [text.strip("'") for text in re.split(", | or ", problem["ctx"]["expected"])]
            sentence = f"{place}: " + unknown("value", problem["input"], choices)
        case "too_short":
            sentence = f"{place}: there is nothing in it: give at least one, or leave it out"
        case _:
            message = plain_message(problem).replace("a valid tuple", "a list in square brackets")
            sentence = f"{place}: {message}, not {shortened(repr(problem['input']))}"
    raise ExperimentError(sentence)


def _kinds_of(problems: Sequence[ErrorDetails]) -> list[str]:
    """Return what each kind of value wants, where the first problem is of a setting that takes
    several.
    """
    place = problems[0]["loc"]  # empty where settings do not go together
    if len(place) != 2 or not isinstance(place[1], str):
        return []
    key = place[0]
    same = [one for one in problems if len(one["loc"]) == 2 and one["loc"][0] == key]
    return list(dict.fromkeys(plain_message(one) for one in same))


def plain_message(problem: ErrorDetails) -> str:
    """Return what pydantic says of a problem, as the end of a sentence."""
    return (problem["msg"][0].lower() + problem["msg"][1:]).replace("a valid dictionary", "a table")


def _check_numbers(place: str, value: object) -> None:
    """Refuse numbers that no arithmetic here can hold, also within lists and tables."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ExperimentError(f"{place}: input should be a finite number, not {value}")
    if isinstance(value, float) and abs(value) > 3.4e38:  # in float32, which models are trained in
        raise ExperimentError(
            f"{place}: input should be a number that float32 holds, at most 3.4e38, not {value:g}"
        )
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ExperimentError(f"{place}: input should be a whole number of 64 bits, below 2^63")
    for item in (
        value.values()
        if isinstance(value, Mapping)
        else value
        if isinstance(value, list | tuple)
        else ()
    ):
        _check_numbers(place, item)
