"""Labels, tables and samples as people have them: missing labels, data frames, spaces, zeros."""

import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fedunseen import ZeroShotClassifier
from fedunseen.core.errors import ArgumentError, DataError
from small_runs import ANIMALS

RNG = np.random.default_rng(0)
pytestmark = pytest.mark.filterwarnings("ignore:Unlabelled samples change nothing for")
NAMES = np.repeat(["horse", "tiger", "seal", "eel"], 25)
MAP = RNG.normal(size=(3, 8))
X = np.array([ANIMALS[name] for name in NAMES]) @ MAP + 0.05 * RNG.normal(size=(100, 8))
FEW = np.arange(100) % 5 == 0
FRAME = pd.DataFrame(X, columns=[f"c{i}" for i in range(8)])


def fit(y=NAMES, **settings):
    """Fit the default to the samples with other labels or another table."""
    return ZeroShotClassifier().fit(X, y, **{"classes": ANIMALS, **settings})


def reference():
    return fit(np.array([None if few else name for few, name in zip(FEW, NAMES, strict=True)]))


@pytest.mark.slow
@pytest.mark.parametrize("missing", [None, np.nan, float("nan"), pd.NA, pd.NaT])
@pytest.mark.parametrize("kind", ["list", "object", "string"])
def test_a_missing_label_of_any_kind_marks_an_unlabelled_sample(missing, kind):
    y = [missing if few else str(name) for few, name in zip(FEW, NAMES, strict=True)]
    labels = {"list": y, "object": np.array(y, dtype=object)}.get(kind)
    model = fit(pd.Series(y, dtype="string") if labels is None else labels)
    assert model.soft_counts_.shape == (len(ANIMALS),)
    np.testing.assert_array_equal(model.scores(X), reference().scores(X))


@pytest.mark.slow
@pytest.mark.parametrize(
    "labels",
    [
        np.where(FEW, np.nan, np.repeat(range(4), 25)),
        pd.Series(np.repeat(range(4), 25), dtype="Int64").mask(FEW),
    ],
)
def test_a_missing_number_marks_an_unlabelled_sample(labels):
    model = fit(labels, classes=dict(enumerate(ANIMALS.values())))
    assert model.soft_counts_.shape == (len(ANIMALS),)


@pytest.mark.slow
def test_a_string_dtype_names_classes():
    y = pd.Series(NAMES, dtype="string")
    model = fit(y)
    assert model.score(X, y) == 1
    assert model.per_class(X, y)["samples"] == fit().per_class(X, NAMES)["samples"]


def test_no_label_at_all_is_refused():
    with pytest.raises(ArgumentError, match="y has no label at all: name"):
        fit(np.full(100, np.nan))


def test_names_of_several_types_are_refused_in_one_sentence():
    mixed = np.where(NAMES == "seal", 1, NAMES.astype(object))
    for y, classes in (
        (mixed, ANIMALS),
        (mixed.tolist(), None),
        (NAMES, {"horse": [0, 1, 0], 1: [1, 1, 1]}),
    ):
        with pytest.raises(ArgumentError) as refused:
            fit(y, classes=classes)
        assert str(refused.value) == (
            "the classes horse and 1 have names of different types: name all by text, or all by "
            "numbers"
        )
        assert refused.value.code == "mixed-class-names"


def table(with_names="name", dates=False):
    """Return the animals as pandas' data frame with a column of names."""
    rows = np.array(list(ANIMALS.values()))
    columns = {with_names: list(ANIMALS), " a": rows[:, 0], "b": rows[:, 1], "c": rows[:, 2]}
    return pd.DataFrame(columns | ({"d": pd.Timestamp("2020-01-01")} if dates else {}))


def without_index(frame):
    """Return what polars has of a data frame: columns and values, no index."""
    return SimpleNamespace(columns=list(frame.columns), to_numpy=frame.to_numpy)


@pytest.mark.slow
@pytest.mark.parametrize(
    "frame",
    [
        table(),
        table("Name"),
        table("animal"),
        table().set_index("name"),
        without_index(table()),
        without_index(table("animal")),
    ],
)
def test_a_data_frame_of_any_library_names_its_classes(frame):
    model = fit(classes=frame)
    assert model._model.space.attribute_names == ("a", "b", "c")
    np.testing.assert_array_equal(model.scores(X), fit().scores(X))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (without_index(table().drop(columns="name")), "the classes have no names: give the data"),
        (table(dates=True), "the attribute 'd' has the value 2020-01-01 00:00:00: give numbers"),
        (
            table(dates=True).set_index("name")[["d"]],
            "the attribute 'd' has the value 2020-01-01T00:00:00",
        ),
        (table().set_index("name").assign(e="big"), "the attribute 'e' has the value big: give"),
    ],
)
def test_a_table_that_describes_nothing_is_refused(frame, message):
    with pytest.raises(DataError, match=f"^{message}"):
        fit(classes=frame)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gaussian", "ridge"])
