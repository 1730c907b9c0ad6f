"""Rows that break what two columns of a table say of each other otherwise."""

import numpy as np
import pytest

from fedunseen.experiment.relations import breaking_codes, breaking_groups, breaking_lines

KINDS = {
    "even": lambda rng, n: rng.uniform(size=n),
    "whole": lambda rng, n: rng.integers(0, 6, n) / 10,
    "tail": lambda rng, n: np.minimum(1, rng.exponential(size=n) ** 3 / 50),
    "tied": lambda rng, n: np.where(rng.uniform(size=n) < 0.8, 0, rng.uniform(size=n)),
}


@pytest.mark.parametrize("count", [60, 2000])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["given", "followed"])
def test_all_numbers_are_on_the_line_that_few_are_not_on(kind, count, where):
    rng = np.random.default_rng(0)
    for few in (1, 2, 3, 4):
        given = KINDS[kind](rng, count)
        followed = 0.3 + 0.4 * given
        broken = rng.choice(count, few, replace=False)
        {"given": given, "followed": followed}[where][broken] = rng.uniform(size=few)
        found = list(breaking_lines(given, followed[:, None], [7], 5))
        assert [each.column for each in found] == [7]
        assert set(found[0].rows) == set(broken)
        assert found[0].numbers == pytest.approx(0.3 + 0.4 * given[found[0].rows])


def test_as_many_rows_as_sums_may_show_break_no_line():
    given = np.random.default_rng(0).uniform(size=60)
    followed = given.copy()
    followed[:5] += [0.5, 0.4, 0.3, -0.5, -0.4]
    assert not list(breaking_lines(given, followed[:, None], [0], 5))
    assert list(breaking_lines(given, followed[:, None], [0], 6))


def test_numbers_beside_each_other_rarely_look_like_a_line():
    """Of small and large classes with correlations up to 0.9."""
    rng = np.random.default_rng(0)
    alarms = 0
    for count in (5, 8, 13, 17, 30, 60) * 50:
        given = rng.normal(size=count)
        number = rng.choice([0, 0.5, 2]) * given + rng.normal(size=count)
        alarms += len(list(breaking_lines(given, number[:, None], [0], 5)))
    assert alarms <= 6


def test_numbers_and_categories_are_those_of_their_group():
    groups = np.arange(40) % 4
    numbers = np.column_stack([groups**2, np.random.default_rng(0).normal(size=40)]).astype(float)
    numbers[[3, 8], 0] = 5.5
    (broken,) = breaking_groups(groups, numbers, [1, 2], 5)
    assert (broken.column, broken.rows.tolist()) == (1, [3, 8])
    assert groups[broken.sources].tolist() == [3, 0]
    codes = groups // 2
    codes[3] = 0
    (broken,) = breaking_codes(groups, codes, 6, 5)
    assert (broken.column, broken.rows.tolist()) == (6, [3])
    assert codes[broken.sources].tolist() == [1]
    assert not list(breaking_codes(groups, np.arange(40) % 3, 6, 5))
