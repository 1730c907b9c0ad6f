"""What the tests of the command share: the command itself, called in this process, and a finished
run.
"""

import json
import re
import shutil
import sys
import warnings
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.cli.main import main
from fedunseen.core.toml import toml_text
from fedunseen.experiment.deal import deal
from published_layouts import write_image, write_sentiment140
from small_runs import ADAPTING, COUNTING


class Done(NamedTuple):
    """What the command leaves: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def answer(self):
        """The one line of JSON that ``--json`` prints."""
        assert self.out.count("\n") == 1, self
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def single_thread(one_thread):
    """Every run here is small."""


@pytest.fixture
def command(monkeypatch, capsys):
    """Call the command as ``python -m fedunseen`` does, but in this process, which has imported
    everything.
    """

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedunseen", *map(str, arguments)])
        monkeypatch.setattr(
            warnings, "showwarning", warnings.showwarning
        )  # the command sets its own
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as error:
            code = error.code or 0
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture
def works(command):
    """Call the command, which must end well."""

    def call(*arguments):
        done = command(*arguments)
        assert done.code == 0, done
        return done

    return call


@pytest.fixture
def refused(command):
    """Call the command, which must refuse with one sentence on standard error, exit code 2; return
    the sentence.
    """

    def call(*arguments):
        done = command(*arguments)
        assert done.code == 2, done
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
        sentence, _, code = done.err.removeprefix("error: ").removesuffix("]\n").rpartition(" [")
        assert re.fullmatch("[a-z-]+", code)
        assert done.out == "" or json.loads(done.out) == {
            "error": {"code": code, "message": sentence}
        }
        return sentence

    return call


@pytest.fixture
def offline(request, works):
    """Call ``fedunseen offline`` beside ``data`` and ``kits``; with ``call=refused`` it returns the
    sentence.

    The module gives the parties, ``NAMES``, and the words of a plan, ``PLANNED``.
    """
    names, planned = request.module.NAMES, request.module.PLANNED

    class Offline:
        def plan(self, name="plan", parties=names, *more, of=planned, call=works, kits="kits"):
            words = "--credentials", f"{kits}/coordinator", "--parties", ",".join(parties)
            return call("offline", "plan", *of, *words, "--out", f"{name}.fedunseen", *more)

        def act(self, what, who, plan="plan", out=None, more=(), call=works, kits="kits"):
            words = "--data", f"data/{who}", "--credentials", f"{kits}/{who}"
            words += ("--out", f"{out or f'{who}-{plan}'}.fedunseen", *more)
            if what == "answer":  # of few samples, whose second moments show them
                words += ("--consent", "moments")
            return call("offline", what, f"{plan}.fedunseen", *words)

        def merge(self, *paths, plan="plan", out="run", who=names, call=works, kits="kits"):
            paths = paths or [f"{name}-{plan}.fedunseen" for name in who]
            more = ("--credentials", f"{kits}/coordinator") if kits else ()
            return call("offline", "merge", f"{plan}.fedunseen", *paths, "--out", out, *more)

        def round(self, plan="plan", out="run", who=names, more=(), kits="kits"):
            for name in who:
                self.act("answer", name, plan, more=more, kits=kits)
            return self.merge(plan=plan, out=out, who=who, kits=kits)

    return Offline()


@pytest.fixture(scope="session")
def fast():
    """Settings with which digit-pairs runs in a second."""
    settings = {"strategy.rounds": 3, "data.train_per_class": 10, "data.test_per_class": 4}
    return {**settings, "evaluation.selection": "last"}


@pytest.fixture(scope="session")
def digits(fast, run_once):
    """A finished run of digit-pairs, not to be written to."""
    return run_once(Experiment.load("digit-pairs", {**fast, "method.kl": 0}))


@pytest.fixture
def small(make_folder, tmp_path):
    """A TOML file of a small experiment on a small benchmark beside it."""
    make_folder(tmp_path / "data")
    sections = {
        "data": {"name": "folder", "root": "data", "features": []},
        "partition": {"clients": 3},
        "method": {"name": "fedzsl", "lr": 0.05, "kl": 0.0, "consistency": 0.0},
        "strategy": {"name": "fedavg", "rounds": 2},
    }
    (tmp_path / "small.toml").write_text(toml_text(sections), "utf-8")
    return tmp_path / "small.toml"


@pytest.fixture(scope="session")
def photos():
    """Write the text of a ``classes.csv`` and, for each class in it, a folder with so many
    pictures.
    """

    def write(root, table, each, size=(20, 16), without=()):
        names = [line.split(",")[0] for line in table.splitlines()[1:]]
        for number, (name, i) in enumerate(product(names, range(each))):
            if name not in without:
                write_image(root / name / f"{i}.png", number, size)
        (root / "classes.csv").write_text(table, "utf-8")
        return root

    return write


@pytest.fixture
def tweets(tmp_path):
    """Tweets of twenty users and vectors of their words: the settings of such data."""
    write_sentiment140(tmp_path / 'my "tweets"' / "mine.csv")
    (tmp_path / "vectors.txt").write_text("good 1 0\nbad 0 1\nday 0.3 0.1\n")
    return {
        "data.root": str(tmp_path / 'my "tweets"'),
        "data.vectors": str(tmp_path / "vectors.txt"),
    }


@pytest.fixture(scope="session")
def adapting(make_folder, with_pool, tmp_path_factory):
    """Folders of three parties with unlabelled samples, of which west has none; the run in one
    process, ``alone``.
    """
    place, names = tmp_path_factory.mktemp("adapting"), ("north", "south", "west")
    root = make_folder(place / "mine", with_pool)
    (place / "mine.toml").write_text(
        f"[data]\nname = 'folder'\nroot = '{root}'\n[method]\nname = 'gaussian'\n"
    )
    deal(
        Experiment.load(place / "mine.toml", {"data.unlabelled": True, "partition.clients": 3}),
        place / "data",
        names,
    )
    arrays = dict(np.load(place / "data/west/features.npz"))
    np.savez(
        place / "data/west/features.npz",
        **{k: v[arrays["labels"] != ""] for k, v in arrays.items()},
    )
    parts = [
        dict(np.load(place / "data" / name / "features.npz")) for name in ("coordinator", *names)
    ]
    shutil.copytree(root, place / "whole")
    whole = {
        key: np.concatenate([part[key] for part in parts])
        for key in ("features", "labels", "split")
    }
    np.savez(place / "whole/features.npz", **whole)
    run(Experiment.from_dict({"data": {"root": str(place / "whole")}}, ADAPTING), place / "alone")
    return place


@pytest.fixture
def place(dealt, tmp_path, monkeypatch):
    """An own copy of a module's folders, ``dealt``, as the working directory."""
    shutil.copytree(dealt, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def counting_run(tmp_path_factory):
    """The directory of a run in closed form."""
    path = tmp_path_factory.mktemp("spread") / "run"
    run(Experiment.load("digit-pairs-gaussian", COUNTING), path)
    return path


@pytest.fixture(scope="session")
def run_samples(counting_run, tmp_path_factory):
    """The run's own training samples: features (480, d) and class names."""
    folder = tmp_path_factory.mktemp("samples")
    deal(load_run(counting_run).experiment, folder / "data", names := ("a", "b", "c"))
    parts = [np.load(folder / "data" / name / "features.npz") for name in names]
    return tuple(np.concatenate([part[key] for part in parts]) for key in ("features", "labels"))


@pytest.fixture
def parquet(run_samples, tmp_path):
    """A folder of Parquet files with row groups of 32."""
    pa = pytest.importorskip("pyarrow", reason="pip install 'fedunseen[arrow]'")
    from pyarrow.parquet import write_table

    folder = tmp_path / "parquet"
    folder.mkdir()
    rows, names = run_samples
    for part in range(3):
        some = slice(160 * part, 160 * part + 160)
        flat = pa.array(rows[some].ravel())
        vectors = pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])
        table = pa.table({"features": vectors, "label": pa.array(names[some].tolist())})
        write_table(table, folder / f"{part}.parquet", row_group_size=32)
    return folder
