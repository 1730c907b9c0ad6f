"""Closed forms in whole runs: what they reach, how they are calibrated, which one is chosen, what
starts from them.
"""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedunseen import Benchmark, Experiment, Federation, ZeroShotClassifier, load_run, run
from fedunseen.confidence.priors import PRIORS
from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.data.benchmarks.xlsa17 import Xlsa17
from fedunseen.deploy.deployed import CALIBRATED, UNCALIBRATED, deployed, notes
from fedunseen.evaluation.diagnosis import outdone
from fedunseen.experiment.assemble import assemble, load_data, partition_of, resolve_defaults
from fedunseen.experiment.calibration_folds import MOST, calibration_folds
from fedunseen.federation.partition import PartitionSettings, make_partition
from fedunseen.federation.run_directory import load_params
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.gaussian import Gaussian
from fedunseen.metrics import accuracies, best_offset
from fedunseen.pages.report import write_report
from fedunseen.strategies import FedAvg
from links import elsewhere
from same import same
from small_runs import ANIMALS, LAST

QUICK = {"evaluation.embedding": False}


@pytest.mark.slow
@pytest.mark.parametrize("steps", [["l2"], ["centre", "l2"]])
def test_choosing_on_validation_classes_changes_no_sum(tmp_path, steps):
    """The final scaling is fitted on more samples than that of the run which chooses."""
    settings = {
        "data.train_per_class": 8,
        "data.test_per_class": 2,
        "data.features": steps,
        "data.quantization": 8,
        "evaluation.embedding": False,
        "evaluation.theory": False,
    }
    chosen, last = (
        run(
            Experiment.load("digit-pairs-gaussian", settings | {"evaluation.selection": how}),
            tmp_path / how,
        )
        for how in ("validation", "last")
    )
    assert chosen.result["selection"] == "validation"
    assert chosen.result["sums_sha256"] == last.result["sums_sha256"]


@pytest.mark.slow
def test_pairs_of_digits_are_read_from_raw_pixels_in_one_round(tmp_path):
    done = run(Experiment.load("digit-pairs-gaussian", QUICK), tmp_path / "run")
    assert (done.result["rounds"], done.result["bytes_down"]) == (1, 0)
    assert done.result["zsl"] >= 97
    assert done.result["gzsl_harmonic"] >= 88
    (best, *_), *_ = done.predict(np.zeros(128, dtype=np.float32), among="unseen")
    assert best.name in done.space.names


@pytest.mark.slow
def test_every_client_alone_has_a_model_of_its_own_classes(tmp_path):
    settings = {**LAST, "method.shrinkage": 0.1, "strategy.name": "local"}
    done = run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "run")
    assert done.result["zsl"] > 5  # of twenty unseen classes
    with pytest.raises(ExperimentError, match="every client keeps its own model"):
        done.predict(np.zeros(128, dtype=np.float32))


@pytest.mark.slow
def test_animals_that_nobody_has_are_recognised_from_raw_features(real_data):
    benchmark = Xlsa17.load(Xlsa17.Settings(root=real_data / "xlsa17", dataset="AWA1_LAMPERT"), 0)
    method = Gaussian.on(benchmark, shrinkage=0.3, calibration=True)
    partition = make_partition(PartitionSettings(clients=10), benchmark, 0)
    federation = Federation(benchmark, partition, method, FedAvg())
    state, _ = federation.round(federation.start())
    model = federation.fit_heads(state.params)
    found = accuracies(federation.answers(model))
    assert found.zsl >= 34.5
    assert found.gzsl_harmonic >= 22.5  # without a validation class: with them 25
    assert abs(float(model["expected"][0]) - found.zsl) < 6  # what left-out classes have promised


@pytest.mark.slow
def test_samples_are_summed_once_though_validation_classes_choose_first(tmp_path, monkeypatch):
    """The final statistics are those of the run on validation classes and of the rest."""
    settings = {
        **QUICK,
        "partition.clients": 3,
        "data.train_per_class": 6,
        "data.test_per_class": 2,
    }
    settings |= {"method.shrinkage": 0.3, "data.quantization_range": 4.0}
    summed, original = [], ClosedForm.statistics

    monkeypatch.setattr(
        ClosedForm,
        "statistics",
        lambda self, x, y, *rest: summed.append(len(y)) or original(self, x, y, *rest),
    )
    done = run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "chosen")
    assert done.result["selection"] == "validation"
    assert 0 < sum(summed[3:]) < sum(summed[:3])
    last = run(Experiment.load("digit-pairs-gaussian", {**settings, **LAST}), tmp_path / "last")
    assert sum(summed[6:]) == sum(summed[:6])
    assert done.result["sums_sha256"] == last.result["sums_sha256"]


