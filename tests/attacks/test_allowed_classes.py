"""What a job of NVFlare may name at a site that allows what the pages say: NVFlare calls whatever a
job names below an allowed prefix, functions of our modules too, with arguments of the job's choice.
"""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="pip install 'fedunseen[nvflare]'")

from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

import fedunseen.deploy
from fedunseen.deploy.nvflare import job

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("nvflare.md", "look.md")
_NAME = re.compile(r"fedunseen(?:\.\w+)+\.?")


def allowed():
    """The names that the pages let a server and its sites allow."""
    names = set()
    for page in PAGES:
        text = (DOCS / page).read_text("utf-8")
        for name in _NAME.findall(text):
            if "nvflare_job" in name or name.endswith("."):
                names.add(name)
    return names | {"fedunseen.deploy.look.nvflare_job.Party"}  # the page says ".Party"


def lets(names, path):
    return any(ComponentPathAuthorizer._path_matches_prefix(path, name) for name in names)


def below(package):
    """Yield the full name of all that a job could name in the modules of a package."""
    folder = Path(package.__file__).parent
    for file in folder.rglob("*.py"):
        place = file.relative_to(folder).with_suffix("").as_posix().replace("/", ".")
        if "flower" in place or file.name == "__init__.py":
            continue
        name = f"{package.__name__}.{place}"
        try:
            module = import_module(name)
        except ImportError:  # of an extra that is not here
            continue
        yield from (f"{name}.{key}" for key, value in vars(module).items() if callable(value))


def test_the_pages_let_allow_classes_alone_and_no_package():
    names = allowed()
    assert len(names) == 4
    for name in names:
        module, _, attribute = name.rpartition(".")
        found = getattr(import_module(module), attribute)
        assert inspect.isclass(found)
        assert issubclass(found, (job.Coordinator, job.Party))


def test_nothing_else_of_the_package_can_be_called():
    names = allowed()
    everything = set(below(fedunseen.deploy))
    assert len(everything) > 1000
    assert {path for path in everything if lets(names, path)} == names
    writing = "fedunseen.deploy.look.over_links.write_json"
    assert not lets(names, writing)
    assert lets(["fedunseen.deploy.look."], writing)  # the positive control
