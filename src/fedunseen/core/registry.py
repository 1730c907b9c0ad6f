"""Find a benchmark, encoder, method, strategy, attack, defence, engine or task by name.

A name is one of this package, one of another package's entry points, or one that a Python file
registers.

A file adds a class with ``@fedunseen.register`` above it, and ``--plugin FILE`` loads it before
anything is looked for. Every process that a run starts does so too: the environment variable
``FEDUNSEEN_PLUGINS`` lists the files. A run directory names no file to load: predicting with such a
run needs ``--plugin`` again.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, TypeVar

from fedunseen.core.errors import ArgumentError, ExperimentError, FedUnseenError, unknown
from fedunseen.core.extensions import Section, at, own_names, sections

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

VARIABLE = "FEDUNSEEN_PLUGINS"
"""The files that are loaded, separated as paths are on this machine."""

_REGISTERED: defaultdict[str, dict[str, type[Any]]] = defaultdict(dict)
_LOADED: dict[str, str] = {}  # file -> the name of its module

Kind = TypeVar("Kind", bound=type[Any])


def lazily(
    package: str, table: Mapping[str, str], **modules: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package (PEP 562), so that one class does not
    load all others.

    It has the classes of ``table``, and what is named of its modules.
    """
    places = {place.partition(":")[2]: place for place in table.values()}
    places |= {
        name: f"{package}.{module}:{name}"
        for module, class_names in modules.items()
        for name in class_names
    }

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return at(places[name])

    return find, lambda: sorted({*vars(sys.modules[package]), *places})


TASK = Section(
    "task",
    table="fedunseen.tasks:TASKS",
    entry_points="fedunseen.tasks",
    base="fedunseen.tasks.base:Task",
)
"""Tasks are chosen by methods, and not by a section of the experiment."""


def choosable() -> dict[str, Section]:
    """Return name -> section for each whose ``name`` chooses a class, and ``task``."""
    return {
        name: section for name, section in (*sections().items(), ("task", TASK)) if section.base
    }


def package_names(section: str) -> Mapping[str, str]:
    """Return this package's names of a section, each with the place of its class,
    ``module:Class``.
    """
    return own_names(choosable()[section])


def names(section: str) -> list[str]:
    """Return the known names of a section (``data``, ``encoder``, ``method``, ``strategy``,
    ``attack`` ...).
    """
    return sorted(
        {
            *package_names(section),
            *_registered(section),
            *(entry.name for entry in _entry_points(section)),
        }
    )


def names_with(section: str, trait: str) -> list[str]:
    """Return the names of a section whose class has a trait, an attribute that is true; without
    those of other packages that cannot be loaded.
    """
    able = []
    for name in names(section):
        with suppress(ExperimentError):
            if getattr(find(section, name), trait):
                able.append(name)
    return able


def _entry_points(section: str) -> EntryPoints:
    """Return what other packages declare for a section."""
    from importlib.metadata import entry_points  # the command line starts without it

    return entry_points(group=choosable()[section].entry_points)


def find(section: str, name: str) -> type[Any]:
    """Return the class registered as ``name`` in a section."""
    registered = _registered(section)  # first: a file that cannot be loaded is refused for any name
    if place := package_names(section).get(name):
        kind: type[Any] = _of_file(section, name, place) if place.endswith(":") else at(place)
        return kind
    if name in registered:
        return registered[name]
    for entry in _entry_points(section):
        if entry.name == name:
            try:
                loaded: type[Any] = entry.load()
                if not issubclass(loaded, base := at(choosable()[section].base)):
                    raise TypeError(f"{loaded.__name__} is not a {base.__name__}")
            except Exception as error:  # another package's code: it may raise anything
                package = entry.dist.name if entry.dist else "another package"
                raise ExperimentError(
                    f"{section}.name: {name!r} of {package} cannot be loaded "
                    f"({type(error).__name__}: {error}): fix or update that package"
                ) from error
            return loaded
    raise ExperimentError(
        f"{section}.name: "
        + unknown("benchmark" if section == "data" else section, name, names(section))
    )


def _of_file(section: str, name: str, place: str) -> type[Any]:
    """Return the class of a file that no table names: the one whose settings have its name."""
    module = importlib.import_module(place.rstrip(":"))
    base = at(choosable()[section].base)
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, base):
            settings: Any = kind.Settings  # type: ignore[attr-defined]
            if settings.model_fields["name"].default == name:
                return kind
    raise ExperimentError(
        f"{section}.name: {module.__file__} has no {base.__name__} of the name {name!r}: write "
        f"`class Mine({base.__name__}, name={name!r})`, or name the module in SHARED of its package"
    )


