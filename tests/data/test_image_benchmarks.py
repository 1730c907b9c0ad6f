"""The published layouts, on small copies and, for the split of classes, at true size with the genuine split files."""

import re
import shutil
import warnings

import numpy as np
import pytest
import scipy.io
from PIL import Image
from pydantic import ValidationError

from fedunseen.data.benchmarks.image_benchmark import draw_test
from fedunseen.data.benchmarks.proposed_split import builtin_groups
from fedunseen.data.benchmarks.published import Apy, Awa2, Cub, Sun
from fedunseen.data.io.images import read_image, square
from fedunseen.papers.distzsl.deepfashion import DeepFashion
from published_layouts import (
    ANIMALS,
    BIRDS,
    CLOTHES,
    THINGS,
    write_apy,
    write_awa2,
    write_cub,
    write_deepfashion,
    write_image,
    write_splits,
    write_sun,
)
from refusals import message_of


def refusal(kind, **settings):
    return message_of(kind.load, kind.Settings(**settings), seed=0)


@pytest.fixture
def cub(tmp_path):
    """CUB with a proposed split beside it: classes 1 and 4 are unseen, 2 is for validation. The last is its folder."""
    root = tmp_path / "CUB_200_2011"
    files, labels, matrix = write_cub(root)
    place = tmp_path / "xlsa17" / "CUB"
    return root, files, labels, matrix, write_splits(place, BIRDS, files, labels, [1, 4], validation=[2]), place


def test_cub_with_the_proposed_split(cub):
    root, files, labels, matrix, parts, _ = cub
    settings = Cub.Settings(root=root, size=16, resize=18)
    made = Cub.load(settings, seed=0)
    space = made.space
    assert (made.name, space.names) == ("CUB", BIRDS)
    assert [space.seen.tolist(), space.validation.tolist(), space.unseen.tolist()] == [[0, 2, 3, 5], [2], [1, 4]]
    assert np.allclose(space.semantics, matrix / np.linalg.norm(matrix, axis=1, keepdims=True))
    assert (len(space.attribute_groups), space.attribute_groups["has_eye_color"]) == (28, tuple(range(135, 149)))
    assert (made.kind, made.image_shape, made.labels.tolist()) == ("images", (3, 16, 16), labels.tolist())
    assert (set(made.test_seen), set(made.train)) == (parts["test_seen"], parts["train"])
    assert made.test_unseen.tolist() == np.flatnonzero(np.isin(labels, [1, 4])).tolist()
    for i in (0, 13, 29):
        assert np.array_equal(made.features[i : i + 1], Cub.read(root / "images" / files[i], settings))
    raw = Cub.load(Cub.Settings(root=root, size=16, resize=18, attributes="original_att"), seed=0)
    assert np.array_equal(raw.space.semantics, matrix)


def test_the_split_may_be_given_as_file_or_folder_and_without_one_what_is_missing_is_said(cub):
    root, *_, parts, _ = cub
    folder = root.parent / "elsewhere"
    shutil.move(root.parent / "xlsa17", folder)
    for given in (folder, folder / "CUB", folder / "CUB" / "att_splits.mat"):
        listing = Cub.listing(Cub.Settings(root=root, splits=given), seed=0)
        assert set(np.flatnonzero(listing.test)) == parts["test_seen"]
    assert refusal(Cub, root=root).startswith("CUB-200-2011 does not say which classes are seen: set data.splits to")
    assert refusal(Cub, root=root, splits=root).startswith(f"{root} has no att_splits.mat: set data.splits to the")


def test_images_and_classes_per_settings(cub):
    root, *_, parts, _ = cub
    few = Cub.Settings(root=root, size=16, train_per_class=2, test_per_class=3)
    made = Cub.load(few, seed=0)
    count = {split: np.bincount(made.labels[getattr(made, split)], minlength=6) for split in ("train", "test_unseen")}
    assert (count["train"].tolist(), count["test_unseen"].tolist()) == ([2, 0, 2, 2, 0, 2], [0, 3, 0, 0, 3, 0])
    assert len(made.features) == 8 + 6 + 4  # nothing else is decoded
    again = Cub.listing(few, seed=7).ids(few)
    assert all(np.array_equal(ids, Cub.listing(few, seed=0).ids(few)[split]) for split, ids in again.items())
    more = few.model_copy(update={"train_per_class": 3})
    assert set(again["train"]) < set(Cub.listing(more, seed=0).ids(more)["train"]) <= parts["train"]
    with pytest.raises(ValidationError, match="resize = 100 is less than size = 224: the square would not fit"):
        Cub.Settings(root=root, resize=100)
    assert [Cub.Settings(root=root, size=s).shorter_side for s in (224, 448)] == [256, 512]


def test_unreadable_images_are_left_out_only_if_asked(cub):
    root, files, *_ = cub
    for i in (3, 7):
        (root / "images" / files[i]).write_bytes(b"?")
    assert refusal(Cub, root=root, size=16).startswith(f"{root / 'images' / files[3]} is not a readable image (2 of")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = Cub.load(Cub.Settings(root=root, size=16, skip_unreadable=True), seed=0)
    (warning,) = caught
    assert str(warning.message) == f"CUB: 2 of 30 images cannot be read and are left out: {files[3]}, {files[7]}"
    used = np.concatenate([made.train, made.test_seen, made.test_unseen])
    assert sorted(used.tolist()) == [i for i in range(30) if i not in (3, 7)]


