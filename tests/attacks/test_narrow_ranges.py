"""A range of a feature, chosen by the coordinator, beyond which all samples of a class but one lie.

The others' clipped features are known, so that the sum of six samples would show the feature of the
one within the range. A party sends 0 where fewer than ``min_samples`` samples of a class lie within
it.
"""

import numpy as np
import pytest
import torch

from fedunseen.core.errors import DataError, FedUnseenError
from fedunseen.core.samples import CodedRows, ScaledSamples
from fedunseen.data import ClassSpace, Quantization, Scaler
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.remote.party import local_update
from fedunseen.deploy.remote.refusals import DATA, code_of
from fedunseen.methods.closed_form.soft_statistics import LEVELS as WHOLE
from fedunseen.methods.closed_form.soft_statistics import (
    on_grid,
    soft_statistics,
    weighted_bounds,
    without_small,
)
from fedunseen.methods.closed_form.statistics import (
    bounds_of_class,
    hidden_features,
    statistics,
    unpacked,
)
from fedunseen.strategies import Instruction
from small_federation import CLASSES, HELD, NAMES, experiment, greeting, write_all, write_party

LEVELS = 127


@pytest.mark.parametrize("min_samples", [1, 5])
def test_a_narrow_range_shows_no_feature_of_few_samples(tmp_path, min_samples):
    write_all(tmp_path)
    header, tensors = greeting(experiment(tmp_path), tmp_path / "run")
    arrays = np.load(tmp_path / NAMES[0] / "features.npz")
    rows = arrays["features"][arrays["labels"] == "class 0"].astype(np.float64)
    assert header["experiment"]["data"]["features"] == ["l2"]
    values = np.sort((rows / np.linalg.norm(rows, axis=1, keepdims=True))[:, 0])
    half = min(values[3] - values[2], values[2] - values[1]) / 2  # no other is in the range
    width = arrays["features"].shape[1]
    step, offset = np.ones(width), np.zeros(width)
    step[0], offset[0] = half / LEVELS, values[2] - half / 3
    tensors |= {
        "quantize.step": torch.from_numpy(step).float(),
        "quantize.offset": torch.from_numpy(offset).float(),
    }
    held = PartyData(tmp_path / NAMES[0], masked=True, min_samples=min_samples)
    reply, _ = local_update(held.prepare(header, tensors).engine, 0, Instruction({}), {}, 0)
    assert int(reply.update["count"][0]) == len(values) == 6
    total = int(reply.update["total"][0, 0])
    if min_samples == 1:  # the attack works where the owner has said so
        code = total - LEVELS * (3 - 2)  # three above, two below
        assert abs(offset[0] + code * step[0] - values[2]) <= step[0]
    else:
        assert total == 0


def sums_of(rows, labels, step, offset, min_samples, among=None):
    """Return a party's total (C, d) and its second moments (d, d) under a coordinator's steps."""
    step, offset = (np.asarray(one, dtype=np.float32) for one in (step, offset))
    quantization = Quantization(8, step, offset)
    names = tuple(f"c{c}" for c in range(1 + max(labels)))
    space = ClassSpace(names, np.eye(len(names)), names, range(len(names)), [], [])
    samples = (rows - offset).astype(np.float32), np.array(labels)
    whole = ((among[0] - offset).astype(np.float32), np.array(among[1])) if among else samples
    hidden = hidden_features(*whole, len(names), quantization, min_samples)
    sums = statistics(*samples, space, None, quantization, hidden)
    return sums["total"], unpacked(sums["square"], rows.shape[1])


def spread(samples):
    rows = np.random.default_rng(3).uniform(-1, 1, (samples, 4))
    rows[:, 0] = np.linspace(0.1, 0.2, samples)
    return rows


FINE = [1 / LEVELS] * 3


@pytest.mark.parametrize("min_samples", [1, 5])
def test_one_sample_on_the_other_side_of_a_narrow_range_changes_nothing(min_samples):
    """All others are above it, and none or two are within."""
    rows = spread(12)
    rows[:, 0] = 0.5
    rows[1:3, 0] = 0.1
    below = rows.copy()
    below[0, 0] = -0.5
    step, offset = [1e-3 / LEVELS, *FINE], [0.1, 0.0, 0.0, 0.0]
    totals = [sums_of(some, [0] * 12, step, offset, min_samples)[0] for some in (rows, below)]
    assert torch.equal(*totals) is (min_samples > 1)


@pytest.mark.parametrize("samples", [5, 6, 9, 30])
@pytest.mark.parametrize("place", [0.0, 1.0])
def test_a_coarse_step_shows_no_sample_apart(samples, place):
    """All samples but one round to one whole number, 0 or 1."""
    rows = spread(samples)
    rows[2, 0] = 0.9  # the coordinator's guess of an outlier
    given = rows, [0] * samples, [1, *FINE], [-place, 0, 0, 0]
    codes = np.rint(rows[:, 1:] * LEVELS)

    def apart(min_samples):
        """Return all features of the sample apart, from the row of second moments."""
        total, square = sums_of(*given, min_samples)
        assert total[0, 1:].tolist() == codes.sum(0).tolist()
        return (square[0] - int(place) * total[0])[1:].tolist(), int(total[0, 0])

    assert apart(1) == (codes[2].tolist(), samples * place + 1)
    assert apart(5) == ([0, 0, 0], samples * place)


