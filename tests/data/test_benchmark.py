import numpy as np
import pytest
from described import changed, per_class, roles, splits

from refusals import message_of


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: {"labels": changed(b.labels, 7, 6)}, "small: the label 6 of sample 7 is outside "
                                                        "the class space"),
        (lambda b: {"labels": b.labels[:-1]}, "small: 58 samples have features, but 57 a label"),
        (lambda b: {"features": b.features.ravel()}, "small: the features have the shape (290,), "
                                                     "neither (samples,"),
        (lambda b: {"features": b.features.astype(str)}, "small: the features are of type <U32, "
                                                         "not real numbers"),
        (lambda b: {"features": changed(changed(b.features, (3, 1), np.nan), (9, 0), np.inf)},
         "small: the features of 2 of 58 samples hold NaN or infinity"),
        (lambda b: {"features": changed(b.features.astype(np.float64), 3, 1e200)},
         "small: the number 1e+200 of sample 3 is too large: float32 holds at most 3.4e38"),
        (lambda b: {"features": changed(b.features, b.train, 2.5)}, "small: all training samples "
                                                                    "have the same"),
        (lambda b: {"train": b.train[:0]}, "small has no training sample: give each seen class "
                                           "some"),
        (lambda b: {"test_seen": b.test_seen[:0]}, "small has no test sample of a seen class: give "
                                                   "some (a class"),
        (lambda b: {"test_unseen": changed(b.test_unseen, 0, 58)}, "small: the sample id 58 in "
                                                                   "test_unseen is"),
        (lambda b: {"train": changed(b.train, 0, b.train[1])}, "small: the split train names a "
                                                               "sample more than once"),
        (lambda b: {"train": np.append(b.train, b.test_seen[:2])}, "small: 2 samples are in both "
                                                                   "train and test_seen"),
        (lambda b: {"train": np.append(b.train, b.test_unseen[0])}, "small: train holds samples of "
                                                                    "'class 4', which"),
        (lambda b: {"train": b.train[b.labels[b.train] != 2]}, "small: the seen class 'class 2' "
                                                               "has no training"),
    ],
)  # fmt: skip
def test_refuses(change, message, make_benchmark):
    assert message_of(make_benchmark, **change(make_benchmark())).startswith(message)


def test_fingerprint_sees_every_change_and_nothing_else(make_space, make_benchmark):
    base = make_benchmark()
    for changes in (
        {},
        {"features": np.asfortranarray(base.features)},
    ):  # memory layout is not content
        assert base.fingerprint() == make_benchmark(**changes).fingerprint()
    space = base.space
    others = [
        make_benchmark(features=changed(base.features, (57, 4), 0)),
        make_benchmark(features=base.features.astype(np.float64)),
        make_benchmark(test_seen=base.test_seen[1:]),
        make_benchmark(train=base.train[1:]),
        make_benchmark(test_unseen=base.test_unseen[1:]),
        make_benchmark(space=make_space(validation=(2,))),
        make_benchmark(space=make_space(names=("other", *space.names[1:]))),
        make_benchmark(space=make_space(attribute_names=("a", "b", "c"))),
        make_benchmark(space=make_space(semantics=changed(space.semantics, (5, 2), 9))),
    ]
    assert len({base.fingerprint(), *(b.fingerprint() for b in others)}) == 10


@pytest.mark.parametrize(("count", "held"), [(2, 1), (3, 1), (4, 1), (10, 2), (13, 3)])
def test_selection_sees_neither_unseen_classes_nor_test_samples(make_benchmark, count, held):
    whole = make_benchmark(per_class=count)
    chosen = whole.for_selection(seed=0)
    assert (chosen.space.names, roles(chosen.space)) == (whole.space.names, ([0, 1, 2], [], [3]))
    assert chosen.features is whole.features
    assert (
        sorted(i for ids in splits(chosen) for i in ids) == whole.train.tolist()
    )  # each once, no test sample
    # a seen class has at least one test sample, and a training sample is left
    assert per_class(chosen) == [[count - held] * 3, [held] * 3, [0, 0, 0, count]]


def test_selection_is_keyed_by_class_and_seed(make_space, make_benchmark):
    first = make_benchmark().for_selection(0).test_seen
    np.testing.assert_array_equal(first, make_benchmark().for_selection(0).test_seen)
    assert first.tolist() != make_benchmark().for_selection(1).test_seen.tolist()
    # a class's draw does not depend on which other classes there are
    assert set(
        make_benchmark(space=make_space(validation=(2, 3))).for_selection(0).test_seen
    ) <= set(first)


def test_selection_needs_validation_classes_and_others(make_space, make_benchmark):
    def refusal(*validation):
        return message_of(make_benchmark(space=make_space(validation=validation)).for_selection, 0)

    assert (
        refusal()
        == "small has no validation classes to choose on: mark some seen classes as validation"
    )
    assert (
        refusal(0, 1, 2, 3)
        == "small: every seen class is a validation class: leave some to train on"
    )


def test_a_part_may_lack_splits_and_classes_and_have_samples_all_alike(make_benchmark):
    whole, none = make_benchmark(), np.array([], dtype=np.int64)
    party = make_benchmark(part=True, train=whole.train[:3], test_seen=none, test_unseen=none)
    assert (splits(party), per_class(party)[0]) == ((whole.train[:3].tolist(), [], []), [3])
    assert splits(make_benchmark(part=True, train=none)) == ([], *splits(whole)[1:])
    assert splits(
        make_benchmark(part=True, features=changed(whole.features, whole.train, 2.5))
    ) == splits(whole)
    assert make_benchmark(part=True).fingerprint() == whole.fingerprint()


def test_a_part_of_the_classes_is_chosen_on_as_far_as_it_goes(make_benchmark):
    whole = make_benchmark()
    own = whole.train[
        np.isin(whole.labels[whole.train], (0, 3))
    ]  # one training class and the one for validation
    chosen = make_benchmark(part=True, train=own).for_selection(0)
    expected = tuple([i for i in ids if i in own] for ids in splits(whole.for_selection(0)))
    assert (chosen.part, splits(chosen)) == (True, expected)
