import numpy as np
import pytest

from fedunseen.evaluation import theory
from fedunseen.report.theory import theory_section


def stored(pairs=True, visual=True, failing=True):
    """What a run would write, of a made-up model of five classes."""
    rng = np.random.default_rng(0)
    gamma, labels = np.corrcoef(rng.normal(size=(5, 4))), rng.integers(0, 5, 60)
    clients = [
        theory.Client(k, 10 + k, rng.normal(size=(4, 5)), rng.integers(0, 5, 4), rng.normal(size=(60, 5)))
        for k in range(3 if pairs else 1)
    ]
    prototypes = np.eye(5)
    predicted = prototypes[labels] + (0.3 if failing else 0.05) * rng.normal(size=(60, 5))
    features = predicted + 0.1 * rng.normal(size=(60, 5))
    decoder = theory.decoder(lambda rows: rows, predicted, features, prototypes, labels) if visual else None
    names, words = [f"<class {c}>" for c in range(5)], [f"word {i}" for i in range(5)]
    answers = (predicted @ prototypes.T).argmax(axis=1)
    if failing:
        answers[labels == 2] = 3
    classes = theory.class_margins(predicted, labels, prototypes, np.arange(5), names, words, answers, decoder)
    alignment = theory.alignment(clients, rng.normal(size=(60, 5)), labels, gamma, 2.0)
    return {
        "round": 7,
        "tested": 60,
        "alignment": {"temperature": 2.0, "estimated": True, "common": 60, "classes": 5, **alignment},
        "decoder": decoder.report if decoder else None,
        "prototypes": {"as_given": True, "length": 1.0, "predicted_length": 1.1},
        "unseen": {"same_answers": 1.0, "classes": classes},
        "all": {"same_answers": 1.0, "classes": classes},
    }


def row(section, where, what=""):
    return next(one for one in section["rows"] if one["where"] == where and what in one["what"])


def test_numbers_of_the_table_are_those_that_were_measured():
    given = stored()
    section = theory_section(given, calibrated=False)
    server, visual = given["alignment"]["server"], given["decoder"]
    assert float(row(section, "Eq. 15")["value"]) == pytest.approx(server["mixture"], rel=5e-3)
    assert float(row(section, "Eq. 15")["beside"].rpartition(" ")[2]) == pytest.approx(server["clients"], rel=5e-3)
    assert float(row(section, "A2")["value"]) == pytest.approx(visual["delta"], rel=5e-3)
    assert row(section, "Lemma 3")["verdict"] == row(section, "Lemma 4")["verdict"] == "holds for 100 %"
    low, high = (
        map(float, row(section, "A1")["value"].split(" to ")) if " to " in row(section, "A1")["value"] else (1, 1)
    )
    assert (low, high) == pytest.approx((1.0, 1.0))
    own = [one["epsilon_own"] for one in given["alignment"]["clients"]]
    low, high = map(float, row(section, "Eq. 12", "own")["value"].split(" to "))
    assert (low, high) == pytest.approx((min(own), max(own)), rel=5e-3)
    whole = sum(one["eq_20"] == 1 for one in given["unseen"]["classes"])
    assert row(section, "Theorem 5")["value"] == f"{whole} of 5"


def test_the_lemma_that_is_not_one_is_counted():
    given = stored()
    for pair in given["alignment"]["pairs"][:2]:
        pair["bound_own"] = 0.0
    section = theory_section(given, calibrated=False)
    assert row(section, "Lemma 1", "own samples")["verdict"] == "broken by 2 of 3 pairs"
    assert row(section, "Lemma 1", "mean over test")["verdict"].startswith("holds for all 3 pairs in the mean")


def test_every_pair_and_every_class_is_a_point():
    section = theory_section(stored(), calibrated=False)
    pairs, classes = section["charts"]
    assert pairs.count("<circle") == 3
    assert "clients 0 and 2" in pairs
    assert classes.count("<circle") == 5
    assert "&lt;class 4&gt;" in classes
    assert "<class" not in classes.replace('<circle class="', "")


def test_classes_are_listed_worst_first_with_their_reason():
    section = theory_section(stored(), calibrated=True)
    unseen, everything = section["tables"]
    assert [one["accuracy"] for one in unseen["rows"]] == sorted(one["accuracy"] for one in unseen["rows"])
    assert unseen["rows"][0]["name"] == "<class 2>"
    assert unseen["rows"][0]["reason"].startswith("100 % of its samples are taken for <class 3>")
    assert unseen["failing"] == 1
    assert (unseen["uncalibrated"], everything["uncalibrated"]) == (False, True)


def test_without_a_decoder_or_a_second_client_less_is_asked():
    section = theory_section(stored(pairs=False, visual=False), calibrated=False)
    assert len(section["charts"]) == 1
    assert not [one for one in section["rows"] if one["where"] in ("A1", "A2", "Lemma 1", "Theorem 5")]
    assert not section["tables"][0]["margins"]
    given = stored()
    given["alignment"] = None
    assert theory_section(given, calibrated=False)["clients"] == []


def test_a_margin_that_can_never_hold_is_said_to_be_so():
    given = stored()
    for one in given["unseen"]["classes"]:
        one["ratio"] = None
    section = theory_section(given, calibrated=False)
    assert row(section, "Theorem 5")["beside"] == ""
    assert section["tables"][0]["rows"][0]["ratio"] is None
