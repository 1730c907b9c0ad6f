"""The few-shot benchmarks read the samples and the splits that their authors publish."""

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from described import per_class, roles, splits
from PIL import Image
from sklearn.datasets import load_digits

from fedunseen.core.errors import DataError
from fedunseen.core.memory import Mapped
from fedunseen.core.registry import find
from fedunseen.data.benchmarks import cifar100
from fedunseen.data.benchmarks.cifar100 import class_parts, find_source
from fedunseen.data.benchmarks.few_shot import FewShotBenchmark, MiniImageNet
from fedunseen.data.io.images import ImageBytes
from published_layouts import write_cifar, write_miniimagenet, write_mnist, write_omniglot
from refusals import message_of


def load(name, root=None, seed=0, **settings):
    kind = find("data", name)
    return kind.load(kind.Settings(**({} if root is None else {"root": root}), **settings), seed)


def read(name, path):
    kind = find("data", name)
    return kind.read(ImageBytes(path.read_bytes(), path.name), kind.Settings(root=path.parent))


def sizes(made):
    """Return how many classes and samples are for training, for validation or held out, and
    novel.
    """
    space = made.space
    return (len(space.train), len(space.validation), len(space.unseen)), tuple(
        map(len, splits(made))
    )


class Small(FewShotBenchmark):
    """Three classes, with the labels that a test gives as the settings."""

    remedy = ": add some"

    @classmethod
    def load(cls, settings, seed):
        return cls.build(
            "small", ["cat", "dog", "owl"], ([0], [1], [2]), np.eye(len(settings)), settings, [1]
        )


def test_validation_classes_are_trained_on_until_they_are_split_off_and_classes_without_samples_are_named():
    labels = np.array([0, 0, 1, 1, 2, 2])
    made = Small.load(labels, seed=0)
    assert (splits(made), roles(made.space)) == (([0, 2, 3], [1], [4, 5]), ([0, 1], [1], [2]))
    assert made.space.train.tolist() == [0]
    for empty, name in enumerate(("cat", "dog", "owl")):
        said = message_of(Small.load, labels[labels != empty], seed=0)
        assert said == f"small: the class {name!r} has no sample: add some"


@pytest.mark.parametrize(
    ("name", "side"), [("fc100", 32), ("cifar-fs", 32), ("miniimagenet", 84), ("cifar100", 32)]
)
def test_any_photo_is_read_as_the_benchmark_s_own(tmp_path, name, side):
    Image.new("RGB", (64, 40), "red").save(tmp_path / "a.png")
    image = read(name, tmp_path / "a.png")
    assert (image.shape, image.dtype, image[0, :, 5, 5].tolist()) == (
        (1, 3, side, side),
        np.uint8,
        [255, 0, 0],
    )


def test_digits():
    made = load("digits")
    assert (made.space.names, roles(made.space)) == (
        tuple("0123456789"),
        ([0, 1, 2, 3, 4], [], [5, 6, 7, 8, 9]),
    )
    assert sizes(made) == ((5, 0, 5), (721, 180, 896))
    assert set(np.bincount(made.labels[made.test_seen]).tolist()) <= {35, 36, 37}
    assert (made.features.dtype, made.image_shape, made.images().shape) == (
        np.float32,
        (8, 8),
        (1797, 1, 8, 8),
    )
    np.testing.assert_equal((made.features * 16, made.labels), load_digits(return_X_y=True))
    # a change here changes every figure that was ever published with this benchmark
    assert (
        load("digits", seed=7).fingerprint()[:16] == made.fingerprint()[:16] == "a91d72c910dc3e11"
    )


