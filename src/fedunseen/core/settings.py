"""The base of every section's settings."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model, model_validator


class FileText(str):
    """A text that a file holds; where a setting is a path, it is relative to that file."""

    locate: Callable[[Path], Path]

    @classmethod
    def within(cls, value: Any, locate: Callable[[Path], Path]) -> Any:
        """Return a value of a file with its texts, also in lists and tables, as texts of this file."""
        if isinstance(value, Mapping):
            return {key: cls.within(item, locate) for key, item in value.items()}
        if isinstance(value, list):
            return [cls.within(item, locate) for item in value]
        if isinstance(value, str):
            value = cls(value)
            value.locate = locate
        return value


def _path(value: Any) -> Any:
    """Return a value with the texts of files in it as paths relative to here."""
    if isinstance(value, Mapping):
        return {key: _path(item) for key, item in value.items()}
    return value.locate(Path(value)) if isinstance(value, FileText) else value


def _folder_or_name(value: Any) -> Any:
    path = _path(value) if value else value  # "" names nothing, and would be the file's own folder
    return str(path) if isinstance(path, Path) and path.is_dir() else value


FolderOrName = Annotated[str, BeforeValidator(_folder_or_name)]
"""A folder, or a name in a hub."""


def _is_path(annotation: Any) -> bool:
    return annotation is Path or any(map(_is_path, get_args(annotation)))


class Settings(BaseModel):
    """Settings are checked when they are read, refuse unknown keys and never change.

    A ``Path`` of a file is relative to that file. The docstring below a field is what ``fedunseen settings`` shows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _locate_paths(cls, content: Any) -> Any:
        paths = {key for key, field in cls.model_fields.items() if _is_path(field.annotation)}
        known = content if isinstance(content, dict) else {}
        return {**known, **{key: _path(known[key]) for key in paths & known.keys()}} if known else content


class NamedSettings(Settings):
    """Settings of a section whose ``name`` chooses among classes."""

    name: str

    @classmethod
    def named(cls, name: str) -> type[Self]:
        """Return the settings of a choice that has no keys of its own."""
        found: type[Self] = _named(cls, name)
        return found


@cache
def _named(base: Any, name: str) -> Any:
    found: Any = create_model(base.__name__, __base__=base, __doc__=base.__doc__, name=(Literal[name], name))  # type: ignore
    # pickle finds no module that has this class
    found.__reduce__ = lambda self: (_unpickled, (base, name, self.model_dump(exclude_unset=True)))
    return found


def _unpickled(base: Any, name: str, values: dict[str, Any]) -> Any:
    return _named(base, name)(**values)


class Nothing:
    """The choice ``none`` of a section that may be left out."""

    Settings = NamedSettings.named("none")
