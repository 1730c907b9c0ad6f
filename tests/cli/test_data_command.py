import json

import numpy as np
import pytest

from fedunseen import Experiment, run
from fedunseen.data import BENCHMARKS
from published_layouts import BIRDS, write_awa2, write_cub, write_image, write_mnist, write_sentiment140, write_splits


@pytest.fixture
def check(command):
    """Call ``fedunseen data check`` and return its exit code and what it says as JSON."""

    def call(folder, *arguments):
        done = command("data", "check", folder, "--json", *arguments)
        return done.code, json.loads(done.out)

    return call


@pytest.fixture
def cub(tmp_path):
    root = tmp_path / "CUB_200_2011"
    files, labels, _ = write_cub(root)
    write_splits(tmp_path / "split", BIRDS, files, labels, [1, 4], validation=[2])
    return root


def test_the_list_names_every_benchmark_with_its_page(command, tmp_path, monkeypatch):
    write_cub(tmp_path / "CUB_200_2011", images=False)
    done = command("data", "list", "--root", tmp_path)
    assert done.code == 0
    assert "cub: CUB-200-2011\n  published  https://www.vision.caltech.edu/datasets/cub_200_2011\n" in done.out
    assert f"  found      {tmp_path / 'CUB_200_2011'}\n" in done.out
    assert f"  not found  in {tmp_path}\n" in done.out
    monkeypatch.setenv("FEDUNSEEN_DATA", str(tmp_path))
    result = {one["name"]: one for one in json.loads(command("data", "list", "--json").out)}
    assert set(result) >= {"apy", "awa2", "cifar100", "cub", "deepfashion", "digit-pairs", "folder", "images", "sun"}
    assert result["cub"]["found"] == [str(tmp_path / "CUB_200_2011")]
    assert result["awa2"]["found"] == []
    assert all(one["title"] and one["page"] for one in result.values())


def test_few_shot_benchmarks_are_known_by_their_files(check, command, tmp_path):
    write_mnist(tmp_path / "digits")
    code, report = check(tmp_path / "digits")
    assert code == 0
    assert [report[key] for key in ("benchmark", "attributes", "seen", "validation", "unseen")] == ["mnist", 0, 5, 0, 5]
    assert [report[key] for key in ("samples", "train", "test_seen", "test_unseen")] == [70, 30, 20, 20]
    out = command("data", "check", tmp_path / "digits").out
    assert "  attributes: none, the classes are learned from examples (few-shot)\n" in out
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("good 1 0\nbad 0 1\n")
    write_sentiment140(tmp_path / "tweets" / "mine.csv")
    code, report = check(tmp_path / "tweets", "--set", f"data.vectors={vectors}")
    assert code == 0
    assert [report[key] for key in ("benchmark", "samples", "seen", "unseen")] == ["sent140", 60, 4, 2]


def test_the_photos_of_cifar100_are_cifar100_s(check, real_data):
    assert check(real_data / "cifar100", "--set", "data.text_encoder=nowhere/at/all")[1]["benchmark"] == "cifar100"


def test_a_whole_data_set_is_ready(check, command, cub, own_cache):
    splits = cub.parent / "split" / "att_splits.mat"
    code, report = check(cub, "--set", f"data.splits={splits}")
    assert code == 0
    assert report.pop("snippet").startswith(f'[data]\nname = "cub"\nroot = "{cub}"\nsplits = "{splits}"\n')
    assert report == {
        "benchmark": "cub", "root": str(cub), "missing": [], "problems": [], "part": False, "kind": "images",
        "samples": 30, "train": 16, "test_seen": 4, "test_unseen": 10, "classes": 6, "attributes": 312,
        "groups": 28, "grouped": 312,
        "seen": 4, "validation": 1, "unseen": 2, "bytes": 30 * 3 * 224 * 224, "cache": str(own_cache),
        "doubts": [], "centred": True, "spare": True, "smallest": 5, "untrained": [],
    }  # fmt: skip
    done = command("data", "check", cub, "--set", f"data.splits={splits}")
    assert done.out.splitlines()[:6] == [
        f"{cub}: the layout of cub",
        "  classes: 6 (4 seen, of them 1 for validation; 2 unseen)",
        "  attributes: 312, 312 of them in 28 groups",
        "  samples: 30 (16 to train on, 4 tests of seen and 10 of unseen classes)",
        f"  decoded once, they take 0.00 GB in {own_cache}",
        "  images not decoded: add --images to find those that cannot be read",
    ]
    (cub.parent / "mine.toml").write_text(done.out.partition("for `fedunseen run`:\n")[2])
    assert Experiment.load(cub.parent / "mine.toml").data.name == "cub"


