"""A trained run forgets a client: it is trained again from the last state that the client had no share in."""

import json

import numpy as np
import pytest
import torch

from fedunseen import Experiment, run
from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.experiment.assemble import load_data, partition_of
from fedunseen.experiment.forget import forget, write_removal
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.methods.closed_form.statistics import statistics, sums_sha256
from same import same

LATE = {
    "evaluation.selection": "last",
    "evaluation.embedding": False,
    "data.features": ["l2"],
    "partition.join": {"2": 2},
}


@pytest.fixture(scope="module")
def late(make, tmp_path_factory):
    """A run in which client 2 comes in the third of four rounds."""
    return run(make({**LATE, "run.forgettable": True}), tmp_path_factory.mktemp("late") / "run")


def test_a_client_that_came_late_is_forgotten_from_there_on(late, make, tmp_path):
    left = forget(late, "2", tmp_path / "left")
    anew = run(make({**LATE, "partition.without": [2]}), tmp_path / "anew")
    assert same(left, anew)
    assert not same(left, late)
    assert left.result["rounds_trained_again"] == 2
    assert [line["participants"] for line in left.metrics] == [[0, 1]] * 4
    assert left.result["forgotten"] == ["2"] == left.manifest["forgotten"]
    assert left.metrics[0]["seconds"] == late.metrics[0]["seconds"]  # the first two rounds are those of the run


def test_a_client_of_the_first_round_is_forgotten_from_the_start(late, make, tmp_path):
    left = forget(late, "0", tmp_path / "left")
    assert left.result["rounds_trained_again"] == 4
    assert same(left, run(make({**LATE, "partition.without": [0]}), tmp_path / "anew"))
    again = forget(left, "2", tmp_path / "less")
    assert again.result["forgotten"] == ["0", "2"]


def test_states_are_kept_before_somebody_comes_and_only_if_asked_for(late, make, tmp_path):
    assert [path.name for path in sorted((late.path / "checkpoints").glob("before-*"))] == ["before-000003.safetensors"]
    plain = run(make(LATE), tmp_path / "plain")
    assert not list((plain.path / "checkpoints").glob("before-*"))
    assert same(plain, late)


def test_what_cannot_be_forgotten_is_one_sentence(late, make, tmp_path):
    with pytest.raises(ExperimentError, match=r"partition\.without: there is no client 7: the 3 clients are"):
        make({**LATE, "partition.without": [7]})
    alone = run(
        make({**LATE, "strategy.name": "local", "strategy.rounds": 1, "partition.join": {}}), tmp_path / "local"
    )
    with pytest.raises(ExperimentError, match=r"under strategy\.name = 'local' no party's updates are merged: run"):
        forget(alone, "0", tmp_path / "left")
    manifest = json.loads((alone.path / "manifest.json").read_text())
    manifest["experiment"] |= {"strategy": {"name": "fedavg"}, "engine": {"name": "flower", "mode": "deployment"}}
    (alone.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ExperimentError, match=r"method\.name = 'fedzsl' is trained, so that every party is in every"):
        forget(type(alone)(alone.path, manifest, alone.result), "0", tmp_path / "left")
    assert not (tmp_path / "left").exists()


SUMS = {
    **{"data.train_per_class": 8, "data.test_per_class": 4, "partition.clients": 4, "evaluation.selection": "last"},
    **{"evaluation.embedding": False, "method.shrinkage": 0.1},
}


@pytest.mark.parametrize("options", [{}, {"method.retention": "total"}, {"privacy.aggregation": "masked"}])
def test_what_is_removed_from_integer_sums_was_never_there(options, tmp_path):
    done = run(Experiment.load("digit-pairs-gaussian", {**SUMS, **options}), tmp_path / "run")
    never = run(Experiment.load("digit-pairs-gaussian", {**SUMS, "partition.without": [1]}), tmp_path / "never")
    left = forget(done, "1", tmp_path / "left")
    assert left.result["sums_sha256"] == never.result["sums_sha256"] != done.result["sums_sha256"]
    assert same(left, never)

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
    rest = [place for place in range(len(own)) if place not in samples]
    for again in (samples + rest, samples[:20]):  # the counts alone do not tell the second
        with pytest.raises(DataError, match=r"never a part of"):
            forget(fewer, "2", tmp_path / "twice", again)
    with pytest.raises(ExperimentError, match="remove at least 20 at once"):
        forget(done, "2", tmp_path / "few", samples[:3])
    assert forget(done, "2", tmp_path / "few", samples[:3], consent=True).result["forgotten"] == ["3 samples of 2"]


def test_a_party_writes_what_is_to_be_removed(tmp_path):
    rows = np.random.default_rng(0).normal(size=(120, 8)).astype(np.float32)
    labels = np.repeat(np.arange(6), 20)
    tables = {name: tmp_path / name for name in ("all", "party")}
    for folder, held in zip(tables.values(), (labels >= 0, labels < 2), strict=True):
        folder.mkdir()
        split = np.where((labels < 4) & (np.arange(120) % 5 > 0), "train", "test")
        np.savez(folder / "features.npz", features=rows[held], labels=labels[held], split=split[held])
        lines = [f"c{c},{'seen' if c < 4 else 'unseen'},{c % 3},{c // 3},1" for c in range(6)]
        (folder / "classes.csv").write_text("\n".join(["name,split,a,b,c", *lines]) + "\n")
    tree = {
        "data": {"name": "folder", "root": str(tables["all"])},
        "method": {"name": "gaussian", "shrinkage": 0.1},
        "partition": {"kind": "pccd", "clients": 2},
        "privacy": {"aggregation": "masked"},
        "evaluation": {"selection": "last", "embedding": False},
    }
    done = run(Experiment.from_dict({**tree, "partition": {**tree["partition"], "clients": 4}}), tmp_path / "run")
    file = tmp_path / "removal.safetensors"
    assert write_removal(done, tables["party"], file, range(10, 32)) == 22
    left = forget(done, "1", tmp_path / "left", removal=file)
    totals = [RunDirectory(one.path).newest_checkpoint(torch.device("cpu")).params["count"] for one in (done, left)]
    assert (totals[0] - totals[1]).tolist() == [6, 16, 0, 0, 0, 0]
    with pytest.raises(DataError, match=r"is not a removal"):
        forget(done, "1", tmp_path / "no", removal=tables["party"] / "classes.csv")
