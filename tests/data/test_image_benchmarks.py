"""The published layouts, on small copies and, for the split of classes, at true size with the
genuine split files.
"""

import re
import shutil

import numpy as np
import pytest
import scipy.io
from described import per_class, roles, splits
from PIL import Image
from pydantic import ValidationError

import published_layouts as layouts
from fedunseen.data.benchmark import draw_test
from fedunseen.data.benchmarks.proposed_split import builtin_groups
from fedunseen.data.benchmarks.published import Apy, Awa2, Cub, Sun
from fedunseen.data.io.images import read_image, square
from refusals import message_of


def load(kind, seed=0, **settings):
    return kind.load(kind.Settings(**settings), seed)


def listing(kind, **settings):
    return kind.listing(kind.Settings(**settings), seed=0)


def refusal(kind, **settings):
    return message_of(load, kind, **settings)


def read_all(folder, files, size):
    return np.concatenate([read_image(folder / file, size, round(size * 8 / 7)) for file in files])


@pytest.fixture
def cub(tmp_path):
    """CUB with a proposed split beside it: classes 1 and 4 are unseen, 2 is for validation. The
    last is its folder.
    """
    root, place = tmp_path / "CUB_200_2011", tmp_path / "xlsa17" / "CUB"
    files, labels, matrix = layouts.write_cub(root)
    parts = layouts.write_splits(place, layouts.BIRDS, files, labels, [1, 4], validation=[2])
    return root, files, labels, matrix, parts, place


def test_cub_with_the_proposed_split(cub):
    root, files, labels, matrix, parts, _ = cub
    made = load(Cub, root=root, size=16, resize=18)
    space = made.space
    assert (made.name, space.names, roles(space)) == (
        "CUB",
        layouts.BIRDS,
        ([0, 2, 3, 5], [2], [1, 4]),
    )
    assert np.allclose(space.semantics, matrix / np.linalg.norm(matrix, axis=1, keepdims=True))
    assert (len(space.attribute_groups), space.attribute_groups["has_eye_color"]) == (
        28,
        tuple(range(135, 149)),
    )
    assert (made.kind, made.image_shape, made.labels.tolist()) == (
        "images",
        (3, 16, 16),
        labels.tolist(),
    )
    unseen = set(np.flatnonzero(np.isin(labels, [1, 4])))
    assert [set(ids) for ids in splits(made)] == [parts["train"], parts["test_seen"], unseen]
    assert np.array_equal(made.features, read_all(root / "images", files, 16))
    assert np.array_equal(
        made.features[:1], Cub.read(root / "images" / files[0], Cub.Settings(root=root, size=16))
    )
    assert np.array_equal(
        listing(Cub, root=root, attributes="original_att").space.semantics, matrix
    )


def test_the_split_may_be_given_as_file_or_folder_and_without_one_what_is_missing_is_said(cub):
    root, *_, parts, _ = cub
    folder = root.parent / "elsewhere"
    shutil.move(root.parent / "xlsa17", folder)
    for given in (folder, folder / "CUB", folder / "CUB" / "att_splits.mat"):
        assert set(np.flatnonzero(listing(Cub, root=root, splits=given).test)) == parts["test_seen"]
    assert refusal(Cub, root=root).startswith(
        "CUB-200-2011 does not say which classes are seen: set data.splits to"
    )
    assert refusal(Cub, root=root, splits=root).startswith(
        f"{root} has no att_splits.mat: set data.splits to the"
    )


def test_images_and_classes_per_settings(cub):
    root, *_, parts, _ = cub
    few = Cub.Settings(root=root, size=16, train_per_class=2, test_per_class=3)
    made = Cub.load(few, seed=0)
    assert per_class(made) == [[2, 0, 2, 2, 0, 2], [1, 0, 1, 1, 0, 1], [0, 3, 0, 0, 3]]
    assert len(made.features) == 8 + 4 + 6  # nothing else is decoded
    again = Cub.listing(few, seed=7).ids(few)
    np.testing.assert_equal(Cub.listing(few, seed=0).ids(few), again)
    more = few.model_copy(update={"train_per_class": 3})
    assert set(again["train"]) < set(Cub.listing(more, seed=0).ids(more)["train"]) <= parts["train"]
    with pytest.raises(
        ValidationError, match="resize = 100 is less than size = 224: the square would not fit"
    ):
        Cub.Settings(root=root, resize=100)
    assert [Cub.Settings(root=root, size=s).shorter_side for s in (224, 448)] == [256, 512]