def test_missing_parts_are_listed(check, command, cub):
    (cub / "images.txt").unlink()
    (cub.parent / "attributes.txt").unlink()
    code, report = check(cub)
    wanted = ["images.txt", "attributes.txt or attributes/attributes.txt or ../attributes.txt"]
    assert (code, report["missing"]) == (2, wanted)
    done = command("data", "check", cub)
    assert done.code == 2
    assert "  missing: images.txt\n" in done.out
    assert done.out.endswith(
        "  CUB-200-2011 (https://www.vision.caltech.edu/datasets/cub_200_2011: "
        "attributes/class_attribute_labels_continuous.txt, images.txt, image_class_labels.txt, classes.txt, "
        "attributes.txt, images)\n"
    )
    assert "ready" not in done.out


def test_missing_and_unreadable_images_are_counted(check, tmp_path):
    root = tmp_path / "Animals_with_Attributes2"
    write_awa2(root)
    images = root / "JPEGImages"
    (images / "beaver" / "beaver_10002.jpg").write_bytes(b"")
    (images / "dalmatian" / "dalmatian_10001.jpg").write_bytes(b"?")
    assert check(root)[0] == 0  # no one has looked at the images
    code, report = check(root, "--images")
    assert code == 2
    assert report["unreadable"] == ["beaver/beaver_10002.jpg", "dalmatian/dalmatian_10001.jpg"]
    assert report["problems"] == [
        "2 of 30 images cannot be read: beaver/beaver_10002.jpg, dalmatian/dalmatian_10001.jpg; fix or replace them, "
        "or leave them out with data.skip_unreadable = true"
    ]
    code, report = check(root, "--images", "--set", "data.skip_unreadable=true", "--set", "data.size=32")
    assert (code, len(report["unreadable"]), report["bytes"]) == (0, 2, 30 * 3 * 32 * 32)


def test_your_own_images(check, tmp_path):
    for name in ("cat", "dog", "fox", "owl"):
        for i in range(4):
            write_image(tmp_path / name / f"{i}.png", i)
    code, report = check(tmp_path)
    assert (code, report["benchmark"], report["missing"]) == (2, "images", ["classes.csv"])
    table = tmp_path / "classes.csv"
    table.write_text("name,split,big\ncat,seen,1\ndog,seen,2\nfox,seen,3\nowl,unseen,1\n")
    code, report = check(tmp_path, "--images")
    assert (code, report["samples"], report["unreadable"]) == (0, 16, [])
    table.rename(tmp_path / "table.csv")
    assert check(tmp_path, "--set", f"data.classes={tmp_path / 'table.csv'}")[0] == 0


def test_features(check, make_folder, tmp_path, real_data):
    code, report = check(make_folder(tmp_path / "mine"))
    assert (code, report["benchmark"], report["samples"]) == (0, "folder", 8 * 14 + 4 * 4)
    code, report = check(real_data / "xlsa17" / "CIFAR100_MBV2")
    assert code == 0
    assert report["snippet"].splitlines()[1:4] == [
        'name = "xlsa17"', f"root = {json.dumps(str(real_data / 'xlsa17'))}", 'dataset = "CIFAR100_MBV2"'
    ]  # fmt: skip
    assert [report[key] for key in ("samples", "seen", "unseen", "attributes")] == [30_000, 80, 20, 384]


def test_too_little_for_a_run_is_enough_for_a_party(check, command, tmp_path):
    write_image(tmp_path / "cat" / "1.png", 0)
    write_image(tmp_path / "dog" / "1.png", 1)
    (tmp_path / "classes.csv").write_text("name,split,big\ncat,seen,1\ndog,seen,2\nowl,unseen,1\nox,seen,3\n")
    code, report = check(tmp_path, "--set", "data.part=false")
    assert code == 2
    assert report["problems"] == [
        f"the seen class 'ox' of {tmp_path / 'classes.csv'} has no folder in {tmp_path}: add one with its images, or "
        "mark the class as unseen"
    ]
    done = command("data", "check", tmp_path, "--images")
    assert done.code == 0
    assert "mark the class as unseen" not in done.out
    lines = done.out.splitlines()
    assert lines[5:] == [
        "a part, too little for a run of its own: no sample to train on of ox; no test sample of a seen class; no "
        "sample of an unseen class",
        "ready for one party of a federation (fedunseen join --data) or its coordinator (fedunseen host):",
        "[data]", 'name = "images"', f'root = "{tmp_path}"', "part = true",
    ]  # fmt: skip


