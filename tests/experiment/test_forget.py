"""Clients that are forgotten, samples that are removed, and sums that add classes: as if from the
start.
"""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from fedunseen import Benchmark, Experiment, load_run, run
from fedunseen.cli.main import app
from fedunseen.core.errors import ExperimentError
from fedunseen.data.benchmarks.folder import write_folder
from fedunseen.experiment.assemble import load_data, partition_of
from fedunseen.experiment.changed import read_all_class_sums, read_class_sums, write_class_sums
from fedunseen.experiment.forget import forget, write_removal
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.methods.closed_form.statistics import statistics, sums_sha256
from processes import command
from refusals import message_of
from same import same
from small_runs import LAST

LATE = {**LAST, "data.features": ["l2"], "partition.join": {"2": 2}}


@pytest.fixture(scope="module")
def late(make, tmp_path_factory):
    """A run in which client 2 comes in the third of four rounds."""
    return run(make({**LATE, "run.forgettable": True}), tmp_path_factory.mktemp("late") / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "again", "others"), [(2, 2, [[0, 1]] * 4), (0, 4, [[1], [1], [1, 2], [1, 2]])]
)
def test_a_client_is_forgotten_from_the_round_on_in_which_it_came(
    client, again, others, late, ran, tmp_path
):
    left = forget(late, str(client), tmp_path / "left")
    assert same(left, ran({**LATE, "partition.without": [client]}, "anew"))
    assert not same(left, late)
    assert left.result["rounds_trained_again"] == again
    assert [line["participants"] for line in left.metrics] == others
    assert left.result["forgotten"] == [str(client)] == left.manifest["forgotten"]
    if client == 2:
        assert (
            left.metrics[0]["seconds"] == late.metrics[0]["seconds"]
        )  # the first two rounds are those of the run
    else:
        assert forget(left, "2", tmp_path / "less").result["forgotten"] == ["0", "2"]


def test_states_are_kept_before_somebody_comes_and_only_if_asked_for(late, ran):
    plain = ran(LATE, "plain")
    kept = [
        [path.name for path in (one.path / "checkpoints").glob("before-*")] for one in (late, plain)
    ]
    assert kept == [["before-000003.safetensors"], []]
    assert same(plain, late)


def test_what_cannot_be_forgotten_is_one_sentence(ran, make, tmp_path):
    sentence = message_of(make, {**LATE, "partition.without": [7]}, error=ExperimentError)
    assert "partition.without: there is no client 7: the 3 clients are" in sentence
    alone = ran({**LATE, "strategy.name": "local", "strategy.rounds": 1, "partition.join": {}})
    sentence = message_of(forget, alone, "0", tmp_path / "left", error=ExperimentError)
    assert "under strategy.name = 'local' no party's updates are merged: run" in sentence
    manifest = json.loads((alone.path / "manifest.json").read_text())
    manifest["experiment"] |= {
        "strategy": {"name": "fedavg"},
        "engine": {"name": "flower", "mode": "deployment"},
    }
    (alone.path / "manifest.json").write_text(json.dumps(manifest))
    sentence = message_of(
        forget, load_run(alone.path), "0", tmp_path / "left", error=ExperimentError
    )
    assert "method.name = 'fedzsl' is trained, so that every party is in every" in sentence
    assert not (tmp_path / "left").exists()


SUMS = {
    "data.train_per_class": 8,
    "data.test_per_class": 4,
    "partition.clients": 4,
    "method.shrinkage": 0.1,
    **LAST,
}


def gaussian(settings):
    return Experiment.load("digit-pairs-gaussian", settings)


OTHERS = ({"method.retention": "total"}, {"privacy.aggregation": "masked"})


