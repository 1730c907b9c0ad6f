"""What ``fedunseen predict`` says of an answer: its probability, a set, whether it is familiar,
why.
"""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedunseen import Experiment, load_model, load_run, run
from fedunseen.core.errors import RunDirectoryError
from same import write_older

EXAMPLES = Path(__file__).parents[2] / "examples" / "digit-pairs"
IMAGES = sorted(EXAMPLES.glob("*.png"))


@pytest.fixture(scope="module")
def sure(tmp_path_factory):
    """Return a run whose answers were compared with held-out samples."""
    folder = tmp_path_factory.mktemp("sure") / "run"
    return run(Experiment.load("digit-pairs-gaussian"), folder).path


@pytest.mark.slow
def test_an_answer_has_a_probability_a_set_and_a_reason(works, sure):
    answers = works("predict", sure, *IMAGES, "--sets", 0.9, "--why", "--json").answer
    model = load_run(sure).model
    rows = load_run(sure).read_inputs(IMAGES)
    sets = model.predict_set(rows, 0.9)
    probabilities = model.probabilities(rows)
    for k, answer in enumerate(answers):
        best = answer["classes"][0]
        assert best["name"] == IMAGES[k].stem
        assert 0.5 < best["probability"] < 1.0
        place = model.space.names.index(best["name"])
        assert best["probability"] == pytest.approx(probabilities[k, place], rel=1e-9)
        assert answer["set"] == [model.space.names[c] for c in np.flatnonzero(sets[k])]
        assert best["name"] in answer["set"]
        assert answer["why"].startswith(f"{best['name']}: ")
        assert 0 < answer["unfamiliar"] <= 1
    shown = works("predict", sure, IMAGES[0], "--sets", 0.9, "--why", "--top", 1).out.splitlines()
    assert shown[1].endswith(f"{100 * answers[0]['classes'][0]['probability']:.1f} %")
    assert shown[2] == f"  Not ruled out: {', '.join(answers[0]['set'])}"
    assert shown[3] == f"  Why {answers[0]['why']}"
    scored = works("predict", sure, IMAGES[0], "--top", 1, "--scores").out.splitlines()
    assert scored[1].endswith(f"{answers[0]['classes'][0]['score']:.3f}")


@pytest.mark.slow
def test_reasons_name_attributes_and_places_and_are_written_as_pictures(works, sure, tmp_path):
    folder = tmp_path / "heat"
    given = ("predict", sure, *IMAGES, "--why", "--why-pictures", folder)
    answers = works(*given, "--json").answer
    places = [one.places for one in load_run(sure).explain(IMAGES)]
    for answer, place in zip(answers, places, strict=True):
        assert answer["why_places"] == place.sentence()
        assert place.values.shape == (8, 16)
        assert answer["why_attributes"].count("%") == 3  # an unseen pair of digits
        with Image.open(folder / f"{Path(answer['input']).stem}.png") as heat:
            assert heat.size == (256, 128)
    works(*given)  # earlier pictures stay
    assert len(list(folder.iterdir())) == 2 * len(IMAGES)
    shown = works("predict", sure, IMAGES[0], "--why", "--top", 1).out.splitlines()
    assert shown[-2] == f"  Attributes: {answers[0]['why_attributes']}"
    assert shown[-1] == f"  Where: {answers[0]['why_places']}"


def test_added_classes_are_explained_and_a_single_choice_has_no_percentage(works, sure, tmp_path):
    header, *rows = (sure / "classes.csv").read_text("utf-8").splitlines()
    own = dict(zip(header.split(","), rows[47].split(","), strict=True))
    table = tmp_path / "new.csv"
    keys = [key for key in own if key == "name" or key.startswith(("left", "right"))]
    cells = ["forty-seven" if key == "name" else own[key] for key in keys]
    table.write_text(f"{','.join(keys)}\n{','.join(cells)}\n", "utf-8")
    given = ("predict", sure, *IMAGES, "--classes", table, "--why")
    answers = works(*given, "--json").answer
    grown = load_run(sure).model.learn(load_run(sure).described(table))
    names = [answer["classes"][0]["name"] for answer in answers]
    reasons = grown.explain(load_run(sure).read_inputs(IMAGES), classes=names)
    assert [answer["why"] for answer in answers] == [one.sentence() for one in reasons]
    shown = works(*given, "--among", "given").out
    assert shown.count("  1. forty-seven  the only choice\n") == len(IMAGES)
    assert shown.count("  Why forty-seven: ") == len(IMAGES)


