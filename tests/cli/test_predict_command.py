"""``fedunseen predict``, ``export`` and ``compare``: from files to classes, from runs to tables and
differences.
"""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedunseen import Experiment, load_run, run
from fedunseen.model import Prediction

EXAMPLES = Path(__file__).parents[2] / "examples" / "digit-pairs"
IMAGES = sorted(EXAMPLES.glob("*.png"))


@pytest.fixture
def predict(works):
    """Call ``fedunseen predict`` and return what it says as JSON: inputs with names and scores of
    their classes.
    """

    def call(run, *arguments):
        return works("predict", run, *arguments, "--json").answer

    return call


def test_images_are_ranked(predict, works, digits):
    assert len(IMAGES) == 3
    found = predict(digits, *IMAGES, "--top", 3)
    assert [one["input"] for one in found] == list(map(str, IMAGES))
    for one, ranking in zip(found, load_run(digits).predict(IMAGES, top=3), strict=True):
        expected = [(p.name, pytest.approx(p.score, abs=1e-5)) for p in ranking]
        assert [(c["name"], c["score"]) for c in one["classes"]] == expected
    # an ordinary image of a class that no one held: among the unseen ones it is found
    (unseen,) = predict(digits, EXAMPLES / "47.png", "--among", "unseen")
    assert (unseen["classes"][0]["name"], len(unseen["classes"])) == ("47", 5)
    # without --json, people get a list
    done = works("predict", digits, IMAGES[0], "--top", 2)
    first, *rest = done.out.splitlines()
    assert (first, [line.split()[0] for line in rest]) == (str(IMAGES[0]), ["1.", "2."])
    assert done.err.startswith("Percentages are shares of 100 %")  # nothing was held out


def test_a_folder_is_its_pictures_and_what_is_none_is_left_out_and_said(
    predict, works, digits, tmp_path
):
    folder = tmp_path / "new"
    for i, image in enumerate(IMAGES):
        (folder / str(i)).mkdir(parents=True)
        shutil.copy(image, folder / str(i))
    (folder / "notes.txt").write_text("no picture")
    (folder / "others.txt").write_text("no picture")
    (folder / "classes.csv").write_text("class,a\nclock,1\n")  # as its owner describes the classes
    done = works("predict", digits, folder, "--json", "--top", 1)
    assert [Path(one["input"]).name for one in done.answer] == [image.name for image in IMAGES]
    plain = predict(digits, *IMAGES, "--top", 1)
    assert [one["classes"] for one in done.answer] == [one["classes"] for one in plain]
    said = (
        f"warning: 2 of 5 files of {folder} are left out: {folder / 'notes.txt'} is not a readable"
    )
    assert said in done.err
    assert f", {folder / 'others.txt'} is not a readable" in done.err


@pytest.mark.parametrize("layout", ["bytes", "shares", "colors last", "colors first"])
def test_arrays_of_pictures_answer_as_their_files_do(layout, predict, digits, tmp_path):
    rows = np.stack(
        [np.asarray(Image.open(image).convert("L").resize((16, 8))) for image in IMAGES]
    )
    for i, row in enumerate(rows):
        Image.fromarray(row).save(tmp_path / f"{i}.png")
    given = {
        "bytes": rows,
        "shares": rows / 255,
        "colors last": np.repeat(rows[..., None], 3, axis=-1),
    }
    given["colors first"] = np.repeat(rows[:, None], 3, axis=1)
    np.savez(tmp_path / "rows.npz", images=given[layout])
    found = predict(digits, tmp_path / "rows.npz", "--top", 100)
    files = predict(digits, *sorted(tmp_path.glob("*.png")), "--top", 100)
    assert [one["input"] for one in found] == [f"{tmp_path / 'rows.npz'}[{i}]" for i in range(3)]
    assert [one["classes"] for one in found] == [one["classes"] for one in files]


def test_a_table_has_a_line_for_each_place_and_shares_add_up(command, predict, digits, tmp_path):
    table = tmp_path / "answers.csv"
    table.symlink_to("elsewhere.csv")
    done = command("predict", digits, *IMAGES, "--csv", table, "--proba", "--top", 100)
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith(f"{table}: 3 inputs, 300 lines\n")
    rows = list(csv.DictReader(table.read_text("utf-8").splitlines()))
    plain = predict(digits, *IMAGES, "--top", 100)
    expected = [
        (one["input"], str(i), c["name"], c["score"])
        for one in plain
        for i, c in enumerate(one["classes"], 1)
    ]
    assert [(r["input"], r["place"], r["class"], float(r["score"])) for r in rows] == expected
    for one in plain:
        scores = np.array([c["score"] for c in one["classes"]])
        odds = [float(row["probability"]) for row in rows if row["input"] == one["input"]]
        assert np.allclose(odds, np.exp(scores) / np.exp(scores).sum())
    shown = command("predict", digits, IMAGES[0], "--proba", "--top", 1).out.splitlines()[1]
    assert shown.endswith(f"  {100 * float(rows[0]['probability']):.1f} %")
    assert table.is_symlink()


