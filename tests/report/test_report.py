import base64
import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from fedunseen import ClassSpace, load_run
from fedunseen.report import write_report
from pages import check_whole, copied, page_of, without_pictures

NUMBERS = ("zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic")
SHAPES = {"path", "rect", "circle", "image"}
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
def test_every_kind_of_run_has_a_whole_page_that_needs_nothing_else(kind, made, tmp_path):
    page, text = page_of(made(*VARIANTS[kind]), tmp_path)
    check_whole(page, text, 400_000)


@pytest.mark.parametrize("kind", VARIANTS)
def test_headline_numbers_are_those_of_the_result(kind, made, tmp_path):
    run = made(*VARIANTS[kind])
    page, _ = page_of(run, tmp_path)
    stored = json.loads((run.path / "result.json").read_text("utf-8"))
    for name in NUMBERS:
        value, written = page.numbers[name][0]
        assert value == stored[name]
        assert written == f"{stored[name]:.1f}"
        if name != "zsl" and len(page.numbers[name]) > 1:
            assert page.numbers[name][1][0] == stored[f"uncalibrated_{name}"]
    assert page.numbers["zsl"][1] == (5.0, "5.0")  # guessing among 20 unseen classes


def test_uncalibrated_numbers_stand_beside_calibrated_ones(made, tmp_path):
    page, _ = page_of(made(*VARIANTS["validation"]), tmp_path)
    assert all(len(page.numbers[name]) == 2 for name in NUMBERS[1:])


@pytest.mark.slow
def test_says_how_rounds_were_chosen(made, tmp_path):
    says = {kind: page_of(made(*VARIANTS[kind]), tmp_path) for kind in ("plain", "validation", "best-on-test")}
    assert "Not an honest choice: best on test" in says["best-on-test"][0].text
    assert 'class="choice warning"' in says["best-on-test"][1]
    for kind in ("plain", "validation"):
        assert "honest choice" not in says[kind][0].text
    assert "No test sample took part in the choice" in says["validation"][0].text
    assert "Nothing was chosen" in says["plain"][0].text


def test_every_figure_says_what_it_is_and_every_unseen_class_is_named(made, tmp_path):
    run = made()
    page, _ = page_of(run, tmp_path)
    figures = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert len(figures) >= 9  # four accuracies, losses, holdings, histogram, confusion, two similarities
    assert all(one["role"] == "img" and len(one["aria-label"]) > 10 for one in figures)
    images = [attributes for tag, attributes in page.elements if tag == "img"]
    assert len(images) == 60
    assert all(image["alt"].startswith("test sample of class ") for image in images)
    names = [run.space.names[c] for c in run.space.unseen]
    named = re.findall(r'class="name" title="6 test samples">(\d\d)<', (tmp_path / "report.html").read_text())
    assert sorted(named) == sorted(names)


def test_images_are_marked_right_and_wrong_as_the_model_answered(made, tmp_path):
    from fedunseen.federation.run_directory import load_params

    run = made()
    page, _ = page_of(run, tmp_path)
    tensors = load_params(run.path / "evaluation.safetensors")
    right = (tensors["image_answers"][:, 0] == tensors["image_labels"]).tolist()
    marks = [a["class"] for tag, a in page.elements if tag == "li" and a.get("class") in ("right", "wrong")]
    assert marks == ["right" if one else "wrong" for one in right]
    assert f"{sum(right)} of 60 right" in page.text


def test_names_from_outside_are_escaped(made, tmp_path):
    source, evil = made(*VARIANTS["validation"]), '<script>alert(1)</script>"&'
    names = [*source.space.names]
    names[int(source.space.unseen[0])], names[int(source.space.seen[0])] = evil, evil + "'seen"
    experiment = {**source.manifest["experiment"], "name": evil}
    manifest = {"benchmark": evil, "data_fingerprint": evil, "experiment": experiment}
    page, text = page_of(copied(source, tmp_path / "copy", {"run": evil}, manifest, names=names), tmp_path)
    assert "<script" not in text
    assert not any(tag == "script" for tag, _ in page.elements)
    assert evil in page.text
    assert all('"' not in a.get("aria-label", "") or evil in a["aria-label"] for _, a in page.elements)


