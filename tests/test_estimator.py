"""The estimator: scikit-learn's own checks, the road of an experiment as its reference, classes
that no one holds.
"""

import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sklearn import datasets
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedunseen import Experiment, ZeroShotClassifier, metrics, run
from fedunseen.core.errors import ArgumentError, DataError, ExperimentError
from fedunseen.core.random import stream
from fedunseen.data import Benchmark
from fedunseen.data.benchmarks.digit_pairs import DigitPairs
from fedunseen.estimator import _in_own_order
from fedunseen.federation.partition import make_partition
from fedunseen.metrics import harmonic_mean
from refusals import message_of
from same import same
from small_runs import ANIMALS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:the graphical lasso")]

QUICK = {"lr": 0.1, "kl": 0.0, "consistency": 0.0, "batch_size": 16}


def expected_to_fail(estimator):
    """Return the checks that a trained method fails, and why; none of a closed form."""
    if estimator.method == "gaussian":
        return {}
    reason = "batches are drawn by the place of a sample"
    return {"check_sample_weight_equivalence_on_dense_data": reason}


@parametrize_with_checks(
    [ZeroShotClassifier(), ZeroShotClassifier("fedzsl", rounds=3, method_params=QUICK)],
    expected_failed_checks=expected_to_fail,
)
def test_scikit_learns_checks(estimator, check):
    """Without a table, the classifier is an ordinary one."""
    check(estimator)


# Animals with six attributes, and 30 samples of each that show them through a random linear map;
# four are unseen.
RNG = np.random.default_rng(0)
TABLE = {f"animal {c:02}": RNG.random(6).tolist() for c in range(14)}
UNSEEN = list(TABLE)[-4:]
LAST = UNSEEN[-1]
NAMES = np.repeat(list(TABLE), 30)
X = np.array([TABLE[name] for name in NAMES]) @ RNG.normal(size=(6, 12))
X += 0.2 * RNG.normal(size=X.shape)
HELD = ~np.isin(NAMES, UNSEEN)
PARTIES = np.array([f"party {int(name[-2:]) % 3}" for name in NAMES])


def fit(model, **settings):
    """Fit a classifier to the samples of seen animals, with the table and the parties if nothing
    else is given.
    """
    return model.fit(
        X[HELD], NAMES[HELD], **{"classes": TABLE, "groups": PARTIES[HELD], **settings}
    )


@pytest.mark.parametrize("name", ["wine", "breast_cancer", "iris"])
def test_by_default_tables_in_any_units_are_told_apart_as_by_discriminant_analysis(name):
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    best = max(
        cross_val_score(m, x, y, cv=folds).mean()
        for m in (lda, make_pipeline(StandardScaler(), lda))
    )
    ours = cross_val_score(ZeroShotClassifier(), x, y, cv=folds).mean()
    assert ours >= best - 0.01
    units = np.geomspace(1e-2, 1e3, x.shape[1])
    again = cross_val_score(ZeroShotClassifier(), x * units, y, cv=folds).mean()
    assert again >= best - 0.01


def test_one_bad_cell_of_a_table_spoils_little():
    x, y = datasets.load_iris(return_X_y=True)
    x = x.copy()
    x[0, 0] = 1e6
    assert cross_val_score(ZeroShotClassifier(), x, y, cv=3).mean() > 0.95  # 0.40 on raw columns


def test_columns_in_several_units_are_standardized_and_loaded_so(tmp_path):
    x, y = datasets.load_wine(return_X_y=True)
    model = ZeroShotClassifier().fit(x, y.astype(str))
    model.save(tmp_path / "wine.safetensors")
    loaded = ZeroShotClassifier.load(tmp_path / "wine.safetensors")
    assert loaded.get_params()["features"] is None
    assert loaded._model.scaler.steps == ("standard",)
    assert np.array_equal(loaded.predict_proba(x), model.predict_proba(x))
    assert np.array_equal(loaded.fit(x, y.astype(str)).predict(x), model.predict(x))


