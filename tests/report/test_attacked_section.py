"""What the report of a run says of malicious clients and of screening."""

import re

import numpy as np
import pytest

from fedunseen import Experiment, run
from fedunseen.report import write_report
from fedunseen.report.backdoor_page import magnitude_chart

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {
    "strategy.rounds": 3, "data.train_per_class": 10, "data.test_per_class": 4, "method.kl": 0,
    "evaluation.selection": "last", "evaluation.theory": False, "evaluation.embedding": False,
}  # fmt: skip


def page(tmp_path, settings):
    done = run(Experiment.load("digit-pairs", {**SMALL, **settings}), tmp_path / "run")
    text = write_report(done).read_text()
    section = re.search(r'<section id="attack">.*?</section>', text, re.S)
    return done.result, section and section[0]


def test_an_attack_and_what_was_dropped_stand_in_the_report(tmp_path):
    attack = {"attack.name": "backdoor", "attack.rounds": "2-", "attack.clients": [0, 3]}
    attack |= {"attack.triggers": ["background", "style"], "screening.name": "magnitude"}
    result, section = page(tmp_path, attack)
    assert "Clients 0, 3 are malicious: attack <code>backdoor</code> in rounds 2 to 3 (2 rounds)" in section
    assert f'<data value="{result["backdoor_attacked"]}">' in section
    assert "background: clean images before a sky; client 0 trains on 50" in section
    screened = result["screened"]
    assert f"Clients dropped {screened['clean_dropped']:,} of {screened['clean']:,} clean samples and " in section
    assert section.count("<svg") == 1 + 3  # accuracies, magnitudes after three rounds
    assert "some client had no sample left" not in section


def test_a_client_without_samples_is_told(tmp_path):
    _, section = page(tmp_path, {"screening.name": "magnitude", "screening.threshold": 1e9, "strategy.rounds": 2})
    assert "In rounds 1, 2 some client had no sample left and sent no change." in section


def test_magnitudes_are_shares_of_each_kind():
    chart = magnitude_chart(7, {"clean": np.arange(100.0), "sky": np.zeros(3)})
    assert all(words in chart for words in (">clean<", ">sky<"))
    for clean in (np.ones(4), np.array([np.nan, 1.0])):
        assert "<svg" in magnitude_chart(7, {"clean": clean, "sky": np.ones(2)})
