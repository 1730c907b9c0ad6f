"""``fedunseen data deal`` and ``data encode``: what is written is what a run deals and what a benchmark holds."""

import re

import numpy as np
import pytest

from fedunseen import Experiment, run
from fedunseen.core.errors import DataError
from fedunseen.core.registry import find
from fedunseen.data.benchmarks.folder import Folder
from fedunseen.data.benchmarks.xlsa17 import Xlsa17
from fedunseen.experiment.assemble import load_data, partition_of
from fedunseen.tools.encode import encode
from known_names import DIGITS_MAML
from processes import sets

SMALL = {"data.train_per_class": 10, "data.test_per_class": 4, "evaluation.selection": "last"}


def read(folder):
    return Folder.load(Folder.Settings(root=folder, part=True), 5)


def content(data, ids=slice(None)):
    """Return what a benchmark holds of some samples, and all that it says of classes."""
    features = data.features[ids]
    of_samples = [rows if rows is None else rows[ids].tolist() for rows in (data.labels, data.users)]
    answers = data.answers if data.answers is None else data.answers.tolist()
    space = data.space.hashes(), data.space.validation.tolist()
    return features.dtype, features.shape, data.image_shape, of_samples, answers, space, features.tobytes()


@pytest.fixture
def dealt(works, tmp_path):
    """Deal an experiment and compare the folders; return what is said, the benchmark and the ids of what was dealt."""

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
        assert len(held.train) == 0
        assert tests[held.test_seen].tolist() == whole.test_seen.tolist()
        assert tests[held.test_unseen].tolist() == whole.test_unseen.tolist()
        return done, whole, np.sort(np.concatenate(clients))

    return deal


def test_the_parties_hold_together_what_there_is_to_train_on(dealt, tmp_path):
    names, out = ["north", "south", "west"], tmp_path / "parties"
    words = "--parties", "north, south,west", "--json"
    done, whole, ids = dealt("digit-pairs", {"partition.clients": 3, "run.seed": 4}, names, *words)
    assert ids.tolist() == whole.train.tolist()
    result, parties = done.answer, done.answer["parties"]
    assert (result["out"], result["seed"], result["data"]) == (str(out), 4, {"name": "folder", "part": True})
    assert [one["name"] for one in parties] == names
    counts = [sum(one[key] for one in parties) for key in ("samples", "classes")]
    assert counts == [len(whole.train), len(whole.space.seen)]
    place = {"name": "coordinator", "folder": str(out / "coordinator")}
    assert result["coordinator"] == {**place, "samples": 3000, "classes": 100}


def test_it_says_what_to_do_with_the_folders(works, tmp_path):
    out, words = tmp_path / "parties", sets({"partition.clients": 2, "data.features": ["centre"]})
    done = works("data", "deal", "digit-pairs", *words, "--out", out)
    assert done.out.splitlines() == [
        f"{out}: 2 parties and a coordinator, dealt with run.seed = 0",
        "  client-0     2,400 training samples of 40 classes",
        "  client-1     2,400 training samples of 40 classes",
        "  coordinator  3,000 test samples of 100 classes",
        f"a party gives its folder to `fedunseen join --data {out / 'client-0'}`; the coordinator's experiment has",
        "[data]", 'name = "folder"', "part = true", 'features = ["centre"]', f'root = "{out / "coordinator"}"',
    ]  # fmt: skip
    rest = '[method]\nname = "fedzsl"\n[strategy]\nname = "fedavg"\n'
    (tmp_path / "mine.toml").write_text(done.out.partition("experiment has\n")[2] + rest)
    data = Experiment.load(tmp_path / "mine.toml").data
    held = find("data", data.name).load(data, 0)
    assert (len(held.train), len(held.test_seen) + len(held.test_unseen)) == (0, 3000)


def test_few_shot_classes_are_dealt_without_descriptions(dealt):
    """The digits have no attributes, and no validation class, which no one may draw then."""
    _, whole, ids = dealt(DIGITS_MAML, {"partition.clients": 2})
    assert whole.image_shape == (8, 8)
    assert ids.tolist() == whole.train.tolist()


