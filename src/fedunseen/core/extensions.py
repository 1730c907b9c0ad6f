"""What the folders beside the core add to it: sections of the experiment, hooks, rules and
commands.

Each such folder has a module ``extension`` of plain data, which names places (``module:attribute``)
and imports nothing else, so that the command line starts fast. A folder that was deleted adds
nothing. In some folders a further file is enough (:func:`further_modules`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

FOLDERS = ("research", "safety", "deploy", "pages")
"""The folders beside the core, in the order in which what they add is asked."""


@dataclass(frozen=True)
class Section:
    """A section of the experiment.

    Attributes:
        name: of the section.
        settings: place of its settings; "" where its ``name`` chooses a class, which has some.
        table: place of this package's names, each with the place of its class; "" where none is
            chosen.
        entry_points: the group of other packages' classes.
        base: place of the class that every choice derives from.
        folder: package whose further files each are a choice, named by the file; "" where none is.
        optional: it may be left out, which means ``name = "none"``.
        kept: parties are not sent it.
    """

    name: str
    settings: str = ""
    table: str = ""
    entry_points: str = ""
    base: str = ""
    folder: str = ""
    optional: bool = False
    kept: bool = False


@dataclass(frozen=True)
class Command:
    """A command of ``fedunseen``.

    Attributes:
        name: as it is typed.
        place: of its function, or of an app where it is a ``group`` of commands.
        panel: title of the panel that lists it in the help.
        group: it has commands of its own.
    """

    name: str
    place: str
    panel: str
    group: bool = False


_FIRST = (
    Section(
        "data",
        table="fedunseen.data:BENCHMARKS",
        entry_points="fedunseen.benchmarks",
        base="fedunseen.data.base:BenchmarkLoader",
        folder="fedunseen.data.benchmarks",
    ),
    Section(
        "encoder",
        table="fedunseen.encoders:ENCODERS",
        entry_points="fedunseen.encoders",
        base="fedunseen.encoders.backbone:Encoder",
        folder="fedunseen.encoders",
    ),
    Section("partition", settings="fedunseen.federation.partition:PartitionSettings", kept=True),
    Section(
        "growth",
        settings="fedunseen.federation.growth:GrowthSettings",
        optional=True,
        kept=True,
    ),
    Section(
        "method",
        table="fedunseen.methods:METHODS",
        entry_points="fedunseen.methods",
        base="fedunseen.methods.base:Method",
        folder="fedunseen.methods",
    ),
    Section(
        "strategy",
        table="fedunseen.strategies:STRATEGIES",
        entry_points="fedunseen.strategies",
        base="fedunseen.strategies.base:Strategy",
        folder="fedunseen.strategies",
    ),
)
_LAST = (
    Section(
        "compression",
        settings="fedunseen.strategies.compression:CompressionSettings",
        optional=True,
    ),
    Section(
        "engine",
        table="fedunseen.federation:ENGINES",
        entry_points="fedunseen.engines",
        base="fedunseen.federation.engine:Engine",
    ),
    Section("evaluation", settings="fedunseen.evaluation.settings:EvaluationSettings"),
    Section("run", settings="fedunseen.experiment.schema:RunSettings"),
)


def at(place: str) -> Any:
    """Return what is at ``module:attribute``; its module is imported."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


@cache
def extensions() -> tuple[ModuleType, ...]:
    """Return the modules ``extension`` of the folders that are there."""
    package = __name__.partition(".")[0]
    return tuple(
        importlib.import_module(f"{package}.{folder}.extension")
        for folder in FOLDERS
        if find_spec(f"{package}.{folder}") is not None
    )


def added(listing: str) -> list[Any]:
    """Return what all extensions list under a name such as ``HOOKS`` or ``RULES``."""
    return [item for extension in extensions() for item in getattr(extension, listing, ())]


@cache
def sections() -> dict[str, Section]:
    """Return name -> section, in the order in which an experiment lists them."""
    return {section.name: section for section in (*_FIRST, *added("SECTIONS"), *_LAST)}


def kept_sections() -> tuple[str, ...]:
    """Return the names of the sections that parties are not sent, and refuse."""
    return tuple(name for name, section in sections().items() if section.kept)


@cache
def further_modules(package: str) -> tuple[str, ...]:
    """Return the modules of a package that its ``SHARED`` does not name.

    Whoever adds a file to such a package writes no line elsewhere. A file that adds nothing by
    itself is named in ``SHARED``.
    """
    parent = importlib.import_module(package)
    files = iter_modules(parent.__path__)
    return tuple(
        sorted(file.name for file in files if not file.ispkg and file.name not in parent.SHARED)
    )


@cache
def own_names(section: Section) -> Mapping[str, str]:
    """Return this package's names of a section, each with the place of its class.

    A file that no table names has the place ``module:``.
    """
    table = dict(at(section.table))
    for extension in extensions():
        table |= getattr(extension, "NAMES", {}).get(section.name, {})
    if section.folder:
        listed = {place.partition(":")[0] for place in table.values()}
        for module in further_modules(section.folder):
            if (place := f"{section.folder}.{module}") not in listed:
                table[module.replace("_", "-")] = f"{place}:"
    return table


@cache
def commands() -> tuple[Command, ...]:
    """Return the commands that extensions list, and those of further files in ``cli`` folders.

    Such a file has the function of its own name, and may name a ``PANEL`` of the help.
    """
    listed = tuple(added("COMMANDS"))
    listed_modules = {command.place.partition(":")[0] for command in listed}
    parents = (*(extension.__name__.rpartition(".")[0] for extension in extensions()), "fedunseen")
    packages = [f"{parent}.cli" for parent in parents if find_spec(f"{parent}.cli") is not None]
    modules = [f"{package}.{name}" for package in packages for name in further_modules(package)]
    return listed + tuple(map(_command_of, sorted({*modules} - listed_modules)))


def _command_of(module: str) -> Command:
    name = module.rpartition(".")[2]
    parent = importlib.import_module(module)
    if not callable(getattr(parent, name, None)):
        raise TypeError(f"{module} has no function {name!r}: a command's file has that of its name")
    panel = getattr(parent, "PANEL", "Start")
    return Command(name.replace("_", "-"), f"{module}:{name}", panel)
