"""Names that a spreadsheet would calculate, or a terminal or page would obey: they are shown as
text everywhere.
"""

import ast
import csv
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from markupsafe import escape

from fedunseen import Experiment, run
from fedunseen.cli.console import show
from fedunseen.cli.logs import emit
from fedunseen.core.latex import escaped
from fedunseen.core.text import shown
from fedunseen.data.io.csv_io import read_csv, write_csv, write_table
from fedunseen.experiment.tables import write_tables
from fedunseen.pages import photo_export
from fedunseen.pages.report import write_report
from fedunseen.pages.report.card import write_card
from fedunseen.pages.report.look_page import write_look_page
from fedunseen.pages.report.parts import render
from fedunseen.pages.report.svg import rect, svg, text

FORMULAS = (
    '=HYPERLINK("http://evil/","x")', "@SUM(1+1)*cmd|' /C calc'!A0", "-2+3", "+1-1", "\t=1+1", "\r=1+1", " =1+1",
    "\n=1+1", "\uff1d1+1", "\u200b=1+1", "-", "-inf()", "+nanx",
)  # fmt: skip
NUMBERS = ("-0.5", "+1", "1e-05", "-1.5E+3", "-inf", "nan", ".5", "-.5", "3.")
TAG = "</title></script><script>alert(1)</script><img src=x onerror=alert(1)>"
HIDDEN = "\x1b[2J\u202ename\x9b\u2066\x07\u2028"


