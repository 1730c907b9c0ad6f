"""Rules of the server against slow and obvious references, and the strategy that applies them."""

import re

import numpy as np
import pytest
import torch

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import length
from fedunseen.core.registry import find
from fedunseen.safety.defences import DEFENCES
from fedunseen.safety.defences.base import Robust, add_noise
from fedunseen.safety.defences.rules import krum_scores, scalar_products, squared_distances
from fedunseen.strategies import FedAvg, Pipeline, Reply
from same import same

SHAPES = {"a.weight": (3, 4), "b.bias": (5,), "c": ()}
WHOLE = [name for name in DEFENCES if name != "class-probes"]  # which has tests of its own


def rule(name, **settings):
    kind = find("defence", name)
    return kind(kind.Settings(**settings), seed=3)


def robust(name, strategy=None, **settings):
    return Pipeline(strategy or FedAvg(), [Robust(rule(name, **settings))])


def params(seed=0):
    random = np.random.default_rng(seed)
    return {
        name: torch.tensor(random.normal(size=shape), dtype=torch.float32)
        for name, shape in SHAPES.items()
    }


def replies(count, seed=1, **odd):
    """Give replies of clients that want nearly the same; ``odd`` ones (c3=...) get their update
    times a factor.
    """
    common, random = params(seed), np.random.default_rng(seed)
    result = []
    for k in range(count):
        noise = {
            name: torch.tensor(0.5 * random.normal(size=shape)).float()
            for name, shape in SHAPES.items()
        }
        update = {
            name: odd.get(f"c{k}", 1.0) * (value + noise[name]) for name, value in common.items()
        }
        result.append(
            Reply(k, update, classes=k + 1, samples=10, step_lengths=dict.fromkeys(SHAPES, 1.0 + k))
        )
    return result


def flat(update):
    return np.concatenate([update[name].double().numpy().reshape(-1) for name in sorted(update)])


def matrix(many):
    return np.stack([flat(reply.update) for reply in many])


def round_of(strategy, many, start=None):
    """Give the state and the parameters after a round, and its notes."""
    start = start or params()
    state, after = strategy.merge(strategy.init(start, len(many)), start, many, 0)
    return state, after, strategy.notes(state)["defence"]


def merged(name, many, **settings):
    """Give the change of the model, flat, and the round's notes."""
    _, after, notes = round_of(robust(name, **settings), many)
    return flat(after) - flat(params()), notes


def weighted(many, factors=None):
    factors = factors or [1.0] * len(many)
    weights = np.array(
        [reply.classes * bool(f) for reply, f in zip(many, factors, strict=True)], dtype=float
    )
    return (weights / weights.sum() * np.array(factors)) @ matrix(many)


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "strategy", ["fedavg", "fedavg-decay", "fedprox", "fednova", "scaffold", "moon", "fedgloss"]
)
@pytest.mark.parametrize(("name", "settings"), [
    ("none", {}), ("norm-clip", {"bound": 1e9}), ("clip-noise", {"bound": 1e9, "deviation": 0}),
    ("multi-krum", {"malicious": 0}),
])  # fmt: skip
def test_a_rule_that_leaves_everything_is_the_strategy_bit_for_bit(strategy, name, settings):
    kind, many = find("strategy", strategy), replies(7)
    inner = kind(kind.Settings(server_lr=0.5))
    plain_state, plain = inner.merge(inner.init(params(), 9), params(), many, 2)
    pipeline = robust(name, inner, **settings)
    state, after = pipeline.merge(pipeline.init(params(), 9), params(), many, 2)
    assert same(after, plain)
    assert same(
        {n.removeprefix("strategy/"): v for n, v in state.items() if n.startswith("strategy/")},
        plain_state,
    )
    assert pipeline.notes(state)["defence"]["kept"] == [1.0] * 7


def test_clipping_shortens_what_is_longer_than_the_bound_and_nothing_else():
    many = replies(5, c3=40.0)
    norms = [length(reply.update) for reply in many]
    change, notes = merged("norm-clip", many, bound=sorted(norms)[1])
    factors = [min(1.0, sorted(norms)[1] / norm) for norm in norms]
    close(change, weighted(many, factors))
    assert (notes["kept"], notes["norms"]) == (pytest.approx(factors), pytest.approx(norms))
    assert sum(factor == 1 for factor in factors) == 2
    assert notes["weights"] == pytest.approx([k / 15 for k in range(1, 6)])
    change, notes = merged("norm-clip", many)
    close(change, weighted(many, [min(1.0, np.median(norms) / norm) for norm in norms]))


