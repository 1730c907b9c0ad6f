import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from fedunseen.core.errors import DataError
from fedunseen.data.benchmarks import omniglot as module
from fedunseen.data.benchmarks.omniglot import NOVEL, TRAINING, VALIDATION, Omniglot
from published_layouts import write_omniglot

PAGE = "https://github.com/brendenlake/omniglot/tree/master/python"
SMALL = {"Greek": 3, "Latin": 2, "N_Ko": 2, "Korean": 1, "Hebrew": 2}
OTHERS = {"Angelic": 2, "ULOG": 1}


@pytest.fixture(autouse=True)
def small(monkeypatch, request):
    """Five alphabets with ten characters, and two with three, of two drawings each, for tests without real data."""
    if "real_data" in request.fixturenames:
        return
    monkeypatch.setattr(module, "TRAINING", ("Greek", "Latin"))
    monkeypatch.setattr(module, "VALIDATION", ("N_Ko",))
    monkeypatch.setattr(module, "NOVEL", ("Hebrew", "Korean"))
    monkeypatch.setattr(module, "CHARACTERS", {"images_background": 10, "images_evaluation": 3})
    monkeypatch.setattr(module, "SANTORO", (6, 2))
    monkeypatch.setattr(module, "DRAWINGS", 2)


def write(root, alphabets=SMALL, **options):
    return write_omniglot(root, alphabets, **{"drawings": 2, **options})


def load(root, **settings):
    return Omniglot.load(Omniglot.Settings(root=root, **settings), seed=0)


def refusal(root, **settings):
    with pytest.raises(DataError) as error:
        load(root, **settings)
    return str(error.value)


def alphabets(made, split):
    return {made.space.names[c].partition("/")[0] for c in getattr(made.space, split)}


@pytest.mark.parametrize("packed", [True, False])
def test_background_alone_is_split_by_alphabets(tmp_path, packed):
    drawn = write(tmp_path / "omniglot", packed=packed)
    for root in (tmp_path, tmp_path / "omniglot"):
        made = load(root)
        assert made.name == "omniglot/background"
        assert made.space.names[0] == "Greek/character01"
        assert made.space.names == tuple(sorted(made.space.names))
        assert alphabets(made, "train") == {"Greek", "Latin"}
        assert alphabets(made, "validation") == {"N_Ko"}
        assert alphabets(made, "unseen") == {"Hebrew", "Korean"}
        assert (len(made.train), len(made.test_seen), len(made.test_unseen)) == (14, 0, 6)
        assert (made.kind, made.image_shape, made.features.dtype) == ("images", (1, 28, 28), np.uint8)
        assert np.bincount(made.labels).tolist() == [2] * 10
    for i, name in enumerate(sorted(drawn)):
        ink = Image.fromarray(np.where(drawn[name], 255, 0).astype(np.uint8))
        expected = np.asarray(ink.resize((28, 28), Image.Resampling.LANCZOS), dtype=int)
        assert np.abs(made.features[i, 0].astype(int) - expected).max() <= 1
    assert made.features.max() > 200 > 20 > np.median(made.features)  # little ink on much paper


def test_a_zip_file_and_its_folder_are_the_same(tmp_path):
    write(tmp_path / "a", packed=True)
    write(tmp_path / "b", packed=False)
    assert load(tmp_path / "a").fingerprint() == load(tmp_path / "b").fingerprint()


def test_with_both_sets_the_evaluation_s_alphabets_are_novel(tmp_path):
    write(tmp_path)
    write(tmp_path, OTHERS, part="images_evaluation", packed=False)
    made = load(tmp_path)
    assert made.name == "omniglot/alphabets"
    assert alphabets(made, "train") == {"Greek", "Hebrew", "Korean", "Latin"}
    assert alphabets(made, "validation") == {"N_Ko"}
    assert alphabets(made, "unseen") == {"Angelic", "ULOG"}
    assert (len(made.train), len(made.test_unseen)) == (20, 6)


def test_santoro_s_split_draws_characters(tmp_path):
    write(tmp_path)
    assert refusal(tmp_path, split="santoro") == (
        f'{tmp_path} has no images_evaluation (.zip or folder), which data.split = "santoro" needs: get it from '
        f'{PAGE}, or use "alphabets"'
    )
    write(tmp_path, OTHERS, part="images_evaluation")
    made = load(tmp_path, split="santoro")
    space = made.space
    assert made.name == "omniglot/santoro"
    assert (len(space.train), len(space.validation), len(space.unseen)) == (6, 2, 5)
    assert Omniglot.load(Omniglot.Settings(root=tmp_path, split="santoro"), seed=3).fingerprint() == made.fingerprint()