@pytest.fixture(scope="module")
def fitted():
    return fit(ZeroShotClassifier("fedzsl", rounds=20, method_params={"lr": 0.05, "kl": 0.0}))


def test_classes_that_nobody_holds_are_recognised(fitted):
    right = fitted.predict(X[~HELD], classes=UNSEEN) == NAMES[~HELD]
    assert right.mean() > 0.6  # of four
    assert metrics.zsl(fitted.scores(X), fitted.ids(NAMES), ~fitted.seen_) == pytest.approx(
        100 * right.mean()
    )
    assert fitted.score(X[HELD], NAMES[HELD]) > 0.5  # of fourteen
    assert fitted.classes_[~fitted.seen_].tolist() == UNSEEN


def test_one_round_of_sums_is_as_good_as_all_samples_in_one_place():
    federated, pooled = fit(ZeroShotClassifier()), fit(ZeroShotClassifier(), groups=None)
    np.testing.assert_allclose(federated.scores(X), pooled.scores(X), rtol=1e-6)
    assert metrics.zsl(federated.scores(X), federated.ids(NAMES), ~federated.seen_) > 60  # of four
    assert federated.curve_ == {}


def test_calibration_is_what_lets_it_answer_with_unseen_classes(fitted):
    plain = fit(clone(fitted).set_params(calibration=0.0))
    balanced = fit(clone(fitted).set_params(prior="balanced"))
    assert plain.calibration_ == 0 != balanced.calibration_
    before, after = (
        metrics.generalized(model.scores(X), model.ids(NAMES), model.seen_, ~model.seen_)
        for model in (plain, balanced)
    )
    assert after.harmonic > before.harmonic


@pytest.mark.parametrize("alike", [0, 2, 16, 20])
def test_samples_are_put_in_the_order_of_all_their_bytes(alike):
    """Whatever number of first columns tells them apart; the same sample counts twice."""
    rng = np.random.default_rng(alike)
    rows = rng.integers(0, 3, (40, 20)).astype(np.float32)
    rows[:, :alike] = rng.integers(0, 2, (40, 1))
    rows[::4] = rows[1]
    labels = np.repeat(["horse", "zebra"], 20)
    table = {"horse": [0.0, 1.0], "zebra": [1.0, 1.0], "tiger": [1.0, 0.0]}
    groups = rng.integers(0, 2, 40)
    benchmark = Benchmark.from_arrays(rows, labels.tolist(), table, groups=groups)
    ordered, times = _in_own_order(benchmark, np.ones(40, dtype=np.int64))
    expected = sorted(
        {(row.tobytes(), c, g) for row, c, g in zip(rows, benchmark.labels, groups, strict=True)}
    )
    back = np.argsort(stream(4, "order of samples").permutation(len(expected)))
    parts = [ordered.features[back], ordered.labels[back], ordered.users[back]]
    assert [(row.tobytes(), c, g) for row, c, g in zip(*parts, strict=True)] == expected
    assert times.sum() == 40 > len(expected)


@pytest.mark.parametrize(
    ("classes", "features"),
    [(5, None), (10, None), (10, ("standard", "kernel"))],  # offsets of few classes are bounded too
)
def test_neither_the_order_of_samples_nor_the_seed_changes_a_closed_form(classes, features):
    table = {name: TABLE[name] for name in [*list(TABLE)[:classes], *UNSEEN]}
    mine = np.flatnonzero(np.isin(NAMES, list(table)[:classes]))
    rows = np.tile(X[mine], (8, 1)) + RNG.normal(size=(8 * len(mine), 12))
    labels = np.tile(NAMES[mine], 8)
    models = []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(rows))
        model = ZeroShotClassifier(random_state=seed, features=features)
        model.fit(rows[order], labels[order], classes=table)
        models.append((model.calibration_, model.predict_proba(X)))
    for offset, probabilities in models[1:]:
        assert offset == models[0][0]
        np.testing.assert_array_equal(probabilities, models[0][1])


