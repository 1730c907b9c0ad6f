"""What is said of a result: failures, their remedies, weak classes, what calibration costs and
examples would bring.
"""

import numpy as np
import pytest

from fedunseen import Experiment, run
from fedunseen.evaluation.diagnosis import (
    accuracy,
    at_chance,
    beside_nothing,
    diagnose,
    emptied,
    misplaced_pictures,
    never_answered,
    rising_loss,
    usual_strays,
    worse_features,
    worse_than_guessing,
)
from fedunseen.evaluation.summary import examples_advice, summarize

NAMES = ("zebra", "cow", "tiger", "orca", "wolf", "hippo", "eel", "otter")
GOOD = {
    "zsl": 70.0, "gzsl_unseen": 60.0, "gzsl_seen": 65.0, "gzsl_harmonic": 62.4, "uncalibrated_gzsl_unseen": 20.0,
    "uncalibrated_gzsl_seen": 80.0, "uncalibrated_gzsl_harmonic": 32.0, "calibration_factor": 0.4,
}  # fmt: skip
EMPTY = {**GOOD, "uncalibrated_gzsl_seen": 47.2, "gzsl_seen": 0.0}
PLAIN = {**GOOD, "calibration_factor": 0.0}
FEW = {
    "few_shot": 40.0, "few_shot_ci95": 1.0, "few_shot_pixels": 45.0, "few_shot_pixels_ci95": 1.0,
    "few_shot_random": 30.0, "few_shot_random_ci95": 1.0,
}  # fmt: skip
THREE = np.repeat([5, 6, 7], 40)
ALL = np.repeat(np.arange(8), 5)


def lines(*losses):
    return [{"round": i, "losses": {"loss": loss}} for i, loss in enumerate(losses, 1)]


def entropies(*values):
    return [{"losses": {"loss": value + 1, "sce": value}} for value in values]


def never(answers, labels=THREE, kind="unseen"):
    return never_answered(labels, answers, NAMES, kind)