SEGMENTS = (126, 48, 109, 121, 51, 91, 95, 112, 127, 123)  # of ten digits, a bit each


def lit_digits():
    """Return handwritten digits, their names, which to train on, and which of seven segments each
    digit lights.
    """
    digits = load_digits()
    rows, names = (digits.data / 16).astype(np.float32), digits.target.astype(str)
    train = ~np.isin(digits.target, (1, 3, 9)) & (np.arange(len(rows)) % 10 < 7)
    return (
        rows,
        names,
        train,
        {str(i): [float(lit) for lit in f"{bits:07b}"] for i, bits in enumerate(SEGMENTS)},
    )


def lit(method, settings=LAST):
    tree = {
        "data": {"name": "arrays"},
        "method": {"name": method},
        "partition": {"kind": "user", "clients": 2},
        "evaluation": {"confidence": "none"},  # half of the time, and no test here asks it
    }
    return Experiment.from_dict(tree, settings)


def segments(method, out, settings=LAST, validation=()):
    """Run on arrays in memory: seven writers' digits, which are described by seven segments."""
    rows, names, train, table = lit_digits()
    test, writers = (rows[~train], names[~train]), np.arange(train.sum()) % 7
    given = Benchmark.from_arrays(
        rows[train], names[train], table, test=test, groups=writers, validation=validation
    )
    return run(lit(method, settings), out, benchmark=given)


@pytest.mark.slow
def test_arrays_are_those_of_all_seeds_and_in_no_file(tmp_path):
    done = segments("gaussian", tmp_path / "run", {**LAST, "run.seeds": 2})
    assert done.manifest["experiment"]["data"]["name"] == "arrays"
    assert (done.result["seeds"], done.result["zsl_sd"]) == ([0, 1], 0.0)
    with pytest.raises(
        DataError, match="stands for arrays in memory, which are in no file: give them from Python"
    ):
        run(lit("gaussian"), tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_a_closed_form_that_does_worse_than_another_warns_and_auto_chooses(tmp_path):
    chosen = {"settings": {**QUICK, "evaluation.selection": "validation"}, "validation": 2}
    gaussian = segments("gaussian", tmp_path / "gaussian", **chosen)
    (warning,) = (one for one in gaussian.result["warnings"] if "left out" in one["what"])
    assert "Where only unseen classes compete, set method.name = 'ridge'." in warning["remedy"]
    better = segments("ridge", tmp_path / "better", **chosen)
    assert better.result["zsl"] > gaussian.result["zsl"] + 10
    assert better.result["gzsl_harmonic"] < gaussian.result["gzsl_harmonic"]  # as the remedy says
    assert "Among all classes it may do worse" in warning["remedy"]
    ridge, auto = (segments(name, tmp_path / name) for name in ("ridge", "auto"))
    assert auto.result["form"] == "ridge"
    assert ridge.result["zsl"] == auto.result["zsl"] > gaussian.result["zsl"] + 10
    assert not any(
        "left out" in one["what"] for done in (ridge, auto) for one in done.result["warnings"]
    )
    sample = load_digits().data[:1] / 16
    (ranking,) = load_run(auto.path).predict(sample, top=99)
    assert {one.name for one in ranking} == set("0123456789")
    assert ranking[0] == ridge.predict(sample)[0][0]
    assert (
        load_run(auto.path).learn({"new": [1.0, 0, 0, 0, 0, 0, 0]}).predict(sample, among="unseen")
    )
    with pytest.raises(ExperimentError, match=r"method\.name = .gaussian."):
        auto.learn(examples={"1": sample})


@pytest.mark.slow
def test_no_method_is_advised_that_nothing_would_calibrate(tmp_path):
    """Ridge regression has no offset of its own; ``auto`` with one is Gaussian classes, as the note
    of it says.
    """
    last = {**LAST, "method.calibration": True}
    gaussian, auto = (segments(name, tmp_path / name, last) for name in ("gaussian", "auto"))
    assert gaussian.result["left_out_rivals"]["ridge"]["lead"] > 10
    assert not any(
        "left out" in one["what"] for done in (gaussian, auto) for one in done.result["warnings"]
    )
    assert (auto.result["form"], auto.result["gzsl_harmonic"]) == (
        "gaussian",
        gaussian.result["gzsl_harmonic"],
    )
    ridge = segments("ridge", tmp_path / "ridge")
    assert ridge.result["gzsl_harmonic"] < gaussian.result["gzsl_harmonic"]


@pytest.mark.parametrize(
    ("name", "own"), [("gaussian", True), ("auto", True), ("msdn", None), ("ridge", None)]
)
def test_a_deployment_calibrates_what_can_calibrate_itself(name, own):
    given = Experiment.load("digit-pairs", {"method.name": name})
    done = deployed(given, {})
    assert done.evaluation.selection == "last"
    assert notes(done)[0].startswith(CALIBRATED if own else UNCALIBRATED)
    assert getattr(done.method, "calibration", None) == (
        own or getattr(given.method, "calibration", None)
    )


def test_a_form_without_an_offset_is_not_said_to_have_one():
    done = deployed(
        Experiment.load("digit-pairs-gaussian", {"method.name": "auto", "method.form": "ridge"}), {}
    )
    assert (done.method.calibration, notes(done)[0].startswith(UNCALIBRATED)) == (False, True)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "leads"), [("gaussian", [True]), ("ridge", []), ("auto", [])])
