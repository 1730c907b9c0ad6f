"""The estimator: scikit-learn's own checks, the road of an experiment as its reference, classes that no one holds."""

import json
import subprocess
import sys

import numpy as np
import pytest
import sklearn
import torch
from safetensors.torch import load_file, save_file
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedunseen import Experiment, metrics, run
from fedunseen.core.errors import ArgumentError, DataError, ExperimentError
from fedunseen.data.benchmarks.digit_pairs import DigitPairs
from fedunseen.estimator import ZeroShotClassifier
from fedunseen.federation.partition import make_partition

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:the graphical lasso")]

QUICK = {"lr": 0.1, "kl": 0.0, "consistency": 0.0, "batch_size": 16}


@parametrize_with_checks([ZeroShotClassifier(), ZeroShotClassifier("fedzsl", rounds=3, method_params=QUICK)])
def test_scikit_learns_checks(estimator, check):
    """None is left out: without a table, the classifier is an ordinary one."""
    check(estimator)


def animals(classes=14, attributes=6, per_class=30, seed=0):
    """Draw classes with attributes, and samples that show them through a random linear map; four are unseen."""
    rng = np.random.default_rng(seed)
    table = {f"animal {c:02}": rng.random(attributes).tolist() for c in range(classes)}
    names = np.repeat(list(table), per_class)
    clean = np.array([table[name] for name in names]) @ rng.normal(size=(attributes, 12))
    X = clean + 0.2 * rng.normal(size=clean.shape)
    held = np.isin(names, list(table)[:-4])
    parties = np.array([f"party {int(name[-2:]) % 3}" for name in names])
    return table, X, names, held, parties


def fit(model, **settings):
    """Fit a classifier to the samples of seen animals, with the table and the parties if nothing else is given."""
    table, X, names, held, parties = animals()
    return model.fit(X[held], names[held], **{"classes": table, "groups": parties[held], **settings})


@pytest.fixture(scope="module")
def fitted():
    return fit(ZeroShotClassifier("fedzsl", rounds=20, method_params={"lr": 0.05, "kl": 0.0}))


def test_classes_that_nobody_holds_are_recognised(fitted):
    table, X, names, held, _ = animals()
    unseen = list(table)[-4:]
    right = fitted.predict(X[~held], classes=unseen) == names[~held]
    assert right.mean() > 0.6  # of four
    assert metrics.zsl(fitted.scores(X), fitted.ids(names), ~fitted.seen_) == pytest.approx(100 * right.mean())
    assert fitted.score(X[held], names[held]) > 0.5  # of fourteen
    assert fitted.classes_[~fitted.seen_].tolist() == unseen


def test_one_round_of_sums_is_as_good_as_all_samples_in_one_place():
    _, X, names, _, _ = animals()
    federated, pooled = fit(ZeroShotClassifier()), fit(ZeroShotClassifier(), groups=None)
    np.testing.assert_allclose(federated.scores(X), pooled.scores(X), rtol=1e-6)
    assert metrics.zsl(federated.scores(X), federated.ids(names), ~federated.seen_) > 60  # of four
    assert federated.curve_ == {}


def test_calibration_is_what_lets_it_answer_with_unseen_classes(fitted):
    _, X, names, _, _ = animals()
    plain = fit(clone(fitted).set_params(calibration=0.0))
    assert plain.calibration_ == 0
    assert fitted.calibration_ != 0
    before, after = (
        metrics.generalized(model.scores(X), model.ids(names), model.seen_, ~model.seen_) for model in (plain, fitted)
    )
    assert after.harmonic > before.harmonic


def test_a_class_described_after_training_is_a_candidate(fitted):
    table, X, names, _, _ = animals()
    here = names == list(table)[-1]
    classes = {"new": table[list(table)[-1]], "other": list(table.values())[-2]}
    assert np.mean(fitted.predict(X[here], classes=classes) == "new") > 0.6
    proba = fitted.predict_proba(X[here], classes=classes)
    assert proba.shape == (here.sum(), 2)
    np.testing.assert_allclose(proba.sum(1), 1)


def gaussian():
    """Fit the default, and return the last class, which is not in its table: name, description, samples."""
    table, X, names, _, _ = animals()
    last = list(table)[-1]
    model = ZeroShotClassifier(features=("l2",), semantics=("centre", "l2"), calibration=0.5)
    known = {name: row for name, row in table.items() if name != last}
    return fit(model, classes=known), last, table[last], X[names == last]


