import gzip
import struct

import numpy as np
import pytest
from PIL import Image

from fedunseen.core.errors import DataError
from fedunseen.data.benchmarks.mnist import Mnist
from published_layouts import write_mnist

PAGE = "http://yann.lecun.com/exdb/mnist"


def load(root, **settings):
    return Mnist.load(Mnist.Settings(root=root, **settings), seed=0)


def refusal(root):
    with pytest.raises(DataError) as error:
        load(root)
    return str(error.value)


@pytest.mark.parametrize("packed", [True, False])
def test_training_digits_train_and_novel_digits_come_from_the_test_set(tmp_path, packed):
    made = write_mnist(tmp_path / "mnist", packed=packed)
    for root in (tmp_path, tmp_path / "mnist"):
        read = load(root)
        (pixels, digits), (test_pixels, test_digits) = made["train"], made["t10k"]
        assert (read.kind, read.image_shape, read.features.dtype) == ("images", (1, 28, 28), np.uint8)
        np.testing.assert_array_equal(read.features[read.train, 0], pixels[digits < 5])
        np.testing.assert_array_equal(read.labels[read.train], digits[digits < 5])
        np.testing.assert_array_equal(read.features[read.test_seen, 0], test_pixels[test_digits < 5])
        np.testing.assert_array_equal(read.features[read.test_unseen, 0], test_pixels[test_digits >= 5])
        np.testing.assert_array_equal(read.labels[read.test_unseen], test_digits[test_digits >= 5])
        assert read.space.validation.tolist() == []
        assert len(read.features) == 30 + 40


def test_other_digits_may_be_novel(tmp_path):
    write_mnist(tmp_path)
    made = load(tmp_path, novel=[0])
    assert (made.space.unseen.tolist(), len(made.train), len(made.test_unseen)) == ([0], 54, 4)


def test_other_ways_to_write_the_names(tmp_path):
    write_mnist(tmp_path, packed=False)
    for path in list(tmp_path.iterdir()):
        path.rename(tmp_path / path.name.replace("-idx", ".idx"))
    assert len(load(tmp_path).train) == 30


def test_a_picture_is_read_as_the_benchmark_s_own(tmp_path):
    pixels = np.zeros((28, 28), dtype=np.uint8)
    pixels[8:20, 12:16] = 200
    Image.fromarray(255 - pixels).resize((280, 280), Image.Resampling.NEAREST).save(tmp_path / "a.png")
    read = Mnist.read(tmp_path / "a.png", Mnist.Settings(root=tmp_path))
    assert (read.shape, read.dtype) == ((1, 1, 28, 28), np.uint8)
    np.testing.assert_array_equal(read[0, 0], pixels)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda whole: whole[:-100], "is cut short, 46,940 of 47,040 bytes"),
        (lambda whole: whole + b"x", "goes on after the 47,040 bytes that it says it holds"),
        (lambda whole: whole[:10], "is not an IDX file of images (it does not begin with 2051)"),
        (lambda whole: b"P5 28 28 " + whole, "is not an IDX file of images (it does not begin with 2051)"),
        (
            lambda whole: struct.pack(">4I", 2051, 2**31, 28, 28),
            "says that it holds 1,683,627,180,032 bytes, more than MNIST has",
        ),
    ],
)
def test_damaged_files_are_named(tmp_path, spoil, message):
    write_mnist(tmp_path, packed=False)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(spoil(path.read_bytes()))
    assert refusal(tmp_path) == f"{path} {message}: download it again ({PAGE})"


def test_damaged_gzip_files_are_named(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / "t10k-labels-idx1-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-12])
    assert refusal(tmp_path) == f"{path} is cut short: download it again ({PAGE})"
    path.write_bytes(gzip.decompress(whole))
    assert refusal(tmp_path) == f"{path} is damaged, or not a gzip file: download it again ({PAGE})"
    path.write_bytes(gzip.compress(struct.pack(">2I", 2049, 40) + bytes(10**8)))  # far more than it says
    assert refusal(tmp_path) == f"{path} goes on after the 40 bytes that it says it holds: download it again ({PAGE})"
    path.unlink()
    unpacked = tmp_path / "t10k-labels-idx1-ubyte"
    assert refusal(tmp_path) == (
        f"{unpacked} (or .gz) is missing: get MNIST's four IDX files from {PAGE}, or mend data.root"
    )


def test_images_of_another_size_are_refused(tmp_path):
    write_mnist(tmp_path, images=np.zeros((30, 32, 28), dtype=np.uint8), packed=False)
    assert refusal(tmp_path) == (
        f"{tmp_path / 'train-images-idx3-ubyte'} holds images of 32 x 28 pixels, but MNIST's have 28 x 28: "
        f"download it again ({PAGE})"
    )


def test_images_and_labels_have_to_fit(tmp_path):
    write_mnist(tmp_path, packed=False)
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(struct.pack(">2I", 2049, 7) + bytes(7))
    assert refusal(tmp_path) == (
        f"{tmp_path / 'train-images-idx3-ubyte'} has 60 images, but {path} has 7 labels: download both again ({PAGE})"
    )
    path.write_bytes(struct.pack(">2I", 2049, 60) + bytes([11] * 60))
    assert refusal(tmp_path) == f"{path} has the label 11, but MNIST's are 0 to 9: download it again ({PAGE})"
    path.write_bytes(struct.pack(">2I", 2049, 60) + bytes([1] * 60))
    few = tmp_path / "t10k-labels-idx1-ubyte"
    few.write_bytes(struct.pack(">2I", 2049, 40) + bytes([0, 1, 2, 3, 4, 6, 7, 8] * 5))
    assert refusal(tmp_path) == f"mnist: the class '5' has no sample: download its four files again ({PAGE})"


def test_a_wrong_root_says_what_to_get(tmp_path):
    path = tmp_path / "nowhere" / "train-images-idx3-ubyte"
    assert refusal(tmp_path / "nowhere") == (
        f"{path} (or .gz) is missing: get MNIST's four IDX files from {PAGE}, or mend data.root"
    )


def test_the_real_files(real_data):
    made = load(real_data)
    assert (len(made.train), len(made.test_seen), len(made.test_unseen)) == (30_596, 5_139, 4_861)
    assert np.bincount(made.labels[made.test_unseen]).tolist() == [0] * 5 + [892, 958, 1028, 974, 1009]
    assert made.fingerprint()[:16] == "11bbed31b36e168d"