def test_local_run_says_that_there_is_no_merged_model(made, tmp_path):
    page, text = page_of(made(*VARIANTS["local"]), tmp_path)
    assert "Every client kept its own model; all numbers are means over the clients." in page.text
    assert "no single model whose answers could be shown" in page.text
    assert "What unseen classes are taken for" not in page.text
    assert "By the model's scores" not in page.text
    assert "merged model" not in page.text
    assert 'class="cards"' not in text


def test_a_method_that_knows_no_descriptions_is_not_said_to_use_them(made, tmp_path):
    page, _ = page_of(made(*VARIANTS["classifier"]), tmp_path)
    assert "This method cannot use descriptions" in page.text
    assert "uncalibrated" not in page.text


def test_seeds_run_tables_every_seed_and_says_whose_figures_follow(made, tmp_path):
    run = made(*VARIANTS["seeds"])
    page, text = page_of(run, tmp_path)
    table = re.search(r"<h2>2 seeds</h2>.*?</table>", text, re.DOTALL)[0]
    cells = re.findall(r"<td>(.*?)</td>", table)
    for i, one in enumerate(run.seeds):
        assert cells[9 * i : 9 * i + 4] == [f"{one.result[name]:.1f}" for name in NUMBERS]
    assert cells[18:22] == [f"{run.result[n]:.1f} ± {run.result[f'{n}_sd']:.1f}" for n in NUMBERS]
    assert "From here on: seed 0 alone." in page.text
    assert f"± {run.result['zsl_sd']:.1f}" in page.text


def test_confusion_is_drawn_only_among_unseen_classes_and_who_holds_what_adds_up(made, tmp_path):
    run = made()
    page, text = page_of(run, tmp_path)
    assert "Confusion among 20 unseen classes" in text
    assert "80 are held by someone, 20 by no one" in text
    assert "Every row holds 8 classes." in page.text


@pytest.mark.slow
def test_tried_settings_are_tabled_and_the_chosen_one_marked(made, tmp_path):
    run = made(("evaluation.selection", "validation"), ("evaluation.choose.method.lr", (0.0001, 0.05)))
    page, text = page_of(run, tmp_path)
    chosen = run.result["chosen_on_validation"]["settings"]["method.lr"]
    won = re.search(r'<tr class="won"><td class="text">(.*?)</td>', text)[1]
    assert float(won) == chosen
    assert text.count('<td class="text">0.0001</td>') + text.count('<td class="text">0.05</td>') == 2
    assert "✓ chosen" in page.text