@pytest.mark.parametrize(
    "options", [{}, *(pytest.param(other, marks=pytest.mark.slow) for other in OTHERS)]
)
def test_what_is_removed_from_integer_sums_was_never_there(options, tmp_path):
    done = run(gaussian({**SUMS, **options}), tmp_path / "run")
    never = run(gaussian({**SUMS, "partition.without": [1]}), tmp_path / "never")
    left = forget(done, "1", tmp_path / "left")
    assert left.result["sums_sha256"] == never.result["sums_sha256"] != done.result["sums_sha256"]
    assert same(left, never)
    kept = [
        name
        for path in (done.path / "checkpoints").rglob("*.safetensors")
        for name in load_file(path)
    ]
    assert kept
    assert "method.retention" not in options or not any("client/" in name for name in kept)
    samples = list(range(0, 50, 2))
    fewer = forget(done, "2", tmp_path / "fewer", samples)
    benchmark = load_data(done.experiment, 0)
    own = partition_of(done.experiment, benchmark, 0).clients[2]
    rows = np.setdiff1d(benchmark.train, own[samples])
    codes, _ = done.scaler.codes(benchmark.features[rows])
    labels, quantization = torch.from_numpy(benchmark.labels[rows]), done.method.quantization
    wanted = statistics(torch.from_numpy(codes), labels, benchmark.space, quantization=quantization)
    assert fewer.result["sums_sha256"] == sums_sha256(wanted, quantization)
    assert fewer.result["forgotten"] == ["25 samples of 2"]
    if not options:  # reasons are those of the model that is left
        answers = fewer.evaluation["gzsl_answers"].astype(int)
        tests = benchmark.features[np.r_[benchmark.test_unseen, benchmark.test_seen]]
        likely = fewer.model.probabilities(tests)[np.arange(len(answers)), answers]
        np.testing.assert_allclose(fewer.evaluation["stated"], likely, atol=1e-6)
        assert {"wrong", "wrong_by", "wrong_share"} <= fewer.evaluation.keys()
    for again in (range(len(own)), samples[:20]):  # the counts alone do not tell the second
        assert "never a part of" in message_of(forget, fewer, "2", tmp_path / "twice", again)
    sentence = message_of(forget, done, "2", tmp_path / "few", samples[:3], error=ExperimentError)
    assert "remove at least 20 at once" in sentence
    assert forget(done, "2", tmp_path / "few", samples[:3], consent=True).result["forgotten"] == [
        "3 samples of 2"
    ]


@pytest.mark.slow
def test_a_party_writes_what_is_to_be_removed(folder, make_folder, tmp_path):
    def first_three_classes(rows, arrays):
        arrays.update({name: values[arrays["labels"] < 3] for name, values in arrays.items()})

    party = make_folder(tmp_path / "party", first_three_classes)
    data = {
        "data.name": "folder",
        "data.root": str(folder),
        "method.shrinkage": 0.1,
        "partition.kind": "pccd",
    }
    done = run(
        gaussian({**LAST, **data, "partition.clients": 4, "privacy.aggregation": "masked"}),
        tmp_path / "run",
    )
    file = tmp_path / "removal.safetensors"
    assert write_removal(done, party, file, range(4, 26)) == 22
    left = forget(done, "1", tmp_path / "left", removal=file)
    totals = [
        RunDirectory(one.path).newest_checkpoint(torch.device("cpu")).params["count"]
        for one in (done, left)
    ]
    assert (totals[0] - totals[1]).tolist() == [6, 10, 6] + [0] * 9
    assert "is not a removal from" in message_of(
        forget, done, "1", tmp_path / "no", removal=party / "classes.csv"
    )


