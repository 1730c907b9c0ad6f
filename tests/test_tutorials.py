"""The tutorials are notebooks: each runs from an empty folder, and shows what is kept in it."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(ROOT.glob("docs/tutorials/*.ipynb"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("tutorials"),
]  # one process makes what all of them look at


@pytest.fixture(scope="module")
def fresh():
    """All of them, run now; one kernel serves them, so that this takes seconds."""
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs" / "site")
        patch.setenv("PYTHONPATH", str(ROOT / "src"), prepend=":")
        import notebooks

        return dict(notebooks.executed(NOTEBOOKS))


SECONDS = re.compile(r"(?<=about )\S+(?= s a picture here)")
PERCENT = re.compile(r"(\d+)(?:\.\d+)?(?= ?%)")


def shown(notebook):
    """What the code cells print, without decimals, percents and seconds, which depend on the processor; of
    pictures the kind.
    """

    def of(output):
        return (
            re.sub(r"(\d)\.\d+", r"\1", SECONDS.sub("", PERCENT.sub("", output.text)))
            if "text" in output
            else sorted(output.data)
        )

    return [
        [of(output) for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def percents(notebook):
    return [
        float(found[0])
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        for found in PERCENT.finditer(output.get("text", ""))
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_shows_what_is_kept_in_it(path, fresh):
    import nbformat

    kept = nbformat.read(path, as_version=4)
    nbformat.validate(kept)
    assert shown(kept) == shown(fresh[path]), "run `make notebooks`, and read what has changed"
    assert percents(fresh[path]) == pytest.approx(percents(kept), abs=1.0)


def test_there_are_five_tutorials_and_none_names_a_place_of_the_machine_that_ran_it():
    assert len(NOTEBOOKS) >= 5
    for path in NOTEBOOKS:
        places = rf"{re.escape(str(ROOT))}|{re.escape(sys.prefix)}|/tmp/|/home/|/root/"
        assert not re.search(places, path.read_text("utf-8")), path
