"""What tests of HTML pages share."""

import json
import re
import shutil
from html.parser import HTMLParser

from fedunseen import ClassSpace, load_run
from fedunseen.core.files import write_tensors
from fedunseen.federation.run_directory import load_params
from fedunseen.pages.report import write_report

VOID = {"meta", "img", "br", "input", "link", "hr"}


def says(page, place, text):
    """Wait until a text alone stands in a place of a browser's page, whose policy forbids to wait
    for a function.
    """
    from playwright.sync_api import expect

    expect(page.locator(place)).to_have_text([text])


class Page(HTMLParser):
    """A parsed page.

    Attributes:
        elements: (tag, attributes) of each element.
        words: its texts, styles and titles left out.
        numbers: id of a ``number-`` box -> (value, text) of each ``<data>`` in it.
        tables: [text, values of its ``<data>``] of each cell of each row.
        charts: of each SVG its label, titles, and how many lines and bands it has.
        problems: tags that are closed in the wrong place, or never.
    """

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.words, self.open, self.problems = [], [], [], []
        self.numbers, self.tables, self.charts = {}, [], []
        self.feed(text)
        self.close()
        self.problems += self.open

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append((tag, dict(attributes)))
        self.handle_startendtag(tag, attributes)

    def handle_startendtag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append((tag, attributes))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append(["", []])
        elif tag == "data" and self.inside("td", "th"):
            self.tables[-1][-1][-1][1].append(float(attributes["value"]))
        elif tag == "svg":
            self.charts.append(
                {"label": attributes["aria-label"], "titles": [], "lines": 0, "bands": 0}
            )
        elif tag == "path":
            self.charts[-1]["lines"] += attributes["class"].startswith("line")
            self.charts[-1]["bands"] += attributes["class"] == "band"

    def handle_endtag(self, tag):
        if not self.open or self.open[-1][0] != tag:
            self.problems.append((tag, self.getpos()))
        else:
            self.open.pop()

    def handle_data(self, text):
        tag, attributes = self.open[-1] if self.open else ("", {})
        if tag and tag not in ("style", "title"):
            self.words.append(text)
        if tag == "title" and self.inside("svg"):
            self.charts[-1]["titles"].append(text)
        if tag in ("td", "th", "data") and self.inside("td", "th"):
            self.tables[-1][-1][-1][0] += text
        for box in [
            a["id"] for _, a in self.open if tag == "data" and a.get("id", "").startswith("number-")
        ][-1:]:
            found = self.numbers.setdefault(box.removeprefix("number-"), [])
            found.append((float(attributes["value"]), text))

    def inside(self, *tags):
        return any(tag in tags for tag, _ in self.open)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


def page_of(run, folder):
    """Write the report of a run into a folder; return it parsed, and its text."""
    text = write_report(run, folder / "report.html").read_text("utf-8")
    page = Page(text)
    assert not page.problems
    ids = [a["id"] for _, a in page.elements if "id" in a]
    # A mask's id is made of its content and place: the same one twice is the same mask.
    assert all(one.startswith("m") for one in ids if ids.count(one) > 1)
    return page, text


def without_pictures(page):
    """Return a page whose base64 pictures are cut out: by chance they contain any short word."""
    return re.sub(r"data:[\w./+-]+;base64,[A-Za-z0-9+/=]*", "", page)


def check_whole(page, text, most):
    """Check that a page needs nothing else, says no value that is missing, and is at most so many
    letters long.
    """
    for tag, attributes in page.elements:
        assert tag not in ("script", "link", "iframe", "object", "form")
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            assert attributes.get(name, "data:image/png;base64,").startswith(
                "data:image/png;base64,"
            )
        if tag == "svg":
            assert attributes["role"] == "img"
            assert len(attributes["aria-label"]) > 10
    assert "://" not in text
    assert "@import" not in text
    assert not re.search(r"url\((?!#m[0-9a-f]{12}\))", text)
    assert not re.search(r"\bnan\b", without_pictures(text), re.IGNORECASE)
    assert "None" not in page.text
    assert len(text) < most


def copied(run, folder, result=None, manifest=None, tensors=None, names=None):
    """Copy a run into a new folder with other values in its result and manifest, other tensors and
    class names.
    """
    shutil.copytree(run.path, folder)
    for file, changes in (("result.json", result), ("manifest.json", manifest)):
        if changes is not None:
            stored = json.loads((folder / file).read_text("utf-8"))
            (folder / file).write_text(json.dumps({**stored, **changes}), "utf-8")
    if tensors is not None:
        path = folder / "evaluation.safetensors"
        write_tensors(path, {**{k: v.numpy() for k, v in load_params(path).items()}, **tensors})
    if names is not None:
        space = run.space
        attributes = (
            space.semantics,
            space.attribute_names,
            space.seen,
            space.validation,
            space.unseen,
        )
        ClassSpace(tuple(names), *attributes).save(folder / "classes.csv")
    return load_run(folder)
