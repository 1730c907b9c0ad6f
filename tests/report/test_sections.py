"""Sections that some runs have: unlabelled samples, malicious clients and screening, merging; names
in the card.
"""

import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fedunseen import Experiment, load_run, run
from fedunseen.core.errors import RunDirectoryError
from fedunseen.pages.report import model_card, write_report
from fedunseen.pages.report.backdoor_page import magnitude_chart
from fedunseen.pages.report.unusual import merging_section
from pages import copied, page_of

FAR = "it is too far from the others"
CLIENTS = ["client 0", "client 1", "client 2"]


@pytest.fixture(scope="module")
def adapted(make_folder, with_pool, tmp_path_factory):
    place = tmp_path_factory.mktemp("adapted")
    data = {
        "name": "folder",
        "root": str(make_folder(place / "mine", with_pool)),
        "unlabelled": True,
    }
    tree = {"data": data, "partition": {"clients": 2}, "method": {"name": "gaussian"}}
    return run(Experiment.from_dict(tree, {"evaluation.embedding": False}), place / "run")


@pytest.mark.parametrize("width", [400, 1280])
def test_a_page_shows_what_unlabelled_samples_changed(width, adapted, browser):
    """What each class got, and accuracies before and after; the page on a telephone."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(write_report(adapted).as_uri())
    for details in page.query_selector_all("details"):
        details.evaluate("one => one.open = true")
    table = adapted.result["adapted"]["classes"]
    first, *_, last = page.locator("#adapted table.modules tbody tr").all_inner_texts()
    each = zip(table["class"], table["samples"], table["seen"], strict=True)
    got = {name: samples for name, samples, seen in each if not seen}
    assert first.startswith(max(got, key=got.get))
    assert last.startswith(min(got, key=got.get))
    for values in (adapted.result["adapted"]["before"], adapted.result):
        assert f"{values['gzsl_harmonic']:.1f}" in page.locator("#adapted table").first.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def attack_section(run, folder):
    return re.search(r'<section id="attack">.*?</section>', page_of(run, folder)[1], re.S)[0]


@pytest.mark.slow
def test_an_attack_and_what_was_dropped_stand_in_the_report(made, tmp_path):
    attack = {
        "attack.name": "backdoor",
        "attack.rounds": "2-",
        "attack.clients": (0, 3),
        "strategy.rounds": 3,
    }
    attack |= {"attack.triggers": ("background", "style"), "screening.name": "magnitude"}
    run = made(*attack.items())
    section, screened = attack_section(run, tmp_path), run.result["screened"]
    assert (
        "Clients 0, 3 are malicious: attack <code>backdoor</code> in rounds 2 to 3 (2 rounds)"
        in section
    )
    assert f'<data value="{run.result["backdoor_attacked"]}">' in section
    assert "background: clean images before a sky; client 0 trains on 50" in section
    assert (
        f"Clients dropped {screened['clean_dropped']:,} of {screened['clean']:,} clean samples and "
        in section
    )
    assert section.count("<svg") == 1 + 3  # accuracies, magnitudes after three rounds
    assert "some client had no sample left" not in section


@pytest.mark.slow
def test_a_client_without_samples_is_told(made, tmp_path):
    section = attack_section(
        made(("screening.name", "magnitude"), ("screening.threshold", 1e9)), tmp_path
    )
    assert "In rounds 1, 2 some client had no sample left and sent no change." in section


def test_magnitudes_are_shares_of_each_kind():
    chart = magnitude_chart(7, {"clean": np.arange(100.0), "sky": np.zeros(3)})
    assert all(words in chart for words in (">clean<", ">sky<"))
    for clean in (np.ones(4), np.array([np.nan, 1.0])):
        assert "<svg" in magnitude_chart(7, {"clean": clean, "sky": np.ones(2)})


def line(round, kept, norms, dropped, clients=(0, 1, 2)):
    said = {
        "name": "krum",
        "clients": list(clients),
        "kept": kept,
        "norms": norms,
        "dropped": dropped,
    }
    return {"round": round, "participants": list(clients), "defence": {**said, "merged": any(kept)}}


def test_replies_are_counted_by_client():
    assert merging_section([{"round": 1, "participants": [0]}], CLIENTS) is None  # an ordinary run
    lines = [
        line(1, [1.0, 0.5, 0.0], [1.0, 2.0, 9.0], {"2": FAR}),
        line(2, [1.0, 0.0], [1.0, None], {"2": "it is not finite"}, clients=(0, 2)),
        line(3, [0.0, 0.0, 0.0], [3.0, 3.0, 7.0], {"0": FAR, "1": FAR, "2": FAR}),
    ]
    found = merging_section(lines, CLIENTS)["defence"]
    assert (
        found.items()
        >= {"name": "krum", "replies": 8, "out": 5, "shortened": 1, "nothing": [3]}.items()
    )
    zero, one, two = found["rows"]
    counts = {"replies": 3, "out": 1, "shortened": 0}
    assert zero == {"client": "client 0", **counts, "length": 5 / 3, "why": f"{FAR} (3)"}
    assert (one["replies"], one["out"], one["shortened"]) == (2, 1, 1)
    assert (two["length"], two["why"]) == (8.0, f"{FAR} (1, 3); it is not finite (2)")
    assert "<svg" in found["chart"]


def test_what_it_cost_and_who_got_lost():
    privacy = {"delta": 1e-5, "noise": 1.0, "deviation": 0.1, "clipped": 1}
    usual = {"participants": [0, 1], "dropped": {"2": "the update is not finite"}}
    lines = [{"round": r, **usual, "privacy": {**privacy, "epsilon": float(r)}} for r in (1, 2)]
    found = merging_section(lines, CLIENTS)
    why = "(the update is not finite)"
    lost = f"client 2 in round 1 {why}, client 2 in round 2 {why}"
    assert (found["defence"], found["lost"]) == (None, lost)
    assert found["privacy"].items() >= {"epsilon": 2.0, "rounds": 2, "clipped": 50.0}.items()
    many = [{"round": r, "participants": [], "dropped": {"0": "x"}} for r in range(1, 31)]
    assert merging_section(many, CLIENTS)["lost"].endswith("client 0 in round 20 (x) and 10 more")


def test_names_in_the_model_card_are_inert(made, tmp_path):
    """A page that shows the card finds no tag, no link and no code in them."""
    run, name = made(), "<script>alert(1)</script>\n<img src=x onerror=y> [a](javascript:b) `c`"
    names = [*run.space.names]
    names[int(run.space.unseen[0])] = name.replace("\n", " ")
    experiment = {**run.manifest["experiment"], "name": name}
    card = model_card(
        copied(
            run, tmp_path / "copy", manifest={"experiment": experiment, "data": name}, names=names
        )
    )
    title, unseen, data = (
        next(line for line in card.splitlines() if line.startswith(head))
        for head in ("# ", "- Unseen: ", "- Fingerprint of the data: ")
    )
    assert "\n- Made by Python: `fedunseen.run`, with the experiment of `manifest.json`.\n" in card
    for text in (title, unseen, data):
        assert not {"<", ">"} & set(text)
        assert "\\[a\\](javascript:b) \\`c\\`" in text
    assert title.endswith("\\`c\\`")  # on one line


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
def test_a_damaged_evaluation_is_refused_in_one_sentence(made, tmp_path):
    """Each tensor in turn without a number: what can still be drawn is drawn."""
    path = shutil.copytree(made().path, tmp_path / "run")
    file = path / "evaluation.safetensors"
    whole, sentences = load_file(file), {}
    for name, values in whole.items():
        save_file({**whole, name: np.zeros(0, values.dtype)}, file)
        try:
            write_report(load_run(path))
        except RunDirectoryError as error:
            sentences[name] = str(error)
    assert sentences.keys() >= {"client_counts", "zsl_answers", "gzsl_answers", "similarity"}
    start = f"{path}: the section '\\w+' of the report cannot be drawn .*"
    assert all(re.fullmatch(start, sentence) for sentence in sentences.values())
