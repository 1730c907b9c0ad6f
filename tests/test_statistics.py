"""Statistics as an object: any tree of parts gives the bits of a run, and what does not belong
together is refused.
"""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from fedunseen import Experiment, FedUnseenError, Statistics, ZeroShotClassifier, run
from fedunseen.core.errors import ArgumentError, DataError, ExperimentError
from fedunseen.data.benchmarks.digit_pairs import DigitPairs
from fedunseen.federation.partition import make_partition

RNG = np.random.default_rng(0)
TABLE = {f"animal {c}": RNG.random(5).tolist() for c in range(8)}
NAMES = np.repeat(list(TABLE)[:6], 20)
MIXING = RNG.normal(size=(5, 7))
X = np.array([TABLE[name] for name in NAMES]) @ MIXING + 0.2 * RNG.normal(size=(120, 7))
MODEL = ZeroShotClassifier(features=("l2",), calibration=0.25).fit(X, NAMES, classes=TABLE)
WHOLE = Statistics.plan(MODEL).add(X, NAMES)
DIGITS = {
    "evaluation.selection": "last", "evaluation.embedding": False, "data.train_per_class": 6,
    "data.test_per_class": 2, "partition.clients": 3,
}  # fmt: skip


def part(rows):
    return Statistics.plan(MODEL).add(X[rows], NAMES[rows])


def code_of(call, *arguments):
    with pytest.raises(FedUnseenError) as caught:
        call(*arguments)
    return caught.value.code


def digits(**changes):
    return Experiment.load("digit-pairs-gaussian", {**DIGITS, **changes})


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.data(), st.permutations(range(len(X))), st.integers(1, 4))
def test_any_order_tree_and_number_of_workers_gives_the_same_bits(data, order, workers):
    cuts = data.draw(st.lists(st.integers(0, len(X)), max_size=7).map(sorted))
    with ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(part, np.split(np.array(order), cuts)))
    while len(parts) > 1:
        left = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        right = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        parts.append(left + right)
    assert parts[0].sums_sha256 == WHOLE.sums_sha256
    assert parts[0].sha256 == WHOLE.sha256


def test_sums_are_those_of_whole_numbers_added_one_by_one():
    codes = MODEL._model.scaler.codes(X)[0].tolist()
    names = MODEL.classes_.tolist()
    count = [0] * len(names)
    total = [[0] * 7 for _ in names]
    square = [[0] * 7 for _ in range(7)]
    for row, name in zip(codes, NAMES.tolist(), strict=True):
        place = names.index(name)
        count[place] += 1
        total[place] = [a + b for a, b in zip(total[place], row, strict=True)]
        for i in range(7):
            for j in range(7):
                square[i][j] += row[i] * row[j]
    assert WHOLE.params["count"].tolist() == count
    assert WHOLE.params["total"].tolist() == total
    upper = [square[i][j] for i in range(7) for j in range(i, 7)]
    assert WHOLE.params["square"].tolist() == upper


def test_a_model_follows_as_from_fit():
    np.testing.assert_array_equal(WHOLE.solve().scores(X), MODEL._model.scores(X))
    assert (WHOLE.planned.source, WHOLE.samples) == ("model", 120)
    assert WHOLE.solve().calibration.offset == 0.25


@pytest.mark.slow
def test_an_experiment_plans_the_statistics_of_its_run(tmp_path):
    done = run(digits(), tmp_path / "run")
    data = DigitPairs.load(digits().data, 0)
    rows = data.train
    names = np.array(data.space.names)[data.labels[rows]]
    total = Statistics.plan(digits()).add(data.features[rows], names)
    assert total.planned.source == "known"
    assert total.sums_sha256 == done.result["sums_sha256"]
    for name, value in total.solve().params.items():
        assert bool((value == done.params[name]).all()), name
    of_model = Statistics.plan(done.model).add(data.features[rows], names)
    assert of_model == total