def test_the_estimator_warns_of_the_same_lead(method, leads, recwarn):
    rows, names, train, table = lit_digits()
    ZeroShotClassifier(method).fit(rows[train], names[train], classes=table)
    texts = [str(one.message) for one in recwarn]
    assert ["set method = 'ridge'." in text for text in texts if "left out" in text] == leads


@pytest.mark.slow
def test_the_run_on_validation_classes_and_the_final_one_take_the_same_form(tmp_path):
    done = segments(
        "auto", tmp_path / "run", {**QUICK, "evaluation.selection": "validation"}, validation=2
    )
    assert done.result["chosen_on_validation"]["settings"]["method.form"] == done.result["form"]


@pytest.mark.parametrize(
    ("lead", "half", "said"), [(2.9, 1.0, False), (3.1, 1.0, True), (5.0, 5.1, False)]
)
def test_a_lead_counts_from_three_points_and_its_interval_on(lead, half, said):
    rival = {"ridge": {"accuracy": 50.0 + lead, "lead": lead, "ci95": half}}
    found = outdone({"left_out_accuracy": {"0": 50.0}, "left_out_rivals": rival})
    assert (found is not None) == said
    assert outdone({}) is None


@pytest.mark.parametrize("since", ["learnt", "shown", "adapted"])
def test_a_lead_that_was_measured_before_the_model_learned_more_is_not_repeated(since):
    rival = {"ridge": {"accuracy": 60.0, "lead": 10.0, "ci95": 1.0}}
    trained = {"left_out_accuracy": {"0": 50.0}, "left_out_rivals": rival}
    assert outdone(trained) is not None
    assert outdone({**trained, since: {"bear": 5}}) is None


def test_a_trained_preset_becomes_a_closed_form_by_its_name_alone():
    assert Experiment.load("digit-pairs", {"method.name": "gaussian"}).strategy.rounds == 1
    assert (
        Experiment.load("digit-pairs").with_overrides({"method.name": "ridge"}).strategy.rounds == 1
    )


SEEN = 9


@pytest.fixture
def tree(described, tmp_path):
    data = described(tmp_path, (SEEN + 3, 6, 24), 0.4, 16, unseen=3, seed=5)
    return {
        "data": {**data, "features": [], "quantization": "none"},
        "partition": {"kind": "iid", "clients": 2},
        "method": {"name": "gaussian", "shrinkage": 0.3},
        "evaluation": {"embedding": False},
    }


@pytest.mark.slow
def test_a_run_bounds_a_calibration_that_few_classes_exaggerate(tmp_path):
    """As for the estimator; the console prints the warnings of the result."""
    rng = np.random.default_rng(0)
    y = np.array([*np.repeat(list(ANIMALS)[:4], 80), *["zebra"] * 40])
    x = np.array([ANIMALS[name] for name in y]) @ rng.normal(size=(3, 16)) + 0.1 * rng.normal(
        size=(len(y), 16)
    )
    train = (np.arange(len(y)) % 2 == 0) & (y != "zebra")
    given = Benchmark.from_arrays(
        x[train],
        y[train],
        ANIMALS,
        test=(x[~train], y[~train]),
        groups=np.arange(train.sum()) % 2,
        validation=1,
    )
    done = run(
        lit("gaussian", {**QUICK, "evaluation.selection": "validation"}),
        tmp_path / "run",
        benchmark=given,
    )
    chosen = done.result["chosen_on_validation"]
    assert (chosen["turns"], chosen["bounded_by"]) == (4, "tiger")
    assert 0 < done.result["calibration_factor"] == chosen["factor"] < chosen["wanted"] / 10
    (warning,) = (one for one in done.result["warnings"] if "cannot be trusted" in one["what"])
    assert f"{chosen['factor']:.3g} is used" in warning["remedy"]
    assert done.result["gzsl_seen"] > 80  # 50 without the bound
    page = write_report(done)
    assert "The offset between seen and unseen classes cannot be trusted" in page.read_text("utf-8")


