"""What tests of HTML pages share."""

import re
from html.parser import HTMLParser

from fedunseen.report import write_report

VOID = {"meta", "img", "br", "input", "link", "hr"}


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
            self.charts.append({"label": attributes["aria-label"], "titles": [], "lines": 0, "bands": 0})
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
        for box in [a["id"] for _, a in self.open if tag == "data" and a.get("id", "").startswith("number-")][-1:]:
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