def test_default_place_and_whole_or_not_at_all(made, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(made().path, folder)
    run = load_run(folder)
    assert write_report(run) == folder / "report.html"
    first = (folder / "report.html").read_text("utf-8")
    assert write_report(run).read_text("utf-8") == first  # the same bytes again
    (folder / "evaluation.safetensors").write_bytes(b"cut short")
    with pytest.raises(Exception, match="cannot be read"):
        write_report(load_run(folder))
    assert (folder / "report.html").read_text("utf-8") == first
    assert not list(folder.glob(".report*"))


def test_a_page_of_many_classes_and_clients_stays_small(made, tmp_path):
    from fedunseen.core.files import write_tensors

    folder, rng = tmp_path / "many", np.random.default_rng(0)
    shutil.copytree(made().path, folder)
    classes, unseen = 300, np.arange(150)  # more unseen classes than are listed openly
    names = tuple(f"class number {i}" for i in range(classes))
    semantics = rng.random((classes, 8)) + 0.1
    space = ClassSpace(names, semantics, tuple("abcdefgh"), np.arange(150, 300), [], unseen)
    space.save(folder / "classes.csv")
    counts = np.zeros((60, classes), dtype=np.int64)
    counts[rng.integers(0, 60, 140), np.arange(150, 290)] = 7  # ten seen classes are held by no one
    labels = np.repeat(np.arange(1, classes), 2)  # class 0 has no test samples
    similarity = np.corrcoef(semantics)
    model = similarity.copy()
    model[0] = model[:, 0] = np.nan
    write_tensors(
        folder / "evaluation.safetensors",
        {
            "client_counts": counts,
            "labels": labels,
            "zsl_answers": rng.choice(unseen, len(labels)),
            "gzsl_answers": rng.integers(0, classes, len(labels)),
            "similarity": similarity,
            "model_similarity": model,
        },
    )
    page, text = page_of(load_run(folder), tmp_path)
    assert len(text) < 2_000_000
    assert all(f">{names[c]}</span>" in text for c in unseen)
    assert "30 more unseen classes" in page.text
    assert "10 not trained on" in page.text
    assert "Gray: classes without test samples." in page.text
    assert not re.search(r"\bnan\b", without_pictures(text), re.IGNORECASE)


def test_similarities_by_round_stand_in_one_row_with_their_agreement(made, tmp_path):
    from fedunseen.federation.run_directory import load_params

    run = made()
    page, _ = page_of(run, tmp_path)
    said = re.findall(
        r"round (\d+), agreement (-?[\d.]+): 100 by 100", " ".join(a.get("aria-label", "") for _, a in page.elements)
    )
    assert [int(round) for round, _ in said] == [1, 2]
    similarity = load_params(run.path / "evaluation.safetensors")["similarity"].double().numpy()
    pairs = np.triu_indices(100, 1)
    expected = []
    for round, _ in said:
        values = load_params(run.path / "similarity" / f"round-{round}.safetensors")["compatibility"].double().numpy()
        expected.append(np.corrcoef(similarity[pairs], (values + values.T)[pairs])[0, 1])
    assert min(np.abs(expected)) > 0.05  # its sign shows
    assert abs(expected[0] - expected[1]) > 0.011
    assert [float(words) for _, words in said] == pytest.approx(expected, abs=0.0051)


def test_similarities_are_those_of_the_rounds_model(made):
    """The last round's map, made again from the model that was written and the benchmark."""
    import torch

    from fedunseen.data.benchmarks.digit_pairs import DigitPairs
    from fedunseen.federation.run_directory import load_params

    run = made()
    benchmark = DigitPairs.load(run.experiment.data, 0)
    stored = load_params(run.path / "similarity" / "round-2.safetensors")
    for place in (0, 17, 99):
        c = int(stored["classes"][place])
        rows = np.flatnonzero(
            (benchmark.labels == c)
            & np.isin(np.arange(len(benchmark.labels)), np.concatenate([benchmark.test_seen, benchmark.test_unseen]))
        )
        with torch.no_grad():
            predicted = run.method.attributes(run.params, torch.from_numpy(benchmark.features[rows])).mean(0).numpy()
        expected = benchmark.space.semantics @ predicted
        np.testing.assert_allclose(stored["compatibility"][place].numpy(), expected, atol=1e-4)


def test_the_plane_shows_every_sample_and_the_silhouettes_are_those_of_the_spaces(made, tmp_path):
    import torch
    from sklearn.metrics import silhouette_score

    from fedunseen.data.benchmarks.digit_pairs import DigitPairs

    run = made()
    _, text = page_of(run, tmp_path)
    section = re.search(r"<h2>Unseen classes in the plane</h2>.*?</section>", text, re.DOTALL)[0]
    assert sum(path.count("h0") for path in re.findall(r'class="dots".*? d="(.*?)"', section)) == 2 * 120
    benchmark = DigitPairs.load(run.experiment.data, 0)
    inputs, labels = benchmark.features[benchmark.test_unseen], benchmark.labels[benchmark.test_unseen]
    with torch.no_grad():
        features = run.method.represent(run.params, torch.from_numpy(inputs)).numpy()
    before, after = (float(value) for value in re.findall(r"<b>(-?[\d.]+)</b>", section))
    assert before == pytest.approx(silhouette_score(inputs, labels), abs=0.0051)
    assert after == pytest.approx(silhouette_score(features, labels), abs=0.0051)


def test_long_class_names_become_numbers_with_a_key(made, tmp_path):
    space = made().space
    names = tuple(f"a class of digits {name}" for name in space.names)
    _, text = page_of(copied(made(), tmp_path / "copy", names=names), tmp_path)
    section = re.search(r"<h2>Unseen classes in the plane</h2>.*?</section>", text, re.DOTALL)[0]
    assert sorted(map(int, re.findall(r'class="where".*?>(\d+)<', section))) == sorted(2 * list(range(1, 21)))
    listed = re.findall(r'<li><span>(.*?)</span> <span class="num">(\d+)</span>', section)
    assert listed == [(names[c], str(i)) for i, c in enumerate(space.unseen, 1)]


def test_figures_are_left_out_where_they_do_not_apply_or_are_not_wanted(made, tmp_path):
    for overrides in (
        VARIANTS["classifier"],
        VARIANTS["local"],
        (("evaluation.theory", False), ("evaluation.embedding", False)),
    ):
        run = made(*overrides)
        _, text = page_of(run, tmp_path)
        assert "From predicted attributes to classes" not in text
        assert not (run.path / "similarity").exists()
    assert "Unseen classes in the plane" not in text


def test_settings_tried_at_several_numbers_are_drawn_over_them(made, tmp_path):
    run = made(("evaluation.selection", "validation"), ("evaluation.choose.method.lr", (0.0001, 0.05)))
    _, text = page_of(run, tmp_path)
    drawing = re.search(r'<svg[^>]*aria-label="Validation classes by method.lr.*?</svg>', text, re.DOTALL)[0]
    said = set(re.findall(r"<title>(\w+) method.lr ([\d.]+): ([\d.]+)%</title>", drawing))
    short = {"H": "gzsl_harmonic", "ZSL": "zsl", "U": "gzsl_unseen", "S": "gzsl_seen"}
    assert len(said) == 8
    for name, at, value in said:
        one = next(o for o in run.result["chosen_on_validation"]["tried"] if o["settings"]["method.lr"] == float(at))
        assert float(value) == pytest.approx(one[short[name]], abs=0.051)


def test_one_class_is_not_several(made, tmp_path):
    counts = np.zeros((3, 100), dtype=np.int64)
    counts[np.arange(3), made().space.seen[:3]] = [1, 5, 7]
    page, _ = page_of(copied(made(), tmp_path / "copy", tensors={"client_counts": counts}), tmp_path)
    assert "Every row holds 1 class." in page.text
    assert "1 class, 1 sample " in page.text + " "
    assert "1 classes" not in page.text


def test_color_images_are_shown_in_color(made, tmp_path):
    images = np.random.default_rng(0).random((60, 12, 10, 3)).astype(np.float32)
    page, _ = page_of(copied(made(), tmp_path / "copy", tensors={"images": images}), tmp_path)
    shown = [a for tag, a in page.elements if tag == "img"]
    assert {(a["width"], a["height"]) for a in shown} == {("10", "12")}
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(shown[7]["src"].partition(",")[2]))))
    np.testing.assert_allclose(pixels / 255, images[7], atol=0.5 / 255 + 1e-6)


