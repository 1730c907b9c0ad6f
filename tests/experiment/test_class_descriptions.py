"""New classes by their names: described as the run's own classes were, or refused."""

import re

import numpy as np
import pytest

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.data import ClassSpace
from fedunseen.data.benchmarks.folder import Folder
from fedunseen.experiment import class_descriptions
from fedunseen.experiment.class_descriptions import names_in, semantics_of_names

NAMES = ("bear", "wolf", "bus")
WORDS = ("bear", "wolf", "bus", "fire", "truck", "elephant")


def bag(names, encoder, prompt):
    """A text encoder that counts words; ``shifted`` counts them in other columns."""
    assert prompt == "a photo of a {}."
    rows = np.array([[float(word in name.split()) for word in WORDS] for name in names]) + 0.1
    rows = rows[:, ::-1] if encoder == "shifted" else rows
    return rows, tuple(f"text {i}" for i in range(len(WORDS)))


@pytest.fixture
def space(monkeypatch):
    monkeypatch.setattr(class_descriptions, "describe", bag)
    semantics, columns = bag(NAMES, "bag", "a photo of a {}.")
    return ClassSpace(NAMES, semantics, columns, [0, 1], [], [2])


def settings(encoder="bag"):
    return Folder.Settings.model_validate({"root": ".", "text_encoder": encoder})


def test_names_are_described_by_the_encoder_and_the_sentence_of_the_run_without_their_article(
    space, monkeypatch
):
    heard = []
    monkeypatch.setattr(
        class_descriptions, "describe", lambda names, *of: heard.extend(names) or bag(names, *of)
    )
    found = semantics_of_names(
        ["A red fire truck", "The wolf", "an elephant", "anteater"], space, settings()
    )
    assert heard == ["bear", "red fire truck", "wolf", "elephant", "anteater"]
    assert {*np.concatenate(list(found.values()))} == {0.1, 1.1}
    places = {name: np.flatnonzero(row == 1.1).tolist() for name, row in found.items()}
    assert places == {
        "A red fire truck": [3, 4],
        "The wolf": [1],
        "an elephant": [5],
        "anteater": [],
    }


def test_what_cannot_be_described(space):
    attributes = ClassSpace(NAMES, np.eye(3) + 1, ("fur", "legs", "wheels"), [0, 1], [], [2])
    for names, of, encoder, start in (
        (
            ["elephant"],
            space,
            "shifted",
            "the text encoder 'shifted' is not the one that described this run's classes",
        ),
        (["?!"], space, "bag", "--class '?!' has no word in it: name the class"),
        (
            ["fire truck", "Fire_truck"],
            space,
            "bag",
            "the given classes 'fire truck' and 'Fire_truck' collide",
        ),
        (
            ["elephant"],
            attributes,
            "bag",
            "this run's classes are described by attributes (fur, legs, wheels), which",
        ),
        (["elephant"], space, None, "this run's classes are described by attributes ("),
    ):
        with pytest.raises((DataError, ExperimentError), match=f"^{re.escape(start)}"):
            semantics_of_names(names, of, settings(encoder))


def test_files_of_names_alone(tmp_path):
    file = tmp_path / "new.csv"
    for text, names in (
        ("elephant\na red fire truck\n", ["elephant", "a red fire truck"]),
        ("name\nelephant\n", ["elephant"]),
        ("\ufeffname,split\nelephant,unseen\n", ["elephant"]),
        ("name,fur\nelephant,1\n", None),
    ):
        file.write_text(text, "utf-8")
        assert names_in(file) == names