FEW = {"data.train_per_class": 10, "data.test_per_class": 8, "data.features": ["centre"], **LAST}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Give a run of Gaussian classes on digit-pairs, its features scaled."""
    return run(gaussian(FEW), tmp_path_factory.mktemp("sums") / "run")


@pytest.fixture(scope="module")
def party(done, tmp_path_factory):
    """Give a party's folder: samples of an unseen class of the run and of a new one; and these."""
    whole, (old, other), new = (
        load_data(done.experiment, 0),
        done.space.unseen[:2].tolist(),
        len(done.space.names),
    )
    description = done.space.semantics[3] + done.space.semantics[97]
    rows = [whole.features[whole.labels == c] for c in (old, other)]
    names, semantics = (
        (*done.space.names, "okapi"),
        np.concatenate([done.space.semantics, description[None]]),
    )
    seen, unseen = np.union1d(done.space.seen, [old, new]), np.setdiff1d(done.space.unseen, [old])
    space = replace(done.space, names=names, semantics=semantics, seen=seen, unseen=unseen)
    labels = np.repeat([old, new], [len(rows[0]), len(rows[1])])
    everyone, nobody = np.arange(len(labels)), np.zeros(0, dtype=np.int64)
    benchmark = Benchmark(
        "party", space, np.concatenate(rows), labels, everyone, nobody, nobody, part=True
    )
    folder = tmp_path_factory.mktemp("party")
    write_folder(folder, benchmark, everyone, "train")
    return folder, {done.space.names[old]: rows[0], "okapi": rows[1]}, {"okapi": description}


@pytest.mark.slow
def test_a_party_s_sums_teach_what_its_samples_would(done, party, tmp_path):
    folder, samples, described = party
    file = tmp_path / "okapi.safetensors"
    command("sums", done.path, "--data", folder, "--out", file)
    command("learn", done.path, "--sums", file, "--out", tmp_path / "new")
    learnt, wanted = load_run(tmp_path / "new"), done.learn(described, samples)
    assert learnt.space.names == wanted.space.names
    assert same(learnt, wanted.params)
    rows = samples["okapi"][:3]
    assert learnt.predict(rows, among="unseen") == wanted.predict(rows, among="unseen")
    assert "okapi" in {one[0].name for one in learnt.predict(rows)}
    # What travels: one row for each class, whatever the number of samples.
    shapes = {name: tuple(value.shape) for name, value in load_file(file).items()}
    assert shapes == {"count": (2,), "total": (2, 128), "semantics": (2, done.space.attributes)}
    sentence = message_of(write_class_sums, done, folder, file, error=ExperimentError)
    assert "exists already: name another file with --out" in sentence


def test_a_class_with_few_samples_is_in_no_file_of_sums(done, party, tmp_path):
    """The same sample counts once, however often it is saved."""
    folder, samples, _ = party
    arrays = dict(np.load(folder / "features.npz"))
    length = len(next(iter(samples.values())))
    few = [*range(length), *(length + place for place in (0, 1, 2, 3, 3, 3))]
    (tmp_path / "few").mkdir()
    shutil.copy2(folder / "classes.csv", tmp_path / "few")
    np.savez(tmp_path / "few/features.npz", **{
        name: values[few] if len(values) > length else values for name, values in arrays.items()
    })  # fmt: skip
    words = ["sums", str(done.path), "--data", str(tmp_path / "few"), "--out"]
    result = CliRunner().invoke(app, [*words, str(tmp_path / "a.safetensors")])
    assert "left out of all sums, since fewer than 5 samples are here: okapi (4); " in result.output
    assert load_file(tmp_path / "a.safetensors")["count"].tolist() == [length]
    _, left_out = write_class_sums(done, tmp_path / "few", tmp_path / "b.safetensors", 4)
    assert not left_out
    sentence = message_of(write_class_sums, done, tmp_path / "few", tmp_path / "c", 100)
    assert "give --min-samples 1 to write every class" in sentence


NUMBERS = "the sums of the class 'okapi' hold numbers that cannot be sums: leave it out"
DAMAGED = "is not a file of sums, or is damaged: let the party write it again with fedunseen sums"


def put(name, place, value):
    return lambda tensors, about: tensors[name].__setitem__(place, value)


def cut(name, place):
    return lambda tensors, about: tensors.update({name: tensors[name][place].contiguous()})