def test_large_images_are_shrunk_to_what_is_shown():
    from fedunseen.tasks.zero_shot_summary import small as shrunk

    color = np.zeros((3, 200, 100), dtype=np.uint8)
    color[0, :, :50] = 255
    small = shrunk(color)
    assert small.shape == (64, 32, 3)
    np.testing.assert_allclose(small[:, :14, 0], 1.0)
    np.testing.assert_allclose(small[:, 18:], 0.0)
    grey = np.random.default_rng(0).random((1, 8, 16)).astype(np.float32)
    np.testing.assert_array_equal(shrunk(grey), grey[0])
    assert shrunk(255 * np.ones((1, 4, 4), dtype=np.uint8)).max() == 1.0


def test_a_page_is_made_without_the_plug_in_that_the_run_was_made_with(made, tmp_path):
    """Method and strategy of a package that is not installed: all that the page needs is in the run directory."""
    manifest = made().manifest
    assert manifest["task"] == "zero-shot"
    assert manifest["traits"] == {
        "zero_shot": True, "private": [], "merges": True, "pools": False, "accuracies": list(NUMBERS),
    }  # fmt: skip
    strategy = {**manifest["experiment"]["strategy"], "name": "another-package-s-too"}
    method = {"name": "another-package-s", "their": 1}
    experiment = {**manifest["experiment"], "method": method, "strategy": strategy, "data": {"name": "theirs"}}
    folder = copied(made(), tmp_path / "copy", manifest={"experiment": experiment}).path
    page, text = page_of(load_run(folder), tmp_path)
    assert "another-package-s on digit-pairs" in page.text
    assert "What travels" in page.text
    assert 'name = "another-package-s-too"' in text.replace("&#34;", '"')