@pytest.mark.slow
def test_class_names_of_any_script_are_printed(works, predict, small, tmp_path, monkeypatch):
    out, sample = tmp_path / "out", tmp_path / "x.npy"
    works("run", small, "--out", out)
    np.save(sample, np.ones(9))
    shown = works("predict", out, sample, "--top", 12).out
    assert all(name in shown for name in ("猫", "zèbre", "two words"))
    assert "猫" in [c["name"] for c in predict(out, sample, "--top", 12)[0]["classes"]]
    found = [Prediction("猫", -0.0004, 0.25), Prediction("zèbre", -1.0, 0.2)]
    monkeypatch.setattr("fedunseen.cli.predict._ranked", lambda *_: [("x", found, {})])
    printed = works("predict", out, sample, "--scores").out
    assert printed == "x\n  1. 猫  25.0 %  0.000\n  2. zèbre  20.0 %  -1.000\n"


@pytest.mark.slow
def test_examples_are_learnt_for_a_question(predict, fast, tmp_path):
    done = run(
        Experiment.load("digit-pairs-gaussian", {**fast, "strategy.rounds": 1}), tmp_path / "run"
    )
    (tmp_path / "shown" / "forty-seven").mkdir(parents=True)
    shutil.copy(EXAMPLES / "47.png", tmp_path / "shown" / "forty-seven")
    found = predict(done.path, *IMAGES, "--support", tmp_path / "shown", "--top", 3)
    expected = done.predict(IMAGES, top=3, support=tmp_path / "shown")
    assert [[c["name"] for c in one["classes"]] for one in found] == [
        [p.name for p in one] for one in expected
    ]
    assert "forty-seven" in {c["name"] for c in found[IMAGES.index(EXAMPLES / "47.png")]["classes"]}


@pytest.mark.slow
def test_one_clients_model_is_asked_where_each_has_its_own(predict, refused, tmp_path):
    few = {
        "data.train_per_class": 2,
        "data.test_per_class": 2,
        "partition.clients": 3,
        "strategy.rounds": 1,
    }
    few |= {
        "strategy.name": "local",
        "method.kl": 0.0,
        "evaluation.selection": "last",
        "evaluation.embedding": False,
    }
    run(Experiment.load("digit-pairs", few), own := tmp_path / "own")
    image = EXAMPLES / "47.png"
    (found,), (expected,) = (
        predict(own, image, "--client", 2),
        load_run(own).of_client(2).predict([image], top=5),
    )
    assert [c["name"] for c in found["classes"]] == [p.name for p in expected]
    assert "name a client, --client 0, or run with" in refused("predict", own, image)
    assert (
        refused("predict", own, image, "--client", 3)
        == f"{own}: unknown client '3' (known: 0, 1, 2)"
    )


def test_each_table_is_a_file_and_latex_has_the_numbers_of_the_csv_files(
    command, works, digits, tmp_path
):
    names = ["rounds", "classes", "confusion_zsl", "confusion_gzsl", "clients"]
    wrote = "".join(f"wrote {tmp_path / 'tables' / name}.csv\n" for name in names)
    assert command("export", digits, "--csv", tmp_path / "tables") == (0, "", wrote)
    lines = (tmp_path / "tables" / "rounds.csv").read_text().splitlines()
    assert len(lines) == 1 + len((digits / "metrics.jsonl").read_text().splitlines())
    files = works("export", digits, "--csv", tmp_path, "--latex", tmp_path, "--json").answer[
        "files"
    ]
    assert {Path(file).suffix for file in files} == {".csv", ".tex"}
    header, first, *rest = csv.reader((tmp_path / "classes.csv").read_text("utf-8").splitlines())
    lines = (tmp_path / "classes.tex").read_text("utf-8").splitlines()
    assert lines[:3] == [r"\begin{tabular}{llrrr}", r"\toprule", " & ".join(header) + r" \\"]
    assert len(lines) == 6 + 1 + len(rest)
    cells = lines[4].removesuffix(r" \\").split(" & ")
    assert cells[:3] == first[:3]
    for text, value in zip(cells[3:], first[3:], strict=True):
        assert text == value == "" or float(text) == pytest.approx(float(value), rel=1e-3)


@pytest.mark.slow
def test_it_prints_a_line_for_each_number_and_json_unrounded(works, digits, fast, tmp_path):
    settings = {**fast, "method.kl": 0, "strategy.rounds": 6}
    better = run(Experiment.load("digit-pairs", settings), tmp_path / "better").path
    done = works("compare", digits, better, digits)
    lines = done.out.splitlines()
    assert (done.err, len(lines)) == ("", 10)
    assert lines[0].startswith(f"{better} against {digits}, 95 % intervals over ")
    assert lines[6:] == [
        "  ZSL      +0.0 ± 0.0",
        *(f"  {name}        +0.0 ± 0.0" for name in "USH"),
    ]
    (result,) = works("compare", digits, better, "--json").answer
    one, other = (load_run(path).result["zsl"] for path in (better, digits))
    zsl = result["differences"]["zsl"]
    assert (result["run"], zsl["difference"]) == (str(better), pytest.approx(one - other))
    assert zsl["ci95"] > 0
