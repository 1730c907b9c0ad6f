"""A run's numbers as tables, and runs against each other."""

import csv
from functools import cache

import numpy as np
import pytest

from fedunseen import Experiment, run
from fedunseen.core.errors import ExperimentError
from fedunseen.data.benchmarks.digit_pairs import DigitPairs
from fedunseen.experiment.tables import compare, write_tables
from fedunseen.federation.partition import make_partition
from known_names import DIGITS_MAML

FEW = {"strategy.rounds": 1, "encoder.widths": [4], "method.episodes": 4, "evaluation.episodes": 20}
ZERO = {"strategy.rounds": 2, "data.train_per_class": 10, "data.test_per_class": 6, "evaluation.selection": "last",
        "method.kl": 0.0}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make runs of a preset, each once."""

    @cache
    def make(preset, **more):
        settings = (FEW if preset == DIGITS_MAML else ZERO) | {
            k.replace("__", "."): v for k, v in more.items()
        }
        return run(Experiment.load(preset, settings), tmp_path_factory.mktemp("compare") / "run")

    return make


@pytest.fixture
def done(made):
    return made("digit-pairs")


def test_the_mean_over_classes_is_the_accuracy_that_the_run_reports(done):
    classes = done.tables()["classes"]
    split, gzsl = np.array(classes["split"]), np.array(classes["gzsl"])
    zsl = [value for value in classes["zsl"] if value is not None]
    assert len(zsl) == sum(split == "unseen") == 20
    means = np.mean(zsl), gzsl[split == "unseen"].mean(), gzsl[split == "seen"].mean()
    assert means == pytest.approx(
        [done.result[name] for name in ("zsl", "gzsl_unseen", "gzsl_seen")]
    )
    assert set(classes["samples"]) == {6}


def test_the_confusions_have_the_accuracies_on_their_diagonal(done):
    tables = done.tables()
    assert tables["rounds"]["zsl"] == [line["zsl"] for line in done.metrics]
    for column in ("zsl", "gzsl"):
        table = tables[f"confusion_{column}"]
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


@pytest.mark.slow
def test_tables_of_several_seeds_name_the_seed(made):
    both = made("digit-pairs", run__seeds=2, run__seed=4)
    tables = both.tables()
    assert tables["rounds"]["seed"] == [4, 4, 5, 5]
    for seed, one in zip((4, 5), both.seeds, strict=True):
        rows = [i for i, s in enumerate(tables["classes"]["seed"]) if s == seed]
        assert [tables["classes"]["gzsl"][i] for i in rows] == one.tables()["classes"]["gzsl"]


@pytest.mark.slow
def test_a_few_shot_run_has_its_episodes_classes(made):
    done = made(DIGITS_MAML)
    classes, confusion = done.tables()["classes"], done.tables()["confusion"]
    weights = np.array(classes["samples"], dtype=float)
    assert np.average(classes["accuracy"], weights=weights) == pytest.approx(
        done.result["few_shot"]
    )
    assert [confusion[name][i] for i, name in enumerate(confusion["class"])] == classes["accuracy"]


def test_the_files_hold_the_tables(done, tmp_path):
    paths = write_tables(done, tmp_path / "csv")
    assert [path.stem for path in paths] == list(done.tables())
    for path in paths:
        header, *rows = csv.reader(path.open(encoding="utf-8"))
        table = done.tables()[path.stem]
        assert header == list(table)
        assert rows == [
            ["" if v is None else str(v) for v in row] for row in zip(*table.values(), strict=True)
        ]


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"strategy__rounds": 3}, {"strategy__name": "local"}])
def test_few_shot_runs_are_compared_episode_by_episode_and_own_models_by_their_mean(change, made):
    ours, theirs = made(DIGITS_MAML, **change), made(DIGITS_MAML)
    found = compare(ours, theirs)
    assert (found.over, found.count) == ("episodes", 20)
    mean, half = found.differences["few_shot"]
    assert mean == pytest.approx(ours.result["few_shot"] - theirs.result["few_shot"])
    assert 0 < half < ours.result["few_shot_ci95"] + theirs.result["few_shot_ci95"]


@pytest.mark.slow
def test_zero_shot_runs_are_compared_sample_by_sample(made):
    ours, theirs = made("digit-pairs", strategy__rounds=6), made("digit-pairs")
    found = compare(ours, theirs)
    assert found.over == "samples"
    assert list(found.differences) == ["zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic"]
    for name, (mean, half) in found.differences.items():
        assert mean == pytest.approx(ours.result[name] - theirs.result[name])
        assert half > 0
    assert set(compare(theirs, theirs).differences.values()) == {(0.0, 0.0)}


@pytest.mark.slow
def test_several_seeds_are_compared_seed_by_seed(made):
    ours, theirs = (
        made("digit-pairs", run__seeds=2, strategy__rounds=3),
        made("digit-pairs", run__seeds=2),
    )
    found = compare(ours, theirs)
    assert (found.over, found.count) == ("seeds", 2)
    apart = [
        a.result["zsl"] - b.result["zsl"] for a, b in zip(ours.seeds, theirs.seeds, strict=True)
    ]
    assert found.differences["zsl"] == pytest.approx(
        (np.mean(apart), 12.706 * np.std(apart, ddof=1) / 2**0.5), 1e-3
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "change", "message"),
    [
        ("digit-pairs", DIGITS_MAML, {}, "data or classes are not the same"),
        ("digit-pairs", "digit-pairs", {"run__seed": 1}, "seeds are not the same"),
        (
            "digit-pairs",
            "digit-pairs",
            {"data__test_per_class": 5},
            "test samples are not the same",
        ),
        (DIGITS_MAML, DIGITS_MAML, {"evaluation__episodes": 21}, "episodes are not the same"),
        (
            DIGITS_MAML,
            DIGITS_MAML,
            {"evaluation__selection": "best-on-test"},
            "one chose its round on the",
        ),
        (
            "digit-pairs",
            "digit-pairs",
            {"strategy__name": "local"},
            "compare runs of several seeds",
        ),
    ],
)
def test_what_was_asked_differently_is_refused(made, first, second, change, message):
    with pytest.raises(ExperimentError, match=message):
        compare(made(first), made(second, **change))


@pytest.mark.slow
def test_few_shot_runs_of_other_classes_are_refused(made, tmp_path, monkeypatch):
    ours = made(DIGITS_MAML)
    monkeypatch.setattr("fedunseen.data.benchmarks.digits.ROLES", (range(5, 10), (), range(5)))
    theirs = run(Experiment.load(DIGITS_MAML, FEW), tmp_path / "run")
    with pytest.raises(ExperimentError, match="data or classes are not the same"):
        compare(ours, theirs)