def test_sequences_users_and_answers_are_dealt(dealt, tweets):
    _, whole, ids = dealt("sent140-maml-mi-adv", {**tweets, "partition.clients": 3})
    assert (whole.kind, whole.features.dtype, len(whole.space.validation)) == ("sequences", np.float16, 2)
    validation = np.isin(whole.labels[whole.train], whole.space.validation)
    assert ids.tolist() == whole.train[~validation].tolist()  # tweets of validation users are no one's


def test_images_are_dealt_as_they_are(dealt, photos, tmp_path):
    table = "name,split,size: a,size: b\ncat,seen,0.1,1e-30\ndog,seen,1,2\nwolf,unseen,3,4\n"
    settings = {"data.name": "images", "data.root": str(photos(tmp_path / "photos", table, 5)), "data.size": 8}
    _, whole, _ = dealt("digit-pairs-conv", {**settings, "encoder.name": "conv", "partition.clients": 2})
    assert whole.kind == read(tmp_path / "parties" / "client-0").kind == "images"
    assert whole.features.dtype == np.uint8


def test_whoever_shares_samples_has_them_each(dealt):
    dealt("digit-pairs", {"partition.clients": 3, "partition.kind": "iid", "partition.rho": 0.5})


# What goes wrong


def test_a_part_is_not_dealt_again(works, refused, tmp_path):
    works("data", "deal", "digit-pairs", "--set", "partition.clients=2", "--out", tmp_path / "parties")
    part = tmp_path / "parties" / "client-1"
    again = sets({"data.name": "folder", "data.root": str(part), "data.part": True})
    assert refused("data", "deal", "digit-pairs", *again, "--out", tmp_path / "more") == (
        "folder/client-1 is but a part of a benchmark (data.part = true): deal the whole one"
    )
    with pytest.raises(DataError, match=re.escape("folder/client-1 has no test sample of a seen class")):
        Folder.load(Folder.Settings(root=part), 0)
    works("data", "check", part, "--set", "data.part=true")
    shown = works("data", "check", part).out  # a party is never told to change the table that all share
    assert shown.endswith(f'[data]\nname = "folder"\nroot = "{part}"\npart = true\n')
    assert "; no test sample of a seen class; no sample of an unseen class\n" in shown


# What a frozen encoder makes of images


def test_what_is_written_is_what_the_benchmark_holds(works, tmp_path):
    done = works("data", "encode", "digit-pairs-gaussian", *sets(SMALL), "--out", tmp_path / "pairs")
    whole, data = load_data(Experiment.load("digit-pairs-gaussian", SMALL), 0), {"root": tmp_path, "dataset": "pairs"}
    assert done.out.startswith(f"{len(whole.features)} samples of ")
    assert done.out.splitlines()[1] == f'[data]  name = "xlsa17"  root = "{tmp_path}"  dataset = "pairs"'
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
    exact = {"data.quantization": "none"}  # the bounds of gray values are known to the benchmark, not to its files
    experiment = Experiment.load("digit-pairs-gaussian", {**SMALL, **exact})
    data = encode(experiment, tmp_path / "pairs")["data"]
    keys = {f"data.{key}": value for key, value in data.items()} | exact
    keys |= {"data.attributes": "original_att", "evaluation.selection": "last"}
    again = Experiment.load("digit-pairs-gaussian", keys)
    first, second = run(experiment, tmp_path / "first").result, run(again, tmp_path / "second").result
    for name in ("zsl", "gzsl_harmonic"):
        assert second[name] == pytest.approx(first[name], abs=1e-6)


@pytest.mark.slow
def test_pictures_become_an_encoders_features(photos, tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch")
    table = "name,split,legs,wings\ncat,seen,4,0\ndog,seen,4,1\nowl,unseen,2,2\n"
    settings = {"data.name": "images", "data.root": str(photos(tmp_path / "data", table, 3, (24, 24)))}
    settings |= {"data.size": 24, "encoder.name": "efficientnet-lite"}
    settings |= {"method.name": "gaussian", "evaluation.selection": "last"}
    experiment = Experiment.from_dict({}, settings, "photos")
    result = encode(experiment, tmp_path / "features")
    assert (result["samples"], result["numbers"]) == (9, 1280)
    read = Xlsa17.load(Xlsa17.Settings(**result["data"]), seed=0)
    np.testing.assert_array_equal(read.features, load_data(experiment, 0).features)