def test_pictures_of_reasons_need_reasons(refused, sure, tmp_path):
    said = refused("predict", sure, IMAGES[0], "--why-pictures", tmp_path / "heat")
    assert "--why-pictures shows reasons: give --why, too" in said


def test_noise_and_an_empty_picture_are_called_unfamiliar(works, sure, tmp_path):
    """One in a hundred digits is as far from all classes as an empty picture, but none as dark or
    as bright.
    """
    rng = np.random.default_rng(0)
    odd = np.stack([rng.random((8, 16)), np.zeros((8, 16)), np.ones((8, 16))])
    np.save(tmp_path / "odd.npy", odd.astype(np.float32))
    shown = works("predict", sure, tmp_path / "odd.npy", "--top", 1).out
    assert shown.count("Unlike all known samples") == 3
    odd = works("predict", sure, tmp_path / "odd.npy", "--json").answer
    assert all(answer["unfamiliar"] < 0.002 for answer in odd)
    known = works("predict", sure, *IMAGES, "--top", 1).out
    assert "Unlike" not in known


def test_a_table_keeps_its_columns_and_new_ones_follow(works, sure, tmp_path):
    table = tmp_path / "answers.csv"
    works("predict", sure, *IMAGES, "--csv", table, "--sets", 0.9, "--top", 2)
    rows = list(csv.reader(table.read_text("utf-8").splitlines()))
    columns = ["input", "place", "class", "score", "probability", "unfamiliar", "set"]
    assert rows[0] == columns
    assert len(rows) == 7


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sets", 1), "--sets 1 is not between 0 and 1"),
        (("--sets", 0), "--sets 0 is not between 0 and 1"),
        (("--sets", "nan"), "--sets nan is not between 0 and 1"),
        (("--sets", 0.9, "--among", "unseen"), "--sets is about the run's own classes"),
        (("--why", "--support", EXAMPLES), "--why does not go with --support"),
    ],
)
def test_details_that_cannot_be_are_refused(refused, sure, words, said):
    assert said in refused("predict", sure, IMAGES[0], *words)


@pytest.mark.slow
def test_a_run_without_held_out_samples_says_so(refused, works, digits):
    shown = works("predict", digits, IMAGES[0])
    assert "were not compared with held-out samples" in shown.err
    assert "no calibrated probabilities" in refused("predict", digits, IMAGES[0], "--sets", 0.9)
    assert "unfamiliar" not in works("predict", digits, IMAGES[0], "--json").answer[0]


@pytest.mark.slow
def test_what_a_run_learns_keeps_its_confidence_and_so_does_a_file(sure, tmp_path):
    done = load_run(sure)
    rows = done.read_inputs(IMAGES)
    learned = done.learn(examples={"forty-seven": rows[1:2]}, out=tmp_path / "learned")
    assert learned.model.confidence is not None
    done.model.save(tmp_path / "model.fedunseen")
    loaded = load_model(tmp_path / "model.fedunseen")
    assert np.array_equal(loaded.probabilities(rows), done.model.probabilities(rows))
    assert np.array_equal(loaded.predict_set(rows, 0.8), done.model.predict_set(rows, 0.8))
    assert np.array_equal(loaded.unfamiliar(rows), done.model.unfamiliar(rows))


def test_a_damaged_confidence_is_named(sure, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(sure, copy)
    write_older(copy)
    (copy / "confidence.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(RunDirectoryError, match=r"confidence\.safetensors is damaged"):
        load_run(copy).model  # noqa: B018  # reads it
