"""Which samples are no combination of the others, against ranks of matrices."""

import pytest
import torch

from fedunseen.methods.closed_form.span import outside_span


def by_ranks(rows):
    rank = torch.linalg.matrix_rank
    every = torch.arange(len(rows))
    return [int(rank(rows[every != i])) < int(rank(rows)) for i in range(len(rows))]


@pytest.mark.parametrize("seed", range(60))
def test_samples_are_outside_where_the_rank_is_lower_without_them(seed):
    draw = torch.Generator().manual_seed(seed)
    samples, width, rank = (int(torch.randint(1, n, (1,), generator=draw)) for n in (40, 9, 9))
    rows = torch.randint(-3, 4, (samples, rank), generator=draw)
    rows = rows @ torch.randint(-2, 3, (rank, width), generator=draw)
    if seed % 2:
        rows[seed % samples] += torch.randint(-3, 4, (width,), generator=draw)
    assert outside_span(rows).tolist() == by_ranks(rows.double())


def test_many_samples_of_large_numbers_are_looked_at_in_blocks():
    """Two relations with large factors, each broken by one sample, and one broken by two."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(-100, 101, (700, 70), generator=draw)
    for feature, factor in ((67, 97), (68, 120), (69, 127)):
        rows[:, feature] = factor * rows[:, feature - 60] - 31 * rows[:, 0]
    rows[[13, 650, 20, 30], [67, 68, 69, 69]] += 1
    assert torch.nonzero(outside_span(rows))[:, 0].tolist() == [13, 650]


def test_no_sample_is_a_combination_of_none():
    assert outside_span(torch.tensor([[3, 0]])).tolist() == [True]
    assert outside_span(torch.zeros(4, 3).long()).tolist() == [False] * 4