def test_noise_is_that_of_the_round_and_of_the_setting():
    many = replies(4)
    strategy = robust("clip-noise", bound=1e9, deviation=0.5)
    item, again, other = (strategy.merge({}, params(), many, round)[1] for round in (0, 0, 1))
    assert same(item, again)
    assert not torch.equal(item["a.weight"], other["a.weight"])
    noisy = add_noise(
        {"w": torch.zeros(20000), "bn.running_var": torch.ones(3)}, 0.5, np.random.default_rng(0)
    )
    assert float(noisy["w"].std()) == pytest.approx(0.5, rel=0.03)
    assert torch.equal(noisy["bn.running_var"], torch.ones(3))  # a variance may not turn negative


@pytest.mark.parametrize(("name", "settings", "many", "reference"), [
    ("median", {}, replies(4, c1=-50.0), lambda x: np.median(x, axis=0)),
    ("median", {}, replies(5, c1=-50.0), lambda x: np.median(x, axis=0)),
    ("trimmed-mean", {"malicious": 2}, replies(7, c1=-50.0, c4=1e6), lambda x: np.sort(x, axis=0)[2:5].mean(0)),
    ("trimmed-mean", {"malicious": 0}, replies(7), lambda x: x.mean(0)),
])  # fmt: skip
def test_every_coordinate_is_its_median_or_its_mean_without_the_ends(
    name, settings, many, reference
):
    change, notes = merged(name, many, **settings)
    close(change, reference(matrix(many)))
    assert "weights" not in notes


def test_coordinates_are_taken_in_blocks(monkeypatch):
    many = replies(6)
    for name, size in (("median", "_SORTED"), ("krum", "_MULTIPLIED")):
        whole, notes = merged(name, many)
        monkeypatch.setattr(f"fedunseen.safety.defences.rules.{size}", 13)
        change, again = merged(name, many)
        close(change, whole)
        assert again.get("judged") == pytest.approx(notes.get("judged"))


def test_steps_go_backwards_where_too_few_signs_agree():
    many = replies(6, c0=-3.0)
    mean, agree = weighted(many), np.abs(np.sign(matrix(many)).sum(0))
    for threshold in (1, 4, 6):
        close(
            merged("robust-learning-rate", many, threshold=threshold)[0],
            np.where(agree >= threshold, mean, -mean),
        )


def krum_by_definition(x, left, f):
    """Give each update's sum of squared distances to its nearest n - f - 2, by enumeration."""
    far = [sorted(((x[i] - x[j]) ** 2).sum() for j in left if j != i) for i in left]
    return [sum(distances[: max(len(left) - f - 2, 1)]) for distances in far]


@pytest.mark.parametrize(("count", "f"), [(5, 1), (7, 2), (10, 0), (11, 4)])
def test_krum_by_definition(count, f):
    many = replies(count, seed=count, c0=-9.0)
    x = matrix(many)
    scores = krum_by_definition(x, range(count), f)
    best, *_ = ranked = np.argsort(scores).tolist()
    change, notes = merged("krum", many, malicious=f)
    close(change, x[best])
    assert notes["judged"] == pytest.approx(scores, rel=1e-5)
    assert notes["dropped"] == {
        str(i): "it is too far from the others" for i in range(count) if i != best
    }
    assert notes["weights"] == [float(i == best) for i in range(count)]
    for kept, settings in ((ranked[: count - f], {}), (ranked[:2], {"merged": 2})):
        expected = weighted(many, [i in kept for i in range(count)])
        close(merged("multi-krum", many, malicious=f, **settings)[0], expected)


