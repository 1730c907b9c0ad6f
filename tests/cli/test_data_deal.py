"""``fedunseen data deal`` and ``data encode``: what is written is what a run deals and what a benchmark holds."""

import json
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
from published_layouts import write_image, write_sentiment140


def read(folder):
    return Folder.load(Folder.Settings(root=folder, part=True), 5)


def same_space(one, other):
    assert (one.names, one.attribute_names) == (other.names, other.attribute_names)
    assert one.attribute_groups == other.attribute_groups
    assert one.semantics.tobytes() == other.semantics.tobytes()
    for split in ("seen", "validation", "unseen"):
        assert getattr(one, split).tolist() == getattr(other, split).tolist()


def same_samples(own, whole, ids):
    assert (own.features.dtype, own.image_shape) == (whole.features.dtype, whole.image_shape)
    assert own.features.shape[1:] == whole.features.shape[1:]
    assert own.features.tobytes() == np.ascontiguousarray(whole.features[ids]).tobytes()
    for name, rows in (("labels", ids), ("users", ids), ("answers", slice(None))):
        found, expected = getattr(own, name), getattr(whole, name)
        assert (found is None) == (expected is None)
        assert expected is None or found.tolist() == expected[rows].tolist()


def check(out, experiment, names):
    """Compare folders with the experiment's benchmark and partition; return the benchmark."""
    whole = find("data", experiment.data.name).load(experiment.data, experiment.run.seed)
    partition = partition_of(experiment, whole, experiment.run.seed)
    assert sorted(path.name for path in out.iterdir()) == sorted([*names, "coordinator"])
    for name, ids in zip(names, partition.clients, strict=True):
        own = read(out / name)
        same_space(own.space, whole.space)
        same_samples(own, whole, ids)
        assert (len(own.train), len(own.test_seen), len(own.test_unseen)) == (len(ids), 0, 0)
    tests = np.union1d(whole.test_seen, whole.test_unseen)
    held = read(out / "coordinator")
    same_space(held.space, whole.space)
    same_samples(held, whole, tests)
    assert len(held.train) == 0
    assert tests[held.test_seen].tolist() == whole.test_seen.tolist()
    assert tests[held.test_unseen].tolist() == whole.test_unseen.tolist()
    return whole, np.sort(np.concatenate(partition.clients))


@pytest.fixture
def dealt(command, tmp_path):
    """Deal an experiment and compare the folders; return the benchmark and the ids of what was dealt."""

    def deal(name, settings):
        assert command("data", "deal", name, *sets(settings), "--out", tmp_path / "parties").code == 0
        names = [f"client-{k}" for k in range(settings["partition.clients"])]
        return check(tmp_path / "parties", Experiment.load(name, settings), names)

    return deal


def test_the_parties_hold_together_what_there_is_to_train_on(command, tmp_path):
    out, settings = tmp_path / "parties", {"partition.clients": 3, "run.seed": 4}
    done = command("data", "deal", "digit-pairs", *sets(settings), "--out", out, "--parties", "north, south,west",
                   "--json")  # fmt: skip
    assert done.code == 0
    result = json.loads(done.out)
    whole, dealt = check(out, Experiment.load("digit-pairs", settings), ["north", "south", "west"])
    assert dealt.tolist() == whole.train.tolist()
    assert (result["out"], result["seed"], result["data"]) == (str(out), 4, {"name": "folder", "part": True})
    parties = result["parties"]
    assert [one["name"] for one in parties] == ["north", "south", "west"]
    counts = [sum(one[key] for one in parties) for key in ("samples", "classes")]
    assert counts == [len(whole.train), len(whole.space.seen)]
    assert result["coordinator"] == {
        "name": "coordinator", "folder": str(out / "coordinator"), "samples": 3000, "classes": 100,
    }  # fmt: skip


def test_it_says_what_to_do_with_the_folders(command, tmp_path):
    out = tmp_path / "parties"
    done = command("data", "deal", "digit-pairs", "--set", "partition.clients=2", "--set", "data.features=['centre']",
                   "--out", out)  # fmt: skip
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
    whole, ids = dealt(DIGITS_MAML, {"partition.clients": 2})
    assert whole.image_shape == (8, 8)
    assert ids.tolist() == whole.train.tolist()


def test_sequences_users_and_answers_are_dealt(dealt, tmp_path):
    write_sentiment140(tmp_path / "tweets" / "mine.csv")
    (tmp_path / "vectors.txt").write_text("good 1 0\nbad 0 1\nday 0.3 0.1\n")
    settings = {
        "data.root": str(tmp_path / "tweets"), "data.vectors": str(tmp_path / "vectors.txt"), "partition.clients": 3,
    }  # fmt: skip
    whole, ids = dealt("sent140-maml-mi-adv", settings)
    assert (whole.kind, whole.features.dtype, len(whole.space.validation)) == ("sequences", np.float16, 2)
    validation = np.isin(whole.labels[whole.train], whole.space.validation)
    assert ids.tolist() == whole.train[~validation].tolist()  # tweets of validation users are no one's


