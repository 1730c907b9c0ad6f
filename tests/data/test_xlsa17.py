import re
import shutil

import numpy as np
import pytest
import scipy.io
from described import changed, roles, splits

from fedunseen.data.benchmarks.xlsa17 import Xlsa17
from refusals import message_of

# classes 1 to 5 are seen, 4 and 5 in val_loc, 6 is unseen; sample i is of class i % 6 + 1
CLASSES, SAMPLES, WIDTH, ATTRIBUTES = 6, 48, 7, 4
LABELS = np.arange(SAMPLES) % CLASSES + 1
UNSEEN = LABELS == 6
TEST = ~UNSEEN & (np.arange(SAMPLES) >= 36)
TRAIN = ~UNSEEN & ~TEST


def content(features_dtype=np.float64):
    random = np.random.default_rng(0)
    original = random.uniform(1, 100, (ATTRIBUTES, CLASSES))
    return {
        "res101.mat": {
            "features": (random.uniform(0, 200, (WIDTH, SAMPLES))).astype(features_dtype),
            "labels": LABELS[:, None].astype(np.uint8),
            "image_files": np.array([["x.jpg"]], dtype=object),
        },
        "att_splits.mat": {
            "att": original / np.linalg.norm(original, axis=0),
            "original_att": original,
            "allclasses_names": np.array([[f"beast+{i}"] for i in range(CLASSES)], dtype=object),
            "trainval_loc": np.flatnonzero(TRAIN)[:, None] + 1.0,
            "test_seen_loc": np.flatnonzero(TEST)[:, None].astype(np.uint16) + 1,
            "test_unseen_loc": np.flatnonzero(UNSEEN)[:, None].astype(np.int32) + 1,
            # as published: together these are trainval and test_seen, which leaks
            "train_loc": np.flatnonzero(~UNSEEN & (LABELS < 4))[:, None] + 1,
            "val_loc": np.flatnonzero(~UNSEEN & (LABELS >= 4))[:, None] + 1,
        },
    }


def write(root, files, dataset="BEASTS"):
    (root / dataset).mkdir(parents=True, exist_ok=True)
    for name, variables in files.items():
        scipy.io.savemat(root / dataset / name, variables)
    return root


def load(root, seed=0, dataset="BEASTS", **settings):
    return Xlsa17.load(Xlsa17.Settings(root=root, dataset=dataset, **settings), seed)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8, np.int16])
def test_reads_any_numeric_type(tmp_path, dtype):
    files = content(dtype)
    benchmark = load(write(tmp_path, files))
    kept = np.uint8 if dtype == np.uint8 else np.float32
    assert (benchmark.name, benchmark.features.dtype) == ("xlsa17/BEASTS", kept)
    assert benchmark.features.flags.c_contiguous
    np.testing.assert_array_equal(
        benchmark.features, files["res101.mat"]["features"].T.astype(kept)
    )
    np.testing.assert_array_equal(benchmark.labels, LABELS - 1)
    assert splits(benchmark) == tuple(
        np.flatnonzero(mask).tolist() for mask in (TRAIN, TEST, UNSEEN)
    )
    space, attributes = benchmark.space, tuple(f"attribute {i}" for i in range(4))
    assert (space.names, space.attribute_names) == (
        tuple(f"beast+{i}" for i in range(6)),
        attributes,
    )
    np.testing.assert_array_equal(space.semantics, files["att_splits.mat"]["att"].T)
    assert roles(space) == ([0, 1, 2, 3, 4], [3, 4], [5])


@pytest.mark.parametrize("how", ["no val_loc", "split by samples"])
def test_validation_classes_are_drawn_if_the_file_sets_none_aside(tmp_path, how):
    files = content()
    own = files["att_splits.mat"]
    if how == "no val_loc":
        del own["train_loc"], own["val_loc"]
    else:
        own["train_loc"], own["val_loc"] = own["trainval_loc"][::2], own["trainval_loc"][1::2]
    write(tmp_path, files)
    drawn = [load(tmp_path, seed).space.validation.tolist() for seed in (*range(6), 0)]
    assert [len(classes) for classes in drawn] == [1] * 7  # a fifth of five
    assert drawn[0] == drawn[6]
    assert any(classes != drawn[0] for classes in drawn)
    # a class that only test samples show is none
    own["val_loc"] = (
        np.append(np.flatnonzero(TRAIN & (LABELS == 5)), np.flatnonzero(TEST & (LABELS == 4))) + 1
    )
    own["train_loc"] = np.flatnonzero(~UNSEEN & (LABELS < 4))[:, None] + 1  # as published
    assert load(write(tmp_path, files)).space.validation.tolist() == [4]


def test_predicates_name_the_attributes_and_their_groups(tmp_path):
    write(tmp_path, content())
    path = tmp_path / "BEASTS" / "predicates.txt"
    path.write_text("     1\tblack\n     2\tnew world\n 3 beak::long\n 4 beak::short\n")
    space = load(tmp_path).space
    assert space.attribute_names == ("black", "new world", "beak::long", "beak::short")
    assert space.attribute_groups == {"beak": (2, 3)}
    path.write_text("1 black\n")
    assert (
        message_of(load, tmp_path)
        == f"{path} names 1 attributes, but {path.parent / 'att_splits.mat'} has 4"
    )


HINT = "unpack the archive xlsa17.zip (proposed split) from its authors' page there, or correct data.root"


