"""What is answered, batch by batch and in episodes, against slow references."""

import numpy as np
import pytest
import torch

from fedunseen.data import ClassSpace
from fedunseen.data.episodes import Size, Tasks, draw_episodes
from fedunseen.evaluation.answers import answer, episode_answers, nearest_support
from fedunseen.metrics import episode_accuracies

SPACE = ClassSpace(tuple("abcde"), np.eye(5) + 0.1, tuple("vwxyz"), [1, 4], [4], [0, 3])


def test_samples_scored_in_blocks_are_the_same_samples():
    rng = np.random.default_rng(0)
    labels, scores = rng.choice([0, 1, 3, 4], 50), torch.from_numpy(rng.normal(size=(50, 5)))
    whole, blocks = answer([scores], labels, SPACE), answer(scores.split(7), labels, SPACE)
    for name in ("labels", "best_seen", "best_unseen", "gap", "unseen"):
        assert (getattr(whole, name) == getattr(blocks, name)).all()


def test_a_tie_goes_to_the_lower_class_and_to_the_seen_one():
    answers = answer([torch.zeros(2, 5)], np.array([0, 1]), SPACE)
    assert answers.best_seen.tolist() == [1, 1]
    assert answers.best_unseen.tolist() == [0, 0]
    assert answers.generalised().tolist() == [1, 1]
    assert answers.generalised(1e-12).tolist() == [0, 0]


def test_the_nearest_support_sample_answers():
    rng = np.random.default_rng(3)
    tasks = Tasks(
        torch.from_numpy(rng.random((3, 8, 1, 2, 2))),
        torch.from_numpy(rng.random((3, 10, 1, 2, 2))),
    )
    logits = nearest_support(4)(tasks)  # 4 ways, 2 shots
    for task in range(3):
        for query in range(10):
            distances = [
                float(((tasks.queries[task, query] - tasks.support[task, s]) ** 2).sum())
                for s in range(8)
            ]
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
    """A classifier that reads the answer off the sample itself is always right, whatever the
    blocks.
    """
    labels = np.repeat([4, 6, 9], 7)
    rows = np.random.default_rng(0).permutation(40)[: len(labels)]
    inputs = torch.zeros(40, 1)
    inputs[rows, 0] = torch.from_numpy(labels).float()
    episodes = draw_episodes(labels, 7, Size(3, 1, 4), np.random.default_rng(1))
    answers = episode_answers(nearest_support(3), inputs, rows, episodes, block=3)
    assert answers.shape == (7, 3, 4)
    assert (episode_accuracies(answers) == 100).all()