def test_a_split_of_other_data_or_without_the_files_of_its_images_is_refused(cub):
    root, files, labels, *_, place = cub
    (place / "res101.mat").unlink()
    assert refusal(Cub, root=root).startswith(f"{place / 'att_splits.mat'} numbers its samples, but {place}/res101.mat")
    other = [f"other_{i}.jpg" if i % 10 == 0 else file for i, file in enumerate(files)]
    write_splits(place, BIRDS, other, labels, [1, 4])
    message = refusal(Cub, root=root)
    assert message.startswith(f"{place / 'res101.mat'} names the image '/home/them/data/other_")
    assert message.endswith(
        "which the data set lacks or has under another class (3 of 30 are so): unpack all images, or use the split of "
        "this data set"
    )
    write_splits(place, ("012.Wren", *BIRDS[1:]), files, labels, [1, 4])
    assert refusal(Cub, root=root) == f"{place / 'att_splits.mat'}: unknown class '012.Wren'"


def test_images_outside_of_the_split_are_not_used_but_counted(cub):
    root, files, labels, *_, place = cub
    keep = [i for i in range(30) if i not in (0, 11)]
    write_splits(place, BIRDS, [files[i] for i in keep], labels[keep], [1, 4])
    with pytest.warns(UserWarning, match="CUB-200-2011: 2 images are in no split of .*att_splits.mat and not used"):
        listing = Cub.listing(Cub.Settings(root=root), seed=0)
    used = np.concatenate(list(listing.ids(Cub.Settings(root=root)).values()))
    assert sorted(used.tolist()) == keep


def test_awa2_with_its_own_lists(tmp_path):
    root = tmp_path / "Animals_with_Attributes2"
    files, labels, matrix = write_awa2(root)
    settings = Awa2.Settings(root=tmp_path, size=16, attributes="original_att")
    made = Awa2.load(settings, seed=0)
    assert made.space.names == ANIMALS
    assert np.array_equal(made.space.semantics, matrix)
    assert (made.space.semantics[0, 0], made.space.unseen.tolist()) == (-1.0, [3, 4])
    assert made.space.attribute_names[0] == "predicate 1"
    assert (list(made.space.attribute_groups)[:2], made.labels.tolist()) == (["colour", "texture"], labels.tolist())
    assert np.bincount(made.labels[made.test_seen]).tolist() == [1, 1, 1, 0, 0, 1]
    for i in (0, 11, 29):
        assert np.array_equal(made.features[i], read_image(root / "JPEGImages" / files[i], 16, 18)[0])
    parts = write_splits(root, ANIMALS, files, labels, [0, 5])  # the proposed split wins
    listing = Awa2.listing(settings, seed=0)
    assert (listing.space.unseen.tolist(), set(np.flatnonzero(listing.test))) == ([0, 5], parts["test_seen"])
    lists = root / "testclasses.txt"
    for name, message in (
        ("grizzly bear", f"{root}: the class 'grizzly+bear' is in both trainclasses.txt and testclasses.txt"),
        ("grizly bear", f"{lists}: unknown class 'grizly bear': did you mean 'grizzly+bear'?"),
    ):
        lists.write_text(name)
        assert refusal(Awa2, root=root) == message
    write_image(root / "JPEGImages" / "beavre" / "x.jpg", 0)
    assert refusal(Awa2, root=root).startswith(f"{root / 'JPEGImages' / 'beavre'} is not a class of classes.txt: did")


def test_sun_names_scenes_by_their_folders(tmp_path):
    root = tmp_path / "SUNAttributeDB"
    files, labels, votes = write_sun(root)
    names = ("abbey", "airport_airport", "airport_entrance", "alley", "zoo", "ziggurat")
    parts = write_splits(tmp_path / "xlsa17" / "SUN", names, files, labels, [2, 4])
    made = Sun.load(Sun.Settings(root=root, size=16, attributes="original_att"), seed=0)
    assert made.space.names == names
    assert np.allclose(made.space.semantics, [votes[labels == c].mean(0) for c in range(6)])
    assert (len(made.space.attribute_groups), set(made.test_seen)) == (4, parts["test_seen"])
    assert np.array_equal(made.features[7], read_image(root / "images" / files[7], 16, 18)[0])
    shutil.move(root / "images", tmp_path / "images")  # beside the annotations
    assert Sun.listing(Sun.Settings(root=root), seed=0).root.resolve() == tmp_path / "images"
    scipy.io.savemat(root / "attributeLabels_continuous.mat", {"labels_cv": votes[:-1]})
    assert refusal(Sun, root=root).startswith(f"{root / 'attributeLabels_continuous.mat'}: the votes have the shape")
    scipy.io.savemat(root / "attributeLabels_continuous.mat", {"votes": votes})
    assert refusal(Sun, root=root).startswith(f"{root / 'attributeLabels_continuous.mat'} has no variable")


