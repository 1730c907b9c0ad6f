"""Few-shot accuracy against closed forms and slow references."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedunseen.data.episodes import Size, Tasks, draw_episodes
from fedunseen.evaluation.answers import episode_answers, nearest_support
from fedunseen.metrics import confidence, episode_accuracies


def test_the_interval_is_that_of_the_mean():
    """Binomial episodes: 1.96 sqrt(p (1 - p) / n) of n independent queries, within sampling error."""
    rng = np.random.default_rng(0)
    right = rng.random((4000, 25)) < 0.7
    mean, half = confidence(100 * right.mean(1))
    assert mean == pytest.approx(70, abs=1)
    assert half == pytest.approx(100 * 1.96 * (0.7 * 0.3 / (4000 * 25)) ** 0.5, rel=0.05)


def test_accuracy_counts_queries_answered_by_their_own_class():
    answers = np.array([[[0, 0, 1], [1, 1, 1]]])
    assert episode_accuracies(answers).tolist() == [pytest.approx(500 / 6)]


def test_the_nearest_support_sample_answers():
    rng = np.random.default_rng(3)
    tasks = Tasks(torch.from_numpy(rng.random((3, 8, 1, 2, 2))), torch.from_numpy(rng.random((3, 10, 1, 2, 2))))
    logits = nearest_support(4)(tasks)  # 4 ways, 2 shots
    for task in range(3):
        for query in range(10):
            distances = [float(((tasks.queries[task, query] - tasks.support[task, s]) ** 2).sum()) for s in range(8)]
            assert int(logits[task, query].argmax()) == int(np.argmin(distances)) // 2


def test_sequences_are_compared_by_the_mean_of_their_words():
    words = torch.zeros(1, 2, 3, 2, dtype=torch.float16)
    words[0, 0, :2] = torch.tensor([[1.0, 0.0], [3.0, 0.0]])  # mean (2, 0): padding does not count
    words[0, 1, :1] = torch.tensor([[0.0, 2.0]])
    query = torch.zeros(1, 1, 3, 2, dtype=torch.float16)
    query[0, 0, :1] = torch.tensor([[2.0, 0.0]])
    logits = nearest_support(2)(Tasks(words, query))
    assert logits[0, 0].tolist() == [pytest.approx(0, abs=1e-6), pytest.approx(-(8**0.5), abs=1e-5)]


def test_episodes_are_answered_block_by_block_from_the_right_rows():
    """A classifier that reads the answer off the sample itself is always right, whatever the blocks."""
    labels = np.repeat([4, 6, 9], 7)
    rows = np.random.default_rng(0).permutation(40)[: len(labels)]
    inputs = torch.zeros(40, 1)
    inputs[rows, 0] = torch.from_numpy(labels).float()
    episodes = draw_episodes(labels, 7, Size(3, 1, 4), np.random.default_rng(1))
    answers = episode_answers(nearest_support(3), inputs, rows, episodes, block=3)
    assert answers.shape == (7, 3, 4)
    assert (episode_accuracies(answers) == 100).all()
