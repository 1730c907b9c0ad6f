"""A run's numbers as tables: the rounds it wrote down, its accuracies by hand, its partition."""

import csv

import numpy as np
import pytest

from fedunseen import Experiment, run
from fedunseen.data.benchmarks.digit_pairs import DigitPairs
from fedunseen.federation.partition import make_partition
from known_names import DIGITS_MAML
from processes import TRAINED

QUICK = {**TRAINED, "strategy.rounds": 2, "method.kl": 0.0, "evaluation.clients": False}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return run(Experiment.load("digit-pairs", QUICK), tmp_path_factory.mktemp("runs") / "run")


def test_the_mean_over_classes_is_the_accuracy_that_the_run_reports(done):
    classes = done.tables()["classes"]
    zsl = [value for value in classes["zsl"] if value is not None]
    of = {split: [g for g, s in zip(classes["gzsl"], classes["split"], strict=True) if s == split] for split in
          ("seen", "unseen")}  # fmt: skip
    assert len(zsl) == len(of["unseen"]) == 20
    assert np.mean(zsl) == pytest.approx(done.result["zsl"])
    assert np.mean(of["unseen"]) == pytest.approx(done.result["gzsl_unseen"])
    assert np.mean(of["seen"]) == pytest.approx(done.result["gzsl_seen"])
    assert set(classes["samples"]) == {3}


def test_the_confusions_have_the_accuracies_on_their_diagonal(done):
    tables = done.tables()
    assert tables["rounds"]["zsl"] == [line["zsl"] for line in done.metrics]
    for name, column in (("confusion_zsl", "zsl"), ("confusion_gzsl", "gzsl")):
        table = tables[name]
        each = dict(zip(tables["classes"]["class"], tables["classes"][column], strict=True))
        for i, c in enumerate(table["class"]):
            assert table[c][i] == each[c]
            assert sum(table[other][i] for other in table["class"]) == pytest.approx(100)


def test_clients_hold_what_the_partition_says(done):
    benchmark = DigitPairs.load(done.experiment.data, 0)
    counts = make_partition(done.experiment.partition, benchmark, 0).counts(benchmark.labels, 100)
    table = done.tables()["clients"]
    for client, name, samples in zip(*table.values(), strict=True):
        assert counts[client, int(name)] == samples
    assert sum(table["samples"]) == counts.sum()


def test_tables_of_several_seeds_name_the_seed(tmp_path):
    both = run(Experiment.load("digit-pairs", {**QUICK, "run.seeds": 2, "run.seed": 4}), tmp_path / "run")
    tables = both.tables()
    assert tables["rounds"]["seed"] == [4, 4, 5, 5]
    for seed, one in zip((4, 5), both.seeds, strict=True):
        rows = [i for i, s in enumerate(tables["classes"]["seed"]) if s == seed]
        assert [tables["classes"]["gzsl"][i] for i in rows] == one.tables()["classes"]["gzsl"]


@pytest.mark.slow
def test_a_few_shot_run_has_its_episodes_classes(tmp_path):
    settings = {"strategy.rounds": 1, "method.episodes": 2, "evaluation.episodes": 30, "evaluation.selection": "last"}
    done = run(Experiment.load(DIGITS_MAML, settings), tmp_path / "run")
    classes, confusion = done.tables()["classes"], done.tables()["confusion"]
    weights = np.array(classes["samples"], dtype=float)
    assert np.average(classes["accuracy"], weights=weights) == pytest.approx(done.result["few_shot"])
    assert [confusion[name][i] for i, name in enumerate(confusion["class"])] == classes["accuracy"]


def test_the_files_hold_the_tables(done, tmp_path):
    from fedunseen.experiment.tables import write_tables

    paths = write_tables(done, tmp_path / "csv")
    assert [path.stem for path in paths] == list(done.tables())
    for path in paths:
        header, *rows = csv.reader(path.open(encoding="utf-8"))
        table = done.tables()[path.stem]
        assert header == list(table)
        assert rows == [["" if v is None else str(v) for v in row] for row in zip(*table.values(), strict=True)]
