"""The page and the conclusions of an attack on gradients, from numbers made up here."""

import re

import numpy as np
import torch

from fedunseen import Experiment
from fedunseen.pages.report.leakage_page import conclusions, write_leakage_report
from pages import without_pictures


def numbers(mse, recovered, **more):
    relative, psnr = mse / 0.08, -10 * float(np.log10(mse))
    settings = {"mse": mse, "relative": relative, "cosine": 0.5, "psnr": psnr}
    return settings | {"matches": recovered, "recovered": recovered, **more}


GUESSES = {
    "average": numbers(0.08, 0),
    "random class": numbers(0.11, 0),
    "source": numbers(1e-12, 2),
}


SETTINGS = {"steps": 300, "lr": 1.0}
DLG = {**numbers(1e-6, 2), "labels": 2, "iterations": [0, 5, 300], "settings": SETTINGS}
DLG["images"] = [{"mse": 0.01 * i, "psnr": 20.0, "iterations": 7} for i in (1, 2)]


def phase(name, analytic, inputs, attributes):
    """A phase that depends on what the closed form recovers; ``inputs`` and ``attributes`` are
    those of DLG.
    """
    closed = {what: numbers(1e-9, 2) for what in analytic}
    search = {"settings": SETTINGS, "searches": [], "inputs": inputs, "attributes": attributes}
    return {
        "travels": [f"{name}.0.weight"], "optimiser": "Adam",
        "depends": {what: what in analytic for what in ("inputs", "attributes")},
        "attacks": {"analytic": {"settings": {}, "searches": [], **closed}, "dlg": search},
    }  # fmt: skip


FACTS = {  # what a critic and a generator of which both travel might give away
    "experiment": Experiment.load("digit-pairs", {"run.seed": 3}).to_dict(), "benchmark": "digit-pairs",
    "seed": 3, "classes": ["00", "11"], "shared": ["*"],
    "command": [
        "fedunseen", "attack", "leakage", "digit-pairs",
        "--set", "run.seed=3", "--images", "2", "--method", "dlg",
    ],
    "samples": [{"id": 4, "class": "<b>00"}, {"id": 9, "class": "11"}],
    "classifier": {"network": "LeNet", "pixels": [1, 8, 16], "guesses": GUESSES, "attacks": {"dlg": DLG}},
    "method": {
        "method": "clswgan", "generates": True, "unit": {"inputs": True, "attributes": True}, "pixels": [1, 8, 16],
        "guesses": {"inputs": GUESSES, "attributes": GUESSES},
        "phases": {
            "critic": phase("critic", ("inputs", "attributes"), numbers(0.21, 0), numbers(0.3, 0)),
            "generator": phase("generator", ("attributes",), numbers(0.31, 0), numbers(0.02, 1)),
        },
    },
}  # fmt: skip
TENSORS = {
    **{f"classifier.{name}": torch.rand(2, 1, 8, 16) for name in ("source", "dlg.recovered")},
    **{
        f"method.{name}": torch.rand(2, 128)
        for name in ("inputs", "critic.analytic.inputs", "critic.dlg.inputs")
    },
    "classifier.dlg": torch.rand(2, 3, 1, 8, 16),
}


def test_conclusions_follow_the_numbers():
    assert conclusions(FACTS) == [
        "A classifier that sees images gives them away: DLG recovers 2 of 2 images (mean MSE "
        "1e-06, PSNR 60.0 dB; guessing the average image: 0.08).",
        "The gradient of clswgan's critic phase gives the image away: the best attack, the closed "
        "form, recovers 2 of 2 (mean MSE 1e-09; guessing the average: 0.08). DLG recovers none: a "
        "search that fails proves nothing.",
        "It gives the attributes of the class away: the closed form recovers 2 of 2 (mean MSE "
        "1e-09); for 2 of 2 the nearest description names the right class.",
        "The gradient of clswgan's generator phase does not depend on the image at all: its "
        "derivative by it is exactly zero. What DLG returns for it is not better than a guess: MSE "
        "0.31, the average has 0.08.",
        "It gives the attributes of the class away: the closed form recovers 2 of 2 (mean MSE "
        "1e-09); for 2 of 2 the nearest description names the right class.",
        "FZSL's claim that only the attribute vector can be recovered does not hold for what "
        "travels here: the image itself is recovered.",
    ]