def test_every_seen_class_has_one_turn(tree):
    benchmark = load_data(Experiment.from_dict(tree), 0)
    some = calibration_folds(benchmark, 0)
    assert some[0] is benchmark
    everyone = np.concatenate([one.space.validation for one in some])
    assert sorted(everyone) == list(range(SEEN))
    assert {len(one.space.validation) for one in some} <= {2, 3}
    enough = load_data(
        Experiment.load("digit-pairs-gaussian"), 0
    )  # whose validation classes suffice for one turn
    assert calibration_folds(enough, 0) == [enough]


@pytest.mark.parametrize(("validation", "turns"), [(1, MOST), (4, MOST), (5, 1)])
def test_many_classes_have_no_more_turns_than_are_worth_their_time(
    make_benchmark, make_space, validation, turns
):
    folds = calibration_folds(make_benchmark(make_space(50, (49,), range(validation)), 1, 1), 0)
    classes = np.concatenate([one.space.validation for one in folds])
    assert (len(folds), len(set(classes.tolist()))) == (turns, turns * validation)


@pytest.mark.slow
def test_the_factor_is_the_best_on_average_over_turns(tree, tmp_path):
    """Against a run of its own for each turn, which chooses nothing else."""
    done = run(Experiment.from_dict(tree), tmp_path / "run")
    chosen = done.result["chosen_on_validation"]
    assert chosen["turns"] == len(calibration_folds(load_data(done.experiment, 0), 0)) == 4
    assert done.result["calibration_factor"] == chosen["factor"]
    experiment = resolve_defaults(Experiment.from_dict(tree), load_data(done.experiment, 0))
    benchmark = load_data(experiment, 0)
    partition, answers = partition_of(experiment, benchmark, 0), []
    for selection in (turn.for_selection(0) for turn in calibration_folds(benchmark, 0)):
        federation = assemble(
            experiment, selection, partition.restricted_to(selection.train), selection=True
        )
        state, _ = federation.round(federation.start())
        answers.append(federation.answers(federation.fit_heads(state.params)))
    tried = np.linspace(-20, 20, 801)
    harmonic = [
        np.mean([accuracies(one, factor).gzsl_harmonic for one in answers]) for factor in tried
    ]
    own = np.mean([accuracies(one, chosen["wanted"]).gzsl_harmonic for one in answers])
    assert own >= max(harmonic) - 1e-9
    assert chosen["wanted"] != best_offset(answers[:1])


@pytest.mark.slow
def test_what_a_prior_is_promised_to_bring_is_what_a_run_with_it_has_after_turns(
    tree, described, tmp_path
):
    (tmp_path / "alike").mkdir()
    alike = described(tmp_path / "alike", (SEEN + 3, 6, 24), 0.8, 16, unseen=3, seed=5)
    tree = {**tree, "data": {**tree["data"], **alike}}
    runs = {
        prior: run(Experiment.from_dict(tree, {"evaluation.prior": prior}), tmp_path / prior).result
        for prior in PRIORS
    }
    assert "offsets" not in runs["auto"]["chosen_on_validation"]
    for prior, (offset, unseen, seen) in runs["auto"]["confidence"]["priors"].items():
        reached = runs[prior]
        assert offset == pytest.approx(reached["calibration_factor"], abs=1e-9)
        assert (unseen, seen) == (reached["gzsl_unseen"], reached["gzsl_seen"])
    assert len({result["calibration_factor"] for result in runs.values()}) > 1


@pytest.mark.slow
def test_turns_have_the_units_of_the_final_model(tree, tmp_path):
    """Left to itself, each turn would find its own shrinkage, and scores of other lengths."""
    del tree["method"]["shrinkage"]
    done = run(Experiment.from_dict(tree), tmp_path / "run")
    given = run(
        Experiment.from_dict(tree, {"method.shrinkage": float(done.params["kernel"][3])}),
        tmp_path / "given",
    )
    left, named = (chosen.result["chosen_on_validation"]["factor"] for chosen in (done, given))
    assert left == pytest.approx(named, rel=1e-9)


TRAINED = {"method.name": "fedzsl", "strategy.name": "fedavg", "strategy.rounds": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [{"evaluation.calibration": "none"}, {"evaluation.factor": 1.0}, TRAINED]
)
def test_nothing_turns_where_nothing_is_chosen_or_training_takes_time(change, tree, tmp_path):
    assert (
        "turns"
        not in run(Experiment.from_dict(tree, change), tmp_path / "run").result[
            "chosen_on_validation"
        ]
    )


