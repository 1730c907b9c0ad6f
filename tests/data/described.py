"""What a benchmark has of each class, and arrays with something else in one place."""

import numpy as np


def roles(space):
    """Return the ids of the seen, the validation and the unseen classes."""
    return space.seen.tolist(), space.validation.tolist(), space.unseen.tolist()


def per_class(benchmark):
    """Return the samples of each class for training, for tests of seen classes and for tests of
    unseen ones.
    """
    return [np.bincount(benchmark.labels[ids]).tolist() for ids in splits(benchmark)]


def splits(benchmark):
    """Return the ids of the samples for training, for tests of seen classes and for tests of unseen
    ones.
    """
    return benchmark.train.tolist(), benchmark.test_seen.tolist(), benchmark.test_unseen.tolist()


def changed(array, where, value):
    """Return a copy of an array, or of a list, that has ``value`` at ``where``."""
    array = np.array(array)
    array[where] = value
    return array
