import json
import re
import tomllib

import numpy as np
import pytest
import torch

from fedunseen import ClassSpace, Experiment, load_run
from fedunseen.core.files import write_tensors
from fedunseen.core.toml import toml_text
from fedunseen.data.benchmarks.digit_pairs import DigitPairs
from fedunseen.federation.run_directory import load_params
from fedunseen.pages.report import write_report
from fedunseen.pages.report.card import model_card
from fedunseen.tasks.zero_shot_summary import small as shrunk
from pages import check_whole, copied, page_of, without_pictures
from small_runs import QUIET

NUMBERS = ("zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic")
VARIANTS = {
    "plain": (),
    "validation": (("evaluation.selection", "validation"),),
    "best-on-test": (("evaluation.selection", "best-on-test"),),
    "classifier": (("method.name", "classifier"), ("evaluation.calibration", "none")),
    "local": (("strategy.name", "local"),),
    "centralised": (("strategy.name", "centralised"),),
    "ragged": (("strategy.fraction", 0.3), ("partition.kind", "dirichlet"), ("strategy.rounds", 1)),
    "seeds": (("run.seeds", 2),),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", VARIANTS)
def test_every_kind_of_run_has_a_whole_page_with_the_numbers_of_the_result(kind, made, tmp_path):
    run = made(*VARIANTS[kind])
    page, text = page_of(run, tmp_path)
    check_whole(page, text, 400_000)
    assert ("<dt>Weak at (seed 0 alone)</dt>" in text) == (kind == "seeds")
    stored = json.loads((run.path / "result.json").read_text("utf-8"))
    for name in NUMBERS:
        assert page.numbers[name][0] == (stored[name], f"{stored[name]:.1f}")
        if name != "zsl" and len(page.numbers[name]) > 1:
            assert page.numbers[name][1][0] == stored[f"uncalibrated_{name}"]
    assert page.numbers["zsl"][1] == (5.0, "5.0")  # guessing among 20 unseen classes
    if kind == "seeds":
        cells = re.findall(
            r"<td>(.*?)</td>", re.search(r"<h2>2 seeds</h2>.*?</table>", text, re.DOTALL)[0]
        )
        assert cells[18:22] == [
            f"{run.result[n]:.1f} ± {run.result[f'{n}_sd']:.1f}" for n in NUMBERS
        ]


def test_images_are_marked_right_and_wrong_as_the_model_answered(made, tmp_path):
    run = made()
    page, _ = page_of(run, tmp_path)
    tensors = load_params(run.path / "evaluation.safetensors")
    right = (tensors["image_answers"][:, 0] == tensors["image_labels"]).tolist()
    marks = [
        a["class"]
        for tag, a in page.elements
        if tag == "li" and a.get("class") in ("right", "wrong")
    ]
    assert marks == ["right" if one else "wrong" for one in right]
    assert f"{sum(right)} of 60 right" in page.text


def test_names_from_outside_are_escaped(made, tmp_path):
    source, evil = made(*VARIANTS["validation"]), '<script>alert(1)</script>"&'
    names = [*source.space.names]
    names[int(source.space.unseen[0])], names[int(source.space.seen[0])] = evil, evil + "'seen"
    experiment = {**source.manifest["experiment"], "name": evil}
    manifest = {"benchmark": evil, "data_fingerprint": evil, "experiment": experiment}
    page, text = page_of(
        copied(source, tmp_path / "copy", {"run": evil}, manifest, names=names), tmp_path
    )
    assert "<script" not in text
    assert not any(tag == "script" for tag, _ in page.elements)
    assert evil in page.text
    assert all(
        '"' not in a.get("aria-label", "") or evil in a["aria-label"] for _, a in page.elements
    )


def test_default_place_and_whole_or_not_at_all(made, tmp_path):
    folder = tmp_path / "copy"
    run, page = copied(made(), folder), folder / "report.html"
    assert write_report(run) == page
    first = page.read_text("utf-8")
    assert write_report(run).read_text("utf-8") == first  # the same bytes again
    (folder / "evaluation.safetensors").write_bytes(b"cut short")
    with pytest.raises(Exception, match="cannot be read"):
        write_report(load_run(folder))
    assert page.read_text("utf-8") == first
    assert not list(folder.glob(".report*"))


@pytest.mark.slow
def test_a_page_of_many_classes_and_clients_stays_small(made, tmp_path):
    folder, rng = copied(made(), tmp_path / "many").path, np.random.default_rng(0)
    classes, unseen = 300, np.arange(150)  # more unseen classes than are listed openly
    names, semantics = (
        tuple(f"class number {i}" for i in range(classes)),
        rng.random((classes, 8)) + 0.1,
    )
    ClassSpace(names, semantics, tuple("abcdefgh"), np.arange(150, 300), [], unseen).save(
        folder / "classes.csv"
    )
    counts = np.zeros((60, classes), dtype=np.int64)
    counts[rng.integers(0, 60, 140), np.arange(150, 290)] = 7  # ten seen classes are held by no one
    labels = np.repeat(np.arange(1, classes), 2)  # class 0 has no test samples
    answers = {
        "zsl_answers": rng.choice(unseen, len(labels)),
        "gzsl_answers": rng.integers(0, classes, len(labels)),
    }
    tensors = {
        "client_counts": counts,
        "labels": labels,
        **answers,
        "similarity": np.corrcoef(semantics),
    }
    write_tensors(folder / "evaluation.safetensors", tensors)
    page, text = page_of(load_run(folder), tmp_path)
    assert len(text) < 2_000_000
    assert all(f">{names[c]}</span>" in text for c in unseen)
    assert all(words in page.text for words in ("30 more unseen classes", "10 not trained on"))
    assert not re.search(r"\bnan\b", without_pictures(text), re.IGNORECASE)


def test_similarities_are_those_of_the_rounds_model(made):
    """The last round's map, made again from the model that was written and the benchmark."""
    run = made()
    benchmark = DigitPairs.load(run.experiment.data, 0)
    tests = np.concatenate([benchmark.test_seen, benchmark.test_unseen])
    stored = load_params(run.path / "similarity" / "round-2.safetensors")
    for place in (0, 17, 99):
        rows = tests[benchmark.labels[tests] == int(stored["classes"][place])]
        with torch.no_grad():
            predicted = (
                run.method.attributes(run.params, torch.from_numpy(benchmark.features[rows]))
                .mean(0)
                .numpy()
            )
        expected = benchmark.space.semantics @ predicted
        np.testing.assert_allclose(stored["compatibility"][place].numpy(), expected, atol=1e-4)


@pytest.mark.slow
def test_unlabelled_samples_are_among_what_to_do_next(tiny, tmp_path):
    """Where an unseen class is weak: on the console, and once on the page, before examples."""
    few = {"data.train_per_class": 5, "data.test_per_class": 3, "evaluation.embedding": False}
    none = tiny("digit-pairs-gaussian", *few.items())
    assert not none.result["summary"]["weak_by_rule"] + none.result["summary"]["weak_unseen"]
    assert "fedunseen adapt" not in " ".join(none.result["summary"]["text"])
    assert "fedunseen adapt" not in page_of(none, tmp_path)[0].text
    done = tiny("digit-pairs-gaussian", *few.items(), ("evaluation.prior", 0.001))
    assert done.result["summary"]["weak_by_rule"]
    said = [one for one in done.result["summary"]["text"] if "fedunseen adapt" in one]
    page, _ = page_of(done, tmp_path)
    assert len(said) == page.text.count("fedunseen adapt") == 1
    assert page.text.index("What next") < page.text.index("fedunseen adapt")


@pytest.mark.slow
def test_a_class_learned_later_is_in_the_report(tiny, tmp_path):
    few = {"data.train_per_class": 10, "data.test_per_class": 6, **QUIET}
    done = tiny("digit-pairs-gaussian", *few.items())
    learned = done.learn(None, {"shown": np.zeros((3, 128), np.float32)}, tmp_path / "new")
    page = write_report(learned).read_text("utf-8")
    assert "shown" in without_pictures(page)
    heading = "gaussian on digit-pairs, with examples of 1 class"
    assert f"<h1>{heading}</h1>" in page  # not that of the run before
    assert f"<title>{heading} ·" in page
    assert "# digit-pairs-gaussian, with examples of 1 class\n" in model_card(learned)
    effect = learned.result["learn_effect"]["text"]
    assert f"A{effect[1:]}." in " ".join(page.split())


def test_large_images_are_shrunk_to_what_is_shown():
    color = np.zeros((3, 200, 100), dtype=np.uint8)
    color[0, :, :50] = 255
    small = shrunk(color)
    assert small.shape == (64, 32, 3)
    np.testing.assert_allclose(small[:, :14, 0], 1.0)
    np.testing.assert_allclose(small[:, 18:], 0.0)
    gray = np.random.default_rng(0).random((1, 8, 16)).astype(np.float32)
    np.testing.assert_array_equal(shrunk(gray), gray[0])
    assert shrunk(255 * np.ones((1, 4, 4), dtype=np.uint8)).max() == 1.0


def test_a_page_is_made_without_the_plug_in_that_the_run_was_made_with(made, tmp_path):
    manifest = made().manifest
    traits = {
        "zero_shot": True,
        "private": [],
        "merges": True,
        "pools": False,
        "accuracies": list(NUMBERS),
    }
    assert (manifest["task"], manifest["traits"]) == ("zero-shot", traits)
    strategy = {**manifest["experiment"]["strategy"], "name": "another-package-s-too"}
    theirs = {
        "method": {"name": "another-package-s", "their": 1},
        "strategy": strategy,
        "data": {"name": "theirs"},
    }
    run = copied(
        made(), tmp_path / "copy", manifest={"experiment": {**manifest["experiment"], **theirs}}
    )
    page, text = page_of(run, tmp_path)
    assert "another-package-s on digit-pairs" in page.text
    assert "What travels" in page.text
    assert 'name = "another-package-s-too"' in text.replace("&#34;", '"')


def test_the_first_paragraph_says_how_often_unseen_classes_are_right_in_daily_use(made, tmp_path):
    done = made()
    _, text = page_of(done, tmp_path)
    lead = text.partition('class="lead"')[2].partition("</p>")[0]
    assert f"<strong>{done.result['zsl']:.1f}&nbsp;%</strong>" in lead
    right = done.result["gzsl_unseen"]
    assert f"may be the answer, it is right for {right:.1f}&nbsp;% of them." in lead


@pytest.mark.slow
def test_what_seems_wrong_stands_in_a_box_above_everything(made, tmp_path):
    finding = {"what": "It went <b>wrong</b>.", "why": "Who knows.", "remedy": "Try again."}
    for place, warnings in enumerate(([], [finding])):
        page, text = page_of(
            copied(made(), tmp_path / str(place), {"warnings": warnings}), tmp_path
        )
        assert ("Something seems to be wrong" in page.text) == bool(warnings)
    assert "It went <b>wrong</b>. Who knows. What to do: Try again." in page.text
    assert text.index('id="warnings"') < text.index('id="short"')
    assert (
        "Begin with the warnings above: each says what is wrong, why, and what to do." in page.text
    )


def test_a_class_of_few_test_samples_is_neither_easiest_nor_hardest(made, tmp_path):
    run = made()
    labels = run.evaluation["labels"].copy()
    few, other = run.space.seen[:2]
    labels[np.flatnonzero(labels == few)[1:]] = other  # one of six is left
    _, text = page_of(copied(run, tmp_path / "few", tensors={"labels": labels}), tmp_path)
    part = text[text.index("<h2>Accuracy by class") :]
    table = part[part.index(">hardest<") : part.index("</table>")]
    named = dict(
        re.findall(r'<td class="text[^"]*">([^<]+)</td><td>[\d.]+</td><td>(\d+)</td>', table)
    )
    assert run.space.names[few] not in named
    assert {"6", "11"} == set(named.values())
    assert "Left out: 1 with fewer than 5 test samples." in part
    assert re.search(rf"<span>{run.space.names[few]}</span> <span[^>]*>[\d.]+ of 1<", part)


def test_odd_pictures_that_chance_explains_have_a_part_of_their_own(made, tmp_path):
    stray = {"place": "lion", "like": "bear", "file": "lion/3.png"}
    odd = {"strays": [stray], "strays_by_chance": 3.6, "warnings": []}
    page, _ = page_of(copied(made(), tmp_path / "usual", odd), tmp_path)
    assert (
        "1 picture looks more like another class than like that of its folder: lion/3.png"
        in page.text
    )
    assert "Something seems to be wrong" not in page.text


def test_the_page_shows_seven_parts_and_folds_the_rest(made, tmp_path):
    _, text = page_of(made(*VARIANTS["validation"]), tmp_path)
    main, details = text.split('<div class="details" id="details">')
    heads = re.findall(r"<section[^>]*>\s*<h2>(.*?)</h2>", main)
    places = [
        heads.index(one)
        for one in ("In short", "Accuracy by class", "Chosen on validation classes")
    ]
    assert places == sorted(places)
    assert heads[-1] == "Make it again"
    assert "<details class=" not in main
    folded = re.findall(r'<details class="part"><summary><h2>(.*?)</h2>', details)
    assert (folded[0], folded[-1]) == ("Learning, round by round", "What travels")
    assert not set(folded) & set(heads)


CASES = {
    "as it is": {},
    "another method": {"method.name": "classifier", "evaluation.calibration": "none"},
    "another strategy": {"strategy.name": "fedprox", "strategy.rounds": 3},
    "tables": {"evaluation.choose": {"method.lr": [0.1, 0.2]}, "partition.join": {"3-4": 2}},
    "numbers and lists": {"method.hidden": [], "method.lr": 1e-05, "run.seed": 7},
    "data elsewhere": {
        "data.name": "xlsa17", "data.root": '/someone\'s data/"x"', "data.dataset": "AWA2",
        "data.features": ["centre", "l2"],
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_experiment_that_the_page_prints_is_the_whole_one(case):
    tree = Experiment.load("digit-pairs", CASES[case]).to_dict()
    assert tomllib.loads(toml_text(tree)) == tree