STILL = {"method.lr": 1e-12, "method.weight_decay": 0.0}  # a step that changes nothing


@pytest.fixture(scope="module")
def started(described, tmp_path_factory):
    """More attributes than classes, so that a linear g can score the classes as any linear model
    does.
    """
    return {
        "data": described(
            tmp_path_factory.mktemp("start"), (13, 16, 30), 0.8, 20, unseen=3, validation=2, seed=2
        ),
        "partition": {"kind": "pccd", "clients": 3},
        "method": {"name": "fedzsl", "start": "closed-form"},
        "strategy": {"name": "fedavg", "rounds": 2, "local_epochs": 1},
        "evaluation": {"selection": "last", "embedding": False, "clients": False},
    }


DISTZSL = {"method.name": "distzsl", "method.decorrelation": 0.0, "strategy.name": "scaffold"}


@pytest.mark.slow
@pytest.mark.parametrize("change", [{}, DISTZSL, {"strategy.name": "centralised"}])
def test_a_trained_method_scores_as_the_closed_form_does_before_it_trains(
    change, started, tmp_path
):
    trained = run(Experiment.from_dict(started, {**STILL, **change}), tmp_path / "trained")
    alike = {
        "method.name": "gaussian",
        "data.features": ["centre", "l2"],
        "data.quantization": "none",
    }
    closed = run(Experiment.from_dict(started, alike), tmp_path / "closed")
    rows = torch.from_numpy(
        trained.scaler(np.load(f"{started['data']['root']}/features.npz")["features"])
    )
    one = trained.method.scores(trained.params, rows, trained.method.semantics)
    two = closed.method.scores(closed.params, rows, closed.method.semantics).float()
    apart = (one - one.mean(1, keepdim=True)) - (two - two.mean(1, keepdim=True))
    assert apart.abs().max() < 1e-3 * two.std()
    assert trained.result["start"]["zsl"] == closed.result["zsl"] == trained.result["zsl"]
    assert trained.result["start"]["bytes_up"] == closed.result["bytes_up"] > 0


@pytest.mark.slow
def test_training_goes_on_from_there(started, tmp_path):
    changes = {"begun": {}, "drawn": {"method.start": "random"}, "still": STILL}
    begun, drawn, still = (
        run(Experiment.from_dict(started, more), tmp_path / name) for name, more in changes.items()
    )
    assert begun.metrics[0]["losses"]["sce"] < drawn.metrics[0]["losses"]["sce"]
    assert not torch.equal(begun.params["g.weight"], still.params["g.weight"])
    assert "start" not in drawn.result


@pytest.mark.slow
def test_the_run_that_chooses_begins_without_the_validation_classes(started, tmp_path):
    run(Experiment.from_dict(started, {"evaluation.selection": "validation"}), tmp_path / "run")
    for part, seen in (("run/selection", 8), ("run", 10)):
        count = load_params(tmp_path / part / "start" / "model.safetensors")["count"]
        assert (count > 0).tolist() == [True] * seen + [False] * (13 - seen)


@pytest.mark.slow
def test_a_resumed_run_does_not_ask_for_sums_again(started, tmp_path, monkeypatch, cut_short):
    experiment = Experiment.from_dict(started)
    whole = run(experiment, tmp_path / "whole")
    cut_short(experiment, tmp_path / "cut", after=1, stage="training")
    monkeypatch.setattr("fedunseen.methods.closed_form.gaussian.Gaussian.statistics", None)
    assert same(whole, run(experiment, tmp_path / "cut", resume=True))


@pytest.mark.slow
def test_parties_elsewhere_send_their_sums_too(started, tmp_path):
    here = run(Experiment.from_dict(started, {"engine.mode": "one-at-a-time"}), tmp_path / "here")
    away = elsewhere(Experiment.from_dict(started), tmp_path / "away")
    assert away.result["start"] == here.result["start"]
    for name, value in here.params.items():
        assert torch.allclose(value, away.params[name], atol=1e-6)


def test_two_classes_with_one_description_are_said_where_a_run_begins(make_folder, tmp_path):
    def twins(rows, arrays):
        rows[12][2:] = rows[11][2:]

    data = {"name": "folder", "root": str(make_folder(tmp_path / "data", twins))}
    with pytest.warns(UserWarning, match="The classes 'k' and 'l' have the same description"):
        load_data(Experiment.from_dict({"data": data, "method": {"name": "gaussian"}}), 0)
