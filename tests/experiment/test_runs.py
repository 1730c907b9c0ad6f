"""What runs leave behind, against plain references."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedunseen import run
from fedunseen.core.errors import ExperimentError, FedUnseenError
from fedunseen.experiment.assemble import load_data
from fedunseen.experiment.manifest import free_directory
from fedunseen.federation.run_directory import RunDirectory, load_params, of_clients
from refusals import message_of
from same import content, same
from small_runs import LAST

NAMES = ("zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic")


def numbers_of(result):
    return {name: result[name] for name in NAMES}


def recomputed(done, params, factor):
    """Return the accuracies of a model of one ReLU layer, class by class, from scores in
    float64.
    """
    benchmark = load_data(done.experiment, done.experiment.run.seed)
    rows, space = np.concatenate([benchmark.test_unseen, benchmark.test_seen]), benchmark.space
    features, labels = benchmark.features.astype(np.float64), benchmark.labels[rows]
    train, p = (
        features[benchmark.train],
        {name: value.double().numpy() for name, value in params.items()},
    )
    standard = (features[rows] - train.mean(0)) / train.std(0)
    hidden = np.maximum(standard @ p["f.0.weight"].T + p["f.0.bias"], 0)
    scores = (hidden @ p["g.weight"].T + p["g.bias"]) @ space.semantics.T
    generalised = scores - factor * np.isin(np.arange(len(space.names)), space.seen)

    def accuracy(classes, allowed, table):
        right = allowed[np.argmax(table[:, allowed], axis=1)] == labels
        return 100 * np.mean([np.mean(right[labels == c]) for c in classes if c in labels])

    both = np.union1d(space.seen, space.unseen)
    u, s = accuracy(space.unseen, both, generalised), accuracy(space.seen, both, generalised)
    harmonic = 2 * u * s / (u + s) if u + s else 0.0
    return dict(
        zip(NAMES, (accuracy(space.unseen, space.unseen, scores), u, s, harmonic), strict=True)
    )


@pytest.mark.slow
def test_one_seed_gives_the_same_bits_and_another_seed_others(ran, finished):
    whole = content(finished.path)
    assert {
        "model.safetensors",
        "metrics.jsonl",
        "result.json",
        "classes.csv",
    } < whole.keys()
    assert content(ran().path) == whole
    other = content(ran({"run.seed": 1}, "other").path)
    assert all(other[name] != whole[name] for name in ("model.safetensors", "metrics.jsonl"))


def test_there_is_one_line_a_round_with_all_its_fields(finished):
    lines = [
        json.loads(line) for line in (finished.path / "metrics.jsonl").read_text().splitlines()
    ]
    assert lines == finished.metrics
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    fields = {
        "round",
        *NAMES,
        "uncalibrated_gzsl_unseen",
        "uncalibrated_gzsl_seen",
        "uncalibrated_gzsl_harmonic",
        "gzsl_accuracy",
    }
    fields |= {
        "calibration_factor",
        "losses",
        "participants",
        "bytes_down",
        "bytes_up",
        "clients",
        "seconds",
    }
    size = sum(value.numel() * 4 for value in finished.params.values())
    for line in lines:
        assert set(line) == fields
        assert line["participants"] == [0, 1, 2]
        assert line["bytes_down"] == line["bytes_up"] == 3 * size
        assert {name: len(values) for name, values in line["clients"].items()} == dict.fromkeys(
            NAMES, 3
        )
        assert line["losses"]["loss"] == pytest.approx(line["losses"]["sce"])
        assert line["calibration_factor"] == finished.result["calibration_factor"]
    assert lines[-1]["losses"]["loss"] < lines[0]["losses"]["loss"]


def test_the_numbers_are_those_of_the_model_that_is_kept(finished):
    result, line = finished.result, finished.metrics[finished.result["selected_round"] - 1]
    assert numbers_of(line) == numbers_of(result)
    assert numbers_of(result) == pytest.approx(
        recomputed(finished, finished.params, result["calibration_factor"])
    )
    plain = recomputed(finished, finished.params, 0.0)
    assert [result[f"uncalibrated_{name}"] for name in NAMES[1:]] == pytest.approx(
        [plain[name] for name in NAMES[1:]]
    )
    assert {
        "rounds": 4,
        "selection": "validation",
        "seed": 0,
        "run": str(finished.path),
    }.items() <= result.items()


@pytest.mark.slow
def test_the_chosen_round_s_model_is_kept_not_the_last(ran):
    # at this rate training soon gets worse, so that the chosen round is not a trivial one
    settings = {"strategy.rounds": 8, "method.lr": 0.6, "evaluation.criterion": "zsl"}
    done = ran(settings, "chosen")
    selected = done.result["selected_round"]
    validation = RunDirectory(done.path / "selection").metrics()
    best = max(range(8), key=lambda i: (validation[i]["zsl"], validation[i]["gzsl_seen"], -i)) + 1
    assert selected == best < 8
    assert done.result["chosen_on_validation"]["round"] == selected
    assert done.result["calibration_factor"] == validation[best - 1]["calibration_factor"]
    assert same(done, ran({**settings, **LAST, "strategy.rounds": selected}, "stopped"))


@pytest.fixture
def corrupted(ran, make_folder, finished, tmp_path):
    """Run on data that a function has changed; say also of each of some files whether it is that of
    the plain run.
    """

    def call(change):
        done = ran({"data.root": str(make_folder(tmp_path / "data", change))})
        files = ("model", "checkpoints/000004", "selection/model", "selection/checkpoints/000004")
        names = [f"{file}.safetensors" for file in files]
        return done, [
            same(load_params(done.path / name), load_params(finished.path / name)) for name in names
        ]

    return call


def test_selection_never_touches_a_test_sample(corrupted, finished):
    def corrupt(rows, arrays):
        test = arrays["split"] == "test"
        random = np.random.default_rng(5)
        arrays["features"][test] = random.normal(scale=50, size=arrays["features"][test].shape)
        unseen = np.flatnonzero(arrays["labels"] >= 8)
        arrays["labels"][unseen] = random.permutation(arrays["labels"][unseen])
        for row in rows[9:]:  # the descriptions of unseen classes too
            row[2:] = [str(value) for value in random.uniform(0.1, 1, 6).round(3)]

    done, unchanged = corrupted(corrupt)
    assert done.result["chosen_on_validation"] == finished.result["chosen_on_validation"]
    assert all(unchanged)  # training does not touch them either
    assert numbers_of(done.result) != numbers_of(
        finished.result
    )  # but the numbers are of test samples


def test_selection_trains_on_no_sample_that_it_chooses_by(corrupted, finished):
    benchmark = load_data(finished.experiment, 0)
    selection = benchmark.for_selection(0)
    judged = np.concatenate([selection.test_seen, selection.test_unseen])
    assert set(judged) <= set(benchmark.train)
    assert set(benchmark.labels[selection.test_unseen]) == {6, 7}

    def corrupt(rows, arrays):
        arrays["features"][judged] = np.random.default_rng(5).normal(
            scale=50, size=(len(judged), 9)
        )

    done, (_, trained, _, selected) = corrupted(corrupt)
    assert (trained, selected) == (False, True)
    assert done.result["chosen_on_validation"] != finished.result["chosen_on_validation"]


def test_choose_takes_the_better_setting_and_the_final_run_uses_it(ran, finished):
    stages = []
    done = ran(
        {"evaluation.choose": {"method.lr": [1e-7, 0.05]}},
        progress=lambda stage, *more: stages.append(stage),
    )
    chosen = done.result["chosen_on_validation"]
    assert chosen["settings"] == {"method.lr": 0.05} == {"method.lr": done.experiment.method.lr}
    assert [one["settings"] for one in chosen["tried"]] == [
        {"method.lr": 1e-7},
        {"method.lr": 0.05},
    ]
    worse, better = (one["gzsl_harmonic"] for one in chosen["tried"])
    assert better == chosen["validation"]["gzsl_harmonic"] > worse
    assert list(dict.fromkeys(stages)) == [
        *(f"choosing on validation classes {n}/2" for n in (1, 2)),
        "training",
    ]
    assert same(done, finished)
    assert done.metrics[-1]["gzsl_harmonic"] == finished.metrics[-1]["gzsl_harmonic"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the graphical lasso")
def test_choosing_the_method_calibrates_each_candidate_by_its_own_kind(ran):
    done = ran(
        {
            "method.name": "classifier",
            "evaluation.choose": {"method.name": ["classifier", "fedzsl"]},
        }
    )
    assert done.result["chosen_on_validation"]["settings"] == {"method.name": "fedzsl"}
    assert done.experiment.method.name == "fedzsl"
    assert done.result["calibration_factor"] != 0


@pytest.mark.slow
def test_best_on_test_reports_the_best_round_with_its_own_factor(ran):
    done = ran({"evaluation.selection": "best-on-test", "strategy.rounds": 6})
    harmonic, factor = done.result["gzsl_harmonic"], done.result["calibration_factor"]
    assert harmonic == max(line["gzsl_harmonic"] for line in done.metrics)
    assert factor == done.metrics[done.result["selected_round"] - 1]["calibration_factor"]
    assert numbers_of(done.result) == pytest.approx(recomputed(done, done.params, factor))
    for other in np.linspace(factor - 1, factor + 1, 41):  # none does better
        assert recomputed(done, done.params, other)["gzsl_harmonic"] <= harmonic + 1e-9
    assert (done.result["selection"], (done.path / "selection").exists()) == ("best-on-test", False)


def test_last_takes_the_last_round_and_no_calibration(ran):
    done = ran(LAST)
    assert (done.result["selected_round"], done.result["calibration_factor"]) == (4, 0.0)
    assert numbers_of(done.result) == pytest.approx(recomputed(done, done.params, 0.0))
    fixed = ran({**LAST, "evaluation.factor": 0.3}, "fixed")
    assert numbers_of(fixed.result) == pytest.approx(recomputed(done, done.params, 0.3))
    assert same(fixed, done)


def test_before_merge_accuracies_are_those_of_each_client_s_own_model(ran):
    settings = {**LAST, "strategy.rounds": 1}
    done = ran(settings)
    # `local` gives away the clients' models after the same first round
    alone = ran({**settings, "strategy.name": "local"}, "alone")
    (line,), (other,) = done.metrics, alone.metrics
    for client, own in of_clients(alone.path / "model.safetensors"):
        assert {n: line["clients"][n][client] for n in NAMES} == pytest.approx(
            recomputed(done, own, 0.0)
        )
    assert client == 2
    assert (other["clients"], other["bytes_up"]) == (line["clients"], 0)
    assert alone.result["zsl"] == pytest.approx(np.mean(line["clients"]["zsl"]))


def test_the_classifier_knows_no_unseen_class(ran):
    done = ran({"method.name": "classifier"})
    assert (
        done.result["gzsl_unseen"]
        == done.result["gzsl_harmonic"]
        == done.result["calibration_factor"]
        == 0
    )
    assert done.result["gzsl_seen"] > 20
    validation = RunDirectory(done.path / "selection").metrics()
    best = max(range(4), key=lambda i: (validation[i]["gzsl_seen"], -i)) + 1
    assert done.result["selected_round"] == best  # by seen accuracy: the criterion is chance


@pytest.mark.slow
def test_several_seeds_give_mean_and_deviation(ran):
    settings, seeds = {"strategy.rounds": 12, "strategy.stop_after": 2, "method.lr": 0.5}, [4, 5, 6]
    done = ran({**settings, "run.seeds": 3, "run.seed": 4})
    singles = [ran({**settings, "run.seed": seed}, str(seed)) for seed in seeds]
    assert (
        done.result["rounds"] == max(one.result["rounds"] for one in singles) < 12
    )  # each stops at its own
    assert done.result["parameters_shared"] * 4 == done.result["bytes_up"]
    for name in NAMES:
        values = [single.result[name] for single in singles]
        expected = np.mean(values), np.std(values, ddof=1)
        assert (done.result[name], done.result[f"{name}_sd"]) == pytest.approx(expected)
    assert done.result["seeds"] == [one.result["seed"] for one in done.seeds] == seeds
    assert all(map(same, done.seeds, singles))
    assert (done.metrics, done.space.names) == ([], singles[0].space.names)
    sentence = "holds a model for each seed: take the params of one of its seeds"
    assert sentence in message_of(lambda: done.params, error=FedUnseenError)
    rows = np.ones((2, 9), dtype=np.float32)
    assert done.predict(rows) == done.seeds[0].predict(rows)


@pytest.mark.slow
def test_a_round_without_clients_is_refused_before_anything_is_written(ran, tmp_path):
    # by hand: client 0 holds the validation classes "h" and "i" alone, and is alone in the first
    # round of selection
    lines = [
        "class,client",
        *(f"{name},1" for name in ("zèbre", "猫", "two words", "d", "e", "f")),
        "g,0",
        "h,0",
    ]
    (tmp_path / "who.csv").write_text("\n".join(lines) + "\n", "utf-8")
    alone = {
        "partition.kind": "file",
        "partition.file": str(tmp_path / "who.csv"),
        "partition.clients": 2,
    }
    alone["partition.join"] = {"1": 1}
    for settings, empty in (
        ({"partition.join": {"0-2": 1}}, 0),
        ({"partition.leave": {"0-2": 2}}, 2),
        ({"partition.leave": {"0-1": 2, "2": 1}}, 2),
        (alone, 0),
    ):
        for seeds in (1, 2):
            sentence = rf"no client with samples is present in round {empty} \(counted from 0\):"
            with pytest.raises(ExperimentError, match=sentence) as error:
                ran({**settings, "run.seeds": seeds})
            assert error.value.code == "round-without-clients"
            assert not (tmp_path / "run").exists()
    ran({**alone, **LAST}, "no selection")
    ran({"partition.leave": {"0-2": 4}, **LAST}, "after the end")


def test_a_fraction_of_the_clients_takes_part_drawn_anew_each_round(ran):
    settings = {**LAST, "partition.clients": 5, "strategy.fraction": 0.5, "strategy.rounds": 6}
    drawn = [tuple(line["participants"]) for line in ran(settings).metrics]
    assert all(
        len(set(one)) == 3 and list(one) == sorted(one) for one in drawn
    )  # 2.5, rounded half up
    assert len(set(drawn)) > 1
    least = ran({**settings, "strategy.fraction": 0.01, "strategy.rounds": 2}, "least")
    assert all(len(line["participants"]) == 1 for line in least.metrics)


def test_a_benchmark_without_validation_classes_can_only_take_the_last_round(
    ran, make_folder, tmp_path
):
    def one_sample_each(rows, arrays):
        train = np.flatnonzero(arrays["split"] == "train")
        _, first = np.unique(arrays["labels"][train], return_index=True)
        kept = np.union1d(train[first], np.flatnonzero(arrays["split"] == "test"))
        arrays.update({name: values[kept] for name, values in arrays.items()})

    root = {"data.root": str(make_folder(tmp_path / "data", one_sample_each))}
    for seeds in (1, 2):
        sentence = message_of(ran, {**root, "run.seeds": seeds})
        assert sentence.endswith("; or choose nothing, with evaluation.selection = 'last'")
        assert not (tmp_path / "run").exists()
    assert ran({**root, **LAST}).result["rounds"] == 4


def test_a_run_that_is_not_told_where_goes_to_a_folder_that_is_free(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment = make({**LAST, "strategy.rounds": 1})
    paths = [str(run(experiment).path) for _ in range(3)]
    assert paths == ["runs/small-seed0", "runs/small-seed0-2", "runs/small-seed0-3"]
    assert free_directory(experiment) == Path("runs/small-seed0-4")


def test_too_little_memory_is_one_sentence(ran, monkeypatch):
    monkeypatch.setattr("fedunseen.core.sizes.NETWORK", 2**62)  # as within bounds, on little memory
    monkeypatch.setattr("fedunseen.methods.base.OUTPUTS", 2**62)
    sentence = message_of(ran, {"method.hidden": [2**36]}, error=FedUnseenError)
    assert re.match("this takes more memory than there is .*: lower method.batch_size", sentence)