def test_images_are_dealt_as_they_are(dealt, tmp_path):
    root = tmp_path / "photos"
    for c, name in enumerate(("cat", "dog", "wolf")):
        for i in range(5):
            write_image(root / name / f"{i}.png", 10 * c + i)
    (root / "classes.csv").write_text("name,split,size: a,size: b\ncat,seen,0.1,1e-30\ndog,seen,1,2\nwolf,unseen,3,4\n")
    settings = {
        "data.name": "images", "data.root": str(root), "data.size": 8, "encoder.name": "conv", "partition.clients": 2,
    }  # fmt: skip
    whole, _ = dealt("digit-pairs-conv", settings)
    assert whole.kind == read(tmp_path / "parties" / "client-0").kind == "images"
    assert whole.features.dtype == np.uint8


def test_whoever_shares_samples_has_them_each(dealt):
    dealt("digit-pairs", {"partition.clients": 3, "partition.kind": "iid", "partition.rho": 0.5})


# What goes wrong


def test_a_part_is_not_dealt_again(command, refused, tmp_path):
    out = tmp_path / "parties"
    assert command("data", "deal", "digit-pairs", "--set", "partition.clients=2", "--out", out).code == 0
    again = ("--set", "data.name=folder", "--set", f"data.root={out / 'client-1'}", "--set", "data.part=true")
    assert refused("data", "deal", "digit-pairs", *again, "--out", tmp_path / "more") == (
        "folder/client-1 is but a part of a benchmark (data.part = true): deal the whole one"
    )
    with pytest.raises(DataError, match=re.escape("folder/client-1 has no test sample of a seen class")):
        Folder.load(Folder.Settings(root=out / "client-1"), 0)
    assert command("data", "check", out / "client-1", "--set", "data.part=true").code == 0
    done = command("data", "check", out / "client-1")  # a party is never told to change the table that all share
    assert done.code == 0
    assert done.out.endswith(f'[data]\nname = "folder"\nroot = "{out / "client-1"}"\npart = true\n')
    assert "; no test sample of a seen class; no sample of an unseen class\n" in done.out


SMALL = {"data.train_per_class": 10, "data.test_per_class": 4, "evaluation.selection": "last"}


def test_what_is_written_is_what_the_benchmark_holds(tmp_path):
    experiment = Experiment.load("digit-pairs-gaussian", SMALL)
    result = encode(experiment, tmp_path / "pairs")
    whole = load_data(experiment, 0)
    assert result["samples"] == len(whole.features)
    settings = Xlsa17.Settings(**{**result["data"], "attributes": "original_att"})
    read = Xlsa17.load(settings, seed=3)
    np.testing.assert_array_equal(read.features, whole.features.astype(np.float32))
    for name in ("labels", "train", "test_seen", "test_unseen"):
        assert getattr(read, name).tolist() == getattr(whole, name).tolist()
    assert read.space.names == whole.space.names
    for split in ("seen", "validation", "unseen"):
        assert getattr(read.space, split).tolist() == getattr(whole.space, split).tolist()
    np.testing.assert_allclose(read.space.semantics, whole.space.semantics, atol=1e-12)
    assert read.space.attribute_groups == whole.space.attribute_groups
    unit = Xlsa17.load(Xlsa17.Settings(**result["data"]), seed=3).space.semantics
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
def test_pictures_become_an_encoders_features(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch")
    for c, name in enumerate(["cat", "dog", "owl"]):
        for i in range(3):
            write_image(tmp_path / "data" / name / f"{i}.png", 10 * c + i, (24, 24))
    table = "name,split,legs,wings\ncat,seen,4,0\ndog,seen,4,1\nowl,unseen,2,2\n"
    (tmp_path / "data" / "classes.csv").write_text(table)
    settings = {
        "data.name": "images", "data.root": str(tmp_path / "data"), "data.size": 24, "method.name": "gaussian",
        "encoder.name": "efficientnet-lite", "evaluation.selection": "last",
    }  # fmt: skip
    experiment = Experiment.from_dict({}, settings, "photos")
    result = encode(experiment, tmp_path / "features")
    assert result["numbers"] == 1280
    read = Xlsa17.load(Xlsa17.Settings(**result["data"]), seed=0)
    np.testing.assert_array_equal(read.features, load_data(experiment, 0).features)


def test_the_command_says_the_section_that_uses_it(command, tmp_path):
    done = command("data", "encode", "digit-pairs-gaussian", *sets(SMALL), "--out", tmp_path / "pairs")
    assert 'name = "xlsa17"' in done.out, done.err
