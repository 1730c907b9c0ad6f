"""Second moments of fewer samples than features, in which each sample can be found.

The sum of x x^T has the rank of the samples, so that all of them lie in the space that it spans.
Independent components of that space are near samples; zeros among the features make one exact. It
is taken off the sum, and the search goes on.
"""

import numpy as np
import pytest
import torch

from fedunseen import Experiment
from fedunseen.core.errors import FedUnseenError
from fedunseen.data import ClassSpace, Quantization, Scaler
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.remote.refusals import DATA, code_of
from fedunseen.experiment.assemble import prepared
from fedunseen.methods.closed_form.set_apart import Moments
from fedunseen.methods.closed_form.statistics import hidden_features, statistics, unpacked
from small_federation import NAMES, experiment, greeting, write_all, write_party

SAMPLES, FEATURES, CLASSES = 24, 120, 3
BYTES = Quantization(8, np.float32([0.05]), np.float32([0.0]))


def span(square):
    """Return an orthonormal basis (d, n) of what second moments span, and their eigenvalues."""
    values, vectors = np.linalg.eigh(square)
    rank = int((values > 1e-7 * values[-1]).sum())
    return vectors[:, -rank:], values[-rank:]


def components(basis, seed):
    """Return independent components (n, d), by FastICA with the square as its contrast."""
    rows = basis.T * np.sqrt(len(basis))
    rank = len(rows)
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(rank, rank)))[0]
    for _ in range(200):
        mixed = turn @ rows
        left, _, right = np.linalg.svd(
            mixed**2 @ rows.T / len(basis) - 2 * mixed.mean(1)[:, None] * turn
        )
        turn = left @ right
    return turn @ rows


def sparsest(start, basis):
    """Return the vector of the space near ``start`` that has the most zeros and is not negative."""
    weights = basis.T @ start
    for step in range(45):
        weights /= np.linalg.norm(weights)
        vector = basis @ weights
        size = np.sqrt((vector**2).mean()) * max(0.5 * 0.82**step, 1e-4)
        cost = np.where(vector < 0, 1 / size**2, 1 / (vector**2 + size**2))
        weights = np.linalg.solve(basis.T @ (cost[:, None] * basis), weights)
    vector = basis @ weights
    return vector * np.sign(vector.sum())


def whole_sample(vector, basis, values):
    """Return the whole numbers along ``vector`` whose product the second moments hold; or None."""
    scale = 1 / np.sqrt((((basis.T @ vector) ** 2) / values).sum())
    rounded = np.rint(vector * scale)
    near = np.abs(vector * scale - rounded).max() < 0.05 and rounded.min() >= 0
    zeros = (np.abs(vector) < 1e-6 * np.abs(vector).max()).sum()
    return rounded if near and zeros >= basis.shape[1] else None


def read_samples(square, total, count):
    """Return the samples (m, d) that are found in sums."""
    square = square.astype(np.float64)
    within = square - sum(np.outer(t, t) / n for t, n in zip(total, count, strict=True))
    means = total / count[:, None]
    found = []
    for seed in range(40):
        if len(found) == int(count.sum()):
            break
        basis, values = span(square)
        size = np.sqrt(np.trace(within) / count.sum())
        starts = [basis[:, 0]] if basis.shape[1] == 1 else []
        for part in components(span(within)[0], seed):
            part = size * part / np.linalg.norm(part)
            guesses = [mean + sign * part for mean in means for sign in (1, -1)]
            starts.append(min(guesses, key=lambda guess: (np.minimum(guess, 0) ** 2).sum()))
        new = {}
        for start in starts:
            sample = whole_sample(sparsest(start * np.sign(start.mean()), basis), basis, values)
            if sample is not None:
                new[sample.tobytes()] = sample
        for sample in new.values():
            square = square - np.outer(sample, sample)
        found += new.values()
    return np.array(found).reshape(len(found), square.shape[0])


def sums_of(samples):
    """Return rows, labels and quantization of samples half of whose features are 0."""
    rng = np.random.default_rng(0)
    labels = np.arange(samples) % CLASSES
    means = rng.normal(size=(CLASSES, FEATURES))
    rows = np.maximum(means[labels] + rng.normal(size=(samples, FEATURES)), 0).astype(np.float32)
    return rows, torch.from_numpy(labels), BYTES


