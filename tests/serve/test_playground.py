"""The page of the service in a real browser: drawing, adding a class, undo, keyboard, telephone."""

import io
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedunseen import load_run
from fedunseen.experiment.known_by import known_by
from fedunseen.pages.serve import Recognizer
from fedunseen.pages.serve.app import create_app
from pages import says
from photo_runs import tiles


def draw(page, *strokes):
    """Draw with the mouse: strokes of points in the canvas, in parts of its width and height."""
    box = page.locator("#canvas").bounding_box()
    for stroke in strokes:
        at = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*at[0])
        page.mouse.down()
        for point in at[1:]:
            page.mouse.move(*point, steps=4)
        page.mouse.up()


def tab_to(page, name, value):
    """Press Tab until the element with this property has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate(f"document.activeElement.{name}") == value:
            return
    pytest.fail(f"Tab does not reach {value}")


FOUR = [[(0.24, 0.15), (0.13, 0.58), (0.36, 0.58)], [(0.3, 0.38), (0.28, 0.88)]]
SEVEN = [[(0.64, 0.16), (0.85, 0.16), (0.72, 0.86)], [(0.68, 0.52), (0.83, 0.52)]]


@pytest.mark.slow
def test_a_drawn_47_is_recognised_and_a_new_class_competes(served, opened, digits):
    page = opened(served(digits))
    page.select_option("#among", "unseen")
    draw(page, *FOUR)
    says(page, "#best", "Draw a digit in each half.")
    draw(page, *SEVEN)
    says(page, "#best b", "47")
    assert page.locator("#why-list .name").all_text_contents()[:2] in (
        ["left 4", "right 7"],
        ["right 7", "left 4"],
    )

    page.get_by_role("button", name="Add the class").click()
    says(page, "#new-error", "Give the class a name, then add it.")
    page.fill("#name", "forty-seven")
    for attribute in ("left 4", "right 7"):
        page.get_by_label(attribute, exact=True).check()
    page.get_by_role("button", name="Add the class").click()
    says(page, "#best b", "forty-seven")
    assert page.locator("#added .name").all_text_contents() == ["forty-seven"]
    page.select_option("#among", "given")
    says(page, "#ranking .number", "the only choice")
    page.get_by_role("button", name="Undo the last one").click()
    says(page, "#best b", "47")
    assert page.locator("#among").input_value() == "all"  # no added class is left to rank
    page.get_by_role("button", name="Clear").click()
    assert page.locator("#best").text_content() == "Nothing yet."


def test_the_keyboard_alone_is_enough(served, opened, digits):
    page = opened(served(digits))
    tab_to(page, "id", "typed")
    page.keyboard.type("47")
    page.wait_for_selector("#best b")
    names = page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, textarea')]
            .filter(one => one.checkVisibility())
            .map(one => one.ariaLabel || one.labels?.[0]?.textContent || one.getAttribute('aria-labelledby')
                || one.textContent)"""
    )
    assert all(name and name.strip() for name in names)
    tab_to(page, "id", "name")
    page.keyboard.type("mine")
    tab_to(page, "ariaLabel", "left 4")
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    says(page, "#said", "The class mine was added.")


