import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.federation.partition import NEVER, PartitionSettings, make_partition


@pytest.fixture(scope="session")
def small(make_space, make_benchmark):
    """Build (once) a benchmark with so many seen classes, plus one unseen."""

    @cache
    def build(seen, per_class=6):
        return make_benchmark(
            make_space(seen + 1, unseen=(seen,), validation=()), per_class, tests=1
        )

    return build


def deal(benchmark, seed=0, **options):
    return make_partition(PartitionSettings(**options), benchmark, seed)


def held(partition, benchmark):
    """Return the (clients, seen classes) sample counts."""
    return partition.counts(benchmark.labels, len(benchmark.space.names))[:, benchmark.space.seen]


def disjoint_cover(partition, benchmark):
    """Check that each training sample has one client, and each client samples in order; return the
    counts held.
    """
    np.testing.assert_array_equal(np.sort(np.concatenate(partition.clients)), benchmark.train)
    assert all(len(ids) and (np.diff(ids) > 0).all() for ids in partition.clients)
    return held(partition, benchmark)


quick = settings(max_examples=40, deadline=None, derandomize=True)


@quick
@given(seen=st.integers(2, 40), clients=st.integers(1, 12), seed=st.integers(0, 99))
def test_even_classes_are_disjoint_and_even(small, seen, clients, seed):
    assume(clients <= seen)
    benchmark = small(seen)
    counts = disjoint_cover(deal(benchmark, seed, clients=clients), benchmark)
    assert set(counts.ravel()) <= {0, 6}  # classes are never cut
    assert np.ptp((counts > 0).sum(axis=1)) <= 1