@pytest.mark.parametrize("unit", [1.0, 2.5])
def test_a_weight_is_how_often_a_sample_counts(unit):
    times = RNG.integers(0, 4, len(X))
    again = np.repeat(np.flatnonzero(HELD), times[HELD])
    weighted = fit(ZeroShotClassifier(), sample_weight=unit * times[HELD])
    repeated = ZeroShotClassifier().fit(
        X[again], NAMES[again], classes=TABLE, groups=PARTIES[again]
    )
    if unit == 1:
        np.testing.assert_array_equal(weighted.scores(X), repeated.scores(X))
        left = weighted.forget("party 1")
        stays = again[PARTIES[again] != "party 1"]
        never = ZeroShotClassifier().fit(
            X[stays], NAMES[stays], classes=TABLE, groups=PARTIES[stays]
        )
        np.testing.assert_array_equal(left.scores(X), never.scores(X))
        np.testing.assert_allclose(weighted._model.params["count"], np.bincount(
            repeated.ids(NAMES[again]), minlength=14
        ))  # fmt: skip
    else:  # a weight counts as it is, but for rounding
        held = repeated.ids(NAMES[again])
        counts = unit * np.bincount(held, minlength=14)
        np.testing.assert_allclose(weighted._model.params["count"], counts, rtol=0.05)
        assert (weighted.predict(X[HELD]) == repeated.predict(X[HELD])).mean() > 0.95


