"""What a run has learned costs the other classes: said in numbers, and with a remedy that helps."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.core.run_forms import FORMS, has_form
from fedunseen.evaluation.diagnosis import learned
from fedunseen.evaluation.learn_effect import learn_effect
from fedunseen.experiment.assemble import load_data
from fedunseen.metrics import per_class
from small_runs import LAST

NAMES = ("tiger", "lion", "bear", "wolf")
LABELS = np.repeat(np.arange(3), 50)


def answers(*right, instead=0):
    """Return answers of which so many of each class are right, and the others the class instead."""
    given = np.where(instead == LABELS, 3, instead)
    for c, count in enumerate(right):
        given[50 * c : 50 * c + count] = c
    return given


def effect(taught, before, after):
    note = learn_effect(taught, NAMES, LABELS, before, after)
    assert has_form(note, FORMS["result.json"]["learn_effect"])
    return note


def test_what_changes_is_said_for_these_classes_the_others_and_the_one_that_loses_most():
    before, after = answers(6, 40, 30, instead=3), answers(34, 31, 35)
    note = effect({"tiger": 5}, before, after)
    assert note["text"] == (
        "accuracy on 150 test samples, with all classes to choose from: tiger from 12.0 to 68.0 %; "
        "the 2 others on average from 70.0 to 66.0 %; lion loses most, from 80.0 to 62.0 % of its 50"
    )
    assert note["classes"]["taken_by"] == ["", "tiger", ""]
    assert (note["lost"], list(learned(note))) == ([], [])
    gained = effect({"wolf": 0}, answers(30, 30, 30, instead=3), answers(30, 40, 30))["text"]
    assert gained.startswith("accuracy on 150 test samples (none is of wolf), with")
    assert gained.endswith("the 3 others on average from 60.0 to 66.7 %; none of these loses")
    both = effect({"tiger": 5, "lion": 5}, before, after)["text"]
    assert both.endswith(
        "tiger from 12.0 to 68.0 %; lion from 80.0 to 62.0 %; bear from 60.0 to 70.0 %"
    )


@pytest.mark.parametrize(
    ("was", "now", "warned"),
    [(40, 30, True), (40, 31, False), (16, 7, True), (16, 8, False), (9, 3, False)],
)
def test_a_class_that_loses_twenty_points_or_half_is_warned_of(was, now, warned):
    found = list(
        learned(effect({"tiger": 5}, answers(6, was, 30, instead=3), answers(34, now, 30)))
    )
    assert len(found) == warned
    for sign in found:
        assert sign.what == (
            f"1 class lost much to what the model learned: 'lion' ({2 * was:.1f} to {2 * now:.1f} % "
            "of its test samples)."
        )
        assert sign.why == "Samples that it lost are now mostly taken for tiger."
        assert sign.remedy.startswith(
            "Show more examples of tiger with `fedunseen learn`, 20 in all"
        )


def test_more_examples_are_no_remedy_where_there_are_many_or_others_take_the_samples():
    before, after = answers(6, 40, 30, instead=3), answers(34, 20, 30)
    for taught, given in ({"tiger": 20}, after), ({"tiger": 5}, np.where(after == 0, 3, after)):
        (sign,) = learned(effect(taught, before, given))
        assert sign.remedy == "Keep the run from before."
    few = np.repeat([1], 4)  # a class of four test samples
    note = learn_effect({"tiger": 5}, NAMES, few, few, np.array([1, 1, 0, 0]))
    assert (note["lost"], note["classes"]["after"]) == ([], [50.0])


@pytest.fixture(scope="module")
def trained(make_folder, tmp_path_factory):
    """A run, and twenty examples of its unseen class i, which is like its seen class d; the first
    two lie near d by chance.
    """
    place = tmp_path_factory.mktemp("effect")
    random = np.random.default_rng(1)
    means = random.normal(scale=3, size=(12, 9))
    means[8] = means[3] + np.array([3.0, *[0.0] * 8])

    def edit(rows, arrays):
        labels, split = np.repeat(np.arange(12), 70), np.tile(["train"] * 30 + ["test"] * 40, 12)
        kept = (labels < 8) | (split == "test")
        labels, split = labels[kept], split[kept]
        features = (means[labels] + random.normal(size=(len(labels), 9))).astype(np.float32)
        arrays |= {"features": features, "labels": labels, "split": split}

    folder = make_folder(place / "data", edit)
    settings = {
        "data.name": "folder",
        "data.root": str(folder),
        "data.features": [],
        "partition.clients": 3,
    }
    done = run(Experiment.load("digit-pairs-gaussian", {**settings, **LAST}), place / "run")
    drawn = (means[8] + random.normal(size=(20, 9))).astype(np.float32)
    near = np.argsort(np.linalg.norm(drawn - means[3], axis=1))
    return done, drawn[near]


@pytest.mark.slow
def test_more_examples_give_back_what_a_few_took_from_another_class(trained, tmp_path):
    """The remedy of the warning, tried."""
    done, rows = trained
    with pytest.warns(UserWarning, match="lost much to what the model learned: 'd'"):
        few = done.learn(examples={"i": rows[:2]}, out=tmp_path / "few")
    (sign,) = [sign for sign in few.result["warnings"] if "lost much" in sign["what"]]
    assert sign["remedy"].startswith("Show more examples of i with `fedunseen learn`, 20 in all")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        many = few.learn(examples={"i": rows[2:]}, out=tmp_path / "many")
    place = done.space.names.index("d")
    accuracy = {
        each: per_class(each.evaluation["labels"], each.evaluation["gzsl_answers"], [place])[0]
        for each in (done, few, many)
    }
    assert accuracy[few] < accuracy[done] - 40
    assert accuracy[many] > accuracy[done] - 10
    assert accuracy[few] == few.result["learn_effect"]["classes"]["after"][place]
    assert accuracy[few] == many.result["learn_effect"]["classes"]["before"][place]
    assert not [sign for sign in many.result["warnings"] if "lost much" in sign["what"]]


@pytest.mark.slow
def test_the_numbers_are_of_test_samples_that_are_no_examples_and_go_with_the_model(
    trained, tmp_path
):
    done, rows = trained
    benchmark = load_data(done.experiment, 0)
    tests = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    own = tests[benchmark.labels[tests] == 8][:5]
    with pytest.warns(UserWarning, match="5 test samples were shown"):
        after = done.learn(examples={"i": benchmark.features[own]}, out=tmp_path / "after")
    kept = np.setdiff1d(tests, own)
    note = load_run(after.path).result["learn_effect"]
    assert (note["taught"], sum(note["classes"]["tests"])) == ({"i": 5}, len(kept))
    for model, side in ((done.model, "before"), (after.model, "after")):
        answers = model.scores(benchmark.features[kept]).argmax(1)
        found = per_class(benchmark.labels[kept], answers, np.arange(12))
        np.testing.assert_allclose(note["classes"][side], found, atol=0.01)

    described = {"new": done.space.semantics[0] + 0.1}
    assert "learn_effect" not in after.learn(described).result  # in memory, unmeasured
    assert after.learn(described, out=tmp_path / "new").result["learn_effect"]["taught"] == {
        "new": 0
    }
    pool = np.concatenate([rows, rows + 0.1])
    assert "learn_effect" not in load_run(after.path).adapt(pool, tmp_path / "adapted").result
    gone = {
        **after.manifest["experiment"],
        "data": {**after.manifest["experiment"]["data"], "root": "gone"},
    }
    moved = replace(after, manifest={**after.manifest, "experiment": gone})
    with pytest.warns(UserWarning, match="its test samples are not here"):
        assert "learn_effect" not in moved.learn(described, out=tmp_path / "moved").result