@quick
@given(
    seen=st.integers(4, 40),
    clients=st.integers(1, 10),
    counts=st.sampled_from(["uneven", "dirichlet"]),
    alpha=st.sampled_from([0.05, 0.5, 50.0]),
    seed=st.integers(0, 99),
)
def test_uneven_counts_keep_their_floor(small, seen, clients, counts, alpha, seed):
    benchmark = small(seen)
    least = 2 if counts == "dirichlet" else max(1, seen // (2 * clients))
    shape = {"alpha": alpha} if counts == "dirichlet" else {}
    options = {"clients": clients, "counts": counts, **shape}
    if least * clients > seen:
        with pytest.raises(ExperimentError, match=r"lower clients or floor$"):
            deal(benchmark, seed, **options)
        return
    dealt = disjoint_cover(deal(benchmark, seed, **options), benchmark)
    assert set(dealt.ravel()) <= {0, 6}
    assert (dealt > 0).sum(axis=1).min() >= least


def test_dirichlet_counts_follow_alpha(small):
    benchmark = small(100, per_class=1)

    def spread(alpha):
        dealt = (deal(benchmark, seed, counts="dirichlet", alpha=alpha) for seed in range(20))
        return np.mean([np.ptp(held(partition, benchmark).sum(1)) for partition in dealt])

    assert spread(0.1) > spread(1.0) > spread(1000.0)
    assert spread(1000.0) < 5


@quick
@given(
    seen=st.integers(2, 30),
    clients=st.integers(1, 12),
    phi=st.floats(0.01, 1),
    seed=st.integers(0, 99),
)
def test_phi_is_the_share_of_classes_that_a_client_holds(small, seen, clients, phi, seed):
    assume(phi * clients > 1 or clients <= seen)
    benchmark = small(seen)
    counts = held(deal(benchmark, seed, clients=clients, phi=phi), benchmark)
    assert set(counts.ravel()) <= {0, 6}  # each holder has all samples of a class
    classes, wanted = (counts > 0).sum(axis=1), max(1, round(phi * seen))
    if phi * clients < 1:
        assert (counts > 0).sum(axis=0).max() == 1
        assert classes.max() <= wanted
    elif phi * clients == 1:
        assert ((counts > 0).sum(axis=0) == 1).all()
    else:
        assert (counts > 0).any(axis=0).all()
        # an even share may be one more than a rounded-down phi
        assert ((classes == wanted) | ((classes > wanted) & (classes <= -(-seen // clients)))).all()


def test_phi_at_its_ends(small):
    benchmark, odd = small(20), small(75, per_class=2)
    disjoint_cover(
        deal(benchmark, clients=10, phi=0.1), benchmark
    )  # as FedZSL's disjoint partition
    disjoint_cover(
        deal(odd, clients=49, phi=1 / 49), odd
    )  # 49 * (1 / 49) < 1 in floats, 75 / 49 rounds to 2
    for ids in deal(benchmark, clients=3, phi=1.0).clients:
        np.testing.assert_array_equal(ids, benchmark.train)
    shared = held(deal(benchmark, clients=10, phi=0.5), benchmark)
    assert ((shared > 0).sum(axis=1) == 10).all()
    assert len({tuple(row) for row in shared}) == 10  # no one draws what a neighbor drew


@quick
@given(
    seen=st.integers(1, 10),
    per_class=st.integers(2, 9),
    clients=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_iid_is_even_in_every_class_and_in_total(small, seen, per_class, clients, seed):
    benchmark = small(seen, per_class)
    if clients > seen * per_class:
        with pytest.raises(
            ExperimentError, match=rf"would hold no sample: lower clients \({clients}\)$"
        ):
            deal(benchmark, seed, kind="iid", clients=clients)
        return
    counts = disjoint_cover(deal(benchmark, seed, kind="iid", clients=clients), benchmark)
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.ptp(counts.sum(axis=1)) <= 1


@pytest.mark.parametrize("rho", [0.01, 0.1, 0.5, 1.0])
def test_iid_with_rho_draws_every_class_for_every_client(small, rho):
    benchmark = small(5, per_class=20)
    partition = deal(benchmark, kind="iid", clients=4, rho=rho)
    assert (held(partition, benchmark) == max(1, round(rho * 20))).all()
    if rho == 0.5:  # own draws: clients overlap, and differ
        assert len({tuple(ids) for ids in partition.clients}) == 4
        assert len(np.intersect1d(*partition.clients[:2]))


@pytest.mark.parametrize("options", [{}, {"phi": 0.5}, {"kind": "dirichlet"}])
def test_rho_thins_every_class_of_a_client(small, options):
    benchmark = small(20, per_class=20)
    whole = deal(benchmark, clients=5, **options)
    thin, counts = deal(benchmark, clients=5, rho=0.3, **options), held(whole, benchmark)
    np.testing.assert_array_equal(
        held(thin, benchmark), np.where(counts > 0, np.maximum(1, np.rint(0.3 * counts)), 0)
    )
    assert all(
        np.isin(some, every).all() for some, every in zip(thin.clients, whole.clients, strict=True)
    )


def test_dirichlet_is_a_disjoint_cover_whose_proportions_have_the_moments_of_the_distribution(
    small,
):
    benchmark = small(200, per_class=100)
    for alpha in (0.5, 5.0):
        shares = (
            disjoint_cover(deal(benchmark, kind="dirichlet", clients=4, alpha=alpha), benchmark)
            / 100
        )
        # Var p_k = (1/K)(1 - 1/K) / (K alpha + 1)
        assert shares.mean() == pytest.approx(0.25)
        assert shares.var() == pytest.approx(0.25 * 0.75 / (4 * alpha + 1), rel=0.15)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"kind": "iid", "phi": 0.5},
            'partition.phi = 0.5 makes no sense here: it belongs to partition.kind = "pccd"',
        ),
        ({"counts": "uneven", "phi": 0.5}, "partition.phi = 0.5 makes no sense here"),
        (
            {"kind": "dirichlet", "counts": "uneven"},
            'partition.counts = "uneven" makes no sense here',
        ),
        ({"alpha": 1.0}, "partition.alpha = 1.0 makes no sense here"),
        ({"file": "who.csv"}, 'partition.file = "who.csv" makes no sense here'),
        (
            {"kind": "file", "file": "who.csv", "rho": 0.5},
            "partition.rho = 0.5 makes no sense here",
        ),
        (
            {"kind": "file"},
            'partition.kind = "file" needs partition.file: lines of class,client[,share]',
        ),
        (
            {"join": {"3": 5}, "leave": {"2-4": 5}},
            "client 3 joins in round 5 and leaves in round 5, so it never",
        ),
        (
            {"join": {"5-10": 3}},
            "partition.join: there is no client 10: the 10 clients are numbered from 0 to 9",
        ),
        ({"leave": {"5-3": 3}}, "partition.leave: the range '5-3' is empty: write \"3-5\""),
        ({"join": {"all": 3}}, "partition.join: 'all' is neither a client (\"3\") nor a range"),
        ({"join": {"1-4": 3, "4": 5}}, "partition.join names client 4 twice"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ExperimentError, match=f"^{re.escape(message)}"):
        PartitionSettings(**options)


BEYOND = [
    ("clients", 0),
    ("alpha", 0),
    ("phi", 1.5),
    ("rho", 0),
    ("kind", "pcd"),
    ("join", {"1": -1}),
    ("klients", 1),
]


@pytest.mark.parametrize(("name", "value"), BEYOND)
def test_settings_are_bounded(name, value):
    with pytest.raises(ValidationError):
        PartitionSettings(**{name: value})


def test_clients_join_and_leave(small):
    partition = deal(small(8), clients=4, join={"2-3": 10}, leave={"0": 5, "3": 12})
    assert (partition.first.tolist(), partition.last.tolist()) == (
        [0, 0, 10, 10],
        [5, NEVER, NEVER, 12],
    )
    present = [partition.present(r) for r in (0, 4, 5, 9, 10, 11, 12)]
    assert present == [[0, 1], [0, 1], [1], [1], [1, 2, 3], [1, 2, 3], [1, 2]]


def test_restricted_partition_may_leave_a_client_with_nothing(small):
    benchmark = small(8)
    partition = deal(benchmark, clients=4)
    rest = np.setdiff1d(benchmark.train, partition.clients[1])[::2]
    restricted = partition.restricted_to(rest)
    for before, after in zip(partition.clients, restricted.clients, strict=True):
        np.testing.assert_array_equal(after, np.intersect1d(before, rest))
    assert restricted.present(0) == [0, 2, 3]


@pytest.fixture(scope="session")
def with_users(small):
    """A benchmark whose 96 training samples of 8 classes are those of 32 users, three each."""
    benchmark = small(8, per_class=12)
    users = np.full(len(benchmark.labels), 99)  # the users of test samples do not matter
    users[benchmark.train] = 3 * np.random.default_rng(0).permutation(np.repeat(np.arange(32), 3))
    return replace(benchmark, users=users)


@quick
@given(clients=st.integers(1, 32), seed=st.integers(0, 99))
def test_whole_users_are_dealt_evenly(with_users, clients, seed):
    partition = deal(with_users, seed, kind="user", clients=clients)
    disjoint_cover(partition, with_users)
    own = [set(with_users.users[ids].tolist()) for ids in partition.clients]
    assert sum(map(len, own)) == len(set.union(*own)) == 32
    assert np.ptp([len(users) for users in own]) <= 1


def test_users_of_one_sample_each_are_said_to_be_nearly_iid(with_users):
    users = with_users.users.copy()
    users[with_users.train] = np.minimum(np.arange(96), 90)  # the last has six
    sentence = (
        "90 of 91 users have a single training sample, so that clients of other users each differ "
        "little: for data that differ from client to client set partition.kind = 'dirichlet', or "
        "data.min_per_user"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(sentence)}$"):
        deal(replace(with_users, users=users), kind="user", clients=2)


def test_only_users_of_training_samples_are_dealt(with_users):
    """Validation classes are taken out before the cards are dealt: their users must not leave empty
    clients.
    """
    fewer = replace(with_users, train=with_users.train[with_users.users[with_users.train] < 30])
    disjoint_cover(deal(fewer, kind="user", clients=10), fewer)
    with pytest.raises(
        ExperimentError, match=r"\[partition\]: 11 clients cannot each hold users of their own out"
    ):
        deal(fewer, kind="user", clients=11)


def test_what_cannot_be_dealt_is_refused(small):
    with pytest.raises(
        ExperimentError, match=r"^\[partition\]: 100 draws from Dir\(0\.01\) all left a client"
    ):
        deal(small(2, per_class=20), kind="dirichlet", alpha=0.01)
    with pytest.raises(
        ExperimentError, match="needs samples with users, but small does not say whose they are:"
    ):
        deal(small(8), kind="user", clients=2)


def write_file(tmp_path, text):
    (tmp_path / "who.csv").write_text(text)
    return {"kind": "file", "file": tmp_path / "who.csv", "clients": 3}


def test_a_file_says_who_holds_what_and_which_shares(small, tmp_path):
    benchmark, larger = small(3), small(3, per_class=10)
    options = write_file(tmp_path, "class,client\nclass 0,2\nclass 1,0\nclass 2,0\nclass 2,1\n")
    partition = deal(benchmark, **options)
    assert disjoint_cover(partition, benchmark).tolist() == [[0, 6, 3], [0, 0, 3], [6, 0, 0]]
    assert deal(benchmark, 1, **options).clients[1].tolist() != partition.clients[1].tolist()
    text = "class,client,share\nclass 0,2,1\nclass 1,0,0.5\nclass 2,0,0.1\nclass 2,1,0.9\n"
    partition = deal(larger, **write_file(tmp_path, text))
    assert held(partition, larger).tolist() == [[0, 5, 1], [0, 0, 9], [10, 0, 0]]
    assert len(np.unique(np.concatenate(partition.clients))) == 25


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (None, DataError, "{path} is missing"),
        (
            "class,clients\nclass 0,1\n",
            DataError,
            "{path}: the first line must be 'class,client' or",
        ),
        (
            "class,client\nclass 00,1\n",
            ExperimentError,
            "{path}, line 2: unknown class 'class 00': did you mean",
        ),
        (
            "class,client\nclass 3,1\n",
            ExperimentError,
            "{path}, line 2: the class 'class 3' is not a seen class",
        ),
        (
            "class,client\nclass 0,3\n",
            ExperimentError,
            "{path}, line 2: the client '3' is not a number from 0 to 2",
        ),
        (
            "class,client\nclass 0,-1\n",
            ExperimentError,
            "{path}, line 2: the client '-1' is not a number from 0",
        ),
        (
            "class,client\nclass 0,1\nclass 0,1\n",
            ExperimentError,
            "{path}, line 3: client 1 holds the class",
        ),
        (
            "class,client,share\nclass 0,1,half\n",
            DataError,
            "{path}, line 2: 'half' is not a number",
        ),
        (
            "class,client,share\nclass 0,1,0\n",
            ExperimentError,
            "{path}, line 2: the share 0 is not above 0",
        ),
        (
            "class,client,share\nclass 0,1,0.6\nclass 0,2,0.6\n",
            ExperimentError,
            "{path}, line 3: the shares of the",
        ),
        (
            "class,client\nclass 0,0\nclass 1,1\n",
            ExperimentError,
            "{path}: no one holds the seen class 'class 2'",
        ),
        (
            "class,client\nclass 0,0\nclass 1,1\nclass 2,0\n",
            ExperimentError,
            "client 2 would hold no sample: lower",
        ),
    ],
)
def test_bad_files(small, tmp_path, text, error, message):
    options = write_file(tmp_path, text or "")
    if text is None:
        options["file"].unlink()
    with pytest.raises(error, match=f"^{re.escape(message.format(path=options['file']))}"):
        deal(small(3), **options)
