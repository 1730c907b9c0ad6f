"""Methods, strategies, encoders ... of one's own without a package: a class, and one line above it.

``fedunseen run digit-pairs --plugin my_loss.py --set method.name=mine`` reads the file before it looks for the name. So
does every process that a run starts, since the files stand in the environment variable ``FEDUNSEEN_PLUGINS``. A run
directory names no file to load: who predicts with such a run gives ``--plugin`` again.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fedunseen.core.errors import ArgumentError, ExperimentError, unknown

__all__ = ["added", "announce", "register"]

VARIABLE = "FEDUNSEEN_PLUGINS"
"""The files that are loaded, separated as paths are on this machine."""

_SECTIONS = ("data", "encoder", "method", "strategy", "attack", "screening", "defence", "engine", "task")
_ADDED: dict[str, dict[str, type[Any]]] = {section: {} for section in _SECTIONS}
_LOADED: set[str] = set()

Kind = TypeVar("Kind", bound=type[Any])


def register(section: str, name: str) -> Callable[[Kind], Kind]:
    """Return what makes a class known by a name, as a decorator.

    A class that inherits its ``Settings`` gets some of its own, which differ in the name alone. A name may be
    registered again, as a notebook does whose cell runs twice: the last class counts.

    Args:
        section: of the experiment, in which ``name`` will choose it: ``data``, ``encoder``, ``method``, ``strategy``,
            ``attack``, ``screening``, ``defence``, ``engine`` or ``task``.
        name: by which the experiment names it.

    Raises:
        ArgumentError: there is no such section, or the name belongs to a class of this package.

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
    if section not in _SECTIONS:
        raise ArgumentError(unknown("section", section, _SECTIONS))

    def add(kind: Kind) -> Kind:
        from fedunseen.experiment.registry import is_own

        if is_own(section, name):
            raise ArgumentError(f"{section} {name!r} comes with fedunseen: register {kind.__name__} under another name")
        settings = getattr(kind, "Settings", None)
        if settings is not None and settings.model_fields["name"].default != name:
            from typing import Literal

            from pydantic import create_model

            own = create_model(
                f"{kind.__name__}Settings",
                __base__=settings,
                __doc__=settings.__doc__,
                name=(Literal[name], name),  # type: ignore[arg-type]
            )
            kind.Settings = own
        _ADDED[section][name] = kind
        return kind

    return add


def announce(files: list[Path] | None) -> None:
    """Have files loaded by this process, once something is looked for by name, and by those that it starts.

    Raises:
        ExperimentError: a file is missing.
    """
    for file in files or ():
        if not file.is_file():
            raise ExperimentError(f"--plugin {file}: there is no such file")
        known = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = os.pathsep.join(filter(None, [known, str(file.resolve())]))


def added(section: str) -> dict[str, type[Any]]:
    """Return the classes that were registered for a section, by name, after a look at the announced files.

    Raises:
        ExperimentError: a file cannot be loaded, or registers nothing.
    """
    for file in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        if file not in _LOADED:
            _LOADED.add(file)
            _load(Path(file))
    return _ADDED[section]


def _load(file: Path) -> None:
    before = sum(map(len, _ADDED.values()))
    module_name = f"fedunseen_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ExperimentError(f"--plugin {file}: give a Python file, which ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # another's code: it may raise anything
        raise ExperimentError(
            f"--plugin {file} cannot be loaded ({type(error).__name__}: {error}): mend that file"
        ) from error
    if sum(map(len, _ADDED.values())) == before:
        raise ExperimentError(
            f'--plugin {file} registers nothing: write @fedunseen.register("method", "NAME") above a class'
        )
