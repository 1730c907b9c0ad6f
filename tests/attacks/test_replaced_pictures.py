"""A picture that its owner replaces after it was read, a withdrawn patient's, say: no ledger takes
its successor for it, whose features are in no sum.
"""

from functools import partial

import numpy as np
import pytest
from PIL import Image

from fedunseen.core.errors import DataError
from fedunseen.deploy.client_data import OTHER_SAMPLES, PartyData, raw_samples
from fedunseen.deploy.counted import CountingParty
from small_federation import experiment as experiment_of
from small_federation import greeting, write_all

TABLE = "name,split,a,b\ncat,seen,1,2\ndog,seen,2,1\nfox,unseen,2,2\n"


def write(path, gray):
    path.parent.mkdir(exist_ok=True)
    Image.new("L", (9, 9), gray).save(path)


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "classes.csv").write_text(TABLE)
    for name in ("cat", "dog"):
        for i in range(3):
            write(folder / name / f"{i}.png", 40 * i)
    return folder


@pytest.fixture
def header(tmp_path):
    """A greeting; what it says of samples does not matter here."""
    write_all(tmp_path)
    return greeting(experiment_of(tmp_path), tmp_path / "run")[0]


def exchanged(folder):
    """Put another file in a file's place, as `mv` does."""
    write(folder / "new.png", 200)
    (folder / "new.png").replace(folder / "cat" / "1.png")


def written_again(folder):
    """Write another picture into a file."""
    other = np.zeros((20, 20), np.uint8)
    Image.fromarray(other).save(folder / "cat" / "1.png")


@pytest.mark.parametrize("change", [exchanged, written_again])
@pytest.mark.parametrize("kind", [PartyData, CountingParty])
def test_a_picture_that_was_replaced_while_it_was_encoded_is_refused(
    change, kind, photos, header, monkeypatch
):
    party = kind(photos, min_samples=1)
    read = PartyData._read
    monkeypatch.setattr(
        PartyData, "_read", lambda self, data: (change(photos), read(self, data))[1]
    )
    party._tree(header, {})
    rows = party.benchmark.train
    with pytest.raises(DataError, match=r"cat/1\.png is another file") as refused:
        list(raw_samples(photos, party.benchmark, rows, party.stamps))
    assert refused.value.code == OTHER_SAMPLES


def test_pictures_that_stay_and_others_that_come_are_no_reason(photos, header):
    party = PartyData(photos, min_samples=1)
    party._tree(header, {})
    raw = partial(raw_samples, photos, party.benchmark, party.benchmark.train)
    write(photos / "dog" / "9.png", 9)
    assert len(list(raw(party.stamps))) == 6
    assert list(raw(party.stamps)) == list(raw())