@pytest.fixture
def sums(done, party, tmp_path):
    """A party's file of sums, its tensors and what it says of them."""
    file = tmp_path / "sums.safetensors"
    write_class_sums(done, party[0], file)
    with safe_open(file, "pt") as written:
        return file, load_file(file), written.metadata()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (put("total", (1, 5), torch.inf), NUMBERS),
        (put("count", 1, 0.5), NUMBERS),
        (put("count", 1, 0), NUMBERS),
        (cut("total", (slice(None), slice(1, None))), "the sums are over features of 127 numbers"),
        (cut("count", slice(1, None)), DAMAGED),
        (lambda tensors, about: about.pop("classes"), DAMAGED),
        (lambda tensors, about: about.pop("made"), DAMAGED),
        (lambda tensors, about: about["classes"].update(names=["okapi", "okapi"]), DAMAGED),
        (
            lambda tensors, about: about["classes"]["attributes"].reverse(),
            "the attributes are not those of this run",
        ),
        (
            put("semantics", 0, 7.0),
            "is described otherwise than in this run: give the party the run's classes.csv",
        ),
        (put("semantics", 1, torch.nan), "the class 'okapi' has NaN or infinite attributes"),
        (
            "spelling",
            "the sums are of 'okapi', and there is a class 'Okapi': let the party name it 'Okapi'",
        ),
        ("text", DAMAGED),
    ],
)
def test_what_does_not_fit_is_one_sentence(done, party, sums, change, sentence):
    file, tensors, about = sums
    about = {key: json.loads(value) for key, value in about.items()}
    if change == "spelling":
        done = done.learn({"Okapi": party[2]["okapi"]})
    elif change != "text":
        change(tensors, about)
    save_file(tensors, file, {key: json.dumps(value) for key, value in about.items()})
    if change == "text":
        file.write_text("no tensors")
    assert sentence in message_of(read_class_sums, done, file)


def test_a_trained_method_takes_no_sums(finished, party, tmp_path):
    for use, *more in ((write_class_sums, party[0], tmp_path / "x"), (read_class_sums, party[0])):
        sentence = message_of(use, finished, *more, error=ExperimentError)
        assert sentence.startswith(
            "method.name = 'fedzsl' cannot learn from sums once it is trained"
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"data.features": ["standard"]}, "how features are scaled"),
        ({"data.features": ["centre"], "data.train_per_class": 9}, "how features are scaled"),
        ("other classes", "the seen classes"),
    ],
)
def test_sums_of_another_run_are_refused(done, sums, tmp_path, change, what):
    if change == "other classes":
        other = replace(done)
        space = replace(
            done.space, seen=done.space.seen[1:], unseen=np.sort(np.append(done.space.unseen, 0))
        )
        other.__dict__.update(space=space, scaler=done.scaler)
    else:
        other = run(gaussian({**FEW, **change}), tmp_path / "run")
    assert f"made with another run: it differs in {what}: " in message_of(
        read_class_sums, other, sums[0]
    )


def test_sums_made_before_a_run_learnt_classes_still_fit(done, sums):
    expanded = done.learn({"unicorn": done.space.semantics[5] + done.space.semantics[62]})
    assert set(read_class_sums(expanded, sums[0])[0]) == {"okapi"}


@pytest.mark.slow
def test_the_files_of_two_parties_teach_what_one_of_both_would(done, party, sums, tmp_path):
    _, samples, described = party
    (whole, tensors, about), halves = sums, [tmp_path / f"{name}.safetensors" for name in "ab"]
    for path, share in zip(halves, (0.25, 0.75), strict=True):
        part = {
            name: value * (1 if name == "semantics" else share) for name, value in tensors.items()
        }
        save_file(part, path, about)
    command("learn", done.path, "--out", tmp_path / "new", "--sums", halves[0], "--sums", halves[1])
    learnt, wanted = load_run(tmp_path / "new"), done.learn(described, samples)
    for name, value in wanted.params.items():
        assert torch.allclose(learnt.params[name], value, rtol=1e-9, atol=1e-12), name
    twice = "--sums names a file twice: its samples would count twice, so give it once"
    assert message_of(read_all_class_sums, done, [whole, whole]) == twice
    tensors["semantics"][sorted(samples).index("okapi")] += 1
    save_file(tensors, halves[1], about)
    sentence = message_of(read_all_class_sums, done, [whole, halves[1]])
    assert ": let both parties use one description, or rename one of the classes" in sentence