@pytest.mark.parametrize(("above", "below"), [(1, 8), (1, 4), (4, 4), (3, 30)])
def test_a_range_that_cuts_a_class_in_two_shows_no_few_samples(above, below):
    """All samples are clipped, and second moments show the sums of both sides."""
    rows = spread(above + below)
    rows[:above, 0] = 0.9
    given = rows, [0] * len(rows), [1e-6, *FINE], [0.5, 0, 0, 0]
    codes = np.rint(rows[:, 1:] * LEVELS)

    def side(min_samples):
        total, square = sums_of(*given, min_samples)
        return ((total[0, 1:] + square[0, 1:] / LEVELS) / 2).tolist()

    assert side(1) == codes[:above].sum(0).tolist()
    # few above count as below; with few on both sides the feature is 0, and half the sum is left
    wanted = 0 * codes[0] if below >= 5 else codes.sum(0) / 2
    assert side(5) == wanted.tolist()


@pytest.mark.parametrize(("below", "above"), [(15, 15), (0, 30), (30, 0), (3, 27)])
@pytest.mark.parametrize("there", [1, 4])
def test_a_range_does_not_show_whether_few_samples_are_within(below, above, there):
    """The candidates would take the places of samples beyond the range."""
    rows = spread(30)
    rows[:, 0] = [-0.9] * below + [0.9] * above
    with_candidates = rows.copy()
    side = slice(there) if above == 0 else slice(30 - there, 30)
    with_candidates[side, 0] = 0.5 + 1e-4 * np.arange(there)
    given = [0] * 30, [1e-5, *FINE], [0.5, 0, 0, 0]
    none, some = (sums_of(one, *given, 5) for one in (rows, with_candidates))
    assert all(map(torch.equal, none, some))
    shown = (sums_of(one, *given, 1)[0] for one in (rows, with_candidates))
    assert not torch.equal(*shown)  # the positive control


def test_pairs_of_narrow_ranges_show_no_sample():
    """Of 40 samples nine are within each of two ranges, and one is within both."""
    rows = np.random.default_rng(5).uniform(0.1, 0.4, (40, 4))
    rows[:9, 0] = rows[8:17, 1] = np.linspace(0.55, 0.95, 9)
    given = rows, [0] * 40, [0.25 / LEVELS, 0.25 / LEVELS, *FINE[1:]], [0.75, 0.75, 0, 0]
    codes = np.rint((rows[8, :2] - 0.75) / 0.25 * LEVELS) + LEVELS

    def product(min_samples):
        total, square = sums_of(*given, min_samples)
        return float(square[0, 1] + LEVELS * total[0, :2].sum() + 40 * LEVELS**2)

    assert product(1) == codes.prod() > 0
    assert product(5) == 0


@pytest.mark.parametrize(("inside", "shown"), [(9, 0), (20, 0), (21, 21), (30, 30)])
def test_a_range_has_more_than_half_of_a_class(inside, shown):
    rows = spread(40)
    rows[:, 0] = np.where(np.arange(40) < inside, 0.5, 0.9)
    total, _ = sums_of(rows, [0] * 40, [0.1 / LEVELS, *FINE], [0.5, 0, 0, 0], 5)
    assert int(total[0, 0]) == LEVELS * (40 - shown)


@pytest.mark.parametrize("min_samples", [1, 5])
def test_the_number_of_clipped_features_does_not_show_whether_a_sample_is_there(
    min_samples, tmp_path
):
    """A narrow range around a candidate's value: all other samples are clipped."""
    write_all(tmp_path)
    folder = tmp_path / NAMES[0]
    arrays = dict(np.load(folder / "features.npz"))
    candidate = arrays["features"][0].copy()
    given = {"data__features": [], "data__bounds": [[-10, 10]]}
    header, tensors = greeting(experiment(tmp_path, **given), tmp_path / "run")
    tensors |= {
        "quantize.step": torch.full((len(candidate),), 1e-6),
        "quantize.offset": torch.from_numpy(candidate),
    }

    def clipped():
        # clipped samples are the same, which alone would be refused
        held = PartyData(folder, masked=True, min_samples=min_samples)
        held.consent = ("moments",)
        reply, _ = local_update(held.prepare(header, tensors).engine, 0, Instruction({}), {}, 0)
        return int(reply.update["clipped"])

    there = clipped()
    arrays["features"][0] += np.float32(0.01)
    np.savez(folder / "features.npz", **arrays)
    assert clipped() - there == (len(candidate) if min_samples == 1 else 0)


@pytest.mark.parametrize("narrow", [True, False])
def test_an_owner_alone_learns_that_features_are_clipped(narrow, tmp_path, recwarn):
    write_all(tmp_path)
    given = {"data__features": [], "data__bounds": [[-10, 10]]}
    header, tensors = greeting(experiment(tmp_path, **given), tmp_path / "run")
    if narrow:
        tensors["quantize.step"] = torch.full_like(tensors["quantize.step"], 1e-6)
    recwarn.clear()
    held = PartyData(tmp_path / NAMES[0], masked=True).prepare(header, tensors)
    said = [str(one.message) for one in recwarn if "beyond the range" in str(one.message)]
    assert len(said) == narrow
    reply, _ = local_update(held.engine, 0, Instruction({}), {}, 0)
    assert int(reply.update["clipped"]) == 0