def test_unreadable_images_are_left_out_only_if_asked(cub):
    root, files, *_ = cub
    for i in (3, 7):
        (root / "images" / files[i]).write_bytes(b"?")
    assert refusal(Cub, root=root, size=16).startswith(
        f"{root / 'images' / files[3]} is not a readable image (2 of"
    )
    with pytest.warns() as caught:
        made = load(Cub, root=root, size=16, skip_unreadable=True)
    said = [str(warning.message) for warning in caught]
    assert said == [f"CUB: 2 of 30 images cannot be read and are left out: {files[3]}, {files[7]}"]
    assert sorted(i for ids in splits(made) for i in ids) == [
        i for i in range(30) if i not in (3, 7)
    ]


def test_a_split_of_other_data_or_without_the_files_of_its_images_is_refused(cub):
    root, files, labels, *_, place = cub
    (place / "res101.mat").unlink()
    assert refusal(Cub, root=root).startswith(
        f"{place / 'att_splits.mat'} numbers its samples, but {place}/res101.mat"
    )
    other = [f"other_{i}.jpg" if i % 10 == 0 else file for i, file in enumerate(files)]
    layouts.write_splits(place, layouts.BIRDS, other, labels, [1, 4])
    said = refusal(Cub, root=root)
    assert said.startswith(f"{place / 'res101.mat'} names the image '/home/them/data/other_")
    assert said.endswith(
        "which the data set lacks or has under another class (3 of 30 are so): unpack all images, "
        "or use the split of this data set"
    )
    layouts.write_splits(place, ("012.Wren", *layouts.BIRDS[1:]), files, labels, [1, 4])
    assert refusal(Cub, root=root) == f"{place / 'att_splits.mat'}: unknown class '012.Wren'"


def test_images_outside_of_the_split_are_not_used_but_counted(cub):
    root, files, labels, *_, place = cub
    keep = [i for i in range(30) if i not in (0, 11)]
    layouts.write_splits(place, layouts.BIRDS, [files[i] for i in keep], labels[keep], [1, 4])
    with pytest.warns(
        UserWarning, match="CUB-200-2011: 2 images are in no split of .*att_splits.mat and not used"
    ):
        ids = listing(Cub, root=root).ids(Cub.Settings(root=root))
    assert sorted(np.concatenate(list(ids.values())).tolist()) == keep


def test_awa2_with_its_own_lists(tmp_path):
    root = tmp_path / "Animals_with_Attributes2"
    files, labels, matrix = layouts.write_awa2(root)
    made = load(Awa2, root=tmp_path, size=16, attributes="original_att")
    space = made.space
    assert (space.names, space.attribute_names[0], space.semantics[0, 0]) == (
        layouts.ANIMALS,
        "predicate 1",
        -1.0,
    )
    assert np.array_equal(space.semantics, matrix)
    assert (list(space.attribute_groups)[:2], made.labels.tolist()) == (
        ["colour", "texture"],
        labels.tolist(),
    )
    assert per_class(made) == [[4, 4, 4, 0, 0, 4], [1, 1, 1, 0, 0, 1], [0, 0, 0, 5, 5]]
    assert np.array_equal(made.features, read_all(root / "JPEGImages", files, 16))
    parts = layouts.write_splits(
        root, layouts.ANIMALS, files, labels, [0, 5]
    )  # the proposed split wins
    proposed = listing(Awa2, root=tmp_path)
    assert (proposed.space.unseen.tolist(), set(np.flatnonzero(proposed.test))) == (
        [0, 5],
        parts["test_seen"],
    )
    lists = root / "testclasses.txt"
    lists.write_text("grizzly bear")
    both = f"{root}: the class 'grizzly+bear' is in both trainclasses.txt and testclasses.txt"
    assert refusal(Awa2, root=root) == both
    lists.write_text("grizly bear")
    assert (
        refusal(Awa2, root=root)
        == f"{lists}: unknown class 'grizly bear': did you mean 'grizzly+bear'?"
    )
    layouts.write_image(root / "JPEGImages" / "beavre" / "x.jpg", 0)
    assert refusal(Awa2, root=root).startswith(
        f"{root / 'JPEGImages' / 'beavre'} is not a class of classes.txt: did"
    )