def test_where_the_scaling_comes_from_is_said():
    standard = {"data.features": ["standard"]}
    assert Statistics.plan(digits(**standard)).planned.source == "first pass"
    features = DigitPairs.load(digits().data, 0).features[:40]
    sampled = Statistics.plan(digits(**standard), sample=features)
    assert sampled.planned.source == "sample"
    scale = {"data.features": ["min-max"], "data.bounds": [[0, 1]]}
    assert Statistics.plan(digits(**scale)).planned.source == "bounds"


def test_what_is_added_or_subtracted_twice_is_refused():
    north = part(np.arange(50))
    south = part(np.arange(50, 120))
    both = north + south
    assert (both - south) == north
    assert (both - south) + south == both
    assert (both - both).samples == 0
    before = both.sha256
    assert code_of(lambda: north + north) == "added-twice"
    assert code_of(lambda: both + south) == "added-twice"
    assert code_of(both.add, X[:50], NAMES[:50]) == "added-twice"
    some = part(np.arange(0, 50, 2))
    left = both - some  # a part of what one mark stands for
    assert left.samples == 95
    assert code_of(lambda: left - some) == "added-twice"
    assert left + some == both
    assert code_of(lambda: north - south) == "never-part"
    assert both.sha256 == before


@pytest.mark.parametrize(
    ("fitted", "differs"),
    [
        ({"features": ("l2",), "classes": {**TABLE, "new": [0.1] * 5}}, "classes"),
        ({"features": ("l2",), "method_params": {"clip_norm": 2.0}}, "clip_norm"),
        ({"features": ("standard",)}, "quantization, scaling"),
    ],
)
def test_statistics_of_another_plan_are_refused(fitted, differs):
    classes = fitted.pop("classes", TABLE)
    other = ZeroShotClassifier(calibration=0.25, **fitted).fit(X, NAMES, classes=classes)
    with pytest.raises(DataError, match=differs) as caught:
        WHOLE + Statistics.plan(other).add(X[:5], NAMES[:5])
    assert caught.value.code == "other-plan"


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (X[:2, :6], NAMES[:2]),
        (X[:2], NAMES[:3]),
        (X[:2], ["animal 1", "zebra"]),
        (np.where(np.arange(7) == 3, np.nan, X[:2]), NAMES[:2]),
        (np.array([["a"] * 7] * 2), NAMES[:2]),
    ],
)
def test_samples_that_do_not_fit_change_nothing(rows, names):
    statistics = part(np.arange(10))
    before = statistics.sha256
    assert code_of(statistics.add, rows, names) == "data"
    assert statistics.sha256 == before
    assert len(statistics.marks) == 1


def test_what_is_not_exact_is_refused():
    for changes in (
        {"method.name": "fedzsl", "strategy.rounds": 1},
        {"data.quantization": "none"},
        {"method.min_samples": 5},
        {"privacy.name": "sample-level", "privacy.epsilon": 5.0},
    ):
        with pytest.raises(ExperimentError):
            Statistics.plan(digits(**changes))
    with pytest.raises(ArgumentError, match="and not list"):
        Statistics.plan([])
    with pytest.raises(ArgumentError, match="are fixed"):
        Statistics.plan(MODEL, sample=X)
    assert code_of(Statistics.plan(MODEL).solve) == "no-samples"


def test_a_file_holds_plan_sums_and_marks(tmp_path):
    WHOLE.save(tmp_path / "whole")
    loaded = Statistics.load(tmp_path / "whole")
    assert loaded == WHOLE
    np.testing.assert_array_equal(loaded.solve().scores(X), MODEL._model.scores(X))
    assert code_of(lambda: loaded + WHOLE) == "added-twice"
    empty = Statistics.plan(MODEL)
    empty.save(tmp_path / "plan")  # what a coordinator sends
    assert Statistics.load(tmp_path / "plan").add(X, NAMES) == WHOLE


def note_of(path):
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        return json.loads(file.metadata()["fedunseen statistics"])


def changed(path, out, tensors=None, **fields):
    content = load_file(path) | (tensors or {})
    save_file(content, out, {"fedunseen statistics": json.dumps(note_of(path) | fields)})
    return out