@pytest.mark.parametrize("inner", ["", "xlsa17", "xlsa17/data", "data"])
def test_missing_folders_and_files_and_a_root_too_high(tmp_path, inner):
    assert (
        message_of(load, tmp_path / "nowhere")
        == f"the folder {tmp_path}/nowhere is missing: {HINT}"
    )
    assert (
        message_of(load, tmp_path)
        == f"{tmp_path}/BEASTS is missing, and no other dataset is in {tmp_path}: {HINT}"
    )
    folder = write(write(tmp_path / inner, content()), content(), dataset="SUN")
    assert load(tmp_path).name == "xlsa17/BEASTS"
    said = message_of(load, tmp_path, dataset="BEAST")
    assert said.startswith("unknown dataset 'BEAST': did you mean 'BEASTS'? (known:")
    (folder / "SUN" / "res101.mat").unlink()
    assert (
        message_of(load, folder, dataset="SUN")
        == f"{folder / 'SUN' / 'res101.mat'} is missing: {HINT}"
    )


@pytest.mark.parametrize(
    ("file", "variable", "value", "message"),
    [
        ("res101", "labels", None, " has no variable 'labels': is it a file of the xlsa17 "
                                   "proposed"),
        ("res101", "labels", LABELS[:-3, None], ": the features have the shape (7, 48), but there"),
        ("res101", "labels", changed(LABELS / 1, 8, 7), ": the label 7.0 of sample 9 is outside "
                                                        "the class space"),
        ("res101", "labels", changed(LABELS / 1, 8, np.nan), ": the label nan of sample 9 is "
                                                             "outside the class space"),
        ("att_splits", "val_loc", [[49.0], [5.0]], ": val_loc names sample 49.0, but the samples "
                                                   "of"),
        ("att_splits", "test_seen_loc", [[0.0], [38.0]], ": test_seen_loc names sample 0.0, but "
                                                         "the"),
        ("att_splits", "att", np.ones((4, 5)), ": att describes 5 classes, but allclasses_names "
                                               "has 6"),
        ("res101", "features", np.ones((7, 48)) + 1j, ": features is of type complex128, not real"),
    ],
)  # fmt: skip
def test_bad_content(tmp_path, file, variable, value, message):
    files = content()
    del files[f"{file}.mat"][variable]
    if value is not None:
        files[f"{file}.mat"][variable] = value
    write(tmp_path, files)
    assert message_of(load, tmp_path).startswith(f"{tmp_path / 'BEASTS' / file}.mat{message}")


def test_groups_that_the_folder_itself_gives_win(tmp_path):
    files = content()
    files["att_splits.mat"]["att"] = np.random.default_rng(0).uniform(0.1, 1, (85, CLASSES))
    root = write(tmp_path, files, dataset="AWA2")
    names = "\n".join(f"{i}\tword {i}" for i in range(85))
    (root / "AWA2" / "predicates.txt").write_text(names)
    assert len(load(root, dataset="AWA2").space.attribute_groups) == 9  # names alone are no groups
    (root / "AWA2" / "predicates.txt").write_text(names.replace("word ", "all::"))
    assert load(root, dataset="AWA2").space.attribute_groups == {"all": tuple(range(85))}


@pytest.mark.parametrize("name", ["res101.mat", "att_splits.mat"])
def test_a_cut_file_is_refused_wherever_it_is_cut(tmp_path, name):
    files = content()
    del files["res101.mat"]["image_files"]  # which is not read, so that a cut there does no harm
    path = write(tmp_path, files) / "BEASTS" / name
    whole = path.read_bytes()
    for length in [0, 3, 100, 130, *range(200, len(whole) - 8, max(1, len(whole) // 12))]:
        path.write_bytes(whole[:length])
        # cut between two variables, the file is sound and a variable is missing
        assert re.search(
            r"is damaged, perhaps cut short|has no variable '", message_of(load, tmp_path)
        )
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(512, b"\0") + b"\x89HDF\r\n\x1a\n")
    assert (
        "mat is a MATLAB v7.3 file, as the authors' are not: save it again with the"
        in message_of(load, tmp_path)
    )


# Xian et al., Table 1: seen classes, unseen classes, attributes, trainval, test_seen, test_unseen
# samples
PUBLISHED = {
    "CUB": (150, 50, 312, 7057, 1764, 2967),
    "AWA2": (40, 10, 85, 23527, 5882, 7913),
    "SUN": (645, 72, 102, 10320, 2580, 1440),
}


@pytest.mark.parametrize("dataset", PUBLISHED)
def test_the_published_splits(real_data, tmp_path, dataset):
    seen, unseen, attributes, *samples = PUBLISHED[dataset]
    shutil.copytree(real_data / "xlsa17_splits_only" / dataset, tmp_path / dataset)
    labels = np.load(tmp_path / dataset / "labels.npz")["labels"] + 1
    features = np.random.default_rng(0).normal(size=(2, sum(samples))).astype(np.float32)
    write(tmp_path, {"res101.mat": {"features": features, "labels": labels[:, None]}}, dataset)
    benchmark = load(tmp_path, dataset=dataset)
    space = benchmark.space
    assert (len(space.seen), len(space.unseen), space.attributes) == (seen, unseen, attributes)
    assert [len(ids) for ids in splits(benchmark)] == samples
    np.testing.assert_allclose(np.linalg.norm(space.semantics, axis=1), 1)
    assert len(space.validation) == round(
        seen / 5
    )  # none of the files names validation classes: they are drawn
    if dataset == "AWA2":
        assert (space.attribute_names[0], space.attribute_names[84]) == ("black", "domestic")
