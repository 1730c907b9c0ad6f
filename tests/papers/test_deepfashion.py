"""DeepFashion as DistZSL's paper uses it, on a small copy of its files."""

import numpy as np
import pytest

import published_layouts as layouts
from fedunseen.core.registry import find
from fedunseen.data.io.images import read_image
from fedunseen.research.papers.distzsl.deepfashion import DeepFashion
from refusals import message_of

Settings = DeepFashion.Settings


def test_deepfashion_draws_its_split_once_for_all(tmp_path, monkeypatch):
    monkeypatch.setattr("fedunseen.research.papers.distzsl.deepfashion.UNSEEN_CLASSES", 2)
    files, labels, marks = layouts.write_deepfashion(tmp_path)
    settings = {"root": tmp_path, "size": 8, "attributes": "original_att"}
    made = DeepFashion.load(Settings(**settings), 0)
    space = made.space
    assert space.names == layouts.CLOTHES[:-1]  # nothing is known of a class without images
    assert (len(space.unseen), len(space.seen), len(space.validation)) == (2, 4, 1)
    kinds = ("texture", "fabric", "shape", "part", "style")
    assert space.attribute_groups == {kind: (i, i + 5) for i, kind in enumerate(kinds)}
    assert space.attribute_names[3] == "very long word 3"
    for c in range(6):
        used = made.test_unseen if c in space.unseen else made.train
        assert np.allclose(space.semantics[c], (marks[used[labels[used] == c]] == 1).mean(0))
    assert np.array_equal(
        made.features, np.concatenate([read_image(tmp_path / "Img" / file, 8, 9) for file in files])
    )
    assert DeepFashion.load(Settings(**settings), 5).fingerprint() == made.fingerprint()
    monkeypatch.setattr("fedunseen.research.papers.distzsl.deepfashion.UNSEEN_CLASSES", 6)
    said = message_of(DeepFashion.load, Settings(root=tmp_path), 0)
    assert "has images of 6 classes, and 6 are drawn as unseen: get the whole data set" in said


def cut(old):
    """Return a file without its last two lines."""
    return old.rsplit(b"\n", 3)[0]


DAMAGED = [
    ("list_category_img.txt", cut, " is cut short or changed: its first line"),
    (
        "list_category_img.txt",
        lambda old: old[:-3] + b"9\n",
        ": 'img/Cardigan_Item/img_00000004.jpg 9' does not",
    ),
    (
        "list_attr_cloth.txt",
        lambda old: old.replace(b"very long word 3   4", b"word"),
        ": 'word' has no",
    ),
    ("list_attr_img.txt", cut, ", line 31: not"),
    (
        "list_attr_img.txt",
        lambda old: old[:-3] + b" x\n",
        ", line 32: the attributes must be 1, 0 or -1",
    ),
]


@pytest.mark.parametrize(("file", "spoil", "message"), DAMAGED)
def test_damaged_files_are_named(tmp_path, file, spoil, message):
    layouts.write_deepfashion(tmp_path)
    (path,) = tmp_path.rglob(file)
    path.write_bytes(spoil(path.read_bytes()))
    said = message_of(DeepFashion.load, Settings(root=tmp_path), 0)
    assert said.removeprefix(str(path)).startswith(message)


def test_it_is_a_choice_of_the_section_data():
    assert find("data", "deepfashion") is DeepFashion