def test_a_file_that_is_wrong_is_refused(tmp_path):
    path = tmp_path / "whole"
    WHOLE.save(path)
    out = tmp_path / "changed"
    count = load_file(path)["sums/count"]
    more = count + (np.arange(len(count)) == 0)
    for tensors in ({"sums/count": more}, {"sums/count": more[:3]}, {"sums/space": count}):
        assert code_of(Statistics.load, changed(path, out, tensors)) == "statistics-file"
    assert code_of(Statistics.load, changed(path, out, sha256="0" * 64)) == "statistics-file"
    assert code_of(Statistics.load, changed(path, out, plan={})) == "statistics-file"
    for part, key, value in (
        *(
            ("backbone", "input_shape", shape)
            for shape in ([[]], [""], [], [{"a": 1}], [0], [True])
        ),
        *(("method", name, value) for name in ("variance", "nugget") for value in (np.inf, np.nan)),
    ):
        plan = note_of(path)["plan"]
        plan[part][key] = value
        assert code_of(Statistics.load, changed(path, out, plan=plan)) == "statistics-file"
    assert code_of(Statistics.load, changed(path, out, format=2)) == "statistics-version"
    out.write_bytes(path.read_bytes()[:-8])
    assert code_of(Statistics.load, out) == "statistics-file"
    out.write_bytes(pickle.dumps([1]))
    assert code_of(Statistics.load, out) == "statistics-file"
    assert code_of(Statistics.load, tmp_path / "none") == "statistics-file"
    MODEL.save(out)
    assert code_of(Statistics.load, out) == "statistics-file"


def loaded_or_refused(path):
    try:
        return Statistics.load(path), None
    except FedUnseenError as error:
        return None, error