def summed(rows, labels, quantization=BYTES):
    """Return count, total and second moments of samples, and their whole numbers as sent."""
    classes = int(labels.max()) + 1
    names = tuple(f"c{c}" for c in range(classes))
    space = ClassSpace(names, np.eye(classes), names, range(classes), [], [])
    rows = torch.from_numpy(rows)
    hidden = hidden_features(rows, labels, classes, quantization, 5)
    sums = statistics(rows, labels, space, None, quantization, hidden)
    codes = torch.from_numpy(quantization.codes(rows.numpy())[0])
    square = unpacked(sums["square"], rows.shape[1]).numpy()
    sent = codes if hidden is None else hidden.applied(codes, labels)
    return sums["count"].numpy(), sums["total"].numpy(), square, sent.numpy().astype(np.int64)


def left_out(rows, labels, quantization=BYTES, min_samples=5):
    """Return which samples a party leaves out."""
    classes = int(labels.max()) + 1
    moments = Moments(
        torch.from_numpy(rows), labels, classes, min_samples, min_samples, None, quantization
    )
    return moments.left_out().alone.numpy()


def read_alone(count, total, square, directions):
    """Return the samples that alone differ from all others in one of ``directions`` (k, d).

    In a direction p without that sample all have the same value b: the sum of each class is b times
    its count, but of one class. What is left of its sum is the sample's own difference, by which
    the product of the second moments and p is the sample.
    """
    held = count > 0
    found = []
    for direction in directions:
        along = total[held] @ direction
        for value in np.unique(np.rint(along / count[held]).astype(np.int64)):
            own = along - value * count[held]
            left = square @ direction - value * total[held].sum(0)
            if (own != 0).sum() != 1 or (left % own[own != 0]).any():
                continue
            sample = left // own[own != 0]
            if np.abs(sample).max() <= 127 and sample @ direction == value + own.sum():
                found.append(sample)
    return np.unique(np.array(found, dtype=np.int64).reshape(len(found), square.shape[0]), axis=0)


def hits(found, sent):
    """Return how many of the samples that were found are samples."""
    return sum(any(np.array_equal(one, sample) for sample in sent) for one in found)


def test_second_moments_show_each_sample_where_these_are_few():
    rows, labels, _ = sums_of(SAMPLES)
    count, total, square, sent = summed(rows, labels)
    found = read_samples(square, total, count)
    assert hits(sent, found) > SAMPLES / 2  # all of them, on the processors that were tried
    assert left_out(rows, labels).all()


@pytest.mark.parametrize(
    ("samples", "stay"), [(SAMPLES, False), (FEATURES, False), (FEATURES + CLASSES + 20, True)]
)
def test_samples_are_too_few_below_the_number_of_features_and_classes(samples, stay):
    rows, labels, _ = sums_of(samples)
    assert left_out(rows, labels).all() != stay
    again = np.repeat(rows[:SAMPLES], 10, axis=0)  # copies are one sample
    assert left_out(again, labels[:SAMPLES].repeat_interleave(10)).all()


def many(rng, samples=300, features=20):
    """Return samples of three classes that are many more than features, and their labels."""
    labels = torch.arange(samples) % CLASSES
    return np.rint(rng.uniform(0, 4, size=(samples, features))).astype(np.float32), labels


@pytest.mark.parametrize("base", [0.0, 3.0])
def test_a_feature_that_one_sample_alone_has_shows_that_sample(base):
    """A border pixel, a rare word, a rare code: all others have the same value there."""
    rows, labels = many(np.random.default_rng(1))
    rows[:, 7] = base
    rows[40, 7] = base + 2
    count, total, square, sent = summed(rows, labels)
    assert hits(read_alone(count, total, square, np.eye(20, dtype=int)), sent[40:41]) == 1
    gone = left_out(rows, labels)
    assert np.flatnonzero(gone).tolist() == [40]
    *sums, sent = summed(rows[~gone], labels[~torch.from_numpy(gone)])
    assert len(read_alone(*sums, np.eye(20, dtype=int))) == 0


def test_two_features_that_differ_for_one_sample_alone_show_it():
    rows, labels = many(np.random.default_rng(2))
    rows[:, 7] = rows[:, 3]
    rows[40, 7] += 2
    pair = np.eye(20, dtype=int)[[7]] - np.eye(20, dtype=int)[[3]]
    *sums, sent = summed(rows, labels)
    assert len(read_alone(*sums, np.eye(20, dtype=int))) == 0
    assert hits(read_alone(*sums, pair), sent[40:41]) == 1
    assert np.flatnonzero(left_out(rows, labels)).tolist() == [40]


