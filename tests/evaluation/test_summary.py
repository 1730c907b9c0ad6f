"""What a run is weak at, what calibration costs, and what examples of unseen classes would bring."""

import numpy as np
import pytest

from fedunseen.evaluation.summary import examples_advice, summarize

NAMES = ("zebra", "cow", "tiger", "orca")
RESULT = {
    "zsl": 70.0, "gzsl_unseen": 60.0, "gzsl_seen": 50.0, "uncalibrated_gzsl_unseen": 20.0,
    "uncalibrated_gzsl_seen": 95.0, "run": "runs/my run", "left_out_accuracy": {"0": 60.0, "5": 90.0},
}  # fmt: skip


def test_weak_seen_and_unseen_classes_and_the_cost_of_calibration_are_named():
    labels = np.repeat([0, 1, 2, 3], 10)
    zsl, calibrated = labels.copy(), labels.copy()
    zsl[20:29] = calibrated[10:18] = 3  # calibration takes eight cows for orcas
    answers = {"labels": labels, "zsl_answers": zsl, "gzsl_answers": calibrated, "uncalibrated_answers": labels}

    def said(result, described=True, **changed):
        return summarize(result, {**answers, **changed}, NAMES, np.array([2, 3]), described)

    result = said(RESULT)
    assert result["weak_unseen"] == [{"name": "tiger", "accuracy": 10.0, "instead": "orca"}]
    assert result["weak_seen"] == [{"name": "cow", "accuracy": 20.0, "instead": "orca"}]
    assert result["calibration_falls"] == [{"name": "cow", "before": 100.0, "after": 20.0}]
    assert len(result["text"]) == 4
    assert result["text"][0].endswith("Describe by attributes what is visible, or show examples of each.")
    assert result["text"][1].endswith(
        "(20 %; most often predicted as orca). Check their labels, and give more samples of them."
    )
    assert result["text"][2] == (
        "Calibration moves unseen classes from 20.0 to 60.0 % and seen ones from 95.0 to 50.0 %. It costs most: cow "
        "(100 to 20 %)."
    )
    slight = np.where(np.arange(40) == 10, 3, labels)  # a tenth of the cows: not worth naming
    assert said(RESULT, gzsl_answers=slight)["text"][1].endswith("seen ones from 95.0 to 50.0 %.")
    worse = RESULT | {"uncalibrated_gzsl_unseen": 40.0, "gzsl_unseen": 30.0, "uncalibrated_gzsl_seen": 40.0}
    worse["gzsl_seen"] = 60.0
    assert "falls" not in said(worse, gzsl_answers=slight)["text"][1]
    worse["gzsl_unseen"] = 10.0  # 2 x 10 x 60 / 70 = 17.1
    assert said(worse, gzsl_answers=slight)["text"][1].endswith(
        " Their harmonic mean falls from 40.0 to 17.1 %: give more seen classes to calibrate on."
    )
    guesses = said(RESULT, False, uncalibrated_answers=calibrated)
    assert (guesses["weak_unseen"], len(guesses["text"])) == ([], 1)  # without descriptions, seen classes alone count
    assert said({"few_shot": 1.0}) == {}


CURVE = {"curve_shots": np.array([0.0, 1.0, 5.0]), "curve_both": np.array([[74.0, 75.2], [80.0, 80.0], [91.0, 91.4]])}


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
    text = examples_advice({**RESULT, "left_out_accuracy": expected}, curve)
    assert bool(text) == bool(numbers)
    assert [text.find(number) for number in numbers] == sorted(text.find(number) for number in numbers)
    if text:
        assert "fedunseen learn 'runs/my run' --support FOLDER --out 'runs/my run-shown'," in text
