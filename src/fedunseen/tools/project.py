"""The folder of a new project: an experiment, example data, a method, a test."""

import re
import sys
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from fedunseen.core.errors import ArgumentError
from fedunseen.core.files import free_folder, whole_folder, write_text


def new_project(name: str) -> list[Path]:
    """Write a project into the folder ``name``; return its files."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise ArgumentError(f"{name!r} is not a name of a project: take small letters, digits, - and _, a letter first")
    package, folder = name.replace("-", "_"), Path(name)
    if iskeyword(package):
        raise ArgumentError(
            f"a package {package!r} cannot be imported, for it is a word of Python: choose another name"
        )
    # A folder without code has no origin. The project's own tests are called tests.
    if package == "tests" or package in sys.modules or ((spec := find_spec(package)) and spec.origin):
        raise ArgumentError(f"a package {package!r} is there already: choose another name")
    free_folder(folder, "choose another name")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("fedunseen.tools", "project")
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)
    paths = {template: template.removesuffix(".jinja") for template in environment.list_templates(["jinja"])}
    paths |= {"gitignore.jinja": ".gitignore"}
    paths = {template: re.sub("^package/", f"{package}/", path) for template, path in paths.items()}
    with whole_folder(folder) as partial:
        for template, path in paths.items():
            write_text(partial / path, environment.get_template(template).render(project=name, package=package))
    return [folder / path for path in paths.values()]
