"""``fedunseen new``: the folder of a project of one's own: an experiment, example data, a method, a test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from fedunseen.cli.console import say
from fedunseen.core.errors import ArgumentError, RunDirectoryError

__all__ = ["new"]


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of the project and its package: small letters, digits, - and _.")
    ],
) -> None:
    """Begin a project: an experiment, example data, a method of your own, a test; all of it runs as it is."""
    folder = Path(name)
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise ArgumentError(f"{name!r} is no name of a project: take small letters, digits, - and _, a letter first")
    package = name.replace("-", "_")
    if package in ("fedunseen", "test", "tests"):
        raise ArgumentError(f"a package {package!r} is there already: choose another name")
    if folder.exists():
        raise RunDirectoryError(f"{folder} is there already: choose another name")
    from fedunseen.core.files import write_text

    for path, text in FILES.items():
        text = text.replace("PACKAGE", package).replace("PROJECT", name)
        write_text(folder / path.replace("PACKAGE", package), text)
        say(f"wrote {folder / path.replace('PACKAGE', package)}")
    say(f"next:  cd {name} && pip install -e . && python data/make_example.py && fedunseen run experiment.toml")


FILES = {
    "README.md": """\
# PROJECT

A method of our own on data of our own, with FedUnseen.

    pip install -e .
    python data/make_example.py      # replace data/ by your own: see below
    fedunseen run experiment.toml --out runs/first
    fedunseen serve runs/first       # needs: pip install 'fedunseen[serve]'
    python -m pytest

- `experiment.toml`: data, who holds what, method, strategy. `fedunseen settings` lists every key.
- `PACKAGE/method.py`: the method. `pyproject.toml` makes it known by its name.
- `data/classes.csv`: a class a line: name, split (seen, validation or unseen), attributes.
- `data/features.npz`: `features` (n, numbers), `labels` (n,) the classes' places in `classes.csv` from 0, `split` (n,)
  `train` or `test`. Unseen classes have test samples alone. `fedunseen data check data` says what is wrong with it.
""",
    "pyproject.toml": """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "PROJECT"
version = "0.1.0"
dependencies = ["fedunseen"]

[project.entry-points."fedunseen.methods"]
PROJECT = "PACKAGE.method:Mine"

[tool.setuptools]
packages = ["PACKAGE"]
""",
    "experiment.toml": """\
# Three parties, each with classes that nobody else has.

[data]
name = "folder"
root = "data"
features = ["standard"]

[partition]
kind = "pccd"
clients = 3

[method]
name = "PROJECT"
lr = 0.05

[strategy]
name = "fedavg"
rounds = 15

[run]
seed = 0
""",
    "PACKAGE/__init__.py": '"""PROJECT: a method of our own."""\n',
    "PACKAGE/method.py": '''\
"""A linear map from features to attributes; a class scores by how well its attributes fit."""

from typing import Literal

import torch
from pydantic import Field

from fedunseen.core.parameters import linear_layer
from fedunseen.core.phases import Phase
from fedunseen.losses import semantic_cross_entropy
from fedunseen.methods import Method, MethodSettings
from fedunseen.methods.networks import linear


class Settings(MethodSettings):
    """What the experiment file may say about it."""

    name: Literal["PROJECT"] = "PROJECT"
    scale: float = Field(1.0, gt=0)
    """Factor on the scores."""


class Mine(Method):
    """Change ``loss`` first."""

    Settings = Settings

    def init(self, rng):
        """Draw the parameters of round 0."""
        return self.backbone.init(rng) | linear_layer("g", self.width, self.semantics.shape[1], rng)

    def phases(self):
        """Return what a local update does: here, one loss for all parameters."""
        return (Phase("local", self.loss, self.optimiser()),)

    def context(self):
        """Return what every client knows."""
        seen = torch.zeros(len(self.space.names), dtype=torch.bool)
        seen[torch.from_numpy(self.space.seen)] = True
        return {"semantics": self.semantics, "seen": seen}

    def loss(self, params, batch, context):
        """Return the loss of a batch: a pure function, so that all clients can train as one batch."""
        attributes = linear(params, "g", self.backbone(params, batch["inputs"], training=True))
        scores = self.settings.scale * (attributes @ context["semantics"].T)
        loss = semantic_cross_entropy(scores, batch["labels"], batch["weights"], context["seen"])
        return loss, {"loss": loss}

    def attributes(self, params, inputs):
        """Predict attributes."""
        return linear(params, "g", self.backbone(params, inputs))

    def scores(self, params, inputs, semantics):
        """Score classes, also ones that nobody trained on."""
        return self.settings.scale * (self.attributes(params, inputs) @ semantics.T)
''',
    "data/make_example.py": '''\
"""Write example data beside this file: classes of six attributes, and features that depend on them. Replace both."""

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
SPLITS = ["seen"] * 9 + ["validation"] * 3 + ["unseen"] * 4

random = np.random.default_rng(0)
attributes = random.uniform(0, 1, (len(SPLITS), 6)).round(2)
lines = ["name,split," + ",".join(f"attribute {i}" for i in range(6))]
lines += [f"class {c}," + ",".join([SPLITS[c], *map(str, attributes[c])]) for c in range(len(SPLITS))]
(HERE / "classes.csv").write_text("\\n".join(lines) + "\\n", "utf-8")

labels = np.repeat(np.arange(len(SPLITS)), 30)
split = np.tile(["train"] * 20 + ["test"] * 10, len(SPLITS))
kept = (np.array(SPLITS)[labels] != "unseen") | (split == "test")
labels, split = labels[kept], split[kept]
features = (attributes - attributes.mean(0))[labels] @ random.normal(size=(6, 16))
features += random.normal(scale=0.4, size=features.shape)
np.savez(HERE / "features.npz", features=features.astype(np.float32), labels=labels, split=split)
''',
    "tests/test_method.py": '''\
"""The method learns, and recognises classes that nobody trained on."""

import runpy
from pathlib import Path

from fedunseen import Experiment, run

HERE = Path(__file__).parents[1]


def test_it_recognises_unseen_classes_more_often_than_by_guessing(tmp_path):
    if not (HERE / "data" / "features.npz").exists():
        runpy.run_path(str(HERE / "data" / "make_example.py"))
    done = run(Experiment.load(HERE / "experiment.toml"), tmp_path / "run")
    assert done.result["zsl"] > 100 / len(done.space.unseen)
''',
    ".gitignore": "runs/\n__pycache__/\n*.egg-info/\n",
}
"""Path -> text; PROJECT is the name, PACKAGE the same as Python's."""