@pytest.mark.parametrize("classes", [(0,), (0, 0), (0, 1)])
def test_a_sample_that_is_saved_in_two_classes_is_one_sample(classes):
    """A picture that is filed under two findings."""
    rows, labels = many(np.random.default_rng(6))
    rows[:, 7] = 0
    rows[: len(classes)] = rows[0]
    rows[: len(classes), 7] = 3
    labels[: len(classes)] = torch.tensor(classes)
    assert np.flatnonzero(left_out(rows, labels)).tolist() == list(range(len(classes)))


@pytest.mark.parametrize(
    ("bits", "terms"), [(8, {0: 11}), (8, {0: 100}), (8, {0: 63, 1: -31, 2: 17}), (16, {0: 30_000})]
)
def test_a_relation_of_whole_numbers_that_one_sample_breaks_shows_it(bits, terms):
    """A dose in two units, and a wrong one, whose part of that direction is next to nothing."""
    rng = np.random.default_rng(5)
    rows, labels = many(rng)
    rows[:, :3] = rng.integers(0, 2, (len(rows), 3))
    relation = np.zeros(20, dtype=int)
    for feature, factor in terms.items():
        relation[feature] = factor
    rows[:, 7] = rows @ relation
    rows[40, 7] += 1
    relation[7] = -1
    quantization = Quantization(bits, np.float32([1.0]), np.float32([0.0]))
    *sums, sent = summed(rows, labels, quantization)
    assert hits(read_alone(*sums, relation[None]), sent[40:41]) == 1
    assert np.flatnonzero(left_out(rows, labels, quantization)).tolist() == [40]