def test_most_of_the_pairs_that_the_page_writes_itself_are_recognised(served, opened, digits):
    """The drawing is brought into the shape of the training pictures: without that, hardly any
    would be.
    """
    page, space = opened(served(digits)), load_run(digits).space
    page.select_option("#among", "unseen")
    right = page.evaluate(
        """async pairs => {
            let right = 0;
            for (const pair of pairs) {
                strokes = [...pair].flatMap((d, i) => GLYPHS[+d].map(stroke => stroke.map(([x, y]) => [x + i, y])));
                const form = new FormData();
                form.append('files', await blobOf(prepared()[0]), 'a.png');
                const told = await call('/predict?among=unseen&top=1', {method: 'POST', body: form});
                right += told.answers[0].classes[0].name === pair;
            }
            return right;
        }""",
        [space.names[c] for c in space.unseen],
    )
    assert right >= 15  # of 20


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_is_wider_than_the_window(served, opened, digits, width):
    page = opened(served(digits), viewport={"width": width, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate("[-1234.5, 128.6].map(number)") == [
        "-1234.50",
        "128.60",
    ]  # scores of one ranking
    if folder := os.environ.get("FEDUNSEEN_SCREENSHOTS"):
        page.fill("#typed", "47")
        page.wait_for_selector("#best b")
        page.screenshot(path=f"{folder}/page-{width}.png", full_page=True)


@pytest.mark.slow
def test_no_answer_is_shown_surer_than_it_is(served, served_app, opened, any_shot):
    page = opened(served(any_shot))
    assert page.evaluate(
        "[.9994, .9995, 1, .5, .0005, .0004, 0].map(share => percent(share, false))"
    ) == ["99.9 %", ">99.9 %", ">99.9 %", "50.0 %", "0.1 %", "<0.1 %", "<0.1 %"]
    page.set_input_files("#file", Path(__file__).parents[2] / "examples" / "digit-pairs" / "47.png")
    page.wait_for_selector("#set:not(:empty)")
    assert page.locator("#set").text_content().startswith("Not ruled out at 90 %: ")
    assert (
        page.locator("#shares").text_content() == page.locator("#unfamiliar").text_content() == ""
    )
    assert page.locator("#ranking").text_content().count("score") == 0
    assert page.locator("#because").text_content().startswith("For it: training samples of ")
    assert page.locator("#heat").is_visible()
    noise = np.full((1, 128), 50, np.float32)
    file = io.BytesIO()
    np.save(file, noise)
    page.set_input_files("#file", {"name": "a.npy", "mimeType": "", "buffer": file.getvalue()})
    says(
        page,
        "#unfamiliar",
        "Unlike everything this model has seen: treat the answer with care. No percentages are "
        "stated.",
    )
    assert page.locator("#ranking .name").count() == 8
    assert page.locator("#ranking .number").count() == page.locator("#ranking .track").count() == 0
    assert page.locator("#set").text_content() == ""
    page.fill("#typed", "4")
    says(page, "#best", "Draw a digit in each half.")
    assert page.locator("#unfamiliar").text_content() == ""
    model = Recognizer(load_run(any_shot))
    model.model = replace(model.model, confidence=None)
    page = opened(served_app(create_app(model)))
    page.set_input_files("#file", {"name": "a.npy", "mimeType": "", "buffer": file.getvalue()})
    says(page, "#shares", "Shares of 100 %, not how often an answer is right.")
    assert page.locator("#set").text_content() == ""


def test_the_page_says_what_a_class_is_known_by_since_training(
    any_shot, served, served_app, opened
):
    """Two classes without training samples: one was shown, one got unlabelled samples."""
    run = load_run(any_shot)
    first, second, third, *_ = (run.space.names[c] for c in run.space.unseen)
    page = opened(served(any_shot))
    says(page, "#kicker", f"FedUnseen · {run.experiment.name} · gaussian")
    assert "classes that no one trained on, it" in page.locator("#lead").inner_text()
    given = "examples of 1 class and 30 unlabelled samples"
    table = {"class": [first, second, third], "samples": [9.0, 8.0, 7.0]}
    note = {"samples": 30, "refused": [third], "classes": table}
    run.result.update(shown={first: 5}, adapted=note)
    assert known_by(run) == {first: "examples", second: "unlabelled"}
    page = opened(served_app(create_app(Recognizer(run))))
    says(page, "#kicker", f"FedUnseen · {run.experiment.name} · gaussian, with {given}")
    lead = page.locator("#lead").inner_text()
    assert "of classes not seen in training, it recognizes" in lead
    assert lead.endswith(f" Since training, it was given {given}.")
    kinds = [(first, "by examples", "a class known by examples"),
             (second, "unlabelled samples", "a class known by its description and unlabelled samples"),
             (third, "unseen", "a class that no one trained on")]  # fmt: skip
    for name, tag, words in kinds:
        score = {"name": name, "kind": "unseen", "score": 1.0, "probability": 0.9}
        page.evaluate("classes => show({answers: [{classes}], calibrated: true})", [score])
        assert page.locator("#best").inner_text() == f"{name} — {words}"
        assert page.locator("#ranking .kind").inner_text() == tag
    because = {"because": [{"name": first, "share": 100.0}], "classes": [score]}
    page.evaluate("answer => show({answers: [answer], calibrated: true})", because)
    assert page.locator("#because").inner_text() == f"For it: samples of {first} 100 %."


COUNT_EMPTY = """new MutationObserver(() => {
    window.moved += !document.getElementById("input-error").textContent;
}).observe(document.getElementById("input-error"), {childList: true})"""


def test_features_with_sliders_and_few_shot_with_examples(served, opened, features, few):
    page = opened(served(features))
    assert page.locator("#groups input[type=range]").count() == 6
    page.fill("#name", "as zebra")
    page.select_option("#like", "zèbre")
    page.get_by_role("button", name="Add the class").click()
    page.wait_for_selector("#added li")
    page = opened(served(few))
    for typed, name in (("1", "one"), ("7", "seven")):
        with page.expect_response("**/predict?*"):
            page.fill("#typed", typed)
        page.wait_for_selector("#input-error:not(:empty)")
        assert page.evaluate("window.moved ??= 0") == 0, "what is below moved under a pointer"
        page.evaluate(COUNT_EMPTY)
        page.fill("#name", name)
        page.get_by_role("button", name="Use the drawing as an example").click()
        says(page, "#kept", "1 drawn")
        page.get_by_role("button", name="Add the class").click()
        says(page, "#said", f"The class {name} was added.")
    page.fill("#typed", "1")
    says(page, "#best b", "one")


def _shows_an_unseen_class(page, run, files):
    """Give examples to the last unseen class of a run on its page, and take them away again."""
    names = [run.space.names[c] for c in run.space.unseen]
    assert page.locator("#unseen option").all_text_contents() == names
    page.select_option("#unseen", name := names[-1])
    page.set_input_files("#unseen-examples", files)
    says(page, "#said", f"{name} now has 5 examples.")
    assert page.locator("#unseen").input_value() == name
    said = page.locator("#shown-unseen li").inner_text().replace("\n", " ")
    assert said == f"{name} 5 examples, until the service ends Remove"
    score = {"name": name, "kind": "unseen", "score": 1.0, "probability": 0.9}
    page.evaluate("classes => show({answers: [{classes}], calibrated: true})", [score])
    assert page.locator("#best").inner_text() == f"{name} — a class known by examples"
    if folder := os.environ.get("FEDUNSEEN_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/unseen-{page.viewport_size['width']}.png", full_page=True)
    page.get_by_role("button", name=f"Remove the examples of {name}").click()
    says(page, "#said", f"The examples of {name} were taken away.")
    assert page.locator("#shown-unseen li").count() == 0


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_each_of_many_photos_is_answered_and_an_added_class_takes_examples(
    served, opened, own_photos, real_data, tmp_path, width
):
    files = []
    for name in ("lion", "tiger", "bear"):
        for i, tile in enumerate(tiles(real_data, name, 8, 500)):
            tile.save(tmp_path / f"{name}-{i}.png")
            files.append(tmp_path / f"{name}-{i}.png")
    (tmp_path / "words.png").write_text("no picture")
    asked = [*files[:3], tmp_path / "words.png", *files[8:11]]
    page = opened(served(own_photos), viewport={"width": width, "height": 900})
    page.set_input_files("#file", asked)
    says(page, "#many-words", "7 of 7 files, 1 without an answer. Choose one to see it above.")
    said = page.locator("#files .said").all_text_contents()
    done = load_run(own_photos)
    readable = [path for path in asked if path.name != "words.png"]
    best = [ranking[0].name for ranking in done.predict(readable, top=1)]
    assert [text.split(" ")[0].rstrip("?") for text in said if "no answer" not in text] == best
    assert "words.png is not a readable image" in said[3]
    says(page, "#best b", best[0])
    page.locator("#files button").nth(4).click()
    says(page, "#best b", best[3])
    assert page.locator("#files button[aria-current=true] .file").text_content() == "tiger-0.png"
    page.fill("#name", "tiger")
    page.get_by_role("button", name="Add the class").click()
    page.wait_for_selector("#added li")
    assert "of 100 pictures of it, expect about" in page.locator("#outlook").text_content()
    page.get_by_role("button", name="Undo the last one").click()
    says(page, "#said", "The class tiger was taken away.")
    assert page.locator("#outlook").text_content() == ""
    page.fill("#name", "tiger")
    page.get_by_role("button", name="Add the class").click()
    page.wait_for_selector("#added li")
    page.set_input_files("#added input[type=file]", files[11:16])
    says(page, "#added .note", "5 examples")
    says(page, "#said", "tiger now has 5 examples.")
    _shows_an_unseen_class(page, done, files[:5])
    page.get_by_text("About this model").click()
    about = page.locator("#card").inner_text()
    assert not any(mark in about for mark in ("library_name", "##", "**", "`", "|", "- "))
    assert "How to use it" in page.locator("#card h3").all_inner_texts()
    assert page.locator("#card table td").count() >= 9
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_input_files("#file", files[0])
    says(page, "#best b", "lion")
    assert not page.locator("#many").is_visible()
