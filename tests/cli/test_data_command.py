"""``fedunseen data list`` and ``data check``: what a folder holds or lacks, and an experiment that runs on it."""

import json

import numpy as np
import pytest

from fedunseen import Experiment, run
from fedunseen.data import BENCHMARKS
from processes import sets
from published_layouts import BIRDS, write_awa2, write_cub, write_mnist, write_splits

PETS = "name,split,big\ncat,seen,1\ndog,seen,2\nfox,seen,3\nowl,unseen,1.5\n"


@pytest.fixture
def check(command):
    """Call ``fedunseen data check``, compare its exit code and some facts, and return all that it says as JSON."""

    def call(folder, *arguments, code=0, **facts):
        done = command("data", "check", folder, "--json", *arguments)
        assert (done.code, done.answer | facts) == (code, done.answer)
        return done.answer

    return call


@pytest.fixture
def cub(tmp_path):
    root = tmp_path / "CUB_200_2011"
    files, labels, _ = write_cub(root)
    write_splits(tmp_path / "split", BIRDS, files, labels, [1, 4], validation=[2])
    return root


def printed(done, file):
    """Write the experiment that ``data check`` prints; return its file."""
    file.write_text(done.out.partition("for `fedunseen run`:\n")[2], "utf-8")
    return file


def test_the_list_names_every_benchmark_with_its_page(works, tmp_path, monkeypatch):
    root = tmp_path / "CUB_200_2011"
    write_cub(root, images=False)
    shown = works("data", "list", "--root", tmp_path).out
    assert "cub: CUB-200-2011\n  published  https://www.vision.caltech.edu/datasets/cub_200_2011\n" in shown
    assert f"  found      {root}\n" in shown
    assert f"  not found  in {tmp_path}\n" in shown
    monkeypatch.setenv("FEDUNSEEN_DATA", str(tmp_path))
    result = {one["name"]: one for one in works("data", "list", "--json").answer}
    assert set(result) >= {"apy", "awa2", "cifar100", "cub", "deepfashion", "digit-pairs", "folder", "images", "sun"}
    assert (result["cub"]["found"], result["awa2"]["found"]) == ([str(root)], [])
    assert all(one["title"] and one["page"] for one in result.values())


def test_few_shot_benchmarks_are_known_by_their_files(check, works, tweets, tmp_path):
    write_mnist(tmp_path / "digits")
    samples = {"samples": 70, "train": 30, "test_seen": 20, "test_unseen": 20}
    check(tmp_path / "digits", benchmark="mnist", attributes=0, seen=5, validation=0, unseen=5, **samples)
    shown = works("data", "check", tmp_path / "digits").out
    assert "  attributes: none, the classes are learned from examples (few-shot)\n" in shown
    check(tweets["data.root"], *sets(tweets), benchmark="sent140", samples=60, seen=4, unseen=2)


def test_the_photos_of_cifar100_are_cifar100_s(command, real_data):
    done = command("data", "check", real_data / "cifar100", "--set", "data.text_encoder=nowhere/at/all", "--json")
    assert done.answer["benchmark"] == "cifar100"


def test_a_whole_data_set_is_ready(check, works, cub, own_cache):
    splits = cub.parent / "split" / "att_splits.mat"
    report = check(cub, "--set", f"data.splits={splits}")
    assert report.pop("snippet").startswith(f'[data]\nname = "cub"\nroot = "{cub}"\nsplits = "{splits}"\n')
    assert report == {
        "benchmark": "cub", "root": str(cub), "missing": [], "problems": [], "part": False, "kind": "images",
        "samples": 30, "train": 16, "test_seen": 4, "test_unseen": 10, "classes": 6, "attributes": 312,
        "groups": 28, "grouped": 312,
        "seen": 4, "validation": 1, "unseen": 2, "bytes": 30 * 3 * 224 * 224, "cache": str(own_cache),
        "doubts": [], "centred": True, "spare": True, "smallest": 5, "untrained": [],
    }  # fmt: skip
    done = works("data", "check", cub, "--set", f"data.splits={splits}")
    assert done.out.splitlines()[:6] == [
        f"{cub}: the layout of cub",
        "  classes: 6 (4 seen, of them 1 for validation; 2 unseen)",
        "  attributes: 312, 312 of them in 28 groups",
        "  samples: 30 (16 to train on, 4 tests of seen and 10 of unseen classes)",
        f"  decoded once, they take 0.00 GB in {own_cache}",
        "  images not decoded: add --images to find those that cannot be read",
    ]
    assert Experiment.load(printed(done, cub.parent / "mine.toml")).data.name == "cub"


def test_missing_parts_are_listed(check, command, cub):
    (cub / "images.txt").unlink()
    (cub.parent / "attributes.txt").unlink()
    check(cub, code=2, missing=["images.txt", "attributes.txt or attributes/attributes.txt or ../attributes.txt"])
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
    write_awa2(tmp_path)
    bad = ["beaver/beaver_10002.jpg", "dalmatian/dalmatian_10001.jpg"]
    for name, content in zip(bad, (b"", b"?"), strict=True):
        (tmp_path / "JPEGImages" / name).write_bytes(content)
    check(tmp_path)  # no one has looked at the images
    problem = (
        f"2 of 30 images cannot be read: {', '.join(bad)}; fix or replace them, or leave them out with "
        "data.skip_unreadable = true"
    )
    check(tmp_path, "--images", code=2, unreadable=bad, problems=[problem])
    settings = "--set", "data.skip_unreadable=true", "--set", "data.size=32"
    check(tmp_path, "--images", *settings, unreadable=bad, bytes=30 * 3 * 32 * 32)