@pytest.mark.parametrize(("count", "f"), [(7, 1), (11, 2), (12, 1), (3, 0)])
def test_bulyan_by_definition(count, f):
    many = replies(count, seed=count, c1=30.0)
    x, left, chosen = matrix(many), list(range(count)), []
    while len(chosen) < count - 2 * f:
        chosen.append(left.pop(int(np.argmin(krum_by_definition(x, left, f)))))
    rows = x[sorted(chosen)]
    nearest = np.argsort(np.abs(rows - np.median(rows, axis=0)), axis=0)[: count - 4 * f]
    change, notes = merged("bulyan", many, malicious=f)
    close(change, np.take_along_axis(rows, nearest, axis=0).mean(0))
    assert [i for i, kept in enumerate(notes["kept"]) if kept] == sorted(chosen)


def test_distances_do_not_cancel():
    far = [{"w": torch.tensor([1e4, 0.0])}, {"w": torch.tensor([1e4, 1e-2])}]
    assert squared_distances(scalar_products(far))[0, 1] == pytest.approx(1e-4, rel=1e-3)
    assert krum_scores(np.zeros((1, 1)), 0).tolist() == [0.0]


def test_flame_leaves_out_another_direction_clips_and_adds_noise():
    common, random = params(5), np.random.default_rng(0)
    many = []
    for k in range(7):
        update = {
            n: 3 * v + torch.tensor(random.normal(scale=0.3, size=v.shape)).float()
            for n, v in common.items()
        }
        many.append(Reply(k, update if k != 2 else {n: -8 * v for n, v in common.items()}, 1, 1))
    start = {n: torch.zeros_like(v) for n, v in common.items()}
    _, after, notes = round_of(robust("flame", noise=0.0), many, start)
    assert "2" in notes["dropped"]
    assert len(notes["dropped"]) < 4  # a majority stays
    norms = np.linalg.norm(matrix(many), axis=1)
    factors = np.minimum(1.0, np.median(norms) / norms)
    factors[[int(k) for k in notes["dropped"]]] = 0.0
    close(notes["kept"], factors)
    close(flat(after), factors @ matrix(many) / np.count_nonzero(factors))
    _, noisy, _ = round_of(robust("flame", noise=0.1), many, start)
    assert 0.3 < (flat(noisy) - flat(after)).std() / (0.1 * np.median(norms)) < 2.0


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_what_is_not_finite_or_enormous_does_no_harm(name, bad):
    many = replies(9)
    many[4].update["a.weight"][1, 2] = bad
    change, notes = merged(name, many)
    if name != "none" or not np.isfinite(bad):
        assert np.isfinite(change).all()
    if not np.isfinite(bad):
        assert (notes["dropped"]["4"], notes["norms"][4], notes["kept"][4]) == (
            "it is not finite",
            None,
            0.0,
        )
        assert notes.get("weights", [0.0] * 5)[4] in (0.0, None)
        close(change, merged(name, many[:4] + many[5:])[0])


def test_as_many_malicious_clients_are_tolerated_as_those_left_allow():
    many = replies(9, c3=np.inf)
    others = many[:3] + many[4:]
    for f, left in ((1, 1), (2, 2), (3, 2)):  # 2 f + 3 of eight
        judged, alone = (
            merged("krum", r, malicious=m)[1]["judged"] for r, m in ((many, f), (others, left))
        )
        assert judged[4:] == alone[3:]
    assert rule("krum", malicious=3).among(2) is None


def test_running_statistics_are_never_turned_round():
    start = {"w": torch.zeros(2), "bn.running_var": torch.ones(2)}
    updates = {
        "w": [[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0]],
        "bn.running_var": [[4.0, 4.0], [4.0, -4.0], [-2.0, 0.0]],
    }
    many = [
        Reply(k, {name: torch.tensor(rows[k]) for name, rows in updates.items()}, 1, 1)
        for k in range(3)
    ]
    _, after, _ = round_of(robust("robust-learning-rate", threshold=3), many, start)
    assert after["w"].tolist() == pytest.approx([-1 / 3, -1 / 3])
    assert after["bn.running_var"].tolist() == pytest.approx([3.0, 1.0])  # the plain mean


