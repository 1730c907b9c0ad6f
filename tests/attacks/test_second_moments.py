"""Second moments of fewer samples than features, in which each sample can be found.

The sum of x x^T has the rank of the samples, so that all of them lie in the space that it spans.
Independent components of that space are near samples; zeros among the features make one exact. It
is taken off the sum, and the search goes on.
"""

import numpy as np
import pytest
import torch
from small_federation import NAMES, experiment, greeting, write_all, write_party

from fedunseen.core.errors import FedUnseenError
from fedunseen.data import ClassSpace, Quantization, Scaler
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.remote.refusals import DATA, code_of
from fedunseen.methods.closed_form.statistics import (
    Spread,
    hidden_features,
    statistics,
    too_few_for_moments,
    unpacked,
)

SAMPLES, FEATURES, CLASSES = 24, 120, 3


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
    """Return codes, labels and quantization of samples half of whose features are 0."""
    rng = np.random.default_rng(0)
    labels = np.arange(samples) % CLASSES
    means = rng.normal(size=(CLASSES, FEATURES))
    rows = np.maximum(means[labels] + rng.normal(size=(samples, FEATURES)), 0).astype(np.float32)
    quantization = Quantization(8, np.float32([0.05]), np.float32([0.0]))
    return rows, torch.from_numpy(labels), quantization


def test_second_moments_show_each_sample_where_these_are_few():
    rows, labels, quantization = sums_of(SAMPLES)
    names = tuple(f"c{c}" for c in range(CLASSES))
    space = ClassSpace(names, np.eye(CLASSES), names, range(CLASSES), [], [])
    hidden = hidden_features(torch.from_numpy(rows), labels, CLASSES, quantization, 5)
    sums = statistics(torch.from_numpy(rows), labels, space, None, quantization, hidden)
    square = unpacked(sums["square"], FEATURES).numpy()
    found = read_samples(square, sums["total"].numpy(), sums["count"].numpy())
    sent = hidden.applied(torch.from_numpy(quantization.codes(rows)[0]), labels).numpy()
    read = sum(any(np.array_equal(sample, one) for one in found) for sample in sent)
    assert read > SAMPLES / 2  # all of them, on the processors that were tried


@pytest.mark.parametrize(("samples", "few"), [(SAMPLES, True), (FEATURES, False)])
def test_samples_are_too_few_below_the_number_of_features(samples, few):
    rows, labels, quantization = sums_of(samples)
    found = too_few_for_moments(torch.from_numpy(rows), labels, CLASSES, quantization, 5)
    assert found == (Spread(SAMPLES, FEATURES) if few else None)
    again = torch.from_numpy(np.repeat(rows[:SAMPLES], 10, axis=0))
    copies = too_few_for_moments(
        again, labels[:SAMPLES].repeat_interleave(10), CLASSES, quantization, 5
    )
    assert copies == Spread(SAMPLES, FEATURES)


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