def test_the_page_shows_sources_beside_what_was_recovered(tmp_path):
    write_leakage_report(FACTS, TENSORS, tmp_path / "leakage.html")
    page = (tmp_path / "leakage.html").read_text("utf-8")
    assert ("<b>00" in page, "&lt;b&gt;00" in page) == (False, True)  # class names are text
    for words in conclusions(FACTS):
        assert words.replace("'", "&#39;") in page
    classifier, rest = page.split('id="phase-critic"')
    assert classifier.count('src="data:image/png') == 2 * 4  # source, iterations 0 and 5, recovered
    critic, generator = rest.split('id="phase-generator"')
    assert critic.count('src="data:image/png') == 2 * 3  # source, closed form, DLG
    assert ["The gradient does not depend on it" in part for part in (critic, generator)] == [
        False,
        True,
    ]
    assert {1e-9, 0.21, 0.3, 0.08} <= {
        float(value) for value in re.findall(r'<data value="([^"]+)">', critic)
    }
    for words in (
        "fedunseen attack leakage digit-pairs",
        "--set run.seed=3",
        "--images 2",
        "--method dlg",
    ):
        assert words in page
    assert "http" not in without_pictures(page).replace("http-equiv", "")


def test_what_sums_give_away_is_said_and_shown(tmp_path):
    def row(parties, seen, mse, recovered, count):
        return {
            "parties": parties,
            "seen": seen,
            "inputs": numbers(mse, recovered, samples=[{}] * count),
        }

    dlg = [row(1, "update", 1e-5, 1, 1), row(3, "sum", 0.0123, 2, 3)]
    analytic = [{"parties": 1, "seen": "update"}, row(3, "sum", 0.05, 0, 3)]
    failed = [row(1, "update", 0.071, 0, 1), row(3, "sum", 0.072, 0, 3)]
    phases = {
        "critic": {"analytic": analytic, "dlg": dlg},
        "generator": {"analytic": [{"parties": 1, "seen": "sum"}]},
    }
    summed = FACTS | {"sums": {"samples": [], "classifier": {"dlg": failed}, "phases": phases}}
    assert conclusions(summed) == [
        *conclusions(FACTS),
        "Where the coordinator sees sums, the best attack on the classifier recovers these images: "
        "0 of 1 from one update, 0 of 3 from the sum of 3.",
        "Where the coordinator sees sums, the best attack on phase critic recovers these images: 1 "
        "of 1 from one update, 2 of 3 from the sum of 3. A sum hides whose samples they are. It "
        "does not hide the samples.",
    ]
    write_leakage_report(FACTS, TENSORS, tmp_path / "leakage.html")
    page = (tmp_path / "leakage.html").read_text("utf-8")
    assert 'id="sums"' not in page
    write_leakage_report(summed, TENSORS, tmp_path / "leakage.html")
    page = (tmp_path / "leakage.html").read_text("utf-8")
    assert 'id="sums"' in page
    tables = page.split('id="sums"')[1].split('id="how"')[0].split("<h3>")[1:]
    assert [table.split("</h3>")[0] for table in tables] == [
        "The images: a classifier that sees them", "The images: phase critic",
    ]  # fmt: skip
    seen = re.findall(
        r'<th scope="row">([^<]+)</th><td class="text">([^<]+)</td><td>([^<]+)</td>', tables[1]
    )
    assert [tuple(words.replace("&#39;", "'") for words in row) for row in seen] == [
        ("one update", "DLG", "1 of 1"), ("the sum of 3", "closed form", "0 of 3"),
        ("the sum of 3", "DLG", "2 of 3"),
    ]  # fmt: skip
    assert '<data value="0.0123">' in tables[1]
