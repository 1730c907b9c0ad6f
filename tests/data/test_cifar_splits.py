import numpy as np
import pytest
from PIL import Image

from fedunseen.core.errors import DataError
from fedunseen.data.benchmarks import cifar100
from fedunseen.data.benchmarks.cifar_splits import (
    CIFAR_FS_NOVEL,
    CIFAR_FS_VALIDATION,
    FC100_NOVEL,
    FC100_VALIDATION,
    SUPERCLASSES,
    CifarFs,
    Fc100,
)
from published_layouts import write_cifar_archive

NAMES = sorted(name for names in SUPERCLASSES.values() for name in names)
PAGE = "https://github.com/bertinetto/r2d2"


def load(kind, root, **settings):
    return kind.load(kind.Settings(root=root, **settings), seed=0)


def refusal(kind, root, **settings):
    with pytest.raises(DataError) as error:
        load(kind, root, **settings)
    return str(error.value)


def named(space, split):
    return {space.names[c] for c in getattr(space, split)}


@pytest.fixture
def small(monkeypatch):
    """Two training images and one test image a class instead of 500 and 100."""
    monkeypatch.setattr(cifar100, "TRAIN", 2)
    monkeypatch.setattr(cifar100, "TEST", 1)


@pytest.fixture
def binary(tmp_path, small):
    root = tmp_path / "cifar-100-binary"
    root.mkdir()
    (root / "fine_label_names.txt").write_text("\n".join(NAMES) + "\n")
    made = []
    for seed, (file, count) in enumerate((("train.bin", 2), ("test.bin", 1))):
        random = np.random.default_rng(seed)
        fine = random.permutation(np.repeat(np.arange(100), count)).astype(np.uint8)
        pixels = random.integers(0, 256, (len(fine), 3, 32, 32), dtype=np.uint8)
        np.concatenate([fine[:, None], fine[:, None], pixels.reshape(len(fine), -1)], axis=1).tofile(root / file)
        made.append((fine, pixels))
    return root, made


@pytest.fixture
def archive(tmp_path, small):
    """The archive's layout with seven classes, and lists of six of them."""
    root = tmp_path / "cifar100"
    made = write_cifar_archive(root, ("apple", "baby", "oak_tree", "otter", "tank", "whale", "worm"), 3)
    lists = root / "splits" / "bertinetto"
    lists.mkdir(parents=True)
    for part, names in (("train", "apple\ntank\noak_tree\n"), ("val", "otter\n"), ("test", "whale\nbaby")):
        (lists / f"{part}.txt").write_text(names)
    return root, made


def test_the_superclasses_are_a_partition_of_100_classes():
    assert len(NAMES) == len(set(NAMES)) == 100
    assert len(SUPERCLASSES) == 20


def test_the_numbers_of_fc100_are_tadam_s():
    """The classes of the superclasses that TADAM numbers, by their fine labels."""
    groups = list(SUPERCLASSES.values())
    fine = {part: sorted(NAMES.index(name) for g in numbers for name in groups[g])
            for part, numbers in (("val", FC100_VALIDATION), ("test", FC100_NOVEL))}  # fmt: skip
    assert fine["test"] == [2, 4, 6, 7, 11, 14, 18, 24, 30, 34, 35, 46, 55, 63, 64, 66, 72, 75, 95, 98]
    assert fine["val"] == [3, 15, 19, 21, 26, 31, 36, 38, 42, 43, 45, 50, 65, 74, 77, 79, 80, 88, 97, 99]


def test_fc100_takes_all_images_of_whole_superclasses(binary):
    root, ((fine, pixels), (test_fine, test_pixels)) = binary
    for place in (root, root.parent):
        made = load(Fc100, place)
        assert made.space.names == tuple(NAMES)
        assert (len(made.space.train), len(made.space.validation), len(made.space.unseen)) == (60, 20, 20)
        assert (len(made.train), len(made.test_seen), len(made.test_unseen)) == (240, 0, 60)
        assert (made.kind, made.image_shape) == ("images", (3, 32, 32))
        for c in (0, 55):
            expected = np.concatenate([pixels[fine == c], test_pixels[test_fine == c]])
            np.testing.assert_array_equal(made.features[made.labels == c], expected)
    for names in SUPERCLASSES.values():
        parts = [len(named(made.space, split) & set(names)) for split in ("train", "validation", "unseen")]
        assert sorted(parts) == [0, 0, 5]