def test_a_drawing_is_read_as_the_benchmark_s_own(tmp_path):
    write(tmp_path, packed=False)
    made = load(tmp_path)
    path = tmp_path / "images_background" / "Greek" / "character01" / "0001_02.png"
    read = Omniglot.read(path, Omniglot.Settings(root=tmp_path))
    assert (read.shape, read.dtype) == ((1, 1, 28, 28), np.uint8)
    np.testing.assert_array_equal(read[0], made.features[1])


def test_a_truncated_zip_file_is_one_sentence(tmp_path):
    write(tmp_path)
    path = tmp_path / "images_background.zip"
    whole = path.read_bytes()
    for content in (whole[:-30], whole[: len(whole) // 2], whole[:10], b""):
        path.write_bytes(content)
        assert refusal(tmp_path) == f"{path} is cut short, or not a zip file: get it again ({PAGE})"


def test_a_damaged_entry_is_named(tmp_path):
    write(tmp_path)
    path = tmp_path / "images_background.zip"
    whole = bytearray(path.read_bytes())
    whole[120:140] = bytes(20)  # in the first drawing
    path.write_bytes(whole)
    assert refusal(tmp_path) == f"{path}: Greek/character01/0001_01.png is not a readable image: get it again ({PAGE})"


def rewrite(path, change):
    """Write a zip file anew with other contents."""
    with zipfile.ZipFile(path) as file:
        content = {name: file.read(name) for name in file.namelist()}
    change(content)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, one in content.items():
            file.writestr(name, one)


def test_a_zip_file_that_grows_is_refused_unread(tmp_path, monkeypatch):
    write(tmp_path)
    path = tmp_path / "images_background.zip"
    rewrite(path, lambda content: content.update({"images_background/Greek/character01/0001_01.png": bytes(10**7)}))
    assert refusal(tmp_path) == (
        f"{path}: Greek/character01/0001_01.png has 10,000,000 bytes, far too many: get it again ({PAGE})"
    )
    monkeypatch.setattr(module, "MOST", 5)
    assert refusal(tmp_path) == f"{path} has 20 files, far too many: get it again ({PAGE})"


def test_other_files_do_not_count(tmp_path):
    write(tmp_path)
    expected = load(tmp_path).fingerprint()
    junk = {"__MACOSX/images_background/Greek/character01/._0001_01.png": b"?", "images_background/.DS_Store": b"?",
            "../images_background/Greek/character01/9999_01.png": b"?"}  # fmt: skip
    rewrite(tmp_path / "images_background.zip", lambda content: content.update(junk))
    assert load(tmp_path).fingerprint() == expected


def test_an_image_of_another_size_is_named(tmp_path):
    write(tmp_path)
    path = tmp_path / "images_background.zip"
    small = io.BytesIO()
    Image.new("1", (100, 105)).save(small, "png")
    name = "Latin/character02/0005_02.png"
    rewrite(path, lambda content: content.update({f"images_background/{name}": small.getvalue()}))
    assert refusal(tmp_path) == f"{path}: {name} has 100 x 105 pixels, not 105 x 105: get it again ({PAGE})"


def test_what_is_missing_is_named(tmp_path):
    assert (
        refusal(tmp_path)
        == f"{tmp_path} has no images_background (.zip or folder): get it from {PAGE}, or mend data.root"
    )
    write(tmp_path / "a", {**SMALL, "Korean": 0})
    path = tmp_path / "a" / "images_background.zip"
    assert refusal(tmp_path / "a") == f"{path} has 9 characters, not 10: get it again ({PAGE})"
    rewrite(path, lambda content: content.pop("images_background/Latin/character02/0005_02.png"))
    assert refusal(tmp_path / "a") == f"{path}: Latin/character02 has 1 drawings, not 2: get it again ({PAGE})"
    write(tmp_path / "b", {**SMALL, "Korean": 0, "Korea": 1})
    assert refusal(tmp_path / "b") == (
        f"omniglot: images_background lacks the alphabet 'Korean': get it again ({PAGE})"
    )
    write(tmp_path / "c", OTHERS, part="images_evaluation")
    assert refusal(tmp_path / "c").startswith(f"{tmp_path / 'c'} has no images_background")


def test_the_alphabets_are_thirty():
    """Of the real lists, not of the small ones above."""
    assert len({*TRAINING, *VALIDATION, *NOVEL}) == 30
    assert (len(TRAINING), len(VALIDATION), len(NOVEL)) == (20, 5, 5)


@pytest.mark.slow
def test_the_real_background(real_data):
    made = load(real_data)
    space = made.space
    assert (len(space.train), len(space.validation), len(space.unseen)) == (624, 151, 189)
    assert made.features.shape == (19_280, 1, 28, 28)
    assert made.fingerprint()[:16] == "74584c55853c6760"
    assert 0.05 < made.features.mean() / 255 < 0.12
