"""What the tests of methods share: a small class space."""

from dataclasses import replace

import numpy as np
import pytest


@pytest.fixture
def space(make_space):
    """Make 8 classes with 30 attributes: 0 to 4 seen, 5 and 6 unseen, 7 neither."""
    semantics = np.random.default_rng(0).normal(size=(8, 30))
    return make_space(8, (5, 6), (4,), 30, semantics=semantics, seen=[0, 1, 2, 3, 4])


@pytest.fixture
def grouped(space):
    """The same classes, their attributes in three groups of ten."""
    return replace(
        space, attribute_groups={f"group {i}": tuple(range(10 * i, 10 * i + 10)) for i in range(3)}
    )
