"""The folder of a new project: an experiment, example data, a method, a test."""

import re
import sys
from importlib import resources
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from string import Template

from fedunseen.core.errors import ArgumentError
from fedunseen.core.files import free_folder, whole_folder, write_text

_FILES = {
    "README.md": "README.md",
    "data/make_example.py": "data/make_example.py",
    "experiment.toml": "experiment.toml",
    "gitignore": ".gitignore",
    "package/__init__.py": "{package}/__init__.py",
    "package/method.py": "{package}/method.py",
    "pyproject.toml": "pyproject.toml",
    "tests/test_method.py": "tests/test_method.py",
}
"""Template -> the file of a project that it becomes."""


def new_project(name: str) -> list[Path]:
    """Write a project into the folder ``name``; return its files."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise ArgumentError(
            f"{name!r} is not a name of a project: take small letters, digits, - and _, a letter "
            "first"
        )
    package = name.replace("-", "_")
    folder = Path(name)
    if iskeyword(package):
        raise ArgumentError(
            f"a package {package!r} cannot be imported, for it is a word of Python: choose another "
            "name"
        )
    # A folder without code has no origin. The project's own tests are called tests.
    if (
        package == "tests"
        or package in sys.modules
        or ((spec := find_spec(package)) and spec.origin)
    ):
        raise ArgumentError(f"a package {package!r} is there already: choose another name")
    free_folder(folder, "choose another name")
    texts = resources.files("fedunseen.experiment") / "project"
    paths = [path.format(package=package) for path in _FILES.values()]
    with whole_folder(folder) as partial:
        for template, path in zip(_FILES, paths, strict=True):
            text = Template((texts / f"{template}.template").read_text("utf-8"))
            write_text(partial / path, text.substitute(project=name, package=package))
    return [folder / path for path in paths]
