"""Episodes: what they hold, whom they leave out, and that chance is fair."""

import numpy as np
import pytest
from described import per_class, roles

from fedunseen.data.episodes import Size, draw_episodes, for_episodes, too_few, validation_samples
from refusals import message_of

LABELS = np.random.default_rng(1).permutation(np.repeat([2, 5, 7, 9], [6, 6, 4, 30]))

SMALL = Size(ways=3, shots=2, queries=3)


def drawn(count=50, size=SMALL, **more):
    return draw_episodes(LABELS, count, size, np.random.default_rng(0), **more)


def test_an_episode_has_different_classes_of_enough_samples_and_different_samples_of_each():
    episodes = drawn()
    assert (episodes.index.shape, episodes.shots) == ((50, 3, 5), 2)
    assert (LABELS[episodes.index] == episodes.classes[:, :, None]).all()
    assert {len(set(classes)) for classes in episodes.classes.tolist()} == {3}
    assert {len(set(samples)) for samples in episodes.index.reshape(-1, 5).tolist()} == {5}
    assert set(episodes.classes.ravel().tolist()) == {
        2,
        5,
        9,
    }  # class 7 has four samples, five are needed


def test_answers_are_dealt_anew_in_each_episode():
    """Each class is each answer as often as chance has it: 200 of 600 episodes of 3 classes, give
    or take 5 sigma.
    """
    counts = (drawn(600).classes[:, :, None] == (2, 5, 9)).sum(0)  # of each answer and class
    assert (np.abs(counts - 200) < 5 * (600 * (1 / 3) * (2 / 3)) ** 0.5).all()


def test_without_permutation_answers_are_in_the_order_of_classes_and_fixed_ones_take_one_class_of_each():
    assert (drawn(permuted=False).classes == [2, 5, 9]).all()
    answers = np.array([0] * 5 + [0, 0, 1, 0, 1])  # of classes 0 to 9
    classes = drawn(100, Size(2, 1, 2), permuted=False, answers=answers).classes
    assert (set(classes[:, 0].tolist()), set(classes[:, 1].tolist())) == ({2, 5}, {7, 9})


def test_turned_images_are_classes_of_their_own():
    episodes = drawn(200, Size(5, 2, 3, rotations=True))  # five of 3 classes x 4 turns
    kinds = 4 * episodes.classes + episodes.quarters
    assert np.unique(kinds).tolist() == [4 * c + q for c in (2, 5, 9) for q in range(4)]
    assert {len(set(own)) for own in kinds.tolist()} == {5}


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (Size(4, 2, 3), "4-way episodes need 4 classes with at least 5 samples each (2 shots and 3 "
                        "queries), but of 4"),
        (Size(3, 2, 20), "3-way episodes need 3 classes with at least 22 samples each (2 shots and "
                         "20 queries), but"),
        (Size(5, 2, 20, rotations=True), "5-way episodes need 2 classes, four turns of each, with "
                                         "at"),
    ],
)  # fmt: skip
def test_too_few_classes_are_refused(size, message):
    said = message_of(drawn, size=size)
    assert said.startswith(message)
    assert too_few(LABELS, size)[1] == said


def test_validation_classes_are_nobodys(make_benchmark):
    full = make_benchmark(per_class=3)  # class 3 is for validation
    held = for_episodes(full)
    assert (per_class(held), roles(held.space)) == (
        [[3] * 3, [3] * 3, [0] * 4 + [3] * 2],
        ([0, 1, 2], [], [4, 5]),
    )
    assert full.labels[validation_samples(full)].tolist() == [3] * 3
