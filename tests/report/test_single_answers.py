"""What a report shows of single answers: the surest mistakes, reasons, confusions of all classes."""

import re

import numpy as np
import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.pages.report import write_report
from pages import Page

SMALL = {"data.train_per_class": 20, "data.test_per_class": 10, "evaluation.embedding": False}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run in closed form on pictures."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    return run(Experiment.load("digit-pairs-gaussian", SMALL), folder)


@pytest.fixture(scope="module")
def text(done, tmp_path_factory):
    path = write_report(load_run(done.path), tmp_path_factory.mktemp("page") / "page.html")
    found = path.read_text("utf-8")
    assert Page(found).problems == []
    return found


def section(text, name):
    return re.search(rf'<section id="{name}">.*?</section>', text, re.DOTALL).group()


def test_the_surest_wrong_answers_are_wrong_and_in_order(done):
    tensors = done.evaluation
    wrong = tensors["wrong"]
    stated = tensors["stated"]
    mistaken = tensors["labels"] != tensors["gzsl_answers"]
    assert mistaken[wrong].all()
    assert len(wrong) == 12
    assert (np.diff(stated[wrong]) <= 0).all()
    others = np.setdiff1d(np.flatnonzero(mistaken), wrong)
    assert stated[others].max() <= stated[wrong].min()


def test_they_are_shown_with_pictures_reasons_and_places(done, text):
    part = section(text, "mistakes")
    assert part.count("<img ") == 24
    assert part.count("for it: ") == 12
    first = done.evaluation["wrong"][0]
    names = done.space.names
    answer = names[done.evaluation["gzsl_answers"][first]]
    assert f"</span> {answer} " in part
    assert f"</small> {names[done.evaluation['labels'][first]]}" in part
    assert "100\u00a0%," not in part
    assert "100.0" not in part


def test_recorded_reasons_are_those_of_the_model(done):
    tensors = done.evaluation
    rows = tensors["image_rows"]
    from fedunseen.experiment.assemble import load_data

    samples = load_data(done.experiment, 0).features[rows]
    names = [done.space.names[c] for c in tensors["image_answers"][:, 0]]
    found = done.model.explain(samples, classes=names, maps=done.pixels(samples))
    for place, one in enumerate(found):
        by = [done.space.names[c] for c in tensors["image_by"][place] if c >= 0]
        assert by == [part.name for part in one.shares()]
        np.testing.assert_allclose(
            tensors["image_places"][place], one.places.values, rtol=1e-4, atol=1e-4
        )


def test_samples_have_reasons_and_places(text):
    part = re.search(r"<h2>Samples of unseen classes</h2>.*?</section>", text, re.DOTALL).group()
    assert part.count("<img ") == 120
    assert part.count("for it: ") == 60


def test_the_confusion_is_of_all_classes(done, text):
    assert "What all classes are taken for" in text
    labels = [chart["label"] for chart in Page(text).charts]
    assert any(label.startswith("Confusion among 100 classes, seen and unseen") for label in labels)
    assert any(label.startswith("Confusion among 20 unseen classes") for label in labels)


def test_the_trade_names_the_chosen_point_other_priors_and_the_setting(done, text):
    part = section(text, "confidence")
    label = re.search(r"U against S over all offsets; [^\"]*", part).group()
    for word in ("auto", "uniform", "chosen"):
        assert re.search(rf"{word}: U [\d.]+ %, S [\d.]+ %", label)
    assert "balanced" not in label  # it is the chosen one
    assert "<code>evaluation.prior</code> moves it, here balanced" in part
    offset, u, s = done.result["confidence"]["priors"]["balanced"]
    uniform = done.result["confidence"]["priors"]["uniform"]
    assert uniform[0] <= offset
    assert uniform[1] <= u
    assert uniform[2] >= s


@pytest.mark.slow
def test_mistakes_without_pictures_are_rows(make_folder, tmp_path):
    made = run(
        Experiment.from_dict(
            {
                "data": {"name": "folder", "root": str(make_folder(tmp_path / "data"))},
                "partition": {"clients": 3},
                "method": {"name": "gaussian"},
                "evaluation": {"selection": "last", "embedding": False},
            }
        ),
        tmp_path / "run",
    )
    if "confidence" not in made.result:
        pytest.skip("nothing was held out")
    page = write_report(made, tmp_path / "page.html").read_text("utf-8")
    wrong = made.evaluation["wrong"]
    if len(wrong):
        part = section(page, "mistakes")
        assert part.count("<tr>") == 1 + len(wrong)
        assert "what speaks for the answer" in part