def test_apy_cuts_objects_out_and_those_of_one_picture_keep_their_order(tmp_path):
    objects = write_apy(tmp_path)
    files = [picture for _, picture, *_ in objects]
    labels = np.array([c for _, _, c, *_ in objects])
    parts = write_splits(tmp_path, THINGS, files, labels, [1, 4])
    made = Apy.load(Apy.Settings(root=tmp_path, size=8, attributes="original_att"), seed=0)
    assert (made.space.names, made.labels.tolist()) == (THINGS, labels.tolist())
    bits = np.array([one[-1] for one in objects])
    assert np.allclose(made.space.semantics, [bits[labels == c].mean(0) for c in range(6)])
    assert made.space.attribute_groups == {}
    # several objects of one class in one picture do not occur here: the place in the list is unique
    assert set(made.test_seen) == parts["test_seen"]
    folders = {"ayahoo_test": "ayahoo_test_images"}
    for i, (part, picture, _, (left, top, right, bottom), _) in enumerate(objects):
        path = tmp_path / folders.get(part, "VOCdevkit/VOC2008/JPEGImages") / picture
        with Image.open(path) as file:
            assert np.array_equal(made.features[i], square(file, 8, 9, (left - 1, top - 1, right, bottom)))
    # five aeroplanes in one picture: the release names the file five times, in the list's order
    files = ["2008_000000.jpg" if c == 0 else picture for _, picture, c, *_ in objects]
    for part in ("train", "test"):
        text = tmp_path / "attribute_data" / f"apascal_{part}.txt"
        text.write_text(re.sub(r"2008_00000\d(?=\.jpg aeroplane)", "2008_000000", text.read_text()))
    write_splits(tmp_path, THINGS, files, labels, [1, 4])  # the first of each seen class is for tests
    test = Apy.listing(Apy.Settings(root=tmp_path), seed=0).test
    assert np.flatnonzero(test & (labels == 0)).tolist() == np.flatnonzero(labels == 0)[:1].tolist()


def test_deepfashion_draws_its_split_once_for_all(tmp_path):
    files, labels, marks = write_deepfashion(tmp_path)
    settings = DeepFashion.Settings(root=tmp_path, size=8, unseen_classes=2, attributes="original_att")
    made = DeepFashion.load(settings, seed=0)
    space = made.space
    assert space.names == CLOTHES[:-1]  # nothing is known of a class without images
    assert (len(space.unseen), len(space.seen), len(space.validation)) == (2, 4, 1)
    assert space.attribute_groups == {
        "texture": (0, 5), "fabric": (1, 6), "shape": (2, 7), "part": (3, 8), "style": (4, 9)
    }  # fmt: skip
    assert space.attribute_names[3] == "very long word 3"
    for c in range(6):
        mine = np.flatnonzero(labels == c)
        used = made.test_unseen if c in space.unseen else made.train
        assert np.allclose(space.semantics[c], (marks[np.intersect1d(mine, used)] == 1).mean(0))
    assert np.array_equal(made.features[9], read_image(tmp_path / "Img" / files[9], 8, 9)[0])
    other = DeepFashion.load(settings, seed=5)
    assert other.fingerprint() == made.fingerprint()
    drawn = DeepFashion.listing(settings.model_copy(update={"split_seed": 3}), seed=0)
    assert drawn.space.unseen.tolist() != space.unseen.tolist()
    assert refusal(DeepFashion, root=tmp_path, unseen_classes=6).startswith("data.unseen_classes = 6 leaves no seen")


def test_every_attribute_is_in_one_group_and_those_of_cub_are_the_prefixes_of_its_names(tmp_path):
    for dataset, attributes, count in (("CUB", 312, 28), ("AWA1", 85, 9), ("AWA2", 85, 9), ("SUN", 102, 4)):
        groups = builtin_groups(dataset, attributes)
        assert len(groups) == count
        assert sorted(i for columns in groups.values() for i in columns) == list(range(attributes))
        assert builtin_groups(dataset, attributes - 1) == {}
    assert (builtin_groups("awa1_lampert", 85), builtin_groups("APY", 64)) == (builtin_groups("AWA2", 85), {})
    write_cub(tmp_path / "CUB", images=False)
    write_splits(tmp_path / "CUB", BIRDS, *write_cub(tmp_path / "again" / "CUB", images=False)[:2], [1])
    groups = Cub.listing(Cub.Settings(root=tmp_path / "CUB"), seed=0).space.attribute_groups
    spoken = [(name.removeprefix("has_").replace("_", " "), columns) for name, columns in groups.items()]
    assert spoken == list(builtin_groups("CUB", 312).items())


def test_a_fifth_is_drawn_but_a_single_image_stays():
    labels = np.array([0] * 10 + [1] * 2 + [2] + [3] * 4)
    test = draw_test(labels, np.array([0, 1, 2]), 0.2, 0)
    assert np.bincount(labels[test], minlength=4).tolist() == [2, 1, 0, 0]
