"""Runs against each other: the differences are those of their numbers, and what was asked differently is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fedunseen import Experiment
from fedunseen.core.errors import ExperimentError
from fedunseen.experiment import run
from fedunseen.experiment.compare import compare
from known_names import DIGITS_MAML

FEW = {"strategy.rounds": 1, "encoder.widths": [4], "method.episodes": 4, "evaluation.episodes": 20}
ZERO = {"strategy.rounds": 2, "data.train_per_class": 10, "data.test_per_class": 6, "evaluation.selection": "last",
        "method.kl": 0.0}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make runs of a preset, each once."""
    known = {}

    def make(preset, **more):
        key = (preset, repr(sorted(more.items())))
        if key not in known:
            settings = (FEW if preset == DIGITS_MAML else ZERO) | {k.replace("__", "."): v for k, v in more.items()}
            known[key] = run(Experiment.load(preset, settings), tmp_path_factory.mktemp("compare") / "run")
        return known[key]

    return make


@pytest.mark.slow
def test_few_shot_runs_are_compared_episode_by_episode(made):
    ours, theirs = made(DIGITS_MAML, strategy__rounds=3), made(DIGITS_MAML)
    found = compare(ours, theirs)
    assert (found.over, found.count) == ("episodes", 20)
    mean, half = found.differences["few_shot"]
    assert mean == pytest.approx(ours.result["few_shot"] - theirs.result["few_shot"])
    assert 0 < half < ours.result["few_shot_ci95"] + theirs.result["few_shot_ci95"]


@pytest.mark.slow
def test_clients_that_keep_their_own_models_are_compared_by_their_mean(made):
    alone, merged = made(DIGITS_MAML, strategy__name="local"), made(DIGITS_MAML)
    mean, _ = compare(alone, merged).differences["few_shot"]
    assert mean == pytest.approx(alone.result["few_shot"] - merged.result["few_shot"])


@pytest.mark.slow
def test_zero_shot_runs_are_compared_sample_by_sample(made):
    ours, theirs = made("digit-pairs", strategy__rounds=6), made("digit-pairs")
    found = compare(ours, theirs)
    assert found.over == "samples"
    assert list(found.differences) == ["zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic"]
    for name, (mean, half) in found.differences.items():
        assert mean == pytest.approx(ours.result[name] - theirs.result[name])
        assert half > 0


def test_a_run_does_not_differ_from_itself(made):
    assert set(compare(made("digit-pairs"), made("digit-pairs")).differences.values()) == {(0.0, 0.0)}


@pytest.mark.slow
def test_several_seeds_are_compared_seed_by_seed(made):
    ours, theirs = made("digit-pairs", run__seeds=2, strategy__rounds=3), made("digit-pairs", run__seeds=2)
    found = compare(ours, theirs)
    assert (found.over, found.count) == ("seeds", 2)
    apart = [a.result["zsl"] - b.result["zsl"] for a, b in zip(ours.seeds, theirs.seeds, strict=True)]
    assert found.differences["zsl"] == pytest.approx((np.mean(apart), 12.706 * np.std(apart, ddof=1) / 2**0.5), 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (("digit-pairs", {}), (DIGITS_MAML, {}), "data or classes are not the same"),
        (("digit-pairs", {}), ("digit-pairs", {"run__seed": 1}), "seeds are not the same"),
        (("digit-pairs", {}), ("digit-pairs", {"data__test_per_class": 5}), "test samples are not the same"),
        ((DIGITS_MAML, {}), (DIGITS_MAML, {"evaluation__episodes": 21}), "episodes are not the same"),
        ((DIGITS_MAML, {}), (DIGITS_MAML, {"data__novel": [0, 1, 2, 3, 4]}), "data or classes are not the same"),
        ((DIGITS_MAML, {}), (DIGITS_MAML, {"evaluation__selection": "best-on-test"}), "one chose its round on the"),
        (("digit-pairs", {}), ("digit-pairs", {"strategy__name": "local"}), "compare runs of several seeds"),
    ],
)
def test_what_was_asked_differently_is_refused(made, first, second, message):
    with pytest.raises(ExperimentError, match=message):
        compare(made(first[0], **first[1]), made(second[0], **second[1]))