@pytest.mark.parametrize(
    ("find", "end"),
    [
        (lambda: at_chance(THREE, np.full(120, 6), 3), "33.3 ± 2.0 % of them, guessing 33.3 %."),
        (lambda: rising_loss(lines(562.0, 900.0, 2000.0, 4786.0)), "grew from 562 to 4,786 in 4 "
                                                                    "rounds."),
        (lambda: rising_loss(lines(1.0, 2.0, float("inf"))), "grew from 1 to inf in 3 rounds."),
        (lambda: rising_loss(lines(1.0, 1.6)), "grew from 1 to 1.6 in 2 rounds."),
        # at learning rate 20
        (lambda: worse_than_guessing(entropies(418986.9, 4084.0, 3899.3, 4100.7), 100),
         "the cross-entropy ends at 4,101, where guessing among 100 classes has 4.6."),
        (lambda: worse_than_guessing(entropies(14.0), 100), "at 14, where guessing among 100 "
                                                            "classes has 4.6."),
        (lambda: never(np.repeat([5, 5, 7], 40)), "1 of 3 unseen classes is never the answer: "
                                                  "eel."),
        (lambda: never(np.full(120, 5), kind="new"), "2 of 3 new classes are never the answer: "
                                                     "eel, otter."),
        (lambda: never(np.zeros(40, dtype=int), ALL), "7 of 8 unseen classes are never the answer: "
                                                      "cow, tiger, orca, wolf, hippo and 2 more."),
        (lambda: emptied(EMPTY), "right answers from the seen classes: their accuracy falls from 47.2 to 0.0 %."),
        (lambda: emptied({**GOOD, "gzsl_unseen": 1.0}), "from the unseen classes: their accuracy falls "
                                                        "from 20.0 to 1.0 %."),
        (lambda: emptied({**PLAIN, "gzsl_unseen": 2.0}), "called a seen one: 2.0 % are right. If only "
                                                         "unseen classes compete, 70.0 % are."),
        (lambda: worse_features(0.05, 0.3), "silhouette 0.05 instead of 0.30."),
        (lambda: beside_nothing(FEW), "raw samples: 40.0 ± 1.0 %, without training 45.0 ± 1.0 %."),
        (lambda: beside_nothing({**FEW, "few_shot_pixels": 30.0, "few_shot_random": 60.0}),
         "its own features before training: 40.0 ± 1.0 %, without training 60.0 ± 1.0 %."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_numbers(find, end):
    assert find().what.endswith(end)


@pytest.mark.parametrize(
    "find",
    [
        lambda: at_chance(THREE, THREE, 3),
        lambda: at_chance(np.zeros(40, dtype=int), np.zeros(40, dtype=int), 1),
        *(
            lambda losses=losses: rising_loss(lines(*losses))
            for losses in (
                (3.0, 2.0, 1.0),
                (1.0,),
                (),
                (1.0, 1.3, 1.2),
                (-1.0, 2.0, 5.0),
                (None, None),
            )
        ),
        lambda: rising_loss(lines(2.0, 50.0, 1.0, 1.0)),
        lambda: worse_than_guessing(entropies(13.0), 100),  # 3 log 100 = 13.8
        lambda: worse_than_guessing(lines(20.2), 100),  # another loss, as of a sum of hinges
        lambda: worse_than_guessing([], 100),
        lambda: worse_than_guessing([{"losses": {"loss": 4000.0, "sce": 4.0, "mse": 3996.0}}], 100),
        lambda: worse_than_guessing([{"losses": {"loss": 4000.0, "regression": 3996.0}}], 100),
        lambda: never(THREE[::-1]),
        lambda: never(np.full(8, 5), np.repeat([5, 6], 4)),  # too few to say
        lambda: emptied(GOOD),
        lambda: emptied(PLAIN),
        lambda: emptied(
            {**GOOD, "uncalibrated_gzsl_seen": 3.0, "gzsl_seen": 0.0}
        ),  # there was nothing to empty
        lambda: worse_features(0.25, 0.3),
        lambda: beside_nothing({**FEW, "few_shot_pixels": 41.5}),  # the intervals overlap
    ],
)
def test_what_went_well_is_not_doubted(find):
    assert find() is None


def test_the_interval_is_that_of_many_draws():
    """The half width is 1.96 standard deviations of the accuracy of drawn answers."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 40)
    shares = np.array([0.9, 0.5, 0.2])
    drawn = [
        accuracy(labels, np.where(rng.random(120) < shares[labels], labels, 9)) for _ in range(2000)
    ]
    values, halves = np.array(drawn).T
    assert values.mean() == pytest.approx(100 * shares.mean(), abs=0.3)
    assert halves.mean() == pytest.approx(1.96 * values.std(), rel=0.05)


def test_few_samples_prove_little():
    """40 of 100 right of three classes is no better than a third, but 400 of 1,000 is."""
    rng = np.random.default_rng(0)
    for count, warned in ((33, True), (1000, False)):
        labels = np.repeat([0, 1, 2], count)
        answers = labels.copy()
        wrong = rng.permutation(3 * count)[int(0.4 * 3 * count) :]
        answers[wrong] = (labels[wrong] + 1) % 3
        assert (at_chance(labels, answers, 3) is not None) == warned


def test_single_odd_pictures_are_a_warning_only_where_chance_does_not_explain_them():
    """Of 900 pictures in order 3.6 look like another class; eight or more in 3 % of such folders."""
    strays = [{"place": "lion", "like": "bear", "file": f"lion/{i}.png"} for i in range(8)]
    seven = {"strays": strays[:7], "strays_by_chance": 3.6}
    eight = {"strays": strays, "strays_by_chance": 3.6}
    usual = usual_strays(seven)
    assert usual is not None
    assert usual.what.startswith(
        "7 pictures look more like another class than like that of their folder: lion/0"
    )
    assert list(misplaced_pictures(**seven)) == []
    (warned,) = misplaced_pictures(**eight)
    assert warned.why.endswith("Here there are more.")
    assert usual_strays(eight) is None
    assert usual_strays({}) is None
    many = {"strays": strays * 10, "strays_by_chance": 80.0}  # of 20,000
    assert list(misplaced_pictures(**many)) == []
    rest = usual_strays(many)
    assert "and 70 more" in rest.what
    assert rest.remedy.startswith("Look at them (result.json names all): if a picture")
    assert usual.remedy.startswith("Look at them: if a picture")
    groups = [{"place": "lion", "like": "bear", "files": [f"lion/{i}.png" for i in range(9)]}]
    for found in misplaced_pictures(groups, strays * 2, listed_in=""):  # no file to look them up in
        assert "more." not in found.what
        assert "lion/7.png" in found.what
    assert len(list(misplaced_pictures((), strays))) == 1  # of a run that did not count


def test_the_remedy_depends_on_what_can_be_set():
    guessed = np.full(120, 6)
    solved = at_chance(THREE, guessed, 3, trained=False).remedy  # no rate, no rounds: other advice
    assert "attributes into classes.csv, or show examples with fedunseen learn" in solved
    assert "method.lr" not in solved
    assert "data.features" not in solved + at_chance(THREE, guessed, 3, scaled=True).remedy


def test_of_two_pictures_of_a_class_nothing_is_chosen_and_more_are_asked_for():
    answers = {"labels": np.arange(7), "zsl_answers": np.arange(7)}
    for result, remedy in (
        ({**PLAIN, "gzsl_unseen": 2.0}, "--among given."),
        (EMPTY, "calibration = 'none'."),
    ):
        (found,) = (
            item
            for item in diagnose([], result, answers, NAMES, np.array([5, 6]))
            if "Bring" in item.remedy
        )
        assert found.remedy.startswith(
            "Bring more samples: of most classes one sample is tested, and on so few "
        )
        assert found.remedy.endswith(remedy)
    assert emptied(EMPTY, tested=3) == emptied(EMPTY)


def test_a_good_run_is_told_nothing_and_a_bad_one_everything():
    unseen, labels = np.array([5, 6, 7]), np.repeat(np.arange(8), 10)
    good = {"labels": labels, "zsl_answers": labels, "silhouettes": np.array([0.4, 0.1])}
    assert diagnose(lines(3.0, 1.0), GOOD, good, NAMES, unseen) == []
    bad = {"labels": labels, "zsl_answers": np.full(80, 5), "silhouettes": np.array([0.0, 0.4])}
    result = diagnose(lines(1.0, 9.0), {**GOOD, "gzsl_seen": 0.0}, bad, NAMES, unseen)
    assert [item.what.split(" ")[1] for item in result] == [
        "training",
        "model",
        "of",
        "offset",
        "model's",
    ]
    assert (
        diagnose(lines(3.0, 1.0), {**GOOD, "zsl": 3.0}, bad, NAMES, unseen, descriptions=False)
        == []
    )
    few = {"few_shot": 40.0, "few_shot_ci95": 1.0, "few_shot_pixels": 50.0, "few_shot_random": 50.0}
    result = diagnose(
        lines(3.0, 1.0), few, {"labels": labels, "answers": np.full(80, 5)}, NAMES, unseen
    )
    assert [item.what.split(" ")[0] for item in result] == ["The", "7"]
    assert diagnose([], GOOD, {}, NAMES, unseen) == []


SMALL = {
    "data.train_per_class": 6, "data.test_per_class": 6, "method.hidden": [16], "strategy.rounds": 4,
    "partition.clients": 3, "evaluation.selection": "last", "evaluation.embedding": False, "evaluation.theory": False,
}  # fmt: skip
STEEP = {
    "method.hidden": [],
    "method.lr": 3.0,
    "method.batch_size": 1000,
    "strategy.local_epochs": 1,
}


@pytest.mark.parametrize(
    ("prior", "more", "why", "remedy"),
    [
        ("auto", {"left_out_accuracy": {"0": 90.0, "5": 91.0}, "confidence": {"priors": {"balanced": [2.0, 9.0, 9.0]}}},
         "evaluation.prior = 'auto' decides how much unseen classes are favored",
         "Show 5 examples of each unseen class with `fedunseen learn`, or set evaluation.prior = \"balanced\"."),
        ("balanced", {"left_out_accuracy": {"0": 90.0}}, "evaluation.prior = 'balanced' decides how much unseen",
         "Ask among new classes alone: fedunseen predict --classes FILE --among given."),
        ("auto", {"chosen_on_validation": {"bounded_by": "cow"}}, "would have taken all samples of 'cow'", "Ask among"),
    ],
)  # fmt: skip
def test_a_calibration_that_left_no_offset_is_not_advised_again(prior, more, why, remedy):
    found = emptied({**PLAIN, "gzsl_unseen": 2.0, **more}, prior=prior)
    assert why in found.why
    assert found.remedy.startswith(remedy)
    assert "calibration = 'stacking'" in emptied({**PLAIN, "gzsl_unseen": 2.0, **more}).remedy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "warning", "remedy"),
    [
        (STEEP, "training loss grew", {"method.lr": 0.3}),
        ({"method.hidden": [], "method.lr": 1.06, "data.features": ["l2"], "strategy.rounds": 1, "run.seed": 20,
          "evaluation.selection": "validation"},
         "The offset takes most right answers from the seen classes", {"evaluation.calibration": "none"}),
        (STEEP, "training loss grew", {"data.features": ["centre", "l2"]}),
        ({"method.lr": 1.0}, "does not beat guessing", {"method.lr": 0.1}),
        ({"method.lr": 3.0, "data.features": ["centre", "l2"]},
         "is called a seen one", {"evaluation.selection": "validation"}),
        ({"method.hidden": [2], "evaluation.embedding": "pca"}, "less apart", {"method.hidden": [64]}),
    ],
)  # fmt: skip
def test_a_remedy_removes_its_warning(settings, warning, remedy, tmp_path):
    def warned(changes, out):
        done = run(
            Experiment.load("digit-pairs-fedavg", {**SMALL, **settings, **changes}), tmp_path / out
        )
        return [item["remedy"] for item in done.result["warnings"] if warning in item["what"]]

    (text,) = warned({}, "before")
    assert all(key in text for key in remedy)
    assert warned(remedy, "after") == []


RESULT = {
    "zsl": 70.0, "gzsl_unseen": 60.0, "gzsl_seen": 50.0, "uncalibrated_gzsl_unseen": 20.0,
    "uncalibrated_gzsl_seen": 95.0, "run": "runs/my run", "left_out_accuracy": {"0": 60.0, "5": 90.0},
}  # fmt: skip


def test_weak_seen_and_unseen_classes_and_the_cost_of_calibration_are_named():
    labels = np.repeat([0, 1, 2, 3], 10)
    zsl, calibrated = labels.copy(), labels.copy()
    zsl[20:29] = calibrated[10:18] = 3  # calibration takes eight cows for orcas
    answers = {
        "labels": labels,
        "zsl_answers": zsl,
        "gzsl_answers": calibrated,
        "uncalibrated_answers": labels,
    }

    def said(result, described=True, **changed):
        return summarize(result, {**answers, **changed}, NAMES[:4], np.array([2, 3]), described)

    result = said(RESULT)
    data = {"cause": "data", "otherwise": None, "samples": 10, "called": {"orca": 90.0}}
    rule = {"cause": "rule", "otherwise": 100.0, "samples": 10, "called": {"orca": 80.0}}
    (tiger,) = result["weak_unseen"]
    assert tiger == {
        "name": "tiger",
        "accuracy": 10.0,
        "instead": "orca",
        **data,
        "among_all": 100.0,
        "plainly": "orca",
    }
    rule |= {"among_all": None, "plainly": ""}
    assert result["weak_seen"] == [{"name": "cow", "accuracy": 20.0, "instead": "orca", **rule}]
    assert result["calibration_falls"] == [{"name": "cow", "before": 100.0, "after": 20.0}]
    unseen, seen, cost, _ = result["text"]
    assert unseen.endswith(
        "(1 of 10 test samples right, 100 % once seen classes compete; 90 % are called orca)."
    )
    assert seen == (
        "1 of 2 seen classes is often called an unseen class, which the offset favors: cow (2 of 10 "
        "test samples right, 100 % without the offset; 80 % are called orca (unseen))."
    )
    assert cost == (
        "An offset in favor of unseen classes raises them from 20.0 to 60.0 %, and "
        "lowers seen ones from 95.0 to 50.0 %. These seen classes lose most: cow (100 to 20 %)."
    )
    slight = np.where(np.arange(40) == 10, 3, labels)  # a tenth of the cows: not worth naming
    assert said(RESULT, gzsl_answers=slight)["text"][1].endswith("seen ones from 95.0 to 50.0 %.")
    worse = RESULT | {
        "uncalibrated_gzsl_unseen": 40.0,
        "gzsl_unseen": 30.0,
        "uncalibrated_gzsl_seen": 40.0,
    }
    worse["gzsl_seen"] = 60.0
    assert "falls" not in said(worse, gzsl_answers=slight)["text"][1]
    worse["gzsl_unseen"] = 10.0  # 2 x 10 x 60 / 70 = 17.1
    assert said(worse, gzsl_answers=slight)["text"][1].endswith(
        " Their harmonic mean falls from 40.0 to 17.1 %."
    )
    guesses = said(RESULT, False, uncalibrated_answers=calibrated)
    assert (guesses["weak_unseen"], len(guesses["text"])) == (
        [],
        1,
    )  # without descriptions, seen classes alone count
    assert said({"few_shot": 1.0}) == {}


CURVE = {
    "curve_shots": np.array([0.0, 1.0, 5.0]),
    "curve_both": np.array([[74.0, 75.2], [80.0, 80.0], [91.0, 91.4]]),
}


@pytest.mark.parametrize(
    ("expected", "curve", "numbers"),
    [
        ({"0": 60.0, "5": 90.0}, {}, ["60.0", "at most 90.0"]),
        ({"0": 60.0, "5": 90.0}, CURVE, ["74.6", "91.2"]),  # measured
        ({"0": 60.0, "5": 64.0}, {}, []),
        ({"0": 60.0}, {}, []),  # a method that takes no examples
        ({}, {}, []),
    ],
)
def test_examples_are_advised_with_what_they_bring_and_a_command_to_copy(expected, curve, numbers):
    result = {**RESULT, "left_out_accuracy": expected}
    text = examples_advice(result, curve, ["a", "b"])
    some = examples_advice({**result, "shown": {"a": 5, "b": 4}}, curve, ["a", "b"])
    before = text.replace(" On ", " In the run from before, on ")  # where the gain was measured
    assert some == before.replace("each unseen class", "b")
    for changed in ({"learnt": ["c"]}, {"adapted": {}}):
        assert examples_advice({**result, **changed}, curve, ["a", "b"]) == before
    assert examples_advice({**result, "shown": {"a": 5, "b": 6}}, curve, ["a", "b"]) == ""
    assert bool(text) == bool(numbers)
    assert [text.find(number) for number in numbers] == sorted(
        text.find(number) for number in numbers
    )
    if text:
        assert "fedunseen learn 'runs/my run' --support FOLDER --out 'runs/my run-shown'" in text
