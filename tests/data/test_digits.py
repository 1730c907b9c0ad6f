import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError
from sklearn.datasets import load_digits

from fedunseen.core.errors import DataError
from fedunseen.data.benchmarks.digits import Digits, few_shot_benchmark, few_shot_space, read_strokes


@pytest.fixture(scope="module")
def benchmark():
    return Digits.load(Digits.Settings(), seed=0)


def test_shapes_and_splits(benchmark):
    space = benchmark.space
    assert space.names == tuple("0123456789")
    assert (space.seen.tolist(), space.validation.tolist()) == ([0, 1, 2, 3, 4], [])
    assert space.unseen.tolist() == [5, 6, 7, 8, 9]
    assert space.semantics.shape == (10, 0)
    assert (benchmark.features.shape, benchmark.features.dtype) == ((1797, 64), np.float32)
    assert (benchmark.features.min(), benchmark.features.max()) == (0, 1)
    assert benchmark.image_shape == (8, 8)
    assert benchmark.images().shape == (1797, 1, 8, 8)
    assert (len(benchmark.train), len(benchmark.test_seen), len(benchmark.test_unseen)) == (721, 180, 896)
    assert set(np.bincount(benchmark.labels[benchmark.test_seen]).tolist()) <= {35, 36, 37}


def test_the_samples_are_the_source_s(benchmark):
    digits = load_digits()
    np.testing.assert_array_equal(benchmark.features * 16, digits.data)
    np.testing.assert_array_equal(benchmark.labels, digits.target)


def test_is_the_same_for_every_seed_and_on_every_machine(benchmark):
    assert Digits.load(Digits.Settings(), seed=7).fingerprint() == benchmark.fingerprint()
    # a change here changes every figure that was ever published with this benchmark
    assert benchmark.fingerprint()[:16] == "a91d72c910dc3e11"


def test_other_digits_may_be_novel():
    made = Digits.load(Digits.Settings(novel=(9, 0)), seed=0)
    assert made.space.unseen.tolist() == [0, 9]
    assert set(made.labels[made.train].tolist()) == set(range(1, 9))


@pytest.mark.parametrize("novel", [(), tuple(range(10)), (3, 3), (-1,), (10,)])
def test_settings_are_bounded(novel):
    with pytest.raises(ValidationError, match="name 1 to 9 different digits"):
        Digits.Settings(novel=novel)


def test_a_class_without_samples_is_named():
    space = few_shot_space(["cat", "dog", "owl"], [0], [1], [2])
    for empty, name in enumerate(space.names):
        labels = np.array([c for c in (0, 0, 1, 1, 2, 2) if c != empty])
        with pytest.raises(DataError) as error:
            few_shot_benchmark("small", space, np.eye(4), labels, remedy=": add some")
        assert str(error.value) == f"small: the class {name!r} has no sample: add some"


def test_validation_classes_are_trained_on_until_they_are_split_off():
    space = few_shot_space(["cat", "dog", "owl"], [0], [1], [2])
    made = few_shot_benchmark("small", space, np.eye(6), np.array([0, 0, 1, 1, 2, 2]), test_seen=np.array([1]))
    assert (made.train.tolist(), made.test_seen.tolist(), made.test_unseen.tolist()) == ([0, 2, 3], [1], [4, 5])
    assert (space.seen.tolist(), space.train.tolist()) == ([0, 1], [0])


def test_reads_its_own_image_back(tmp_path, benchmark):
    image = benchmark.features[12].reshape(8, 8)
    for name, picture in (("own", image), ("inverted", 1 - image)):
        Image.fromarray(np.rint(picture * 255).astype(np.uint8)).save(tmp_path / f"{name}.png")
        read = Digits.read(tmp_path / f"{name}.png", Digits.Settings())
        assert (read.shape, read.dtype) == ((1, 64), np.float32)
        np.testing.assert_allclose(read[0], image.ravel(), atol=0.5 / 255 + 1e-6)


def test_bad_pictures_are_one_sentence(tmp_path):
    with pytest.raises(DataError) as error:
        Digits.read(tmp_path / "none.png", Digits.Settings())
    assert str(error.value) == f"{tmp_path / 'none.png'} is missing"
    (tmp_path / "a.png").write_bytes(b"hello")
    with pytest.raises(DataError) as error:
        read_strokes(tmp_path / "a.png", (28, 28))
    assert str(error.value) == f"{tmp_path / 'a.png'} is not a readable picture"
