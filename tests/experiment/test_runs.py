"""What runs leave behind, against slow and obvious references."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedunseen import run
from fedunseen.core.errors import DataError, ExperimentError, FedUnseenError
from fedunseen.core.registry import find
from fedunseen.experiment.manifest import free_directory

NAMES = ("zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic")


def without_seconds(line):
    return {key: value for key, value in line.items() if key not in ("seconds", "run")}


def model_bytes(done):
    return (done.path / "model.safetensors").read_bytes()


def load_benchmark(experiment):
    return find("data", experiment.data.name).load(experiment.data, experiment.run.seed)


def slow_scores(done, params, rows):
    """Score raw rows one at a time in float64: standardise, ReLU layer, attributes, compatibilities."""
    benchmark = load_benchmark(done.experiment)
    train = benchmark.features[benchmark.train].astype(np.float64)
    mean, deviation = train.mean(0), train.std(0)
    p = {name: value.double().numpy() for name, value in params.items()}
    scores = []
    for row in rows:
        x = (row - mean) / deviation
        hidden = np.maximum(p["f.0.weight"] @ x + p["f.0.bias"], 0)
        attributes = p["g.weight"] @ hidden + p["g.bias"]
        scores.append([float(attributes @ semantics) for semantics in benchmark.space.semantics])
    return np.array(scores)


def slow_metrics(scores, labels, space, factor):
    """Per-class top-1 by loops."""
    seen, unseen = space.seen.tolist(), space.unseen.tolist()
    generalised = scores.copy()
    generalised[:, seen] -= factor
    both = sorted(seen + unseen)

    def accuracy(classes, allowed, table):
        shares = []
        for c in classes:
            own = [i for i, label in enumerate(labels) if label == c]
            if own:
                shares.append(np.mean([allowed[int(np.argmax(table[i, allowed]))] == c for i in own]))
        return 100 * float(np.mean(shares))

    u, s = accuracy(unseen, both, generalised), accuracy(seen, both, generalised)
    return {
        "zsl": accuracy(unseen, unseen, scores),
        "gzsl_unseen": u,
        "gzsl_seen": s,
        "gzsl_harmonic": 2 * u * s / (u + s) if u + s else 0.0,
    }


def recomputed(done, params, factor):
    benchmark = load_benchmark(done.experiment)
    rows = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    scores = slow_scores(done, params, benchmark.features[rows].astype(np.float64))
    return slow_metrics(scores, benchmark.labels[rows].tolist(), benchmark.space, factor)


def test_one_seed_gives_the_same_bits_and_another_seed_others(make, finished, tmp_path):
    again = run(make(), tmp_path / "again")
    assert model_bytes(again) == model_bytes(finished)
    assert list(map(without_seconds, again.metrics)) == list(map(without_seconds, finished.metrics))
    assert without_seconds(again.result) == without_seconds(finished.result)
    for name in ("classes.csv", "scaling.safetensors", "evaluation.safetensors"):
        assert (again.path / name).read_bytes() == (finished.path / name).read_bytes()
    other = run(make({"run.seed": 1}), tmp_path / "other")
    assert model_bytes(other) != model_bytes(finished)
    assert list(map(without_seconds, other.metrics)) != list(map(without_seconds, finished.metrics))


def test_there_is_one_line_a_round_with_all_its_fields(finished):
    lines = [json.loads(line) for line in (finished.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert lines == finished.metrics
    fields = {"round", *NAMES, "uncalibrated_gzsl_unseen", "uncalibrated_gzsl_seen", "uncalibrated_gzsl_harmonic"}
    fields |= {"calibration_factor", "losses", "participants", "bytes_down", "bytes_up", "clients", "seconds"}
    size = sum(value.numel() * 4 for value in finished.params.values())
    for line in lines:
        assert set(line) == fields
        assert line["participants"] == [0, 1, 2]
        assert line["bytes_down"] == line["bytes_up"] == 3 * size
        assert set(line["clients"]) == set(NAMES)
        assert all(len(values) == 3 for values in line["clients"].values())
        assert line["losses"]["loss"] == pytest.approx(line["losses"]["sce"])
        assert line["calibration_factor"] == finished.result["calibration_factor"]
    assert lines[-1]["losses"]["loss"] < lines[0]["losses"]["loss"]


def test_the_numbers_are_those_of_the_model_that_is_kept(finished):
    result = finished.result
    expected = recomputed(finished, finished.params, result["calibration_factor"])
    plain = recomputed(finished, finished.params, 0.0)
    for name in NAMES:
        assert result[name] == pytest.approx(expected[name])
    for name in NAMES[1:]:
        assert result[f"uncalibrated_{name}"] == pytest.approx(plain[name])
    line = finished.metrics[result["selected_round"] - 1]
    assert {name: line[name] for name in NAMES} == {name: result[name] for name in NAMES}
    assert result["rounds"] == 4
    assert result["selection"] == "validation"
    assert result["seed"] == 0
    assert result["run"] == str(finished.path)


def test_the_chosen_round_s_model_is_kept_not_the_last(make, tmp_path):
    # at this rate training soon gets worse, so that the chosen round is not a trivial one
    settings = {"strategy.rounds": 8, "method.lr": 0.6, "evaluation.criterion": "zsl"}
    done = run(make(settings), tmp_path / "chosen")
    selected = done.result["selected_round"]
    validation = [json.loads(line) for line in (done.path / "selection" / "metrics.jsonl").read_text().splitlines()]
    best = max(range(8), key=lambda i: (validation[i]["zsl"], validation[i]["gzsl_seen"], -i)) + 1
    assert selected == best < 8
    assert done.result["chosen_on_validation"]["round"] == selected
    assert done.result["calibration_factor"] == validation[best - 1]["calibration_factor"]
    stopped = run(make({**settings, "strategy.rounds": selected, "evaluation.selection": "last"}), tmp_path / "stopped")
    assert model_bytes(done) == model_bytes(stopped)


def test_selection_never_touches_a_test_sample(make, make_folder, finished, tmp_path):
    def corrupt(rows, arrays):
        test = arrays["split"] == "test"
        random = np.random.default_rng(5)
        arrays["features"][test] = random.normal(scale=50, size=arrays["features"][test].shape)
        unseen = np.flatnonzero(arrays["labels"] >= 8)
        arrays["labels"][unseen] = random.permutation(arrays["labels"][unseen])
        for row in rows[9:]:  # the descriptions of unseen classes too
            row[2:] = [str(value) for value in random.uniform(0.1, 1, 6).round(3)]

    root = make_folder(tmp_path / "data", corrupt)
    done = run(make({"data.root": str(root)}), tmp_path / "run")
    assert done.result["chosen_on_validation"] == finished.result["chosen_on_validation"]
    assert model_bytes(done) == model_bytes(finished)  # training does not touch them either
    for name in ("model.safetensors", "checkpoints/000004.safetensors"):
        assert (done.path / "selection" / name).read_bytes() == (finished.path / "selection" / name).read_bytes()
    assert without_seconds(done.result) != without_seconds(finished.result)  # but the numbers are of test samples


def test_selection_trains_on_no_sample_that_it_chooses_by(make, make_folder, finished, tmp_path):
    benchmark = load_benchmark(finished.experiment)
    selection = benchmark.for_selection(0)
    judged = np.concatenate([selection.test_seen, selection.test_unseen])
    assert set(judged) <= set(benchmark.train)
    assert set(benchmark.labels[selection.test_unseen]) == {6, 7}

    def corrupt(rows, arrays):
        arrays["features"][judged] = np.random.default_rng(5).normal(scale=50, size=(len(judged), 9))

    root = make_folder(tmp_path / "data", corrupt)
    done = run(make({"data.root": str(root)}), tmp_path / "run")
    for folder, same in (("selection", True), (".", False)):
        name = f"{folder}/checkpoints/000004.safetensors"
        assert ((done.path / name).read_bytes() == (finished.path / name).read_bytes()) is same
    assert done.result["chosen_on_validation"] != finished.result["chosen_on_validation"]


def test_choose_takes_the_better_setting_and_the_final_run_uses_it(make, tmp_path):
    settings = {"evaluation.choose": {"method.lr": [1e-7, 0.05]}}
    heard = []
    done = run(make(settings), tmp_path / "run", progress=lambda *heard_of: heard.append(heard_of[0]))
    chosen = done.result["chosen_on_validation"]
    assert chosen["settings"] == {"method.lr": 0.05}
    assert [one["settings"] for one in chosen["tried"]] == [{"method.lr": 1e-7}, {"method.lr": 0.05}]
    assert (
        chosen["tried"][1]["gzsl_harmonic"]
        == chosen["validation"]["gzsl_harmonic"]
        > chosen["tried"][0]["gzsl_harmonic"]
    )
    assert done.experiment.method.lr == 0.05
    assert list(dict.fromkeys(heard)) == [
        "choosing on validation classes 1/2", "choosing on validation classes 2/2", "training",
    ]  # fmt: skip
    plain = run(make(), tmp_path / "plain")
    assert model_bytes(done) == model_bytes(plain)
    assert done.metrics[-1]["gzsl_harmonic"] == plain.metrics[-1]["gzsl_harmonic"]


@pytest.mark.filterwarnings("ignore:the graphical lasso")
def test_choosing_the_method_calibrates_each_candidate_by_its_own_kind(make, tmp_path):
    settings = {"method.name": "classifier", "evaluation.choose": {"method.name": ["classifier", "fedzsl"]}}
    done = run(make(settings), tmp_path / "run")
    assert done.result["chosen_on_validation"]["settings"] == {"method.name": "fedzsl"}
    assert done.result["calibration_factor"] != 0
    assert done.experiment.method.name == "fedzsl"


def test_best_on_test_reports_the_best_round_with_its_own_factor(make, tmp_path):
    done = run(make({"evaluation.selection": "best-on-test", "strategy.rounds": 6}), tmp_path / "run")
    harmonic = [line["gzsl_harmonic"] for line in done.metrics]
    assert done.result["gzsl_harmonic"] == max(harmonic)
    best = done.metrics[done.result["selected_round"] - 1]
    assert best["calibration_factor"] == done.result["calibration_factor"]
    expected = recomputed(done, done.params, best["calibration_factor"])
    assert {name: done.result[name] for name in NAMES} == pytest.approx(expected)
    # no other factor does better
    for factor in np.linspace(best["calibration_factor"] - 1, best["calibration_factor"] + 1, 41):
        assert recomputed(done, done.params, factor)["gzsl_harmonic"] <= done.result["gzsl_harmonic"] + 1e-9
    assert not (done.path / "selection").exists()
    assert done.result["selection"] == "best-on-test"


def test_last_takes_the_last_round_and_no_calibration(make, tmp_path):
    done = run(make({"evaluation.selection": "last"}), tmp_path / "run")
    assert (done.result["selected_round"], done.result["calibration_factor"]) == (4, 0.0)
    assert {name: done.result[name] for name in NAMES} == pytest.approx(recomputed(done, done.params, 0.0))
    fixed = run(make({"evaluation.selection": "last", "evaluation.factor": 0.3}), tmp_path / "fixed")
    assert {name: fixed.result[name] for name in NAMES} == pytest.approx(recomputed(done, done.params, 0.3))
    assert model_bytes(fixed) == model_bytes(done)


def test_before_merge_accuracies_are_those_of_each_client_s_own_model(make, tmp_path):
    done = run(
        make({"evaluation.selection": "last", "strategy.rounds": 1, "strategy.update_scale": 0.5}), tmp_path / "a"
    )
    line = done.metrics[0]
    # `local` gives away the clients' models after the same first round
    alone = run(make({"evaluation.selection": "last", "strategy.rounds": 1, "strategy.name": "local"}), tmp_path / "b")
    for client in range(3):
        own = {
            n.removeprefix(f"client/{client}/"): v for n, v in alone.params.items() if n.startswith(f"client/{client}/")
        }
        expected = recomputed(done, own, 0.0)
        assert {name: line["clients"][name][client] for name in NAMES} == pytest.approx(expected)
    assert alone.metrics[0]["clients"] == line["clients"]
    assert alone.result["zsl"] == pytest.approx(np.mean(line["clients"]["zsl"]))
    assert alone.metrics[0]["bytes_up"] == 0


def test_the_classifier_knows_no_unseen_class(make, tmp_path):
    done = run(make({"method.name": "classifier"}), tmp_path / "run")
    assert done.result["gzsl_unseen"] == done.result["gzsl_harmonic"] == 0
    assert done.result["gzsl_seen"] > 20
    assert done.result["calibration_factor"] == 0.0
    validation = [json.loads(line) for line in (done.path / "selection" / "metrics.jsonl").read_text().splitlines()]
    best = max(range(4), key=lambda i: (validation[i]["gzsl_seen"], -i)) + 1
    assert done.result["selected_round"] == best  # by seen accuracy: the criterion is chance


@pytest.mark.slow
def test_several_seeds_give_mean_and_deviation(make, tmp_path):
    settings = {"strategy.rounds": 12, "strategy.stop_after": 2, "method.lr": 0.5}
    done = run(make({**settings, "run.seeds": 3, "run.seed": 4}), tmp_path / "run")
    assert done.result["seeds"] == [4, 5, 6]
    singles = [run(make({**settings, "run.seed": seed}), tmp_path / str(seed)) for seed in (4, 5, 6)]
    assert done.result["rounds"] == max(one.result["rounds"] for one in singles) < 12  # each stops at its own
    assert done.result["parameters_shared"] * 4 == done.result["bytes_up"]
    for name in NAMES:
        values = [single.result[name] for single in singles]
        mean = sum(values) / 3
        assert done.result[name] == pytest.approx(mean)
        deviation = (sum((value - mean) ** 2 for value in values) / 2) ** 0.5
        assert done.result[f"{name}_sd"] == pytest.approx(deviation)
    assert [one.result["seed"] for one in done.seeds] == [4, 5, 6]
    assert [model_bytes(one) for one in done.seeds] == [model_bytes(one) for one in singles]
    assert done.metrics == []
    assert done.space.names == singles[0].space.names
    with pytest.raises(FedUnseenError, match="holds a model for each seed: take the params of one of its seeds"):
        _ = done.params
    rows = np.ones((2, 9), dtype=np.float32)
    assert done.predict(rows) == done.seeds[0].predict(rows)


def test_a_round_without_clients_is_refused_before_anything_is_written(make, tmp_path):
    for settings, empty in (
        ({"partition.join": {"0-2": 1}}, 0),
        ({"partition.leave": {"0-2": 2}}, 2),
        ({"partition.leave": {"0-1": 2, "2": 1}}, 2),
    ):
        for seeds in (1, 2):
            with pytest.raises(ExperimentError, match=f"is present in round {empty} ") as error:
                run(make({**settings, "run.seeds": seeds}), tmp_path / "run")
            assert error.value.code == "round-without-clients"
            assert not (tmp_path / "run").exists()
    run(make({"partition.leave": {"0-2": 4}, "evaluation.selection": "last"}), tmp_path / "run")  # after the end


def test_a_round_without_clients_in_selection_alone_is_refused_too(make, tmp_path):
    # by hand: client 0 holds the validation classes "h" and "i" alone, and is alone in the first round
    lines = ["class,client", *(f"{name},1" for name in ("zèbre", "猫", "two words", "d", "e", "f")), "g,0", "h,0"]
    (tmp_path / "who.csv").write_text("\n".join(lines) + "\n", "utf-8")
    settings = {"partition.kind": "file", "partition.file": str(tmp_path / "who.csv"), "partition.clients": 2}
    settings |= {"partition.join": {"1": 1}}
    with pytest.raises(ExperimentError, match=r"no client with samples is present in round 0 \(counted from 0\):"):
        run(make(settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run(make({**settings, "evaluation.selection": "last"}), tmp_path / "run")


def test_a_fraction_of_the_clients_takes_part_drawn_anew_each_round(make, tmp_path):
    settings = {"partition.clients": 5, "strategy.fraction": 0.5, "strategy.rounds": 6, "evaluation.selection": "last"}
    done = run(make(settings), tmp_path / "run")
    drawn = [tuple(line["participants"]) for line in done.metrics]
    assert all(len(set(one)) == 3 and list(one) == sorted(one) for one in drawn)  # 2.5, rounded half up
    assert len(set(drawn)) > 1
    least = run(make({**settings, "strategy.fraction": 0.01, "strategy.rounds": 2}), tmp_path / "least")
    assert all(len(line["participants"]) == 1 for line in least.metrics)


def test_a_benchmark_without_validation_classes_can_only_take_the_last_round(make, make_folder, tmp_path):
    def one_sample_each(rows, arrays):
        train = np.flatnonzero(arrays["split"] == "train")
        _, first = np.unique(arrays["labels"][train], return_index=True)
        kept = np.union1d(train[first], np.flatnonzero(arrays["split"] == "test"))
        for name in arrays:
            arrays[name] = arrays[name][kept]

    root = make_folder(tmp_path / "data", one_sample_each)
    for seeds in (1, 2):
        with pytest.raises(DataError, match=r"; or choose nothing, with evaluation\.selection = 'last'$"):
            run(make({"data.root": str(root), "run.seeds": seeds}), tmp_path / "run")
        assert not (tmp_path / "run").exists()
    assert run(make({"data.root": str(root), "evaluation.selection": "last"}), tmp_path / "run").result["rounds"] == 4


def test_a_run_that_is_not_told_where_goes_to_a_folder_that_is_free(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment = make({"strategy.rounds": 1, "evaluation.selection": "last"})
    assert [str(run(experiment).path) for _ in range(3)] == [
        "runs/small-seed0", "runs/small-seed0-2", "runs/small-seed0-3",
    ]  # fmt: skip
    assert free_directory(experiment) == Path("runs/small-seed0-4")


def test_too_little_memory_is_one_sentence(make, tmp_path):
    with pytest.raises(FedUnseenError, match=r"^this takes more memory than there is .*: lower method.batch_size"):
        run(make({"method.hidden": [2**36]}), tmp_path / "run")
