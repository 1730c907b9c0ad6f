"""Pictures of things that a model was never shown, on the page of the service in a real browser."""

import io
import os
import re

import numpy as np
import pytest
from PIL import Image, ImageDraw

from fedunseen import Experiment, run
from photo_runs import tiles

pytestmark = pytest.mark.slow

FOREIGN = ("chair", "telephone", "sunflower", "rocket", "bottle")
SURE = 99.0  # percent


def png(picture):
    """Return a picture as a file in memory."""
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def written(words, size=96):
    """Return black words on white."""
    picture = Image.new("RGB", (size, size), "white")
    ImageDraw.Draw(picture).text((8, size // 3), words, fill="black", font_size=size // 3)
    return picture


def drawn_pictures():
    """Return name -> picture of what nobody photographed."""
    noise = np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8)
    slope = np.linspace(0, 255, 96).astype(np.uint8)
    return {
        "black": Image.new("RGB", (96, 96)),
        "noise": Image.fromarray(noise),
        "gradient": Image.fromarray(np.repeat(slope[None], 96, 0)),
        "text": written("abc"),
        "digit": written("7"),
    }


@pytest.fixture
def unknown(real_data):
    """Return ten pictures, name -> PNG: five that are drawn, five photos of other things."""
    photos = {name: tiles(real_data, name, 1, first=500)[0] for name in FOREIGN}
    return {name: png(picture) for name, picture in {**drawn_pictures(), **photos}.items()}


def shown(page, name, content):
    """Give a picture to the page; return the highest percentage, 0 without any."""
    page.evaluate("document.querySelector('#best').textContent = 'Nothing yet.'")
    page.set_input_files(
        "#file", {"name": f"{name}.png", "mimeType": "image/png", "buffer": content}
    )
    page.wait_for_selector("#best b")
    numbers = page.locator("#ranking .number").all_text_contents()
    return max((float(re.sub("[<>% ]", "", number)) for number in numbers), default=0.0)


def ask_all(page, pictures, folder, width, kind):
    """Return the highest percentage of each picture, and keep screenshots where asked to."""
    found = {}
    for name, content in pictures.items():
        found[name] = shown(page, name, content)
        if folder:
            page.screenshot(path=f"{folder}/{kind}-{name}-{width}.png", full_page=True)
    return found


@pytest.mark.parametrize("width", [390, 1280])
def test_a_model_of_photos_is_not_sure_of_what_it_was_never_shown(
    served, opened, photos, unknown, width
):
    page = opened(served(photos), viewport={"width": width, "height": 900})
    folder = os.environ.get("FEDUNSEEN_SCREENSHOTS")
    found = ask_all(page, unknown, folder, width, "photos")
    assert {name: value for name, value in found.items() if value >= SURE} == {}
    assert page.locator("#heat").is_visible()
    assert page.locator("#heat-words").text_content().startswith("Orange speaks for ")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("width", [390, 1280])
def test_a_model_of_digits_is_not_sure_of_photos(served, opened, sure_digits, unknown, width):
    page = opened(served(sure_digits), viewport={"width": width, "height": 900})
    folder = os.environ.get("FEDUNSEEN_SCREENSHOTS")
    found = ask_all(page, unknown, folder, width, "digits")
    assert {name: value for name, value in found.items() if value >= SURE} == {}


@pytest.fixture(scope="module")
def sure_digits(tmp_path_factory):
    """Return a run of digits whose answers were compared with held-out samples."""
    return run(
        Experiment.load("digit-pairs-gaussian"), tmp_path_factory.mktemp("sure") / "run"
    ).path