def test_a_class_may_have_no_attribute_and_an_attribute_no_class(method):
    nothing = {name: [*row, 0] for name, row in ANIMALS.items()} | {"stone": [0, 0, 0, 0]}
    samples = np.concatenate([X, 0.05 * RNG.normal(size=(25, 8))])
    for y in ([*NAMES, *["stone"] * 25], None):
        model = ZeroShotClassifier(method, calibration=0.0)
        if y is None:
            model.fit(X, NAMES, classes=nothing)
        else:
            model.fit(samples, y, classes=nothing)
        assert np.isfinite(model.scores(samples)).all()
        assert (model.predict(samples[100:], classes=["stone", "horse"]) == "stone").mean() > 0.8


def test_a_trained_method_too_takes_a_class_without_an_attribute():
    nothing = {name: [*row, 0] for name, row in ANIMALS.items()} | {"stone": [0, 0, 0, 0]}
    model = ZeroShotClassifier("fedzsl", rounds=2, calibration=0.0).fit(X, NAMES, classes=nothing)
    assert np.isfinite(model.scores(X)).all()


@pytest.mark.slow
def test_a_name_may_have_outer_spaces(tmp_path):
    spaced = {f" {name}\t": row for name, row in ANIMALS.items()}
    model = fit(np.char.add(np.char.add(" ", NAMES), "\t"), classes=spaced)
    assert model.classes_.tolist() == [f" {name}\t" for name in fit().classes_]
    np.testing.assert_array_equal(model.scores(X), fit().scores(X))
    learned = model.learn(examples={" new": X[:5], " horse\t": X[:1]})
    assert learned.classes_.tolist() == [*model.classes_, " new"]
    model.save(tmp_path / "model")
    loaded = ZeroShotClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "value"),
    [
        (pd.Timestamp("2020-01-01"), "2020-01-01T00:00:00"),
        (pd.Timedelta("1D"), "86400"),
        ("red", "red"),
        (pd.Categorical(["red"] * 100), "red"),
    ],
)
def test_a_column_that_is_no_number_is_named_by_a_model_of_numbers(column, value):
    samples = FRAME.assign(c3=column)
    model = ZeroShotClassifier().fit(FRAME, NAMES, classes=ANIMALS)
    with pytest.raises(ArgumentError, match=f"^the column 'c3' of X holds {value}"):
        model.predict(samples)
    with pytest.raises(ArgumentError, match="the column 'c3' of X holds"):
        model.adapt(samples)


@pytest.mark.parametrize("kind", [object, str])
def test_a_column_of_an_array_is_named_too(kind):
    samples = np.array([[1, "2"], [3, "x"], [5, "6"]], dtype=kind)
    with pytest.raises(ArgumentError, match=r"^the column 1 of X holds x, which is no number"):
        ZeroShotClassifier().fit(samples, ["a", "b", "a"])


@pytest.mark.slow
def test_columns_of_numbers_are_taken_whatever_their_type():
    model = ZeroShotClassifier().fit(FRAME.astype("Float64"), NAMES, classes=ANIMALS)
    np.testing.assert_array_equal(model.predict(FRAME), fit().predict(X))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "added", "twins"),
    [
        ("gaussian", {"okapi": ANIMALS["zebra"]}, "'okapi' and 'zebra'"),
        ("gaussian", {"pony": [-0.0, 1, 0]}, "'horse' and 'pony'"),
        ("ridge", {"tiger": ANIMALS["horse"]}, "'horse' and 'tiger'"),
        ("gaussian", {"tiger": ANIMALS["horse"]}, ""),  # samples tell them apart
        ("classifier", {"tiger": ANIMALS["horse"]}, ""),
    ],
)
def test_two_classes_that_nothing_tells_apart_are_said(method, added, twins):
    rounds = 1 if method == "classifier" else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ZeroShotClassifier(method, rounds=rounds, calibration=0.0).fit(
            X, NAMES, classes={**ANIMALS, **added}
        )
    said = [str(one.message) for one in caught if "the same description" in str(one.message)]
    assert [text.split(" have ")[0] for text in said] == ([f"The classes {twins}"] if twins else [])
    assert all(one.filename == __file__ for one in caught)