def test_copies_of_a_sample_within_a_range_count_once():
    rows = spread(13)
    rows[:, 0] = 0.9
    rows[:7] = [0.45, *rows[3, 1:]]
    given = rows, [0] * 13, [0.1 / LEVELS, *FINE], [0.5, 0, 0, 0]
    assert int(sums_of(*given, 1)[0][0, 0]) == 6 * LEVELS - 7 * 64
    assert int(sums_of(*given, 5)[0][0, 0]) == 13 * LEVELS


def test_a_narrow_range_shows_no_sample_in_second_moments():
    rows = spread(6)
    rows[:, 0] = [0.9, 0.9, 0.9, 0.5, 0.1, 0.1]
    given = rows, [0] * 6, [0.1 / LEVELS, *FINE], [0.42, 0, 0, 0]
    codes = np.rint(rows[:, 1:] * LEVELS)
    signs = np.array([1, 1, 1, 0, -1, -1])
    _, square = sums_of(*given, 1)
    within = square[0, 1:] - LEVELS * torch.from_numpy(signs @ codes).long()
    code = round(0.08 / (0.1 / LEVELS))
    assert within.tolist() == (code * codes[3]).tolist()  # the one within, times its code
    _, square = sums_of(*given, 5)
    assert not square[0].any()


def test_a_removal_takes_back_what_was_sent():
    """What few samples are apart is decided for all that the party holds, in a part of them too."""
    rows = spread(30)
    rows[[2, 25], 0] = 0.9
    labels, steps = np.zeros(30, dtype=int), ([1, *FINE], [-1, 0, 0, 0])
    whole, part, left = (
        sums_of(rows[some], labels[some], *steps, 5, (rows, labels))
        for some in (slice(None), slice(20), slice(20, None))
    )
    for one, gone, stays in zip(whole, part, left, strict=True):
        assert torch.equal(one - gone, stays)
    assert [int(total[0, 0]) for total, _ in (whole, part, left)] == [30, 20, 10]


def test_features_whose_values_are_the_same_keep_them():
    """Black pixels at a border: no step has made them equal."""
    rows = spread(30)
    rows[:, 0] = 0
    rows[3, 0] = 0.9
    given = rows, [0] * 30, [0.1, *FINE], [0, 0, 0, 0]
    assert all(map(torch.equal, sums_of(*given, 5), sums_of(*given, 1)))


def test_several_samples_apart_in_each_class_are_sent():
    rows = spread(40)
    rows[:12, 0] = 0.9
    given = rows, [0] * 20 + [1] * 20, [1, *FINE], [0, 0, 0, 0]
    total, square = sums_of(*given, 5)
    whole, more = sums_of(*given, 1)
    assert total.tolist() == whole.tolist()
    assert square.tolist() == more.tolist()
    assert total[:, 0].tolist() == [12, 0]


def test_the_same_sample_saved_again_counts_once(tmp_path):
    write_all(tmp_path)
    folder = tmp_path / NAMES[0]
    arrays = dict(np.load(folder / "features.npz"))
    first = np.flatnonzero(arrays["labels"] == "class 0")
    arrays["features"][first[1:]] = arrays["features"][first[0]]
    np.savez(folder / "features.npz", **arrays)
    header, tensors = greeting(experiment(tmp_path), tmp_path / "run")

    def sent(min_samples):
        ready = PartyData(folder, masked=True, min_samples=min_samples).prepare(header, tensors)
        reply, _ = local_update(ready.engine, 0, Instruction({}), {}, 0)
        return ready.left_out, reply.update["count"][:3].tolist()

    assert sent(1) == ("", [6, 6, 6])
    left_out, counts = sent(5)
    assert counts == [0, 6, 6]
    assert "class 0 (1)" in left_out


@pytest.mark.parametrize("copies", [1, 5])
def test_the_same_unlabelled_sample_counts_once(copies):
    quantization = Quantization.of_unit_length(8, 5.0, 2)
    linear = {"weight": torch.zeros(1, 2).double(), "bias": torch.zeros(1).double()}
    scores = on_grid(linear, torch.arange(1), quantization)
    rows = torch.tensor([[9, 3]] * copies + [[5, 5]] * (6 - copies)).double() * scores.unit
    first = torch.tensor([i in (0, copies) for i in range(6)])
    distinct = soft_statistics(scores, rows[first])["count"]
    sums, left = without_small(soft_statistics(scores, rows), 3, distinct)
    assert left == {0: 2.0}
    assert sums["count"].tolist() == [0]
    assert not without_small(soft_statistics(scores, rows), 3)[1]


def test_features_that_are_no_numbers_once_scaled_are_refused():
    big = np.full(2, 1e20, dtype=np.float32)
    tiny = np.full(2, 1e-20, dtype=np.float32)
    fitted = {"0.min": -big, "0.range": tiny}  # infinite, and of no length then
    scaler = Scaler(("min-max", "l2"), fitted | Quantization.of_unit_length(8, 5.0, 2).statistics)
    for read in (scaler.codes, scaler, lambda rows: scaler.quantization.codes(rows * np.nan)):
        with pytest.raises(DataError, match="are not numbers"), np.errstate(all="ignore"):
            read(np.ones((3, 2), dtype=np.float32))