@pytest.mark.parametrize(
    ("name", "settings", "bad"),
    [("krum", {"malicious": 1}, 3), ("robust-learning-rate", {"threshold": 4}, 2)],
)
def test_where_too_few_are_left_the_old_model_stays_and_the_round_says_so(name, settings, bad):
    many = replies(5, **{f"c{k}": np.nan for k in range(bad)})
    strategy = robust(name, **settings)
    state, after = strategy.merge({"strategy/x": torch.ones(1)}, params(), many, 0)
    assert same(after, params())
    assert state["strategy/x"].tolist() == [1.0]
    reasons = ["it is not finite"] * bad + ["too few replies are left for the rule"] * (5 - bad)
    notes = strategy.notes(state)["defence"]
    assert (notes["merged"], notes["dropped"]) == (
        False,
        {str(k): reason for k, reason in enumerate(reasons)},
    )
    state, after = strategy.merge(state, params(), [], 1)  # all replies lost on the way
    assert strategy.notes(state)["defence"]["clients"] == []
    assert same(after, params())
    assert merged("robust-learning-rate", many, threshold=3)[1]["merged"] == (bad < 3)


def test_control_variates_see_what_is_merged_not_what_came():
    kind = find("strategy", "scaffold")
    many = replies(9, c0=1e4)
    state, after, _ = round_of(robust("median", kind(kind.Settings(weights="uniform"))), many)
    middle = np.median(matrix(many), axis=0)
    close(flat(after) - flat(params()), middle)
    c = flat(
        {n.removeprefix("strategy/c/"): v for n, v in state.items() if n.startswith("strategy/c/")}
    )
    close(c, -middle * np.mean([1 / (1.0 + k) for k in range(9)]))


@pytest.mark.parametrize(
    ("name", "settings", "clients", "why", "remedy"),
    [
        (
            "krum",
            {"malicious": 4},
            10,
            "malicious = 4 needs 2 * 4 + 3 = 11",
            "set defence.malicious to 3 at most",
        ),
        (
            "bulyan",
            {"malicious": 2},
            10,
            "malicious = 2 needs 4 * 2 + 3 = 11",
            "set defence.malicious to 1 at most",
        ),
        (
            "trimmed-mean",
            {"malicious": 5},
            10,
            "5 needs 2 * 5 + 1 = 11",
            "set defence.malicious to 4 at most",
        ),
        (
            "multi-krum",
            {"malicious": 1},
            3,
            "1 needs 2 * 1 + 3 = 5 clients",
            "choose another defence, or let more",
        ),
        (
            "multi-krum",
            {"malicious": 1, "merged": 8},
            7,
            "merged = 8 is more than the 7 clients",
            "lower it to 6 or",
        ),
        (
            "multi-krum",
            {"malicious": 2, "merged": 6},
            7,
            "the defence.malicious = 2 that are",
            "lower it to 5 or less",
        ),
        ("krum", {"malicious": 0}, 2, "'krum' needs 3 clients a round", "choose another defence"),
        (
            "flame",
            {},
            1,
            "'flame' needs 2 clients a round, but round 6 has 1",
            "choose another defence",
        ),
        (
            "robust-learning-rate",
            {"threshold": 8},
            5,
            "threshold = 8 can never be reached by the 5",
            "set it to 5",
        ),
    ],
)
def test_more_malicious_clients_than_a_rule_tolerates_are_refused(
    name, settings, clients, why, remedy
):
    with pytest.raises(ExperimentError, match=f"{re.escape(why)}.*: {re.escape(remedy)}"):
        rule(name, **settings).check(clients, 5)


def test_multi_krum_may_merge_all_that_may_be_honest_and_no_more():
    rule("multi-krum", malicious=2, merged=5).check(7, 0)
    kept = merged("multi-krum", replies(7, c0=-9.0, c1=np.nan), malicious=1, merged=6)[1]["kept"]
    assert sum(kept) == 5  # six are left, and one of them may be malicious


@pytest.mark.parametrize("name", WHOLE)
def test_clients_that_send_no_change_do_no_harm(name):
    many = replies(9)
    nothing = {n: torch.zeros_like(v) for n, v in params().items()}
    for reply in many[:6]:
        reply.update.update(nothing)
    change, notes = merged(name, many)
    assert np.isfinite(change).all()
    if name in ("norm-clip", "none", "clip-noise"):
        assert min(notes["kept"]) > 0.3
    change, notes = merged(name, [Reply(k, nothing, 1, 1) for k in range(9)])
    assert np.abs(change).max() < 0.01  # at most noise
    assert notes["merged"]