@pytest.mark.slow
@pytest.mark.parametrize("part_of_file", ["labelled", "unlabelled"])
def test_a_mutated_file_is_refused_in_one_sentence_or_is_the_same(tmp_path, part_of_file):
    statistics = WHOLE
    if part_of_file == "unlabelled":
        statistics = Statistics.plan(MODEL, part="unlabelled").add(X)
    statistics.save(tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    rng = np.random.default_rng(0)
    refused = 0
    for place in [*rng.integers(0, header, 60), *rng.integers(header, len(content), 40)]:
        mutated = bytearray(content)
        mutated[place] ^= 1 << int(rng.integers(8))
        (tmp_path / "mutated").write_bytes(mutated)
        loaded, why = loaded_or_refused(tmp_path / "mutated")
        refused += loaded is None
        assert "\n" not in str(why)
        if loaded is None:
            assert why.code in ("statistics-file", "statistics-version")
        else:
            assert loaded.sums_sha256 == statistics.sums_sha256
    assert refused > 50


def test_partial_fit_adds_to_what_was_there():
    order = np.random.default_rng(1).permutation(120)
    first, *others = np.split(order, 4)
    fitted = [ZeroShotClassifier(), ZeroShotClassifier()]
    for model, rest in zip(fitted, (others, others[::-1]), strict=True):
        model.partial_fit(X[first], NAMES[first], classes=TABLE)
        for rows in rest:
            model.partial_fit(X[rows], NAMES[rows])
    np.testing.assert_array_equal(fitted[0].scores(X), fitted[1].scores(X))
    assert fitted[0].seen_.tolist() == MODEL.seen_.tolist()
    assert (fitted[0].predict(X) == NAMES).mean() >= (MODEL.predict(X) == NAMES).mean() - 0.05
    assert fitted[0].predict_set(X).shape == (120, 8)
    kept = deepcopy(fitted[0]).partial_fit(X[:1], NAMES[:1])
    np.testing.assert_array_equal(kept.scores(X), fitted[0].partial_fit(X[:1], NAMES[:1]).scores(X))


def test_partial_fit_continues_a_fit():
    both = ZeroShotClassifier(features=("l2",), calibration=0.25)
    both.fit(X[:80], NAMES[:80], classes=TABLE).partial_fit(X[80:], NAMES[80:])
    np.testing.assert_array_equal(both.scores(X), MODEL.scores(X))
    assert both.seen_.tolist() == MODEL.seen_.tolist()
    with pytest.raises(ArgumentError, match="the first call of partial_fit needs all classes"):
        deepcopy(MODEL).partial_fit(X[:1], NAMES[:1])  # a copy has no sums


def test_partial_fit_says_what_it_lacks():
    model = ZeroShotClassifier()
    with pytest.raises(ArgumentError, match="the first call of partial_fit needs all classes"):
        model.partial_fit(X, NAMES)
    model.partial_fit(X[:40], NAMES[:40], classes=TABLE)
    with pytest.raises(ArgumentError, match="others than in the first call"):
        model.partial_fit(X[:40], NAMES[:40], classes=["a", "b"])
    with pytest.raises(ArgumentError, match="unknown class 'zebra'"):
        model.partial_fit(X[:1], ["zebra"])
    with pytest.warns(UserWarning, match="beyond the range that the first call"):
        model.partial_fit(1000 * X[40:60], NAMES[40:60])
    assert not hasattr(ZeroShotClassifier("fedzsl"), "partial_fit")


def test_unlabelled_samples_have_a_plan_of_the_model(tmp_path):
    """Iterations of it, of parts in any order, are the adaptation of all samples in one place."""
    pool = np.repeat([TABLE["animal 6"], TABLE["animal 7"]], 40, axis=0) @ MIXING
    pool += 0.2 * np.random.default_rng(3).normal(size=pool.shape)
    step = Statistics.plan(MODEL, part="unlabelled")
    for i in range(4):
        if i:
            step = Statistics.plan(step, part="unlabelled")
        step.save(tmp_path / "plan")
        north, south = (Statistics.load(tmp_path / "plan") for _ in range(2))
        north.add(pool[:30])
        south.add(pool[30:])
        step = south + north
        assert step == (north + south)
        assert (step - north).sums_sha256 == south.sums_sha256
    adapted = MODEL._model.adapted([pool])[0]
    solved = step.solve()
    for name, value in adapted.params.items():
        assert bool((value == solved.params[name]).all()), name
    assert solved.calibration == adapted.calibration
    assert code_of(lambda: step + WHOLE) == "other-plan"
    assert code_of(lambda: step + Statistics.plan(MODEL, part="unlabelled").add(pool)) == (
        "other-plan"
    )
    assert code_of(north.add, pool[:2], NAMES[:2]) == "data"


@pytest.mark.slow
def test_confidence_has_a_plan_of_the_model(tmp_path):
    rows = np.random.default_rng(5).permutation(120)
    answers = [Statistics.plan(WHOLE, part="confidence") for _ in range(3)]
    for own, some in zip(answers, np.split(rows, 3), strict=True):
        own.add(X[some], NAMES[some])
    both = answers[2] + answers[0] + answers[1]
    assert both == answers[0] + (answers[1] + answers[2])
    both.save(tmp_path / "answers")
    model = Statistics.load(tmp_path / "answers").solve()
    sets = model.predict_set(X, 0.9)
    own = np.array([model.space.names.index(name) for name in NAMES])
    assert 0.85 < sets[np.arange(120), own].mean() <= 1
    assert (model.unfamiliar(X[:5] / 1e6) <= 0.01).all()  # features that are hardly any
    with pytest.raises(ArgumentError, match="'confidence' does not go with Model"):
        Statistics.plan(model, part="confidence")
    later = Statistics.plan(WHOLE - part(np.arange(3)), part="confidence").add(X[5:], NAMES[5:])
    assert code_of(lambda: later + both) == "other-plan"


@pytest.mark.slow
def test_counted_answers_give_the_confidence_of_a_run_that_asks_its_clients(tmp_path):
    experiment = digits(**{"evaluation.confidence": "histograms"})
    done = run(experiment, tmp_path / "run")
    data = DigitPairs.load(experiment.data, 0)
    names = np.array(data.space.names)[data.labels]
    total = Statistics.plan(experiment).add(data.features[data.train], names[data.train])
    answers = Statistics.plan(total, part="confidence")
    for rows in make_partition(experiment.partition, data, 0).clients:
        answers.add(data.features[rows], names[rows])
    expected = done.model.confidence.arrays()
    for name, value in answers.solve().confidence.arrays().items():
        np.testing.assert_array_equal(value, expected[name])
