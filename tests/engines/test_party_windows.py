"""Parties show pictures of more than 8 bits in one window, the coordinator's."""

import warnings

import numpy as np
import pytest
from PIL import Image

from fedunseen.core.errors import RefusedError
from fedunseen.deploy.client_data import PartyData
from refusals import message_of


@pytest.fixture
def folder(tmp_path):
    """Floats of two classes, from -1000 to 3000: nothing in a file says which one is white."""
    for c, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for i in range(3):
            values = np.full((8, 8), 500.0 * (3 * c + i) - 1000, dtype=np.float32)
            Image.fromarray(values).save(tmp_path / name / f"{i}.tif")
    (tmp_path / "classes.csv").write_text("name,split,a\ncat,seen,1\ndog,seen,2\nelk,unseen,3\n")
    return tmp_path


def greeting(**data):
    sections = {"data": {"name": "images", "root": "elsewhere", "size": 8, "resize": 8, **data}}
    return {"experiment": {**sections, "privacy": {}}}


def test_a_party_reads_its_pictures_again_in_the_coordinators_window(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no one has named a window yet
        party = PartyData(folder)
    party._tree(greeting(window=[-1000, 3000]), {})
    shown = party.benchmark.features[:, 0, 0, 0]
    assert shown.tolist() == [round((500 * i) / 4000 * 255) for i in range(6)]
    assert party.benchmark.reading == (
        "6 pictures of more than 8 bits: black and white by data.window = [-1000, 3000]",
    )
    said = message_of(party._tree, greeting(), {})
    assert "0.tif has more than 16 bits a pixel, and nothing says which value is black" in said


@pytest.mark.parametrize("setting", [{"data.window": [0, 1]}, {"data.frames": "each"}])
def test_a_party_cannot_take_another_window_or_other_frames(folder, setting):
    party = PartyData(folder, setting)
    with pytest.raises(RefusedError, match="is not the coordinator's") as refusal:
        party._tree(greeting(window=[-1000, 3000], frames="middle"), {})
    assert refusal.value.code == "refused-settings"