def test_your_own_images(check, photos, tmp_path):
    check(photos(tmp_path, PETS, 4), "--images", samples=16, unreadable=[])
    table = (tmp_path / "classes.csv").rename(tmp_path / "table.csv")
    check(tmp_path, code=2, benchmark="images", missing=["classes.csv"])
    check(tmp_path, "--set", f"data.classes={table}")


def test_features(check, make_folder, tmp_path, real_data):
    check(make_folder(tmp_path / "mine"), benchmark="folder", samples=8 * 14 + 4 * 4)
    root = real_data / "xlsa17"
    report = check(root / "CIFAR100_MBV2", samples=30_000, seen=80, unseen=20, attributes=384)
    expected = ['name = "xlsa17"', f"root = {json.dumps(str(root))}", 'dataset = "CIFAR100_MBV2"']
    assert report["snippet"].splitlines()[1:4] == expected


def test_too_little_for_a_run_is_enough_for_a_party(check, works, photos, tmp_path):
    photos(tmp_path, "name,split,big\ncat,seen,1\ndog,seen,2\nowl,unseen,1\nox,seen,3\n", 1, without=("owl", "ox"))
    problem = (
        f"the seen class 'ox' of {tmp_path / 'classes.csv'} has no folder in {tmp_path}: add one with its images, or "
        "mark the class as unseen"
    )
    check(tmp_path, "--set", "data.part=false", code=2, problems=[problem])
    shown = works("data", "check", tmp_path, "--images").out
    assert "mark the class as unseen" not in shown
    assert shown.splitlines()[5:] == [
        "a part, too little for a run of its own: no sample to train on of ox; no test sample of a seen class; no "
        "sample of an unseen class",
        "ready for one party of a federation (fedunseen join --data) or its coordinator (fedunseen host):",
        "[data]", 'name = "images"', f'root = "{tmp_path}"', "part = true",
    ]  # fmt: skip


# What is printed runs as it is


def as_maps(rows, arrays):
    arrays["features"] = np.repeat(arrays["features"][:, :, None, None], 4, axis=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["images", "features", "maps", "few-shot", "texts"])
def test_the_printed_experiment_runs(works, make_folder, photos, tweets, tmp_path, kind):
    root = tmp_path / 'my "data"'
    given = {"images": {"data.size": 16}, "texts": tweets}.get(kind, {})
    if kind == "images":
        photos(root, PETS + "ox,seen,5\nyak,seen,4\n", 6)
    elif kind == "few-shot":
        write_mnist(root)
    elif kind != "texts":
        make_folder(root, as_maps if kind == "maps" else None)
    file = printed(works("data", "check", given.get("data.root", root), *sets(given)), tmp_path / "mine.toml")
    small = {"strategy.rounds": 1}
    if Experiment.load(file).method.name != "gaussian":
        small |= {"method.episodes": 2, "evaluation.episodes": 5}
    assert run(Experiment.load(file, small), tmp_path / "run").result is not None


def test_a_benchmark_of_another_package_is_listed_and_checked_without_a_change_here(works, tmp_path, monkeypatch):
    (tmp_path / "my_benchmark.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(BENCHMARKS, "mine", "my_benchmark:Mine")
    here = tmp_path / "data" / "here"
    here.mkdir(parents=True)
    np.save(here / "mine.npy", np.random.default_rng(0).normal(size=(60, 4)))
    listed = works("data", "list", "--root", here.parent, "--json").answer
    assert [one for one in listed if one["name"] == "mine"] == [{
        "name": "mine", "title": "rows of mine", "page": "https://example.org", "layout": "mine.npy", "files": True,
        "found": [str(here)],
    }]  # fmt: skip
    file = printed(works("data", "check", here), tmp_path / "mine.toml")
    finished = run(Experiment.load(file, {"strategy.rounds": 1}), tmp_path / "run")
    np.save(tmp_path / "new.npy", np.ones((2, 4)))
    assert finished.read(tmp_path / "new.npy").shape == (2, 4)
    monkeypatch.setenv("FEDUNSEEN_DATA", str(here.parent))
    assert f"mine: {here}" in works("doctor", "--json").answer["data"]


MINE = """
from pathlib import Path
from typing import Literal

import numpy as np

from fedunseen.data import Benchmark, BenchmarkLoader, DataSettings


class Mine(BenchmarkLoader):
    title, page, needs = "rows of mine", "https://example.org", ("mine.npy",)

    class Settings(DataSettings):
        name: Literal["mine"] = "mine"
        root: Path

    @classmethod
    def load(cls, settings, seed):
        rows = np.load(cls.home(settings.root) / "mine.npy", allow_pickle=False)
        names, classes = np.array(list("abcdef") * 10), dict(zip("abcdef", np.eye(6)))
        train = (names != "f") & (np.arange(60) < 48)
        return Benchmark.from_arrays(
            rows[train], names[train], classes, test=(rows[~train], names[~train]), validation=["e"]
        )
"""