def test_sun_names_scenes_by_their_folders(tmp_path):
    root = tmp_path / "SUNAttributeDB"
    files, labels, votes = layouts.write_sun(root)
    names = ("abbey", "airport_airport", "airport_entrance", "alley", "zoo", "ziggurat")
    parts = layouts.write_splits(tmp_path / "xlsa17" / "SUN", names, files, labels, [2, 4])
    made = load(Sun, root=root, size=16, attributes="original_att")
    assert made.space.names == names
    assert np.allclose(made.space.semantics, [votes[labels == c].mean(0) for c in range(6)])
    assert (len(made.space.attribute_groups), set(made.test_seen)) == (4, parts["test_seen"])
    assert np.array_equal(made.features, read_all(root / "images", files, 16))
    shutil.move(root / "images", tmp_path / "images")  # beside the annotations
    assert listing(Sun, root=root).root.resolve() == tmp_path / "images"
    table = root / "attributeLabels_continuous.mat"
    scipy.io.savemat(table, {"labels_cv": votes[:-1]})
    assert refusal(Sun, root=root).startswith(f"{table}: the votes have the shape")
    scipy.io.savemat(table, {"votes": votes})
    assert refusal(Sun, root=root).startswith(f"{table} has no variable")


def test_apy_cuts_objects_out_and_those_of_one_picture_keep_their_order(tmp_path):
    sources, files, classes, boxes, bits = zip(*layouts.write_apy(tmp_path), strict=True)
    labels = np.array(classes)
    parts = layouts.write_splits(tmp_path, layouts.THINGS, files, labels, [1, 4])
    made = load(Apy, root=tmp_path, size=8, attributes="original_att")
    assert (made.space.names, made.labels.tolist()) == (layouts.THINGS, labels.tolist())
    assert np.allclose(
        made.space.semantics, [np.array(bits)[labels == c].mean(0) for c in range(6)]
    )
    # several objects of one class in one picture do not occur here: the place in the list is unique
    assert (made.space.attribute_groups, set(made.test_seen)) == ({}, parts["test_seen"])
    for image, source, picture, (left, top, *corner) in zip(
        made.features, sources, files, boxes, strict=True
    ):
        folder = "ayahoo_test_images" if source == "ayahoo_test" else "VOCdevkit/VOC2008/JPEGImages"
        with Image.open(tmp_path / folder / picture) as file:
            assert np.array_equal(image, square(file, 8, 9, (left - 1, top - 1, *corner)))
    # five aeroplanes in one picture: the release names the file five times, in the list's order
    files = [
        "2008_000000.jpg" if c == 0 else picture for picture, c in zip(files, classes, strict=True)
    ]
    for part in ("train", "test"):
        text = tmp_path / "attribute_data" / f"apascal_{part}.txt"
        text.write_text(re.sub(r"2008_00000\d(?=\.jpg aeroplane)", "2008_000000", text.read_text()))
    layouts.write_splits(
        tmp_path, layouts.THINGS, files, labels, [1, 4]
    )  # the first of each seen class is for tests
    assert listing(Apy, root=tmp_path).test[labels == 0].tolist() == [True] + [False] * 4


def test_every_attribute_is_in_one_group_and_those_of_cub_are_the_prefixes_of_its_names(tmp_path):
    for dataset, attributes, count in (
        ("CUB", 312, 28),
        ("AWA1", 85, 9),
        ("AWA2", 85, 9),
        ("SUN", 102, 4),
    ):
        groups = builtin_groups(dataset, attributes)
        assert len(groups) == count
        assert sorted(i for columns in groups.values() for i in columns) == list(range(attributes))
        assert builtin_groups(dataset, attributes - 1) == {}
    assert (builtin_groups("awa1_lampert", 85), builtin_groups("APY", 64)) == (
        builtin_groups("AWA2", 85),
        {},
    )
    files, labels, _ = layouts.write_cub(tmp_path / "CUB", images=False)
    layouts.write_splits(tmp_path / "CUB", layouts.BIRDS, files, labels, [1])
    groups = listing(Cub, root=tmp_path / "CUB").space.attribute_groups
    spoken = [
        (name.removeprefix("has_").replace("_", " "), columns) for name, columns in groups.items()
    ]
    assert spoken == list(builtin_groups("CUB", 312).items())


def test_a_fifth_is_drawn_but_a_single_image_stays():
    labels = np.array([0] * 10 + [1] * 2 + [2] + [3] * 4)
    assert labels[draw_test(labels, np.array([0, 1, 2]), 0.2, 0)].tolist() == [0, 0, 1]
