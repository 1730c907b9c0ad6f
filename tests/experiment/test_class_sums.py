"""A party adds classes to a finished run by their sums: as if its samples had come along, which they do not."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedunseen import Experiment, load_run, run
from fedunseen.cli.main import main
from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.registry import find
from fedunseen.data import Benchmark
from fedunseen.data.benchmarks.folder import write_folder
from fedunseen.experiment.class_sums import read_all_class_sums, read_class_sums, write_class_sums
from fedunseen.experiment.forget import forget

FEW = {"data.train_per_class": 10, "data.test_per_class": 8, "evaluation.embedding": False, "data.features": ["centre"]}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Give a run of Gaussian classes on digit-pairs, its features scaled."""
    told = {**FEW, "evaluation.selection": "last"}
    return run(Experiment.load("digit-pairs-gaussian", told), tmp_path_factory.mktemp("sums") / "run")


@pytest.fixture(scope="module")
def party(done, tmp_path_factory):
    """Give a party's folder: samples of an unseen class of the run and of a new one; and these."""
    whole = find("data", "digit-pairs").load(done.experiment.data, 0)
    old, other = (int(c) for c in done.space.unseen[:2])
    description = done.space.semantics[3] + done.space.semantics[97]
    names = (*done.space.names, "okapi")
    new = len(names) - 1
    rows = [whole.features[whole.labels == c] for c in (old, other)]
    space = replace(
        done.space,
        names=names,
        semantics=np.concatenate([done.space.semantics, description[None]]),
        seen=np.sort(np.append(done.space.seen, [old, new])),
        unseen=np.setdiff1d(done.space.unseen, [old]),
    )
    labels = np.repeat([old, new], [len(rows[0]), len(rows[1])])
    everyone = np.arange(len(labels))
    nobody = np.zeros(0, dtype=np.int64)
    benchmark = Benchmark("party", space, np.concatenate(rows), labels, everyone, nobody, nobody, part=True)
    folder = tmp_path_factory.mktemp("party")
    write_folder(folder, benchmark, everyone, "train")
    return folder, {done.space.names[old]: rows[0], "okapi": rows[1]}, {"okapi": description}


def command(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["fedunseen", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr()


@pytest.mark.slow
def test_a_party_s_sums_teach_what_its_samples_would(done, party, tmp_path, monkeypatch, capsys):
    folder, samples, described = party
    file = tmp_path / "okapi.safetensors"
    code, said = command(monkeypatch, capsys, "sums", done.path, "--data", folder, "--out", file, "--json")
    assert not code, said.err
    assert json.loads(said.out)["samples"] == {name: len(rows) for name, rows in samples.items()}
    code, said = command(monkeypatch, capsys, "learn", done.path, "--sums", file, "--out", tmp_path / "new", "--json")
    assert not code, said.err
    assert json.loads(said.out)["learnt"] == ["okapi"]
    learnt, wanted = load_run(tmp_path / "new"), done.learn(described, samples)
    assert learnt.space.names == wanted.space.names
    assert learnt.params.keys() == wanted.params.keys()
    for name, value in wanted.params.items():
        assert torch.equal(learnt.params[name], value), name
    rows = samples["okapi"][:3]
    assert learnt.predict(rows, among="unseen") == wanted.predict(rows, among="unseen")
    assert "okapi" in {one[0].name for one in learnt.predict(rows)}
    # What travels: one row for each class, whatever the number of samples.
    assert {name: tuple(value.shape) for name, value in load_file(file).items()} == {
        "count": (2,),
        "total": (2, 128),
        "semantics": (2, done.space.attributes),
    }
    code, said = command(monkeypatch, capsys, "sums", done.path, "--data", folder, "--out", file)
    assert code == 2
    assert "okapi.safetensors exists already: name another file with --out" in said.err
    code, said = command(
        monkeypatch, capsys, "learn", done.path, "--sums", file, "--support", folder, "--out", tmp_path / "both"
    )
    assert code == 2
    assert "--sums brings its own descriptions and examples: learn from it and from others in turn" in said.err
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("infinite", "the sums of the class 'okapi' hold numbers that cannot be sums: leave it out"),
        ("half a sample", "the sums of the class 'okapi' hold numbers that cannot be sums: leave it out"),
        ("no sample", "the sums of the class 'okapi' hold numbers that cannot be sums: leave it out"),
        (
            "narrow",
            "the sums are over features of 127 numbers, but this run's model takes 128: let the party make them with "
            "this run",
        ),
        ("short", "is not a file of sums, or is damaged: let the party write it again with fedunseen sums"),
        ("text", "is not a file of sums, or is damaged: let the party write it again with fedunseen sums"),
        ("unnamed", "is not a file of sums, or is damaged: let the party write it again with fedunseen sums"),
        ("unmade", "is not a file of sums, or is damaged: let the party write it again with fedunseen sums"),
        ("twice", "is not a file of sums, or is damaged: let the party write it again with fedunseen sums"),
        (
            "attributes",
            "the attributes are not those of this run, in their order: start from the run's classes.csv and add a "
            "line for each new class",
        ),
        ("otherwise", "is described otherwise than in this run: give the party the run's classes.csv, or rename the"),
        ("nothing said", "the class 'okapi' has NaN or infinite attributes"),
        ("spelling", "the sums are of 'okapi', and there is a class 'Okapi': let the party name it 'Okapi'"),
    ],
)
def test_what_does_not_fit_is_one_sentence(done, party, tmp_path, change, sentence):
    file = tmp_path / "sums.safetensors"
    write_class_sums(done, party[0], file)
    tensors = load_file(file)
    names, attributes = [*party[1]], list(done.space.attribute_names)
    if names[0] != "okapi":
        assert tensors["count"][1] == len(party[1]["okapi"])
    if change == "infinite":
        tensors["total"][1, 5] = torch.inf
    elif change in ("half a sample", "no sample"):
        tensors["count"][1] = 0.5 if change == "half a sample" else 0
    elif change == "narrow":
        tensors["total"] = tensors["total"][:, 1:].contiguous()
    elif change == "short":
        tensors["count"] = tensors["count"][1:]
    elif change == "attributes":
        attributes = attributes[::-1]
    elif change == "otherwise":
        tensors["semantics"][0] *= 2
    elif change == "nothing said":
        tensors["semantics"][1] = torch.nan
    elif change == "spelling":
        done = done.learn({"Okapi": party[2]["okapi"]})
    elif change == "twice":
        names[0] = names[1]
    with safe_open(file, "pt") as written:
        made = written.metadata()["made"]
    told = {"classes": json.dumps({"names": names, "attributes": attributes}), "made": made}
    if change in ("unnamed", "unmade"):
        del told["classes" if change == "unnamed" else "made"]
    save_file(tensors, file, told)
    if change == "text":
        file.write_text("no tensors")
    with pytest.raises(DataError) as caught:
        read_class_sums(done, file)
    assert sentence in str(caught.value)


