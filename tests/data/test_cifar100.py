import shutil

import numpy as np
import pytest
from PIL import Image

from fedunseen.core.errors import DataError
from fedunseen.data.benchmarks.cifar100 import Cifar100
from fedunseen.data.benchmarks.cifar_files import class_images, find_source


def load(root, **settings):
    return Cifar100.load(Cifar100.Settings(root=root, **settings), seed=0)


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
