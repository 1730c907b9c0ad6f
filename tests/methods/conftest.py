"""What the tests of methods share: a small class space."""

from dataclasses import replace

import numpy as np
import pytest

from fedunseen.data import ClassSpace


@pytest.fixture
def space():
    """Make 8 classes with 30 attributes: 0 to 4 seen, 5 and 6 unseen, 7 neither."""
    semantics = np.random.default_rng(0).normal(size=(8, 30))
    names = tuple(f"class {i}" for i in range(8))
    attributes = tuple(f"attribute {i}" for i in range(30))
    return ClassSpace(names, semantics, attributes, [0, 1, 2, 3, 4], [4], [5, 6])


@pytest.fixture
def grouped(space):
    """The same classes, their attributes in three groups of ten."""
    groups = {f"group {i}": tuple(range(10 * i, 10 * i + 10)) for i in range(3)}
    return replace(space, attribute_groups=groups)