def test_weights_that_make_no_sense_are_refused():
    for weights, message in (
        (-np.ones(HELD.sum()), "Negative values"),
        ([1.0], "sample_weight.shape"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(ZeroShotClassifier(), sample_weight=weights)
    with pytest.raises(ArgumentError, match="sample_weight has fractions"):
        fit(ZeroShotClassifier("fedzsl"), sample_weight=np.full(HELD.sum(), 0.5))


@pytest.mark.parametrize("noise", [0.05, 0.3, 1.0])
def test_few_seen_classes_are_not_given_to_an_unseen_one_by_the_calibration(noise):
    """Of four classes each is left out in turn; what that asks for would take a tiger, or a horse
    too, for a zebra.
    """
    y, harmonics = np.repeat(["horse", "tiger", "seal", "eel"], 50), []
    warned = 0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        encoder = rng.normal(size=(3, 16))
        samples = np.array([ANIMALS[name] for name in [*y, *["zebra"] * 50]]) @ encoder
        samples += noise * rng.normal(size=samples.shape)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = ZeroShotClassifier(prior="balanced").fit(
                samples[:200], y, classes=ANIMALS, groups=np.repeat(["a", "b"], 100)
            )
        numbers = model.per_class(samples, [*y, *["zebra"] * 50])
        assert min(numbers["accuracy"][:4]) > 30  # without the bound most draws lose all tigers
        assert model.calibration_ >= 0
        texts = [str(one.message) for one in caught]
        assert all("of 'tiger' would be taken for unseen classes" in text for text in texts)
        assert len(texts) == (model.calibration_ > 0)  # one that gains nothing is none
        warned += len(texts)
        harmonics.append(
            harmonic_mean(numbers["accuracy"][4], float(np.mean(numbers["accuracy"][:4])))
        )
    assert warned
    assert np.mean(harmonics) > 60


def test_a_class_described_after_training_is_a_candidate(fitted):
    classes = {"new": TABLE[LAST], "other": TABLE[UNSEEN[-2]]}
    assert np.mean(fitted.predict(X[NAMES == LAST], classes=classes) == "new") > 0.6
    proba = fitted.predict_proba(X[NAMES == LAST], classes=classes)
    assert proba.shape == (30, 2)
    np.testing.assert_allclose(proba.sum(1), 1)


def gaussian():
    """Fit the default with all classes but the last in its table."""
    model = ZeroShotClassifier(features=("l2",), semantics=("centre", "l2"), calibration=0.5)
    return fit(model, classes={name: row for name, row in TABLE.items() if name != LAST})


def test_it_learns_classes_that_are_described_shown_or_both(tmp_path):
    model, samples = gaussian(), X[NAMES == LAST]
    before = model.scores(samples)
    row, shown = {LAST: TABLE[LAST]}, {LAST: samples[:5]}
    by = {
        "described": model.learn(row),
        "shown": model.learn(examples=shown),
        "both": model.learn(row, shown),
        "then described": model.learn(examples=shown).learn(row),
        "then shown": model.learn(row).learn(examples=shown),
    }
    for how, learned in by.items():
        scores = learned.scores(samples)
        assert learned.classes_.tolist() == list(TABLE)
        assert not learned.seen_[-1]
        assert (learned.predict(samples[5:]) == LAST).mean() > (
            0.5 if how == "described" else 0.9
        ), how
        learned.save(tmp_path / how)
        np.testing.assert_array_equal(
            ZeroShotClassifier.load(tmp_path / how).scores(samples), scores
        )
        two = learned.scores(
            samples, classes=[LAST, "animal 00"]
        )  # its columns, and no other class
        np.testing.assert_array_equal(two, scores[:, [0, -1]])
        if how.startswith("then"):
            np.testing.assert_allclose(scores, by["both"].scores(samples), rtol=1e-6)
    np.testing.assert_array_equal(model.scores(samples), before)  # the estimator itself stays


def test_a_trained_method_learns_by_descriptions_alone(fitted):
    learned = fitted.learn({"new": [2 * value for value in TABLE[LAST]]})
    assert learned.scores(X).shape == (len(X), 15)
    np.testing.assert_array_equal(learned.scores(X)[:, :14], fitted.scores(X))


UNREADABLE = np.where(np.arange(X.size).reshape(X.shape) == 77, -np.inf, X)
HOLDERS = np.where(np.arange(len(X)) == 5, np.nan, 1.0)
OTHERS = (
    r"the classes have other attributes than those of the training \(the first is 'attribute 1'\)"
)


@pytest.mark.parametrize(
    ("method", "given", "error", "message"),
    [
        (
            "fit",
            {"X": UNREADABLE.view(np.memmap), "y": NAMES},
            DataError,
            "the features of some samples hold NaN",
        ),
        ("fit", {"X": UNREADABLE, "y": NAMES}, ValueError, "Input X contains infinity"),
        (
            "fit",
            {"X": X * 0 + 3, "y": NAMES},
            DataError,
            "arrays: all training samples have the same features: nothing",
        ),
        (
            "fit",
            {"groups": HOLDERS, "X": X, "y": NAMES},
            DataError,
            "groups: sample 5 has nan: name the party",
        ),
        (
            "fit",
            {"groups": [*"ab", None] * 2, "X": X[:6], "y": [*TABLE][:2] * 3},
            DataError,
            "groups: sample 2 has None: name the",
        ),
        ("learn", {}, DataError, "there is nothing to learn: give classes, examples, or both"),
        ("learn", {"classes": {"a": [1.0]}}, ArgumentError, OTHERS),
        (
            "learn",
            {"examples": {"a": [[1.0]]}},
            ValueError,
            "X has 1 features, but ZeroShotClassifier is expecting 12",
        ),
        (
            "learn",
            {"examples": {"Animal 00": X[:1]}},
            DataError,
            "the examples are of 'Animal 00', and there is a",
        ),
        (
            "fit",
            {"X": X * 1e200, "y": NAMES},
            DataError,
            r"the samples: the number .* of sample 0 is too large: float32",
        ),
        (
            "adapt",
            {"X": X * 1e200},
            DataError,
            r"the unlabelled samples: the number .* of sample 0 is too large",
        ),
        (
            "learn",
            {"examples": {"a": X[:1] * 1e200}},
            DataError,
            r"X: the number .* of sample 0 is too large: float32",
        ),
        (
            "predict",
            {"X": X[:3] * [[1], [1], [1e200]]},
            DataError,
            r"X: the number .* of sample 2 is too large: float32",
        ),
        (
            "predict",
            {"X": X, "classes": ["animal 99"]},
            ArgumentError,
            "'animal 99' is not a class of this classifier",
        ),
        ("predict", {"X": X, "classes": []}, ArgumentError, "give class names as a list"),
        ("predict", {"X": X, "classes": {"a": [1.0], "b": [2.0]}}, ArgumentError, OTHERS),
    ],
)
def test_classes_and_examples_that_make_no_sense_are_refused(method, given, error, message):
    model = gaussian()
    with pytest.raises(error, match=f"^{message}"):
        getattr(model, method)(**given)


def test_a_forgotten_party_was_never_there(fitted):
    model = gaussian()
    left, stays = model.forget("party 1"), HELD & (PARTIES != "party 1")
    known = {name: TABLE[name] for name in model.classes_}
    never = clone(model).fit(X[stays], NAMES[stays], classes=known, groups=PARTIES[stays])
    assert left.seen_.tolist() == never.seen_.tolist() != model.seen_.tolist()
    np.testing.assert_array_equal(left.scores(X), never.scores(X))
    alone = left.forget("party 2")
    assert not np.array_equal(alone.scores(X), left.scores(X))
    for forgetful, party, message in (
        (left, "party 1", "groups: unknown party 'party 1'"),
        (alone, "party 0", "there is one party: without it nothing is left"),
        (
            model.learn({"new": [1.0] * 6}),
            "party 1",
            "no sums of single parties are here: call forget after fit",
        ),
        (
            fitted,
            "party 1",
            "method = 'fedzsl' is trained, so that every party is in every parameter",
        ),
    ):
        with pytest.raises(ArgumentError, match=f"^{message}"):
            forgetful.forget(party)


def test_the_training_is_that_of_an_experiment(tmp_path):
    overrides = {
        "data.train_per_class": 6, "data.test_per_class": 2, "partition.clients": 4, "strategy.rounds": 2,
        "evaluation.selection": "last", "evaluation.clients": False, "evaluation.embedding": False,
        "evaluation.theory": False, "strategy.name": "fedprox", "strategy.fraction": 0.5, "run.seed": 3,
    }  # fmt: skip
    experiment = Experiment.load("digit-pairs-fedavg", overrides)
    expected = run(experiment, tmp_path / "run").params
    benchmark = DigitPairs.load(experiment.data, 3)
    space, clients = benchmark.space, make_partition(experiment.partition, benchmark, 3).clients
    model = ZeroShotClassifier(
        "fedzsl", "fedprox", rounds=2, strategy_params={"fraction": 0.5}, features=(), random_state=3, calibration=0.0,
        method_params={"hidden": [256], "lr": 0.1, "kl": 1.0, "consistency": 0.0},
    )  # fmt: skip
    table = {space.names[c]: space.semantics[c] for c in np.union1d(space.seen, space.unseen)}
    ids, parties = np.concatenate(clients), np.repeat(range(4), [len(own) for own in clients])
    model.fit(
        benchmark.features[ids],
        np.array(space.names)[benchmark.labels[ids]],
        classes=table,
        groups=parties,
    )
    assert same(model._model.params, expected)


def test_tables_of_all_kinds_say_the_same(fitted):
    attributes, values = [f"attribute {i}" for i in range(6)], np.array(list(TABLE.values()))
    frame = SimpleNamespace(
        index=list(TABLE), columns=attributes, to_numpy=lambda: values
    )  # pandas', as far as needed
    rows = {name: dict(zip(attributes, row, strict=True)) for name, row in reversed(TABLE.items())}
    for model in (
        fit(clone(fitted), classes=frame),
        fit(clone(fitted).set_params(classes=rows), classes=None),
    ):
        np.testing.assert_array_equal(model.scores(X), fitted.scores(X))


def test_it_is_saved_and_loaded_without_a_pickle(fitted, tmp_path):
    path = tmp_path / "animals.safetensors"
    fitted.save(path)
    loaded = ZeroShotClassifier.load(path)
    np.testing.assert_array_equal(loaded.scores(X), fitted.scores(X))
    assert loaded.classes_.tolist() == fitted.classes_.tolist()
    one, other = (
        model.predict(X[:3], classes={"a": [1] * 6, "b": [0.1] * 6}).tolist()
        for model in (loaded, fitted)
    )
    assert one == other
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_what_is_no_saved_classifier_is_refused(fitted, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"nothing")
    message = message_of(ZeroShotClassifier.load, path)
    assert message.startswith(f"{path} cannot be read as a model (")
    assert message.endswith("): give a file that `save` wrote")
    fitted.save(path)
    tensors = load_file(path)
    del tensors["semantics"]
    with safe_open(path, "pt") as file:
        save_file(tensors, path, file.metadata())
    assert (
        message_of(ZeroShotClassifier.load, path)
        == f"{path} is damaged ('semantics'): save the model again"
    )


@pytest.mark.parametrize(
    "table", [TABLE, {str(k): {"a": v[0], "b": v[1]} for k, v in TABLE.items()}]
)
def test_the_constructors_arguments_are_saved_too(table, tmp_path):
    arguments = {
        "rounds": np.int64(2),
        "method_params": {"lr": np.float64(0.05), "kl": 0.0},
        "features": ("centre", "l2"),
        "classes": table,
        "random_state": 3,
    }
    model = ZeroShotClassifier("fedzsl", **arguments).fit(X[HELD], NAMES[HELD])
    model.save(tmp_path / "model")
    loaded = ZeroShotClassifier.load(tmp_path / "model")
    assert loaded.calibration == "validation"
    assert loaded.get_params()["method_params"] == {"lr": 0.05, "kl": 0.0}
    for again in (loaded.fit(X[HELD], NAMES[HELD]), clone(loaded).fit(X[HELD], NAMES[HELD])):
        np.testing.assert_array_equal(again.scores(X), model.scores(X))
        assert again.calibration_ == model.calibration_
    assert model.calibration_ != 0


def test_a_table_that_fit_was_given_does_not_count_in_a_later_fit_and_its_loss_is_said(tmp_path):
    """As scikit-learn has it: arguments of the constructor survive, those of ``fit`` do not."""
    samples, names = X[HELD], NAMES[HELD]
    model = ZeroShotClassifier(random_state=None).fit(samples, names, classes=TABLE)
    model.save(tmp_path / "model")
    loaded = ZeroShotClassifier.load(tmp_path / "model")
    assert loaded.get_params() == model.get_params()
    assert (loaded.classes, loaded.random_state) == (None, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(loaded).fit(samples, names)  # it was never given one
        ZeroShotClassifier.load(tmp_path / "model").fit(samples, names, classes=TABLE)
    for again in (model, loaded):
        with pytest.warns(UserWarning, match="this fit has no table of classes, and the one that"):
            again.fit(samples, names)
        assert again.classes_.tolist() == sorted(set(names.tolist()))


def test_a_random_state_that_was_drawn_is_saved_as_its_seed(tmp_path):
    drawn = ZeroShotClassifier("fedzsl", rounds=1, random_state=np.random.RandomState(5))
    model = fit(drawn)
    model.save(tmp_path / "model")
    again = fit(ZeroShotClassifier.load(tmp_path / "model"))
    np.testing.assert_array_equal(again.scores(X), model.scores(X))


def test_scikit_learns_tools_take_it():
    model = ZeroShotClassifier(classes=TABLE)
    assert cross_val_score(
        make_pipeline(StandardScaler(), model), X[HELD], NAMES[HELD], cv=2
    ).shape == (2,)
    search = GridSearchCV(model, {"features": [(), ("l2",)], "calibration": [0.0]}, cv=2)
    with sklearn.config_context(enable_metadata_routing=True):
        model.set_fit_request(groups=True, classes=True)
        fit(search)
    assert set(search.best_params_) == {"features", "calibration"}
    assert len(search.best_estimator_.classes_) == 14


def test_decisions_and_logarithms_follow_from_scores(fitted):
    np.testing.assert_array_equal(fitted.decision_function(X), fitted.scores(X))
    logarithms = fitted.predict_log_proba(X)
    np.testing.assert_allclose(np.exp(logarithms), fitted.predict_proba(X))
    two = np.isin(NAMES, list(TABLE)[:2])
    pair = ZeroShotClassifier().fit(X[two], NAMES[two])
    leads = pair.decision_function(X[two])
    assert leads.shape == (two.sum(),)
    assert pair.classes_[(leads > 0).astype(int)].tolist() == pair.predict(X[two]).tolist()


def test_unlabelled_samples_help_where_every_class_is_seen():
    x, y = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    labeled = np.concatenate([order[y[order] == digit][:5] for digit in range(10)])
    others = np.setdiff1d(np.arange(len(y)), labeled)
    pool, test = others[::2], others[1::2]
    model = ZeroShotClassifier().fit(x[labeled], y[labeled])
    adapted = model.adapt(x[pool])
    assert adapted.score(x[test], y[test]) > model.score(x[test], y[test]) + 0.02
    assert adapted.soft_counts_.sum() > 0.9 * len(pool)
    missing = np.where(np.isin(np.arange(len(y)), labeled), y, np.nan)[np.r_[labeled, pool]]
    at_once = ZeroShotClassifier().fit(x[np.r_[labeled, pool]], missing)
    assert (at_once.predict(x[test]) == adapted.predict(x[test])).all()


def test_unlabelled_samples_of_no_seen_class_do_not_count():
    model = ZeroShotClassifier().fit(X[HELD], NAMES[HELD])
    far = 50 + RNG.normal(size=(40, 12))
    with pytest.warns(UserWarning, match=r"change nothing for .* 'animal 04' and 5 more classes\."):
        adapted = model.adapt(far)
    np.testing.assert_array_equal(adapted.predict(X[HELD]), model.predict(X[HELD]))
    with pytest.raises(DataError, match="every class has labeled samples, so that unlabelled"):
        model.adapt(far, among="unseen")


def test_the_tables_count_samples_and_right_answers(fitted):
    counts = confusion_matrix(NAMES[HELD], fitted.predict(X[HELD]), labels=list(TABLE))
    seen = ~np.isin(list(TABLE), UNSEEN)
    percent = np.where(seen[:, None], 100 * counts / 30, np.nan)
    confusion = {"class": list(TABLE), **dict(zip(TABLE, percent.T.tolist(), strict=True))}
    np.testing.assert_equal(fitted.confusion(X[HELD], NAMES[HELD]), confusion)
    each = {
        "class": list(TABLE),
        "seen": seen.tolist(),
        "samples": (30 * seen).tolist(),
        "accuracy": np.diag(percent),
    }
    np.testing.assert_equal(fitted.per_class(X[HELD], NAMES[HELD]), each)
    losses = fitted.curve_["loss"]
    assert len(losses) == 20
    assert losses[-1] < losses[0]


SHARED = {"rounds": 1, "method_params": {"hidden": [4]}, "strategy_params": {"shared": ["f.*"]}}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"method": "fedzls"},
            ExperimentError,
            "method.name: unknown method 'fedzls': did you mean 'fedzsl'?",
        ),
        ({"method": "maml"}, ArgumentError, "method = 'maml' learns classes from examples"),
        ({"strategy": "local"}, ArgumentError, "strategy = 'local' merges nothing"),
        (
            {"method": "fedzsl", **SHARED},
            ArgumentError,
            r"strategy_params\['shared'\] = \['f.\*'\] leaves each client",
        ),
        ({"method": "fedzsl", "method_params": {"lr": -1}}, ExperimentError, "method.lr"),
        (
            {"rounds": 2},
            ExperimentError,
            "method.name = 'gaussian' is solved from sums, which clients send once",
        ),
        ({"rounds": 0}, ExperimentError, "strategy.rounds"),
        ({"features": ["l3"]}, ExperimentError, "data.features"),
        ({"classes": {"animal 00": [1.0]}}, ArgumentError, "there is only one class"),
    ],
)
def test_what_makes_no_sense_is_refused(options, error, message):
    with pytest.raises(error, match=f"^{message}"):
        ZeroShotClassifier(**options).fit(X[:60], NAMES[:60])


def test_importing_the_package_its_metrics_and_its_partitions_imports_no_torch():
    code = "import sys; from fedunseen import metrics, partitions; assert not {'torch', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
