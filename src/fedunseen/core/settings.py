"""The base of every section's settings."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    create_model,
    model_validator,
)


class FileText(str):
    """A text that a file holds; where a setting is a path, it is relative to that file."""

    locate: Callable[[Path], Path]

    @classmethod
    def within(cls, value: Any, locate: Callable[[Path], Path]) -> Any:
        """Return a value of a file with its texts, also in lists and tables, as texts of this
        file.
        """
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


Widths = Annotated[tuple[PositiveInt, ...], Field(max_length=64)]
"""Of layers; their product is bounded where a network is drawn (:mod:`fedunseen.core.sizes`)."""


def _is_path(annotation: Any) -> bool:
    return annotation is Path or any(map(_is_path, get_args(annotation)))


class Settings(BaseModel):
    """Settings are checked when they are read, refuse unknown keys and never change.

    A ``Path`` of a file is relative to that file. The docstring below a field is what
    ``fedunseen settings`` shows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @property
    def chosen(self) -> bool:
        """Whether an optional section has an effect."""
        return bool(getattr(self, "name", "none") != "none")

    @model_validator(mode="before")
    @classmethod
    def _locate_paths(cls, content: Any) -> Any:
        paths = {key for key, field in cls.model_fields.items() if _is_path(field.annotation)}
        settings = content if isinstance(content, dict) else {}
        return (
            {**settings, **{key: _path(settings[key]) for key in paths & settings.keys()}}
            if settings
            else content
        )


class NamedSettings(Settings):
    """Settings of a section whose ``name`` chooses among classes."""

    name: str = ""


def name_settings(kind: Any, name: str) -> None:
    """Give a class that a section's ``name`` chooses settings of this name."""
    base = kind.Settings
    fields: Any = {"name": (Literal[name], name)}
    kind.Settings = create_model("Settings", __base__=base, __doc__=base.__doc__, **fields)
    # where pickle finds them
    kind.Settings.__module__ = kind.__module__
    kind.Settings.__qualname__ = f"{kind.__qualname__}.Settings"


class Named:
    """A class that a section's ``name`` chooses: ``class Mine(Base, name="mine")`` has settings of
    this name.
    """

    Settings: ClassVar[type[NamedSettings]] = NamedSettings

    def __init_subclass__(cls, name: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        if name:
            name_settings(cls, name)


class Nothing(Named, name="none"):
    """The choice ``none`` of a section that may be left out."""