def test_a_trained_method_takes_no_sums(done, party, tmp_path):
    told = {"strategy.rounds": 1, "evaluation.selection": "last", "data.train_per_class": 4, "data.test_per_class": 2}
    trained = run(Experiment.load("digit-pairs", {**told, "evaluation.embedding": False}), tmp_path / "run")

    def write():
        write_class_sums(trained, party[0], tmp_path / "x")

    def read():
        read_class_sums(trained, party[0])

    for use in (write, read):
        with pytest.raises(ExperimentError, match=r"^method.name = 'fedzsl' cannot learn from sums once it is trained"):
            use()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"data.features": ["standard"]}, "how features are scaled"),
        ({"data.features": ["centre"], "data.train_per_class": 9}, "how features are scaled"),
        ("other classes", "the seen classes"),
    ],
)
def test_sums_of_another_run_are_refused(done, party, tmp_path, change, what):
    file = tmp_path / "sums.safetensors"
    write_class_sums(done, party[0], file)
    if change == "other classes":
        other = replace(done)
        space = replace(done.space, seen=done.space.seen[1:], unseen=np.sort(np.append(done.space.unseen, 0)))
        other.__dict__["space"] = space
        other.__dict__["scaler"] = done.scaler
    else:
        told = {**FEW, "evaluation.selection": "last", **change}
        other = run(Experiment.load("digit-pairs-gaussian", told), tmp_path / "run")
    with pytest.raises(DataError) as caught:
        read_class_sums(other, file)
    assert str(caught.value) == (
        f"{file}: the sums were made with another run: it differs in {what}: let the party make them with this run, or "
        "a copy of it"
    )


def test_sums_made_before_a_run_learnt_classes_still_fit(done, party, tmp_path):
    file = tmp_path / "sums.safetensors"
    write_class_sums(done, party[0], file)
    grown = done.learn({"unicorn": done.space.semantics[5] + done.space.semantics[62]})
    assert set(read_class_sums(grown, file)[0]) == {"okapi"}


def test_the_files_of_two_parties_teach_what_one_of_both_would(done, party, tmp_path, monkeypatch, capsys):
    folder, samples, described = party
    whole, halves = tmp_path / "whole.safetensors", [tmp_path / f"{name}.safetensors" for name in "ab"]
    write_class_sums(done, folder, whole)
    with safe_open(whole, "pt") as file:
        about = file.metadata()
    tensors = load_file(whole)
    for path, share in zip(halves, (0.25, 0.75), strict=True):
        part = {name: value * (1 if name == "semantics" else share) for name, value in tensors.items()}
        save_file(part, path, about)
    words = ["learn", done.path, "--out", tmp_path / "new", *(word for path in halves for word in ("--sums", path))]
    code, said = command(monkeypatch, capsys, *words)
    assert not code, said.err
    learnt, wanted = load_run(tmp_path / "new"), done.learn(described, samples)
    for name, value in wanted.params.items():
        assert torch.allclose(learnt.params[name], value, rtol=1e-9, atol=1e-12), name
    with pytest.raises(DataError, match=r"^--sums names a file twice: its samples would count twice, so give it once$"):
        read_all_class_sums(done, [whole, whole])
    tensors["semantics"][sorted(samples).index("okapi")] += 1
    save_file(tensors, halves[1], about)
    with pytest.raises(DataError) as caught:
        read_all_class_sums(done, [whole, halves[1]])
    assert str(caught.value) == (
        f"{halves[1]}: the class 'okapi' is described otherwise than in {whole}: let both parties use one description, "
        "or rename one of the classes"
    )


@pytest.mark.slow
def test_the_total_alone_gives_the_same_model_and_forgets_as_exactly(done, tmp_path):
    told = {**FEW, "evaluation.selection": "last", "method.retention": "total"}
    total = run(Experiment.load("digit-pairs-gaussian", told), tmp_path / "run")
    for name, value in done.params.items():
        assert torch.equal(total.params[name], value), name
    kept = {path.name: [*load_file(path)] for path in (total.path / "checkpoints").rglob("*.safetensors")}
    assert kept
    assert not [name for names in kept.values() for name in names if "client/" in name]
    left = [forget(one, "3", tmp_path / f"without-{i}").result["sums_sha256"] for i, one in enumerate((done, total))]
    assert left[0] == left[1]
