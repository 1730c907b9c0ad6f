"""Buffered merging: against a slow simulation, in the limit that is a synchronous round, and after
a kill.
"""

import heapq

import numpy as np
import pytest
import torch

import small_runs
from fedunseen import run
from fedunseen.federation.buffered import Buffered, BufferedSettings, durations
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.strategies import FedAvg, Reply
from same import same
from small_runs import KilledError, kill


class Pulling:
    """Clients without data: each moves the model a tenth of the way to its own number."""

    def __init__(self, counts):
        self.samples = [np.arange(count) for count in counts]
        self.asked = []

    def round(self, works, round):
        (work,) = works
        self.asked.append((work.client, round))
        update = {"w": 0.1 * (torch.tensor([float(work.client)]) - work.instruction.params["w"])}
        return [(Reply(work.client, update, 1, len(self.samples[work.client])), {})]


def slowly(takes, buffer, staleness, merges):
    """Return the model and the time after each merge: a queue of events, and floats."""
    queue = [
        (takes[k], k, 0, 0.0) for k in range(len(takes))
    ]  # done at, who, began at merge, began with
    heapq.heapify(queue)
    model, time, result = 0.0, 0.0, []
    for merge in range(merges):
        came, waiting = [], []
        while len(came) < buffer:
            end, client, version, start = heapq.heappop(queue)
            came.append((client, 0.1 * (client - start) * (1 + merge - version) ** -staleness))
            time = end
            waiting.append(client)
            if len(came) < buffer and queue[0][0] > time:
                for one in waiting:
                    heapq.heappush(queue, (time + takes[one], one, merge, model))
                waiting = []
        model += sum(change for _, change in came) / buffer
        result.append((model, time))
        for one in waiting:
            heapq.heappush(queue, (time + takes[one], one, merge + 1, model))
    return result


@pytest.mark.parametrize(("buffer", "staleness"), [(1, 0.5), (3, 0.0), (3, 0.5), (5, 1.0)])
def test_it_is_the_slow_simulation(buffer, staleness):
    settings = BufferedSettings(buffer=buffer, staleness=staleness, spread=0.8)
    worker = Pulling([10, 10, 20, 5, 40])
    engine = Buffered(FedAvg(weights="uniform"), worker, settings, seed=5)
    answer = slowly(engine.takes.tolist(), buffer, staleness, 20)
    state, params = {}, {"w": torch.zeros(1, dtype=torch.float64)}
    for merge, (model, time) in enumerate(answer):
        result = engine.round(merge, state, params, {}, range(5))
        state, params = result.state, result.params
        assert float(params["w"]) == pytest.approx(model, abs=1e-6)
        assert result.clock["time"] == pytest.approx(time)
        assert len(result.replies) == buffer
    assert len(set(worker.asked)) == len(worker.asked)  # no batch is drawn twice
    assert max(worker.asked.count((k, 0)) for k in range(5)) == 1


def test_durations_are_of_the_seed_and_have_mean_one():
    counts = [1] * 40_000
    settings = BufferedSettings(spread=0.5)
    one = durations(settings, counts, 0)
    assert np.array_equal(one, durations(settings, counts, 0))
    assert not np.array_equal(one, durations(settings, counts, 1))
    assert one.mean() == pytest.approx(1, abs=0.03)


def experiment(**more):
    few = {
        "partition__clients": 4,
        "strategy__rounds": 6,
        "method__kl": 0.0,
        "evaluation__clients": False,
    }
    return small_runs.experiment(**few, **more)


@pytest.mark.slow
def test_with_equal_clients_and_a_buffer_for_all_it_is_a_synchronous_round(tmp_path):
    late = run(
        experiment(engine__name="buffered", engine__buffer=4, engine__spread=0),
        tmp_path / "late",
    )
    here = run(experiment(engine__mode="one-at-a-time"), tmp_path / "here")
    assert same(late, here)
    clocks = [line["clock"] for line in late.metrics]
    assert [clock["time"] for clock in clocks] == pytest.approx([1, 2, 3, 4, 5, 6])
    assert [clock["ages"] for clock in clocks] == [[0, 0, 0, 0]] * 6
    assert late.result["bytes_up"] == here.result["bytes_up"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedavg", "moon", "fedadam"])
def test_a_kill_shows_nothing(strategy, tmp_path, monkeypatch):
    variant = experiment(engine__name="buffered", engine__buffer=2, strategy__name=strategy)
    whole = run(variant, tmp_path / "whole")
    assert max(max(line["clock"]["ages"]) for line in whole.metrics) > 0
    saved = RunDirectory.save_checkpoint

    def save(self, checkpoint):
        saved(self, checkpoint)
        if checkpoint.round == 3:
            kill()

    monkeypatch.setattr(RunDirectory, "save_checkpoint", save)
    with pytest.raises(KilledError):
        run(variant, tmp_path / "killed")
    monkeypatch.setattr(RunDirectory, "save_checkpoint", saved)
    resumed = run(variant, tmp_path / "killed", resume=True)
    assert same(resumed, whole)
    assert [line["clock"] for line in resumed.metrics] == [line["clock"] for line in whole.metrics]
