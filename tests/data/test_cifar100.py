import shutil

import numpy as np
import pytest
import scipy.io
from PIL import Image

from fedunseen.core.errors import DataError
from fedunseen.data.benchmarks.cifar100 import Cifar100
from fedunseen.data.benchmarks.cifar_files import class_images, find_source, published_split


def load(root, **settings):
    return Cifar100.load(Cifar100.Settings(root=root, **settings), seed=0)


@pytest.mark.slow
def test_the_split_is_that_of_the_features(real_data, no_text_encoder):
    """The same classes, and with the same limits the same images, as the features CIFAR100_MBV2."""
    folder = real_data / "xlsa17" / "CIFAR100_MBV2"
    split = scipy.io.loadmat(folder / "att_splits.mat")
    measured = scipy.io.loadmat(folder / "res101.mat", variable_names=["labels", "image_files"])
    names = [str(cell[0]) for cell in split["allclasses_names"].ravel()]
    labels = measured["labels"].ravel() - 1
    files = [str(cell[0]) for cell in measured["image_files"].ravel()]

    def of(key):
        return split[key].ravel() - 1

    parts = published_split("zero_shot")
    for classes, part in (
        (labels[of("test_unseen_loc")], "unseen"),
        (np.setdiff1d(labels[of("val_loc")], labels[of("train_loc")]), "validation"),
    ):
        assert {names[c] for c in classes} == {name for name in parts if parts[name] == part}
    made = load(real_data / "cifar100", train_per_class=250, test_per_class=50)
    assert (made.space.names, made.labels.tolist()) == (tuple(names), labels.tolist())
    for ours, theirs in (("train", "trainval_loc"), ("test_seen", "test_seen_loc"), ("test_unseen", "test_unseen_loc")):
        assert np.array_equal(getattr(made, ours), np.sort(of(theirs)))
    for i in (0, 249, 250, 299, 300, 29_999):  # training images are numbered from 0, test images from 50,000
        label, number = files[i].split("/")
        c, number = names.index(label), int(number)
        tile = number - 500 * c if number < 50_000 else 500 + number - 50_000 - 100 * c
        with Image.open(real_data / "cifar100" / f"{c:02d}_{label}.webp") as sheet:
            left, top = 32 * (tile % 30), 32 * (tile // 30)
            pixels = np.asarray(sheet.convert("RGB").crop((left, top, left + 32, top + 32)))
        assert np.array_equal(made.features[i], pixels.transpose(2, 0, 1))


def test_all_images_of_the_real_sheets(real_data):
    images = class_images(find_source(real_data / "cifar100"), [0, 99, 2])
    assert isinstance(images, np.memmap)
    assert images.shape == (1800, 3, 32, 32)
    for row, name in ((0, "00_apple"), (600, "99_worm"), (1200, "02_baby")):
        with Image.open(real_data / "cifar100" / f"{name}.webp") as sheet:
            pixels = np.asarray(sheet.convert("RGB"))
        assert np.array_equal(images[row], pixels[:32, :32].transpose(2, 0, 1))
        assert np.array_equal(images[row + 599], pixels[-32:, -32:].transpose(2, 0, 1))


def test_damaged_sheets_are_named(real_data, tmp_path, no_text_encoder):
    for path in (real_data / "cifar100").glob("*.webp"):
        (tmp_path / path.name).symlink_to(path)
    bear = tmp_path / "03_bear.webp"

    def refusal():
        with pytest.raises(DataError) as error:
            load(tmp_path, train_per_class=1)
        return str(error.value)

    bear.unlink()
    assert refusal() == f"{tmp_path} has 99 of 100 sheets, that of class 03 not once: unpack it again"
    Image.new("RGB", (30, 20)).save(bear)
    assert refusal() == f"{bear} has 30 x 20 pixels, not 960 x 640: unpack it again"
    shutil.copy(real_data / "README.md", bear)
    assert refusal() == f"{bear} is not a readable image: unpack it again"
