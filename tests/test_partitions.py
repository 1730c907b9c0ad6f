"""Partitions from plain labels; tests/federation/test_partition.py has their laws, by way of the
experiment.
"""

import numpy as np
import pytest

from fedunseen import partitions
from fedunseen.core.errors import ArgumentError
from fedunseen.core.random import stream
from known_names import refuses

NAMES = np.array(["ant", "bee", "cat", "dog", "eel", "fox"])
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(6), 20))
USERS = np.random.default_rng(1).integers(0, 30, 120)

KINDS = {
    "iid": lambda labels, **more: partitions.iid(labels, 3, **more),
    "iid with rho": lambda labels, **more: partitions.iid(labels, 3, rho=0.3, **more),
    "dirichlet": lambda labels, **more: partitions.dirichlet(labels, 3, **more),
    "pccd": lambda labels, **more: partitions.pccd(labels, 3, **more),
    "pccd with phi": lambda labels, **more: partitions.pccd(labels, 3, phi=0.8, **more),
    "uneven": lambda labels, **more: partitions.pccd(labels, 3, counts="uneven", rho=0.5, **more),
    "user": lambda labels, **more: partitions.user(labels, USERS, 3, **more),
}


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_dealt_as_their_numbers_in_sorted_order(kind):
    numbers, names = KINDS[kind](LABELS), KINDS[kind](NAMES[LABELS].tolist())
    assert [ids.tolist() for ids in numbers] == [ids.tolist() for ids in names]


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(kind):
    first, again, other = (
        np.concatenate(KINDS[kind](LABELS, seed=seed)).tolist() for seed in (4, 4, 5)
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partitions.iid(LABELS, clients=0), "clients = 0: give at least 1"),
        (lambda: partitions.iid(LABELS, rho=1.5), "rho = 1.5: give a share above 0 and at most 1"),
        (lambda: partitions.pccd(LABELS, 3, phi=0), "phi = 0: give a share above 0 and at most 1"),
        (lambda: partitions.dirichlet(LABELS, alpha=0), "alpha = 0: give a finite number above 0"),
        (lambda: partitions.pccd([]), "labels have the shape (0,): give one a sample, (n,)"),
        (lambda: partitions.user([0, 1], ["ann"], 1),
         "users have the shape (1,) and labels (2,): give a user for each sample"),
        (lambda: partitions.pccd(LABELS, phi=0.1),
         "10 clients cannot each hold classes of their own out of 6 seen ones: lower clients, or "
         "let clients share classes (phi)"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(call, message):
    with refuses(message, ArgumentError):
        call()


def test_uneven_sizes_follow_the_draw_and_not_an_order():
    """A reference: the shares of the stream, cut at whole classes, beside the floor of each."""
    labels = np.repeat(np.arange(40), 2)
    for seed in range(6):
        dealt = partitions.pccd(labels, 4, counts="uneven", seed=seed)
        sizes = [len(np.unique(labels[ids])) for ids in dealt]
        shares = stream(seed, "partition class counts").dirichlet(np.ones(4))
        ends = [round(float(shares[: k + 1].sum()) * 20) for k in range(4)]  # 40 - 4 * 5 are left
        expected = [5 + end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        assert sizes == expected
    assert any(
        sizes != sorted(sizes)
        for sizes in (
            [len(ids) for ids in partitions.pccd(labels, 4, counts="uneven", seed=seed)]
            for seed in range(6)
        )
    )