def test_it_learns_classes_that_are_described_shown_or_both(tmp_path):
    model, last, row, X = gaussian()
    before = model.scores(X)
    by = {
        "described": model.learn({last: row}),
        "shown": model.learn(examples={last: X[:5]}),
        "both": model.learn({last: row}, {last: X[:5]}),
        "then described": model.learn(examples={last: X[:5]}).learn({last: row}),
        "then shown": model.learn({last: row}).learn(examples={last: X[:5]}),
    }
    for how, learned in by.items():
        assert learned.classes_.tolist() == [*model.classes_, last]
        assert not learned.seen_[-1]
        assert (learned.predict(X[5:]) == last).mean() > (0.5 if how == "described" else 0.9), how
        learned.save(tmp_path / how)
        np.testing.assert_array_equal(ZeroShotClassifier.load(tmp_path / how).scores(X), learned.scores(X))
        two = learned.scores(X, classes=[last, "animal 00"])  # its columns, and no other class
        np.testing.assert_array_equal(two, learned.scores(X)[:, [0, -1]])
    for how in ("then described", "then shown"):
        np.testing.assert_allclose(by[how].scores(X), by["both"].scores(X), rtol=1e-6)
    np.testing.assert_array_equal(model.scores(X), before)  # the estimator itself stays


def test_a_trained_method_learns_by_descriptions_alone(fitted):
    table, X, *_ = animals()
    learned = fitted.learn({"new": [2 * value for value in table["animal 13"]]})
    assert learned.scores(X).shape == (len(X), 15)
    np.testing.assert_array_equal(learned.scores(X)[:, :14], fitted.scores(X))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, DataError, "there is nothing to learn: give classes, examples, or both"),
        ({"classes": {"a": [1.0]}}, ArgumentError, "the classes have other attributes than those of the training"),
        ({"examples": {"a": [[1.0]]}}, ValueError, "X has 1 features, but ZeroShotClassifier is expecting 12"),
        ({"examples": {"Animal 00": np.zeros((1, 12))}}, DataError, "the examples are of 'Animal 00', and there is a"),
    ],
)
def test_what_cannot_be_learned_is_refused(options, error, message):
    with pytest.raises(error, match=f"^{message}"):
        gaussian()[0].learn(**options)


def test_a_forgotten_party_was_never_there(fitted):
    table, X, names, held, parties = animals()
    model = gaussian()[0]
    left, stays = model.forget("party 1"), held & (parties != "party 1")
    known = {name: table[name] for name in model.classes_}
    never = clone(model).fit(X[stays], names[stays], classes=known, groups=parties[stays])
    assert left.seen_.tolist() == never.seen_.tolist() != model.seen_.tolist()
    np.testing.assert_array_equal(left.scores(X), never.scores(X))
    alone = left.forget("party 2")
    assert not np.array_equal(alone.scores(X), left.scores(X))
    for forgetful, party, message in (
        (left, "party 1", "groups: unknown party 'party 1'"),
        (alone, "party 0", "there is one party: without it nothing is left"),
        (model.learn({"new": [1.0] * 6}), "party 1", "no sums of single parties are here: call forget after fit"),
        (fitted, "party 1", "method = 'fedzsl' is trained, so that every party is in every parameter"),
    ):
        with pytest.raises(ArgumentError, match=f"^{message}"):
            forgetful.forget(party)


def test_the_training_is_that_of_an_experiment(tmp_path):
    overrides = {
        "data.train_per_class": 6, "data.test_per_class": 2, "partition.clients": 4, "strategy.rounds": 2,
        "evaluation.selection": "last", "evaluation.clients": False, "evaluation.embedding": False,
        "evaluation.theory": False, "strategy.name": "fedprox", "strategy.fraction": 0.5, "run.seed": 3,
    }  # fmt: skip
    experiment = Experiment.load("digit-pairs", overrides)
    expected = run(experiment, tmp_path / "run").params
    benchmark = DigitPairs.load(experiment.data, 3)
    partition, train = make_partition(experiment.partition, benchmark, 3), benchmark.train
    space = benchmark.space
    party = np.zeros(len(benchmark.labels), dtype=int)
    for k, ids in enumerate(partition.clients):
        party[ids] = k
    model = ZeroShotClassifier(
        "fedzsl", "fedprox", rounds=2, strategy_params={"fraction": 0.5}, features=(), random_state=3, calibration=0.0,
        method_params={"hidden": [256], "lr": 0.1, "kl": 1.0, "consistency": 0.0},
    )  # fmt: skip
    names = np.array(space.names)[benchmark.labels[train]]
    kept = np.union1d(space.seen, space.unseen)
    table = {space.names[c]: space.semantics[c] for c in kept}
    model.fit(benchmark.features[train], names, classes=table, groups=party[train])
    assert sorted(model._params) == sorted(expected)
    for name, value in expected.items():
        assert torch.equal(model._params[name], value)


class Frame:
    """A data frame, as far as it matters: a class a row, an attribute a column."""

    def __init__(self, table):
        self.index, self.columns = list(table), [f"attribute {i}" for i in range(6)]
        self.values = np.array(list(table.values()))

    def to_numpy(self):
        return self.values


def test_tables_of_all_kinds_say_the_same(fitted):
    table, X, *_ = animals()
    frame = fit(clone(fitted), classes=Frame(table))
    rows = {name: {f"attribute {i}": v for i, v in enumerate(values)} for name, values in reversed(table.items())}
    named = fit(clone(fitted).set_params(classes=rows), classes=None)
    for model in (frame, named):
        np.testing.assert_array_equal(model.scores(X), fitted.scores(X))


