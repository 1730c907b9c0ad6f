"""What a report draws of test samples."""

from types import SimpleNamespace

import numpy as np

from fedunseen.tasks.zero_shot_summary import spread_tests


def test_pictures_of_a_report_are_spread_evenly_over_each_class():
    """The first files of a class may be alike: in one folder all were almost black."""
    labels = np.repeat([0, 1, 2], [90, 4, 40])
    space = SimpleNamespace(unseen=np.array([0, 1, 2]))
    tests = np.arange(len(labels))
    benchmark = SimpleNamespace(labels=labels, test_unseen=tests, space=space)
    rows = spread_tests(SimpleNamespace(benchmark=benchmark), 24)
    assert [len(rows[labels[rows] == c]) for c in range(3)] == [10, 4, 10]
    assert rows[:10].tolist() == list(range(0, 90, 9))
    assert rows[14:].tolist() == list(range(94, 134, 4))
    np.testing.assert_array_equal(spread_tests(SimpleNamespace(benchmark=benchmark), 999), tests)
