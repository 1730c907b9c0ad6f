"""The section on unlabelled samples: what each class got, accuracies before and after; the page on a telephone."""

import pytest

from fedunseen import Experiment, run
from fedunseen.report import write_report


@pytest.fixture(scope="module")
def done(make_folder, with_pool, tmp_path_factory):
    place = tmp_path_factory.mktemp("adapted")

    data = {"name": "folder", "root": str(make_folder(place / "mine", with_pool)), "unlabelled": True}
    tree = {"data": data, "partition": {"clients": 2}, "method": {"name": "gaussian"}}
    return run(Experiment.from_dict(tree, {"evaluation.embedding": False}), place / "run")


@pytest.mark.parametrize("width", [400, 1280])
def test_a_page_shows_what_unlabelled_samples_changed(width, done, browser):
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(write_report(done).as_uri())
    for details in page.query_selector_all("details"):
        details.evaluate("one => one.open = true")
    table = done.result["adapted"]["classes"]
    first, *_, last = page.locator("#adapted table.modules tbody tr").all_inner_texts()
    each = zip(table["class"], table["samples"], table["seen"], strict=True)
    got = {name: samples for name, samples, seen in each if not seen}
    assert first.startswith(max(got, key=got.get))
    assert last.startswith(min(got, key=got.get))
    for values in (done.result["adapted"]["before"], done.result):
        assert f"{values['gzsl_harmonic']:.1f}" in page.locator("#adapted table").first.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