def cells(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("name", FORMULAS)
def test_a_name_is_no_formula(name, tmp_path):
    write_table(tmp_path / "a.csv", [[name, 1.5], ["plain", name]])
    assert cells(tmp_path / "a.csv") == [[f"'{shown(name)}", "1.5"], ["plain", f"'{shown(name)}"]]


def test_a_table_that_is_read_back_keeps_its_names(tmp_path):
    write_csv(tmp_path / "a.csv", [["=1+1", "'x"]])
    assert read_csv(tmp_path / "a.csv") == [(1, ["=1+1", "'x"])]


def test_numbers_stay_numbers_and_ordinary_texts_stay_as_they_are(tmp_path):
    row = [-0.5, 7, None, True, np.float64(-2.5), *NUMBERS, "a=b", "polar bear", "x@y", 'a "b", c']
    write_table(tmp_path / "a.csv", [row])
    assert cells(tmp_path / "a.csv") == [["" if cell is None else str(cell) for cell in row]]
    assert read_csv(tmp_path / "a.csv")[0][1][:2] == ["-0.5", "7"]


def test_a_semicolon_begins_no_cell(tmp_path):
    write_table(tmp_path / "a.csv", [["a;=1+1", "b\t=1+1", 'c";=1+1']])
    assert (tmp_path / "a.csv").read_text() == '"a;=1+1","b\t=1+1","c"";=1+1"\n'


@pytest.fixture(scope="module")
def evil_run(tmp_path_factory):
    """A run of classes and attributes whose names are formulas, tags, or hold characters that
    steer.
    """
    folder = tmp_path_factory.mktemp("evil")
    names = [f"{text}{i}" for i, text in enumerate(("=1+1+", "@x", "+x", f"a{HIDDEN}", TAG, TAG))]
    rng = np.random.default_rng(0)
    table = (rng.random((6, 8)) > 0.5).astype(float)
    head = ["name", "split", *(f"={HIDDEN}{TAG}{i}" for i in range(8))]
    rows = [
        [name, "unseen" if i in (0, 3) else "seen", *map(str, row)]
        for i, (name, row) in enumerate(zip(names, table, strict=True))
    ]
    write_csv(folder / "classes.csv", [head, *rows])
    labels = np.repeat(np.arange(6), 12)
    split = np.where((np.arange(72) % 12 < 8) & ~np.isin(labels, (0, 3)), "train", "test")
    features = table[labels] @ rng.normal(size=(8, 16)) + 0.3 * rng.normal(size=(72, 16))
    features = features.astype(np.float32)
    np.savez(
        folder / "features.npz", features=features, labels=np.array(names)[labels], split=split
    )
    sections = {
        "name": TAG, "data": {"name": "folder", "root": str(folder)}, "partition": {"clients": 2},
        "method": {"name": "gaussian"}, "evaluation": {"selection": "last"},
    }  # fmt: skip
    return run(Experiment.from_dict(sections), folder / "run"), names


def test_exported_tables_hold_no_formula(evil_run, tmp_path):
    done, names = evil_run
    paths = write_tables(done, tmp_path)
    found = [cell for path in paths for row in cells(path) for cell in row]
    assert f"'{names[0]}" in found  # the names are there
    assert not [cell for cell in found if cell[:1] in tuple("=+@")]


def test_pages_and_texts_show_names_that_steer_nothing(evil_run, tmp_path):
    done, names = evil_run
    write_card(done)
    texts = [(done.path / "README.md").read_text("utf-8")]
    texts += [write_report(done).read_text("utf-8")]
    texts += [path.read_text("utf-8") for path in write_tables(done, tmp_path, latex=True)]
    whole = "".join(texts)
    assert shown(names[3]).count("\N{REPLACEMENT CHARACTER}") == 6
    assert f"a{shown(HIDDEN)}3" in whole  # the name is there
    assert shown(whole) == whole


def tags_of(html):
    """Return the tags of a page, and of its drawings; its own style aside."""
    return set(re.findall(r"<(/?\w+)", re.sub(r"(?s)<style>.*?</style>", "", html)))


def test_a_report_of_names_that_are_tags_holds_none_of_them(evil_run):
    page = write_report(evil_run[0]).read_text("utf-8")
    assert page.count("&lt;img src=x") > 20  # the names are there
    assert page.count(str(escape(TAG))) > 20
    assert page.count("<title>") == page.count("</title>")
    assert not {"img", "script", "/script"} & tags_of(page)


def test_words_of_drawings_are_text():
    drawing = svg([rect(0, 0, 1, 1, TAG), text(0, 0, TAG)], 9, 9, TAG)
    assert drawing.count(str(escape(TAG))) == 3
    assert tags_of(drawing) == {"svg", "/svg", "rect", "/rect", "title", "/title", "text", "/text"}


def test_a_look_at_parties_that_are_called_tags_holds_none_of_them(tmp_path):
    column = {
        "name": TAG,
        "planned": False,
        "parties": 1,
        "at": TAG,
        "kinds": {"missing": 1, "number": 5},
    }
    facts = {
        "masked": False, "minimum": {TAG: 5}, "answered": [TAG], "absent": [TAG],
        "warnings": [{"what": TAG, "remedy": TAG}],
        "classes": [{"name": TAG, "planned": True, "parties": 1, "samples": 5, "who": [TAG]}],
        "samples": [{"at": TAG, "samples": 5, "others": 0, "unlabelled": 0}],
        "columns": [{**column, "quantiles": [1.0, 2.0, 3.0]}],
    }  # fmt: skip
    page = (tmp_path / write_look_page(facts, tmp_path)).read_text("utf-8")
    assert page.count(str(escape(TAG))) == 8
    assert not {"img", "script", "/script"} & tags_of(page)


@pytest.mark.parametrize("page", ["page", "dashboard"])
def test_a_page_of_the_service_shows_what_it_is_told_as_text(page):
    """What comes later is JSON; the page puts it in as text alone."""
    html = render(f"serve/{page}.html", {"alarm": 0.5, "title": TAG})
    assert "textContent" in html
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", html)


def test_a_terminal_gets_names_that_steer_nothing(capsys):
    emit(f"note: {HIDDEN}")
    show({"name": HIDDEN}, HIDDEN, False)
    show({"name": HIDDEN}, HIDDEN, True)
    said = capsys.readouterr()
    assert (said.out + said.err).count("name") == 4
    assert shown(said.out + said.err) == said.out + said.err
    assert "\x1b" not in escaped(HIDDEN)
    assert shown("a\tb\nc \u200d\xe9") == "a\tb\nc \u200d\xe9"


def test_an_exported_folder_shows_names_that_steer_nothing():
    names = (
        "![p](http://evil/p.png)",
        "<img src=http://evil>",
        f"a{HIDDEN}",
        "b\n\n# Install\n`sh`",
    )
    space = SimpleNamespace(names=names, unseen=[0, 3])
    model = SimpleNamespace(params={})
    stored = {"result": {}, "manifest": {"learnt": [names[0]]}}
    stub = SimpleNamespace(path=Path("<b>run"), space=space, model=model, **stored)
    text = photo_export._readme(stub)
    assert shown(text) == text
    assert not [tag for tag in ("![p](", "<img", "<b>", "\n# Install", " `sh`") if tag in text]
    assert r"!\[p\](http://evil/p.png)" in text  # the name is there
    script = photo_export._text("photo_predict.py.txt")
    code = [part for part in ast.parse(script).body if getattr(part, "name", "") == "shown"]
    exec(compile(ast.Module(code, []), "predict.py", "exec"), scope := {})
    assert scope["shown"](f"a{HIDDEN} \xe9") == shown(f"a{HIDDEN} \xe9")
    # its definition, the names of a file, of one that cannot be read, and of a class
    assert script.count("shown(") == 4


def test_a_prediction_table_holds_no_formula(tmp_path):
    from fedunseen.cli.predict import _write

    answer = {"name": "=1+1", "score": -0.5, "probability": 0.25}
    _write([{"input": "@a.png", "classes": [answer]}], tmp_path / "a.csv")
    assert cells(tmp_path / "a.csv")[1] == ["'@a.png", "1", "'=1+1", "-0.5", "0.25"]
