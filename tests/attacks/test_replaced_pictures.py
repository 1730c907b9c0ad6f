"""A picture that its owner replaces after it was read, a withdrawn patient's, say: no ledger takes
its successor for it, whose features are in no sum.
"""

import hashlib
import os
from functools import partial

import numpy as np
import pytest
from PIL import Image

from fedunseen.core.errors import DataError
from fedunseen.data.io.images import decode
from fedunseen.deploy.client_data import OTHER_SAMPLES, PartyData, raw_samples
from fedunseen.deploy.counted import CountingParty
from fedunseen.deploy.remote.refusals import Hints
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


def kept_time(change, path):
    """Change a file, and give it the size and the time of change of before."""
    before = path.stat()
    change()
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def bitmap(path, gray):
    """Write a picture whose size in bytes says nothing of what it shows."""
    path.parent.mkdir(exist_ok=True, parents=True)
    Image.new("L", (9, 9), gray).save(path)


def moved_over(path):
    bitmap(path.with_name("new.bmp"), 200)
    path.with_name("new.bmp").replace(path)


@pytest.mark.parametrize("change", [moved_over, lambda path: bitmap(path, 200)])
def test_a_picture_with_size_and_time_of_another_is_not_taken_for_it(change, photos, header):
    """Of what was decoded for an earlier plan, nothing is in a later plan's sums."""
    path = photos / "cat" / "7.bmp"
    bitmap(path, 40)

    def read():
        party = PartyData(photos, min_samples=1)
        party._tree(header, {})
        names = [party.benchmark.files[row] for row in party.benchmark.train]
        place = names.index("cat/7.bmp")
        raw = list(raw_samples(photos, party.benchmark, party.benchmark.train, party.stamps))
        features = party.benchmark.features[party.benchmark.train[place]]
        return features.ravel()[0], raw[place][0]

    assert read() == (40, hashlib.sha256(path.read_bytes()).digest())
    kept_time(lambda: change(path), path)
    assert read() == (200, hashlib.sha256(path.read_bytes()).digest())


def test_two_folders_whose_pictures_agree_in_name_size_and_time_are_two(tmp_path):
    shown = []
    for year, gray in (("2025", 40), ("2026", 200)):
        bitmap(tmp_path / year / "1.bmp", gray)
        os.utime(tmp_path / year / "1.bmp", ns=(0, 0))
        shown.append(decode(tmp_path / year, ["1.bmp"], 8, 8).images[0, 0, 0, 0])
    assert shown == [40, 200]


@pytest.mark.parametrize("change", [moved_over, lambda path: bitmap(path, 200)])
def test_a_greeting_counts_again_once_a_picture_has_changed(change, photos, tmp_path):
    path = photos / "cat" / "7.bmp"
    bitmap(path, 40)
    marks = Hints(tmp_path / "state", data=photos)
    first = marks.add(b"greeting")
    assert marks.add(b"greeting") == first
    kept_time(lambda: change(path), path)
    assert marks.add(b"greeting") != first


def test_pictures_that_stay_and_others_that_come_are_no_reason(photos, header):
    party = PartyData(photos, min_samples=1)
    party._tree(header, {})
    raw = partial(raw_samples, photos, party.benchmark, party.benchmark.train)
    write(photos / "dog" / "9.png", 9)
    assert len(list(raw(party.stamps))) == 6
    assert list(raw(party.stamps)) == list(raw())