@pytest.mark.parametrize("min_samples", [1, 5])
def test_soft_sums_show_no_sample_apart(min_samples):
    quantization = Quantization.of_unit_length(8, 5.0, 2)
    linear = {"weight": torch.zeros(1, 2).double(), "bias": torch.zeros(1).double()}
    scores = on_grid(linear, torch.arange(1), quantization)
    rows = torch.tensor([[1, i] for i in range(12)])
    rows[4, 0] = 7
    values = rows + torch.linspace(-0.3, 0.3, 12)[:, None]
    given = () if min_samples == 1 else (values,)
    sums = soft_statistics(scores, rows.double() * scores.unit, None, min_samples, None, given)
    shown = 11 + 7 if min_samples == 1 else 12
    assert sums["total"].tolist() == [[WHOLE * shown, WHOLE * 66]]


@pytest.mark.parametrize("min_samples", [1, 2])
def test_soft_sums_show_no_feature_of_few_samples(min_samples):
    quantization = Quantization.of_unit_length(8, 5.0, 2)
    linear = {"weight": torch.zeros(1, 2).double(), "bias": torch.zeros(1).double()}
    scores = on_grid(linear, torch.arange(1), quantization)
    rows = torch.tensor([[LEVELS, 3], [LEVELS, 4], [5, 5]], dtype=torch.int8)  # one is within
    clipped = torch.tensor([[True, False], [True, False], [False, False]])
    sums = soft_statistics(scores, rows.double() * scores.unit, clipped, min_samples)
    shown = [2 * LEVELS + 5, 12] if min_samples == 1 else [3 * LEVELS, 12]
    assert sums["total"].tolist() == [[WHOLE * value for value in shown]]


