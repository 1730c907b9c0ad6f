import numpy as np
import pytest
from PIL import Image

from fedunseen.core.errors import DataError
from fedunseen.data.benchmarks.miniimagenet import MiniImageNet, read_split
from published_layouts import write_miniimagenet

PAGE = "https://github.com/twitter-research/meta-learning-lstm"
NO_NAMES = "are not the names of a file and a class: get the list again"


def load(root, **settings):
    return MiniImageNet.load(MiniImageNet.Settings(root=root, **settings), seed=0)


def refusal(root, **settings):
    with pytest.raises(DataError) as error:
        load(root, **settings)
    return str(error.value)


@pytest.mark.parametrize("place", ["images/{file}", "{file}", "images/{label}/{file}", "{label}/{file}"])
def test_the_split_and_the_usual_places(tmp_path, place):
    root = tmp_path / "miniimagenet"
    rows = write_miniimagenet(root, place=place)
    for given in (root, tmp_path):
        made = load(given)
        space = made.space
        assert space.names == ("n01", "n03", "n02", "n04", "n05")
        assert (space.train.tolist(), space.validation.tolist(), space.unseen.tolist()) == ([0, 1], [2], [3, 4])
        assert (len(made.train), len(made.test_seen), len(made.test_unseen)) == (9, 0, 6)
        assert (made.kind, made.image_shape) == ("images", (3, 84, 84))
        assert isinstance(made.features, np.memmap)
    listed = [row for part in ("train", "val", "test") for row in rows[part]]
    assert [space.names[c] for c in made.labels] == [label for _, label in listed]
    for i in (0, 7, 14):
        with Image.open(root / place.format(file=listed[i][0], label=listed[i][1])) as file:
            expected = np.asarray(file.resize((84, 84), Image.Resampling.LANCZOS)).transpose(2, 0, 1)
        np.testing.assert_array_equal(made.features[i], expected)


def test_lists_may_lie_elsewhere(tmp_path):
    write_miniimagenet(tmp_path / "data")
    expected = load(tmp_path / "data").fingerprint()
    (tmp_path / "lists").mkdir()
    for path in list((tmp_path / "data").glob("*.csv")):
        path.rename(tmp_path / "lists" / path.name)
    assert load(tmp_path / "data", splits=tmp_path / "lists").fingerprint() == expected


def test_any_image_is_read_as_the_benchmark_s_own(tmp_path):
    write_miniimagenet(tmp_path)
    read = MiniImageNet.read(tmp_path / "images" / "n0300000000.jpg", MiniImageNet.Settings(root=tmp_path))
    np.testing.assert_array_equal(read, load(tmp_path).features[:1])


def test_missing_images_say_what_to_get_and_where(tmp_path):
    write_miniimagenet(tmp_path)
    path = tmp_path / "images" / "n0200000001.jpg"
    path.unlink()
    rest = (
        f"get ImageNet (ILSVRC 2012, https://image-net.org), cut miniImageNet's images out of it as {PAGE} says, and "
        "put them there, or mend data.root"
    )
    assert refusal(tmp_path) == f"{path} is missing (1 of 15 images are): {rest}"
    for image in (tmp_path / "images").iterdir():
        image.unlink()
    first = tmp_path / "images" / "n0300000000.jpg"
    assert refusal(tmp_path) == f"{first} is missing (15 of 15 images are): {rest}"


def test_a_damaged_image_is_named(tmp_path):
    write_miniimagenet(tmp_path)
    path = tmp_path / "images" / "n0200000001.jpg"
    path.write_bytes(path.read_bytes()[:300])
    assert refusal(tmp_path) == f"{path} is not a readable image: get it again"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label,filename\nn01,a.jpg\n", ": the first line must be 'filename,label': get the list again"),
        ("filename,label\n", " names no image: get the list again"),
        ("filename,label\na.jpg,n01\n", ", line 2: the class 'n01' is in train.csv too: mend one"),
        ("filename,label\n../a.jpg,n09\n", f", line 2: '../a.jpg' and 'n09' {NO_NAMES}"),
        ("filename,label\na.jpg,..\n", f", line 2: 'a.jpg' and '..' {NO_NAMES}"),
        ("filename,label\na.jpg\n", ", line 2: 1 cells, but the first line has 2"),
    ],
)
def test_bad_lists_are_named(tmp_path, text, message):
    write_miniimagenet(tmp_path)
    (tmp_path / "val.csv").write_text(text)
    assert refusal(tmp_path) == f"{tmp_path / 'val.csv'}{message}"


def test_a_wrong_root_says_what_to_get(tmp_path):
    assert refusal(tmp_path / "nowhere") == (
        f"{tmp_path / 'nowhere' / 'train.csv'} is missing: get Ravi's lists train.csv, val.csv and test.csv ({PAGE}), "
        "or name their folder in data.splits"
    )


@pytest.mark.slow
def test_the_real_lists(real_data):
    rows = read_split(real_data / "miniimagenet_splits")
    assert {part: (len(own), len({label for _, label in own})) for part, own in rows.items()} == {
        "train": (38_400, 64), "val": (9_600, 16), "test": (12_000, 20)
    }  # fmt: skip
    assert "n01930112" in {label for _, label in rows["test"]}
    if not any((real_data / "miniimagenet_splits").glob("**/*.jpg")):
        assert "is missing (60,000 of 60,000 images are): get ImageNet" in refusal(real_data / "miniimagenet_splits")
