import numpy as np
import pytest
from described import splits
from PIL import Image
from sklearn.datasets import load_digits

from fedunseen.data.benchmarks.digit_pairs import DigitPairs


@pytest.fixture(scope="module")
def benchmark():
    return DigitPairs.load(DigitPairs.Settings(), seed=0)


def test_every_half_is_a_real_digit_of_its_class_and_none_serves_training_and_tests(benchmark):
    digits = load_digits()
    sources = {
        image.tobytes(): i for i, image in enumerate((digits.images / 16).astype(np.float32))
    }
    assert len(sources) == len(digits.images)
    used = {}
    for split, ids in zip(("train", "test", "test"), splits(benchmark), strict=True):
        images = benchmark.features[ids].reshape(-1, 8, 2, 8)
        for place, tens in ((0, 10), (1, 1)):
            found = [sources[np.ascontiguousarray(half).tobytes()] for half in images[:, :, place]]
            np.testing.assert_array_equal(digits.target[found], benchmark.labels[ids] // tens % 10)
            used.setdefault(split, set()).update(found)
    assert not used["train"] & used["test"]
    assert len(used["train"]) > 1200
    assert len(used["test"]) > 500


def test_is_the_same_for_every_seed_and_on_every_machine_and_more_images_begin_with_the_same_ones(
    benchmark,
):
    assert DigitPairs.load(DigitPairs.Settings(), seed=7).fingerprint() == benchmark.fingerprint()
    # a change here changes every figure that was ever published with this benchmark
    assert (benchmark.fingerprint()[:16], benchmark.image_shape) == ("a075cc239f75b4a1", (8, 16))
    assert benchmark.space.attribute_groups == {
        "left": tuple(range(10)),
        "right": tuple(range(10, 20)),
    }
    more = DigitPairs.load(DigitPairs.Settings(train_per_class=70, test_per_class=1), seed=0)
    of = {b: b.features[b.train[b.labels[b.train] == 42]] for b in (benchmark, more)}
    assert (len(of[more]), len(more.test_unseen)) == (70, 20)
    np.testing.assert_array_equal(of[more][:60], of[benchmark])


@pytest.mark.parametrize("kind", ["large", "inverted", "L", "RGB", "RGBA"])
def test_reads_its_own_image_in_any_size_and_ink(tmp_path, benchmark, kind):
    image = benchmark.features[benchmark.train[1234]].reshape(8, 16)
    grey = Image.fromarray(np.rint(image * 255).astype(np.uint8))
    if kind == "large":
        picture = grey.resize((160, 80), Image.Resampling.NEAREST)
    elif kind == "inverted":
        picture = Image.fromarray(255 - np.asarray(grey))
    elif kind == "RGBA":  # dark ink on nothing: transparent parts are paper
        picture = Image.merge("RGBA", [Image.new("L", grey.size)] * 3 + [grey])
    else:
        picture = grey.convert(kind)
    picture.save(tmp_path / "a.png")
    own = DigitPairs.read(tmp_path / "a.png", DigitPairs.Settings())
    assert (own.shape, own.dtype) == ((1, 128), np.float32)
    np.testing.assert_allclose(own[0], image.ravel(), atol=0.5 / 255 + 1e-6)