# What is printed runs as it is


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["images", "features", "maps", "few-shot", "texts"])
def test_the_printed_experiment_runs(command, make_folder, tmp_path, kind):
    root = tmp_path / 'my "data"'
    arguments = []
    if kind == "images":
        for c, name in enumerate(("cat", "dog", "fox", "owl", "ox", "yak")):
            for i in range(6):
                write_image(root / name / f"{i}.png", 6 * c + i)
        rows = "".join(f"{name},seen,{i},1\n" for i, name in enumerate(("cat", "dog", "fox", "owl", "ox")))
        (root / "classes.csv").write_text(f"name,split,big,fur\n{rows}yak,unseen,2,2\n", encoding="utf-8")
        arguments = ["--set", "data.size=16"]
    elif kind == "features":
        make_folder(root)
    elif kind == "maps":

        def edit(rows, arrays):
            arrays["features"] = np.repeat(arrays["features"][:, :, None, None], 4, axis=2)

        make_folder(root, edit)
    elif kind == "few-shot":
        write_mnist(root)
    else:
        (tmp_path / "vectors.txt").write_text("good 1 0\nbad 0 1\nday 0.3 0.1\n")
        write_sentiment140(root / "mine.csv")
        arguments = ["--set", f"data.vectors={tmp_path / 'vectors.txt'}"]
    done = command("data", "check", root, *arguments)
    assert done.code == 0, done.out
    file = tmp_path / "mine.toml"
    file.write_text(done.out.partition("for `fedunseen run`:\n")[2], encoding="utf-8")
    small = {"strategy.rounds": 1}
    if Experiment.load(file).method.name != "gaussian":
        small |= {"method.episodes": 2, "evaluation.episodes": 5}
    assert run(Experiment.load(file, small), tmp_path / "run").result is not None


def test_a_benchmark_of_another_package_is_listed_and_checked_without_a_change_here(command, tmp_path, monkeypatch):
    (tmp_path / "my_benchmark.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(BENCHMARKS, "mine", "my_benchmark:Mine")
    here = tmp_path / "data" / "here"
    here.mkdir(parents=True)
    np.save(here / "mine.npy", np.random.default_rng(0).normal(size=(60, 4)))
    listed = json.loads(command("data", "list", "--root", here.parent, "--json").out)
    assert [one for one in listed if one["name"] == "mine"] == [{
        "name": "mine", "title": "rows of mine", "page": "https://example.org", "layout": "mine.npy", "files": True,
        "found": [str(here)],
    }]  # fmt: skip
    done = command("data", "check", here)
    assert done.code == 0
    file = tmp_path / "mine.toml"
    file.write_text(done.out.partition("for `fedunseen run`:\n")[2])
    finished = run(Experiment.load(file, {"strategy.rounds": 1}), tmp_path / "run")
    np.save(tmp_path / "new.npy", np.ones((2, 4)))
    assert finished.read(tmp_path / "new.npy").shape == (2, 4)
    monkeypatch.setenv("FEDUNSEEN_DATA", str(here.parent))
    assert f"mine: {here}" in json.loads(command("doctor", "--json").out)["data"]


MINE = """
from pathlib import Path
from typing import Literal

import numpy as np

from fedunseen.data import Benchmark, BenchmarkLoader, DataSettings


class MineSettings(DataSettings):
    name: Literal["mine"] = "mine"
    root: Path


class Mine(BenchmarkLoader):
    Settings = MineSettings
    title = "rows of mine"
    page = "https://example.org"
    needs = ("mine.npy",)

    @classmethod
    def load(cls, settings, seed):
        rows = np.load(cls.home(settings.root) / "mine.npy", allow_pickle=False)
        names = np.array(["a", "b", "c", "d", "e", "f"])[np.arange(60) % 6]
        classes = {name: np.eye(6)[i] for i, name in enumerate("abcdef")}
        train = (names != "f") & (np.arange(60) < 48)
        return Benchmark.from_arrays(
            rows[train], names[train], classes, test=(rows[~train], names[~train]), validation=["e"]
        )
"""