def test_a_task_without_a_page_of_its_own_has_a_plain_one(made, tmp_path):
    page, text = page_of(copied(made(), tmp_path / "copy", manifest={"task": "theirs"}), tmp_path)
    assert "A run of the task theirs" in page.text
    assert f"{made().result['gzsl_harmonic']:.1f}&nbsp;%" in text
    assert "What travels" in page.text


def test_the_top_of_the_page_says_in_plain_words_how_good_the_model_is(made, tmp_path):
    run = made()
    _, text = page_of(run, tmp_path)
    short = re.search(r'<section class="short".*?</section>', text, re.DOTALL)[0]
    result = run.result
    assert f"names {result['zsl']:.0f} right if it chooses among those 20 classes; guessing names 5." in short
    assert f"{result['gzsl_unseen']:.0f} of 100 of these right, and {result['gzsl_seen']:.0f} of 100 of" in short
    assert text.index('id="short"') < text.index('id="number-zsl"')
    bars = re.findall(r'title="6 test samples">(\d\d)<.*?<span class="num">([\d.]+)</span>', text, re.DOTALL)
    weak = [name for name, value in bars if float(value) < 50]
    if weak:
        assert f"{len(weak)} of 20 unseen classes ha" in short
    else:
        assert "None of the 20 unseen classes: each has at least half of its samples right." in short


def test_what_seems_wrong_stands_in_a_box_above_everything(made, tmp_path):
    finding = {"what": "It went <b>wrong</b>.", "why": "Who knows.", "remedy": "Try again."}
    for place, warnings in enumerate(([], [finding])):
        page, text = page_of(copied(made(), tmp_path / str(place), {"warnings": warnings}), tmp_path)
        assert ("Something seems to be wrong" in page.text) == bool(warnings)
    assert "It went <b>wrong</b>. Who knows. What to do: Try again." in page.text
    assert text.index('id="warnings"') < text.index('id="short"')
    assert "Do what the box above says, and run it again." in page.text


def test_a_run_that_learns_nothing_says_so_in_its_result(tmp_path):
    """No step at all: a model that no one trained answers by chance."""
    from fedunseen import Experiment
    from fedunseen import run as run_experiment

    settings = {"method.lr": 1e-12, "strategy.rounds": 1, "evaluation.selection": "last", "data.train_per_class": 5}
    settings |= {"data.test_per_class": 6, "method.kl": 0, "evaluation.theory": False, "evaluation.embedding": False}
    done = run_experiment(Experiment.load("digit-pairs", settings), tmp_path / "run")
    assert done.result["warnings"][0]["what"].startswith("The model is no better than guessing on unseen classes: ")
    assert done.result["warnings"][0].keys() == {"what", "why", "remedy"}


def test_the_page_shows_seven_parts_and_folds_the_rest(made, tmp_path):
    _, text = page_of(made(*VARIANTS["validation"]), tmp_path)
    main, details = text.split('<div class="details" id="details">')
    heads = re.findall(r"<section[^>]*>\s*<h2>(.*?)</h2>", main)
    places = [heads.index(one) for one in ("In short", "Accuracy by class", "Chosen on validation classes")]
    assert places == sorted(places)
    assert heads[-1] == "Make it again"
    assert "<details class=" not in main
    folded = re.findall(r'<details class="part"><summary><h2>(.*?)</h2>', details)
    assert folded[0] == "Learning, round by round"
    assert folded[-1] == "What travels"
    assert not set(folded) & set(heads)
