"""What the core imports is declared, and it needs nothing that only other folders use."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

import fedunseen
from fedunseen.core.extensions import FOLDERS

SOURCE = Path(fedunseen.__file__).parent
PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
IMPORTED_AS = {
    "scikit-learn": "sklearn",
    "pillow": "PIL",
    "pycryptodome": "Crypto",
    "mlflow-skinny": "mlflow",
}
BROUGHT = {  # by the package that is declared, whose own interface they are
    "click": "typer",
    "huggingface_hub": "transformers",
    "markupsafe": "jinja2",
    "pydantic_core": "pydantic",
    "starlette": "fastapi",
    "tokenizers": "transformers",
}


def modules_of(requirements):
    """Return the modules that requirements bring."""
    names = [re.match(r"[\w.-]+", each)[0] for each in requirements]
    return {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names}


DECLARED = modules_of(PROJECT["project"]["dependencies"])
OPTIONAL = modules_of(
    each for extra in PROJECT["project"]["optional-dependencies"].values() for each in extra
)


def imported(paths):
    """Return the top modules that files import, outside of the standard library."""
    found = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(node.module.partition(".")[0])
    found = {BROUGHT.get(name, name) for name in found}
    return found - set(sys.stdlib_module_names) - {"fedunseen"}


def files(*folders):
    return [path for folder in folders for path in (SOURCE / folder).rglob("*.py")]


CORE = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in FOLDERS]


@pytest.mark.slow
def test_the_core_has_eleven_dependencies_at_most_and_uses_each():
    assert len(DECLARED) <= 11
    assert imported(CORE) >= DECLARED


@pytest.mark.slow
def test_what_the_core_imports_is_declared():
    assert imported(CORE) - DECLARED - OPTIONAL == set()
    assert not imported(CORE) & {"jinja2", "fastapi", "uvicorn", "httptools", "prometheus_client"}


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_what_a_folder_imports_is_declared(folder):
    assert imported(files(folder)) - DECLARED - OPTIONAL == set()
