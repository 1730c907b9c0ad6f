"""The report fits a phone's screen: wide tables scroll in themselves."""

import pytest

from fedunseen import Experiment, run
from fedunseen.report import write_report


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    told = {"data.train_per_class": 4, "data.test_per_class": 4}
    return write_report(run(Experiment.load("digit-pairs-gaussian", told), tmp_path_factory.mktemp("run") / "out"))


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_screen(width, page, browser):
    shown = browser.new_page(viewport={"width": width, "height": 900})
    shown.goto(page.as_uri())
    for details in shown.query_selector_all("details"):
        details.evaluate("one => one.open = true")
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    shown.close()