@pytest.mark.slow
def test_soft_sums_hide_what_sums_of_labeled_samples_hide():
    """Where all samples weigh alike: of features that vary, that rounding makes nearly one, that
    are clipped at one end or both, and that float32 makes one.
    """
    draw = np.random.default_rng(0)
    width = 400
    far = {"0.mean": np.repeat([0.0, 2.0**24], width // 2).astype(np.float32)}
    quantization = Quantization._within(4, np.full(width, -3.0), np.full(width, 3.0))
    scaler = Scaler(("centre",), far | quantization.statistics)
    for count in (10, 11, 25):
        rows = draw.normal(0, draw.uniform(0.2, 3, width), (count, width))
        rows[:, ::3] = draw.choice(
            [0.9, 1.0, 1.1, 9.0], rows[:, ::3].shape, p=[0.2, 0.6, 0.18, 0.02]
        )
        rows[:, 1::3] += draw.choice([-3, 0, 3], rows[:, 1::3].shape[1])
        rows += far["0.mean"]
        samples = ScaledSamples(rows, torch.device("cpu"), scaler)
        every = torch.arange(count)
        least, most, _ = bounds_of_class(CodedRows(samples, every), every, quantization, 3)
        known = samples.codes(every)[0].double(), samples.clipped(every), samples.stages(every)
        soft = weighted_bounds(*known, torch.ones(count, 1).double(), (1, 3))
        assert all(
            map(torch.equal, (bound[0].clamp(-7, 7).short() for bound in soft), (least, most))
        )
        kinds = {
            "one": least == most,
            "nearer": (least > -7) & (least < most),
            "as it is": most == 7,
        }
        assert all(bool(kind.any()) for kind in kinds.values())


@pytest.mark.parametrize("other", [0, 1, 4])
def test_a_far_sample_of_a_pool_is_hidden_in_its_class(other):
    """The pool's usual number is another one than that of the class to which it is sorted, or some
    others of the class are a little apart, too.
    """
    quantization = Quantization._within(8, np.full(2, -127.0), np.full(2, 127.0))
    linear = {
        "weight": torch.tensor([[0.0, -9.0], [0.0, 9.0]]).double(),
        "bias": torch.zeros(2).double(),
    }
    scores = on_grid(linear, torch.arange(2), quantization)
    draw = torch.Generator().manual_seed(0)
    values = torch.rand(90, 2, generator=draw) * 0.6 - 0.3
    values[:, 1] += torch.where(torch.arange(90) < 60, -3, 3)  # 60 samples of the first class
    values[60:, 0] += 1
    values[89, 0], values[60 : 60 + other, 0] = 41, 2
    samples = ScaledSamples(
        values.numpy(), torch.device("cpu"), Scaler((), quantization.statistics)
    )
    every = torch.arange(90)
    given = samples.clipped(every), 5, None, samples.stages(every)
    total = soft_statistics(scores, samples[every], *given)["total"]
    assert total[1, 0] == WHOLE * (30 if other < 4 else 34 + 1)
    shown = soft_statistics(scores, samples[every])["total"]
    assert shown[1, 0] == WHOLE * (29 + other + 41)


@pytest.mark.parametrize("min_samples", [1, 5])
def test_soft_sums_do_not_show_whether_a_sample_is_within_a_range(min_samples):
    quantization = Quantization.of_unit_length(8, 5.0, 2)
    linear = {"weight": torch.zeros(1, 2).double(), "bias": torch.zeros(1).double()}
    scores = on_grid(linear, torch.arange(1), quantization)

    def total(value, beyond):
        rows = torch.tensor([[LEVELS, 3]] * 8 + [[-LEVELS, 4]] * 4 + [[value, 5]])
        clipped = torch.tensor([[True, False]] * 12 + [[beyond, False]])
        given = rows.double() * scores.unit, clipped, min_samples
        return soft_statistics(scores, *given)["total"].tolist()

    assert (total(7, False) == total(LEVELS, True)) == (min_samples > 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "delta", "hides"), [(10.0, 1e-4, True), (10.1, 1e-4, False), (1.0, 1.1e-4, False)]
)
def test_noise_that_hides_no_single_sample_needs_the_owner(epsilon, delta, hides, tmp_path):
    """Noise that does not hide a sample does not stand in for leaving out small classes."""
    write_all(tmp_path)
    noise = {
        "privacy__name": "sample-level", "privacy__clip": 1.0, "privacy__epsilon": epsilon,
        "privacy__delta": delta, "privacy__noise_from": "system", "data__features": ["l2"],
    }  # fmt: skip
    header, tensors = greeting(experiment(tmp_path, **noise), tmp_path / "run")

    def join(min_samples):
        held = PartyData(tmp_path / NAMES[0], masked=True, min_samples=min_samples)
        return held.prepare(header, tensors).samples

    assert join(1) == 18
    if hides:
        assert join(5) == 18
        return
    with pytest.raises(FedUnseenError, match="hides no single sample") as refused:
        join(5)
    assert refused.value.code == "refused-settings"


@pytest.mark.parametrize(
    ("asked", "remedy"), [(1, "if the owner agrees$"), (5, "taken back .* = 5$")]
)
def test_a_refusal_names_the_remedy_of_who_has_asked(asked, remedy, tmp_path):
    """The larger number counts, so that --min-samples 1 alone lifts nothing of a coordinator's."""
    write_all(tmp_path)
    settings = {"data__features": ["standard", "l2"], "method__min_samples": asked}
    header, tensors = greeting(experiment(tmp_path, **settings), tmp_path / "run")

    def join(min_samples):
        held = PartyData(tmp_path / NAMES[0], masked=True, min_samples=min_samples)
        return held.prepare(header, tensors)

    with pytest.raises(FedUnseenError, match=remedy):
        join(5)
    if asked == 1:
        assert join(1).samples == 18
        return
    with pytest.raises(FedUnseenError, match=remedy):
        join(1)


ABSORBED = 2.0**28  # float32 has multiples of 32 beyond it, and so no smaller difference


def absorbing(width, cut, apart=32.0):
    """Return means that leave two values of feature 0: 0 up to ``cut``, and ``apart`` beyond."""
    shift, large = torch.zeros(2, width)
    shift[0], large[0] = cut - apart / 2, -ABSORBED * apart / 32
    return {"0.mean": shift, "1.mean": large, "2.mean": -large}


def masked_total(folder, features, tensors, min_samples, **settings):
    """Return statistics of all parties under a coordinator's scalings."""
    added = {"count": 0, "total": 0, "square": 0}
    for client, name in enumerate(NAMES):
        asked = experiment(folder, data__features=features, **settings)
        header, own = greeting(asked, folder / f"run-{client}", client)
        held = PartyData(folder / name, masked=True, min_samples=min_samples)
        engine = held.prepare(header, {**own, **tensors}).engine
        reply, _ = local_update(engine, client, Instruction({}), {}, 0)
        added = {key: value + reply.update[key] for key, value in added.items()}
    return added


def largest(folder):
    """Return the sample with the largest feature 0, and a cut below it."""
    rows = np.concatenate([np.load(folder / name / "features.npz")["features"] for name in NAMES])
    order = np.argsort(rows[:, 0])
    return rows[order[-1]], float(rows[order[-2:], 0].mean())


@pytest.mark.parametrize("min_samples", [1, 5])
def test_a_mean_so_large_that_values_become_one_shows_no_sample(min_samples, tmp_path):
    """Values are equal before they become whole numbers, since float32 has made them so."""
    sample, cut = largest(write_all(tmp_path))
    width = len(sample)
    step = torch.full((width,), 6 / LEVELS)
    step[0] = 32.0
    tensors = absorbing(width, cut) | {"quantize.step": step, "quantize.offset": torch.zeros(width)}
    square = masked_total(tmp_path, ["centre"] * 3, tensors, min_samples)["square"]
    codes = np.rint(sample[1:] / step[1:].numpy()).astype(int).tolist()
    shown = unpacked(square, width)[0]
    assert shown.tolist() == ([1, *codes] if min_samples == 1 else [0] * width)


@pytest.mark.parametrize("min_samples", [1, 5])
def test_a_mean_so_large_that_one_sample_weighs_more_than_all_shows_none(min_samples, tmp_path):
    """Float32 leaves two values within the range: five samples weigh 1, and one 65,534."""
    for number, name in enumerate(NAMES, 1):
        write_party(tmp_path / name, np.repeat(HELD[name], 20), number)
    labels = np.repeat(range(CLASSES), 4)
    split = ["train" if c < 10 and i % 2 else "test" for i, c in enumerate(labels)]
    write_party(tmp_path / "coordinator", labels, 9, split)
    sample, cut = largest(tmp_path)
    rows = np.load(tmp_path / NAMES[1] / "features.npz")
    own = np.sort(rows["features"][rows["labels"] == "class 3", 0])[::-1]
    assert own[0] == sample[0]
    apart = cut - float(own[6:8].mean())
    width, top = len(sample), 32767
    mean, scale, large = torch.zeros(width), torch.ones(width), torch.zeros(width)
    mean[0], scale[0], large[0] = cut - apart / 2, apart / 32, -1.5 * ABSORBED
    step, offset = torch.full((width,), 8 / top), torch.zeros(width)
    step[0] = 32 / (2 * top - 1)
    offset[0] = step[0] * (top - 1)
    tensors = {
        "0.mean": mean, "0.deviation": scale, "1.mean": large, "2.mean": -large,
        "quantize.bits": torch.tensor([16.0]), "quantize.step": step, "quantize.offset": offset,
    }  # fmt: skip
    features = ["standard", "centre", "centre"]
    sums = masked_total(tmp_path, features, tensors, min_samples, data__quantization=16)
    ends = torch.where(sums["total"][:, :1] == 0, 0, -top)
    row = unpacked(sums["square"], width)[0] - (ends * sums["total"]).sum(0)
    shown = (row[1:].double() / (2 * top)).numpy() * step[1:].numpy()
    assert np.abs(shown - (sample[1:] if min_samples == 1 else 0)).max() < 1e-3


LATE = [
    ["centre", "centre", "centre", "l2"],
    ["min-max", "l2"],
    ["standard", "l2"],
    ["l2", "standard", "l2"],
    ["x10", "l2"],
]


@pytest.mark.parametrize("features", LATE)
def test_unit_length_after_a_coordinators_scale_needs_the_owner(features, tmp_path):
    write_all(tmp_path)
    header, tensors = greeting(experiment(tmp_path, data__features=features), tmp_path / "run")

    def join(min_samples):
        held = PartyData(tmp_path / NAMES[0], masked=True, min_samples=min_samples)
        return held.prepare(header, tensors).samples

    assert join(1) == 18
    with pytest.raises(FedUnseenError, match="l2 is neither first nor after one centre") as refused:
        join(5)
    assert refused.value.code == "refused-settings"


@pytest.mark.parametrize("rounding", ["asked for", "not sent", "none"])
def test_features_that_are_not_rounded_need_the_owner(rounding, tmp_path):
    """What makes values one is not seen without whole numbers; the sums have all digits then."""
    sample, cut = largest(write_all(tmp_path))
    asked = {"data__quantization": "none"} if rounding == "none" else {}
    chosen = experiment(tmp_path, data__features=["centre"] * 3, **asked)
    header, tensors = greeting(chosen, tmp_path / "run")
    if rounding == "not sent":
        tensors = {key: value for key, value in tensors.items() if "quantize" not in key}
    tensors |= absorbing(len(sample), cut)

    def join(min_samples):
        held = PartyData(tmp_path / NAMES[0], masked=True, min_samples=min_samples)
        return held.prepare(header, tensors).samples

    assert join(1) == 18
    if rounding == "asked for":
        assert join(5) == 18
        return
    with pytest.raises(FedUnseenError, match="features are not rounded") as refused:
        join(5)
    assert refused.value.code == "refused-settings"


@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("features", [["l2"], ["centre", "l2"], ["l2", "standard"]])
def test_unit_length_first_or_after_one_centre_needs_no_one_where_it_is_rounded(
    features, rounded, tmp_path
):
    write_all(tmp_path)
    asked = {} if rounded else {"data__quantization": "none"}
    chosen = experiment(tmp_path, data__features=features, **asked)
    header, tensors = greeting(chosen, tmp_path / "run")

    def join(min_samples):
        held = PartyData(tmp_path / NAMES[0], masked=True, min_samples=min_samples)
        return held.prepare(header, tensors).samples

    assert join(1) == 18
    if rounded:
        assert join(5) == 18
        return
    with pytest.raises(FedUnseenError, match="features are not rounded") as refused:
        join(5)
    assert refused.value.code == "refused-settings"


@pytest.mark.parametrize("min_samples", [1, 5])
def test_a_huge_mean_of_features_that_are_not_rounded_shows_no_sample(min_samples, tmp_path):
    """float32 makes each value of a feature one of two; unit length keeps which."""
    write_all(tmp_path)
    files = [tmp_path / name / "features.npz" for name in NAMES]
    parts = [dict(np.load(file)) for file in files]
    lengths = np.abs(np.concatenate([part["features"] for part in parts])[:, 0])
    cut = np.sort(lengths)[-2:].mean()
    for file, part in zip(files, parts, strict=True):
        part["features"][:, 0] *= 4 / cut
        assert np.abs(part["features"][:, 1:3]).max() < 4
        np.savez(file, **part)
    sample = np.concatenate([part["features"] for part in parts])[lengths.argmax()]
    width = len(sample)
    mean = torch.zeros(width)
    mean[:3] = 1.5 * 2**23 * 8  # beside it, float32 has multiples of 8: below 4 all are 0
    given = {"data__quantization": "none"}
    if min_samples > 1:
        with pytest.raises(FedUnseenError, match="features are not rounded"):
            masked_total(tmp_path, ["centre", "l2"], {"0.mean": mean}, min_samples, **given)
        return
    sums = masked_total(tmp_path, ["centre", "l2"], {"0.mean": mean}, min_samples, **given)
    scaler = Scaler(("centre", "l2"), {"0.mean": mean.numpy()})
    one = np.zeros((2, width), np.float32)
    one[1, 0] = np.copysign(8, sample[0])
    below, beyond = scaler(one)[:, 0].astype(np.float64)
    counts = (sums["total"][:, 0] - sums["count"] * below) / (beyond - below)
    assert counts.round().abs().sum() == 1  # the class of the only one beyond the cut
    row = unpacked(sums["square"], width)[0] - below * sums["total"].sum(0)
    shown = row[3:] / (beyond - below) * float(mean.double().norm())
    assert np.abs(shown.numpy() - sample[3:]).max() < 0.01


@pytest.mark.parametrize("min_samples", [1, 5])
@pytest.mark.parametrize("beside", [0.0, 1e-5, 0.3])
def test_a_mean_at_a_candidate_does_not_show_whether_it_is_there(beside, min_samples, tmp_path):
    """It becomes 0, or a direction that the coordinator chooses; other samples lie elsewhere."""
    write_all(tmp_path)
    folder = tmp_path / NAMES[0]
    arrays = dict(np.load(folder / "features.npz"))
    drawn = np.random.default_rng(1).normal(size=arrays["features"].shape)
    arrays["features"] = drawn.astype(np.float32)
    arrays["labels"][:] = np.repeat(["class 0", "class 1"], 9)
    np.savez(folder / "features.npz", **arrays)
    mean = torch.from_numpy(arrays["features"][0].copy())
    mean[0] -= beside
    others = np.linalg.norm(arrays["features"][1:] - mean.numpy(), axis=1)
    assert others.min() > np.median(others) / 2 > beside
    chosen = experiment(tmp_path, data__features=["centre", "l2"])
    header, tensors = greeting(chosen, tmp_path / "run")

    def sent():
        held = PartyData(folder, masked=True, min_samples=min_samples)
        ready = held.prepare(header, tensors | {"0.mean": mean})
        reply, _ = local_update(ready.engine, 0, Instruction({}), {}, 0)
        del reply.update["space"]
        return ready.left_out, ready.samples, reply.update

    said, samples, there = sent()
    arrays["features"][0, 1] += 0.4  # another sample near the mean
    np.savez(folder / "features.npz", **arrays)
    _, as_many, another = sent()
    np.savez(folder / "features.npz", **{key: value[1:] for key, value in arrays.items()})
    _, fewer, gone = sent()
    assert samples == as_many == fewer + 1
    if min_samples == 1:  # each sample but the candidate has unit length
        length = float(there["square"][0] - gone["square"][0])
        assert (length > 0) == (beside > 0)
        assert not torch.equal(there["total"], another["total"])
        return
    assert "others of their classes stand in for 1 sample" in said
    assert all(torch.equal(there[key], another[key]) for key in gone)
    one_more = (there["total"] - gone["total"])[0]
    assert int(there["count"][0] - gone["count"][0]) == 1
    codes = own_codes(arrays["features"], chosen, tensors | {"0.mean": mean})
    assert one_more.tolist() in codes[1:9].tolist()  # another of the class, once more


@pytest.mark.parametrize("asked", [9, 10])
def test_acceptance_does_not_show_whether_a_sample_is_near_the_mean(asked, tmp_path):
    """The coordinator asks for as many samples as the largest class has, or for one more."""
    write_all(tmp_path)
    chosen = experiment(tmp_path, data__features=["centre", "l2"], method__min_samples=asked)
    header, tensors = greeting(chosen, tmp_path / "run")
    folders = [write_party(tmp_path / f"of {k}", [0] * 9, 20 + k) for k in range(2)]
    candidate = np.load(folders[0] / "features.npz")["features"][0]
    codes = set()
    for folder in folders:
        features = np.load(folder / "features.npz")["features"]
        away = np.linalg.norm(features - candidate, axis=1)
        assert (away <= np.median(away) / 2).any() == (folder == folders[0])  # the line is reached
        try:
            held = PartyData(folder, masked=True)
            held.consent = ("moments",)
            held.prepare(header, tensors | {"0.mean": torch.from_numpy(candidate)})
            codes.add("")
        except FedUnseenError as refused:
            codes.add(code_of(refused))
    assert codes == ({""} if asked == 9 else {DATA})


def own_codes(features, chosen, tensors):
    """Return the whole numbers of a party's samples under a coordinator's scaling."""
    scaled = {name: value.numpy() for name, value in tensors.items() if "semantics" not in name}
    return Scaler(tuple(chosen.data.features), scaled).codes(features)[0]


def test_unit_length_after_a_large_mean_makes_a_total_that_of_one_sample(tmp_path):
    """What the refusal is about, where the owner has agreed: all others are far away."""
    sample, cut = largest(write_all(tmp_path))
    width = len(sample)
    apart = 32 * 4096.0
    tensors = absorbing(width, cut, apart) | {
        "quantize.bits": torch.tensor([16.0]),
        "quantize.step": torch.full((width,), 2.0**-15),
        "quantize.offset": torch.zeros(width),
    }
    tensors["2.mean"][0] += apart
    total = masked_total(tmp_path, ["centre"] * 3 + ["l2"], tensors, 1, data__quantization=16)
    shown = total["total"].sum(0)[1:].double().numpy()
    alike = shown @ sample[1:] / np.linalg.norm(shown) / np.linalg.norm(sample[1:])
    assert alike > 0.9999


def test_samples_that_are_shortened_make_a_total_that_of_one(tmp_path):
    """A length after a coordinator's scale leaves the one that is short in it."""
    sample, _ = largest(write_all(tmp_path))
    width = len(sample)
    scale = torch.ones(width)
    scale[0] = 1e-7
    mean = torch.zeros(width)
    mean[0] = float(sample[0])
    reach = torch.full((width,), 6.0)
    reach[0] = 8e7
    tensors = {
        "0.mean": mean, "0.deviation": scale, "quantize.bits": torch.tensor([16.0]),
        "quantize.step": reach / 32767, "quantize.offset": torch.zeros(width),
    }  # fmt: skip
    given = {"data__quantization": 16, "method__clip_norm": 30.0}
    total = masked_total(tmp_path, ["standard"], tensors, 1, **given)["total"].sum(0)
    shown = total.double().numpy() * tensors["quantize.step"].numpy()
    assert np.abs(shown[1:] - sample[1:]).max() < 2e-3
    with pytest.raises(FedUnseenError, match="clip_norm = 30 can make") as refused:
        masked_total(tmp_path, ["standard"], tensors, 5, **given)
    assert refused.value.code == "refused-settings"


@pytest.mark.parametrize(
    ("features", "clip_norm", "change", "taken"),
    [
        (["l2"], 1.0, {}, True),
        (["centre", "l2"], 1.0, {}, True),
        (["l2"], 0.99, {}, False),
        (["standard"], 1.0, {}, False),
        (["l2"], 1.0, {"quantize.step": torch.full((1,), 0.1)}, False),
        (["l2"], 1.0, {"quantize.step": torch.full((8,), 0.01)}, False),
        (["l2"], 1.0, {"quantize.offset": torch.full((1,), 0.01)}, False),
    ],
)
def test_samples_are_shortened_if_none_is_longer_than_others(
    features, clip_norm, change, taken, tmp_path
):
    write_all(tmp_path)
    chosen = experiment(tmp_path, data__features=features, method__clip_norm=clip_norm)
    header, tensors = greeting(chosen, tmp_path / "run")
    held = PartyData(tmp_path / NAMES[0], masked=True)
    if taken:
        assert held.prepare(header, tensors | change).samples == 18
        return
    with pytest.raises(FedUnseenError, match="clip_norm"):
        held.prepare(header, tensors | change)


@pytest.mark.parametrize("others", [0, 4, 5, 9])
@pytest.mark.parametrize("min_samples", [1, 5])
@pytest.mark.parametrize("place", [0, -120])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_far_sample_is_no_farther_than_few_others(others, min_samples, place, side):
    """A coarse step leaves one far, and the end of its range some others one unit away."""
    rows = spread(30)
    rows[:others, 0] = 0.1 + side
    rows[17, 0] = 20
    step = [1, *FINE]
    total, square = sums_of(rows, [0] * 30, step, [-place, 0, 0, 0], min_samples)
    codes = np.rint(rows[:, 1:] * LEVELS)
    # what is beyond the usual number in the sum, and in second moments with each other feature
    beyond = int(total[0, 0]) - 30 * place
    shown = square[0, 1:].numpy() - place * codes.sum(0)
    if min_samples == 1:  # the positive control: the far sample weighs more than all others
        assert beyond == 20 + side * others
        assert np.array_equal(shown, 20 * codes[17] + side * codes[:others].sum(0))
        return
    above = others + 1 if side > 0 else 1  # the far one is one of these
    below = others if side < 0 else 0
    apart = [*range(others), 17] if above >= 5 else list(range(below)) if below >= 5 else []
    assert beyond == side * len(apart)  # all of them one unit
    assert np.array_equal(shown, side * codes[apart].sum(0))


def test_acceptance_does_not_show_whether_a_far_sample_is_there(tmp_path):
    """The coordinator asks for as many samples as the class has; its range holds the far one."""
    write_all(tmp_path)
    given = {"data__features": [], "data__bounds": [[-40, 40]], "method__min_samples": 40}
    header, tensors = greeting(experiment(tmp_path, **given), tmp_path / "run")
    folder = write_party(tmp_path / "own", [0] * 40, 20)
    arrays = dict(np.load(folder / "features.npz"))
    left_out = []
    for far in (0, 39):
        arrays["features"][0, 0] += far
        np.savez(folder / "features.npz", **arrays)
        left_out.append(PartyData(folder, masked=True).prepare(header, tensors).left_out)
    assert left_out[0] == ""
    assert "1 sample that second moments would show" in left_out[1]  # the line is reached