def register(section: str, name: str) -> Callable[[Kind], Kind]:
    """Return a decorator that registers a class under a name.

    A class that inherits its ``Settings`` gets some of its own, which differ in the name alone. A
    name may be registered again by the same module, as a notebook does whose cell runs twice: the
    last class counts.

    Args:
        section: of the experiment, in which ``name`` will choose it: ``data``, ``encoder``,
            ``method``, ``strategy``, ``attack``, ``screening``, ``defence``, ``engine`` or
            ``task``.
        name: by which the experiment names it.

    Raises:
        ArgumentError: there is no such section, the class is of another kind, or the name is taken:
            by this package, another package or another file.

    Example:
        >>> from fedunseen import Experiment
        >>> from fedunseen.methods import FedZSL
        >>> @register("method", "fedzsl-twice")
        ... class Twice(FedZSL):
        ...     def loss(self, params, batch, context):
        ...         loss, terms = super().loss(params, batch, context)
        ...         return 2 * loss, {**terms, "loss": 2 * loss}
        >>> Experiment.load("digit-pairs", {"method.name": "fedzsl-twice"}).method.name
        'fedzsl-twice'
    """
    if section not in choosable():
        raise ArgumentError(unknown("section", section, list(choosable())))

    def add(kind: Kind) -> Kind:
        base = at(choosable()[section].base)
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise ArgumentError(
                f"{section} {name!r}: {kind.__name__} is not a {base.__name__}: derive it from "
                f"{base.__module__}.{base.__name__}"
            )
        if taker := _taker(section, name, kind):
            raise ArgumentError(
                f"{section} {name!r} comes with {taker}: register {kind.__name__} under another "
                "name"
            )
        settings = getattr(kind, "Settings", None)
        if settings is not None and settings.model_fields["name"].default != name:
            from fedunseen.core.settings import (
                name_settings,
            )  # loads pydantic, without which the command line starts

            name_settings(kind, name)
        _REGISTERED[section][name] = kind
        return kind

    return add


def _taker(section: str, name: str, kind: type[Any]) -> str:
    """Return whose the name of a class is already, or ""."""
    if name in package_names(section):
        return "fedunseen"
    earlier = _REGISTERED[section].get(name)
    if earlier and earlier.__module__ != kind.__module__ and kind.__module__ in _LOADED.values():
        return next(
            (file for file, module in _LOADED.items() if module == earlier.__module__),
            earlier.__module__,
        )
    return next(
        (
            e.dist.name if e.dist else "another package"
            for e in _entry_points(section)
            if e.name == name
        ),
        "",
    )


def announce(files: list[Path] | None) -> None:
    """Have files loaded by this process, once something is looked for by name, and by those that it
    starts.
    """
    for file in files or ():
        if not file.is_file():
            raise ExperimentError(f"--plugin {file}: there is no such file")
        announced = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = os.pathsep.join(filter(None, [announced, str(file.resolve())]))


def announced() -> list[str]:
    """Return the announced files, relative to the current folder where they lie in it."""
    files = [Path(file) for file in os.environ.get(VARIABLE, "").split(os.pathsep) if file]
    here = Path.cwd()
    return [str(file.relative_to(here) if file.is_relative_to(here) else file) for file in files]


def _registered(section: str) -> dict[str, type[Any]]:
    """Return the classes that were registered for a section, by name, after a look at the announced
    files.
    """
    for file in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        if file not in _LOADED:
            _load(file)
    return _REGISTERED[section]


def _load(file: str) -> None:
    before = sum(map(len, _REGISTERED.values()))
    module_name = f"fedunseen_plugin_{Path(file).stem}"
    while module_name in _LOADED.values():  # of a file of the same name in another folder
        module_name += "_"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ExperimentError(f"--plugin {file}: give a Python file, which ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    _LOADED[file] = module_name  # now: the file itself may look for classes
    try:
        spec.loader.exec_module(module)
        if sum(map(len, _REGISTERED.values())) == before:
            raise ExperimentError(
                f'--plugin {file} registers nothing: write @fedunseen.register("method", "NAME") '
                "above a class"
            )
    except (Exception, SystemExit) as error:  # another's code: it may raise anything
        del _LOADED[file]  # it is refused again where something else is looked for
        line = line_in(spec.origin, error)
        if isinstance(error, FedUnseenError):
            raise (
                error.reworded(f"--plugin {file}, line {line}: {error}") if line else error
            ) from None
        place = f", line {line}" if line else ""  # a syntax error names its line itself
        raise ExperimentError(
            f"--plugin {file}{place} cannot be loaded ({type(error).__name__}: {error}): fix that "
            "file"
        ) from error


def fault(error: BaseException) -> str:
    """Return the sentence about an error that the code of a loaded file has raised, or ""."""
    for file, module in _LOADED.items():
        if line := line_in(sys.modules[module].__file__, error):
            reason = " ".join([f"{type(error).__name__}:", *str(error).strip().splitlines()[:1]])
            return f"--plugin {file}, line {line} fails ({reason.rstrip(':')}): fix that file"
    return ""


def line_in(file: str | None, error: BaseException) -> int:
    """Return the last line of a file in an error's traceback; 0 where the error did not pass it."""
    return [
        0,
        *(line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file),
    ][-1]