@pytest.mark.slow
@pytest.mark.parametrize("apart", [11, 3])
def test_a_relation_that_two_samples_break_shows_both_if_one_has_nearly_all_of_it(apart):
    """Ages in years and in days, two of them corrected: the product is so many times one sample,
    and the other, whose scores are smaller.
    """
    rng = np.random.default_rng(7)
    rows, labels = many(rng, 4000, 8)
    rows[:] = rng.integers(0, apart, rows.shape)
    rows[:, 0] = rng.integers(0, 90, len(rows))
    rows[:, 1] = 300 * rows[:, 0]
    rows[[40, 41], 1] += [apart, 1]
    quantization = Quantization(16, np.float32([1.0]), np.float32([0.0]))
    _, _, square, sent = summed(rows, labels, quantization)
    both = square[:, 1] - 300 * square[:, 0]
    assert (both // apart)[2:].tolist() == sent[40, 2:].tolist()
    assert (both % apart)[2:].tolist() == sent[41, 2:].tolist()
    gone = left_out(rows, labels, quantization)
    # the other is then alone; nine tenths of a direction that no one has named are not too much
    assert np.flatnonzero(gone).tolist() == ([40, 41] if apart == 11 else [])


def test_a_class_with_features_of_its_own_is_left_out_where_these_are_more_than_its_samples():
    rng = np.random.default_rng(3)
    rows, labels = many(rng, 206, 150)
    labels = torch.cat([torch.arange(200) % 2, torch.full((6,), 2)])
    rows[:, 20:] = 0
    rows[-6:, 20:] = np.maximum(rng.normal(size=(6, 130)), 0) * 2
    count, total, square, sent = summed(rows, labels)
    block = square[20:, 20:]  # of six samples alone, though there are 206 in all
    found = read_samples(block, total[2:, 20:], count[2:])
    assert hits(sent[-6:, 20:], found) > 3
    assert np.flatnonzero(left_out(rows, labels)).tolist() == list(range(len(rows) - 6, len(rows)))


def test_ranges_that_leave_one_class_alone_let_it_leave():
    """The coordinator's steps make all features of the other classes the ends of its ranges."""
    rng = np.random.default_rng(4)
    labels = torch.arange(60) % 10
    means = 10.0 * np.sign(labels.numpy() - 3)[:, None]
    scaled = (means + rng.normal(size=(60, 8))).astype(np.float32)
    around = Quantization(8, np.full(8, 0.03, np.float32), np.zeros(8, np.float32))
    _, _, square, sent = summed(scaled, labels, around)
    assert len(np.unique(sent, axis=0)) >= 8  # as many different samples as features
    others = labels.numpy() != 3
    assert all(len(np.unique(sent[labels == c], axis=0)) == 1 for c in range(10) if c != 3)
    rest = square - sent[others].T @ sent[others]  # known from the counts and sums
    assert np.linalg.matrix_rank(rest) == 6  # six samples of eight features
    assert np.flatnonzero(left_out(scaled, labels, around)).tolist() == [
        3 + 10 * k for k in range(6)
    ]


def test_samples_on_a_line_show_the_line_and_none_of_them():
    """All are multiples of one: that is shown, and the factors are not."""
    labels = torch.arange(60) % CLASSES
    line = np.arange(1, 9)
    factors = 1 + np.arange(60) % 15
    rows = np.outer(factors, line).astype(np.float32)
    quantization = Quantization(16, np.float32([1.0]), np.float32([0.0]))
    _, _, square, _ = summed(rows, labels, quantization)
    assert np.array_equal(square, (factors**2).sum() * np.outer(line, line))
    assert not left_out(rows, labels, quantization).any()


@pytest.mark.slow
def test_the_shipped_digits_show_no_sample_of_a_party():
    """Some border pixels are lit in one picture alone."""
    benchmark, _ = prepared(Experiment.load("digit-pairs-gaussian"), False)
    rows = benchmark.train[benchmark.labels[benchmark.train] < 27]
    features = benchmark.features[rows].reshape(len(rows), -1).astype(np.float32)
    labels = torch.from_numpy(benchmark.labels[rows])
    grey = Quantization.of_grey_values(8)
    centred = features - grey.offset
    every = np.eye(features.shape[1], dtype=int)
    *sums, sent = summed(centred, labels, grey)
    found = read_alone(*sums, every)
    assert 0 < len(found) == hits(found, sent)
    gone = left_out(centred, labels, grey)
    assert 0 < gone.sum() < 30
    *sums, sent = summed(centred[~gone], labels[torch.from_numpy(~gone)], grey)
    assert len(read_alone(*sums, every)) == 0


@pytest.mark.parametrize("held", ["few", "consented", "single", "many"])
def test_a_party_with_fewer_samples_than_features_needs_its_owner(held, tmp_path):
    write_all(tmp_path)
    header, tensors = greeting(experiment(tmp_path), tmp_path / "run")
    folder = tmp_path / NAMES[0]
    if held != "many":  # seven samples of eight features
        folder = write_party(tmp_path / "small", np.repeat([0], 7), 1)
    party = PartyData(folder, masked=True, min_samples=1 if held == "single" else 5)
    party.consent = ("moments",) if held == "consented" else ()
    if held != "few":
        assert party.prepare(header, tensors).samples == (18 if held == "many" else 7)
        return
    with pytest.raises(FedUnseenError, match="7 different samples with 8 features") as refused:
        party.prepare(header, tensors)
    assert code_of(refused.value) == DATA  # the coordinator does not read how many there are


@pytest.mark.parametrize("consent", [(), ("moments",)])
def test_a_party_leaves_out_a_sample_that_stands_alone_and_says_so(consent, tmp_path):
    write_all(tmp_path)
    file = tmp_path / NAMES[0] / "features.npz"
    content = dict(np.load(file))
    content["features"][:, 5] = 0
    content["features"][4, 5] = 1
    np.savez(file, **content)
    header, tensors = greeting(experiment(tmp_path), tmp_path / "run")
    party = PartyData(tmp_path / NAMES[0], masked=True)
    party.consent = consent
    ready = party.prepare(header, tensors)
    assert ready.samples == (18 if consent else 17)
    assert ("1 sample that second moments would show" in ready.left_out) != bool(consent)
    assert len(list(ready.raw())) == ready.samples  # the ledger has those that are sent


def test_a_coordinator_cannot_make_many_samples_the_same(tmp_path):
    """Whole numbers are counted as they are sent."""
    write_all(tmp_path)
    header, tensors = greeting(experiment(tmp_path), tmp_path / "run")
    statistics_of = {k: v.numpy() for k, v in tensors.items() if k != "semantics"}
    scaler = Scaler(("l2",), statistics_of)
    rows = np.load(tmp_path / NAMES[0] / "features.npz")["features"]
    assert len(np.unique(scaler.codes(rows)[0], axis=0)) == 18
    tensors["quantize.step"] = torch.full_like(tensors["quantize.step"], 10.0)  # all become 0
    party = PartyData(tmp_path / NAMES[0], masked=True)
    assert party.prepare(header, tensors).samples == 18  # nothing varies, so nothing is shown
