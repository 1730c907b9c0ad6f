"""What a run will take, from a few batches of it."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedunseen.core.errors import ExperimentError
from fedunseen.core.memory import peak_memory
from fedunseen.data import Benchmark
from fedunseen.experiment.assemble import assemble, load_data, partition_of
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.evaluator import is_measured
from fedunseen.federation.federation import Federation, drawn_clients
from fedunseen.federation.partition import Partition
from fedunseen.tasks.zero_shot_summary import some

_BATCHES = 3  # of each of two clients; the first time warms up
_TESTS = 256  # test samples that are scored
_HONEST = {"attack.name": "none", "defence.name": "none"}  # which speak of more clients than two


def estimate(experiment: Experiment) -> dict[str, Any]:
    """Train a few batches and score a few test samples as a run does; return what all of it will
    take.
    """
    task = experiment.task
    benchmark = load_data(experiment, experiment.run.seed)
    partition = partition_of(experiment, benchmark, experiment.run.seed)
    whole = assemble(experiment, task.client_data(benchmark), partition)
    method = whole.method
    batch = getattr(experiment.method, "batch_size", None)
    if not method.trained or batch is None or "few_shot" in task.evaluator.accuracies:
        raise ExperimentError(
            f"method.name = {experiment.method.name!r} takes no rounds of batches to estimate: run "
            "it, with few rounds"
        )
    present = [rows for rows in whole.partition.clients if len(rows)]
    taking = drawn_clients(experiment.strategy.fraction, len(present))
    samples = (
        taking * float(np.mean([len(rows) for rows in present])) * experiment.strategy.local_epochs
    )
    few = tuple(rows[: _BATCHES * batch] for rows in sorted(present, key=len, reverse=True)[:2])
    short = experiment.with_overrides(
        {"strategy.local_epochs": 1, "strategy.fraction": 1.0, **_HONEST}
    )
    short_federation = assemble(short, task.client_data(benchmark), Partition.of(few))
    on_gpu = short_federation.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    state = short_federation.start()
    state, _ = short_federation.round(state)  # warms up
    began = _now(on_gpu)
    _, result = short_federation.round(replace(state, round=0))
    trained = _now(on_gpu) - began
    rows = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    tested = rows[np.linspace(0, len(rows) - 1, min(_TESTS, len(rows))).astype(int)]
    began = _now(on_gpu)
    params = short_federation.fit_heads(state.params)
    with torch.no_grad():
        for inputs in short_federation.batches(tested):
            method.scores(params, inputs, short_federation.semantics)
    scored = _now(on_gpu) - began
    per_round = trained * samples / sum(map(len, few))
    per_evaluation = scored * len(rows) / max(1, len(tested))
    stages, evaluations = _counted(experiment, whole, benchmark, taking)
    rounds = experiment.strategy.rounds
    total = experiment.run.seeds * (stages * rounds * per_round + evaluations * per_evaluation)
    return {
        "seconds_round": per_round,
        "seconds_evaluation": per_evaluation,
        "seconds_run": total,
        "rounds": rounds,
        "stages": stages * experiment.run.seeds,
        "peak_bytes": peak_memory(),
        "device": str(short_federation.device),
        "device_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "parameters": sum(whole.sizes.values()),
        "bytes_round": (result.bytes_down + result.bytes_up) // len(few),
    }


def _counted(
    experiment: Experiment, whole: Federation, benchmark: Benchmark, taking: int
) -> tuple[int, int]:
    """Return how many trainings a run of one seed is, and how many models it evaluates."""
    candidates = experiment.evaluation.combinations
    rounds = experiment.strategy.rounds
    choosing = experiment.evaluation.selection == "validation"
    task = experiment.task
    method = whole.method
    judge = task.evaluator(whole, benchmark, experiment.evaluation)
    # Which round validation classes choose is not known yet; the last one is measured anyway.
    last = task.evaluator.choice(experiment.evaluation, type(method), rounds)
    choices = [replace(last, round=rounds) if choosing else last]
    if choosing:
        choices += [
            task.evaluator.choice(experiment.evaluation, type(method), rounds, selecting=True)
        ] * candidates
    measured = [
        [
            round
            for round in range(1, rounds + 1)
            if is_measured(round, rounds, choice, judge.every(choice))
        ]
        for choice in choices
    ]
    evaluations = sum(map(len, measured))
    if whole.strategy.one_model:  # clients' own models too, but not where settings are chosen
        measured_clients = sum(
            judge.measures_clients(round, rounds, choices[0]) for round in measured[0]
        )
        evaluations += measured_clients * len(some(range(taking)))
    return len(choices), evaluations


def _now(on_gpu: bool) -> float:
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter()