@pytest.mark.parametrize("layout", ["packed", "plain", "dotted"])
def test_mnist_trains_on_one_set_and_tests_on_the_other(tmp_path, layout):
    written = write_mnist(tmp_path / "mnist", packed=layout == "packed")
    if layout == "dotted":  # the other way to write the names
        for path in list((tmp_path / "mnist").iterdir()):
            path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    for root in (tmp_path, tmp_path / "mnist"):
        made = load("mnist", root)
        (pixels, digits), (test_pixels, test_digits) = written["train"], written["t10k"]
        assert (made.kind, made.image_shape, made.features.dtype) == (
            "images",
            (1, 28, 28),
            np.uint8,
        )
        np.testing.assert_array_equal(
            made.features[:, 0], np.concatenate([pixels[digits < 5], test_pixels])
        )
        np.testing.assert_array_equal(
            made.labels, np.concatenate([digits[digits < 5], test_digits])
        )
        seen, unseen = (30 + np.flatnonzero(test_digits // 5 == half) for half in (0, 1))
        assert splits(made) == (list(range(30)), seen.tolist(), unseen.tolist())
    assert sizes(made)[0] == (5, 0, 5)


def test_mnist_reads_a_picture_as_its_own(tmp_path):
    pixels = np.zeros((28, 28), dtype=np.uint8)
    pixels[8:20, 12:16] = 200
    Image.fromarray(255 - pixels).resize((280, 280), Image.Resampling.NEAREST).save(
        tmp_path / "a.png"
    )
    np.testing.assert_array_equal(read("mnist", tmp_path / "a.png"), pixels[None, None])


def alphabets(space):
    """Return the alphabets of the training, the validation and the novel characters."""
    return [
        {space.names[c].partition("/")[0] for c in ids}
        for ids in (space.train, space.validation, space.unseen)
    ]


def test_omniglot_is_split_by_alphabets_or_as_santoro_did(tmp_path, small_copies):
    drawn = write_omniglot(
        tmp_path / "omniglot", {"Greek": 3, "Latin": 2, "N_Ko": 2, "Korean": 1, "Hebrew": 2}
    )
    for root in (tmp_path, tmp_path / "omniglot"):
        made = load("omniglot", root)
        assert (made.name, made.space.names[0]) == ("omniglot/background", "Greek/character01")
        assert (made.space.names, sizes(made)[1]) == (tuple(sorted(made.space.names)), (14, 0, 6))
        assert alphabets(made.space) == [{"Greek", "Latin"}, {"N_Ko"}, {"Hebrew", "Korean"}]
        assert (made.image_shape, made.features.dtype, set(np.bincount(made.labels))) == (
            (1, 28, 28),
            np.uint8,
            {2},
        )
    for i, name in enumerate(sorted(drawn)):
        ink = Image.fromarray(np.where(drawn[name], 255, 0).astype(np.uint8))
        expected = np.asarray(ink.resize((28, 28), Image.Resampling.LANCZOS), dtype=int)
        assert np.abs(made.features[i, 0].astype(int) - expected).max() <= 1
    assert made.features.max() > 200 > 20 > np.median(made.features)  # little ink on much paper
    Image.fromarray(~drawn["Greek/character01/0001_02.png"]).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read("omniglot", tmp_path / "a.png")[0], made.features[1])
    with pytest.raises(
        DataError, match=r'which data\.split = "santoro" needs: get it \(.*\), or use "alphabets"$'
    ):
        load("omniglot", tmp_path, split="santoro")
    write_omniglot(tmp_path / "omniglot", {"Angelic": 2, "ULOG": 1}, part="images_evaluation")
    made = load("omniglot", tmp_path)
    assert (made.name, sizes(made)[1]) == ("omniglot/alphabets", (20, 0, 6))
    assert alphabets(made.space) == [
        {"Greek", "Hebrew", "Korean", "Latin"},
        {"N_Ko"},
        {"Angelic", "ULOG"},
    ]
    drawn = load("omniglot", tmp_path, split="santoro")
    assert (drawn.name, sizes(drawn)[0]) == ("omniglot/santoro", (6, 2, 5))
    assert load("omniglot", tmp_path, seed=3, split="santoro").fingerprint() == drawn.fingerprint()


@pytest.mark.parametrize(
    "place", ["images/{file}", "{file}", "images/{label}/{file}", "{label}/{file}"]
)
def test_miniimagenet_in_the_usual_places_and_its_lists_anywhere(tmp_path, place):
    root = tmp_path / "miniimagenet"
    rows = write_miniimagenet(root, place=place)
    for given in (root, tmp_path):
        made = load("miniimagenet", given)
        names = made.space.names
        assert (names, roles(made.space)) == (
            ("n01", "n03", "n02", "n04", "n05"),
            ([0, 1, 2], [2], [3, 4]),
        )
        assert (sizes(made)[1], made.image_shape, type(made.features)) == (
            (9, 0, 6),
            (3, 84, 84),
            Mapped,
        )
    listed = [row for part in ("train", "val", "test") for row in rows[part]]
    assert [names[c] for c in made.labels] == [label for _, label in listed]
    for i, (file, label) in enumerate(listed):
        path = root / place.format(file=file, label=label)
        with Image.open(path) as photo:
            expected = np.asarray(photo.resize((84, 84), Image.Resampling.LANCZOS)).transpose(
                2, 0, 1
            )
        np.testing.assert_array_equal(made.features[i], expected)
        np.testing.assert_array_equal(read("miniimagenet", path)[0], expected)
    (tmp_path / "lists").mkdir()
    for part in rows:
        (root / f"{part}.csv").rename(tmp_path / "lists" / f"{part}.csv")
    assert load("miniimagenet", root, splits=tmp_path / "lists").fingerprint() == made.fingerprint()


def test_the_splits_of_cifar100_are_the_published_ones():
    table = Path(cifar100.__file__).with_name("cifar100.csv").read_bytes()
    assert (
        hashlib.sha256(table).hexdigest()[:16] == "c3811182bfaffbdb"
    )  # every published figure depends on it
    fc100, groups = class_parts("fc100"), class_parts("superclass")
    # the classes of the superclasses that TADAM numbers, by their fine labels
    for part, fine in (
        ("test", [2, 4, 6, 7, 11, 14, 18, 24, 30, 34, 35, 46, 55, 63, 64, 66, 72, 75, 95, 98]),
        ("val", [3, 15, 19, 21, 26, 31, 36, 38, 42, 43, 45, 50, 65, 74, 77, 79, 80, 88, 97, 99]),
    ):
        assert [i for i, name in enumerate(sorted(groups)) if fc100[name] == part] == fine
    assert (len(groups), list(Counter(groups.values()).values())) == (100, [5] * 20)
    assert (
        len({(group, fc100[name]) for name, group in groups.items()}) == 20
    )  # a superclass is in one part
    assert Counter(class_parts("cifar_fs").values()) == {"train": 64, "val": 16, "test": 20}


@pytest.mark.parametrize(("name", "classes"), [("fc100", (60, 20, 20)), ("cifar-fs", (64, 16, 20))])
def test_the_splits_take_all_images_of_the_binary_layout(tmp_path, small_copies, name, classes):
    split = class_parts(name.replace("-", "_"))
    parts = write_cifar(tmp_path / "cifar-100-binary")
    for root in (tmp_path, tmp_path / "cifar-100-binary"):
        made = load(name, root)
        assert made.space.names == tuple(split)
        assert (sizes(made), made.kind, made.image_shape) == (
            (classes, (240, 0, 60)),
            "images",
            (3, 32, 32),
        )
        assert type(made.features) is Mapped
        assert [split[made.space.names[c]] for c in made.space.unseen] == ["test"] * classes[2]
        for c in (0, 55):
            expected = np.concatenate([pixels[fine == c] for fine, pixels in parts])
            np.testing.assert_array_equal(made.features[made.labels == c], expected)


def test_all_images_of_the_real_sheets(real_data):
    sheets = find_source(real_data / "cifar100").images()
    for name, images in zip(("00_apple", "01_aquarium_fish", "02_baby"), sheets, strict=False):
        assert images.shape == (600, 3, 32, 32)
        with Image.open(real_data / "cifar100" / f"{name}.webp") as sheet:
            pixels = np.asarray(sheet.convert("RGB"))
        assert np.array_equal(images[0], pixels[:32, :32].transpose(2, 0, 1))
        assert np.array_equal(images[599], pixels[-32:, -32:].transpose(2, 0, 1))


def test_the_real_mnist(real_data):
    made = load("mnist", real_data)
    assert sizes(made)[1] == (30_596, 5_139, 4_861)
    assert per_class(made)[2] == [0] * 5 + [892, 958, 1028, 974, 1009]
    assert made.fingerprint()[:16] == "11bbed31b36e168d"


@pytest.mark.slow
def test_the_real_background_of_omniglot(real_data):
    made = load("omniglot", real_data)
    assert (sizes(made)[0], made.features.shape) == ((624, 151, 189), (19_280, 1, 28, 28))
    assert made.fingerprint()[:16] == "74584c55853c6760"
    assert 0.05 < made.features.mean() / 255 < 0.12


@pytest.mark.slow
def test_the_real_lists_of_miniimagenet(real_data):
    rows = MiniImageNet.read_split(real_data / "miniimagenet_splits")
    counts = {part: (len(own), len({label for _, label in own})) for part, own in rows.items()}
    assert counts == {"train": (38_400, 64), "val": (9_600, 16), "test": (12_000, 20)}
    assert "n01930112" in {label for _, label in rows["test"]}
