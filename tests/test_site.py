"""The documentation site builds without a warning, every link in it leads somewhere, and it asks no
other host.
"""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("site"),
]  # one process makes what all of them look at


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocstrings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        from mkdocs.commands.build import build
        from mkdocs.config import load_config

        path = tmp_path_factory.mktemp("site")
        patch.chdir(ROOT)
        build(
            load_config("mkdocs.yml", site_dir=str(path), strict=True)
        )  # raises where it has a warning
    return path


class Page(HTMLParser):
    """The tag and the address of all that a page links to or loads, and the places in it that a
    link may name.
    """

    def __init__(self, path):
        super().__init__()
        self.links, self.places = [], set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        self.links += [(tag, known[key]) for key in ("src", "href") if known.get(key)]
        self.places |= {known[key] for key in ("id", "name") if known.get(key)}


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_page_of_the_docs_is_there(site, pages):
    for source in [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/tutorials/*.ipynb")]:
        if source.name != "README.md":
            assert site / source.relative_to(ROOT / "docs").with_suffix(".html") in pages


def test_every_link_leads_to_a_place_that_is_there(pages):
    broken = []
    for path, page in pages.items():
        for _, link in page.links:
            if re.match(r"(https?|data|mailto):", link):
                continue
            file, _, place = unquote(link).partition("#")
            target = (path.parent / file.partition("?")[0]).resolve() if file else path
            found = target in pages and place in pages[target].places if place else target.exists()
            if not found and place not in ("__search", "__drawer"):
                broken.append((path.name, link))
    assert sum(tag == "a" for page in pages.values() for tag, _ in page.links) > 1000
    assert broken == []


def test_nothing_is_loaded_from_another_host(site, pages):
    for path, page in pages.items():
        assert [
            url for tag, url in page.links if tag != "a" and re.match(r"(https?:)?//", url)
        ] == [], path
    for path in site.rglob("*"):
        if path.suffix in (".js", ".css"):
            assert not re.search(
                r"unpkg\.com|jsdelivr|googleapis|@import url\(.?http", path.read_text("utf-8")
            ), path


def test_the_commands_and_the_python_interface_have_pages(site):
    commands = (site / "commands.html").read_text("utf-8")
    assert "fedunseen predict" in commands
    assert "Replace a setting, for example strategy.rounds=10; repeatable." in commands
    losses = (site / "api/losses.html").read_text("utf-8")
    assert 'id="fedunseen.losses.relation_distillation"' in losses
    assert ":math:" not in losses
    assert "<math" in losses
    assert "=====" not in losses


def test_it_is_searched_from_the_disk_without_a_network(site, browser):
    page = browser.new_page()
    page.set_default_timeout(120_000)  # of a busy machine
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.locator("input.md-search__input").click()
    page.keyboard.type("calibration")
    page.wait_for_selector("a.md-search-result__link")
    assert "matching documents" in page.locator(".md-search-result__meta").inner_text()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))] == []


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_the_window(pages, browser, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(120_000)
    wide = []
    for path in pages:
        page.goto(path.as_uri(), wait_until="load")
        if page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        ):
            wide.append(path.name)
    assert wide == []


def test_every_code_of_an_error_has_an_entry(pages):
    from fedunseen.deploy.rules import OFFLINE
    from fedunseen.experiment.rules import all_rules

    (page,) = (
        page
        for path, page in pages.items()
        if path.name == "errors.html" and path.parent.name != "api"
    )
    codes = {rule.code for rules in (*all_rules().values(), OFFLINE) for rule in rules}
    assert codes | {"experiment", "data", "run-directory"} <= page.places
