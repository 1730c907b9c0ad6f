import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest

from fedunseen import ClassSpace, load_run
from fedunseen.report import write_report

NUMBERS = ("zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic")
VOID = {"meta", "img", "br", "input", "link", "hr"}
SHAPES = {"path", "rect", "circle", "image"}


class Page(HTMLParser):
    """A parsed page: its elements, its text, and whether every element is closed where it should be."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.words, self.open, self.problems = [], [], [], []
        self.numbers, self.inside = {}, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append((tag, dict(attributes)))

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if not self.open or self.open[-1][0] != tag:
            self.problems.append((tag, self.getpos()))
        else:
            self.open.pop()

    def handle_data(self, text):
        if self.open and self.open[-1][0] not in ("style", "title"):
            self.words.append(text)
        ids = [a["id"] for _, a in self.open if a.get("id", "").startswith("number-")]
        if ids and self.open[-1][0] == "data":
            value = float(self.open[-1][1]["value"])
            self.numbers.setdefault(ids[-1].removeprefix("number-"), []).append((value, text))

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


def page_of(run, tmp_path):
    path = write_report(run, tmp_path / "report.html")
    text = path.read_text("utf-8")
    page = Page(text)
    assert not page.problems
    assert not page.open
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids)) or _only_masks_twice(ids)
    return page, text


def _only_masks_twice(ids):
    """A mask's id is made of its content and place: the same one twice is the same mask."""
    return all(one.startswith("m") for one in ids if ids.count(one) > 1)


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


@pytest.mark.parametrize("kind", VARIANTS)
def test_every_kind_of_run_has_a_whole_page_that_needs_nothing_else(kind, made, tmp_path):
    page, text = page_of(made(*VARIANTS[kind]), tmp_path)
    for tag, attributes in page.elements:
        assert tag not in ("script", "link", "iframe", "object", "form")
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            if name in attributes:
                assert attributes[name].startswith("data:image/png;base64,")
    assert "://" not in text
    assert "@import" not in text
    assert not re.search(r"url\((?!#m[0-9a-f]{12}\))", text)
    assert not re.search(r"\bnan\b", text, re.IGNORECASE)
    assert "None" not in page.text
    assert len(text) < 400_000


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
    from fedunseen.experiment.directory import load_params

    run = made()
    page, _ = page_of(run, tmp_path)
    tensors = load_params(run.path / "evaluation.safetensors")
    right = (tensors["image_answers"][:, 0] == tensors["image_labels"]).tolist()
    marks = [a["class"] for tag, a in page.elements if tag == "li" and a.get("class") in ("right", "wrong")]
    assert marks == ["right" if one else "wrong" for one in right]
    assert f"{sum(right)} of 60 right" in page.text


def test_names_from_outside_are_escaped(made, tmp_path):
    source, evil = made(*VARIANTS["validation"]), '<script>alert(1)</script>"&'
    folder = tmp_path / "copy"
    shutil.copytree(source.path, folder)
    space = source.space
    names = [*space.names]
    names[int(space.unseen[0])], names[int(space.seen[0])] = evil, evil + "'seen"
    ClassSpace(names, space.semantics, space.attribute_names, space.seen, space.validation, space.unseen).save(
        folder / "classes.csv"
    )
    for file in ("manifest.json", "result.json"):
        content = json.loads((folder / file).read_text("utf-8"))
        if file == "manifest.json":
            content["benchmark"] = content["experiment"]["name"] = content["data_fingerprint"] = evil
        else:
            content["run"] = evil
        (folder / file).write_text(json.dumps(content), "utf-8")
    page, text = page_of(load_run(folder), tmp_path)
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
    assert "80 are held by somebody, 20 by nobody" in text
    assert "Every row holds 8 classes." in page.text


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
    counts[rng.integers(0, 60, 140), np.arange(150, 290)] = 7  # ten seen classes are held by nobody
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
    assert "Grey: classes without test samples." in page.text
    assert not re.search(r"\bnan\b", text, re.IGNORECASE)
