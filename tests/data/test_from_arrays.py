"""A benchmark of arrays in memory: what becomes seen, unseen and of whom, and what is refused."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from described import roles, splits

from fedunseen.data import Benchmark
from refusals import message_of

ANIMALS = {"horse": [1.0, 0.0], "tiger": [0.0, 1.0], "zebra": [1.0, 1.0], "ox": [2.0, 0.0]}
X = np.arange(8.0).reshape(4, 2)
Y = ["tiger", "horse", "tiger", "ox"]


def test_classes_that_no_sample_has_are_unseen_and_groups_become_users():
    made = Benchmark.from_arrays(
        X, Y, ANIMALS, groups=["south", "north", "south", "east"], validation=["ox"]
    )
    assert (made.features.dtype, made.features.tolist()) == (np.float32, X.tolist())
    assert (made.space.names, made.labels.tolist()) == (
        ("horse", "tiger", "zebra", "ox"),
        [1, 0, 1, 3],
    )
    assert (roles(made.space), made.space.semantics.tolist()) == (
        ([0, 1, 3], [3], [2]),
        list(ANIMALS.values()),
    )
    assert (made.users.tolist(), splits(made), made.part) == (
        [2, 1, 2, 0],
        ([0, 1, 2, 3], [], []),
        True,
    )


def test_test_samples_are_split_by_their_classes_and_are_nobodys():
    made = Benchmark.from_arrays(
        X, np.array(Y), ANIMALS, test=(X[:3] + 100, ["zebra", "ox", "zebra"]), groups=range(4)
    )
    assert (splits(made), made.part) == (([0, 1, 2, 3], [5], [4, 6]), False)
    assert np.array_equal(made.features[4:], X[:3] + 100)
    assert made.users.tolist() == [0, 1, 2, 3, 4, 4, 4]


def test_attributes_have_names_in_a_mapping_of_mappings_and_in_a_data_frame():
    named = {"a": {"size": 1, "tail": 0}, "b": {"tail": 3, "size": 2}}  # in another order
    frame = SimpleNamespace(
        index=["a", "b"], columns=["size", "tail"], to_numpy=lambda: np.array([[1, 0], [2, 3]])
    )
    for classes in (named, frame):
        space = Benchmark.from_arrays([[1.0], [2.0]], ["a", "a"], classes).space
        assert (space.attribute_names, space.semantics.tolist()) == (
            ("size", "tail"),
            [[1.0, 0.0], [2.0, 3.0]],
        )


def test_classes_may_be_numbers_and_pictures_stay_bytes():
    pictures = np.array([0, 255], dtype=np.uint8).repeat(16).reshape(2, 1, 4, 4)
    made = Benchmark.from_arrays(pictures, np.array([7, 9]), {7: [1.0], 8: [2.0], 9: [3.0]})
    assert (made.space.names, made.labels.tolist()) == (("7", "8", "9"), [0, 2])
    assert (made.features.dtype, replace(made, image_shape=(1, 4, 4)).kind) == (np.uint8, "images")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((X[:3], Y, ANIMALS), "there are 3 samples, but 4 labels: give one a sample"),
        ((X, [*Y[:3], "tigr"], ANIMALS), "the label 'tigr' is not a class of `classes`: did you "
                                         "mean 'tiger'?"),
        ((X, Y, {}), "there is no class: give a mapping of name -> attributes, or a data frame "
                     "with a class a row"),
        ((X, Y, ANIMALS | {"ox": [1.0]}), "the class 'ox' has attributes of the shape (1,), but "
                                          "'horse' of the shape"),
        ((X, Y, ANIMALS | {"ox": ["big", "no"]}), "the attribute 'attribute 0' has the value big"),
        ((X, ["a"] * 4, {"a": {"size": 1}, "b": {"sise": 1}}), "the class 'b' has other attributes "
                                                               "than 'a': give"),
        (([[1.0], [1.0, 2.0]], Y[:2], ANIMALS), "the samples must be an array: each needs as many "
                                                "numbers as the"),
        ((1.0, Y, ANIMALS), "there is no sample: give an array of shape (samples, numbers)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(given, message):
    assert message_of(Benchmark.from_arrays, *given).startswith(message)


def test_tests_and_groups_that_do_not_fit_are_refused():
    def refusal(**settings):
        return message_of(Benchmark.from_arrays, X, Y, ANIMALS, **settings)

    assert (
        refusal(test=(X[:, :1], Y))
        == "the test samples have the shape (1,), the training samples (2,)"
    )
    assert (
        refusal(groups=[1, 2, 3]) == "groups have the shape (3,), but there are 4 training samples"
    )
    assert refusal(test=(X, Y)).startswith("arrays has no sample of an unseen class: give some, ")