def test_cifar_fs_has_the_published_classes_over_cifar100_s_layout(binary):
    made = load(CifarFs, binary[0])
    assert named(made.space, "unseen") == set(CIFAR_FS_NOVEL)
    assert named(made.space, "validation") == set(CIFAR_FS_VALIDATION)
    assert (len(made.space.train), len(made.space.validation), len(made.space.unseen)) == (64, 16, 20)
    assert (len(made.train), len(made.test_unseen)) == (240, 60)


def test_the_archive_is_read_as_published(archive):
    root, images = archive
    for place in (root, root.parent):
        made = load(CifarFs, place)
        assert made.space.names == ("apple", "baby", "oak_tree", "otter", "tank", "whale")
        assert named(made.space, "train") == {"apple", "oak_tree", "tank"}
        assert named(made.space, "validation") == {"otter"}
        assert named(made.space, "unseen") == {"baby", "whale"}
        for c, name in enumerate(made.space.names):
            np.testing.assert_array_equal(made.features[made.labels == c], images[name].transpose(0, 3, 1, 2))
        assert isinstance(made.features, np.memmap)


def test_other_lists_may_be_given(archive, binary, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for part, names in (("train", "Oak Tree\nworm\n"), ("val", "otter\n"), ("test", "whale\n")):
        (folder / f"{part}.txt").write_text(names)
    for root in (archive[0], binary[0]):
        made = load(CifarFs, root, splits=folder)
        assert made.space.names == ("oak_tree", "otter", "whale", "worm")
        assert len(made.features) == 12
    (folder / "val.txt").write_text("oter\n")
    assert refusal(CifarFs, archive[0], splits=folder) == (
        f"{folder} names the class 'oter', which {archive[0] / 'data'} does not have: did you mean 'otter'?"
    )
    (folder / "val.txt").write_text("worm\n")
    assert (
        refusal(CifarFs, archive[0], splits=folder) == f"{folder} names the class 'worm' more than once: mend its lists"
    )
    (folder / "val.txt").unlink()
    assert refusal(CifarFs, archive[0], splits=folder) == (
        f"{folder / 'val.txt'} is missing: get the archive's splits/bertinetto ({PAGE}), or leave data.splits out"
    )


def test_a_class_without_images_is_named(archive):
    root, _ = archive
    for path in (root / "data" / "tank").iterdir():
        path.unlink()
    assert refusal(CifarFs, root) == f"{root / 'data' / 'tank'} has 0 images, not 3: unpack the archive again"
    assert refusal(Fc100, root) == (
        f"FC100 names the class 'aquarium_fish', which {root / 'data'} does not have: unpack its images there"
    )


def test_an_image_of_another_size_is_named(archive):
    root, _ = archive
    path = root / "data" / "otter" / "otter_s_000001.png"
    Image.new("RGB", (32, 30)).save(path)
    assert refusal(CifarFs, root) == f"{path} has 32 x 30 pixels, not 32 x 32: unpack the archive again"
    path.write_bytes(path.read_bytes()[:40])
    assert refusal(CifarFs, root) == f"{path} is not a readable image: unpack the archive again"


@pytest.mark.parametrize("kind", [Fc100, CifarFs])
def test_a_wrong_root_says_what_to_get(kind, tmp_path):
    assert refusal(kind, tmp_path / "nowhere") == (
        f"{tmp_path / 'nowhere' / 'train.bin'} is missing: unpack CIFAR-100's binary version "
        "(cifar-100-binary.tar.gz, https://www.cs.toronto.edu/~kriz/cifar.html) there, or mend data.root"
    )


@pytest.mark.parametrize("kind", [Fc100, CifarFs])
def test_any_image_is_read_as_the_benchmark_s_own(kind, tmp_path):
    Image.new("RGB", (64, 40), "red").save(tmp_path / "a.png")
    read = kind.read(tmp_path / "a.png", kind.Settings(root=tmp_path))
    assert read.shape == (1, 3, 32, 32)
    assert read[0, :, 5, 5].tolist() == [255, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "training", "validation"), [(Fc100, 60, 20), (CifarFs, 64, 16)])
def test_the_real_images(real_data, kind, training, validation):
    made = load(kind, real_data / "cifar100")
    space = made.space
    assert (len(space.train), len(space.validation), len(space.unseen)) == (training, validation, 20)
    assert (made.features.shape, len(made.train), len(made.test_unseen)) == ((60_000, 3, 32, 32), 48_000, 12_000)
    assert set(np.bincount(made.labels).tolist()) == {600}