def test_it_is_saved_and_loaded_without_a_pickle(fitted, tmp_path):
    _, X, _, _, _ = animals()
    path = tmp_path / "animals.safetensors"
    fitted.save(path)
    loaded = ZeroShotClassifier.load(path)
    np.testing.assert_array_equal(loaded.scores(X), fitted.scores(X))
    assert loaded.classes_.tolist() == fitted.classes_.tolist()
    one, other = (model.predict(X[:3], classes={"a": [1] * 6, "b": [0.1] * 6}).tolist() for model in (loaded, fitted))
    assert one == other
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_what_is_no_saved_classifier_is_refused(fitted, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"file cannot be read as a classifier \(.*\): give a file that `save` wrote$"):
        ZeroShotClassifier.load(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(DataError, match="is not a classifier of this version of FedUnseen: give a file that its"):
        ZeroShotClassifier.load(path)
    fitted.save(path)
    tensors = {name: value for name, value in load_file(path).items() if name != "semantics"}
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        metadata = json.loads(file.read(size))["__metadata__"]
    save_file(tensors, path, metadata)
    with pytest.raises(DataError, match=r"is damaged \('semantics'\): save the classifier again$"):
        ZeroShotClassifier.load(path)


def test_scikit_learns_tools_take_it():
    table, X, names, held, parties = animals(per_class=12)
    model = ZeroShotClassifier(classes=table)
    assert cross_val_score(make_pipeline(StandardScaler(), model), X[held], names[held], cv=2).shape == (2,)
    search = GridSearchCV(model, {"features": [(), ("l2",)], "calibration": [0.0]}, cv=2)
    with sklearn.config_context(enable_metadata_routing=True):
        model.set_fit_request(groups=True, classes=True)
        search.fit(X[held], names[held], groups=parties[held], classes=table)
    assert set(search.best_params_) == {"features", "calibration"}
    assert len(search.best_estimator_.classes_) == 14


def test_the_tables_count_samples_and_right_answers(fitted):
    _, X, names, held, _ = animals()
    answers = fitted.predict(X[held])
    each, confusion = fitted.per_class(X[held], names[held]), fitted.confusion(X[held], names[held])
    for i, name in enumerate(fitted.classes_):
        own = answers[names[held] == name]
        assert each["class"][i] == confusion["class"][i] == name
        assert each["samples"][i] == len(own)
        assert each["seen"][i] == bool(len(own))
        assert each["accuracy"][i] == pytest.approx(100 * np.mean(own == name) if len(own) else np.nan, nan_ok=True)
        for other in fitted.classes_:
            share = 100 * np.mean(own == other) if len(own) else np.nan
            assert confusion[other][i] == pytest.approx(share, nan_ok=True)
    losses = fitted.curve_["loss"]
    assert len(losses) == 20
    assert losses[-1] < losses[0]


SHARED = {"rounds": 1, "method_params": {"hidden": [4]}, "strategy_params": {"shared": ["f.*"]}}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"method": "fedzls"}, ExperimentError, "method.name: unknown method 'fedzls': did you mean 'fedzsl'?"),
        ({"method": "maml"}, ArgumentError, "method = 'maml' learns classes from examples"),
        ({"strategy": "local"}, ArgumentError, "strategy = 'local' merges nothing"),
        ({"method": "fedzsl", **SHARED}, ArgumentError, r"strategy_params\['shared'\] = \['f.\*'\] leaves each client"),
        ({"method": "fedzsl", "method_params": {"lr": -1}}, ExperimentError, "method.lr"),
        ({"rounds": 2}, ExperimentError, "method.name = 'gaussian' is solved from sums, which clients send once"),
        ({"rounds": 0}, ExperimentError, "strategy.rounds"),
        ({"features": ["l3"]}, ExperimentError, "data.features"),
        ({"classes": {"animal 00": [1.0]}}, ArgumentError, "there is only one class"),
    ],
)
def test_what_makes_no_sense_is_refused(options, error, message):
    _, X, names, _, _ = animals()
    with pytest.raises(error, match=f"^{message}"):
        ZeroShotClassifier(**options).fit(X[:60], names[:60])


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["animal 99"], "'animal 99' is not a class of this classifier"),
        ([], "give class names as a list"),
        ({"a": [1.0], "b": [2.0]}, r"the classes have other attributes .* \(the first is 'attribute 1'\)"),
    ],
)
def test_candidates_that_make_no_sense_are_refused(fitted, classes, message):
    with pytest.raises(ArgumentError, match=f"^{message}"):
        fitted.predict(animals()[1], classes=classes)


def test_importing_the_package_its_metrics_and_its_partitions_imports_no_torch():
    code = "import sys; from fedunseen import metrics, partitions; assert not {'torch', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
