"""Photos of one's own, as a new user meets them: one run, and what is said of it and made from
it.
"""

import pytest

from fedunseen import load_run
from fedunseen.experiment.new_names import outlooks, strange_names
from photo_runs import tiles


@pytest.fixture
def picture(real_data, tmp_path):
    (tile,) = tiles(real_data, "tiger", 1, 500)
    tile.save(tmp_path / "tiger.png")
    return tmp_path / "tiger.png"


def test_a_class_by_its_name_is_compared_with_its_neighbors_before_anything_is_answered(
    own_photos, picture, works
):
    done = works(
        "predict", own_photos, picture, "--class", "tiger", "--class", "leopards", "--json"
    )
    tiger, leopards = done.answer[0]["new_classes"]
    assert {"lion", "leopard"} == set(tiger["neighbors"])
    assert 0 <= tiger["expected"] < 60
    assert (tiger["same_as"], tiger["unknown"]) == ("", False)
    assert leopards["same_as"] == "leopard"
    said = done.err
    assert f"of 100 pictures of it, expect about {tiger['expected']:.0f} to be recognized" in said
    assert "'leopards' and 'leopard' are described almost alike" in said
    assert f"fedunseen learn {own_photos} --class tiger --support FOLDER --out NEW" in said
    # the command is the one that it names, and says the same
    learned = works(
        "learn", own_photos, "--class", "tiger", "--out", picture.parent / "new", "--json"
    )
    assert learned.answer["new_classes"] == [tiger]
    assert tiger["sentence"] in learned.err


def test_words_that_the_text_encoder_does_not_know_are_told_from_english_ones(own_photos):
    run = load_run(own_photos)
    strange = ["asdfgh", "qwertz", "żubr", "Hund", "собака", "jabłko"]
    english = ["zebra", "tiger", "bicycle", "hammerhead shark", "grey heron", "lawn mower"]
    assert strange_names([*strange, *english], run.describing) == strange
    found = {one.name: one for one in outlooks(run, ["asdfgh", "zebra", "lion"])}
    assert list(found) == ["asdfgh", "zebra"]  # the run has lions
    assert "looks like a made-up word" in found["asdfgh"].sentence()
    assert found["zebra"].expected is not None
    (alone,) = outlooks(run, ["zebra"], beside_all=False)
    assert alone.expected is None
