import numpy as np
import pytest
from described import changed, roles, splits

from fedunseen.data.benchmarks.folder import Folder, write_folder
from refusals import message_of

CLASSES = "name,split,fur,legs\ncat,seen,1,4\ndog,seen,1,4.5\nant,validation,0,6\nfly,unseen,0,6.5\nrock,,0,1\n"
LABELS = ["cat", "cat", "dog", "dog", "ant", "ant", "fly", "fly", "rock"]
SPLIT = ["train", "test", "train", "test", "train", "test", "test", "test", "train"]
FEATURES = np.random.default_rng(0).normal(size=(9, 3))


def make(root, classes=CLASSES, **changes):
    root.mkdir(exist_ok=True)
    (root / "classes.csv").write_text(classes)
    arrays = {"features": FEATURES, "labels": LABELS, "split": SPLIT} | changes
    np.savez(
        root / "features.npz", **{key: value for key, value in arrays.items() if value is not None}
    )
    return root


def load(root, seed=0, **settings):
    return Folder.load(Folder.Settings(root=root, **settings), seed)


def test_reads_what_it_says(tmp_path):
    benchmark = load(make(tmp_path))
    assert benchmark.name == f"folder/{tmp_path.name}"
    assert benchmark.space.names == ("cat", "dog", "ant", "fly", "rock")
    assert roles(benchmark.space) == ([0, 1, 2], [2], [3])
    assert benchmark.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert splits(benchmark) == ([0, 2, 4], [1, 3, 5], [6, 7])  # rock is neither seen nor unseen
    np.testing.assert_array_equal(benchmark.features, FEATURES.astype(np.float32))


@pytest.mark.parametrize(
    "labels", [np.array([0, 0, 1, 1, 2, 2, 3, 3, 4]), np.array(LABELS, dtype="S")]
)
def test_labels_may_be_rows_or_bytes(tmp_path, labels):
    other = load(make(tmp_path / "a", labels=labels, split=np.array(SPLIT, dtype="S")))
    assert other.fingerprint() == load(make(tmp_path / "b")).fingerprint()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": None}, "{npz} has no array 'split' (it has: features, labels)"),
        ({"labels": changed(LABELS, 0, "caat")}, "{npz}: the label 'caat' is not a class of "
                                                 "classes.csv: did you"),
        ({"labels": np.ones(9)}, "{npz}: the labels are of type float64, neither class names nor "
                                 "row numbers"),
        ({"split": changed(SPLIT, 0, "tran")}, "{npz}: unknown split 'tran': did you mean 'train'? "
                                               "(known: test,"),
        ({"split": np.array(SPLIT[1:])}, "{npz}: features, labels and split have 9, 9 and 8 "
                                         "entries, and must have"),
        ({"split": changed(SPLIT, 6, "train")}, "{npz}: a sample of the unseen class 'fly' is "
                                                "marked 'train': mark"),
        ({"features": FEATURES.astype(object)}, "{npz} holds Python objects, which are never "
                                                "loaded: save plain"),
        ({"classes": CLASSES.replace("rock,", "rock,seen")[:-1] + ",1\n"}, "{csv}, line 6: 5 "
                                                                           "cells, but the first"),
        ({"image_shape": np.array([2, 2])}, "{npz}: image_shape is [2, 2], but the features have "
                                            "the shape"),
        ({"image_shape": np.array([1.0, 3.0])}, "{npz}: image_shape is [1.0, 3.0], but the "
                                                "features have the shape"),
        ({"image_shape": np.array([1, 3])}, "{npz}: images of type float32 have numbers outside "
                                            "[0, 1]: scale"),
        ({"users": np.arange(8)}, "{npz}: users must have a whole number from 0 on for each "
                                  "sample: 9 numbers"),
        ({"answers": np.ones(5)}, "{npz}: answers must have a whole number from 0 on for each "
                                  "class: 5 numbers"),
        ({"features": np.array(3.0)}, "{npz}: features is a single number, not an array with an "
                                      "entry for each sample"),
        ({"labels": np.array([b"\xff"] * 9)}, "{npz}: labels holds text that is not UTF-8: save it "
                                              "as Python text"),
        ({"labels": np.array(["\udc80"] * 9)}, "{npz}: labels holds text that is not UTF-8: save "
                                               "it as Python text"),
        ({"labels": np.full(9 * 4, 0x7FFFFFFF, np.uint32).view("<U4")}, "{npz}: labels holds text "
                                                                        "that is not UTF-8:"),
    ],
)  # fmt: skip
def test_bad_content(tmp_path, changes, message):
    make(tmp_path, **changes)
    message = message.format(npz=tmp_path / "features.npz", csv=tmp_path / "classes.csv")
    assert message_of(load, tmp_path).startswith(message)


@pytest.mark.parametrize(
    ("features", "shape", "kind", "images"),
    [
        (
            np.random.default_rng(0).uniform(size=(9, 6)).astype(np.float32),
            (2, 3),
            "vectors",
            (9, 1, 2, 3),
        ),
        (np.arange(9 * 6, dtype=np.uint8).reshape(9, 6), (1, 2, 3), "vectors", (9, 1, 2, 3)),
        (np.arange(9 * 12, dtype=np.uint8).reshape(9, 3, 2, 2), (3, 2, 2), "images", (9, 3, 2, 2)),
    ],
)
def test_features_may_be_images(tmp_path, features, shape, kind, images):
    benchmark = load(make(tmp_path, features=features, image_shape=np.array(shape)))
    assert (benchmark.image_shape, benchmark.kind, benchmark.features.dtype) == (
        shape,
        kind,
        features.dtype,
    )
    assert benchmark.images().shape == images


def test_a_part_need_not_have_all_classes_and_splits_but_a_sample(tmp_path):
    names, split = np.array(["cat"] * 2), np.array(["train"] * 2)
    make(
        tmp_path,
        CLASSES.replace("validation", "seen"),
        features=FEATURES[:2],
        labels=names,
        split=split,
    )
    said = message_of(load, tmp_path)
    assert said.endswith(
        " has no test sample of a seen class: give some (a class with a single sample trains on it)"
    )
    benchmark = load(tmp_path, part=True)
    assert (benchmark.part, splits(benchmark)) == (True, ([0, 1], [], []))
    assert len(benchmark.space.validation) == 0  # no one draws: the parties would have to agree
    make(tmp_path, features=FEATURES[:0], labels=names[:0], split=split[:0])
    said = message_of(load, tmp_path, part=True)
    assert (
        said
        == f"folder/{tmp_path.name} has no sample at all: a part of a benchmark needs one at least"
    )


def test_what_is_written_is_read_bit_for_bit(tmp_path):
    whole = load(make(tmp_path / "whole", users=np.arange(9) // 2, answers=np.arange(5) % 2))
    assert (whole.users.tolist(), whole.answers.tolist()) == (
        [0, 0, 1, 1, 2, 2, 3, 3, 4],
        [0, 1, 0, 1, 0],
    )
    write_folder(tmp_path / "a", whole, whole.train[1:], "train")
    own = load(tmp_path / "a", part=True)
    for name in ("features", "labels", "users"):
        assert np.array_equal(getattr(own, name), getattr(whole, name)[whole.train[1:]])
    assert (own.answers.tolist(), splits(own)) == ([0, 1, 0, 1, 0], ([0, 1], [], []))
